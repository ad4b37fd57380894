"""Whether a partition's 8-bit tensors are computed with in whole numbers or as real ones, and why."""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from litegpu.delegates.protocol import Partition
from litegpu.gpu.kernels import native
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower import check_operator
from litegpu.model.costs import op_costs
from litegpu.model.types import Operator, Subgraph, TensorType

_BYTES = (TensorType.INT8, TensorType.UINT8)
#: Operators whose bytes are looked up, by kernels of their own.
_BY_TABLES = ("LOGISTIC", "TANH", "GELU", "ELU", "EXP")
#: What a multiplication with its addition takes beside one of float32: of float16 on tensor cores, and of bytes where
#: the device has products of four at once, where these are spelt out, and on tensor cores. (With the instructions that
#: convert and round, a product of four takes more than one.)
_FLOAT32, _FLOAT16_TENSOR, _BYTES_AT_ONCE, _BYTES_SPELT_OUT, _BYTES_TENSOR = 1.0, 1 / 10, 1 / 3, 3.0, 1 / 16


@dataclass(frozen=True)
class Arithmetic:
    """`integer`: in whole numbers. `why` is a sentence for the report, "" if there is nothing to choose."""

    integer: bool
    why: str = ""


def choose(asked: str, partition: Partition, features: Features, half: bool) -> Arithmetic:
    """What is asked for, or with "auto" the faster. `half`: floats would be float16."""
    if asked == "float" or not _has(partition, *_BYTES, *([TensorType.INT16] if asked == "integer" else [])):
        return Arithmetic(False, OF_WORDS if asked == "auto" and _has(partition, TensorType.INT16) else "")
    if asked == "integer":
        return Arithmetic(True)
    of_floats, (of_bytes, slow) = _cost_of_floats(features, half), _cost_of_bytes(features, partition)
    if of_bytes >= of_floats:
        slow = slow or f"a product of bytes is estimated to take {of_bytes / of_floats:.2g} times as long here"
        return Arithmetic(False, f"{FLOAT}: {slow}")
    for operator in partition.nodes:
        reason = _reason(partition.subgraph, operator)
        if reason is not None:
            return Arithmetic(False, f"{FLOAT}: of node {operator.index} ({operator.name}), {reason}")
    return Arithmetic(
        True, INTEGER + f": a product of bytes is estimated to take {of_bytes / of_floats:.2g} of a float's time here"
    )


#: What the report says of each.
FLOAT = (
    "8-bit tensors are computed with as real numbers, in each layer a quantum or so from the CPU's"
    " (arithmetic='integer' equals them)"
)
INTEGER = "8-bit tensors are computed with in whole numbers, as on the CPU"
OF_WORDS = (
    "16-bit tensors are computed with as real numbers, some quanta from the CPU's (arithmetic='integer' equals them)"
)


_REASONS: weakref.WeakKeyDictionary[Subgraph, dict[int, str | None]] = weakref.WeakKeyDictionary()


def both_would_do(asked: str, partition: Partition) -> bool:
    """Whether measurements may choose: every operator is known in whole numbers too."""
    known = (_reason(partition.subgraph, operator) is None for operator in partition.nodes)
    return asked == "auto" and _has(partition, *_BYTES) and all(known)


def _reason(subgraph: Subgraph, operator: Operator) -> str | None:
    """Why an operator is not taken in whole numbers, None if it is."""
    known = _REASONS.setdefault(subgraph, {})
    if operator.index not in known:
        known[operator.index] = check_operator(subgraph, operator, integer=True)
    return known[operator.index]


def _has(partition: Partition, *types: TensorType) -> bool:
    """Whether the model computes with tensors of these types, 16 bits if they stand for real numbers."""
    tensors = partition.subgraph.tensors
    touched = [tensors[t] for o in partition.nodes for t in (*o.inputs, *o.outputs) if t >= 0]
    real = (t for t in touched if t.type is not TensorType.INT16 or t.quantization is not None)
    return any(t.type in types and not t.is_constant for t in real)


def _cost_of_floats(features: Features, half: bool) -> float:
    return _FLOAT16_TENSOR if half and native.of(features) is not None else _FLOAT32


def _products(partition: Partition, asked: Callable[[Operator], bool] = lambda operator: True) -> float:
    """Multiplications of an inference, of the operators asked for."""
    costs = {o.index: cost for o, cost in zip(partition.subgraph.operators, op_costs(partition.subgraph), strict=True)}
    return sum(costs[o.index].flops for o in partition.nodes if o.index in costs and asked(o)) / 2


