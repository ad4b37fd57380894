"""Every operator through the official interpreter: what litegpu.Interpreter gives, to the bit."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from agreement import require_gpu
from op_cases import CASES

import litegpu

OPTIONS: dict[str, Any] = {"backend": "webgpu", "max_delegated_partitions": 0}


@pytest.mark.parametrize("op", list(CASES)[::7])
def test_sample(opened: Callable[..., Any], op: str) -> None:
    sweep(opened, op, range(2))


@pytest.mark.slow
@pytest.mark.parametrize("op", CASES)
def test_all(opened: Callable[..., Any], op: str) -> None:
    sweep(opened, op, range(2, 12))


def sweep(opened: Callable[..., Any], op: str, seeds: range) -> None:
    require_gpu()
    for seed in seeds:
        case = CASES[op](random.Random(f"{op} {seed}"))
        with litegpu.Interpreter(
            model_content=case.content, experimental_delegates=[litegpu.GpuDelegate(**OPTIONS)]
        ) as ours:
            ours.allocate_tensors()
            host = opened(case.content, **OPTIONS, fallback="strict")
            for _ in range(2):
                for found, known in zip(run(host, case.inputs), run(ours, case.inputs), strict=True):
                    np.testing.assert_array_equal(found, known, f"{op}, seed {seed}")
                    assert found.dtype == known.dtype


def run(interpreter: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return [np.asarray(interpreter.get_tensor(detail["index"])) for detail in interpreter.get_output_details()]
