"""`litegpu advise`: a model's type, which delegates take it, and why not all of it."""

from __future__ import annotations

from litegpu.tools.advise.advice import Advice, Recommendation, advise
from litegpu.tools.advise.advice_page import write_page
from litegpu.tools.advise.advice_text import print_advice
from litegpu.tools.advise.coverage import Coverage, Left, TargetDevice
from litegpu.tools.advise.measuring import MeasuredWays, measure

__all__ = [
    "Advice",
    "Coverage",
    "Left",
    "MeasuredWays",
    "Recommendation",
    "TargetDevice",
    "advise",
    "measure",
    "print_advice",
    "write_page",
]
