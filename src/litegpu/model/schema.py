"""The .tflite schema as data, derived once from the accessors that ai-edge-litert generates and installs."""

from __future__ import annotations

import enum
import functools
import inspect
import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from litegpu.model.ops import BUILTIN

# The generated accessors name the table of a union's alternatives only through an "unpack" function; these are the
# schema's unions by the field that holds them.
UNIONS = {
    ("Operator", "builtin_options"): "BuiltinOptions",
    ("Operator", "builtin_options_2"): "BuiltinOptions2",
    ("QuantizationParameters", "details"): "QuantizationDetails",
    ("DimensionMetadata", "array_segments"): "SparseIndexVector",
    ("DimensionMetadata", "array_indices"): "SparseIndexVector",
}

# Enumerations of scalar option fields; the generated code keeps only their integer type.
ENUM_FIELDS = {
    "padding": "Padding",
    "fused_activation_function": "ActivationFunctionType",
    "weights_format": "FullyConnectedOptionsWeightsFormat",
    "kernel_type": "LSTMKernelType",
    "combiner": "CombinerType",
    "mode": "MirrorPadMode",
    "reduce_function": "ReduceWindowFunction",
    "comparison_direction": "StablehloComparisonDirection",
    "compare_type": "StablehloComparisonType",
    "algorithm": "RngAlgorithm",
    "type": "LSHProjectionType",
    "in_data_type": "TensorType",
    "out_data_type": "TensorType",
    "output_type": "TensorType",
    "out_type": "TensorType",
    "idx_out_type": "TensorType",
    "quantized_bias_type": "TensorType",
    "key_dtype": "TensorType",
    "value_dtype": "TensorType",
    "precision_config": "StablehloPrecisionConfig",
}


class Kind(enum.Enum):
    """How a field is stored."""

    SCALAR = enum.auto()
    STRING = enum.auto()
    TABLE = enum.auto()
    UNION = enum.auto()
    SCALARS = enum.auto()  # a vector of scalars
    STRINGS = enum.auto()
    TABLES = enum.auto()


@dataclass(frozen=True)
class Field:
    """One field of a table: `name` in snake_case, `slot` its number in the vtable, `code` its struct format.

    `table` names the table or union that it refers to.
    """

    name: str
    slot: int
    kind: Kind
    code: str = ""
    default: int | float | bool = 0
    table: str = ""


@functools.cache
def generated() -> ModuleType:
    """The generated schema module; imported on first use because it is large."""
    from ai_edge_litert import schema_py_generated

    return schema_py_generated


@functools.cache
def fields(table: str) -> tuple[Field, ...]:
    """The fields of a table in schema order, such as those of "Tensor" or "Conv2DOptions"."""
    module = generated()
    parameters = list(inspect.signature(getattr(module, table + "T").__init__).parameters)[1:]
    return tuple(_field(getattr(module, table), table, parameter) for parameter in parameters)


@functools.cache
def enum_names(name: str) -> dict[int, str]:
    """An enumeration or union of the schema: value -> name."""
    members = vars(getattr(generated(), name)).items()
    return {value: member for member, value in members if not member.startswith("_") and isinstance(value, int)}


@functools.cache
def enum_values(name: str) -> dict[str, int]:
    """An enumeration or union of the schema: name -> value."""
    return {member: value for value, member in enum_names(name).items()}


@functools.cache
def options_table(operator: str) -> str:
    """The options table that a builtin operator takes, "" when the schema has none ("CONV_2D" -> "Conv2DOptions")."""
    known = BUILTIN.get(operator)
    if known is not None and known.table:
        return known.table
    wanted = operator.replace("_", "").lower() + "options"
    for union in ("BuiltinOptions", "BuiltinOptions2"):
        for table in enum_values(union):
            if table.lower() == wanted:
                return table
    return ""


def options_union(table: str) -> str:
    """Which union of an operator holds an options table: "BuiltinOptions" or "BuiltinOptions2"."""
    return "BuiltinOptions" if table in enum_values("BuiltinOptions") else "BuiltinOptions2"


def names_subgraph(option: str) -> bool:
    """Whether an option of this name is the number of a subgraph, or several."""
    return option.endswith("subgraph_index") or option in (
        "subgraph",
        "branch_subgraph_indices",
        "called_computations",
    )


def snake_case(name: str) -> str:
    """The schema's spelling of a generated name: "fusedActivationFunction" -> "fused_activation_function"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _field(accessors: type, table: str, parameter: str) -> Field:
    method = parameter[0].upper() + parameter[1:]
    name = _OPERATOR_FIELDS.get((table, parameter), snake_case(parameter))
    probe, instance = _Probe(present=True), accessors()
    instance._tab = probe
    result = getattr(instance, method)(*([0] if hasattr(accessors, method + "Length") else []))
    slot = (probe.vtable_offset - 4) // 2
    if hasattr(accessors, method + "AsNumpy"):
        return Field(name, slot, Kind.SCALARS, probe.code)
    if hasattr(accessors, method + "Length"):
        if probe.string:
            return Field(name, slot, Kind.STRINGS)
        return Field(name, slot, Kind.TABLES, table=type(result).__name__)
    if probe.string:
        return Field(name, slot, Kind.STRING)
    if probe.union:
        return Field(name, slot, Kind.UNION, table=UNIONS[table, name])
    if probe.code:
        instance._tab = _Probe(present=False)
        return Field(name, slot, Kind.SCALAR, probe.code, default=getattr(instance, method)())
    return Field(name, slot, Kind.TABLE, table=type(result).__name__)


# Names whose digits carry an underscore in the schema that the generated spelling has lost.
_OPERATOR_FIELDS = {
    ("Operator", "builtinOptions2"): "builtin_options_2",
    ("Operator", "builtinOptions2Type"): "builtin_options_2_type",
}


class _Probe:
    """Stands in for flatbuffers' Table and records what one generated accessor reads."""

    Bytes = b""
    Pos = 0

    def __init__(self, present: bool) -> None:
        self.present = present
        self.vtable_offset = 0
        self.code = ""
        self.string = self.union = False

    def Offset(self, vtable_offset: int) -> int:
        self.vtable_offset = vtable_offset
        return vtable_offset if self.present else 0

    def Get(self, flags: Any, offset: int) -> Any:
        self.code = flags.packer_type.format.lstrip("<")
        return flags.py_type(0)

    def String(self, offset: int) -> bytes:
        self.string = True
        return b""

    def Union(self, target: object, offset: int) -> None:
        self.union = True

    def Vector(self, offset: int) -> int:
        return 0

    def Indirect(self, offset: int) -> int:
        return 0
