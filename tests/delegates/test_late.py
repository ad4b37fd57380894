"""Nodes behind a size that only the run decides: on the CPU at first, then where the delegates take them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as Official
from control_models import BOOL, F32, random, scalar

from litegpu import GpuDelegate, Interpreter
from litegpu.delegates import late
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

I64 = TensorType.INT64


def chosen_rows(again: bool = False) -> bytes:
    """The rows of x [6,4] whose sum is positive, by WHERE, each with those before it added, through two layers; and
    `again`: of these those that have a large first element."""
    model = ModelBuilder("chosen rows")
    x = model.input("x", (6, 4))
    h = model.op("TANH", [x], (6, 4))

    def select(rows: int, values: int, least: float) -> int:
        axis = model.constant(np.array([1], np.int32))
        total = model.op("SUM", [values, axis], (rows,), type=F32)
        mask = model.op("GREATER", [total, scalar(model, least, np.float32)], (rows,), type=BOOL)
        places = model.op("WHERE", [mask], (-1, 1), type=I64)
        return model.op("GATHER_ND", [values, places], (-1, 4), type=F32)

    def layers(values: int, seed: int) -> int:
        values = model.op("CUMSUM", [values, scalar(model, 0)], (-1, 4))
        y = model.op("FULLY_CONNECTED", [values, model.constant(random(4, 4, seed=seed)), None], (-1, 4))
        return model.op("TANH", [y], (-1, 4))

    y = layers(select(6, h, 0.0), 1)
    if again:
        y = layers(select(-1, y, 0.1), 2)
    model.output(y, h)
    return model.build()


def opened(content: bytes, **options: Any) -> Interpreter:
    delegate = GpuDelegate(**{"backend": "reference", "max_delegated_partitions": 0, **options})
    interpreter = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")
    interpreter.allocate_tensors()
    return interpreter


def run(interpreter: Any, x: np.ndarray) -> list[np.ndarray]:
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]


def rows(count: int, seed: int = 0) -> np.ndarray:
    """With so many rows of a positive sum."""
    x = np.abs(random(6, 4, seed=seed)) + 0.1
    x[count:] *= -1
    return x.astype(np.float32)


def plans(interpreter: Interpreter) -> list[Any]:
    assert interpreter.plan is not None
    kernels = [step.kernel for step in interpreter.plan._steps if isinstance(step.kernel, late.LateKernel)]
    return [plan for kernel in kernels for plan in kernel._plans.values() if plan is not None]


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
def test_sizes_that_come_again_are_delegated(again: bool) -> None:
    content = chosen_rows(again)
    interpreter, official = opened(content), Official(model_content=content)
    official.allocate_tensors()
    for seed, count in enumerate((3, 3, 5, 3, 5, 0, 0, 6, 1, 3, 5)):
        for found, wanted in zip(run(interpreter, rows(count, seed)), run(official, rows(count, seed)), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert len(plans(interpreter)) >= 2
    assert any("behind a size that the run decides" in note for note in interpreter.delegation_report().notes)


def test_a_size_that_comes_once_is_not_compiled_for() -> None:
    interpreter = opened(chosen_rows())
    for count in (1, 2, 3, 4, 5, 6):
        run(interpreter, rows(count))
    assert not plans(interpreter)


def test_few_sizes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late, "_KEPT", 2)
    monkeypatch.setattr(late, "_MOST_PLANS", 3)
    interpreter = opened(chosen_rows())
    for count in (1, 1, 2, 2, 3, 3, 4, 4, 4):
        run(interpreter, rows(count))
    assert len(plans(interpreter)) == 2
    interpreter.close()


def test_reports_and_previews_name_the_cause() -> None:
    content = chosen_rows()
    interpreter = opened(content)
    report = interpreter.delegation_report()
    rows = next(n for n in report.nodes if n.op == "GATHER_ND")
    behind = [n for n in report.nodes if n.index > rows.index]
    assert behind and all(n.owner == "CPU" and "WHERE, decides" in str(n.reason) for n in behind)
    delegate = GpuDelegate(backend="reference")
    other = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")
    assert other.preview_delegation().nodes[0].owner == "GPU"


def test_resized_and_closed() -> None:
    interpreter = opened(chosen_rows())
    for _ in range(3):
        run(interpreter, rows(2))
    index = interpreter.get_input_details()[0]["index"]
    interpreter.resize_tensor_input(index, (3, 4))
    interpreter.allocate_tensors()
    assert run(interpreter, rows(2)[:3])[0].shape == (2, 4)
    interpreter.close()
