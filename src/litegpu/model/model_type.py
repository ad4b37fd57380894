"""Tells what kind of model a file holds: float32, float16 weights, dynamic range, integer, quantization-aware, mixed.

The procedure looks at written evidence first (the converter's metadata), then at each compute operator's tensors.
"""

from __future__ import annotations

import enum
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from litegpu.model.ops import find
from litegpu.model.types import Model, Operator, Subgraph, Tensor, TensorType


class ModelKind(enum.Enum):
    """The kinds of model that delegates tell apart."""

    FLOAT32 = "float32"
    FLOAT16 = "float16 throughout"
    FLOAT16_WEIGHTS = "float16 weights"
    DYNAMIC_RANGE = "dynamic range (8-bit weights, float activations)"
    FULL_INTEGER = "full integer"
    INTEGER_16X8 = "integer with 16-bit activations and 8-bit weights"
    QUANTIZATION_AWARE = "integer, trained with quantization"
    MIXED = "mixed"


@dataclass(frozen=True)
class ModelType:
    """What a model is, and why one thinks so.

    `counts` says how many operators compute in which way ("float32", "float16 weights", "dynamic range", "integer",
    "integer 16x8", "float16"): operators with weights, or all where there are none. `evidence` has one sentence per
    finding, in order of weight. `converter_modes` are the modes noted by the converter, None if it noted none.
    """

    kind: ModelKind
    counts: Mapping[str, int]
    evidence: tuple[str, ...]
    converter_modes: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return f"{self.kind.value}: {'; '.join(self.evidence)}"


def model_type(model: Model) -> ModelType:
    """The kind of a model, by its tensors and, where they leave it open, by the converter's notes and tensor names."""
    modes = conversion_modes(model.metadata.get("CONVERSION_METADATA", b""))
    counts = Counter(
        scheme for subgraph in model.subgraphs for scheme in _schemes(subgraph, only_weighted=True)
    ) or Counter(scheme for subgraph in model.subgraphs for scheme in _schemes(subgraph, only_weighted=False))
    evidence = [_counted(counts)]
    if modes:
        evidence.insert(0, f"the converter noted {', '.join(_MODES.get(mode, f'mode {mode}') for mode in modes)}")
    kind = _majority(counts)
    if kind is ModelKind.FULL_INTEGER:
        evidence.append(_interface(model.main))
        trained = _trained(model, modes)
        if trained:
            kind = ModelKind.QUANTIZATION_AWARE
            evidence.append(trained)
        elif not modes:
            evidence.append("how it was trained is not recorded, and makes no difference to running it")
    return ModelType(kind, dict(counts), tuple(evidence), modes)


def conversion_modes(metadata: bytes) -> tuple[int, ...] | None:
    """The optimization modes in the converter's CONVERSION_METADATA (a flatbuffer of its own), None if unreadable.

    Layout: root table, field 1 is the table of options, whose field 0 is a vector of int32.
    """
    try:
        root: int = struct.unpack_from("<I", metadata, 0)[0]
        options = _flatbuffer_field(metadata, root, 1)
        if options is None:
            return None
        vector = _flatbuffer_field(metadata, options, 0)
        if vector is None:
            return ()
        (length,) = struct.unpack_from("<I", metadata, vector)
        return struct.unpack_from(f"<{length}i", metadata, vector + 4) if length <= len(metadata) else None
    except struct.error:
        return None


def _flatbuffer_field(content: bytes, table: int, slot: int) -> int | None:
    """Where the offset in a table's field leads, None if the field is absent."""
    (back,) = struct.unpack_from("<i", content, table)
    vtable = table - back
    if vtable < 0:
        return None
    (size,) = struct.unpack_from("<H", content, vtable)
    if 4 + 2 * slot >= size:
        return None
    (offset,) = struct.unpack_from("<H", content, vtable + 4 + 2 * slot)
    if offset == 0:
        return None
    target: int = table + offset + struct.unpack_from("<I", content, table + offset)[0]
    return target


def _schemes(subgraph: Subgraph, *, only_weighted: bool) -> list[str]:
    producers = {output: operator for operator in subgraph.operators for output in operator.outputs}
    schemes = []
    for operator in subgraph.operators:
        known = find(operator)
        if only_weighted and not (known is not None and known.has_weights):
            continue
        scheme = _scheme(subgraph, operator, producers)
        if scheme is not None:
            schemes.append(scheme)
    return schemes


