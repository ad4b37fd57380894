"""Versions of operators that newer converters write."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from agreement import FLOAT32, assert_agrees, official, on_gpu, run
from op_cases import CASES

from litegpu.model import ModelBuilder, read_model, write_model

#: The highest versions that the official runtime 2.3 has, where converters write them for types alone.
NEWEST = {
    "BROADCAST_TO": 4, "DYNAMIC_UPDATE_SLICE": 6, "EMBEDDING_LOOKUP": 5, "FILL": 5, "GATHER_ND": 6, "REVERSE_V2": 4,
    "WHERE": 2,
}  # fmt: skip


@pytest.mark.parametrize("name", NEWEST)
def test_the_newest_versions_are_known(name: str) -> None:
    """Of WHERE they write version 2 for all types but BOOL."""
    if name == "WHERE":
        b = ModelBuilder()
        b.output(b.op(name, [b.input("x", (3, 4))], (-1, 2)))
        content, inputs = b.build(), [np.eye(3, 4, dtype=np.float32)]
    else:
        case = CASES[name](random.Random(name))
        content, inputs = case.content, case.inputs
    model = read_model(content)
    operators = tuple(dataclasses.replace(o, version=NEWEST[name]) for o in model.main.operators)
    content = write_model(model.with_main(dataclasses.replace(model.main, operators=operators)))
    gpu = on_gpu(content, max_delegated_partitions=0, backend="reference")
    assert gpu.delegation_report().fully_delegated, gpu.delegation_report().summary()
    for found, wanted in zip(run(gpu, inputs), run(official(content), inputs), strict=True):
        assert_agrees(found, wanted, FLOAT32, name)
