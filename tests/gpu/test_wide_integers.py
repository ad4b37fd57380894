"""INT64 on the GPU: computed with in 32 bits where those hold it, else as two words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import assert_keeps_alike, official, on_gpu, require_gpu, run
from control_models import branch, handle, once

import litegpu
from litegpu.errors import InvokeError
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph.parts import as_typed
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

I64 = TensorType.INT64


def token_model() -> bytes:
    """Rows of a table by INT64 numbers, which leave the model as well, reversed; and where the largest stands."""
    b = ModelBuilder()
    ids = b.input("ids", (5,), I64)
    table = b.constant(np.random.default_rng(0).standard_normal((7, 4)).astype(np.float32))
    rows = b.op("GATHER", [table, ids], shape=(5, 4))
    turned = b.op("REVERSE_V2", [ids, b.constant(np.array([0], np.int32))], shape=(5,), type=I64)
    places = b.op("ARG_MAX", [rows, b.constant(1)], shape=(5,), options=dict(output_type="INT64"), type=I64)
    same = b.op("EQUAL", [places, ids], shape=(5,), type=TensorType.BOOL)
    b.output(rows, turned, places, same)
    return b.build()


def test_numbers_of_64_bits_enter_and_leave() -> None:
    require_gpu()
    ids = np.array([6, 0, 3, 3, 1], np.int64)
    interpreter = on_gpu(token_model(), max_delegated_partitions=0)
    assert interpreter.delegation_report().fully_delegated, interpreter.delegation_report().summary()
    for got, want in zip(run(interpreter, [ids]), run(official(token_model()), [ids]), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


def test_a_place_that_32_bits_do_not_hold_is_an_error() -> None:
    """What is no more than a place is one word."""
    require_gpu()
    b = ModelBuilder()
    table = b.constant(np.zeros((7, 4), np.float32))
    b.output(b.op("GATHER", [table, b.input("ids", (5,), I64)], shape=(5, 4)))
    interpreter = on_gpu(b.build(), max_delegated_partitions=0)
    with pytest.raises(litegpu.InvokeError, match=r"holds 0 to 4294967296: the GPU computes with 32 bits"):
        run(interpreter, [np.array([1 << 32, 0, 0, 0, 0], np.int64)])


def test_a_place_of_two_words_that_is_out_of_range() -> None:
    require_gpu()
    ids = np.array([1 << 32, 0, 3, 1, 2], np.int64)
    interpreter = on_gpu(token_model(), max_delegated_partitions=0)
    rows, turned, _, same = run(interpreter, [ids])
    assert not rows[0].any() and rows[1].any()
    np.testing.assert_array_equal(turned, ids[::-1])
    assert not same[0]


def numbers(*shape: int, seed: int = 0, spare: int = 1) -> np.ndarray:
    """Of every length, and either sign."""
    rng = np.random.default_rng(seed)
    return rng.integers(-(2**63), 2**63, shape) >> rng.integers(spare, 63, shape)


def check(b: ModelBuilder, *inputs: np.ndarray) -> None:
    """Wholly on the GPU, and in NumPy, as on the CPU."""
    require_gpu()
    content = b.build()
    wanted = run(official(content), inputs)
    graph = litegpu.read_model(content).main
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    evaluated = [
        as_typed(a, w.shape, w.dtype) for a, w in zip(evaluate_graph(lowered.graph, inputs), wanted, strict=True)
    ]
    with on_gpu(content, max_delegated_partitions=0) as interpreter:
        report = interpreter.delegation_report()
        assert report.fully_delegated, report.summary()
        found = run(interpreter, inputs)
    for got in (evaluated, found):
        for a, w in zip(got, wanted, strict=True):
            if w.dtype.kind in "fc":
                np.testing.assert_allclose(a, w, rtol=1e-6, atol=1e-5)
            else:
                np.testing.assert_array_equal(a, w)


@pytest.mark.parametrize("shapes", [((2, 3, 4), (3, 1)), ((), (5,)), ((2, 1, 2, 1, 2), (1, 3, 1, 3, 1))])
@pytest.mark.parametrize("operator", ["ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "LESS", "GREATER_EQUAL", "EQUAL"])
def test_two_operands_of_64_bits(operator: str, shapes: Any) -> None:
    b, made = ModelBuilder(), np.broadcast_shapes(*shapes)
    x, y = (b.input(f"x{i}", s, I64) for i, s in enumerate(shapes))
    compares = operator in ("LESS", "GREATER_EQUAL", "EQUAL")
    b.output(b.op(operator, [x, y], made, type=TensorType.BOOL if compares else I64))
    check(b, numbers(*shapes[0]), numbers(*shapes[1], seed=1))


@pytest.mark.parametrize("operator", ["SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "CUMSUM"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (40,), (2, 1, 3, 2, 4)])
def test_along_an_axis(operator: str, shape: tuple[int, ...]) -> None:
    b = ModelBuilder()
    x, axis = b.input("x", shape, I64), len(shape) // 2
    if operator == "CUMSUM":
        y = b.op(operator, [x, b.constant(np.array(axis, np.int32))], shape, dict(exclusive=True))
    else:
        made = (*shape[:axis], *shape[axis + 1 :])
        y = b.op(operator, [x, b.constant(np.array([axis], np.int32))], made, type=I64)
    b.output(y)
    check(b, numbers(*shape))


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("twice", [False, True])
def test_rows_with_one_place_add_up(constant: bool, twice: bool) -> None:
    places = np.array([[4], [0], [4 if twice else 2], [3]], np.int32)
    b = ModelBuilder()
    at = b.constant(places) if constant else b.input("at", (4, 1), TensorType.INT32)
    sizes = b.constant(np.array([6, 3], np.int32))
    b.output(b.op("SCATTER_ND", [at, b.input("x", (4, 3), I64), sizes], (6, 3), type=I64))
    check(b, *([] if constant else [places]), numbers(4, 3))


def test_casts_of_64_bits() -> None:
    b, shape = ModelBuilder(), (3, 50)
    f, i = b.input("f", shape), b.input("i", shape, I64)
    b.output(b.op("CAST", [f], shape, dict(in_data_type=0, out_data_type=4), type=I64))
    for target in (TensorType.FLOAT32, TensorType.INT32, TensorType.BOOL, TensorType.INT8):
        b.output(b.op("CAST", [i], shape, dict(in_data_type=4, out_data_type=int(target)), type=target))
    floats = np.random.default_rng(0).standard_normal(shape) * 10.0 ** np.random.default_rng(1).integers(-2, 21, shape)
    floats[0, :3] = np.nan, np.inf, -np.inf
    check(b, floats.astype(np.float32), numbers(*shape, spare=0))


@pytest.mark.parametrize(
    ("type_", "numbers"),
    [
        (TensorType.INT64, np.array([[1, -2, 2**40 + 1], [-(2**50), 2**62, 7]])),
        (TensorType.INT32, np.array([[1, -2, 3], [2**30, -7, 0]], np.int32)),
        (TensorType.UINT8, np.array([[1, 200, 3], [0, 255, 9]], np.uint8)),
    ],
)
def test_casts_to_complex_numbers(type_: TensorType, numbers: np.ndarray) -> None:
    """Beside the cast back to 32 bits, of the real part."""
    b = ModelBuilder()
    x = b.input("x", (2, 3), type_)
    made = b.op("CAST", [x], (2, 3), type=TensorType.COMPLEX64)
    b.output(made, b.op("CAST", [made], (2, 3), type=TensorType.FLOAT32))
    check(b, numbers)


def test_64_bits_are_moved() -> None:
    b, shape = ModelBuilder(), (2, 3, 4)
    x = b.input("x", shape, I64)
    far = b.constant(numbers(2, 3, 2, seed=5))
    joined = b.op("CONCATENATION", [x, far], (2, 3, 6), dict(axis=2))
    b.output(joined, b.op("TRANSPOSE", [joined, b.constant(np.array([2, 0, 1], np.int32))], (6, 2, 3), type=I64))
    condition = b.op("LESS", [x, b.constant(np.array(1 << 40, np.int64))], shape, type=TensorType.BOOL)
    b.output(b.op("SELECT_V2", [condition, x, b.constant(np.array(-1 << 50, np.int64))], shape, type=I64))
    b.output(*b.op_multi("SPLIT", [b.constant(np.array(1, np.int32)), x], [((2, 1, 4), I64)] * 3, dict(num_splits=3)))
    b.output(b.op("SHAPE", [x], (3,), dict(out_type="INT32"), type=TensorType.INT32))
    check(b, numbers(*shape))


def test_complex_numbers_are_moved_and_multiplied() -> None:
    """As a short-time transform is written: one more axis for RFFT2D, which goes again."""
    b, complex_ = ModelBuilder(), TensorType.COMPLEX64
    frames = b.op("EXPAND_DIMS", [b.input("x", (4, 16)), b.constant(1)], (4, 1, 16), type=TensorType.FLOAT32)
    made = b.op("RFFT2D", [frames, b.constant(np.array([1, 16], np.int32))], (4, 1, 9), type=complex_)
    spectrum = b.op("SQUEEZE", [made], (4, 9), dict(squeeze_dims=[1]), type=complex_)
    b.output(b.op("COMPLEX_ABS", [spectrum], (4, 9), type=TensorType.FLOAT32), spectrum)
    b.output(b.op("MUL", [spectrum, b.input("y", (9,), complex_)], (4, 9), type=complex_))
    rng = np.random.default_rng(0)
    y = (rng.standard_normal(9) + 1j * rng.standard_normal(9)).astype(np.complex64)
    check(b, rng.standard_normal((4, 16)).astype(np.float32), y)


@pytest.mark.parametrize("sizes", [(1, 16), (8, 8), (1, 2)])
def test_phases_of_spectra(sizes: tuple[int, int]) -> None:
    """Of what is real the imaginary part is -0 on the CPU, which makes a phase -pi of it."""
    b, (height, width), complex_ = ModelBuilder(), sizes, TensorType.COMPLEX64
    shape = (height, width // 2 + 1)
    made = b.op("RFFT2D", [b.input("x", sizes), b.constant(np.array(sizes, np.int32))], shape, type=complex_)
    parts = [b.op(name, [made], shape, type=TensorType.FLOAT32) for name in ("IMAG", "REAL")]
    b.output(b.op("ATAN2", parts, shape))
    check(b, -np.random.default_rng(0).random(sizes).astype(np.float32))


def test_spectra_of_one_number_are_the_cpus() -> None:
    b = ModelBuilder()
    made = b.op("RFFT2D", [b.input("x", (4, 1)), b.constant(np.array([4, 1], np.int32))], (4, 1),
                type=TensorType.COMPLEX64)  # fmt: skip
    b.output(b.op("IMAG", [made], (4, 1), type=TensorType.FLOAT32))
    graph = b.graph()
    assert "rows of one number" in str(check_operator(graph, graph.operators[0]))


def test_what_has_no_form_of_two_words_keeps_one() -> None:
    """The CPU has none of these: what enters is looked at before the inference; a sum of it is refused."""
    require_gpu()
    b = ModelBuilder()
    x = b.input("x", (2, 3), I64)
    b.output(b.op("ARG_MAX", [x, b.constant(1)], (2,), dict(output_type="INT64"), type=I64))
    with on_gpu(b.build(), max_delegated_partitions=0) as interpreter:
        found = run(interpreter, [np.array([[-9, 5, 1 << 30], [7, 0, 7]])])[0]
        np.testing.assert_array_equal(found, [2, 0])
        with pytest.raises(InvokeError, match="32 bits"):
            run(interpreter, [np.array([[1 << 40, 0, 0], [0, 0, 0]])])
    b = ModelBuilder()
    total = b.op("MUL", [x := b.input("x", (4,), I64), x], (4,))
    b.output(b.op("FLOOR_DIV", [total, b.constant(np.array(7, np.int64))], (4,), type=I64))
    graph = b.graph()
    assert [bool(check_operator(graph, o)) for o in graph.operators] == [False, True]
    assert "no form of two words" in str(check_operator(graph, graph.operators[1]))


ENDS = [2**63 - 1, -(2**63) + 1, -(2**63), 2**62, 2**32, -(2**32), -1, 0]


@pytest.mark.parametrize("divisor", [86_400_000, -7, 1, 2**31 - 1, 2**40 + 1, -(2**62)])
def test_what_divisions_leave(divisor: int) -> None:
    """Of the divisor's sign; by a number that 32 bits hold it is one word, of which places are taken."""
    b, shape = ModelBuilder(), (7, 8)
    x = b.input("x", shape, I64)
    rest = b.op("FLOOR_MOD", [x, b.constant(np.array(divisor), type=I64)], shape, type=I64)
    b.output(rest, b.op("EQUAL", [rest, b.constant(np.array(0), type=I64)], shape, type=TensorType.BOOL))
    array = np.concatenate([numbers(6, 8, spare=0), [ENDS]])
    array[0, 1:4] = divisor, -divisor, 2 * divisor % 2**62
    check(b, array)


