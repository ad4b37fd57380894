"""Rows of batches that come to the device as float16: without a difference, where all kernels round them first."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from agreement import require_cuda
from racing import race

import litegpu
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import RESULT, Apply, Arg, Conv2D, DType, Elementwise, Graph, GraphBuilder, Literal
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import Program
from litegpu.model.builder import ModelBuilder

SIZE = 96  # a picture of it has more than 64 KB


def network(batch: int = 1) -> bytes:
    """Two convolutions of pictures."""
    b = ModelBuilder()
    generator = np.random.default_rng(0)
    y, side = b.input("x", (batch, SIZE, SIZE, 3)), SIZE
    for inputs, outputs in ((3, 16), (16, 4)):
        weights = generator.normal(size=(outputs, 3, 3, inputs)).astype(np.float32) / 4
        side //= 2
        operands = [y, b.constant(weights), b.constant(np.arange(outputs, dtype=np.float32))]
        y = b.op("CONV_2D", operands, (batch, side, side, outputs), options={"stride_w": 2, "stride_h": 2})
    b.output(y)
    return b.build()


def pictures(seed: int, batch: int = 1) -> np.ndarray:
    """With what is rounded in every way there is: ties, subnormal numbers, those that become zero, and large ones."""
    generator = np.random.default_rng(seed)
    found = generator.normal(size=(batch, SIZE, SIZE, 3)).astype(np.float32)
    odd = [1 + 2**-11, 1 + 3 * 2**-11, 2**-24, 2**-25, 3e-8, 1e-40, -5e-7, 65504, -65519, 2**-14 - 2**-26]
    found.reshape(-1)[::97] = np.resize(odd, len(found.reshape(-1)[::97]))
    return found


@pytest.fixture(scope="module")
def model() -> Any:
    require_cuda()
    with litegpu.load(network(), "cuda", "float16") as opened:
        yield opened


def test_batches_are_what_the_model_gives(model: litegpu.LoadedModel) -> None:
    with model.batcher(4, sizes=[4]) as batcher, litegpu.load(network(4), "cuda", "float16") as four:
        native = batcher._native
        if native is None:
            pytest.skip("no native code here")
        assert list(native.halves) == ["x"] * native.functions.rounds
        given = [pictures(n, 4) for n in range(4)]
        wanted = [four(x) for x in given]

        def work(number: int) -> None:
            for i in range(4):
                np.testing.assert_array_equal(batcher(given[(number + i) % 4]), wanted[(number + i) % 4])

        race(work, 4)

        async def tasks() -> None:
            found = await asyncio.gather(*(batcher.call_async(x[:2]) for x in given))
            for one, result in zip(found, wanted, strict=True):
                np.testing.assert_array_equal(one, result[:2])

        asyncio.run(tasks())


def test_rows_that_kernels_do_not_round() -> None:
    require_cuda()
    with litegpu.load(network(), "cuda", "float32") as exact, exact.batcher(1) as batcher:
        assert batcher._native is None or not batcher._native.halves
        x = pictures(3)
        np.testing.assert_array_equal(batcher(x), exact(x))


def test_what_is_not_finite_is_computed_as_the_model_does() -> None:
    require_cuda()
    x = pictures(1)
    x[0, 0, 0, 0] = 1e6  # infinite in float16, not in float32
    with litegpu.load(network(), "cuda", "float16") as model, model.batcher(1) as batcher:
        np.testing.assert_array_equal(batcher(x), model(x))
        x[0, 0, 0, 0] = np.nan
        np.testing.assert_array_equal(batcher(x), model(x))
        y = pictures(2)
        np.testing.assert_array_equal(batcher(y), model(y))


FEATURES = Features(float16=True, compute_units=132, native="cuda", capability=90)


def built(half: bool = True, *, scaled: bool = False, added: bool = False, given_back: bool = False) -> Program:
    """A convolution of an input, which is multiplied first; to which the input is added; or an output as well."""
    b = GraphBuilder()
    x = b.value((2, 64, 64, 8), DType.FLOAT32)
    w = b.constant(np.random.default_rng(1).normal(size=(8, 3, 3, 8)).astype(np.float32))
    y = b.value((2, 64, 64, 8), DType.FLOAT32)
    before = x
    if scaled:
        before = b.value((2, 64, 64, 8), DType.FLOAT32)
        b.node(Elementwise(), (), before, Apply("mul", (Arg(0), Literal(3.0))), [x])
    b.node(Conv2D(padding=(1, 1)), (before, w), y, Apply("add", (RESULT, Arg(1))) if added else RESULT, [x] * added)
    graph: Graph = b.graph([x], [y, x] if given_back else [y])
    return build_program(graph, FEATURES, "cuda", half=half)


def test_which_inputs_are_rounded() -> None:
    assert built().inputs[0].rounded
    assert not built(half=False).inputs[0].rounded
    for odd in ("scaled", "added", "given_back"):
        assert not built(**{odd: True}).inputs[0].rounded, odd
