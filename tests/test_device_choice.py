""" "auto" passes over devices that compute on the CPU; who names one gets it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import require_gpu

import litegpu
from litegpu.device_choice import backend_options, best_gpu, delegate_for, is_device
from litegpu.errors import DeviceError, SoftwareDeviceError
from litegpu.gpu.backends.cuda import opening as cuda
from litegpu.gpu.backends.webgpu import adapters as webgpu_adapters
from litegpu.gpu.backends.webgpu import device as webgpu
from litegpu.model.builder import ModelBuilder

X = np.array([[1, -2, 3]], np.float32)


def negation() -> bytes:
    b = ModelBuilder()
    b.output(b.op("NEG", [b.input("x", (1, 3))], (1, 3)))
    return b.build()


@pytest.fixture
def only_software(monkeypatch: pytest.MonkeyPatch) -> webgpu_adapters.AdapterInfo:
    """A machine whose only device is a software one."""
    require_gpu()
    software = [a for a in webgpu_adapters.list_adapters() if a.is_software]
    if not software:
        pytest.skip("no software device")

    def no_cuda(*_: Any) -> None:
        raise DeviceError("no CUDA here")

    monkeypatch.setattr(cuda, "open_device", no_cuda)
    monkeypatch.setattr(webgpu_adapters, "list_adapters", lambda backend="auto": software if backend != "gl" else [])
    monkeypatch.setattr(webgpu, "_open_by_request", {})
    monkeypatch.delenv(webgpu_adapters.ADAPTER_VARIABLE, raising=False)
    return software[0]


def test_auto_passes_a_software_device_over_and_says_so(only_software: Any, caplog: Any) -> None:
    for _ in range(2):  # also once it is open, since something else has asked for it by name
        caplog.clear()
        with litegpu.load(negation()) as model:
            assert model.device == "cpu"
            np.testing.assert_array_equal(model(X), -X)
        (record,) = [r for r in caplog.records if r.name == "litegpu"]
        text = record.getMessage()
        assert record.levelno == logging.WARNING and "\n" not in text
        assert only_software.name in text and "running on the CPU" in text and 'device="webgpu"' in text
        assert not webgpu._open_by_request or _ == 1
        with litegpu.load(negation(), "webgpu") as model:
            assert model.device == "webgpu"


@pytest.mark.parametrize("asked", ["webgpu", "backend", "device", "environment", "delegate"])
def test_who_names_a_software_device_gets_it(only_software: Any, asked: str, monkeypatch: Any, caplog: Any) -> None:
    options: dict[str, Any] = {
        "webgpu": {"device": "webgpu"},
        "backend": {"backend": only_software.backend},
        "environment": {},
    }.get(asked, {})
    if asked == "environment":
        monkeypatch.setenv(webgpu_adapters.ADAPTER_VARIABLE, only_software.name)
    if asked in ("device", "delegate"):
        given = {"device": only_software.name} if asked == "device" else {}
        assert litegpu.GpuDelegate(**given).open_device().info.is_software
        return
    with litegpu.load(negation(), **options) as model:
        assert model.device == "webgpu"
        np.testing.assert_array_equal(model(X), -X)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_the_error_has_a_type_of_its_own(only_software: Any) -> None:
    delegate = litegpu.GpuDelegate()
    delegate.takes_software = False
    with pytest.raises(SoftwareDeviceError, match="a program that computes on the CPU"):
        delegate.open_device()
    assert best_gpu() == "webgpu"


@pytest.mark.parametrize("error, level", [(SoftwareDeviceError, logging.WARNING), (DeviceError, logging.INFO)])
def test_auto_asks_for_no_software_device(error: Any, level: int, monkeypatch: Any, caplog: Any) -> None:
    """Whatever devices there are here."""
    asked = []

    def open_device(self: litegpu.GpuDelegate) -> None:
        asked.append(self.takes_software)
        raise error("none that would do")

    monkeypatch.setattr(litegpu.GpuDelegate, "open_device", open_device)
    caplog.set_level(logging.INFO, "litegpu")
    assert delegate_for("auto", "float32", {}) is None
    assert [r.levelno for r in caplog.records if "none that would do" in r.getMessage()] == [level]
    for named in ("webgpu", "cuda"):
        with pytest.raises(error):
            delegate_for(named, "float32", {})
    assert asked == [False, True, True]


@pytest.mark.parametrize(
    "name", ["auto", "cpu", "webgpu", "cuda", "cuda:0", "cuda:12", "webgpu:Radeon", "webgpu:Apple M2 Pro"]
)
def test_words(name: str) -> None:
    assert is_device(name)


@pytest.mark.parametrize(
    "name",
    ["", "gpu", "vulkan", "CPU", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "auto:", "webgpu:", "webgpu: ",
     "webgpu:precision=float16", "reference:0", None, 3],
)  # fmt: skip
def test_other_words(name: Any) -> None:
    assert not is_device(name)
    with pytest.raises(litegpu.OptionError, match="it must be"):
        litegpu.load(negation(), name)


def test_a_webgpu_device_by_a_part_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the variable names."""
    require_gpu()
    name = litegpu.GpuDelegate(backend="webgpu").open_device().info.name
    monkeypatch.setenv("LITEGPU_WEBGPU_ADAPTER", "nothing has this name")
    with litegpu.load(negation(), f"webgpu:{name[:5].upper()}") as model:
        assert model.device == "webgpu" and model.delegate is not None and model.delegate.options.device
        assert model.delegate.open_device().info.name == name
    with pytest.raises(DeviceError, match="has 'Voodoo' in its name; found: "):
        litegpu.load(negation(), "webgpu:Voodoo")