def test_what_divisions_of_rows_leave() -> None:
    b = ModelBuilder()
    x, y = b.input("x", (5, 8), I64), b.input("y", (8,), I64)
    b.output(b.op("FLOOR_MOD", [x, y], (5, 8), type=I64))
    by = numbers(8, seed=4)
    check(b, numbers(5, 8, spare=0), np.where(by == 0, 1, by))


def test_places_that_divisions_give() -> None:
    """Of times, the rows of a table of hours."""
    b = ModelBuilder()
    x = b.input("x", (6,), I64)
    hour = b.op("FLOOR_MOD", [x, b.constant(np.array(24), type=I64)], (6,), type=I64)
    table = b.constant(np.random.default_rng(1).standard_normal((24, 4)).astype(np.float32))
    b.output(b.op("GATHER", [table, hour], (6, 4)))
    check(b, np.array([1_700_000_000_000 + 77 * i for i in range(6)]))


@pytest.mark.parametrize("axes", [(1,), (0, 2), ()], ids=str)
@pytest.mark.parametrize("keep", [False, True])
def test_means_of_64_bits(axes: tuple[int, ...], keep: bool) -> None:
    """Towards zero."""
    b, shape = ModelBuilder(), (3, 5, 4)
    made = tuple(1 if i in axes else n for i, n in enumerate(shape) if keep or i not in axes)
    x = b.input("x", shape, I64)
    b.output(b.op("MEAN", [x, b.constant(np.array(axes, np.int32))], made, dict(keep_dims=keep), type=I64))
    check(b, numbers(*shape, spare=5))


