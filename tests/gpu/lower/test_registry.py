"""The lowering functions and the record of operators go together."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from litegpu.gpu import lower
from litegpu.gpu.lower import registry, supported_ops
from litegpu.gpu.lower.families import FAMILY
from litegpu.gpu.lower.registry import lowers
from litegpu.model.ops import BUILTIN, CUSTOM
from litegpu.model.types import Operator

OPS = {**BUILTIN, **CUSTOM}
#: Fused activations, some of which are called as operators are; what is made of other operators; another way of some.
EXCEPTIONS = {"activation.py", "families.py", "ranks.py", "parts.py", "spans.py", "words.py", "ordered_words.py"}


def test_every_entry_for_the_gpu_has_a_function() -> None:
    assert {e.op.name for e in supported_ops()} == {op.name for op in OPS.values() if op.gpu is not None}
    assert all(e.op is OPS[e.op.name] and e.gpu is e.op.gpu for e in supported_ops())


def test_an_operator_is_named_where_it_is_registered_and_nowhere_else() -> None:
    found: Counter[str] = Counter()
    for path in Path(lower.__file__).parent.glob("*.py"):
        if path.name in EXCEPTIONS:
            continue
        tree = ast.parse(path.read_text())
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in prose and node.value in OPS:
                found[node.value] += 1
            if isinstance(node, ast.keyword) and node.arg in OPS:
                found[node.arg] += 1
    assert found == Counter(e.op.name for e in supported_ops())


def test_every_family_has_the_operators_that_it_is_said_to_have() -> None:
    supported_ops()
    for name, family in FAMILY.items():
        lower = registry._REGISTRY[name, OPS[name].custom].lower
        made = getattr(lower, "__closure__", None) if lower.__module__ == registry.__name__ else None
        module = lower.__module__ if made is None else made[0].cell_contents.__module__
        assert module == f"litegpu.gpu.lower.{family}", name
    assert set(FAMILY) == {name for name, _ in registry._REGISTRY}


def test_a_custom_operator_of_an_own_name_is_none_of_ours() -> None:
    add = Operator(0, "ADD", 32, 1, (0, 0), (1,), is_custom=True)
    assert registry.find(add) is None


def test_what_cannot_be_registered() -> None:
    supported_ops()
    with pytest.raises(ValueError, match="registered twice"):
        lowers("ADD")(lambda ctx: None)
    with pytest.raises(ValueError, match="says nothing of the GPU"):
        lowers("MULTINOMIAL")(lambda ctx: None)
