"""Large outputs are looked at where they are, and whatever is not finite is found."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from interrupts import Interruptions

import litegpu
from litegpu.gpu.backends.webgpu.device import WebGpuDevice, WebGpuSession
from litegpu.gpu.backends.webgpu.look import looked_at
from litegpu.gpu.build import build_program
from litegpu.gpu.delegate.second_attempt import all_finite
from litegpu.gpu.graph import Arg, DType, Elementwise, GraphBuilder, apply
from litegpu.gpu.program import Program
from litegpu.model.builder import ModelBuilder

LARGE, SMALL = (1, 257, 263, 1), (1, 3, 5, 1)
BAD = [np.nan, np.inf, -np.inf]


def negations(device: Any, *shapes: tuple[int, ...], dtype: DType = DType.FLOAT32) -> Program:
    b = GraphBuilder()
    xs, ys = ([b.value(shape, dtype) for shape in shapes] for _ in range(2))
    for x, y in zip(xs, ys, strict=True):
        b.node(Elementwise(), [], y, apply("neg", Arg(0)), [x])
    return build_program(b.graph(xs, ys), device.features, device.target)


def given(shape: tuple[int, ...], at: int | None = None, value: float = 0.0) -> np.ndarray:
    """Of the largest floats there are, but for one element."""
    array = np.full(shape, np.finfo(np.float32).max, np.float32)
    if at is not None:
        array.reshape(-1)[at] = value
    return array


class Looking:
    """Runs a session, and says which outputs the host had to look at."""

    def __init__(self, session: WebGpuSession) -> None:
        self.session = session
        self.on_host: list[int] = []  # sizes

    def finite(self) -> bool:
        self.on_host = []

        def look(arrays: list[np.ndarray]) -> bool:
            self.on_host += [array.size for array in arrays]
            return all_finite(arrays)

        return self.session.finite(look)

    def after(self, *arrays: np.ndarray) -> bool:
        for i, array in enumerate(arrays):
            self.session.write(i, array)
        self.session.run()
        return self.finite()


@pytest.fixture(params=[False, True], ids=["encoded ahead", "validation"])
def looking(device: WebGpuDevice, request: pytest.FixtureRequest) -> Iterator[Looking]:
    session = device.session(negations(device, LARGE, SMALL, LARGE), validation=request.param)
    yield Looking(session)
    session.close()


def test_every_place_and_kind(looking: Looking) -> None:
    looking.session.watch(True)
    size = int(np.prod(LARGE))
    assert looking.after(given(LARGE), given(SMALL), given(LARGE)) and looking.on_host == [15]
    places = [0, 1, 255, 256, size // 2, size - 2, size - 1]
    for i, place in enumerate(places):
        bad = BAD[i % 3]
        which = 2 * (i % 2)
        arrays = [given(LARGE), given(SMALL), given(LARGE)]
        arrays[which] = given(LARGE, place, bad)
        assert not looking.after(*arrays)
        assert not looking.finite()  # as often as it is asked
        assert looking.after(given(LARGE), given(SMALL), given(LARGE)) and looking.on_host == [15]
    assert not looking.after(given(LARGE), given(SMALL, 14, np.nan), given(LARGE))


def test_what_nobody_asked_about_says_nothing_of_what_follows(looking: Looking) -> None:
    looking.session.watch(True)
    for i in range(2):
        looking.session.write(i, given((LARGE, SMALL)[i]))
    looking.session.write(2, given(LARGE, 77, np.inf))
    looking.session.run()
    looking.session.write(2, given(LARGE))
    looking.session.run()
    assert looking.finite()
    assert looking.after() and looking.on_host == [15]


def test_watching_begins_and_ends(looking: Looking) -> None:
    """Between any two inferences."""
    bad = given(LARGE, 5, np.nan), given(SMALL), given(LARGE)
    good = given(LARGE), given(SMALL), given(LARGE)
    everywhere = [int(np.prod(LARGE)), 15, int(np.prod(LARGE))]
    for _ in range(2):
        assert not looking.after(*bad) and looking.after(*good) and looking.on_host == everywhere
        looking.session.watch(True)
        assert looking.finite() and looking.on_host == everywhere  # of the last one, that nobody watched
        assert not looking.after(*bad) and looking.after(*good) and looking.on_host == [15]
        found = np.empty(everywhere[0], np.float32)
        looking.session.read(2, found)
        np.testing.assert_array_equal(found, -good[2].reshape(-1))
        looking.session.watch(False)
    if looking.session.device.features.timestamps:
        assert len(looking.session.profile()) == 3 and looking.session.time_graph(2) > 0


def test_bound_outputs_are_their_owners_business(looking: Looking, device: WebGpuDevice) -> None:
    looking.session.watch(True)
    bad = given(LARGE, 5, np.nan), given(SMALL), given(LARGE)
    assert not looking.after(*bad)
    buffer = looking.session.output_buffer(0, LARGE)
    looking.session.bind("output", 0, buffer, "y")
    assert looking.after(*bad) and looking.on_host == [15]
    looking.session.bind("output", 0, None, "y")
    assert not looking.after(*bad)


def test_interrupted_anywhere(looking: Looking) -> None:
    """By Ctrl-C, say, while watching begins or ends or something is found: what follows is told of itself."""
    bad = given(LARGE), given(SMALL), given(LARGE, 5, np.nan)
    good = given(LARGE), given(SMALL), given(LARGE)

    def action() -> None:
        for watched in (True, False):
            looking.session.watch(watched)
            assert not looking.after(*bad) and looking.after(*good)

    counted = Interruptions()
    counted.during(action)
    interrupted = 0
    for place in range(1, counted.count, max(1, counted.count // 40)):
        one = Interruptions(place)
        try:
            one.during(action)
        except KeyboardInterrupt:
            interrupted += 1
        looking.session.watch(True)
        assert looking.after(*good), one.where
        assert not looking.after(*bad) and looking.after(*good) and looking.on_host == [15], one.where
    assert interrupted > 20


@pytest.mark.parametrize("wait_type", ["passive", "do_not_wait"])
def test_a_model_goes_on_in_float32(device: WebGpuDevice, wait_type: str) -> None:
    """Large results in float16 that are not finite are computed again."""
    if not device.features.float16:
        pytest.skip("the device has no 16-bit floats")
    b = ModelBuilder()
    y = b.input("x", LARGE)
    for _ in range(2):
        window = {"filter_width": 1, "filter_height": 1, "stride_w": 1, "stride_h": 1, "padding": 0}
        y = b.op("AVERAGE_POOL_2D", [b.op("MUL", [y, y], LARGE)], LARGE, window)
    b.output(b.op("SQRT", [y], LARGE))
    x = np.random.default_rng(0).uniform(1, 4, LARGE).astype(np.float32)
    with litegpu.load(b.build(), "webgpu", "auto", wait_type=wait_type) as model:
        np.testing.assert_allclose(model(x), x * x, rtol=1e-2)
        np.testing.assert_allclose(model(1e2 * x), 1e4 * x * x, rtol=1e-5)
        np.testing.assert_allclose(model(x), x * x, rtol=1e-5)


def test_which_are_looked_at(device: WebGpuDevice) -> None:
    most = device.features.max_binding_bytes
    assert looked_at(negations(device, LARGE, SMALL, LARGE), most) == [0, 2]
    assert looked_at(negations(device, LARGE), 4 * int(np.prod(LARGE)) - 1) == []
    assert looked_at(negations(device, LARGE, dtype=DType.INT32), most) == []
