"""IF and WHILE as parts of a program: their subgraphs are compiled by themselves and linked into one arena."""

from __future__ import annotations

from litegpu.gpu.control.checks import check_control, is_control
from litegpu.gpu.control.costs import CalledWork, called_cost, called_work

__all__ = ["CalledWork", "called_cost", "called_work", "check_control", "is_control"]
