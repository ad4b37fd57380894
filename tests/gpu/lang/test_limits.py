"""What a kernel asks of a device is checked before it is printed; here how often its threads go round loops."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from agreement import on_gpu, require_gpu, run

from litegpu.gpu.backends.webgpu import printer as wgsl
from litegpu.gpu.lang import Kernel, f32, trace, u32
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lang.limits import rounds
from litegpu.gpu.lang.types import KernelError
from litegpu.model.builder import ModelBuilder


def kernel() -> Kernel:
    def loops(k: Kernel) -> None:
        x, me = k.buffer("x", f32, 1024), k.local_id()
        total = k.var(k.const(0.0, f32))
        with k.loop(10) as i, k.loop(100, start=me, step=64):  # 10 * (1 + 2)
            total.set(total.value + k.convert(i, f32))
        with k.If(me < 3), k.loop(7, start=1, step=2):  # 3, or nothing
            total.set(total.value + 1)
        with k.loop(1):  # no loop at all
            total.set(total.value + 1)
        with k.loop(k.min(me, k.const(5, u32))):  # its end is not known
            total.set(total.value + 1)
        x[me] = total.value

    return trace(loops, "loops", (64, 1, 1), (1, 1, 1))


def test_rounds_are_counted() -> None:
    found = kernel()
    assert rounds(found.body) == 10 * (1 + 2) + 3 + 1
    wgsl.print_wgsl(found, Features())
    wgsl.print_wgsl(found, Features(max_rounds=34))
    with pytest.raises(KernelError, match="34 times round loops, 33 allowed"):
        wgsl.print_wgsl(found, dataclasses.replace(Features(), max_rounds=33))


def test_a_window_beyond_what_a_software_driver_counts_to() -> None:
    """llvmpipe ends loops after 65,535 rounds and goes on; other devices compute the sum."""
    require_gpu()
    size, rng = 300, np.random.default_rng(0)
    b = ModelBuilder()
    x = b.input("x", (1, size, size, 4))
    weights = b.constant(rng.normal(size=(2, size, size, 4)).astype(np.float32))
    steps = {"stride_w": 1, "stride_h": 1, "padding": 1, "dilation_w_factor": 1, "dilation_h_factor": 1}
    b.output(b.op("CONV_2D", [x, weights, b.constant(np.zeros(2, np.float32))], (1, 1, 1, 2), steps))
    value = rng.normal(size=(1, size, size, 4)).astype(np.float32)
    got = run(on_gpu(b.build()), [value])[0].reshape(-1)
    want = np.einsum("hwc,ohwc->o", value[0].astype(np.float64), np.asarray(weights_of(b.build())))
    assert np.linalg.norm(got - want) <= 1e-4 * np.linalg.norm(want)  # sums of 360,000 products


def weights_of(content: bytes) -> np.ndarray:
    from litegpu.model.reader import read_model

    data = read_model(content).main.tensors[1].data
    assert data is not None
    return data.astype(np.float64)
