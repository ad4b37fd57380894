"""Which integers a model's tensors can hold: INT64 is computed with in 32 bits where those are enough.

What enters the GPU's part of a model as INT64 is looked at before each inference (gpu/delegate/kernel.py), and
constants when they are read; of what is computed, the operators' entries tell (`Gpu.span`).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from litegpu.model.ops import find
from litegpu.model.ops.spans import WORD, Span
from litegpu.model.types import Operator, Subgraph, Tensor, TensorType

_INTEGERS = (TensorType.INT32, TensorType.INT64, TensorType.BOOL)
#: Larger constants are not looked through.
_MOST_ELEMENTS = 1 << 16


def beyond_words(subgraph: Subgraph, operator: Operator) -> Span | None:
    """Between which numbers the INT64 that `operator` gives may lie, if 32 bits cannot hold them for sure."""
    if not any(subgraph.tensors[i].type is TensorType.INT64 for i in operator.outputs if i >= 0):
        return None
    found = _made(subgraph, operator, _spans(subgraph))
    return None if found is None or _fits(found) else found


_SPANS: weakref.WeakKeyDictionary[Subgraph, Mapping[int, Span]] = weakref.WeakKeyDictionary()


def _spans(subgraph: Subgraph) -> Mapping[int, Span]:
    """tensor -> what it holds, of those of which more is known than that it fits into 32 bits."""
    if subgraph not in _SPANS:
        spans: dict[int, Span] = {}
        for operator in subgraph.operators:
            found = _made(subgraph, operator, spans)
            if found is not None and _fits(found):
                spans.update(dict.fromkeys(operator.outputs, found))
        _SPANS[subgraph] = spans
    return _SPANS[subgraph]


def _made(subgraph: Subgraph, operator: Operator, spans: Mapping[int, Span]) -> Span | None:
    known = find(operator)
    rule = None if known is None or known.gpu is None else known.gpu.span_rule
    if rule is None:
        return None
    tensors = [subgraph.tensors[i] for i in operator.inputs if i >= 0]
    given = [_held(t, spans) for t in tensors if t.type in _INTEGERS]
    return rule(given) if given and len(given) == len(tensors) else None


def _held(tensor: Tensor, spans: Mapping[int, Span]) -> Span:
    if tensor.type is TensorType.BOOL:
        return 0, 1
    data = tensor.data
    if data is not None and data.dtype.kind == "i" and 0 < data.size <= _MOST_ELEMENTS:
        return int(data.min()), int(data.max())
    return spans.get(tensor.index, WORD)


def _fits(span: Span) -> bool:
    return WORD[0] <= span[0] and span[1] <= WORD[1]
