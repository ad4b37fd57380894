"""Loops and branches that only the run decides, on every backend, beside the official runtime."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as Official
from control_models import BOOL, F32, I32, Shapes, around, below, branch, handle, loop, once, one_more, random, scalar

from litegpu import GpuDelegate, Interpreter
from litegpu.errors import DelegateError
from litegpu.gpu.delegate.kernel import GpuKernel
from litegpu.gpu.program import Binding, Dispatch, MemoryReport, Program, Region, RegionBlock, blocks
from litegpu.model.writer import ModelBuilder, SubgraphBuilder

Graph = SubgraphBuilder
FOUR: tuple[int, ...] = (1, 4)
BACKENDS = [
    "reference", "webgpu", pytest.param("cuda", marks=pytest.mark.cuda)
]  # fmt: skip


def opened(content: bytes, backend: str, **options: Any) -> Interpreter:
    if backend == "cuda":
        pytest.importorskip("cuda.bindings", reason="no litegpu[cuda]")
        from litegpu.gpu.backends.cuda.opening import available

        if available() is not None:
            pytest.skip(f"no CUDA device: {available()}")
    delegate = GpuDelegate(backend=backend, **options)
    return Interpreter(model_content=content, experimental_delegates=[delegate], fallback="strict")


def compared(content: bytes, backend: str, feeds: list[list[Any]]) -> None:
    mine, official = opened(content, backend), Official(model_content=content)
    for one in (mine, official):
        one.allocate_tensors()
    for feed in feeds:
        results: list[list[Any]] = []
        for one in (mine, official):
            for detail, value in zip(one.get_input_details(), feed, strict=True):
                one.set_tensor(detail["index"], np.asarray(value, detail["dtype"]))
            one.invoke()
            results.append([one.get_tensor(detail["index"]) for detail in one.get_output_details()])
        for found, wanted in zip(*results, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def counted() -> bytes:
    """From a number that is given up to 5: several results, one of them the state of another."""
    model = ModelBuilder()
    start, x = model.input("start", (), I32), model.input("x", FOUR)

    def body(graph: Graph, v: list[int]) -> list[int]:
        y = graph.op("TANH", [graph.op("ADD", [v[1], v[2]], FOUR)], FOUR)
        return [one_more(graph, v[0]), v[2], y, v[3]]

    state: Shapes = [((), I32), (FOUR, F32), (FOUR, F32), (FOUR, F32)]
    model.output(*loop(model, model, [start, x, model.op("ABS", [x], FOUR), x], state, below(5), body))
    return model.build()


def until(kind: str) -> bytes:
    """A state of a type decides: float32 that is halved, int32 that is counted, bool that is computed."""
    model = ModelBuilder()
    x = model.input("x", (), F32)
    y = model.input("y", FOUR)

    def condition(graph: Graph, v: list[int]) -> list[int]:
        if kind == "float":
            return [graph.op("GREATER", [v[0], scalar(graph, 0.5, np.float32)], (), type=BOOL)]
        if kind == "int":
            return [graph.op("LESS", [v[1], graph.op("CAST", [v[0]], (), type=I32)], (), type=BOOL)]
        return [v[2]]

    def body(graph: Graph, v: list[int]) -> list[int]:
        half = v[0] if kind == "int" else graph.op("MUL", [v[0], scalar(graph, 0.5, np.float32)], ())
        on = graph.op("GREATER", [half, scalar(graph, 1.0, np.float32)], (), type=BOOL)
        return [half, one_more(graph, v[1]), on, graph.op("MUL", [v[3], scalar(graph, 1.5, np.float32)], FOUR)]

    on = model.op("GREATER", [x, scalar(model, 0.0, np.float32)], (), type=BOOL)
    state: Shapes = [((), F32), ((), I32), ((), BOOL), (FOUR, F32)]
    model.output(*loop(model, model, [x, scalar(model, 0), on, y], state, condition, body))
    return model.build()


def nested() -> bytes:
    """A loop in a branch in a loop, each decided by what was computed."""
    model = ModelBuilder()
    n, x = model.input("n", (), I32), model.input("x", FOUR)

    def inner(graph: Graph, v: list[int]) -> list[int]:
        def body(g: Graph, w: list[int]) -> list[int]:
            return [one_more(g, w[0]), g.op("ADD", [w[1], scalar(g, 0.25, np.float32)], FOUR)]

        state: Shapes = [((), I32), (FOUR, F32)]
        return [loop(model, graph, [v[0], v[1]], state, below(4), body)[1]]

    def other(graph: Graph, v: list[int]) -> list[int]:
        return [graph.op("NEG", [v[1]], FOUR)]

    def body(graph: Graph, v: list[int]) -> list[int]:
        total = graph.op("SUM", [v[1], graph.constant(np.array([0, 1], np.int32))], (), type=F32)
        predicate = graph.op("LESS", [total, scalar(graph, 1.0, np.float32)], (), type=BOOL)
        state: Shapes = [((), I32), (FOUR, F32)]
        made = branch(model, graph, predicate, [v[0], v[1]], state, [(FOUR, F32)], inner, other)
        return [one_more(graph, v[0]), made[0]]

    model.output(*loop(model, model, [n, x], [((), I32), (FOUR, F32)], below(7), body))
    return model.build()


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_number_of_rounds(backend: str) -> None:
    """None at all as well, and after one with many."""
    feeds = [[start, random(*FOUR, seed=start + 3)] for start in (0, 4, 5, 100, -3)]
    compared(counted(), backend, feeds)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["float", "int", "bool"])
def test_a_state_of_each_type_decides(kind: str, backend: str) -> None:
    compared(until(kind), backend, [[x, random(*FOUR)] for x in (6.0, 0.25, -1.0, 3.0)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_loops_and_branches_within_each_other(backend: str) -> None:
    compared(nested(), backend, [[n, random(*FOUR, seed=n)] for n in (0, 2, 6, 7)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_between_layers(backend: str) -> None:
    compared(around("WHILE"), backend, [[random(1, 8, seed=seed) * 3] for seed in range(4)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_program_with_regions_from_the_cache(backend: str, tmp_path: Path) -> None:
    for _ in range(2):
        mine = opened(nested(), backend, serialization_dir=str(tmp_path), model_token="nested")
        mine.allocate_tensors()
        found = []
        for n in (7, 3):
            for detail, value in zip(mine.get_input_details(), (np.array(n, np.int32), random(*FOUR)), strict=True):
                mine.set_tensor(detail["index"], value)
            mine.invoke()
            found.append(mine.get_tensor(mine.get_output_details()[1]["index"]))
        assert np.array_equal(found[0], random(*FOUR)) and not np.array_equal(found[1], found[0])


def with_a_variable() -> bytes:
    """A loop whose end the run decides, and what it comes to is added to a variable."""
    model = ModelBuilder()
    n, x = model.input("n", (), I32), model.input("x", FOUR)
    once(model, model, {"total": np.full(FOUR, 0.5, np.float32)})
    variable = handle(model, "total")

    def body(graph: Graph, v: list[int]) -> list[int]:
        return [one_more(graph, v[0]), graph.op("ADD", [v[1], scalar(graph, 0.25, np.float32)], FOUR)]

    made = loop(model, model, [n, x], [((), I32), (FOUR, F32)], below(5), body)
    after = model.op("ADD", [model.op("READ_VARIABLE", [variable], FOUR, type=F32), made[1]], FOUR)
    model.node("ASSIGN_VARIABLE", [variable, after], [])
    model.output(model.op("TANH", [after], FOUR))
    return model.build()


@pytest.mark.parametrize("backend", BACKENDS)
def test_beside_a_variable_that_stays_on_the_device(backend: str) -> None:
    compared(with_a_variable(), backend, [[n, random(*FOUR, seed=n)] for n in (4, 0, 7, 2)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_variable_after_an_inference_that_fails(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what the inference before made of it, on the device as on the host."""
    mine = opened(with_a_variable(), backend)
    mine.allocate_tensors()

    def total(n: int) -> np.ndarray:
        for detail, value in zip(mine.get_input_details(), (np.array(n, np.int32), random(*FOUR)), strict=True):
            mine.set_tensor(detail["index"], value)
        mine.invoke()
        return np.arctanh(mine.get_tensor(mine.get_output_details()[0]["index"]))

    first = total(3)
    with monkeypatch.context() as patch:
        patch.setattr(GpuKernel, "invoke", lambda *_: 1 / 0)
        with pytest.raises(DelegateError, match="ZeroDivisionError"):
            total(3)
    np.testing.assert_allclose(total(3) - first, first - 0.5, rtol=1e-3, atol=1e-4)
    with monkeypatch.context() as patch:
        patch.setattr(GpuKernel, "invoke", lambda *_: 1 / 0)
        with pytest.raises(DelegateError, match="ZeroDivisionError"):
            total(3)
    mine.close()


