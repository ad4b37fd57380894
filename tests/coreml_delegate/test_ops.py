"""Each operator that the Core ML delegate translates: its ML program, evaluated in NumPy, beside the official CPU."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from agreement import official, relative_l2, run
from coreml_cases import LEFT_FOLDERS, coremltools_session
from mil_evaluator import MilModel, evaluate
from op_cases import CASES, OpCase

from litegpu.coreml.conversion import FAMILIES, converted, own_name, program, reason_against, result_name
from litegpu.coreml.node import TRANSLATIONS
from litegpu.coreml.options import TARGETS, CoreMlOptions
from litegpu.delegates.protocol import Partition
from litegpu.model import read_model

assert FAMILIES

SEEDS = 10
_REFUSED = (
    "FLOAT32 alone",
    "0 dimensions",
    "constant weights",
    "All its inputs",
    "blocks of one element",
    "batch dimensions",
)


pytestmark = LEFT_FOLDERS


@pytest.fixture(autouse=True)
def _needs_coremltools() -> Iterator[None]:
    yield from coremltools_session()


def cases(operator: str, count: int = SEEDS) -> list[OpCase]:
    return [CASES[operator](random.Random(f"{operator} {seed}")) for seed in range(count)]


def taken(case: OpCase, target: str = "iOS16") -> Partition | None:
    """The model as a partition, None if a node of it is refused, for one of the reasons that are expected."""
    model = read_model(case.content)
    main = model.main
    for operator in main.operators:
        reason = reason_against(main, operator, target)
        if reason is not None:
            assert any(words in reason for words in _REFUSED), reason
            return None
    return Partition(model, main, main.operators, main.inputs, main.outputs)


def assert_same(case: OpCase, partition: Partition, got: dict[str, np.ndarray], tolerance: float) -> None:
    for tensor, want in zip(partition.outputs, run(official(case.content), case.inputs), strict=True):
        mine = got[result_name(tensor)]
        assert mine.shape == want.shape, case.name
        error = relative_l2(mine, want)
        assert error < tolerance, f"{case.name}: {error:.1e}"


def given(case: OpCase, partition: Partition) -> dict[str, np.ndarray]:
    return {own_name(t): x for t, x in zip(partition.inputs, case.inputs, strict=True)}


@pytest.mark.parametrize("operator", sorted(TRANSLATIONS))
def test_operator(operator: str) -> None:
    """As translated; one of them, and one in float16, also after coremltools' passes."""
    partitions = [(case, p) for case in cases(operator) if (p := taken(case)) is not None]
    assert len(partitions) >= 2, "too few cases are taken"
    for case, partition in partitions:
        made = program(partition.subgraph, partition.nodes, partition.inputs, partition.outputs, "iOS16")
        assert_same(case, partition, evaluate(made.functions["main"], given(case, partition)), 1e-5)
    for precision, tolerance in (("float32", 1e-5), ("float16", 2e-2)):
        case, partition = partitions[0]
        model = MilModel(converted(partition, CoreMlOptions(precision=precision)))
        if operator in ("FLOOR", "CEIL", "ROUND", "SIGN", "FLOOR_DIV", "FLOOR_MOD") and precision == "float16":
            continue  # a step lies elsewhere in float16
        assert_same(case, partition, model.predict(given(case, partition)), tolerance)


@pytest.mark.parametrize("target", sorted(set(TARGETS.values()) - {"iOS16"}))
def test_other_versions_of_core_ml(target: str) -> None:
    """Newer systems have other versions of operations."""
    for operator in sorted(TRANSLATIONS):
        for case in cases(operator, 2):
            partition = taken(case, target)
            if partition is not None:
                made = program(partition.subgraph, partition.nodes, partition.inputs, partition.outputs, target)
                assert_same(case, partition, evaluate(made.functions["main"], given(case, partition)), 1e-5)
