"""CAST to FLOAT16, to the bit: ties, the smallest numbers, the largest, and what is none; and what of BFLOAT16 there is
to compare with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import lower_partition
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
