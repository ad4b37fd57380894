"""What an op makes in exact arithmetic, and models that are made from a model to look inside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import official, run

from litegpu.model import ModelBuilder, TensorType, quantized, read_model, write_model
from litegpu.tools.inference_diff import surgery
from litegpu.tools.inference_diff.exact import exact_results
from litegpu.tools.inference_diff.surgery import computes, exposed, isolated, leaving, portions

F, I8 = TensorType.FLOAT32, TensorType.INT8


def exactly(content: bytes, *values: np.ndarray) -> tuple[np.ndarray, bool]:
    """What the only operator makes of these inputs, and whether by an independent definition."""
    model = read_model(content)
    found = exact_results(model, model.main.operators[0], dict(zip(model.main.inputs, values, strict=True)))
    assert found is not None
    ((_, result),) = found[0].items()
    return result, found[1]


def of_bytes(operator: str, *shapes: tuple[int, ...], scale: float, zero: int = 0, **options: Any) -> bytes:
    """An operator on quantized tensors of scale 0.5, the first with the zero point 3."""
    b = ModelBuilder()
    given = [b.input(f"x{i}", s, I8, quantization=quantized(0.5, 0 if i else 3)) for i, s in enumerate(shapes)]
    b.output(b.op(operator, given, shapes[0], options, quantization=quantized(scale, zero)))
    return b.build()


def test_quantized_sums_are_rounded_to_even_and_end_at_the_type_s_limits() -> None:
    x, y = np.array([4, 5, 6, 127, -128], np.int8), np.array([0, 0, 0, 127, -128], np.int8)
    result, independent = exactly(of_bytes("ADD", (5,), (5,), scale=1.0, zero=1), x, y)
    assert independent and result.tolist() == [1, 2, 3, 127, -128]  # 0.5, 1, 1.5, 125.5, -129.5 and the zero point 1
    assert result.dtype == np.int8


def test_a_fused_activation_is_not_left_out() -> None:
    b = ModelBuilder()
    x, y = b.input("x", (3,)), b.input("y", (3,))
    b.output(b.op("ADD", [x, y], (3,), dict(fused_activation_function="RELU")))
    result, independent = exactly(b.build(), *[np.array([-1, 0, 2], np.float32)] * 2)
    assert not independent and result.tolist() == [0, 0, 4]


@pytest.mark.parametrize("adj_x, adj_y", [(False, False), (True, False), (False, True), (True, True)])
def test_products_of_turned_matrices(adj_x: bool, adj_y: bool) -> None:
    rng = np.random.default_rng(0)
    a, c = (rng.integers(-9, 9, (3, 3)).astype(np.float32) for _ in range(2))
    b = ModelBuilder()
    x, y = b.input("x", (3, 3)), b.input("y", (3, 3))
    b.output(b.op("BATCH_MATMUL", [x, y], (3, 3), dict(adj_x=adj_x, adj_y=adj_y)))
    result, independent = exactly(b.build(), a, c)
    assert independent
    np.testing.assert_array_equal(result, (a.T if adj_x else a) @ (c.T if adj_y else c))


def test_scales_of_each_channel_count_along_their_axis() -> None:
    b = ModelBuilder()
    x = b.input("x", (2, 3), I8, quantization=quantized(1.0))
    each = b.constant(np.full((2, 3), 4, np.int8), quantization=quantized([0.25, 0.5, 1.0], 0, 1))
    b.output(b.op("MUL", [x, each], (2, 3), quantization=quantized(1.0)))
    result, _ = exactly(b.build(), np.array([[1, 1, 1], [2, 2, 2]], np.int8))
    assert result.tolist() == [[1, 2, 4], [2, 4, 8]]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("axes", [(1, 2), (-1, 0), (2, 0, 1)])
def test_careful_sums_are_the_same_function(axes: tuple[int, ...], keep: bool) -> None:
    shape = (2, 3, 4)
    gone = {a % 3 for a in axes}
    result = tuple(1 if i in gone else n for i, n in enumerate(shape) if keep or i not in gone)
    b = ModelBuilder()
    y = b.op("MEAN", [b.input("x", shape), b.constant(np.array(axes, np.int32))], result, dict(keep_dims=keep))
    b.output(b.op("ABS", [y], result))
    content = b.build()
    careful = surgery.with_careful_sums(read_model(content))
    assert [o.name for o in careful.main.operators] == ["MEAN"] * len(gone) + ["ABS"]
    given = [careful.main.tensors[o.inputs[1]].data for o in careful.main.operators[:-1]]
    assert all(a is not None and a.size == 1 for a in given)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (found,), (wanted,) = run(official(bytes(write_model(careful))), [x]), run(official(content), [x])
    assert found.shape == wanted.shape == result
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def shared_weights(other: str) -> bytes:
    """Weights of 8 bits that two operators read; the first is of dynamic range."""
    b = ModelBuilder()
    x = b.input("x", (1, 4))
    w = b.constant(np.eye(4, dtype=np.int8), quantization=quantized(0.5))
    b.output(b.op("FULLY_CONNECTED", [x, w, None], (1, 4)))
    if other == "FULLY_CONNECTED":
        b.output(b.op("FULLY_CONNECTED", [b.op("ABS", [x], (1, 4)), w, None], (1, 4)))
    elif other:
        order = b.constant(np.array([1, 0], np.int32))
        b.output(b.op("TRANSPOSE", [w, order], (4, 4), quantization=quantized(0.5)))
    return b.build()


@pytest.mark.parametrize("other, nodes, found", [
    ("", None, (0,)), ("FULLY_CONNECTED", None, (0, 2)), ("FULLY_CONNECTED", {0, 2}, (0, 2)),
    ("FULLY_CONNECTED", {0}, ()), ("TRANSPOSE", None, ()),
])  # fmt: skip
def test_weights_become_floats_where_nobody_else_reads_them(other: str, nodes: Any, found: tuple[int, ...]) -> None:
    changed, named = surgery.with_float_weights(read_model(shared_weights(other)), nodes)
    assert named == found
    weights = changed.main.tensors[changed.main.operators[0].inputs[1]]
    assert weights.type is (F if found else I8)
    if found:
        np.testing.assert_array_equal(weights.data, np.eye(4, dtype=np.float32) / 2)


def branches() -> bytes:
    """RELU, then ABS and NEG of it, ABS an output; last a SQUARE that nothing reads, and SIN of NEG."""
    b = ModelBuilder()
    first = b.op("RELU", [b.input("x", (2,))], (2,))
    absolute, negative = b.op("ABS", [first], (2,)), b.op("NEG", [first], (2,))
    b.op("SQUARE", [absolute], (2,))
    b.output(absolute, b.op("SIN", [negative], (2,)))
    return b.build()


def test_what_nodes_hand_on() -> None:
    main = read_model(branches()).main
    results = [o.outputs[0] for o in main.operators]
    for part, expected in (((0,), [0]), ((0, 1), [0, 1]), ((0, 1, 2), [1, 2]), ((0, 2, 4), [0, 4]), ((3,), [3]),
                           ((1, 3), [1]), ((0, 1, 2, 3, 4), [1, 4])):  # fmt: skip
        assert leaving(main, part) == [results[i] for i in expected], part
    assert [computes(main, o) for o in main.operators] == [True, True, True, False, True]


def test_inner_values_come_behind_the_outputs() -> None:
    model = read_model(branches())
    main = model.main
    x = np.array([-1, 2], np.float32)
    results = run(official(exposed(model, [main.operators[0].outputs[0], main.outputs[0]])), [x])
    assert [r.tolist() for r in results[:1] + results[2:]] == [[0, 2], [0, 2]] and len(results) == 3


def test_parts_no_longer_touch() -> None:
    model = read_model(branches())
    main = model.main
    found = isolated(model, [[0], [1, 3], [2, 4]])
    assert found.nodes == (0, 1, 3, 2, 4)
    first = main.operators[0].outputs[0]
    assert found.inputs == (main.inputs[0], first)  # once, for both that read it
    results = run(official(found.content), [np.array([-1, 2], np.float32), np.array([-5, 6], np.float32)])
    by_tensor = dict(zip(found.outputs, results, strict=True))
    assert by_tensor[first].tolist() == [0, 2] and by_tensor[main.operators[1].outputs[0]].tolist() == [5, 6]
    np.testing.assert_allclose(by_tensor[main.outputs[1]], np.sin([5, -6]), rtol=1e-6)


@pytest.mark.parametrize("sizes, groups", [
    ([4, 4, 4], [[0, 1], [2]]), ([9, 1, 8], [[0], [1], [2]]), ([2, 2, 4, 4, 4], [[0, 1, 2], [3, 4]]), ([], []),
    ([8, 8], [[0], [1]]), ([1], [[0]]),
])  # fmt: skip
def test_portions_of_what_is_handed_out(sizes: list[int], groups: list[list[int]], monkeypatch: Any) -> None:
    """Of 8 floats at most, which one thing alone may exceed."""
    monkeypatch.setattr(surgery, "_MOST_BYTES", 32)
    b = ModelBuilder()
    made = [b.input(f"x{i}", (n,)) for i, n in enumerate(sizes)]
    b.output(b.op("ABS", [b.input("other", (1,))], (1,)))
    main = read_model(b.build()).main
    assert [list(range(len(sizes)))[part] for part in portions(main, [[t] for t in made])] == groups
