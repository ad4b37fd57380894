"""`litegpu doctor`: which devices there are, whether they compute correctly, which one is used, and what is missing."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import litegpu
from litegpu.errors import DeviceError
from litegpu.gpu.lang.features import Features
from litegpu.tools.doctor_system import SystemReport, inspect_system, system_advice

if TYPE_CHECKING:
    from litegpu.gpu.backends.contract import Device
    from litegpu.gpu.backends.webgpu.adapters import AdapterInfo

_PACKAGES = ("ai-edge-litert", "wgpu", "numpy", "cuda-bindings", "nvidia-cuda-nvrtc")


@dataclass(frozen=True)
class DeviceReport:
    """One device through CUDA or one graphics API. `problem` is None if a test kernel computed the right answer."""

    name: str
    backend: str
    kind: str
    driver: str
    features: Features
    problem: str | None
    unusable: bool = False  # it could not even be opened, as OpenGL without compute shaders cannot

    @property
    def works(self) -> bool:
        return self.problem is None


@dataclass(frozen=True)
class Diagnosis:
    """Everything that doctor found. `chosen` is the index in `devices` of what "auto" picks, or, where it is
    software, passes over; `webgpu_problem` says why
    there is no such choice; `advice` is what to do, most useful first."""

    platform: str
    versions: dict[str, str]  # "missing" where a package is not installed
    devices: tuple[DeviceReport, ...]
    chosen: int | None
    webgpu_problem: str | None
    system: SystemReport
    cuda: str  # versions of the driver and of NVRTC, or why CUDA is not used
    advice: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether some device that "auto" would take works; the exit status of `litegpu doctor` is 0 if so, else 1."""
        return any(device.works for device in self.devices if (device.backend, device.kind) != ("gl", "software"))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"ok": self.ok, **dataclasses.asdict(self)}


def diagnose() -> Diagnosis:
    """Look at this machine: opens every device and runs tiny kernels on each. Takes seconds; never raises."""
    cuda, cuda_devices = _cuda()
    adapters, problem = _adapters()
    devices = (*cuda_devices, *map(_adapter_report, adapters))
    chosen, choice_problem = _choice(adapters) if problem is None else (None, None)
    if cuda_devices:
        chosen = 0
    system = inspect_system()
    return Diagnosis(
        platform=f"{platform.system()} {platform.release()} on {platform.machine()}",
        versions=_versions(),
        devices=devices,
        chosen=chosen,
        webgpu_problem=problem or choice_problem,
        system=system,
        cuda=cuda,
        advice=tuple(_advice(devices, problem, system, cuda)),
    )


def render_text(diagnosis: Diagnosis) -> str:
    """The diagnosis for a terminal."""
    lines = [diagnosis.platform, ", ".join(f"{name} {version}" for name, version in diagnosis.versions.items()), ""]
    lines.append("Devices")
    for i, device in enumerate(diagnosis.devices):
        mark = "*" if i == diagnosis.chosen else " "
        lines.append(f" {mark} {device.name} ({device.backend}, {device.kind}), driver {device.driver or 'unknown'}")
        lines.append(f"     {_features_text(device.features)}")
        if _passed_over(device, diagnosis.devices):
            lines.append("     not used: this OpenGL cannot compute, and another API of this list can")
        else:
            lines.append(f"     self-test: {'passed' if device.works else 'FAILED: ' + str(device.problem)}")
    if not diagnosis.devices:
        lines.append("   none")
    if diagnosis.chosen is not None:
        chosen = diagnosis.devices[diagnosis.chosen]
        if chosen.kind == "software":
            lines.append(f"   device=auto uses the CPU; * is what device=webgpu uses, software: {chosen.name}")
        else:
            lines.append(f"   * is what device=auto uses: {chosen.name}")
    elif diagnosis.webgpu_problem:
        lines.append(f"   nothing to use: {diagnosis.webgpu_problem}")
    lines += ["", "System", *(f"   {line}" for line in diagnosis.system.lines())]
    lines += [f"   CUDA: {diagnosis.cuda}"]
    if diagnosis.advice:
        lines += ["", "What to do", *(f" - {line}" for line in diagnosis.advice)]
    lines += ["", _verdict(diagnosis)]
    return "\n".join(lines)