def test_buckets_of_64_bits() -> None:
    b = ModelBuilder()
    x = b.input("x", (5, 9), I64)
    b.output(b.op("BUCKETIZE", [x], (5, 9), dict(boundaries=[-1e12, 0.0, 3.0, 1e15]), type=TensorType.INT32))
    check(b, numbers(5, 9))


def test_the_bits_of_two_words() -> None:
    b = ModelBuilder()
    x, y = b.input("x", (2, 5), I64), b.input("y", (2, 5), I64)
    double = b.op("BITCAST", [x], (2, 5), type=TensorType.FLOAT64)
    pair = b.op("BITCAST", [y], (2, 5), type=TensorType.COMPLEX64)
    b.output(b.op("STABLEHLO_AND", [x, y], (2, 5), type=I64), double, b.op("BITCAST", [pair], (2, 5), type=I64))
    small = np.arange(10).reshape(2, 5) * 0x40000000_3F000000  # whose halves are no NaN
    check(b, numbers(2, 5), small)


def test_rows_of_a_table_of_any_type() -> None:
    b = ModelBuilder()
    at, x = b.input("at", (3,), TensorType.INT32), b.input("x", (4, 2), I64)
    y = b.input("y", (4, 2), TensorType.UINT32)
    rows = [b.op("EMBEDDING_LOOKUP", [at, t], (3, 2), type=k) for t, k in ((x, I64), (y, TensorType.UINT32))]
    b.output(*rows)
    check(b, np.array([2, 0, 3], np.int32), numbers(4, 2), numbers(4, 2).astype(np.uint32))