def test_the_package_says_what_it_has() -> None:
    assert set(litegpu.__all__) <= set(dir(litegpu))
    assert all(getattr(litegpu, name) is not None for name in litegpu.__all__)
    assert (Path(litegpu.__file__).parent / "py.typed").is_file()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        litegpu.nothing  # noqa: B018


def test_backends_that_auto_does_not_try(monkeypatch: pytest.MonkeyPatch) -> None:
    from litegpu.gpu.backends import registry

    tried: list[str] = []

    class Absent:
        def __init__(self, name: str) -> None:
            self.name = name

        def open_device(self, *_: Any, **__: Any) -> None:
            tried.append(self.name)
            raise DeviceError(f"no {self.name}")

        def is_passed_over(self, error: DeviceError) -> None:
            pass

    entries = {**registry.ENTRIES, "slow": registry.BackendEntry("slow", "slow", automatic=False)}
    monkeypatch.setattr(registry, "ENTRIES", entries)
    monkeypatch.setattr(registry, "backend", Absent)
    with pytest.raises(DeviceError, match="no webgpu"):
        registry.open_device("auto")
    assert tried == ["cuda", "webgpu"]
    with pytest.raises(DeviceError, match="no slow"):
        registry.open_device("slow")
    assert is_device("slow") and not is_device("slow:1")


def test_a_word_becomes_options_of_the_delegate() -> None:
    assert backend_options("cuda") == {"backend": "cuda"}
    assert backend_options("cuda:1") == {"backend": "cuda", "device": "1"}
    assert backend_options("webgpu:Radeon RX") == {"backend": "webgpu", "device": "Radeon RX"}


def test_tools_take_one_of_several_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from litegpu import cli

    (tmp_path / "m.tflite").write_bytes(negation())
    require_gpu()
    name = webgpu_adapters.choose_adapter().name
    for arguments in (
        ("analyze", str(tmp_path / "m.tflite"), "--device", f"webgpu:{name}"),
        ("inference-diff", f"--model_file={tmp_path / 'm.tflite'}", f"--gpu_backend=webgpu:{name}", "--num_runs=2"),
    ):
        monkeypatch.setattr(sys, "argv", ["litegpu", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        assert not exit_.value.code, capsys.readouterr()