# ----------------------------------------------------------------------------------------------


def _verdict(diagnosis: Diagnosis) -> str:
    if not diagnosis.ok:
        return "The GPU path does not work here: models run on the CPU."
    if diagnosis.chosen is not None and not diagnosis.devices[diagnosis.chosen].works:
        return "The GPU path works here, but not on the device that auto picks: name another one."
    return "The GPU path works here."


def _cuda() -> tuple[str, list[DeviceReport]]:
    """What there is of CUDA, and its devices."""
    from litegpu.gpu.backends.cuda import opening as cuda

    try:
        found, versions = cuda.list_devices(), cuda.versions()
    except DeviceError as error:
        return f"not used: {error}", []
    reports = []
    for one in found:
        driver = f"CUDA {versions.driver}, NVRTC {versions.nvrtc}"
        features = Features()
        try:
            features, problem = cuda.open_device(one.index).features, _attempt(_cuda_self_test, one.index)
        except Exception as error:
            problem = _text(error)
        kind = f"compute capability {one.capability / 10}"
        reports.append(DeviceReport(f"{one.name} {one.uuid}", "cuda", kind, driver, features, problem))
    return f"driver for CUDA {versions.driver}, NVRTC {versions.nvrtc}", reports


def _adapters() -> tuple[Sequence[AdapterInfo], str | None]:
    """All adapters, those of OpenGL last, and why there are none."""
    try:
        from litegpu.gpu.backends.webgpu.adapters import list_adapters

        found = list_adapters("auto")
    except Exception as error:
        return [], f"wgpu does not work: {_text(error)}"
    try:
        return [*found, *list_adapters("gl")], None
    except DeviceError:
        return found, None


def _choice(adapters: Sequence[AdapterInfo]) -> tuple[int | None, str | None]:
    from litegpu.gpu.backends.webgpu.adapters import choose_adapter

    try:
        chosen = choose_adapter()
    except DeviceError as error:
        return None, str(error)
    return next((i for i, adapter in enumerate(adapters) if adapter == chosen), None), None


def _attempt(test: Any, device: Any) -> str | None:
    try:
        return test(device)  # type: ignore[no-any-return]
    except Exception as error:
        return _text(error)


def _adapter_report(adapter: AdapterInfo) -> DeviceReport:
    from litegpu.gpu.backends.webgpu.device import WebGpuDevice

    problem: str | None
    unusable = False
    try:
        device = WebGpuDevice(adapter)
    except Exception as error:
        problem, unusable = _text(error), True
    else:
        problem = _attempt(_self_test, device)
    return DeviceReport(
        adapter.name, adapter.backend, adapter.kind, adapter.driver, adapter.features, problem, unusable
    )


def _passed_over(device: DeviceReport, devices: Sequence[DeviceReport]) -> bool:
    """Whether it is no fault that a device does not work: OpenGL that has no compute shaders, beside another API."""
    return device.backend == "gl" and device.unusable and any(d.works and d.kind != "software" for d in devices)


def _self_test(device: Device) -> str | None:
    return _computes_wrongly(device)


def _cuda_self_test(index: int) -> str | None:
    from litegpu.gpu.backends.cuda.opening import open_device

    return _computes_wrongly(open_device(index))


