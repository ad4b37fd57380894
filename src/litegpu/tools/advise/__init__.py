"""`litegpu advise`: a model's type, which delegates take it, and why not all of it."""

from __future__ import annotations

from litegpu.tools.advise.advice import Advice, Recommendation, advise
from litegpu.tools.advise.coverage import Coverage, Device, Left
from litegpu.tools.advise.page import write_page
from litegpu.tools.advise.text import print_advice

__all__ = ["Advice", "Coverage", "Device", "Left", "Recommendation", "advise", "print_advice", "write_page"]
