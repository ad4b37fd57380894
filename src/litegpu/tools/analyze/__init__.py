"""`litegpu analyze`: what each op takes, where it runs and why, and what costs more than it must."""

from __future__ import annotations

from litegpu.tools.analyze.analysis import Analysis, OpAnalysis, analyze
from litegpu.tools.analyze.analysis_page import write_graph_page
from litegpu.tools.analyze.analysis_text import print_analysis
from litegpu.tools.analyze.annotated import annotated
from litegpu.tools.analyze.finding import Finding
from litegpu.tools.analyze.node_data import node_data
from litegpu.tools.analyze.rates import DeviceRates

__all__ = [
    "Analysis", "DeviceRates", "Finding", "OpAnalysis", "analyze", "annotated", "node_data", "print_analysis",
    "write_graph_page",
]  # fmt: skip
