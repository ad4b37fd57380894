"""`litegpu doctor`: what it finds here, and what it advises on machines that it is told about."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu.errors import DeviceError
from litegpu.gpu.backends import registry
from litegpu.gpu.backends.cuda import opening as cuda
from litegpu.gpu.backends.cuda.doctor import DOCTOR as CUDA_DOCTOR
from litegpu.gpu.backends.cuda.doctor import CudaSystem
from litegpu.gpu.backends.diagnosis import Listing, RenderNode, SystemReport
from litegpu.gpu.backends.webgpu import adapters as webgpu_adapters
from litegpu.gpu.backends.webgpu import device as webgpu
from litegpu.gpu.backends.webgpu import vulkan
from litegpu.gpu.backends.webgpu.doctor import DOCTOR as WEBGPU_DOCTOR
from litegpu.gpu.backends.webgpu.vulkan import VulkanDriver, VulkanSystem
from litegpu.gpu.lang.features import Features
from litegpu.tools import doctor
from litegpu.tools.doctor import DeviceReport, Diagnosis, diagnose, render_text
from litegpu.tools.doctor_system import inspect_system, system_lines

NVIDIA = CudaSystem(("NVIDIA H200, 570.1",), True)
MESA = VulkanDriver("/usr/share/vulkan/icd.d/radeon_icd.json", "libvulkan_radeon.so", None)
SOFTWARE = VulkanDriver("/usr/share/vulkan/icd.d/lvp_icd.json", "libvulkan_lvp.so", None)


def linux(**changes: Any) -> SystemReport:
    return dataclasses.replace(SystemReport("linux", False, (), (), (), {}), **changes)


def vulkan_of(*drivers: VulkanDriver, **changes: Any) -> VulkanSystem:
    plain = VulkanSystem("linux", "libvulkan.so.1", drivers or (SOFTWARE,), ())
    return dataclasses.replace(plain, **changes)


def parts(
    system: VulkanSystem | None = None, nvidia: CudaSystem | None = None, problem: str = "no driver"
) -> list[doctor._Part]:
    """What the backends say where nothing is listed."""
    cuda_part = doctor._Part("cuda", Listing((), problem=problem), CUDA_DOCTOR, nvidia or CudaSystem((), False))
    return [cuda_part, doctor._Part("webgpu", Listing(()), WEBGPU_DOCTOR, system or vulkan_of())]


def advice_for(
    devices: Sequence[DeviceReport], system: SystemReport | None = None, backends: list[doctor._Part] | None = None
) -> list[str]:
    return doctor._advice(devices, backends or parts(), system or linux())


def no_cuda() -> None:
    raise DeviceError("no NVIDIA GPU")


def test_this_machine() -> None:
    diagnosis = diagnose()
    text = render_text(diagnosis)
    for device in diagnosis.devices:
        assert device.name in text
    assert json.loads(json.dumps(diagnosis.as_dict()))["ok"] is diagnosis.ok
    assert (diagnosis.chosen is None) == (diagnosis.problem is not None)
    assert [note for note in diagnosis.notes if note.startswith("CUDA: ")] and all(n in text for n in diagnosis.notes)
    assert {registry.owner(device.backend) for device in diagnosis.devices} >= {"reference"}
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
    assert advice_for([vulkan, gl]) == []
    diagnosis = dataclasses.replace(diagnose(), devices=(vulkan, gl), chosen=0, advice=())
    text = render_text(diagnosis)
    assert text.count("self-test: passed") == 1 and "FAILED" not in text and "not used: this OpenGL" in text
    for devices in ([gl], [vulkan, report("gl", "computed 1 instead of 3")], [vulkan, report("vulkan", "lost", True)]):
        assert any("fails its self-test" in line for line in advice_for(devices))
        assert "FAILED" in render_text(dataclasses.replace(diagnosis, devices=tuple(devices)))


@pytest.mark.cuda
def test_cuda_devices_pass_their_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    if cuda.available() is not None:
        pytest.skip(f"no CUDA device: {cuda.available()}")
    from litegpu.gpu.backends.cuda.session import CudaSession

    assert doctor._self_test(cuda.open_device(0)) is None
    diagnosis = diagnose()
    assert diagnosis.ok and diagnosis.chosen == 0
    assert [d.problem for d in diagnosis.devices if d.backend == "cuda"] == [None] * len(cuda.list_devices())
    assert "FAILED" not in render_text(diagnosis)
    read = CudaSession.read

    def read_wrongly(self: CudaSession, index: int, out: np.ndarray) -> None:
        read(self, index, out)
        out[7] = np.nan

    monkeypatch.setattr(CudaSession, "read", read_wrongly)
    assert "a f32 kernel computed nan instead of 15" in str(doctor._self_test(cuda.open_device(0)))


def test_wgpu_that_does_not_work_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(gl: bool) -> list[object]:
        raise OSError("libwgpu_native.so: cannot open shared object file")

    monkeypatch.setattr("litegpu.gpu.backends.webgpu.native.enumerate_adapters", broken)
    monkeypatch.setattr(cuda, "list_devices", no_cuda)
    diagnosis = diagnose()
    assert not diagnosis.ok
    assert "cannot open shared object file" in str(diagnosis.problem)
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
        return Diagnosis("here", {}, (device,), 0, None, linux(), {}, (), ())

    assert not diagnosis("gl", "software").ok
    assert diagnosis("gl", "integrated").ok
    assert diagnosis("vulkan", "software").ok


ACCESSIBLE = RenderNode("/dev/dri/renderD128", True, "render")
ON_NVIDIA = linux(makers=("NVIDIA",))
#: What the system shows, Vulkan's part, CUDA's part, and what is said of it.
ADVICE: dict[str, tuple[SystemReport, VulkanSystem, CudaSystem | None, str]] = {
    "no permission": (
        linux(render_nodes=(RenderNode("/dev/dri/renderD128", False, "render"),)),
        vulkan_of(),
        None,
        "usermod -aG render",
    ),
    "no loader": (linux(), vulkan_of(loader=None), None, "libvulkan1"),
    "NVIDIA container": (
        dataclasses.replace(ON_NVIDIA, container=True),
        vulkan_of(),
        NVIDIA,
        "NVIDIA_DRIVER_CAPABILITIES=all",
    ),
    "NVIDIA without Vulkan": (ON_NVIDIA, vulkan_of(), NVIDIA, "nvidia-vulkan-icd"),
    "NVIDIA without CUDA": (ON_NVIDIA, vulkan_of(), NVIDIA, "faster through CUDA, which is not used: no driver."),
    "NVIDIA driver outside the search path": (
        ON_NVIDIA,
        vulkan_of(unused_driver_files=("/usr/local/nvidia/x.json",)),
        NVIDIA,
        "VK_DRIVER_FILES=/usr/local/nvidia/x.json",
    ),
    "NVIDIA driver that does not load": (
        ON_NVIDIA,
        vulkan_of(VulkanDriver("/etc/nvidia_icd.json", "libGLX_nvidia.so.0", "no libX11")),
        NVIDIA,
        "no libX11",
    ),
    "AMD without Mesa": (
        linux(pci_gpus=("AMD",), render_nodes=(ACCESSIBLE,)),
        vulkan_of(),
        None,
        "mesa-vulkan-drivers",
    ),
    "GPU without a device file": (linux(pci_gpus=("AMD",)), vulkan_of(MESA), None, "/dev/dri"),
    "variable that hides drivers": (
        linux(variables={"VK_DRIVER_FILES": "/nonexistent"}),
        vulkan_of(drivers=()),
        None,
        "VK_DRIVER_FILES names no driver",
    ),
}


@pytest.mark.parametrize("case", ADVICE)
def test_advice(case: str) -> None:
    system, of_vulkan, nvidia, expected = ADVICE[case]
    assert expected in "\n".join(advice_for((), system, parts(of_vulkan, nvidia)))
    assert system_lines(system) and of_vulkan.lines()


def test_no_advice_where_all_is_well() -> None:
    def advice(system: SystemReport, name: str, of_vulkan: VulkanSystem | None = None) -> list[str]:
        device = DeviceReport(name, "vulkan", "discrete", "570.1", Features(), None)
        return advice_for((device,), system, parts(of_vulkan))

    assert advice(linux(pci_gpus=("AMD",), render_nodes=(ACCESSIBLE,)), "AMD Radeon", vulkan_of(MESA)) == []
    assert advice(ON_NVIDIA, "NVIDIA H200") == []
    assert advice(linux(), "AMD Radeon", vulkan_of(loader=None)) == []  # through OpenGL


def test_signs_of_a_maker_are_a_gpu() -> None:
    assert NVIDIA.makers == ("NVIDIA",) == CudaSystem((), True).makers and not CudaSystem((), False).makers
    assert ON_NVIDIA.shows_gpu and not linux().shows_gpu
    assert dataclasses.replace(ON_NVIDIA, system="darwin").shows_gpu is None
    assert "calls in C: absent: no C compiler" in CudaSystem((), True, native="absent: no C compiler").lines()
    assert "libcuda: loads" in NVIDIA.lines() and "nvidia-smi: finds no GPU" in CudaSystem((), False).lines()


def test_variables_that_backends_read_are_shown() -> None:
    report = inspect_system(("NVIDIA",), ("A", "B"), {"B": "1", "C": "2"})
    assert report.variables == {"B": "1"} and report.makers == ("NVIDIA",) and "B=1" in system_lines(report)


def test_a_backend_without_a_part_of_its_own_is_listed_by_its_device() -> None:
    """And is never what auto takes: the CPU is faster."""
    part = doctor._part("reference", registry.backend("reference"))
    (report,) = map(doctor._report, part.listing.devices)
    assert report.works and report.is_software and not report.is_automatic and part.system is None
    assert doctor._choice([part]) == (None, None)
    assert not any("software renderer" in line for line in advice_for((report,), None, [part]))

    class Broken:
        def open_device(self, api: str | None, name: str | None, *, software: bool) -> None:
            raise DeviceError("not today")

    broken: Any = Broken()
    assert doctor._part("reference", broken).listing == Listing((), problem="not today")


def test_auto_takes_the_first_backend_that_has_a_choice() -> None:
    def part(name: str, count: int, chosen: int | None, problem: str | None = None) -> doctor._Part:
        listed: Any = (None,) * count
        return doctor._Part(name, Listing(listed, chosen, problem), None, None)

    assert doctor._choice([part("cuda", 2, 0), part("webgpu", 3, 1)]) == (0, None)
    assert doctor._choice([part("cuda", 1, None, "old"), part("webgpu", 3, 1)]) == (2, None)
    assert doctor._choice([part("cuda", 0, None, "old"), part("webgpu", 3, None, "none")]) == (None, "none")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Vulkan's files as Linux has them")
def test_driver_files_are_found_and_judged(tmp_path: Path) -> None:
    good = {"ICD": {"library_path": "libc.so.6"}}
    (tmp_path / "a.json").write_text(json.dumps(good))
    (tmp_path / "b.json").write_text("{}")
    (tmp_path / "c.json").write_text(json.dumps({"ICD": {"library_path": "./libabsent.so"}}))
    fine, empty, absent = vulkan.inspect({"VK_DRIVER_FILES": str(tmp_path)}).drivers
    assert fine.problem is None
    assert "not a driver file" in str(empty.problem)
    assert "libabsent.so" in str(absent.problem)
    home = vulkan.inspect({"HOME": str(tmp_path), "XDG_DATA_DIRS": "/nonexistent", "XDG_CONFIG_DIRS": "/nonexistent"})
    assert all(str(tmp_path) not in driver.file for driver in home.drivers)
    folder = tmp_path / ".local/share/vulkan/icd.d"
    folder.mkdir(parents=True)
    (folder / "mine.json").write_text(json.dumps(good))
    home = vulkan.inspect({"HOME": str(tmp_path)})
    assert str(folder / "mine.json") in [driver.file for driver in home.drivers]


def on(*devices: tuple[str, str, str | None], chosen: int | None = None, problem: str | None = None) -> Diagnosis:
    """A machine with such devices: graphics API, kind, and what is wrong."""
    reports = tuple(DeviceReport(f"GPU {i}", api, kind, "", Features(), p) for i, (api, kind, p) in enumerate(devices))
    return Diagnosis("here", {}, reports, chosen, problem, linux(), {}, (), ())


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
        return "\n".join(advice_for(on(*[("vulkan", kind, None) for kind in kinds]).devices))

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
        return [driver.file for driver in vulkan.inspect(environment).drivers]

    assert found(VK_ICD_FILENAMES=one) == [one] and found(VK_DRIVER_FILES=f"{two}:{one}") == [two, one]
    assert found(VK_DRIVER_FILES=two, VK_ICD_FILENAMES=one) == [two]
    elsewhere = {"XDG_DATA_DIRS": "/nonexistent", "XDG_CONFIG_DIRS": "/nonexistent", "HOME": str(tmp_path)}
    assert found(**elsewhere, VK_ADD_DRIVER_FILES=one)[-1] == one
