"""The record of operators is complete, and the only place that keeps what is known by their names."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import litegpu
from litegpu.model import schema
from litegpu.model.ops import BUILTIN, CUSTOM, Op
from litegpu.model.ops.operands import count, signature

OPS = (*BUILTIN.values(), *CUSTOM.values())

#: Codes of the schema that stand for no operator, and one that no runtime ever had a kernel for.
NONE = {"CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES", "CONCAT_EMBEDDINGS"}


def test_every_operator_of_the_schema_has_an_entry() -> None:
    assert set(BUILTIN) == set(schema.enum_values("BuiltinOperator")) - NONE
    assert not set(BUILTIN) & set(CUSTOM)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_an_entry_is_whole(op: Op) -> None:
    assert op.custom or op.operands is not None
    for line in filter(None, (op.operands, op.few and op.few[1])):
        found = signature(line)
        if not op.custom:
            table = schema.options_table(op.name)
            assert found.options.keys() <= ({field.name for field in schema.fields(table)} if table else set())
        least, most = count(found.inputs)
        assert most is None or least <= most
        names = {operand.name for operand in (*found.inputs, *found.outputs)}
        assert {operand.like for operand in (*found.inputs, *found.outputs)} <= names | {""}
    if op.gpu is not None:
        lacks = [name for name in ("shape", "batch") if getattr(op, name) is None]
        assert bool(lacks) == bool(op.without), f"{op.name} has no rule for {lacks}: say why in `without`"
        assert op.gpu.grids != "moved" or op.gpu.quanta == "linear", "what is only moved scales with what it is"
        assert not op.stays
    else:
        assert not op.without
        assert bool(op.stays) != bool(op.linked), f"{op.name} does not run on the GPU: say why in `stays`"
    assert not op.aborts_in or op.aborts is not None
    assert not op.struct or op.of_xnnpack


#: Modules that name operators all the same, which ones, and why.
EXCEPTIONS = {
    "model/inline.py": ({"STABLEHLO_COMPOSITE"}, "what it replaces is this operator"),
    "model/state.py": (
        {"ASSIGN_VARIABLE", "CALL_ONCE", "READ_VARIABLE", "RESHAPE", "VAR_HANDLE"},
        "what it replaces are these four, by one that hands a tensor on",
    ),
    "model/shape_values.py": (
        {
            "ADD",
            "BROADCAST_ARGS",
            "CAST",
            "CONCATENATION",
            "EXPAND_DIMS",
            "FLOOR_DIV",
            "GATHER",
            "MAXIMUM",
            "MINIMUM",
            "MUL",
            "PACK",
            "RANK",
            "REDUCE_PROD",
            "RESHAPE",
            "SHAPE",
            "SLICE",
            "SPLIT",
            "SPLIT_V",
            "SQUEEZE",
            "STRIDED_SLICE",
            "SUB",
            "UNPACK",
        },
        "what these give of a few whole numbers, as converters compute sizes by them",
    ),
    "model/list_updates.py": (
        {
            "ADD",
            "CONCATENATION",
            "DYNAMIC_UPDATE_SLICE",
            "EXPAND_DIMS",
            "PACK",
            "RESHAPE",
            "SLICE",
            "SQUEEZE",
        },
        "how converters set an element of a list, and what that becomes",
    ),
    "model/bodies.py": (
        {
            "ADD",
            "LOGICAL_AND",
            "MAXIMUM",
            "MINIMUM",
            "MUL",
            "STABLEHLO_ADD",
            "STABLEHLO_AND",
            "STABLEHLO_MAXIMUM",
            "STABLEHLO_MINIMUM",
            "STABLEHLO_MULTIPLY",
            "STABLEHLO_REDUCE_WINDOW",
            "STABLEHLO_SCATTER",
        },
        "what subgraphs of one operator do for these two",
    ),
    "model/verifier.py": ({"ASSIGN_VARIABLE", "READ_VARIABLE", "VAR_HANDLE"}, "how these three go together"),
    "delegates/cpu.py": ({"READ_VARIABLE"}, "XNNPACK cannot square what this one reads"),
    "delegates/shapes.py": ({"CONCATENATION"}, "what is empty adds nothing to it"),
    "delegates/partitioner.py": ({"DEQUANTIZE"}, "of constants every partition has its own"),
    "gpu/delegate/missing_ops.py": ({"MaxPoolingWithArgmax2D", "MaxUnpooling2D"}, "kernels that the runtime lacks"),
    "delegates/short_bias.py": ({"TRANSPOSE_CONV"}, "a mistake of converters in this operator"),
}


def named(path: Path) -> set[str]:
    """The operators that a module names in its code."""
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in prose]
    words = [text.split() for text in texts if isinstance(text, str)]
    return {name for some in words if all(w in BUILTIN or w in CUSTOM for w in some) for name in some}


@pytest.mark.parametrize("folder", ["model", "delegates"])
def test_names_of_operators_stand_in_the_record_alone(folder: str) -> None:
    root = Path(litegpu.__file__).parent
    modules = {str(path.relative_to(root)): path for path in (root / folder).rglob("*.py")}
    found = {name: named(path) for name, path in modules.items() if not name.startswith("model/ops/")}
    wanted = {name: names for name, (names, _) in EXCEPTIONS.items() if name in modules}
    assert {name: names for name, names in found.items() if names} == wanted
