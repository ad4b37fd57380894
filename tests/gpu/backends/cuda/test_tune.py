"""Kernels that are chosen by measuring: in the program, alike ones together, and what does not run left out."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from cuda_devices import GPUS
from first_output import first_output
from gpu.backends.cuda.kernels.test_convolution import expected, network

from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda import timing, tune
from litegpu.gpu.backends.cuda.tune import CudaTuner
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import Conv2D, DType, Graph, GraphBuilder
from litegpu.gpu.kernels.context import Launch, NativeKernel
from litegpu.gpu.program import Port


def launch(variant: str, *others: Launch, source: str = "") -> Launch:
    kernel = NativeKernel("kernel", source or variant, (1, 1, 1), (1, 1, 1), ())
    return Launch(kernel, {}, "label", variant, others=tuple(others))


PORTS = [Port("x", 0, (2, 3), dtype, 0, 24) for dtype in (DType.FLOAT32, DType.FLOAT16, DType.INT8, DType.INT32)]


class FakeProgram(list[str]):
    """The names of its kernels."""

    inputs = PORTS


@dataclass
class FakeSession:
    seconds: float
    open_now: list[str]
    closed: bool = False
    written: int = 0
    has_run: bool = False

    def write(self, index: int, array: np.ndarray) -> None:
        assert array.shape == (2, 3) and np.isfinite(array).all()
        self.written += 1

    def run(self) -> None:
        assert self.written == len(PORTS)
        self.has_run = True

    def time_graph(self, repeats: int = 1) -> float:
        assert self.has_run and not self.closed
        return self.seconds

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.open_now.pop()


@dataclass
class FakeDevice:
    """A program takes what these take, and less where quiet ones are side by side."""

    takes: dict[str, float]
    broken: frozenset[str] = frozenset()
    lost: bool = False
    loses: str = ""
    compiled: list[Sequence[str]] = field(default_factory=list)
    open_now: list[str] = field(default_factory=list)

    def session(self, program: Sequence[str]) -> FakeSession:
        if self.loses in program:
            self.lost = True
        if self.lost or self.broken & set(program):
            raise DeviceError("a kernel did not start")
        self.open_now.append("session")
        assert len(self.open_now) <= 2
        together = sum(-0.5 for pair in itertools.pairwise(program) if pair == ("quiet", "quiet"))
        return FakeSession(1e-5 + 1e-6 * (sum(self.takes[name] for name in program) + together), self.open_now)

    def images(self, program: Sequence[str]) -> None:
        self.compiled.append(program)
        if self.broken & set(program):
            raise DeviceError("does not compile")


def names(launches: Sequence[Launch]) -> FakeProgram:
    return FakeProgram(launch.variant for launch in launches)


def chosen(device: FakeDevice, launches: list[Launch], most: int = 8) -> list[str]:
    program_of: Callable[[Sequence[Launch]], Any] = names
    anything: Any = device
    found = names(CudaTuner(anything, most).chosen(launches, program_of))
    assert not device.open_now, "a session was left open"
    return found


def test_the_fastest_in_the_program_is_taken() -> None:
    device = FakeDevice({"a": 3, "b": 1, "c": 2, "only": 5})
    launches = [launch("a", launch("b"), launch("c")), launch("only"), launch("a", launch("c"))]
    assert chosen(device, launches) == ["b", "only", "c"]
    assert len(device.compiled) == 2 and device.compiled[0] == ["b", "only", "c"]  # many at a time, beforehand


def test_where_there_is_no_choice_nothing_is_opened() -> None:
    device = FakeDevice({}, broken=frozenset(["only"]))
    assert chosen(device, [launch("only"), launch("only")]) == ["only", "only"]


def test_the_first_stays_if_nothing_is_clearly_faster() -> None:
    device = FakeDevice({"a": 3, "b": 3 - 1e-4, "c": 4})
    assert chosen(device, [launch("a", launch("b"), launch("c"))]) == ["a"]


def test_neighbours_count() -> None:
    """Slower by itself, and faster beside one another: what is alike is chosen together."""
    device = FakeDevice({"loud": 1.0, "quiet": 1.2})
    assert chosen(device, [launch("loud", launch("quiet")) for _ in range(4)]) == ["quiet"] * 4
    assert chosen(device, [launch("loud", launch("quiet"))]) == ["loud"]


def test_what_does_not_run_is_left_out() -> None:
    device = FakeDevice({"a": 3, "b": 1, "c": 2}, broken=frozenset("b"))
    assert chosen(device, [launch("a", launch("b"), launch("c"))]) == ["c"]


def test_a_lost_device_is_told() -> None:
    device = FakeDevice({"a": 3, "b": 1}, loses="b")
    anything: Any = device
    with pytest.raises(DeviceError, match="did not start"):
        CudaTuner(anything, 8).chosen([launch("a", launch("b"))], names)  # type: ignore[arg-type]
    assert not device.open_now


def test_of_many_the_fastest_alone_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    takes = {"first": 9.0, **{f"k{i}": float(i) for i in range(20)}}
    device = FakeDevice({**takes, "k19": -5.0})  # in the program it would be the fastest, but not alone
    monkeypatch.setattr(CudaTuner, "times", lambda self, launches: [takes[one.variant] for one in launches])
    assert chosen(device, [launch("first", *(launch(f"k{i}") for i in range(20)))], most=64) == ["k0"]
    assert all("k8" not in program for program in device.compiled)


def test_what_is_no_program_is_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaTuner, "times", lambda self, launches: [len(one.variant) for one in launches])
    anything: Any = None
    launches = [launch("long name", launch("b"), launch("cc")), launch("only")]
    assert names(CudaTuner(anything, 8).chosen(launches, None)) == ["b", "only"]


class Noted:
    """Takes each launch's last candidate, of so many as there are."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.offered: list[list[str]] = []

    def chosen(self, launches: Sequence[Launch], program_of: Any) -> list[Launch]:
        self.offered += [[one.variant for one in (launch, *launch.others)] for launch in launches]
        found = [launch.others[-1] if launch.others else launch for launch in launches]
        assert len(program_of(found).dispatches) == len(launches)
        return found


