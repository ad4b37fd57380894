"""Node data that Google's Model Explorer shows beside the graph of the same file.

The form is that of its documentation (custom node data): graph -> results by node, with a gradient. Its adapter for
.tflite files calls a graph after the subgraph, or "main", and a node after its operator's number.
"""

from __future__ import annotations

import json
from typing import Any

from litegpu.model.types import Subgraph
from litegpu.tools.analyze.analysis import Analysis

_COOL, _HOT = "#f2f4f8", "#e0483e"
_UNNAMED = "main"


def node_data(analysis: Analysis, main: Subgraph) -> str:
    """JSON with the microseconds of each op of `main`, the main subgraph of the file: measured ones if there are."""
    measured = analysis.measured is not None
    results = {
        str(op.index): {"value": round((op.estimated if op.measured is None else op.measured) * 1e6, 4)}
        for op in analysis.ops
    }
    graph: dict[str, Any] = {
        "name": f"litegpu: {'measured' if measured else 'estimated'} us",
        "results": results,
        "gradient": [{"stop": 0, "bgColor": _COOL}, {"stop": 1, "bgColor": _HOT}],
    }
    return json.dumps({main.name or _UNNAMED: graph}, indent=1)