def _cost_of_bytes(features: Features, partition: Partition) -> tuple[float, str]:
    """What a product takes, and why it is not one of the device's own kernels that are estimated to do it faster."""
    own = native.of(features)
    by_language = _BYTES_AT_ONCE if features.byte_products else _BYTES_SPELT_OUT
    if own is None:
        return by_language, ""
    grouped = next((o for o in partition.nodes if _is_grouped(partition.subgraph, o)), None)
    if grouped is not None:
        reason = "products in groups, with which whole numbers are estimated to be slower here"
        return by_language, f"node {grouped.index} ({grouped.name}) has {reason}"
    old = next((o for o in partition.nodes if _has_zero_points(partition.subgraph, o)), None)
    attentions = _attentions(partition, own.keys_of_bytes(features))
    work = dataclasses.replace(_work(partition, old is not None), attentions=len(attentions))
    if not own.multiplies_bytes(features, work):
        zero = f" and weights with zero points of their own in node {old.index} ({old.name})" if old is not None else ""
        return by_language, f"with {_of_each(work)}{zero}, whole numbers are estimated to be slower here"
    slow = {o.index for o in partition.nodes if _by_language(partition.subgraph, o)} - attentions
    share = _products(partition, lambda o: o.index in slow) / max(work.products, 1.0)
    return share * by_language + (1 - share) * _BYTES_TENSOR, ""


def _work(partition: Partition, zero_points: bool) -> native.ByteWork:
    tensors, swishes = partition.subgraph.tensors, _swishes(partition)
    nodes = [o for o in partition.nodes if o.index not in swishes]
    sizes = [(o.name, math.prod(tensors[t].shape)) for o in nodes for t in o.outputs if t >= 0]
    elements, tables = sum(n for _, n in sizes), sum(n for name, n in sizes if name in _BY_TABLES)
    return native.ByteWork(_products(partition), elements, tables, len(nodes), _batch(partition), zero_points)


def _attentions(partition: Partition, most_keys: int) -> set[int]:
    """The numbers of nodes that are products on either side of a softmax, of at most so many keys."""
    tensors = partition.subgraph.tensors
    logits = {tensors[o.inputs[0]].shape for o in partition.nodes if o.name == "SOFTMAX"}
    found: set[int] = set()
    for operator in partition.nodes:
        if operator.name == "BATCH_MATMUL":
            shapes = [tensors[t].shape for t in (operator.inputs[0], operator.outputs[0])]
            if any(shape in logits and shape[-1] <= most_keys for shape in shapes):
                found.add(operator.index)
    return found


def _swishes(partition: Partition) -> set[int]:
    """The numbers of nodes that are x * sigmoid(x), which who computes x looks up (passes/tables.py): each two."""
    given = {o.outputs[0]: o for o in partition.nodes if o.name == "LOGISTIC"}
    found: set[int] = set()
    for operator in partition.nodes:
        if operator.name == "MUL":
            for x, y in (operator.inputs, operator.inputs[::-1]):
                if y in given and given[y].inputs[0] == x:
                    found |= {operator.index, given[y].index}
    return found


def _of_each(work: native.ByteWork) -> str:
    """How large the model's operators are, for people."""
    each, elements = work.products / max(work.elements, 1), work.elements / max(work.operators, 1)
    return f"{each:.0f} multiplications for each element that is computed, {elements:,.0f} elements an operator"


def _by_language(subgraph: Subgraph, operator: Operator) -> bool:
    """Whether there are no native kernels of bytes: for transposed convolutions, and where the model computes both
    matrices of a product."""
    if operator.name in ("BATCH_MATMUL", "TRANSPOSE_CONV"):
        return True
    return operator.name == "FULLY_CONNECTED" and not subgraph.tensors[operator.inputs[1]].is_constant


def _batch(partition: Partition) -> int:
    shapes = [partition.subgraph.tensors[t].shape for t in partition.inputs]
    return max([shape[0] for shape in shapes if shape], default=1)


def _is_grouped(subgraph: Subgraph, operator: Operator) -> bool:
    """Whether it is a convolution in groups, of which there are no native kernels of bytes."""
    if operator.name != "CONV_2D":
        return False
    given, weights = (subgraph.tensors[i] for i in operator.inputs[:2])
    return given.shape[-1:] != weights.shape[-1:]


def _has_zero_points(subgraph: Subgraph, operator: Operator) -> bool:
    """Whether a product's weights are other than signed bytes by a scale, as files of old have them."""
    if operator.name not in ("CONV_2D", "FULLY_CONNECTED"):
        return False
    weights = subgraph.tensors[operator.inputs[1]]
    if weights.type not in _BYTES or weights.quantization is None:
        return False
    return bool((weights.quantization.zero_points != (128 if weights.type is TensorType.UINT8 else 0)).any())
