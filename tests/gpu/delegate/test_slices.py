"""Batches that a device cannot bind at once run in slices, and give what the CPU gives."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from agreement import FLOAT32, assert_agrees, official, require_gpu, run
from batch_networks import NETWORKS

import litegpu
from litegpu import GpuDelegate
from litegpu.delegates.protocol import Partition
from litegpu.gpu.delegate import slices as slices_module
from litegpu.gpu.delegate.slices import SlicedKernel, slices
from litegpu.gpu.lang.features import Features
from litegpu.model import ModelBuilder, read_model, with_batch, write_model

CONV = {"stride_h": 1, "stride_w": 1, "dilation_h_factor": 1, "dilation_w_factor": 1, "padding": "SAME"}


class SmallDelegate(GpuDelegate):
    """A delegate whose device binds less than it can."""

    def __init__(self, most: int) -> None:
        super().__init__(backend="webgpu")
        self.most = most

    def _limited(self, features: Features) -> Features:
        return dataclasses.replace(features, max_binding_bytes=self.most)


def images(batch: int) -> bytes:
    b = ModelBuilder()
    rng = np.random.default_rng(0)
    x = b.input("x", (batch, 16, 16, 3))
    w, bias = (rng.standard_normal(s).astype(np.float32) for s in ((8, 3, 3, 3), (8,)))
    y = b.op("CONV_2D", [x, b.constant(w), b.constant(bias)], (batch, 16, 16, 8), CONV)  # 8 KiB for each
    b.output(b.op("MEAN", [y, b.constant(np.array([1, 2], np.int32))], (batch, 8)), x)
    return b.build()


def on_small(content: bytes, most: int) -> litegpu.Interpreter:
    require_gpu()
    interpreter = litegpu.Interpreter(
        model_content=content, experimental_delegates=[SmallDelegate(most)], fallback="silent"
    )
    previewed = interpreter.preview_delegation()
    interpreter.allocate_tensors()
    assert interpreter.delegation_report().counts == previewed.counts
    return interpreter


@pytest.mark.parametrize("batch, most, rows", [(6, 40 << 10, 3), (6, 17 << 10, 2), (7, 40 << 10, 1)])
def test_images_run_in_slices(batch: int, most: int, rows: int) -> None:
    content = images(batch)
    gpu = on_small(content, most)
    assert gpu.delegation_report().fully_delegated
    assert any(f"{rows} of {batch} rows at a time" in note for note in gpu.delegation_report().notes)
    for seed in range(2):  # again: nothing of a slice stays
        values = [np.random.default_rng(seed).standard_normal((batch, 16, 16, 3)).astype(np.float32)]
        for got, want in zip(run(gpu, values), run(official(content), values), strict=True):
            assert_agrees(got, want, FLOAT32)
    gpu.close()


@pytest.mark.parametrize("name", ["vision transformer, class token broadcast", "windowed transformer"])
def test_networks_run_in_slices(name: str) -> None:
    content = bytes(write_model(with_batch(NETWORKS[name](1), 8)))
    gpu = on_small(content, 4 << 10)
    assert "at a time" in "".join(gpu.delegation_report().notes)  # tensors of rank 5 stay on the CPU
    shape = gpu.get_input_details()[0]["shape"]
    values = [np.random.default_rng(1).standard_normal(shape).astype(np.float32)]
    for got, want in zip(run(gpu, values), run(official(content), values), strict=True):
        assert_agrees(got, want, FLOAT32)


def test_what_fits_is_not_cut() -> None:
    gpu = on_small(images(6), 1 << 20)
    assert gpu.delegation_report().fully_delegated and not gpu.delegation_report().notes


def test_rows_that_do_not_fit_alone_stay_on_the_cpu() -> None:
    gpu = on_small(images(6), 5 << 10)
    assert not gpu.delegation_report().fully_delegated
    values = [np.ones((6, 16, 16, 3), np.float32)]
    for got, want in zip(run(gpu, values), run(official(images(6)), values), strict=True):
        assert_agrees(got, want, FLOAT32)


def partition(b: ModelBuilder) -> Partition:
    main = b.model().main
    model = read_model(b.build())
    return Partition(model, main, main.operators, tuple(main.inputs), tuple(main.outputs))


def rows_of(made: Partition, most: int) -> list[tuple[int, frozenset[int]]]:
    return [(one.rows, one.carriers) for one in slices(made, False, most)]


def test_ever_fewer_rows_that_divide_the_batch() -> None:
    """Of 12 rows of 64 bytes each."""
    b = ModelBuilder()
    b.output(b.op("ABS", [b.input("x", (12, 16))], (12, 16)))
    for most, rows in (
        (768, []),
        (767, [6, 4, 3, 2, 1]),
        (384, [6, 4, 3, 2, 1]),
        (383, [4, 3, 2, 1]),
        (64, [1]),
        (63, []),
    ):
        assert [n for n, _ in rows_of(partition(b), most)] == rows


def test_only_inputs_with_rows_are_sliced() -> None:
    b = ModelBuilder()
    scale, x = b.input("scale", (1, 16)), b.input("x", (4, 16))
    b.output(b.op("MUL", [x, scale], (4, 16)))
    made = partition(b)
    first = next(slices(made, False, 128))
    assert (first.rows, first.carriers) == (2, frozenset({1}))

    class Multiply:
        notes = ()

        def invoke(self, inputs):
            assert [a.shape for a in inputs] == [(1, 16), (2, 16)]
            return [inputs[0] * inputs[1]]

        def finish(self) -> None:
            pass

    values = [np.arange(16, dtype=np.float32)[None], np.arange(64, dtype=np.float32).reshape(4, 16)]
    (found,) = SlicedKernel(Multiply(), first, made).invoke(values)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found, values[0] * values[1])


def test_partitions_that_keep_something_are_not_sliced() -> None:
    b = ModelBuilder()
    x, kept = b.input("x", (4, 16)), b.variable("kept", (4, 16))
    b.output(b.op("ADD", [x, kept], (4, 16)))
    assert rows_of(partition(b), 128) == []


def test_layers_that_keep_a_row_for_each_sequence_are_not_sliced() -> None:
    """Their state could be had for fewer rows, but the slices would share it."""
    model = read_model(NETWORKS["recurrent"](4))
    main = model.main
    (layer,) = [o for o in main.operators if o.name == "UNIDIRECTIONAL_SEQUENCE_LSTM"]
    made = Partition(model, main, (layer,), tuple(layer.inputs[:1]), tuple(layer.outputs))
    assert rows_of(made, 200) == []


def test_outputs_without_rows_are_not_sliced() -> None:
    b = ModelBuilder()
    x = b.input("x", (4, 16))
    y = b.op("ABS", [x], (4, 16))
    b.output(y, b.op("TRANSPOSE", [y, b.constant(np.array([1, 0], np.int32))], (16, 4)))
    assert rows_of(partition(b), 128) == []


def test_outputs_that_do_not_depend_on_the_batch_are_not_sliced() -> None:
    b = ModelBuilder()
    scale, x = b.input("scale", (1, 16)), b.input("x", (4, 16))
    b.output(b.op("ABS", [x], (4, 16)), b.op("ABS", [scale], (1, 16)))
    assert rows_of(partition(b), 128) == []


def test_parts_of_a_batch_are_looked_for_among_its_divisors() -> None:
    """A damaged file may say that there are two thousand million rows, a prime number of them."""
    for number in (1, 2, 36, 97, 2**31 - 1, 2**30):
        found = slices_module._divisors(number)
        assert found == sorted(set(found), reverse=True) and {1, number} <= set(found)
        assert all(number % n == 0 for n in found)
    assert slices_module._divisors(36) == [36, 18, 12, 9, 6, 4, 3, 2, 1]