def test_variables_of_two_words_stay_on_the_device() -> None:
    require_gpu()
    b = ModelBuilder()
    once(b, b, {"count": np.array([5, 1 << 40], np.int64)})
    x, variable = b.input("x", (2,), I64), handle(b, "count")
    before = b.op("READ_VARIABLE", [variable], (2,), type=I64)
    after = b.op("ADD", [before, x], (2,), type=I64)
    b.node("ASSIGN_VARIABLE", [variable, after], [])
    b.output(b.op("MAXIMUM", [after, before], (2,), type=I64))
    assert_keeps_alike(b.build(), [[numbers(2, seed=i, spare=9)] for i in range(3)], max_delegated_partitions=0)


def test_beside_control_flow() -> None:
    """What enters a program that is linked of several."""
    require_gpu()
    b, state = ModelBuilder(), [((3,), TensorType.FLOAT32)]
    condition, x, n = b.input("p", (), TensorType.BOOL), b.input("x", (3,)), b.input("n", (2, 3), I64)
    made = branch(
        b, b, condition, [x], state, state,
        lambda graph, v: [graph.op("TANH", [v[0]], (3,))], lambda graph, v: [graph.op("NEG", [v[0]], (3,))],
    )  # fmt: skip
    b.output(*made, b.op("TILE", [n, b.constant(np.array([2, 1], np.int32))], (4, 3), type=I64))
    content, x_, many = b.build(), np.ones(3, np.float32), numbers(2, 3)
    for chosen in (True, False):
        with on_gpu(content, max_delegated_partitions=0) as interpreter:
            assert interpreter.delegation_report().fully_delegated
            arrays = [np.array(chosen), x_, many]
            for got, want in zip(run(interpreter, arrays), run(official(content), arrays), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-6)


