"""`litegpu inference-diff`: how far a delegate's results are from the CPU's, and which op is to blame.

report = inference_diff("model.tflite", DiffOptions(precision="float16", per_op=True, num_runs=5))
print(report.worst, report.per_op.verdict())
"""

from __future__ import annotations

from litegpu.tools.inference_diff.compare import DELEGATES, REFERENCES, DiffOptions, DiffReport, inference_diff
from litegpu.tools.inference_diff.measures import Difference, Histogram, OutputDifference
from litegpu.tools.inference_diff.per_op import NodeDifference, PerOpReport

__all__ = [
    "DELEGATES",
    "REFERENCES",
    "DiffOptions",
    "DiffReport",
    "Difference",
    "Histogram",
    "NodeDifference",
    "OutputDifference",
    "PerOpReport",
    "inference_diff",
]