def two_layers() -> tuple[Graph, np.ndarray]:
    graph, x = network((1, 6, 10, 64), (96, 1, 1, 64), Conv2D())
    builder = GraphBuilder(dict(graph.values), list(graph.nodes))
    w = builder.constant(np.random.default_rng(1).standard_normal((32, 3, 3, 96)).astype(np.float32) * 0.05)
    out = builder.node(Conv2D(padding=(1, 1)), [graph.outputs[0], w], builder.value((1, 6, 10, 32), DType.FLOAT32))
    return builder.graph(list(graph.inputs), [out]), x


@pytest.mark.parametrize("name", GPUS)
def test_what_is_offered(name: str) -> None:
    """The estimate's choice first, no candidate twice, no more than asked for; without a tuner that choice alone."""
    graph, _ = two_layers()
    noted = Noted(8)
    build_program(graph, GPUS[name].features, "cuda", half=True, tuner=noted)
    usual = Noted(1)
    build_program(graph, GPUS[name].features, "cuda", half=True, tuner=usual)
    assert [some[0] for some in noted.offered] == [one for (one,) in usual.offered]
    assert all(2 <= len(some) <= 8 and len(set(some)) == len(some) for some in noted.offered)


@pytest.mark.cuda
@pytest.mark.parametrize("most", (3, 12))
def test_on_the_device(device: Any, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Whatever is taken, results are right."""
    monkeypatch.setattr(tune, "_ROUNDS", 2)
    monkeypatch.setattr(tune, "_SECONDS", 0.0)
    monkeypatch.setattr(tune, "IN_PROGRAM", 4)
    monkeypatch.setattr(timing, "_LAUNCHES_TIMED", 2)
    monkeypatch.setattr(timing, "_ROUNDS_TIMED", 1)
    graph, x = two_layers()
    program = build_program(graph, device.features, "cuda", half=True, tuner=CudaTuner(device, most))
    got = first_output(device, program, [x], graph.values[graph.outputs[0]].shape)
    want = expected(graph, {graph.inputs[0]: x})
    assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want)
