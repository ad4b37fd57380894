"""Models that ask for more memory or work than the limits are refused before anything is allocated."""

from __future__ import annotations

import math
import subprocess
import sys
import time

import numpy as np
import pytest

from litegpu import GpuDelegate, Interpreter, InvokeError, ModelError, OptionError, TensorError
from litegpu.delegates import demand
from litegpu.limits import limits
from litegpu.model import ModelBuilder, TensorType
from litegpu.model.reader import DTYPES
from litegpu.model.shapes import estimated_shapes


@pytest.mark.parametrize("operator", ["BROADCAST_TO", "TILE", "PAD", "RESIZE_BILINEAR"])
def test_a_constant_that_asks_for_a_huge_tensor(operator: str) -> None:
    sizes_of: dict[str, tuple[list, list]] = {
        "BROADCAST_TO": ([1, 2, 2, 1], [2**28, 2, 2, 1]),
        "TILE": ([1, 1, 1, 1], [2**28, 1, 1, 1]),
        "PAD": ([[0, 0]] * 4, [[0, 2**28], *[[0, 0]] * 3]),
        "RESIZE_BILINEAR": ([2, 2], [2**28, 2]),
    }
    small, huge = sizes_of[operator]

    def model(sizes: list) -> bytes:
        builder = ModelBuilder()
        x = builder.input("x", (1, 2, 2, 1))
        builder.output(builder.op(operator, [x, builder.constant(sizes)], (1, 2, 2, 1)))
        return builder.build()

    Interpreter(model_content=model(small))
    with pytest.raises(ModelError, match=r"asks for|gets shape"):
        Interpreter(model_content=model(huge))


def convolution(stated: tuple[int, ...], height: int = 8, name: str = "x") -> bytes:
    model = ModelBuilder()
    x = model.input(name, (1, height, 128, 64))
    weights = model.constant(np.ones((64, 3, 3, 64), np.float32))
    bias = model.constant(np.zeros(64, np.float32))
    options = dict(stride_h=1, stride_w=1, padding="SAME")
    model.output(model.op("CONV_2D", [x, weights, bias], stated, options))
    return model.build()


@pytest.mark.parametrize("delegates", [None, [GpuDelegate()]], ids=["cpu", "gpu"])
def test_what_follows_against_the_files_word_has_less(delegates: list | None) -> None:
    large = 1 << 12
    with pytest.raises(ModelError, match=r"asks for [0-9,]+ operations .* LITEGPU_WORK_LIMIT"):
        Interpreter(model_content=convolution((1, 8, 128, 64), large), experimental_delegates=delegates)
    Interpreter(model_content=convolution((1, large, 128, 64), large), experimental_delegates=delegates)


def test_memory_is_what_lives_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelBuilder()
    x = y = model.input("x", (1 << 20,))
    for _ in range(50):
        y = model.op("EXP", [y], (1 << 20,))
    model.output(y)
    content = model.build()
    monkeypatch.setenv("LITEGPU_MEMORY_LIMIT", "13M")  # the input, an operand and a result
    Interpreter(model_content=content)
    monkeypatch.setenv("LITEGPU_MEMORY_LIMIT", "11M")
    with pytest.raises(ModelError, match=r"asks for 12,582,912 bytes .* LITEGPU_MEMORY_LIMIT to 12582912"):
        Interpreter(model_content=content)
    assert x == 0


def test_limits_hold_for_shapes_that_the_caller_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter = Interpreter(model_content=convolution((1, 8, 128, 64)))
    monkeypatch.setenv("LITEGPU_MEMORY_LIMIT", "12M")
    interpreter.resize_tensor_input(0, [1, 8, 4096, 64])
    with pytest.raises(InvokeError, match="LITEGPU_MEMORY_LIMIT"):
        interpreter.allocate_tensors()
    interpreter.resize_tensor_input(0, [1, 8, 256, 64])
    interpreter.allocate_tensors()
    interpreter.invoke()


@pytest.mark.parametrize("shape", [[1] * 20, [1] * 9, [1 << 20, 1 << 20], [1 << 40]])
def test_impossible_shapes(shape: list[int]) -> None:
    interpreter = Interpreter(model_content=convolution((1, 8, 128, 64)))
    with pytest.raises(TensorError, match=r"dimensions|elements"):
        interpreter.resize_tensor_input(0, shape)


