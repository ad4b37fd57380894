"""`litegpu doctor`: what it finds here, and what it advises on machines that it is told about."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from litegpu.errors import DeviceError
from litegpu.gpu.backends.cuda import opening as cuda
from litegpu.gpu.backends.webgpu import adapters as webgpu_adapters
from litegpu.gpu.backends.webgpu import device as webgpu
from litegpu.gpu.lang.features import Features
from litegpu.tools import doctor
from litegpu.tools.doctor import DeviceReport, Diagnosis, diagnose, render_text
from litegpu.tools.doctor_system import (
    NvidiaReport,
    RenderNode,
    SystemReport,
    VulkanDriver,
    inspect_system,
    system_advice,
)

NO_NVIDIA = NvidiaReport((), False, ())
NVIDIA = NvidiaReport(("NVIDIA H200, 570.1",), True, ())
MESA = VulkanDriver("/usr/share/vulkan/icd.d/radeon_icd.json", "libvulkan_radeon.so", None)
SOFTWARE = VulkanDriver("/usr/share/vulkan/icd.d/lvp_icd.json", "libvulkan_lvp.so", None)


def linux(**changes: object) -> SystemReport:
    plain = SystemReport("linux", False, (), "libvulkan.so.1", (SOFTWARE,), (), NO_NVIDIA, {})
    return dataclasses.replace(plain, **changes)


def no_cuda() -> None:
    raise DeviceError("no NVIDIA GPU")


def test_this_machine() -> None:
    diagnosis = diagnose()
    text = render_text(diagnosis)
    for device in diagnosis.devices:
        assert device.name in text
    assert json.loads(json.dumps(diagnosis.as_dict()))["ok"] is diagnosis.ok
    assert (diagnosis.chosen is None) == (diagnosis.webgpu_problem is not None)
    assert f"CUDA: {diagnosis.cuda}" in text
    assert diagnosis.versions["numpy"] == np.__version__


def test_every_working_device_passes_its_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        adapter = webgpu_adapters.choose_adapter()
    except DeviceError as error:
        pytest.skip(str(error))
    device = webgpu.WebGpuDevice(adapter)
    assert doctor._self_test(device) is None
    # a device that computes something else must not pass
    read = webgpu.WebGpuSession.read

    def read_wrongly(self: webgpu.WebGpuSession, index: int, out: np.ndarray) -> None:
        read(self, index, out)
        out[7] = np.nan

    monkeypatch.setattr(webgpu.WebGpuSession, "read", read_wrongly)
    assert "computed nan instead of 15" in str(doctor._self_test(device))


def test_an_opengl_that_cannot_compute_is_no_fault_beside_another_api(monkeypatch: pytest.MonkeyPatch) -> None:
    def report(backend: str, problem: str | None, unusable: bool = False) -> DeviceReport:
        return DeviceReport("A GPU", backend, "discrete", "driver 1", Features(), problem, unusable)

    vulkan, gl = report("vulkan", None), report("gl", "Parent device is lost", True)
    assert doctor._advice([vulkan, gl], None, linux()) == []
    diagnosis = dataclasses.replace(diagnose(), devices=(vulkan, gl), chosen=0, advice=())
    text = render_text(diagnosis)
    assert text.count("self-test: passed") == 1 and "FAILED" not in text and "not used: this OpenGL" in text
    for devices in ([gl], [vulkan, report("gl", "computed 1 instead of 3")], [vulkan, report("vulkan", "lost", True)]):
        assert any("fails its self-test" in line for line in doctor._advice(devices, None, linux()))
        assert "FAILED" in render_text(dataclasses.replace(diagnosis, devices=tuple(devices)))


@pytest.mark.cuda
def test_cuda_devices_pass_their_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    if cuda.available() is not None:
        pytest.skip(f"no CUDA device: {cuda.available()}")
    from litegpu.gpu.backends.cuda.session import CudaSession

    assert doctor._cuda_self_test(0) is None
    diagnosis = diagnose()
    assert diagnosis.ok and diagnosis.chosen == 0
    assert [d.problem for d in diagnosis.devices if d.backend == "cuda"] == [None] * len(cuda.list_devices())
    assert "FAILED" not in render_text(diagnosis)
    read = CudaSession.read

    def read_wrongly(self: CudaSession, index: int, out: np.ndarray) -> None:
        read(self, index, out)
        out[7] = np.nan

    monkeypatch.setattr(CudaSession, "read", read_wrongly)
    assert "a f32 kernel computed nan instead of 15" in str(doctor._cuda_self_test(0))


def test_wgpu_that_does_not_work_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(gl: bool) -> list[object]:
        raise OSError("libwgpu_native.so: cannot open shared object file")

    monkeypatch.setattr("litegpu.gpu.backends.webgpu.native.enumerate_adapters", broken)
    monkeypatch.setattr(cuda, "list_devices", no_cuda)
    diagnosis = diagnose()
    assert not diagnosis.ok
    assert "cannot open shared object file" in str(diagnosis.webgpu_problem)
    assert "pip install" in diagnosis.advice[0]
    assert "models run on the CPU" in render_text(diagnosis)


def test_device_that_cannot_be_opened_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = webgpu_adapters.AdapterInfo("Broken GPU", "vulkan", "discrete", "maker", "1", Features(), None)

    def listed(backend: str = "auto") -> list[webgpu_adapters.AdapterInfo]:
        return [adapter] if backend == "auto" else []

    monkeypatch.setattr(webgpu_adapters, "list_adapters", listed)
    monkeypatch.setattr(cuda, "list_devices", no_cuda)
    diagnosis = diagnose()
    assert not diagnosis.ok
    assert diagnosis.devices[0].problem
    assert "Broken GPU" in diagnosis.advice[0]
    assert "FAILED" in render_text(diagnosis)


def test_software_opengl_alone_is_not_ok() -> None:
    def diagnosis(backend: str, kind: str) -> Diagnosis:
        device = DeviceReport("x", backend, kind, "", Features(), None)
        return Diagnosis("here", {}, (device,), 0, None, linux(), "", ())

    assert not diagnosis("gl", "software").ok
    assert diagnosis("gl", "integrated").ok
    assert diagnosis("vulkan", "software").ok


ADVICE = {
    "no permission": (linux(render_nodes=(RenderNode("/dev/dri/renderD128", False, "render"),)), "usermod -aG render"),
    "no loader": (linux(vulkan_loader=None), "libvulkan1"),
    "NVIDIA container": (linux(nvidia=NVIDIA, container=True), "NVIDIA_DRIVER_CAPABILITIES=all"),
    "NVIDIA without Vulkan": (linux(nvidia=NVIDIA), "nvidia-vulkan-icd"),
    "NVIDIA driver outside the search path": (
        linux(nvidia=dataclasses.replace(NVIDIA, unused_driver_files=("/usr/local/nvidia/x.json",))),
        "VK_DRIVER_FILES=/usr/local/nvidia/x.json",
    ),
    "NVIDIA driver that does not load": (
        linux(nvidia=NVIDIA, vulkan_drivers=(VulkanDriver("/etc/nvidia_icd.json", "libGLX_nvidia.so.0", "no libX11"),)),
        "no libX11",
    ),
    "AMD without Mesa": (linux(pci_gpus=("AMD",), render_nodes=(RenderNode("/dev/dri/renderD128", True, "render"),)),
                         "mesa-vulkan-drivers"),
    "GPU without a device file": (linux(pci_gpus=("AMD",), vulkan_drivers=(MESA,)), "/dev/dri"),
    "variable that hides drivers": (
        linux(vulkan_drivers=(), variables={"VK_DRIVER_FILES": "/nonexistent"}),
        "VK_DRIVER_FILES names no driver",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ADVICE)
def test_advice(case: str) -> None:
    system, expected = ADVICE[case]
    assert expected in "\n".join(system_advice(system, []))
    assert system.lines()


def test_no_advice_where_all_is_well() -> None:
    node = RenderNode("/dev/dri/renderD128", True, "render")
    assert system_advice(linux(pci_gpus=("AMD",), vulkan_drivers=(MESA,), render_nodes=(node,)), ["AMD Radeon"]) == []
    assert system_advice(linux(nvidia=NVIDIA), ["NVIDIA H200 570.1"]) == []
    assert system_advice(linux(vulkan_loader=None), ["AMD Radeon"]) == []  # through OpenGL


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Vulkan's files as Linux has them")
def test_driver_files_are_found_and_judged(tmp_path: Path) -> None:
    good = {"ICD": {"library_path": "libc.so.6"}}
    (tmp_path / "a.json").write_text(json.dumps(good))
    (tmp_path / "b.json").write_text("{}")
    (tmp_path / "c.json").write_text(json.dumps({"ICD": {"library_path": "./libabsent.so"}}))
    report = inspect_system({"VK_DRIVER_FILES": str(tmp_path)})
    fine, empty, absent = report.vulkan_drivers
    assert fine.problem is None
    assert "not a driver file" in str(empty.problem)
    assert "libabsent.so" in str(absent.problem)
    home = inspect_system({"HOME": str(tmp_path), "XDG_DATA_DIRS": "/nonexistent", "XDG_CONFIG_DIRS": "/nonexistent"})
    assert all(str(tmp_path) not in driver.file for driver in home.vulkan_drivers)
    folder = tmp_path / ".local/share/vulkan/icd.d"
    folder.mkdir(parents=True)
    (folder / "mine.json").write_text(json.dumps(good))
    home = inspect_system({"HOME": str(tmp_path)})
    assert str(folder / "mine.json") in [driver.file for driver in home.vulkan_drivers]


def on(*devices: tuple[str, str, str | None], chosen: int | None = None, problem: str | None = None) -> Diagnosis:
    """A machine with such devices: graphics API, kind, and what is wrong."""
    reports = tuple(DeviceReport(f"GPU {i}", api, kind, "", Features(), p) for i, (api, kind, p) in enumerate(devices))
    return Diagnosis("here", {}, reports, chosen, problem, linux(), "", ())


def test_the_verdict_is_of_the_chosen_device() -> None:
    good, bad = ("vulkan", "discrete", None), ("vulkan", "discrete", "computed 1 instead of 3")
    for diagnosis, verdict in (
        (on(good, bad, chosen=0), "The GPU path works here."),
        (on(good, bad, chosen=1), "not on the device that auto picks"),
        (on(bad, chosen=0), "does not work here"),
        (on(chosen=None, problem="no adapter"), "nothing to use: no adapter"),
        (on(("vulkan", "software", None), chosen=0), "device=auto uses the CPU; * is what device=webgpu uses"),
        (on(good, chosen=0), "* is what device=auto uses: GPU 0"),
    ):
        assert verdict in render_text(diagnosis)


def test_software_alone_brings_advice() -> None:
    def advice(*kinds: str) -> str:
        return "\n".join(doctor._advice(on(*[("vulkan", kind, None) for kind in kinds]).devices, None, linux()))

    assert "Only a software renderer was found" in advice("software")
    assert "software renderer" not in advice() and advice() != ""
    assert advice("software", "discrete") == advice("discrete") == ""


def test_an_opengl_is_a_fault_where_only_software_computes() -> None:
    gl = DeviceReport("A GPU", "gl", "discrete", "", Features(), "lost", True)
    assert not doctor._passed_over(gl, [gl, *on(("vulkan", "software", None)).devices])
    assert doctor._passed_over(gl, [gl, *on(("vulkan", "integrated", None)).devices])
    assert not doctor._passed_over(gl, [gl, *on(("vulkan", "integrated", "lost")).devices])


def test_any_wrong_number_fails_the_self_test() -> None:
    """Too large, too small, or none."""

    class Session:
        def __init__(self, fault: tuple[int, float]) -> None:
            self.fault = fault

        def write(self, index: int, x: np.ndarray) -> None:
            self.x = x.copy()

        def run(self) -> None:
            pass

        def read(self, index: int, out: np.ndarray) -> None:
            out[:] = 2 * self.x + 1
            out[self.fault[0]] += self.fault[1]

        def close(self) -> None:
            pass

    class Device:
        features, target = Features(), "wgsl"

        def __init__(self, place: int, fault: float) -> None:
            self.fault = place, fault

        def session(self, program: object) -> Session:
            return Session(self.fault)

    assert doctor._self_test(Device(0, 0)) is None  # type: ignore[arg-type]
    for place, fault in ((0, 1.0), (255, -1.0), (9, np.nan)):
        found = doctor._self_test(Device(place, fault))  # type: ignore[arg-type]
        assert found is not None and f"instead of {2 * place + 1}" in found and "1 of 256 values" in found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Vulkan's files as Linux has them")
def test_variables_say_where_drivers_are(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"ICD": {"library_path": "libc.so.6"}}))
    one, two = (str(tmp_path / f"{name}.json") for name in ("one", "two"))

    def found(**environment: str) -> list[str]:
        return [driver.file for driver in inspect_system(environment).vulkan_drivers]

    assert found(VK_ICD_FILENAMES=one) == [one] and found(VK_DRIVER_FILES=f"{two}:{one}") == [two, one]
    assert found(VK_DRIVER_FILES=two, VK_ICD_FILENAMES=one) == [two]
    elsewhere = {"XDG_DATA_DIRS": "/nonexistent", "XDG_CONFIG_DIRS": "/nonexistent", "HOME": str(tmp_path)}
    assert found(**elsewhere, VK_ADD_DRIVER_FILES=one)[-1] == one
