"""Operators with bodies, of sizes that the data decide and at computed places run wholly on the GPU, as control flow
within control flow does."""

from __future__ import annotations

import random

import pytest
from agreement import assert_agrees, official, on_gpu, require_gpu, run
from gpu.lower.test_bodies import MAKERS

from litegpu.model import read_model
from small_models.grow import resolver
from small_models.sized import PIECES


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", PIECES)
def test_each_piece(name: str, seed: int) -> None:
    require_gpu()
    case = PIECES[name](random.Random(f"{name} {seed}"), [(3, 4), (5,), (2, 3, 4)])
    gpu = on_gpu(case.content, max_delegated_partitions=0)
    assert gpu.delegation_report().fully_delegated, gpu.delegation_report().summary()
    want = run(official(case.content, resolver(read_model(case.content))), case.inputs)
    for found, wanted in zip(run(gpu, case.inputs), want, strict=True):
        assert_agrees(found, wanted, 1e-5, case.name)


def test_pieces_have_names_of_their_own() -> None:
    assert not set(PIECES) & set(MAKERS)
