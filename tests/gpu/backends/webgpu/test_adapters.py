"""Which adapters are found, which is chosen, and what is said when there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import litegpu
from litegpu.errors import DeviceError, OptionError
from litegpu.gpu.backends.webgpu import adapters as webgpu_adapters
from litegpu.gpu.backends.webgpu import device as webgpu
from litegpu.gpu.backends.webgpu.adapters import AdapterInfo, choose_adapter, install_advice, list_adapters
from litegpu.gpu.backends.webgpu.units import multiprocessors
from litegpu.gpu.lang.features import Features


def _adapter(name: str, backend: str = "vulkan", kind: str = "discrete") -> AdapterInfo:
    return AdapterInfo(name, backend, kind, "maker", "1.0", Features(), handle=None)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[AdapterInfo]:
    """A list that stands for what the machine has."""
    adapters: list[AdapterInfo] = []

    def listed(backend: str = "auto") -> Iterable[AdapterInfo]:
        chosen = [a for a in adapters if a.backend == backend or (backend == "auto" and a.backend != "gl")]
        return sorted(chosen, key=lambda a: webgpu_adapters.KINDS.index(a.kind))

    monkeypatch.setattr(webgpu_adapters, "list_adapters", listed)
    monkeypatch.delenv(webgpu_adapters.ADAPTER_VARIABLE, raising=False)
    return adapters


def test_prefers_discrete_then_integrated_then_software(found: list[AdapterInfo]) -> None:
    found += [_adapter("llvmpipe", kind="software"), _adapter("Iris", kind="integrated"), _adapter("RTX")]
    assert choose_adapter().name == "RTX"
    del found[2]
    assert choose_adapter().name == "Iris"
    del found[1]
    assert choose_adapter().name == "llvmpipe"


def test_name_and_variable_select(found: list[AdapterInfo], monkeypatch: pytest.MonkeyPatch) -> None:
    found += [_adapter("NVIDIA RTX"), _adapter("AMD Radeon")]
    assert choose_adapter(name="radeon").name == "AMD Radeon"
    monkeypatch.setenv(webgpu_adapters.ADAPTER_VARIABLE, "radeon")
    assert choose_adapter().name == "AMD Radeon"
    assert choose_adapter(name="nvidia").name == "NVIDIA RTX"
    with pytest.raises(DeviceError, match=r"'Voodoo'.*NVIDIA RTX.*AMD Radeon"):
        choose_adapter(name="Voodoo")


@pytest.mark.parametrize("number", ["0", "1", "15"])
def test_a_number_is_no_name(found: list[AdapterInfo], number: str) -> None:
    """It is in many a version, and would be taken for the second GPU."""
    found += [_adapter("llvmpipe (LLVM 15.0.1, 256 bits)", kind="software"), _adapter("Radeon RX 7900 XTX")]
    with pytest.raises(DeviceError, match=f"'{number}' does not name.*Radeon.*LLVM 15"):
        choose_adapter(name=number)
    assert choose_adapter(name="7900").name == "Radeon RX 7900 XTX"


def test_auto_takes_opengl_only_for_a_real_gpu(found: list[AdapterInfo]) -> None:
    found.append(_adapter("llvmpipe", "gl", "software"))
    with pytest.raises(DeviceError, match="no WebGPU device was found"):
        choose_adapter()
    assert choose_adapter("gl").name == "llvmpipe"
    found.append(_adapter("VideoCore", "gl", "integrated"))
    assert choose_adapter().name == "VideoCore"


def test_unknown_backend() -> None:
    with pytest.raises(OptionError, match="cuda"):
        list_adapters("cuda")


def test_absent_backend_says_which() -> None:
    absent = "metal" if sys.platform != "darwin" else "d3d12"
    with pytest.raises(DeviceError, match=absent):
        webgpu.open_device(absent)


@pytest.mark.parametrize("system", ["linux", "darwin", "win32", "freebsd14"])
def test_advice_for_every_system(system: str) -> None:
    assert len(install_advice(system)) > 20


def test_features_come_from_the_adapter(device: webgpu.WebGpuDevice) -> None:
    features = device.features
    assert features.max_threads >= 128
    assert features.max_buffers >= 8
    assert features.max_binding_bytes >= 1 << 27
    assert features.storage_alignment in (16, 32, 64, 128, 256)
    assert device.info.backend in webgpu_adapters.BACKENDS
    assert device.target == "wgsl"


def test_devices_are_opened_once(device: webgpu.WebGpuDevice) -> None:
    assert webgpu.open_device() is device
    assert webgpu.open_device(device.info.backend, device.info.name) is device


def _run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(litegpu.__file__).parents[1])
    env = {k: v for k, v in os.environ.items() if k not in ("XDG_RUNTIME_DIR", "EGL_LOG_LEVEL")}
    env.update(PYTHONPATH=source, **environment)
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hides Vulkan's driver files, as Linux has them")
def test_no_driver_gives_an_error_with_advice_and_nothing_on_stderr() -> None:
    code = (
        "from litegpu.errors import DeviceError\n"
        "from litegpu.gpu.backends.webgpu.device import open_device\n"
        "try:\n    print('opened', open_device().info)\n"
        "except DeviceError as error:\n    print(error)\n"
    )
    done = _run_python(code, VK_DRIVER_FILES="/nonexistent", VK_ICD_FILENAMES="/nonexistent")
    assert done.returncode == 0
    assert done.stderr == ""
    assert "no WebGPU device was found. Install a Vulkan driver" in done.stdout


def test_a_whole_session_prints_nothing(device: webgpu.WebGpuDevice) -> None:
    done = _run_python("from litegpu.gpu.backends.webgpu.device import open_device\nopen_device()\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "name, units",
    [
        ("NVIDIA H200", 132),
        ("NVIDIA L40S", 142),
        ("NVIDIA L4", 58),
        ("NVIDIA A10G", 72),
        ("NVIDIA A100-SXM4-80GB", 108),
        ("NVIDIA RTX 6000 Ada Generation", 142),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", 60),
        ("NVIDIA GeForce RTX 4070", 46),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 85),
        ("NVIDIA Quadro of tomorrow", 40),
        ("AMD Radeon RX 7900 XTX (RADV NAVI31)", 0),
        ("Apple M4 Max", 0),
        ("", 0),
    ],
)
def test_multiprocessors_by_name(name: str, units: int) -> None:
    assert multiprocessors(name) == units
