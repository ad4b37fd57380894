"""Copies between host and device: every word of ports of every size, by kernels and by copy engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu.gpu.backends.cuda import record as cuda_record
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import Arg, DType, Elementwise, GraphBuilder, apply

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("by_kernel", [True, False])
@pytest.mark.parametrize("words", [1, 2, 3, 4, 5, 7, 255, 1023, 1025, 1027, 4099])
def test_every_word_arrives(device: Any, monkeypatch, words: int, by_kernel: bool) -> None:
    """Two inputs and two outputs, so that what lies behind a port is another one's."""
    if not by_kernel:
        monkeypatch.setattr(cuda_record, "MOST_BYTES", 0)
    b = GraphBuilder()
    shape = (1, 1, 1, words)
    xs = [b.value(shape, DType.FLOAT32) for _ in range(2)]
    ys = [b.node(Elementwise(), [], b.value(shape, DType.FLOAT32), apply("neg", Arg(0)), [x]) for x in xs]
    session = device.session(build_program(b.graph(xs, ys), device.features, "cuda"))
    try:
        for seed in range(2):
            data = [np.random.default_rng(seed + i).standard_normal(shape).astype(np.float32) for i in range(2)]
            for i, values in enumerate(data):
                session.write(i, values)
            session.run()
            for i, values in enumerate(data):
                got = np.full(shape, np.nan, np.float32)
                session.read(i, got)
                np.testing.assert_array_equal(got, -values)
    finally:
        session.close()