def test_an_ordinary_large_model_is_let_pass() -> None:
    """8k images through a network, and a language model's products."""
    model = ModelBuilder()
    x = model.input("x", (1, 4320, 7680, 3))
    weights = model.constant(np.ones((32, 3, 3, 3), np.float32))
    bias = model.constant(np.zeros(32, np.float32))
    y = model.op("CONV_2D", [x, weights, bias], (1, 2160, 3840, 32), dict(stride_h=2, stride_w=2, padding="SAME"))
    model.output(y)
    Interpreter(model_content=model.build())
    model = ModelBuilder()
    x = model.input("x", (1, 8192, 2048))
    k = model.input("k", (1, 2048, 32768))
    model.output(model.op("BATCH_MATMUL", [x, k], (1, 8192, 32768)))
    Interpreter(model_content=model.build())


def test_a_window_beyond_its_image() -> None:
    model = ModelBuilder()
    x = model.input("x", (4, 6, 15, 1))
    options = dict(stride_h=1, stride_w=1, filter_height=4784129, filter_width=7, padding="SAME")
    model.output(model.op("MAX_POOL_2D", [x], (4, 6, 15, 1), options))
    with pytest.raises(ModelError, match="operations"):
        Interpreter(model_content=model.build())


def test_a_long_vector_of_sizes_costs_nothing() -> None:
    model = ModelBuilder()
    x = model.input("x", (1, 1, 1, 7))
    model.output(model.op("RESIZE_BILINEAR", [x, model.constant(np.full(500_000, 9, np.int32))], (1, 4, 5, 7)))
    content = model.build()
    started = time.process_time()
    with pytest.raises(ModelError, match="500000 elements where 2 can be"):
        Interpreter(model_content=content)
    assert time.process_time() - started < 5


def test_shapes_without_a_rank_in_the_file_are_no_word() -> None:
    """Converters that do not infer shapes leave them out, so nothing contradicts them."""
    model = ModelBuilder()
    x = model.input("x", (1, 4096, 4096, 8))
    y = x
    for _ in range(3):
        y = model.op("ADD", [y, x], ())
    model.output(y)
    Interpreter(model_content=model.build())


def test_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    before = limits()
    assert before.unstated_memory <= before.memory and before.unstated_work <= before.work
    monkeypatch.setenv("LITEGPU_MEMORY_LIMIT", "2.5 GiB")
    monkeypatch.setenv("LITEGPU_WORK_LIMIT", "7000000000")
    assert limits().memory == limits().unstated_memory == int(2.5 * 2**30)
    assert limits().work == limits().unstated_work == 7 * 10**9
    for wrong in ("much", "-1", "0", "nan", "1e999"):
        monkeypatch.setenv("LITEGPU_MEMORY_LIMIT", wrong)
        with pytest.raises(OptionError, match="LITEGPU_MEMORY_LIMIT"):
            limits()


def test_values_that_are_constants_cannot_be_set() -> None:
    model = ModelBuilder()
    x = model.input("x", (2, 3), TensorType.FLOAT32)
    c = model.constant(np.ones((2, 3), np.float32))
    model.output(model.op("ADD", [x, c], (2, 3)))
    for delegates in (None, [GpuDelegate()]):
        interpreter = Interpreter(model_content=model.build(), experimental_delegates=delegates)
        with pytest.raises(TensorError, match="is a constant"):
            interpreter.set_tensor(c, np.zeros((2, 3), np.float32))
        interpreter.allocate_tensors()
        with pytest.raises(TensorError, match="is a constant"):
            interpreter.set_tensor(c, np.zeros((2, 3), np.float32))
        view = interpreter.tensor(c)()
        with pytest.raises(ValueError, match="read-only"):
            view[:] = 0


I32 = TensorType.INT32


def i32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def of_one(operator: str, inputs: list, shape: tuple[int, ...], options: dict | None = None):
    """A graph of one operator. Inputs: shapes or constants."""
    b = ModelBuilder()
    operands = [b.input(f"x{n}", i) if isinstance(i, tuple) else b.constant(i) for n, i in enumerate(inputs)]
    b.output(b.op(operator, operands, shape, options or {}, type=TensorType.FLOAT32))
    return b.model().main


