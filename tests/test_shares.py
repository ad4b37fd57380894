"""Which number of partitions is expected to be the quickest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from control_models import below, loop, one_more, scalar

from litegpu import GpuDelegate, Interpreter
from litegpu.choosing import shares as module
from litegpu.choosing.called import called
from litegpu.choosing.shares import quickest, shares
from litegpu.gpu.backends.abilities import CallRates
from litegpu.model.reader import read_model
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder


def islands(large: int = 2048, small: int = 256) -> Any:
    """A large layer, something that the CPU keeps, and a small layer: (graph, report)."""
    model = ModelBuilder()
    weights = np.zeros((large, large), np.float32)
    h = model.op("FULLY_CONNECTED", [model.input("x", (8, large)), model.constant(weights), None], (8, large))
    row = model.op("CUMSUM", [h, model.constant(np.array(1, np.int32))], (8, large))
    narrow = model.constant(np.zeros((small, large), np.float32))
    model.output(model.op("FULLY_CONNECTED", [row, narrow, None], (8, small)))
    delegate = GpuDelegate(backend="reference", max_delegated_partitions=0)
    with Interpreter(
        model_content=model.build(), experimental_delegates=[OnlySome(delegate)], fallback="silent"
    ) as interpreter:
        return interpreter.graph, interpreter.preview_delegation()


class OnlySome:
    """The GPU's delegate, without CUMSUM."""

    def __init__(self, whole: GpuDelegate) -> None:
        self._whole = whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)

    def check(self, model: Any, subgraph: Any, operator: Any) -> str | None:
        return "not this" if operator.name == "CUMSUM" else self._whole.check(model, subgraph, operator)


def rates(call: float, byte: float = 0.0) -> CallRates:
    """Of a device that computes a hundred times as fast as the CPU does."""
    return CallRates(call, 0.0, (1e-13, 1e-13), (1e-13, 1e-13), (1e-13, 1e-13), 1e-13, byte)


@pytest.mark.parametrize(
    ("call", "byte", "wanted"), [(1e-6, 0.0, 2), (200e-6, 0.0, 1), (1.0, 0.0, 0), (1e-6, 1e-6, 0)],
    ids=["all", "the large one", "slow to call", "slow to copy"],
)  # fmt: skip
def test_the_quickest_share(call: float, byte: float, wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "rates_of", lambda device: rates(call, byte))
    graph, report = islands()
    found = shares(graph, report, "cuda")
    assert [share.partitions for share in found] == [0, 1, 2]
    best = quickest(found)
    assert best is not None and best.partitions == wanted
    assert best.seconds == min(share.seconds for share in found)


def test_loops_count_with_what_they_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop between what the GPU does not take: where it is long, it is worth a partition."""
    monkeypatch.setattr(module, "rates_of", lambda device: rates(200e-6))
    wanted = []
    for steps in (2, 3000):
        model = ModelBuilder()
        x = model.op("CUMSUM", [model.input("x", (8, 64)), model.constant(np.array(1, np.int32))], (8, 64))
        state = [((), TensorType.INT32), ((8, 64), TensorType.FLOAT32)]
        made = loop(model, model, [scalar(model, 0), x], state, below(steps),
                    lambda g, v: [one_more(g, v[0]), g.op("TANH", [v[1]], (8, 64))])  # fmt: skip
        model.output(model.op("CUMSUM", [made[1], model.constant(np.array(1, np.int32))], (8, 64)))
        delegate = GpuDelegate(backend="reference", max_delegated_partitions=0)
        with Interpreter(
            model_content=model.build(), experimental_delegates=[OnlySome(delegate)], fallback="silent"
        ) as interpreter:
            work = called(read_model(model.build()))
            best = quickest(shares(interpreter.graph, interpreter.preview_delegation(), "cuda", work))
        assert best is not None
        wanted.append(best.partitions)
    assert wanted == [0, 1]


def test_nothing_is_said_of_an_unknown_device() -> None:
    graph, report = islands()
    assert shares(graph, report, "reference") == ()
    assert quickest(()) is None
