"""The C heap is trimmed once for each session that ends."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu import GpuDelegate, Interpreter
from litegpu.gpu.backends import heap
from litegpu.model.builder import ModelBuilder


def test_a_closed_session_gives_its_heap_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heap.trim()  # whatever the C library
    calls: list[None] = []
    monkeypatch.setattr(heap, "trim", lambda: calls.append(None))
    b = ModelBuilder()
    b.output(b.op("ADD", [b.input("x", (1, 3)), b.constant(np.ones(3, np.float32))], (1, 3)))
    interpreter = Interpreter(model_content=b.build(), experimental_delegates=[GpuDelegate(backend="webgpu")])
    interpreter.allocate_tensors()
    interpreter.invoke()
    assert not calls
    interpreter.close()
    interpreter.close()
    assert len(calls) == 1