#: What is computed, by hand: products of convolutions, elements touched elsewhere.
WORK = {
    "CONV_2D": (of_one("CONV_2D", [(1, 4, 4, 5), np.ones((7, 3, 2, 5), np.float32)], (1, 4, 4, 7)), 16 * 7 * 30),
    "DEPTHWISE_CONV_2D": (
        of_one("DEPTHWISE_CONV_2D", [(1, 4, 4, 5), np.ones((1, 3, 2, 5), np.float32)], (1, 4, 4, 5)), 16 * 5 * 6),
    "FULLY_CONNECTED": (of_one("FULLY_CONNECTED", [(2, 5), np.ones((7, 5), np.float32)], (2, 7)), 2 * 7 * 5),
    "TRANSPOSE_CONV": (
        of_one("TRANSPOSE_CONV", [i32(1, 8, 8, 7), np.ones((7, 3, 2, 5), np.float32), (1, 4, 4, 5)], (1, 8, 8, 7)),
        8 * 8 * 7 + 4 * 4 * 5 * 7 * 6),
    "a product": (of_one("BATCH_MATMUL", [(2, 3, 5), (2, 5, 7)], (2, 3, 7)), 42 * 5),
    "a product that is turned": (
        of_one("BATCH_MATMUL", [(2, 5, 3), (2, 5, 7)], (2, 3, 7), {"adj_x": True}), 42 * 5),
    "a pool": (of_one("MAX_POOL_2D", [(1, 4, 4, 5)], (1, 2, 2, 5), {"filter_height": 2, "filter_width": 3}), 20 * 6),
    "LOCAL_RESPONSE_NORMALIZATION": (
        of_one("LOCAL_RESPONSE_NORMALIZATION", [(1, 2, 2, 5)], (1, 2, 2, 5), {"radius": 4}), 20 * 9),
    "a sum": (of_one("ADD", [(2, 3), (1, 3)], (2, 3)), 6 + 6 + 3),
}  # fmt: skip


@pytest.mark.parametrize("name", WORK)
def test_the_work_of_an_operator(name: str) -> None:
    graph, wanted = WORK[name]
    (operator,) = graph.operators
    given = [graph.tensors[i].shape for i in operator.inputs]
    made = sum(math.prod(graph.tensors[i].shape) for i in operator.outputs)
    assert demand._work(operator, given, made) == wanted