def _scheme(subgraph: Subgraph, operator: Operator, producers: Mapping[int, Operator]) -> str | None:
    """How one operator computes, from its activations and, if it has them, its weights."""
    known = find(operator)
    if known is not None and known.is_seam:
        return None
    tensors = [subgraph.tensors[index] for index in operator.inputs if index >= 0]
    constants = [_constant(subgraph, tensor, producers) for tensor in tensors]
    weights = {constant.type for constant in constants if constant is not None}
    activations = [tensor for tensor, constant in zip(tensors, constants, strict=True) if constant is None]
    activations = activations or [subgraph.tensors[index] for index in operator.outputs if index >= 0]
    types = {tensor.type for tensor in activations} & _COMPUTE_TYPES
    if TensorType.INT16 in types and TensorType.FLOAT32 not in types:
        return "integer 16x8"
    if types & _EIGHT_BIT:
        return "integer"
    if TensorType.FLOAT32 in types:
        if weights & (_EIGHT_BIT | _FOUR_BIT):
            return "dynamic range"
        return "float16 weights" if TensorType.FLOAT16 in weights else "float32"
    if TensorType.FLOAT16 in types:
        return "float16"
    return None


def _constant(subgraph: Subgraph, tensor: Tensor, producers: Mapping[int, Operator]) -> Tensor | None:
    """The constant behind an input, through DEQUANTIZE and DENSIFY."""
    while not tensor.is_constant:
        producer = producers.get(tensor.index)
        if producer is None or (known := find(producer)) is None or not known.widens:
            return None
        tensor = subgraph.tensors[producer.inputs[0]]
    return tensor


def _majority(counts: Counter[str]) -> ModelKind:
    """The kind that at least nine of ten operators agree on.

    Converters leave small weights in float, so float32 operators do not speak against dynamic range or float16 weights.
    """
    if not counts:
        return ModelKind.FLOAT32
    for scheme in ("dynamic range", "float16 weights"):
        if counts[scheme] and counts[scheme] + counts["float32"] >= 0.9 * counts.total():
            return _KINDS[scheme]
    scheme, count = counts.most_common(1)[0]
    return _KINDS[scheme] if count >= 0.9 * counts.total() else ModelKind.MIXED


def _counted(counts: Counter[str]) -> str:
    if not counts:
        return "no operator computes with numbers of a known kind"
    total = counts.total()
    return ", ".join(f"{count} of {total} operators compute in {scheme}" for scheme, count in counts.most_common())


def _interface(main: Subgraph) -> str:
    types = sorted({main.tensors[index].type.name.lower() for index in (*main.inputs, *main.outputs)})
    return f"inputs and outputs are {' and '.join(types)}"


def _trained(model: Model, modes: tuple[int, ...] | None) -> str:
    """Why the model must have been trained with quantization, "" if nothing says so."""
    if modes and _TRAINED in modes:
        return "the converter's note is certain"
    if modes and any(mode in _AFTERWARDS for mode in modes):
        return ""
    names = [t.name for subgraph in model.subgraphs for t in subgraph.tensors if any(mark in t.name for mark in _MARKS)]
    if names:
        return f"{len(names)} tensors are named after fake quantization, such as '{names[0]}'"
    return ""


_MODES = {
    1001: "post-training float16",
    1002: "post-training dynamic range",
    1003: "post-training full integer",
    1004: "post-training 16x8",
    2000: "quantization-aware training",
    3001: "random sparsity",
    3002: "block sparsity",
    3003: "structured sparsity",
}
_TRAINED = 2000
_AFTERWARDS = (1001, 1002, 1003, 1004)
_MARKS = ("FakeQuant", "weights_quant/", "act_quant", "LastValueQuant", "MovingAverageQuantize", "AllValuesQuantize")
_EIGHT_BIT = frozenset({TensorType.INT8, TensorType.UINT8})
_FOUR_BIT = frozenset({TensorType.INT4, TensorType.UINT4, TensorType.INT2})
_COMPUTE_TYPES = _EIGHT_BIT | {TensorType.INT16, TensorType.FLOAT32, TensorType.FLOAT16}
_KINDS = {
    "float32": ModelKind.FLOAT32,
    "float16": ModelKind.FLOAT16,
    "float16 weights": ModelKind.FLOAT16_WEIGHTS,
    "dynamic range": ModelKind.DYNAMIC_RANGE,
    "integer": ModelKind.FULL_INTEGER,
    "integer 16x8": ModelKind.INTEGER_16X8,
}
