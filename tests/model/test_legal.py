"""Files that are near to what is refused, and legal: what the official runtime runs is run, with the same results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as OfficialInterpreter

import litegpu
from litegpu.model import ModelBuilder, TensorType, write_model
from litegpu.model.builder import quantized
from litegpu.model.types import Quantization

INT8, INT16, BOOL = TensorType.INT8, TensorType.INT16, TensorType.BOOL
Quant = Quantization | None


def unary(operator: str, shape: tuple[int, ...], options: dict[str, float] | None = None,
          type_: TensorType = TensorType.FLOAT32, given: Quant = None, made: Quant = None) -> bytes:  # fmt: skip
    b = ModelBuilder()
    x = b.input("x", shape, type_, quantization=given)
    b.output(b.op(operator, [x], shape, options, type=type_, quantization=made))
    return b.build()


def binary(operator: str, shape: tuple[int, ...], scales: tuple[float, float, float] | None = None,
           type_: TensorType = TensorType.FLOAT32, made: TensorType | None = None) -> bytes:  # fmt: skip
    b = ModelBuilder()
    x, y, z = (None, None, None) if scales is None else (quantized(scale) for scale in scales)
    operands = [b.input("x", shape, type_, quantization=x), b.input("y", shape, type_, quantization=y)]
    result = z if made is None else None
    b.output(b.op(operator, operands, shape, type=made or type_, quantization=result))
    return b.build()


def resized(shape: tuple[int, int, int, int]) -> bytes:
    b = ModelBuilder()
    x = b.input("x", shape)
    b.output(b.op("RESIZE_BILINEAR", [x, b.constant(np.array([4, 4], np.int32))], (shape[0], 4, 4, shape[3])))
    return b.build()


def listed_twice() -> bytes:
    b = ModelBuilder()
    x = b.input("x", (2, 3))
    b.output(y := b.op("ABS", [x], (2, 3)), y)
    model = b.model()
    main = dataclasses.replace(model.main, inputs=(x, x))
    return bytes(write_model(dataclasses.replace(model, subgraphs=(main,))))


def declared_otherwise() -> bytes:
    b = ModelBuilder()
    x = b.input("x", (2, 3))
    b.output(b.op("NEG", [b.op("ABS", [x], (4, 3, 5))], (1,)))
    return b.build()


CASES: dict[str, Callable[[], bytes]] = {
    "x - x, as TensorFlow's converter scales it": lambda: binary("SUB", (1, 3), (0.004, 0.004, 7.4e-9), INT8),
    "scales of no size beside an ordinary one": lambda: binary("ADD", (1, 3), (3e-35, 1.2e-35, 0.0235), INT8),
    "SUB into a coarse scale": lambda: binary("SUB", (1, 3), (1e-30, 0.1, 1e10), INT16),
    "comparison of bytes of a large scale": lambda: binary("LESS", (1, 3), (1.5, 300, 0), INT8, BOOL),
    "comparison of bytes of a tiny scale": lambda: binary("NOT_EQUAL", (1, 3), (1e-40, 0.5, 0), INT8, BOOL),
    "floats with scales that are none": lambda: unary("ABS", (2, 3), given=quantized(float("nan"))),
    "resize of no image": lambda: resized((0, 2, 2, 3)),
    "resize of no channels": lambda: resized((1, 2, 2, 0)),
    "atan2 of nothing": lambda: binary("ATAN2", (0, 3)),
    "log-softmax of no rows": lambda: unary("LOG_SOFTMAX", (0, 3)),
    "softmax of no rows": lambda: unary("SOFTMAX", (2, 0, 3), {"beta": 1.0}),
    "softmax of rows of nothing, in bytes": lambda: unary(
        "SOFTMAX", (3, 0), {"beta": 1.0}, INT8, quantized(0.1), quantized(1 / 256, -128)
    ),
    "an input and an output listed twice": listed_twice,
    "shapes that are not what the operators make": declared_otherwise,
}


def run(interpreter: litegpu.Interpreter | OfficialInterpreter) -> list[np.ndarray]:
    interpreter.allocate_tensors()
    for number, d in enumerate(interpreter.get_input_details()):
        values = np.random.default_rng(number).integers(-100, 100, d["shape"])
        interpreter.set_tensor(d["index"], values.astype(d["dtype"]))
    interpreter.invoke()
    return [np.asarray(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()]


@pytest.mark.parametrize("delegated", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_runs_as_officially(name: str, delegated: bool, numpy_delegate) -> None:
    content = CASES[name]()
    delegates = [numpy_delegate()] if delegated else None
    wanted = run(OfficialInterpreter(model_content=content, num_threads=1))
    found = run(litegpu.Interpreter(model_content=content, experimental_delegates=delegates, fallback="silent"))
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


#: Where the CPU's kernels overflow, what the numbers that the bytes stand for give; x is 70, 27, 2 and y is -6, 2, 51.
EXACT = {
    "x - x, as TensorFlow's converter scales it": np.array([[127, 127, -128]], np.int8),
    "comparison of bytes of a large scale": np.array([[70 * 1.5 < -6 * 300, 27 * 1.5 < 2 * 300, 2 * 1.5 < 51 * 300]]),
}


@pytest.mark.parametrize("name", CASES)
def test_runs_on_the_gpu(name: str) -> None:
    """Or beside it: what the CPU's kernels round otherwise is within a quantum."""
    from agreement import require_gpu

    require_gpu()
    content = CASES[name]()
    wanted = run(OfficialInterpreter(model_content=content, num_threads=1))
    delegate = litegpu.GpuDelegate(backend="webgpu")
    found = run(litegpu.Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent"))
    wanted = [EXACT[name]] if name in EXACT else wanted
    for got, want in zip(found, wanted, strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), atol=want.dtype.kind in "iu")


@pytest.mark.parametrize("indices, shrunk", [(1, 0), (2, 1)])
def test_sizes_of_slices_that_the_official_kernel_crashes_on(indices: int, shrunk: int) -> None:
    """With offset it goes by the sizes of all axes, and steps back by negative ones."""
    b = ModelBuilder()
    x = b.input("x", (3, 4))
    begin, size, step = ([value] * indices for value in (1, -1 if shrunk else 1, 1))
    operands = [x, *(b.constant(np.array(v, np.int32)) for v in (begin, size, step))]
    b.output(b.op("STRIDED_SLICE", operands, (1, 4), {"offset": True, "shrink_axis_mask": shrunk}))
    with pytest.raises(litegpu.ModelError, match="STRIDED_SLICE"):
        litegpu.Interpreter(model_content=b.build())
