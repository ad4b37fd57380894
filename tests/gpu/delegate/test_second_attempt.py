"""Results in float16 that are not finite: one warning, and for precision="auto" those of float32."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from agreement import FLOAT16, assert_agrees, official, on_gpu, require_gpu, run

import litegpu
from litegpu.gpu.delegate.options import WaitType
from litegpu.gpu.delegate.second_attempt import SecondAttempt, Told, all_finite
from litegpu.model.builder import ModelBuilder

SHAPE = (1, 6, 5, 4)
BACKENDS = ["webgpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cuda":
        from litegpu.gpu.backends.cuda.opening import available

        if reason := available():
            pytest.skip(f"no CUDA device: {reason}")
    else:
        require_gpu()
    if not litegpu.GpuDelegate(backend=request.param).open_device().features.float16:
        pytest.skip("the device has no 16-bit floats")
    yield request.param


def network(*, logarithm: bool = False) -> bytes:
    """Two convolutions of ordinary weights between large numbers and small ones; perhaps a logarithm at the end."""
    b = ModelBuilder()
    y = b.input("x", SHAPE)
    rng = np.random.default_rng(0)
    for _ in range(2):
        weights = b.constant(rng.uniform(0.1, 0.5, (4, 1, 1, 4)).astype(np.float32))
        options = {"stride_w": 1, "stride_h": 1, "padding": 0}
        y = b.op("CONV_2D", [y, weights, b.constant(np.zeros(4, np.float32))], SHAPE, options)
    y = b.op("LOG", [y], SHAPE) if logarithm else y
    b.output(b.op("RESHAPE", [y, b.constant(np.array([1, 120], np.int32))], (1, 120)))
    return b.build()


SMALL = np.random.default_rng(1).uniform(0.5, 1, SHAPE).astype(np.float32)
LARGE = SMALL * np.float32(3e5)


def want(x: np.ndarray, content: bytes | None = None) -> np.ndarray:
    return run(official(content or network()), [x])[0]


def warnings_in(log: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in log.records if r.levelno == logging.WARNING and "not finite" in r.getMessage()]


def test_what_is_finite() -> None:
    x = np.zeros(200_000, np.float32)
    assert all_finite([x, np.zeros(3, np.int32), np.zeros((0, 2), np.float32)])
    for place, value in ((0, np.nan), (65536, np.inf), (199_999, -np.inf)):
        y = x.copy()
        y[place] = value
        assert not all_finite([x, y.reshape(2, -1)])


@pytest.mark.parametrize("way", ["interpreter", "do not wait", "model", "async", "stream"])
def test_auto_computes_again_and_stays_in_float32(way: str, backend: str, caplog: pytest.LogCaptureFixture) -> None:
    items = [SMALL, LARGE, SMALL, LARGE * np.float32(2), SMALL]
    if way in ("model", "stream"):
        with litegpu.load(network(), backend, "auto") as model:
            got = [model(x) for x in items] if way == "model" else list(model.stream(iter(items), ahead=2))
            if way == "model":
                assert any("float32" in note for note in model.report.notes)
            got.append(model(LARGE))
            items.append(LARGE)
    else:
        options: dict[str, Any] = {"wait_type": WaitType.DO_NOT_WAIT} if way == "do not wait" else {}
        one = on_gpu(network(), backend=backend, precision="auto", **options)
        got = []
        for x in items:
            changing = x.copy()
            one.set_tensor(one.get_input_details()[0]["index"], changing)
            one.invoke_async().result() if way == "async" else one.invoke()
            changing[...] = -1  # is the caller's again
            got.append(np.array(one.get_tensor(one.get_output_details()[0]["index"])))
    for a, x in zip(got, items, strict=True):
        assert_agrees(a, want(x), FLOAT16)
    assert_agrees(got[1], want(items[1]), 1e-5)  # float32's own
    assert len(warnings_in(caplog)) == 1 and "stays in" in warnings_in(caplog)[0]


@pytest.mark.parametrize("stream", [False, True])
def test_float16_is_warned_of_once(stream: bool, backend: str, caplog: pytest.LogCaptureFixture) -> None:
    with litegpu.load(network(), backend, "float16") as model:
        assert np.isfinite(model(SMALL)).all() and not warnings_in(caplog)
        for _ in range(3):
            got = next(iter(model.stream([LARGE]))) if stream else model(LARGE)
            assert not np.isfinite(got).all()
    assert len(warnings_in(caplog)) == 1 and "float32" in warnings_in(caplog)[0]


@pytest.mark.parametrize("precision", ["float16", "auto"])
def test_what_is_not_finite_in_float32_either_is_no_news(
    precision: str, backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = network(logarithm=True)
    x = SMALL.copy()
    x[0, 2, 3] = 0  # of which the logarithm is taken
    with litegpu.load(content, backend, precision) as model:
        for _ in range(5):
            assert_agrees(model(x), want(x, content), FLOAT16)
        assert not warnings_in(caplog)
        if precision == "auto":  # and still sees what is
            assert_agrees(model(LARGE), want(LARGE, content), FLOAT16)
            assert len(warnings_in(caplog)) == 1


def test_float32_is_not_looked_at(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    with litegpu.load(network(), backend, "float32") as model:
        assert not np.isfinite(model(LARGE * np.float32(np.inf))).all()
    assert not warnings_in(caplog)


def test_an_attempt_that_fails_says_why(
    backend: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with litegpu.load(network(), backend, "auto") as model:

        def fail(*_: object) -> None:
            raise litegpu.DeviceError("there is no memory left")

        monkeypatch.setattr(type(model._delegate), "_cached_program", fail)
        assert not np.isfinite(model(LARGE)).all()
    assert len(warnings_in(caplog)) == 1 and "no memory left" in warnings_in(caplog)[0]


def no_program() -> Any:
    raise AssertionError("not asked for")


FINITE, INFINITE = [np.ones(3, np.float32)], [np.full(3, np.inf, np.float32)]


def test_a_warning_is_looked_for_three_times_in_vain(caplog: pytest.LogCaptureFixture) -> None:
    attempt = SecondAttempt(no_program, Told(), stays=False)
    for _ in range(3):
        assert attempt.watching
        assert not attempt.judge(INFINITE, INFINITE)
    assert not attempt.watching and not warnings_in(caplog)
    late = SecondAttempt(no_program, Told(), stays=False)
    for single in (INFINITE, INFINITE, FINITE):
        assert late.watching
        assert late.judge(INFINITE, single) is (single is FINITE)
    assert not late.watching and len(warnings_in(caplog)) == 1


@pytest.mark.parametrize("stays", [False, True])
def test_results_that_were_under_way_are_told_of_once(stays: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Of the same kernel, and of another one of the model."""
    told = Told()
    first, second = (SecondAttempt(no_program, told, stays=stays) for _ in range(2))
    for attempt in (first, first, second):
        assert attempt.judge(INFINITE, FINITE)
        attempt.give_up("there is no memory left")
    assert len(warnings_in(caplog)) == 1
