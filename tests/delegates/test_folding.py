"""Values that follow from shapes become constants, and what they decide runs on the GPU."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import official, on_gpu, relative_l2, require_gpu, run

from litegpu import GpuDelegate, Interpreter
from litegpu.delegates.cpu import OfficialOptions
from litegpu.delegates.folding import MOST_ELEMENTS, fold
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType

I32 = TensorType.INT32


def doubled(shape=(1, 5, 4, 3), *, side: str = "RESIZE_NEAREST_NEIGHBOR", extra_output: bool = False) -> bytes:
    """x enlarged to twice its height and width, which are taken from SHAPE, then |x|."""
    b = ModelBuilder()
    x = b.input("x", shape, shape_signature=(1, -1, -1, shape[3]))

    def ints(*values: int) -> int:
        return b.constant(np.array(values, np.int32))

    whole = b.op("SHAPE", [x], (4,), {"out_type": int(I32)}, type=I32)
    options = {"shrink_axis_mask": 1}
    sides = [b.op("STRIDED_SLICE", [whole, ints(i), ints(i + 1), ints(1)], (), options, type=I32) for i in (1, 2)]
    two = b.constant(np.array(2, np.int32))
    sides = [b.op("MUL", [s, two], (), type=I32) for s in sides]
    size = b.op("PACK", sides, (2,), {"values_count": 2, "axis": 0}, type=I32)
    y = b.op(side, [x, size], (1, 1, 1, shape[3]), {"align_corners": False, "half_pixel_centers": False})
    y = b.op("ABS", [y], (1, 1, 1, shape[3]))
    b.output(*([y, size] if extra_output else [y]))
    return b.build()


@pytest.mark.parametrize("side", ["RESIZE_NEAREST_NEIGHBOR", "RESIZE_BILINEAR"])
def test_sizes_that_follow_from_shapes(side: str) -> None:
    require_gpu()
    content = doubled(side=side)
    one = on_gpu(content)
    assert one.delegation_report().fully_delegated
    reference = official(content)
    for shape in ((1, 5, 4, 3), (1, 7, 3, 3)):
        for interpreter in (one, reference):
            interpreter.resize_tensor_input(interpreter.get_input_details()[0]["index"], shape)
            interpreter.allocate_tensors()
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        got, want = run(one, [x])[0], run(reference, [x])[0]
        assert one.delegation_report().fully_delegated
        assert got.shape == want.shape == (1, 2 * shape[1], 2 * shape[2], 3)
        assert relative_l2(got, want) <= 1e-5


def test_values_that_follow_from_inputs_too_are_left_to_the_run() -> None:
    """Of two products of a shape one is by a constant, the other by an input: only the first is known."""
    b = ModelBuilder()
    x = b.input("x", (1, 2, 3))
    factor = b.input("factor", (3,), I32)
    whole = b.op("SHAPE", [x], (3,), {"out_type": int(I32)}, type=I32)
    known = b.op("MUL", [whole, b.constant(np.array([1, 2, 3], np.int32))], (3,), type=I32)
    unknown = b.op("MUL", [whole, factor], (3,), type=I32)
    b.output(b.op("ABS", [known], (3,), type=I32), b.op("ABS", [unknown], (3,), type=I32))
    model = read_model(b.build())
    folded = fold(model, model.main, frozenset(), OfficialOptions())
    assert folded is not None
    constants = {t.index: t.data for t in folded.tensors[len(model.main.tensors) :]}
    last = folded.operators[-2:]
    assert constants[last[0].inputs[0]].tolist() == [1, 4, 9]  # type: ignore[union-attr]
    assert last[1].inputs[0] == unknown and [o.index for o in folded.operators] == [0, 1, 2, 3, 4]
    product = folded.operators[2]
    assert constants[product.inputs[0]].tolist() == [1, 2, 3]  # type: ignore[union-attr]
    assert product.inputs[1] == factor


def test_values_that_are_outputs_are_computed_by_the_run() -> None:
    require_gpu()
    content = doubled(extra_output=True)
    one = Interpreter(model_content=content, experimental_delegates=[GpuDelegate()], fallback="silent")
    one.allocate_tensors()
    x = np.random.default_rng(0).standard_normal((1, 5, 4, 3)).astype(np.float32)
    for got, want in zip(run(one, [x]), run(official(content), [x]), strict=True):
        np.testing.assert_allclose(got, want)


def test_what_stays_on_the_cpu_reads_the_constants_too() -> None:
    require_gpu()
    content = doubled()
    delegate = GpuDelegate(first_delegate_node_index=100)
    one = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")
    one.allocate_tensors()
    x = np.random.default_rng(0).standard_normal((1, 5, 4, 3)).astype(np.float32)
    np.testing.assert_array_equal(run(one, [x])[0], run(official(content), [x])[0])
    partly = GpuDelegate(first_delegate_node_index=6, max_delegated_partitions=0)
    one = Interpreter(model_content=content, experimental_delegates=[partly], fallback="silent")
    one.allocate_tensors()
    assert one.delegation_report().delegated == 2
    np.testing.assert_allclose(run(one, [x])[0], run(official(content), [x])[0], rtol=1e-6)


@pytest.mark.slow
def test_style_transfer_whose_output_has_no_shape(models_dir) -> None:
    """Its weights are 8-bit: the CPU quantizes activations as well, which the GPU does not."""
    require_gpu()
    content = (models_dir / "style_transfer_quantized_dynamic.tflite").read_bytes()
    one, reference = on_gpu(content), official(content)
    for side in (384, 256):
        rng = np.random.default_rng(0)
        x = [rng.random((1, side, side, 3), np.float32), rng.random((1, 1, 1, 100), np.float32)]
        for interpreter in (one, reference):
            interpreter.resize_tensor_input(interpreter.get_input_details()[0]["index"], (1, side, side, 3))
            interpreter.allocate_tensors()
        assert one.delegation_report().fully_delegated
        assert relative_l2(run(one, x)[0], run(reference, x)[0]) <= 3e-2


def named(subgraph, tensor: int) -> list[int] | None:
    """What the first reader of a tensor now reads instead, if that is a constant."""
    values = [subgraph.tensors[o.inputs[i]].data for o in subgraph.operators for i in range(len(o.inputs))
              if subgraph.tensors[o.inputs[i]].name == subgraph.tensors[tensor].name]  # fmt: skip
    return None if values[0] is None else np.ravel(values[0]).tolist()


def test_shapes_that_only_the_run_decides_are_left_to_it() -> None:
    b = ModelBuilder()
    x, z = b.input("x", (2, 3)), b.input("z", (5, 3))
    known = b.op("SHAPE", [z], (2,), {"out_type": int(I32)}, type=I32)
    made = b.op("ABS", [x], (2, 3))
    open_ = b.op("SHAPE", [made], (2,), {"out_type": int(I32)}, type=I32)
    b.output(b.op("ADD", [known, open_], (2,), type=I32), b.op("NEG", [known], (2,), type=I32))
    model = read_model(b.build())
    found = fold(model, model.main, frozenset({made}), OfficialOptions())
    assert found is not None and named(found, known) == [5, 3] and named(found, open_) is None
    whole = fold(model, model.main, frozenset(), OfficialOptions())
    assert whole is not None and named(whole, open_) == [2, 3]


@pytest.mark.parametrize("count, folded", [(MOST_ELEMENTS, True), (MOST_ELEMENTS + 1, False)])
def test_large_values_are_left_to_the_run(count: int, folded: bool) -> None:
    b = ModelBuilder()
    x = b.input("x", (count,))
    many = b.op("FILL", [b.constant(np.array([count], np.int32)), b.constant(np.float32(2))], (count,))
    b.output(b.op("ADD", [x, many], (count,)))
    model = read_model(b.build())
    assert (fold(model, model.main, frozenset(), OfficialOptions()) is not None) is folded


def test_outputs_of_the_graph_are_not_folded() -> None:
    b = ModelBuilder()
    x = b.input("x", (2, 3))
    size = b.op("SHAPE", [x], (2,), {"out_type": int(I32)}, type=I32)
    b.output(size, b.op("NEG", [size], (2,), type=I32))
    model = read_model(b.build())
    assert fold(model, model.main, frozenset(), OfficialOptions()) is None
