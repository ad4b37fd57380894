"""The largest of windows of bytes, in CUDA C++, beside the definition in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from first_output import first_output

from litegpu.gpu.backends.cuda.kernels import pool
from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, DType, Expr, Graph, GraphBuilder, Pool2D, apply, whole

#: Of the stored number, from which an INT8 value's zero point is taken and to which it is added: all bytes are left.
QUANTA = apply("add", apply("min", apply("max", apply("sub", RESULT, whole(-5)), whole(-123)), whole(132)), whole(-5))
KERNEL = "largest_of_bytes"


def network(op: Pool2D, shape: tuple[int, ...], kind: DType, epilogue: Expr = RESULT) -> Graph:
    g = GraphBuilder()
    size = [(n + 2 * p - k) // s + 1 for n, k, s, p in zip(shape[1:3], op.window, op.stride, op.padding, strict=True)]
    x, y = g.value(shape, kind), g.value((shape[0], *size, shape[3]), kind)
    return g.graph([x], [g.node(op, [x], y, epilogue)])


def check(device, graph: Graph) -> None:
    given, made = graph.values[graph.inputs[0]], graph.values[graph.outputs[0]]
    dtype = np.uint8 if given.dtype is DType.UINT8 else np.int8
    limits = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(limits.min, limits.max + 1, given.shape).astype(dtype)
    x[:, : given.shape[1] // 2] = np.minimum(x[:, : given.shape[1] // 2], limits.min + 60)  # negative alone, of INT8
    program = build_program(graph, device.features, "cuda")
    assert [program.kernels[d.kernel].name for d in program.dispatches] == [KERNEL]
    got = first_output(device, program, [x], made.shape, dtype)
    np.testing.assert_array_equal(got, evaluate_graph(graph, [x])[0])


CASES: dict[str, tuple[Pool2D, tuple[int, ...], DType, Expr]] = {
    "ResNet": (Pool2D("max", (3, 3), (2, 2), (1, 1)), (2, 24, 22, 64), DType.INT8, QUANTA),
    "unsigned": (Pool2D("max", (3, 3), (2, 2), (1, 1)), (1, 13, 11, 24), DType.UINT8, RESULT),
    "halves": (Pool2D("max", (2, 2), (2, 2)), (1, 9, 10, 20), DType.INT8, RESULT),
    "overlapping": (Pool2D("max", (5, 5), (1, 1), (2, 2)), (1, 9, 7, 16), DType.INT8, RESULT),
    "far apart": (Pool2D("max", (2, 1), (3, 4)), (1, 12, 13, 8), DType.UINT8, RESULT),
    "outside": (Pool2D("max", (3, 3), (2, 2), (1, 1), outside=-7.0), (1, 9, 9, 16), DType.INT8, RESULT),
}


@pytest.mark.cuda
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("enough", [1, 1 << 20], ids=["long", "short"])
def test_cases(device, monkeypatch: pytest.MonkeyPatch, case: str, enough: int) -> None:
    """With as many channels and outputs for a thread as there may be, and as few."""
    monkeypatch.setattr(pool, "ENOUGH_THREADS", enough / 4)
    check(device, network(*CASES[case]))


@pytest.mark.cuda
@pytest.mark.parametrize("case", ["limited", "another type", "average", "large window", "beside the input"])
def test_others_have_the_kernel_of_the_language(device, case: str) -> None:
    small = (1, 8, 8, 16)
    graph = {
        "limited": network(Pool2D("max", (2, 2), (2, 2)), small, DType.INT8, apply("max", RESULT, whole(0))),
        "another type": network(Pool2D("max", (2, 2), (2, 2)), small, DType.FLOAT32),
        "average": network(Pool2D("average", (2, 2), (2, 2)), small, DType.INT8),
        "large window": network(Pool2D("max", (8, 8), (1, 1)), small, DType.INT8),
        "beside the input": network(Pool2D("max", (2, 2), (1, 1), (2, 2), outside=3.0), small, DType.INT8),
    }[case]
    assert KERNEL not in {k.name for k in build_program(graph, device.features, "cuda").kernels}