def test_empty_tensors_of_two_words_are_left_to_the_cpu() -> None:
    require_gpu()
    b = ModelBuilder()
    x, y = b.input("x", (1, 0), I64), b.input("y", (1, 1), I64)
    b.output(b.op("NOT_EQUAL", [x, y], shape=(1, 0), type=TensorType.BOOL))
    gpu = on_gpu(b.build(), max_delegated_partitions=0)
    assert "'x' of shape [1, 0] is empty" in gpu.delegation_report().summary()
    assert run(gpu, [np.zeros((1, 0), np.int64), np.zeros((1, 1), np.int64)])[0].shape == (1, 0)


@pytest.mark.parametrize("name", ["LESS", "EQUAL", "GREATER_EQUAL"])
def test_one_word_beside_a_constant_of_two(name: str) -> None:
    """What 32 bits hold is compared with what they do not."""
    require_gpu()
    b = ModelBuilder()
    x = b.input("x", (3,), TensorType.INT32)
    wide = b.op("CAST", [x], shape=(3,), options=dict(in_data_type="INT32", out_data_type="INT64"), type=I64)
    limits = b.constant(np.array([2**35, -(2**35), 5]), type=I64)
    b.output(b.op(name, [wide, limits], shape=(3,), type=TensorType.BOOL))
    interpreter = on_gpu(b.build(), max_delegated_partitions=0)
    assert interpreter.delegation_report().fully_delegated, interpreter.delegation_report().summary()
    for array in ([-7, -7, 5], [2**31 - 1, -(2**31), 6]):
        given = [np.array(array, np.int32)]
        np.testing.assert_array_equal(run(interpreter, given)[0], run(official(b.build()), given)[0])


def far_apart(*shape: int) -> np.ndarray:
    """Numbers that differ in either word, some not at all."""
    rng = np.random.default_rng(3)
    return rng.integers(-3, 4, shape) * 2**33 + rng.integers(-2, 3, shape) * (2**31 + 1)


@pytest.mark.parametrize("places", [TensorType.INT32, TensorType.INT16])
@pytest.mark.parametrize("shape, count", [((9,), 4), ((3, 5), 5), ((1, 2, 1, 2, 7), 3)], ids=str)
def test_the_largest_by_two_words(shape: tuple[int, ...], count: int, places: TensorType) -> None:
    require_gpu()
    b = ModelBuilder()
    size = b.constant(np.array(count, np.int32))
    made = (*shape[:-1], count)
    x = b.input("x", shape, I64)
    b.output(*b.op_multi("TOPK_V2", [x, size], [(made, I64), (made, places)]))
    interpreter = on_gpu(b.build(), max_delegated_partitions=0)
    assert interpreter.delegation_report().fully_delegated, interpreter.delegation_report().summary()
    array = far_apart(*shape)
    for got, want in zip(run(interpreter, [array]), run(official(b.build()), [array]), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("count", [1, 6, 40])
def test_what_is_unlike_by_two_words(count: int) -> None:
    require_gpu()
    b = ModelBuilder()
    x = b.input("x", (count,), I64)
    kinds = [((-1,), I64), ((count,), TensorType.INT32)]
    b.output(*b.op_multi("UNIQUE", [x], kinds, dict(idx_out_type="INT32")))
    interpreter = on_gpu(b.build(), max_delegated_partitions=0)
    assert interpreter.delegation_report().fully_delegated, interpreter.delegation_report().summary()
    array = far_apart(count)
    for got, want in zip(run(interpreter, [array]), run(official(b.build()), [array]), strict=True):
        np.testing.assert_array_equal(got, want)
