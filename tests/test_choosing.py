"""device="auto": by what was measured, else by what is expected, and never what was measured slower than the CPU."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from control_models import cached_decoder, loop, scalar, while_lstm

import litegpu
from litegpu import GpuDelegate, native
from litegpu.choosing import auto, choice, records
from litegpu.choosing.called import called
from litegpu.choosing.candidate import CPU, Candidate, Measured, cpu_candidates
from litegpu.choosing.predict import predicted
from litegpu.device_choice import delegate_for
from litegpu.gpu.backends import registry
from litegpu.gpu.backends.abilities import CallRates
from litegpu.model import ModelBuilder, read_model
from litegpu.model.types import TensorType

GPU = Candidate("reference")
ONE = Candidate(CPU)
FOUR = Candidate(CPU, num_threads=4)
FREE = CallRates(0, 0, (0, 0), (0, 0), (0, 0), 0, 0)


def content(rows: int = 1, width: int = 8) -> bytes:
    model = ModelBuilder()
    x = model.input("x", (rows, width))
    weights = model.constant(np.eye(width, dtype=np.float32))
    y = model.op("FULLY_CONNECTED", [x, weights], (rows, width))
    model.output(model.op("EXP", [y], (rows, width)))
    return bytes(model.build())


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[CallRates], None]:
    """A device that needs no driver stands in for a GPU; it gives what is expected of it."""
    monkeypatch.setenv("LITEGPU_CACHE_DIR", str(tmp_path))
    device = GpuDelegate(backend="reference").open_device()
    monkeypatch.setattr(device, "info", replace(device.info, is_software=False))
    monkeypatch.setattr(auto, "delegate_for", lambda device, precision, options: GpuDelegate(backend="reference"))

    def expect(rates: CallRates) -> None:
        monkeypatch.setattr(registry.backend("reference"), "rates", rates, raising=False)

    return expect


def measured(candidate: Candidate, one: float, many: float | None = None) -> Measured:
    device = GpuDelegate(backend="reference").open_device().info
    name, driver = ("", "") if candidate.is_cpu else (device.name, device.driver)
    return Measured(candidate, name, driver, latency=one, batch=64, batch_latency=many, deviation=0.0)


# --------------------------------------------------------------------------------------------------- expectations


def test_the_cpu_is_taken_for_what_a_gpu_would_be_slower_at(gpu: Callable[[CallRates], None]) -> None:
    gpu(replace(FREE, call=1.0))
    model = litegpu.load(content())
    assert model.device == "cpu" and model.report.delegates == ()
    assert model.choice is not None and model.choice.candidate == ONE and not model.choice.measured
    assert (
        "expected" in model.choice.reason and "--measure" in model.choice.reason and "1e+03 ms" in model.choice.reason
    )
    np.testing.assert_allclose(model(np.zeros((1, 8), np.float32)), 1)


def test_the_gpu_is_taken_where_it_is_expected_to_be_quicker(gpu: Callable[[CallRates], None]) -> None:
    gpu(FREE)
    model = litegpu.load(content())
    assert model.device == "reference" and model.choice is not None and model.choice.candidate == GPU
    np.testing.assert_allclose(model(np.zeros((1, 8), np.float32)), 1)


def test_each_batch_is_a_choice_of_its_own(gpu: Callable[[CallRates], None]) -> None:
    gpu(replace(FREE, call=predicted(read_model(content(width=64)).main, ONE) * 2))  # type: ignore[operator]
    model = litegpu.load(content(width=64))
    assert model.device == "cpu"
    many = np.ones((1024, 64), np.float32)
    np.testing.assert_allclose(model(many), np.exp(many), rtol=1e-6)
    assert model.device == "reference" and model.choice is not None and model.choice.batch == 1024
    model(many[:1])
    assert model.device == "cpu"


def test_what_was_chosen_is_opened_again_without_a_choice() -> None:
    """By threads that find a model busy."""
    given: list[Any] = []
    found = auto.Auto(content(), "float32", 3, lambda *arguments: given.append(arguments))  # type: ignore[arg-type]
    gpu, four = object(), SimpleNamespace(candidate=FOUR)
    before = found.taken
    found.open_as(b"1", (gpu, gpu, None))
    found.open_as(b"2", (gpu, None, None))
    found.open_as(b"3", (gpu, None, four))
    assert given == [(b"1", gpu, 3), (b"2", None, 3), (b"3", None, 4)] and found.taken == before


def test_who_asks_for_something_gets_it(gpu: Callable[[CallRates], None]) -> None:
    gpu(replace(FREE, call=1.0))
    assert litegpu.load(content(), "reference").device == "reference"
    assert litegpu.load(content(), "reference").choice is None
    assert litegpu.load(content(), "cpu").choice is None


def test_parts_on_the_cpu_count(gpu: Callable[[CallRates], None], caplog: pytest.LogCaptureFixture) -> None:
    """What the GPU does not take is computed by the CPU after all, with a border in between."""
    gpu(FREE)
    model = ModelBuilder()
    x = model.input("x", (64, 64))
    y = model.op("EXP", [x], (64, 64))
    for _ in range(3):  # no GPU takes seven axes
        wide = (1, 1, 1, 1, 1, 64, 64)
        y = model.op("BROADCAST_TO", [y, model.constant(np.array(wide, np.int32))], wide)
        y = model.op("RESHAPE", [y, model.constant(np.array((64, 64), np.int32))], (64, 64))
    model.output(y)
    with caplog.at_level(logging.INFO, "litegpu"):
        loaded = litegpu.load(bytes(model.build()), fallback="silent")
    assert loaded.device == "cpu" and loaded.choice is not None
    assert any('device="auto": CPU, 1 thread is the quickest' in r.message for r in caplog.records)


def test_without_a_gpu_the_cpu_is_chosen_at_once(models_dir: Path) -> None:
    """In 50 ms of the processor; a search for GPUs, which a process does once, is not counted."""
    if delegate_for("auto", "float32", {}) is not None:
        pytest.skip("this machine has a GPU")
    models = [path for path in sorted(models_dir.glob("*.tflite")) if path.name != "malformed.tflite"]
    assert len(models) > 20
    for path in models:
        took = []
        for _ in range(3):
            begin = time.thread_time()
            asked: Any = auto.Auto(path, "float32", None, lambda source, delegate, threads: delegate).open(path)
            took.append(time.thread_time() - begin)
            assert asked is None  # no delegate
        assert min(took) < 0.05, (path.name, took)
        with litegpu.load(path) as model:
            assert model.device == "cpu"


def test_expectations_add_up() -> None:
    one, many = read_model(content()).main, read_model(content(64)).main
    small, large = predicted(one, ONE), predicted(many, ONE)
    assert small is not None and large is not None and 0 < small < large
    cuda = predicted(one, Candidate("cuda"), range(2))
    assert cuda is not None and cuda > 50e-6  # no call of a GPU is shorter
    assert predicted(many, Candidate("cuda"), range(2)) < 4 * cuda  # type: ignore[operator]
    assert predicted(many, Candidate("cuda"), [0], 2) > cuda + 30e-6  # type: ignore[operator]  # a border
    assert predicted(one, Candidate("nothing that is known")) is None
    wide = read_model(content(64, 1024)).main
    alone, together, small_together = predicted(wide, ONE), predicted(wide, FOUR), predicted(one, FOUR)
    assert alone is not None and together is not None and small_together is not None
    assert together < alone / 2
    assert small_together > small  # threads have to be started
    part, all_of_it = predicted(wide, Candidate("cuda"), [1]), predicted(wide, Candidate("cuda"), [0, 1])
    assert part is not None and all_of_it is not None and part - all_of_it > alone / 2  # what is left to the CPU


def test_what_a_loop_calls_is_counted() -> None:
    """As often as it runs; a device takes longer where only the run knows how often that is."""

    def expected(content: bytes) -> tuple[float, float]:
        model = read_model(content)
        work = called(model)
        found = [predicted(model.main, one, range(9), called=work) for one in (ONE, Candidate("cuda"))]
        assert None not in found
        return found[0], found[1]  # type: ignore[return-value]

    few, many = expected(while_lstm(4)), expected(while_lstm(400))
    assert many[0] > 50 * few[0] and many[1] > 5 * few[1]
    known, decided = (expected(until_none_is_left(constant)) for constant in (True, False))
    assert decided[1] - known[1] > 300e-6 and decided[0] < 2 * known[0]
    assert called(read_model(cached_decoder())) == {}  # its variables are no reason to look


def until_none_is_left(constant: bool) -> bytes:
    """A loop of sixteen rounds, or of as many as an input says."""
    model = ModelBuilder()
    count = scalar(model, 16) if constant else model.input("n", (), TensorType.INT32)
    state: Any = [((), TensorType.INT32), ((3,), TensorType.FLOAT32)]
    made = loop(
        model, model, [count, model.input("x", (3,))], state,
        lambda g, v: [g.op("GREATER", [v[0], scalar(g, 0)], (), type=TensorType.BOOL)],
        lambda g, v: [g.op("SUB", [v[0], scalar(g, 1)], ()), g.op("TANH", [v[1]], (3,))],
    )  # fmt: skip
    model.output(made[1])
    return bytes(model.build())


# --------------------------------------------------------------------------------------------------- measurements


def test_what_was_measured_decides(gpu: Callable[[CallRates], None]) -> None:
    """Whatever is expected; and between batches that were measured, what lies between."""
    gpu(FREE)
    records.keep(content(), [measured(ONE, 1e-3, 64e-3), measured(FOUR, 2e-3, 32e-3), measured(GPU, 3e-3, 3.1e-3)])
    model = litegpu.load(content())
    assert model.choice is not None and model.choice.measured and model.choice.candidate == ONE
    assert model.device == "cpu" and "--measure" not in model.choice.reason and "as measured" in model.choice.reason
    for rows, expected in ((2, ONE), (20, GPU), (64, GPU), (1, ONE)):
        model(np.zeros((rows, 8), np.float32))
        assert model.choice.candidate == expected, rows


def test_of_another_file_gpu_driver_or_version_nothing_was_measured(
    gpu: Callable[[CallRates], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu(FREE)
    found = [measured(ONE, 1e-3), measured(GPU, 3e-3)]
    records.keep(content(), found)
    assert litegpu.load(content()).device == "cpu"
    assert litegpu.load(content(width=9)).device == "reference"
    assert litegpu.load(content(), precision="float16").device == "reference"
    for other in (replace(found[1], name="another"), replace(found[1], driver="0.1")):
        records.keep(content(), [found[0], other])
        assert litegpu.load(content()).device == "reference", other
    records.keep(content(), found)
    with monkeypatch.context() as changed:
        changed.setattr(native, "processors", lambda: 999)
        assert litegpu.load(content()).device == "reference"
    assert litegpu.load(content()).device == "cpu"
    version = records._version
    changes = {"openvino": "2099.1", "ai-edge-litert": "99"}
    for package, new in changes.items():
        with monkeypatch.context() as changed:
            changed.setattr(records, "_version", lambda name, p=package, v=new: v if name == p else version(name))
            assert litegpu.load(content()).device == "reference", package


def test_threads_are_chosen_unless_they_are_given(gpu: Callable[[CallRates], None]) -> None:
    gpu(FREE)
    records.keep(content(), [measured(ONE, 2e-3), measured(FOUR, 1e-3), measured(GPU, 3e-3)])
    model = litegpu.load(content())
    assert model.choice is not None and model.choice.candidate == FOUR
    assert model.interpreter._setup.options.num_threads == 4
    model = litegpu.load(content(), num_threads=1)
    assert model.choice is not None and model.choice.candidate == ONE
    assert litegpu.load(content(), num_threads=2).device == "reference"  # with two, only the GPU was measured


def other(name: str, one: float, many: float) -> Measured:
    return Measured(Candidate(name), latency=one, batch=64, batch_latency=many, deviation=0.0)


def test_another_delegate_that_was_measured_quickest_is_taken(gpu: Callable[[CallRates], None]) -> None:
    """For the batch that it is; and nothing of a delegate that cannot be had any more."""
    pytest.importorskip("openvino")
    gpu(FREE)
    found = [measured(ONE, 1e-3, 64e-3), other("openvino", 2e-3, 2e-3), measured(GPU, 3e-3, 3e-3)]
    records.keep(content(), found)
    model = litegpu.load(content(), fallback="silent")
    assert (model.device, model.hardware, model.is_software) == ("cpu", "CPU", False)
    x = np.ones((64, 8), np.float32)
    np.testing.assert_allclose(model(x), np.exp(x), rtol=1e-5)
    assert model.choice is not None and model.choice.candidate == Candidate("openvino")
    assert model.device == "openvino" and "OpenVINO CPU" in model.hardware and not model.is_software
    assert isinstance(model.empty_input(), np.ndarray)
    records.keep(content(), [*found, other("gone", 1e-6, 1e-6)])
    assert litegpu.load(content()).device == "cpu"
    records.keep(content(), [other("gone", 1e-6, 1e-6), measured(GPU, 3e-3, 3e-3)])
    assert litegpu.load(content()).device == "reference"


def test_what_was_measured_decides_without_a_gpu(gpu: Callable[[CallRates], None], monkeypatch: Any) -> None:
    """Threads too; and no program that stands in for a GPU, whatever was measured of it."""
    pytest.importorskip("openvino")
    gpu(FREE)
    monkeypatch.setattr(auto, "delegate_for", lambda *_: None)
    model = litegpu.load(content())
    assert model.choice is None and model.device == "cpu"
    records.keep(content(), [measured(ONE, 2e-3), measured(FOUR, 1e-3), measured(GPU, 1e-6)])
    model = litegpu.load(content())
    assert model.choice is not None and model.choice.candidate == FOUR and model.device == "cpu"
    records.keep(content(), [measured(ONE, 2e-3), other("openvino", 1e-3, 1e-3)])
    assert litegpu.load(content()).device == "openvino"
    software = GpuDelegate(backend="reference")
    info = replace(software.open_device().info, is_software=True)
    monkeypatch.setattr(software.open_device(), "info", info)
    asked: list[str] = []

    def delegate_for_(name: str, *_: Any) -> GpuDelegate | None:
        asked.append(name)
        return None if name == "auto" else software

    monkeypatch.setattr(auto, "delegate_for", delegate_for_)
    records.keep(content(), [measured(ONE, 2e-3), measured(GPU, 1e-3)])
    assert litegpu.load(content()).device == "cpu" and asked == ["reference", "auto"]


def test_the_arithmetic_that_was_measured_quickest(gpu: Callable[[CallRates], None], monkeypatch: Any) -> None:
    """Of each batch."""
    gpu(FREE)
    monkeypatch.setattr(
        auto, "delegate_for", lambda name, precision, options: GpuDelegate(backend="reference", **options)
    )
    ways = [measured(Candidate("reference", arithmetic=how), *took) for how, took in
            (("float", (1e-3, 9e-3)), ("integer", (2e-3, 2e-3)))]  # fmt: skip
    assert str(ways[1].candidate) == "reference, float32, integer arithmetic"
    records.keep(content(), [measured(ONE, 9e-3, 99e-3), *ways])
    model = litegpu.load(content())
    for rows, arithmetic in ((1, "float"), (64, "integer"), (1, "float")):
        model(np.zeros((rows, 8), np.float32))
        assert model.choice is not None and model.choice.candidate.arithmetic == arithmetic
        assert model.delegate is not None and model.delegate.options.arithmetic == arithmetic
        assert model.device == "reference" and "interpreter" not in model.hardware


def test_what_was_too_far_from_the_cpu_is_not_chosen(gpu: Callable[[CallRates], None]) -> None:
    gpu(FREE)
    records.keep(content(), [measured(ONE, 2e-3), replace(measured(GPU, 1e-3), accepted=False)])
    model = litegpu.load(content())
    assert model.device == "cpu" and model.choice is not None and model.choice.measured


def test_a_record_is_kept_and_recalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITEGPU_CACHE_DIR", str(tmp_path))
    assert records.recall(content()) == ()
    found = [measured(ONE, 1e-3, 2e-3), Measured(Candidate("cuda", "float16"), problem="no driver")]
    path = records.keep(content(), found)
    assert path is not None and records.recall(content()) == tuple(found)
    values: Any = json.loads(path.read_text())
    for damaged in ("", "[]", "{}", json.dumps(values | {"format": 99}), json.dumps(values | {"measured": [{"x": 1}]})):
        path.write_text(damaged)
        assert records.recall(content()) == (), damaged
    monkeypatch.setenv("LITEGPU_CACHE_DIR", str(path))  # a file where the folder should be
    assert records.keep(content(), found) is None


def test_the_ways_to_use_a_cpu() -> None:
    found = cpu_candidates()
    assert found[0] == ONE and len(set(found)) == len(found)
    assert all(one.num_threads is None or 1 < one.num_threads <= min(16, native.processors()) for one in found)
    assert str(ONE) == "CPU, 1 thread" and str(FOUR) == "CPU, 4 threads" and str(GPU) == "reference, float32"


def test_nothing_measured_is_no_choice() -> None:
    assert choice.by_measurement([]) is None
    assert choice.by_measurement([measured(ONE, 1e-3)], 64) is None
    found = choice.comparable([Measured(GPU, problem="lost"), measured(ONE, 1.0)], "float32", None)
    assert [one.candidate for one in found] == [ONE]