def _computes_wrongly(device: Device) -> str | None:
    """Run x * 2 + 1 on the device, in float32 and if it has it in float16; what is wrong, or None."""
    import numpy as np

    from litegpu.gpu.backends import registry
    from litegpu.gpu.graph import DType
    from litegpu.gpu.lang import Kernel, f16, f32, trace
    from litegpu.gpu.program import Binding, Dispatch, KernelCode, MemoryReport, Port, Program

    count, far = 256, 1024  # elements; byte offset of the output, aligned for every device

    def double_and_add_one(k: Kernel) -> None:
        x, y = k.buffer("x", f32, count), k.buffer("y", f32, count)
        i = k.group_id() * k.workgroup[0] + k.local_id()
        y[i] = k.convert(k.convert(x[i], kind) * 2 + 1, f32)

    for kind in (f32, f16):
        if kind == f16 and not device.features.float16:
            continue
        kernel = trace(double_and_add_one, "self_test", (64, 1, 1), (count // 64, 1, 1))
        source = registry.of_language(device.target).print_kernel(kernel, device.features)
        ports = [Port(name, 0, (1, 1, 1, count), DType.FLOAT32, at, 4 * count) for name, at in (("x", 0), ("y", far))]
        program = Program(
            kernels=(KernelCode(kernel.name, source, kernel.workgroup, ("read_write", "read_write")),),
            dispatches=(
                Dispatch(0, kernel.dispatch, (Binding("arena", 0, far), Binding("arena", far, far)), "self-test", ()),
            ),
            constants=np.zeros(0, np.uint8),
            arena_size=2 * far,
            inputs=(ports[0],),
            outputs=(ports[1],),
            memory=MemoryReport(2 * far, 2 * far, 2 * far),
        )
        x, y = np.arange(count, dtype=np.float32), np.full(count, np.nan, np.float32)
        session = device.session(program)
        try:
            session.write(0, x)
            session.run()
            session.read(0, y)
        finally:
            session.close()
        wrong = np.flatnonzero(y != 2 * x + 1)
        if wrong.size:
            i = int(wrong[0])
            return (
                f"a {kind} kernel computed {y[i]} instead of {2 * x[i] + 1} ({wrong.size} of {count} values are wrong)"
            )
    return None


def _advice(devices: Sequence[DeviceReport], problem: str | None, system: SystemReport, cuda: str = "") -> list[str]:
    if problem is not None:
        return [f"Reinstall wgpu (pip install --force-reinstall wgpu): {problem}"]
    working = [device for device in devices if device.works]
    advice = [
        f"{device.name} ({device.backend}) fails its self-test: update its driver, or avoid it with "
        "LITEGPU_WEBGPU_ADAPTER=<part of another device's name>."
        for device in devices
        if not device.works and not _passed_over(device, devices)
    ]
    real = [device for device in working if device.kind != "software"]
    if system.nvidia.present and not any(device.backend == "cuda" for device in devices):
        advice.append(f"The NVIDIA GPU is faster through CUDA, which is {cuda}.")
    advice += system_advice(system, [f"{device.name} {device.driver}" for device in real])
    if not real and not advice:
        from litegpu.gpu.backends.webgpu.adapters import install_advice

        if working:
            advice.append("Only a software renderer was found: its results are right, but the CPU path is faster.")
        advice.append(install_advice() if system.shows_gpu is not False else "No GPU is visible to this machine.")
    return advice


def _versions() -> dict[str, str]:
    versions = {"Python": platform.python_version(), "litegpu": litegpu.__version__}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "missing"
    return versions


def _features_text(features: Features) -> str:
    def word(name: str, there: bool) -> str:
        return name if there else f"no {name}"

    return (
        f"{word('float16', features.float16)}, {word('subgroups', features.subgroups)}, "
        f"{word('timestamps', features.timestamps)}; {features.max_threads} threads and "
        f"{features.max_shared_bytes >> 10} KiB shared memory per workgroup, {features.max_buffers} buffers per kernel "
        f"of up to {features.max_binding_bytes >> 20} MiB"
    )


def _text(error: Exception) -> str:
    return str(error).strip() or type(error).__name__