def test_interpreters_in_threads() -> None:
    content, wrong = nested(), []
    official = Official(model_content=content)
    official.allocate_tensors()

    def work(seed: int) -> None:
        mine = opened(content, "webgpu")
        mine.allocate_tensors()
        for n in (3, 6):
            for detail, value in zip(mine.get_input_details(), (np.array(n, np.int32), random(*FOUR, seed=seed)),
                                     strict=True):  # fmt: skip
                mine.set_tensor(detail["index"], value)
            mine.invoke()
            found = mine.get_tensor(mine.get_output_details()[0]["index"])
            if found != 7:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_order_of_regions() -> None:
    """Empty ones, and ones that begin together, too."""
    one = Dispatch(0, (1, 1, 1), (Binding("arena", 0, 16),), "", ())
    regions = (Region("while", 1, 5, 0), Region("if", 1, 3, 4), Region("if", 3, 3, 4), Region("while", 4, 5, 8))
    program = Program((), (one,) * 6, np.zeros(0, np.uint8), 64, (), (), MemoryReport(0, 0, 0), regions=regions)
    loops = RegionBlock(
        regions[0], (RegionBlock(regions[1], (1, 2)), RegionBlock(regions[2], ()), 3, RegionBlock(regions[3], (4,)))
    )
    assert blocks(program) == (0, loops, 5)


@pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("g++") is None, reason="needs g++ on Linux")
@pytest.mark.parametrize("blocking", ["0", "1"])
def test_cuda_on_the_emulated_driver(blocking: str) -> None:
    """As conditional nodes of a graph, and kernel by kernel."""
    if os.environ.get("LITEGPU_CUDA_EMULATOR"):
        return  # this is it
    pytest.importorskip("cuda.bindings", reason="no litegpu[cuda]")
    here = Path(__file__).resolve()
    environment = {**os.environ, "LITEGPU_CUDA_EMULATOR": "1", "CUDA_LAUNCH_BLOCKING": blocking}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "cuda", str(here)]
    done = subprocess.run(command, env=environment, cwd=here.parents[3], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1], done.stdout[-2000:]


def test_what_sets_conditions_compiles() -> None:
    """By NVRTC for the oldest and the newest device; the emulator knows nothing of that."""
    pytest.importorskip("cuda.bindings", reason="no litegpu[cuda]")
    from litegpu.gpu.backends.cuda.compile import compile_kernels, supported_capabilities
    from litegpu.gpu.backends.cuda.conditional import SET_CONDITION

    known = supported_capabilities()
    for capability in (known[0], 90, known[-1]):
        (image,) = compile_kernels([SET_CONDITION], capability)
        assert b"cudaGraphSetConditional" in image