#: Shapes of results that only the official runtime knows, by hand.
RESULTS = {
    "RANGE": (of_one("RANGE", [np.int32(3), np.int32(11), np.int32(3)], (1,)), (3,)),
    "RANGE downwards": (of_one("RANGE", [np.int32(11), np.int32(3), np.int32(-3)], (1,)), (3,)),
    "RANDOM_UNIFORM": (of_one("RANDOM_UNIFORM", [i32(4, 5)], (1,)), (4, 5)),
    "SPARSE_TO_DENSE": (
        of_one("SPARSE_TO_DENSE", [i32(1), i32(9, 2), np.float32(1), np.float32(0)], (1,)), (9, 2)),
    "MATRIX_DIAG": (of_one("MATRIX_DIAG", [(2, 3)], (1,)), (2, 3, 3)),
    "SEGMENT_SUM": (of_one("SEGMENT_SUM", [(4, 3), i32(0, 0, 1, 5)], (1,)), (6, 3)),
    "SEGMENT_SUM of nothing": (of_one("SEGMENT_SUM", [(0, 3), i32()], (1,)), (0, 3)),
    "UNSORTED_SEGMENT_MAX": (
        of_one("UNSORTED_SEGMENT_MAX", [(4, 3), i32(0, 0, 1, 5), np.int32(8)], (1,)), (8, 3)),
    "UNSORTED_SEGMENT_SUM of rank 2": (
        of_one("UNSORTED_SEGMENT_SUM", [(2, 2, 3), np.zeros((2, 2), np.int32), np.int32(8)], (1,)), (8, 3)),
    "DILATE": (of_one("DILATE", [(4, 3), i32(2, 5), np.float32(0)], (1,)), (7, 11)),
    "MULTINOMIAL": (of_one("MULTINOMIAL", [(4, 3), np.int32(6)], (1,)), (4, 6)),
    "CONV_3D": (
        of_one("CONV_3D", [(1, 5, 6, 7, 2), np.ones((2, 2, 2, 2, 9), np.float32)], (1,),
               {"stride_d": 2, "stride_h": 3, "stride_w": 4}), (1, 3, 2, 2, 9)),
    "LOGICAL_AND": (of_one("LOGICAL_AND", [(4, 1), (3,)], (1,)), (4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_shapes_of_what_the_official_runtime_alone_runs(name: str) -> None:
    graph, shape = RESULTS[name]
    assert list(estimated_shapes(graph, graph.operators[0], {})) == [shape]


@pytest.mark.parametrize("type_", list(TensorType))
def test_the_bytes_of_an_element(type_: TensorType) -> None:
    """As NumPy has them; of packed integers a byte at most, of strings what says where they are."""
    known = {TensorType.STRING: 64, TensorType.BFLOAT16: 16, **dict.fromkeys(
        (TensorType.INT4, TensorType.UINT4, TensorType.INT2, TensorType.RESOURCE, TensorType.VARIANT), 8)}  # fmt: skip
    wanted = known[type_] if type_ in known else DTYPES[type_].itemsize * 8
    assert 8 * type_.nbytes == wanted


@pytest.mark.parametrize("name", ["RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL"])
def test_random_tensors_of_shapes_that_none_can_have(name: str) -> None:
    """The official kernels fill what the runtime could not make."""
    model = ModelBuilder()
    model.output(model.op(name, [model.input("shape", (2,), TensorType.INT32)], (2, 3), dict(seed=1, seed2=2)))
    with Interpreter(model_content=model.build()) as interpreter:
        interpreter.allocate_tensors()
        for values in ([-2, 3], [2**16, 2**16]):
            interpreter.set_tensor(0, np.array(values, np.int32))
            with pytest.raises(InvokeError, match=r"its shape is \[-2, 3\]|has 4294967296 elements"):
                interpreter.invoke()
        interpreter.set_tensor(0, np.array([4, 5], np.int32))
        interpreter.invoke()
        assert interpreter.get_tensor(1).shape == (4, 5)

    constant = ModelBuilder()
    constant.output(constant.op(name, [constant.constant([-2, 3])], (2, 3), dict(seed=1, seed2=2)))
    with pytest.raises(ModelError, match=r"its shape is \[-2, 3\]"):
        Interpreter(model_content=constant.build())


def test_shapes_that_the_official_kernels_go_beyond() -> None:
    """Neither in the file nor by the caller's wish."""
    model = ModelBuilder()
    a, b = model.input("a", (2, 3), shape_signature=(-1, 3)), model.input("b", (2, 3), shape_signature=(-1, 3))
    model.output(model.op("REVERSE_V2", [model.op("ATAN2", [a, b], (2, 3)), model.constant([0])], (2, 3)))
    with Interpreter(model_content=model.build()) as interpreter:
        interpreter.resize_tensor_input(0, [4, 3])
        with pytest.raises(InvokeError, match=r"ATAN2: its inputs have the shapes \[4, 3\] and \[2, 3\]"):
            interpreter.allocate_tensors()
        interpreter.resize_tensor_input(1, [4, 3])
        interpreter.allocate_tensors()
        for index in (0, 1):
            interpreter.resize_tensor_input(index, [4, 0])
        with pytest.raises(InvokeError, match=r"REVERSE_V2: its input of shape \[4, 0\] has no elements to reverse"):
            interpreter.allocate_tensors()
        for index in (0, 1):
            interpreter.resize_tensor_input(index, [0, 3])
        interpreter.allocate_tensors()
        interpreter.invoke()
        assert interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).shape == (0, 3)


@pytest.mark.parametrize(
    ("width", "made", "refused"), [(1 << 16, 1 << 19, True), (1 << 16, 1, False), (100, 1 << 10, False)]
)
def test_a_window_that_no_image_needs(width: int, made: int, refused: bool) -> None:
    """One that moves; one over the whole input is a mean of all."""
    given = made + width - 1 if made == 1 else 2 * made
    model = ModelBuilder()
    x = model.input("x", (1, 1, given, 17))
    options = dict(stride_h=1, stride_w=2, filter_height=1, filter_width=width, padding="SAME" if made > 1 else "VALID")
    model.output(model.op("MAX_POOL_2D", [x], (1, 1, made, 17), options))
    if not refused:
        Interpreter(model_content=model.build())
        return
    with pytest.raises(ModelError, match="operations"):
        Interpreter(model_content=model.build())


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process")
def test_values_that_ask_for_more_memory_than_there_is() -> None:
    """The kernel fills its result, though the runtime got no memory for it."""
    code = """
import resource, numpy as np, litegpu
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType
model = ModelBuilder()
x = model.input("x", (1,), TensorType.INT32)
model.output(model.op("RANDOM_STANDARD_NORMAL", [x], (-1,), dict(seed=1, seed2=2)))
interpreter = litegpu.Interpreter(model_content=model.build())
interpreter.allocate_tensors()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, -1))
for count in (1000, 2**30, 500):
    interpreter.set_tensor(0, np.array([count], np.int32))
    try:
        interpreter.invoke()
        print(interpreter.get_tensor(1).shape)
    except litegpu.InvokeError as error:
        print(str(error).partition(",")[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["(1000,)", "The values of inputs [0] ask for 4", "(500,)"], done.stderr
