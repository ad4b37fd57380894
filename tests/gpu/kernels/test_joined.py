"""In the body of a loop small kernels that do not wait for each other are one launch; others keep their order."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu.backends import registry
from litegpu.gpu.build import Frame, build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    Copy,
    DType,
    Elementwise,
    Gather,
    Graph,
    GraphBuilder,
    Resize2D,
    Slice,
    apply,
)
from litegpu.gpu.kernels.joined import MOST_PARTS
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.movement import join_copies
from litegpu.gpu.passes.parting import read_parts
from litegpu.gpu.passes.recomputing import recompute
from litegpu.gpu.program import Program

ROW = (1, 1, 1, 24)


class Body(GraphBuilder):
    def real(self, shape: tuple[int, ...] = ROW) -> int:
        return self.value(shape, DType.FLOAT32)

    def apply(self, fn: str, *operands: int) -> int:
        shape = np.broadcast_shapes(*(self.values[v].shape for v in operands))
        expression = apply(fn, *(Arg(i) for i in range(len(operands))))
        return self.node(Elementwise(), [], self.real(shape), expression, operands)


def framed(graph: Graph, features: Features) -> Program:
    """Ports one behind the other, in a frame."""
    size = 1 << 20
    inputs = tuple(size * i for i in range(len(graph.inputs)))
    outputs = tuple(size * (len(inputs) + i) for i in range(len(graph.outputs)))
    frame = Frame(size * (len(inputs) + len(outputs)), inputs, outputs)
    return build_program(graph, features, registry.open_device("reference").target, frame=frame)


def results(program: Program, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """On the reference device, which says where two workgroups of a launch are in each other's way."""
    session = registry.open_device("reference").session(program)
    try:
        for i, array in enumerate(arrays):
            session.write(i, array)
        session.run()
        found = [np.zeros(port.shape, np.float32) for port in program.outputs]
        for i, out in enumerate(found):
            session.read(i, out)
        return found
    finally:
        session.close()


def checked(graph: Graph, labels: list[str], features: Features | None = None) -> None:
    rng = np.random.default_rng(3)
    values = [graph.values[v] for v in graph.inputs]
    given = [
        rng.standard_normal(v.shape).astype(np.float32) if v.dtype is DType.FLOAT32 else np.full(v.shape, 2, np.int32)
        for v in values
    ]
    program = framed(graph, features or Features())
    assert [d.label for d in program.dispatches] == labels
    wanted = evaluate_graph(graph, given)
    for mine, other in zip(results(program, given), wanted, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5)


def test_what_does_not_wait_is_one_launch() -> None:
    """A gather and a copy into one concatenation, and a count; what reads the concatenation comes afterwards."""
    b = Body()
    table, place, state, count = (
        b.real((1, 1, 6, 8)),
        b.value((1, 1, 1, 1), DType.INT32),
        b.real(),
        b.real((1, 1, 1, 1)),
    )
    row = b.node(Gather(1, 1, 6, 8, 1), [table, place], b.real((1, 1, 1, 8)))
    joined = b.node(Concat(3), [row, state], b.real((1, 1, 1, 32)))
    rows = b.node(
        Gather(1, 1, 32, 1, 4), [joined, b.constant(np.array([[[[1, 9, 30, 31]]]], np.int32))], b.real((1, 1, 1, 4))
    )
    more = b.apply("add", count, count)
    checked(b.graph([table, place, state, count], [rows, more]), ["gather+copy+elementwise", "gather"])


def test_parts_that_share_a_quad_are_not_written_at_once() -> None:
    b = Body()
    table, place, state = b.real((1, 1, 6, 7)), b.value((1, 1, 1, 1), DType.INT32), b.real()
    row = b.node(Gather(1, 1, 6, 7, 1), [table, place], b.real((1, 1, 1, 7)))
    joined = b.node(Concat(3), [row, state], b.real((1, 1, 1, 31)))
    rows = b.node(
        Gather(1, 1, 31, 1, 4), [joined, b.constant(np.array([[[[1, 6, 7, 30]]]], np.int32))], b.real((1, 1, 1, 4))
    )
    checked(b.graph([table, place, state], [rows]), ["gather", "copy", "gather"])


@pytest.mark.parametrize("kinds", [("nearest", "nearest"), ("nearest", "bilinear"), ("bilinear", "bilinear")])
@pytest.mark.parametrize("sizes", [(7, 9), (7, 7)])
def test_each_resize_has_its_own_table(kinds: tuple[str, str], sizes: tuple[int, int]) -> None:
    """They are looked up by a name that is the same in each."""
    b = Body()
    x = b.real((1, 4, 5, 3))
    outputs = [b.node(Resize2D(kind), [x], b.real((1, n, n + 1, 3))) for kind, n in zip(kinds, sizes, strict=True)]
    checked(b.graph([x], outputs), ["+".join(dict.fromkeys(f"resize_{kind}" for kind in kinds))])


@pytest.mark.parametrize("buffers", [8, 4])
def test_a_launch_has_so_many_parts_and_buffers_at_most(buffers: int) -> None:
    b = Body()
    inputs = [b.real((1, 1, 1, 4 * (i + 1))) for i in range(MOST_PARTS + 1)]
    outputs = [b.apply("neg", x) for x in inputs]
    most = min(MOST_PARTS, buffers // 2)
    number = -(-len(inputs) // most)
    checked(b.graph(inputs, outputs), ["elementwise"] * number, Features(max_buffers=buffers))


def test_large_ones_stay_by_themselves() -> None:
    b = Body()
    inputs = [b.real((1, 64, 64, 16)) for _ in range(2)]
    checked(b.graph(inputs, [b.apply("neg", x) for x in inputs]), ["elementwise"] * 2)


def test_nobody_waits_for_what_is_computed_again() -> None:
    """The output of one function of a state is another output's operand."""
    b = Body()
    x, y = b.real(), b.real()
    state = b.apply("add", b.apply("mul", x, y), x)
    out = b.apply("mul", y, b.apply("tanh", state))
    graph = b.graph([x, y], [state, out])
    checked(graph, ["elementwise"])
    plain = b.graph([x, y], [state, out])
    again = recompute(plain, 8)
    assert {n.output for n in again.nodes} == {n.output for n in plain.nodes}
    assert recompute(plain, 2).nodes == plain.nodes  # no room for a further operand


@pytest.mark.parametrize("first", [0, 3, 4, 6])
def test_slices_of_one_part_of_a_concatenation(first: int) -> None:
    """Of two parts of 4 elements; what begins at 3 is in both."""
    b = Body()
    x, y = b.real((1, 1, 1, 4)), b.real((1, 1, 1, 4))
    joined = b.node(Concat(3), [x, y], b.real((1, 1, 1, 8)))
    size = 2
    part = b.node(Copy((Slice((0, 0, 0, first), (1, 1, 1, 1), (1, 1, 1, size)),)), [joined], b.real((1, 1, 1, size)))
    graph = b.graph([x, y], [b.apply("neg", part)])
    after = read_parts(join_copies(graph))
    within = first != 3
    assert any(isinstance(n.op, Concat) for n in after.nodes) == (not within)
    given = [np.arange(i, i + 4, dtype=np.float32).reshape(1, 1, 1, 4) for i in (0, 4)]
    (found,) = evaluate_graph(after, given)
    np.testing.assert_array_equal(found.reshape(-1), -np.arange(first, first + size))
    assert all(n.epilogue == RESULT for n in after.nodes if isinstance(n.op, Copy))
