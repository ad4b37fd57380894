"""CAST to FLOAT16, to the bit: ties, the smallest numbers, the largest, and what is none; and what of BFLOAT16 there is
to compare with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import Interpreter as Official

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model.reader import read_model
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

_TIES = [1 + n * 2.0**-11 for n in range(8)] + [n * 2.0**-25 for n in range(8)] + [65504, 65519, 65520, 1e30, np.inf]
NUMBERS = np.array([*_TIES, *(-n for n in _TIES), np.nan, 1e-40], np.float32)


def rounded() -> bytes:
    """There and back, so that what is between is no output."""
    b, shape = ModelBuilder(), NUMBERS.shape
    half = b.op("CAST", [b.input("x", shape)], shape, dict(in_data_type=0, out_data_type=1), type=TensorType.FLOAT16)
    b.output(b.op("CAST", [half], shape, dict(in_data_type=1, out_data_type=0)))
    return b.build()


def test_in_numpy() -> None:
    graph = read_model(rounded()).main
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    (got,) = evaluate_graph(lowered.graph, [NUMBERS])
    np.testing.assert_array_equal(got.reshape(-1), run(official(rounded()), [NUMBERS])[0])


def test_on_the_gpu() -> None:
    require_gpu()
    interpreter = on_gpu(rounded(), max_delegated_partitions=0)
    assert interpreter.delegation_report().fully_delegated
    np.testing.assert_array_equal(run(interpreter, [NUMBERS])[0], run(official(rounded()), [NUMBERS])[0])


def brief(name: str) -> bytes:
    """An operator of two BFLOAT16 of [1,4,4,4], or of one and BFLOAT16 weights."""
    b, shape = ModelBuilder(), (1, 4, 4, 4)
    x = b.op("CAST", [b.input("x", shape)], shape, dict(in_data_type=0, out_data_type=18), type=TensorType.BFLOAT16)
    if name == "CONV_2D":
        weights = b.constant(np.ones((4, 1, 1, 4), np.float32), type=TensorType.BFLOAT16)
        inputs, options = [x, weights, None], dict(stride_h=1, stride_w=1, padding="SAME")
    elif name == "FULLY_CONNECTED":
        weights = b.constant(np.ones((4, 4), np.float32), type=TensorType.BFLOAT16)
        inputs, options = [x, weights, None], dict(keep_num_dims=True)
    else:
        inputs, options = [x, x], {}
    y = b.op(name, inputs, shape, options, type=TensorType.BFLOAT16)
    b.output(b.op("CAST", [y], shape, dict(in_data_type=18, out_data_type=0)))
    return b.build()


@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL", "DIV", "BATCH_MATMUL", "FULLY_CONNECTED", "CONV_2D"])
def test_the_official_runtime_computes_little_with_bfloat16(name: str) -> None:
    """The reason of docs/ops.md why models that do run in one piece on the CPU."""
    with pytest.raises((RuntimeError, ValueError)):
        interpreter = official(brief(name))
        run(interpreter, [np.ones((1, 4, 4, 4), np.float32)])


HALF = TensorType.FLOAT16
UNARY = (
    *(
        "ABS",
        "CEIL",
        "COS",
        "ELU",
        "EXP",
        "FLOOR",
        "GELU",
        "HARD_SWISH",
        "LEAKY_RELU",
        "LOG",
        "LOGISTIC",
        "NEG",
        "RELU",
    ),
    *("RELU6", "RELU_N1_TO_1", "ROUND", "RSQRT", "SIN", "SQRT", "SQUARE", "TANH"),
)
BINARY = ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "BATCH_MATMUL")


def wholly(content: bytes, *inputs: np.ndarray, far: float = 4e-3) -> None:
    """As XNNPACK computes it, in fewer bits: nothing else of the official runtime knows most of these."""
    require_gpu()
    with on_gpu(content, max_delegated_partitions=0) as interpreter:
        assert interpreter.delegation_report().fully_delegated, interpreter.delegation_report().summary()
        found = run(interpreter, inputs)
    reference = Official(model_content=content)
    reference.allocate_tensors()
    wanted = run(reference, inputs)
    for a, w in zip(found, wanted, strict=True):
        assert a.dtype == w.dtype
        np.testing.assert_allclose(a.astype(np.float32), w.astype(np.float32), rtol=far, atol=far)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_halves(name: str) -> None:
    b, shape = ModelBuilder(), (3, 40)
    options = dict(alpha=0.25) if name == "LEAKY_RELU" else {}
    b.output(b.op(name, [b.input("x", shape, HALF)], shape, options, type=HALF))
    numbers = np.random.default_rng(0).uniform(-3, 3, shape).astype(np.float16)
    wholly(b.build(), np.abs(numbers) + np.float16(0.5) if name in ("LOG", "SQRT", "RSQRT") else numbers)


@pytest.mark.parametrize("name", BINARY)
def test_two_operands_of_halves(name: str) -> None:
    b, shape = ModelBuilder(), (6, 6)
    b.output(b.op(name, [b.input("x", shape, HALF), b.input("y", shape, HALF)], shape, type=HALF))
    x, y = np.random.default_rng(0).uniform(0.5, 2, (2, *shape)).astype(np.float16)
    wholly(b.build(), x, y, far=1e-2)


@pytest.mark.parametrize("bias", [np.float16, np.float32])
def test_a_network_of_halves(bias: type) -> None:
    """Activations, weights and all."""
    rng, b = np.random.default_rng(0), ModelBuilder()

    def weights(*shape: int, kind: type = np.float16) -> int:
        return b.constant((rng.standard_normal(shape) / 4).astype(kind))

    x = b.input("x", (1, 8, 8, 4), HALF)
    windows = dict(padding="SAME", stride_h=2, stride_w=2)
    h = b.op("CONV_2D", [x, weights(8, 3, 3, 4), weights(8, kind=bias)], (1, 4, 4, 8), windows, type=HALF)
    h = b.op("HARD_SWISH", [h], (1, 4, 4, 8), type=HALF)
    once = dict(padding="SAME", stride_h=1, stride_w=1, depth_multiplier=1)
    h = b.op("DEPTHWISE_CONV_2D", [h, weights(1, 3, 3, 8), weights(8, kind=bias)], (1, 4, 4, 8), once, type=HALF)
    h = b.op("MEAN", [h, b.constant(np.array([1, 2], np.int32))], (1, 8), type=HALF)
    h = b.op("FULLY_CONNECTED", [h, weights(5, 8), weights(5, kind=bias)], (1, 5), type=HALF)
    b.output(b.op("SOFTMAX", [h], (1, 5), dict(beta=1.0), type=HALF))
    wholly(b.build(), rng.standard_normal((1, 8, 8, 4)).astype(np.float16), far=2e-3)


def test_the_bits_of_halves_are_not_those_of_words() -> None:
    b, shape = ModelBuilder(), (4,)
    b.output(b.op("BITCAST", [b.input("x", shape, HALF)], shape, type=TensorType.INT16))
    graph = b.graph()
    assert check_operator(graph, graph.operators[0])


@pytest.mark.parametrize("imported", [False, True])
def test_the_official_interpreter_knows_bfloat16_by_ml_dtypes_alone(tmp_path: Path, imported: bool) -> None:
    """In a process of its own, as other tests may have imported it."""
    b = ModelBuilder()
    x = b.input("x", (4,))
    b.output(b.op("CAST", [x], (4,), dict(in_data_type=0, out_data_type=18), type=TensorType.BFLOAT16))
    path = tmp_path / "model.tflite"
    path.write_bytes(b.build())
    if imported:
        pytest.importorskip("ml_dtypes")
    lines = (
        "import ml_dtypes" if imported else "",
        "from ai_edge_litert.interpreter import Interpreter",
        f"interpreter = Interpreter(model_path={str(path)!r})",
        "interpreter.allocate_tensors()",
        "print(interpreter.get_output_details()[0]['dtype'])",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    assert ("bfloat16" in done.stdout) == imported
    assert imported or "data-type" in done.stderr


def test_models_that_compute_bfloat16_run_on_the_cpu() -> None:
    interpreter = on_gpu(brief("MAXIMUM"), max_delegated_partitions=0)
    report = interpreter.delegation_report()
    assert report.delegated == 0 and "BFLOAT16" in str(report.nodes[0].reason)
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 4, 4, 4)
    np.testing.assert_array_equal(run(interpreter, [x])[0], run(official(brief("MAXIMUM")), [x])[0])


def test_constants_of_bfloat16() -> None:
    """So many that they are not folded beforehand."""
    require_gpu()
    b, shape = ModelBuilder(), (260, 256)
    numbers = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    numbers.reshape(-1)[:4] = [3e38, -3e38, 1.00390625, -0.0]
    weights = b.constant(numbers, type=TensorType.BFLOAT16)
    wide = b.op("CAST", [weights], shape, dict(in_data_type=18, out_data_type=0))
    b.output(b.op("MUL", [b.input("x", shape), wide], shape))
    content = b.build()
    x = np.ones(shape, np.float32)
    interpreter = on_gpu(content, max_delegated_partitions=0)
    assert interpreter.delegation_report().fully_delegated
    np.testing.assert_array_equal(run(interpreter, [x])[0], run(official(content), [x])[0])
