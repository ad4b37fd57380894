"""Programs as data: where constants, values and variables lie, and what binds them."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.gpu import build
from litegpu.gpu.backends.check import check_program
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import RESULT, Arg, Attention, Conv2D, Copy, DType, Elementwise, Graph, GraphBuilder, apply
from litegpu.gpu.kernels.builders import build as build_kernels
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import Binding, Program

FEATURES = Features(float16=True)
SHAPE = (1, 6, 6, 8)


def chain(length: int, early: bool = False, seed: int = 0) -> Graph:
    """Convolutions one after the other; `early`: what the first gives is an output as well."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder()
    x = y = b.value(SHAPE, DType.FLOAT32, name="x")
    made = []
    for _ in range(length):
        weights = b.constant(rng.standard_normal((8, 3, 3, 8)))
        y = b.node(Conv2D(padding=(1, 1)), [y, weights], b.value(SHAPE, DType.FLOAT32))
        made.append(y)
    return b.graph([x], [made[0], y] if early else [y])


def arena(program: Program) -> list[list[Binding]]:
    """The bindings of the arena, by dispatch."""
    return [[b for b in d.bindings if b.space == "arena"] for d in program.dispatches]


def overlap(a: Binding, start: int, size: int) -> bool:
    return a.offset < start + size and start < a.offset + a.size


@pytest.mark.parametrize("alignment", [16, 256, 1024])
def test_everything_is_aligned_and_within_its_memory(alignment: int) -> None:
    program = build_program(chain(4, early=True), Features(storage_alignment=alignment))
    sizes = {"arena": program.arena_size, "constants": program.constants.size}
    for binding in (b for d in program.dispatches for b in d.bindings):
        assert binding.offset % max(256, alignment) == 0 and binding.size % 16 == 0
        assert binding.size > 0 and binding.offset + binding.size <= sizes[binding.space]
    constants = {(b.offset, b.size) for d in program.dispatches for b in d.bindings if b.space == "constants"}
    assert len(constants) == 4
    for (one, size), (other, _) in zip(sorted(constants), sorted(constants)[1:], strict=False):
        assert one + size <= other


def test_one_text_for_constants_and_for_what_is_computed() -> None:
    """Which are bound in different ways: two attentions alike, the queries of one of which the network has learnt."""
    b = GraphBuilder()
    shape = (1, 2, 33, 16)
    x, keys = (b.value(shape, DType.FLOAT32, name=name) for name in ("x", "keys"))
    learnt = b.constant(np.random.default_rng(0).standard_normal(shape))
    found = [b.node(Attention(0.25, 1.0), [q, keys, keys], b.value(shape, DType.FLOAT32)) for q in (learnt, x)]
    features = Features(float16=True, compute_units=132, native="cuda", capability=90, max_buffers=64, max_threads=1024)
    program = build_program(b.graph([x, keys], found), features, "cuda")
    check_program(program, features, "a device")
    one, other = (program.kernels[d.kernel] for d in program.dispatches)
    assert one.source == other.source and one.access != other.access, "else this tests nothing"


def test_constants_are_what_the_kernels_were_given() -> None:
    """Equal ones once, others apart, each where its binding says."""
    b = GraphBuilder()
    x = b.value((1, 1, 1, 5), DType.FLOAT32)
    rows = [np.arange(5) + 1.0, np.arange(5) + 1.0, -np.arange(5) - 1.0]
    outputs = []
    for row in rows:
        y = b.value((1, 1, 1, 5), DType.FLOAT32)
        outputs.append(
            b.node(Elementwise(), [], y, apply("add", Arg(0), Arg(1)), [x, b.constant(row.reshape(1, 1, 1, 5))])
        )
    program = build_program(b.graph([x], outputs), Features())
    places = [next(b for b in d.bindings if b.space == "constants") for d in program.dispatches]
    assert places[0] == places[1] != places[2]
    for place, row in zip(places, rows, strict=True):
        stored = program.constants[place.offset : place.offset + place.size].view(np.float32)
        assert stored[:5].tolist() == row.tolist() and not stored[5:].any()


def test_a_packed_array_s_binding_covers_its_last_group() -> None:
    """A kernel may load four lanes where the last of them are past the end."""
    b = GraphBuilder()
    x, y = (b.value((1, 1, 3, 3), DType.FLOAT32) for _ in range(2))
    b.node(Elementwise(), [], y, apply("neg", Arg(0)), [x])
    program = build_program(b.graph([x], [y]), Features())
    assert [b.size for b in arena(program)[0]] == [48, 48] and [p.nbytes for p in program.inputs] == [36]


def test_an_output_keeps_its_memory_to_the_end() -> None:
    program = build_program(chain(8, early=True), Features())
    port = program.outputs[0]
    for bindings in arena(program)[2:]:  # the second still reads it
        assert not any(overlap(b, port.offset, port.nbytes) for b in bindings)
    assert program.memory.arena < program.memory.unshared  # the others do share


def test_an_input_gives_its_memory_away_once_it_is_read() -> None:
    """It is uploaded again for every inference."""
    program = build_program(chain(8), Features())
    port = program.inputs[0]
    assert any(overlap(b, port.offset, port.nbytes) for bindings in arena(program)[1:] for b in bindings)


