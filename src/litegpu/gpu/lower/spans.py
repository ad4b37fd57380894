"""Which integers a model's tensors can hold: INT64 is computed with in 32 bits where they do, else as two words.

What enters the GPU's part of a model as INT64 is looked at before each inference (gpu/delegate/kernel.py), unless it is
two words, and constants when they are read; of what is computed, the operators' entries tell (`Gpu.span`).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from litegpu.model.ops import find
from litegpu.model.ops.spans import IN_WORDS, WORD, Span
from litegpu.model.types import Operator, Subgraph, Tensor, TensorType

#: Types of numbers that 32 bits may not hold as whole numbers with a sign.
_BEYOND = (TensorType.FLOAT32, TensorType.FLOAT16, TensorType.FLOAT64, TensorType.UINT32)
_INTEGERS = (TensorType.INT32, TensorType.INT64, TensorType.BOOL)
#: One of these is taken by what takes elements, rather than places or sizes.
_ELEMENTS = frozenset({TensorType.FLOAT32, TensorType.BOOL})
#: Larger constants are not looked through.
_MOST_ELEMENTS = 1 << 16


def beyond_words(subgraph: Subgraph, operator: Operator) -> Span | None:
    """Between which numbers the INT64 that `operator` gives may lie, if 32 bits cannot hold them for sure."""
    if not any(subgraph.tensors[i].type is TensorType.INT64 for i in operator.outputs if i >= 0):
        return None
    found = _made(subgraph, operator, _spans(subgraph))
    return None if found is None or _fits(found) else found


def wide(subgraph: Subgraph) -> frozenset[int]:
    """The INT64 tensors that are two words: those that 32 bits may not hold, what is made of them, what is handed from
    one subgraph to another, and what enters, if no operator reads that, or what is made of it, that is known in one
    word alone."""
    if subgraph not in _WIDE:
        _WIDE[subgraph] = frozenset(_found_wide(subgraph))
    return _WIDE[subgraph]


_WIDE: weakref.WeakKeyDictionary[Subgraph, frozenset[int]] = weakref.WeakKeyDictionary()


def _found_wide(subgraph: Subgraph) -> set[int]:
    numbers = {t for t in range(len(subgraph.tensors)) if _is_wide_type(subgraph, t)}
    found = _entering(subgraph, numbers) | handed(subgraph, numbers) if numbers else set()
    todo = [o for o in subgraph.operators if _has_words(o) and not numbers.isdisjoint(o.outputs)]
    before = -1
    while before < len(found):
        before = len(found)
        for operator in todo:
            if _needs_words(subgraph, operator, found):
                found.update(numbers.intersection(operator.outputs))
    return found


def handed(subgraph: Subgraph, numbers: set[int]) -> set[int]:
    """Of `numbers` those that come from another subgraph, or go there."""
    found = {*subgraph.inputs, *subgraph.outputs} if subgraph.is_called else set()
    for operator in subgraph.operators:
        known = find(operator)
        if known is not None and known.calls in ("branch", "loop"):
            found.update(operator.inputs, operator.outputs)
    return found & numbers


def _entering(subgraph: Subgraph, numbers: set[int]) -> set[int]:
    """Of `numbers` those that no operator of the GPU's makes, and whose elements are computed with in words alone."""
    used, alone = set(), set()  # alone: one word of these has to be enough
    for operator in reversed(subgraph.operators):
        given = numbers.intersection(_elements(operator))
        if not _has_words(operator) and _has_entry(operator):
            alone.update(numbers.intersection(operator.inputs))
        elif not alone.isdisjoint(operator.outputs):
            alone.update(given)
        used.update(given)
    made = {t for o in subgraph.operators if _has_entry(o) for t in o.outputs}
    return used - alone - made


def _elements(operator: Operator) -> list[int]:
    """The inputs of an operator that hold elements, rather than places or sizes."""
    known = find(operator)
    if known is None or known.gpu is None:
        return []
    return [t for i, t in enumerate(operator.inputs) if t >= 0 and not _ELEMENTS.isdisjoint(known.gpu.types(i))]


def _is_wide_type(subgraph: Subgraph, tensor: int) -> bool:
    t = subgraph.tensors[tensor]
    return t.type is TensorType.INT64 and t.data is None and not t.is_variable


def _has_entry(operator: Operator) -> bool:
    known = find(operator)
    return known is not None and known.gpu is not None


def _has_words(operator: Operator) -> bool:
    """Whether there is a form of the operator for two words, or it moves elements."""
    known = find(operator)
    return known is not None and known.gpu is not None and (operator.name in IN_WORDS or bool(known.moves))


def _needs_words(subgraph: Subgraph, operator: Operator, found: set[int]) -> bool:
    """Whether the INT64 that an operator gives may be beyond 32 bits."""
    known, data = find(operator), _elements(operator)
    assert known is not None and known.gpu is not None
    if _ELEMENTS.isdisjoint(known.gpu.results):  # a shape
        return False
    if operator.name == "FLOOR_MOD":
        data = data[1:]  # within which what is left lies
    if not found.isdisjoint(data) or any(is_beyond(subgraph.tensors[t]) for t in data):
        return True
    if operator.name == "BITCAST":
        return True
    if operator.name == "CAST":
        return subgraph.tensors[operator.inputs[0]].type in _BEYOND
    return operator.name in IN_WORDS and (known.gpu.span_rule is None or beyond_words(subgraph, operator) is not None)


def is_beyond(tensor: Tensor) -> bool:
    """Whether a constant of INT64 holds more than 32 bits."""
    return tensor.type is TensorType.INT64 and tensor.data is not None and not _fits(_held(tensor, {}))


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