def test_readers_of_inputs() -> None:
    b = GraphBuilder()
    x, y, out, other = (b.value(SHAPE, DType.FLOAT32) for _ in range(4))
    b.node(Elementwise(), [], out, apply("sub", Arg(0), Arg(1)), [x, y])
    weights = b.constant(np.random.default_rng(0).standard_normal((8, 3, 3, 8)))
    b.node(Conv2D(padding=(1, 1)), [x, weights], other)
    program = build_program(b.graph([x, y], [out, other]), Features())
    for port in program.inputs:
        assert port.uses
        for dispatch, argument in port.uses:
            bound = program.dispatches[dispatch].bindings[argument]
            assert (bound.space, bound.offset) == ("arena", port.offset)
    assert {i for i, _ in program.inputs[0].uses or ()} == {0, 1}
    assert {i for i, _ in program.inputs[1].uses or ()} == {0}


def test_writers_of_outputs() -> None:
    """Of one that is an input as well, there is nothing but a copy."""
    b = GraphBuilder()
    x, out, last = (b.value(SHAPE, DType.FLOAT32) for _ in range(3))
    b.node(Elementwise(), [], out, apply("neg", Arg(0)), [x])
    b.node(Conv2D(padding=(1, 1)), [out, b.constant(np.ones((8, 3, 3, 8), np.float32))], last)
    program = build_program(b.graph([x], [out, last]), Features())
    found = [{i for i, _ in port.uses or ()} for port in program.outputs]
    assert found == [{0, 1}, {1}]
    for port in program.outputs:
        for dispatch, argument in port.uses or ():
            bound = program.dispatches[dispatch].bindings[argument]
            assert (bound.space, bound.offset) == ("arena", port.offset)


@pytest.mark.parametrize(("half", "added"), [(True, False), (True, True), (False, False)])
def test_inputs_that_all_readers_round(half: bool, added: bool) -> None:
    b = GraphBuilder()
    x, other = b.value((1, 32, 32, 3), DType.FLOAT32), b.value((1, 32, 32, 3), DType.FLOAT32)
    weights = b.constant(np.random.default_rng(0).standard_normal((8, 3, 3, 3)))
    outputs = [b.node(Conv2D(padding=(1, 1)), [x, weights], b.value((1, 32, 32, 8), DType.FLOAT32))]
    if added:
        outputs.append(b.node(Elementwise(), [], other, apply("add", Arg(0), 1.0), [x]))
    features = Features(float16=True, compute_units=16, native="cuda", capability=90)
    program = build_program(b.graph([x], outputs), features, "cuda", half=half)
    assert program.inputs[0].rounded == (half and not added)
    assert not any(port.rounded for port in program.outputs)


def variables(updates: int = 2) -> Graph:
    """state' = state + x, and out = state * 2, so that the old state must be read before the new one is written."""
    b = GraphBuilder()
    x, out = (b.value(SHAPE, DType.FLOAT32) for _ in range(2))
    states = [b.value(SHAPE, DType.FLOAT32) for _ in range(updates)]
    fresh = []
    for state in states:
        fresh.append(b.node(Elementwise(), [], b.value(SHAPE, DType.FLOAT32), apply("add", Arg(0), Arg(1)), [state, x]))
    b.node(Elementwise(), [], out, apply("mul", Arg(0), 2.0), [states[0]])
    return b.graph([x, *states], [out, *fresh])


def test_variables_are_written_last_and_keep_their_memory() -> None:
    program = build_program(variables(), Features(), variables=2)
    assert len(program.inputs) == 1 and len(program.outputs) == 1 and len(program.variables) == 2
    for port in program.variables:
        touching = [i for i, bs in enumerate(arena(program)) if any(overlap(b, port.offset, port.nbytes) for b in bs)]
        bindings = [b for bs in arena(program) for b in bs if overlap(b, port.offset, port.nbytes)]
        assert {b.offset for b in bindings} == {port.offset}  # nothing else is put there
        assert max(touching) >= len(program.dispatches) - 2  # the copies that end the inference
    first = program.outputs[0]
    writes = [i for i, bs in enumerate(arena(program)) if any(overlap(b, first.offset, first.nbytes) for b in bs)]
    assert max(writes) < len(program.dispatches) - 1


def test_what_must_stay_exact_has_kernels_for_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three convolutions in float16 the middle one reads a value that is kept in float32."""
    halves: list[bool] = []
    given = build_kernels

    def noted(context):
        halves.append(context.half)
        return given(context)

    monkeypatch.setattr(build, "build_kernels", noted)
    graph = chain(3)
    kept = graph.nodes[0].output
    monkeypatch.setattr(build, "values_in_float32", lambda graph, ranges: {kept: "a test says so"})
    program = build_program(graph, FEATURES, half=True, auto=True)
    assert halves == [True, False, True] and [reason for _, reason in program.in_float32] == ["a test says so"]
    halves.clear()
    build_program(graph, FEATURES, half=True)
    assert halves == [True, True, True]


def test_equal_kernels_are_kept_once() -> None:
    program = build_program(chain(5), Features())
    assert len(program.kernels) < len(program.dispatches) == 5


def test_a_copy_into_a_variable_needs_no_other() -> None:
    """The new state is a copy of what was computed: that copy itself writes the variable."""
    b = GraphBuilder()
    x, out, fresh = (b.value(SHAPE, DType.FLOAT32) for _ in range(3))
    state = b.value(SHAPE, DType.FLOAT32)
    b.node(Elementwise(), [], out, apply("add", Arg(0), Arg(1)), [state, x])
    b.node(Copy(()), [out], fresh, RESULT)
    program = build_program(b.graph([x, state], [out, fresh]), Features(), variables=1)
    assert len(program.dispatches) == 2
