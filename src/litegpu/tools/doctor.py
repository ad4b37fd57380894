"""`litegpu doctor`: which devices there are, whether they compute correctly, which one is used, and what is missing."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from litegpu import version
from litegpu.gpu.backends import registry
from litegpu.gpu.backends.contract import Backend, Device
from litegpu.gpu.backends.diagnosis import Diagnosed, Doctor, ListedDevice, Listing, SystemPart, SystemReport
from litegpu.gpu.lang.features import Features
from litegpu.tools.doctor_system import inspect_system, missing_file_advice, permission_advice, system_lines

_PACKAGES = ("ai-edge-litert", "numpy")


@dataclass(frozen=True)
class DeviceReport:
    """One device through one backend or API. `problem` is None if a test kernel computed the right answer."""

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

    @property
    def is_software(self) -> bool:
        return self.kind == "software"

    @property
    def is_last_resort(self) -> bool:
        """Whether it is only taken where no other API has a device."""
        return self.backend in registry.entry_of(self.backend).last_resorts

    @property
    def is_automatic(self) -> bool:
        """Whether "auto" would take it if there were no other."""
        return registry.entry_of(self.backend).automatic and not (self.is_last_resort and self.is_software)


@dataclass(frozen=True)
class Diagnosis:
    """Everything that doctor found. `chosen` is the index in `devices` of what "auto" picks, or, where it is
    software, passes over; `problem` says why there is no such choice; `parts` is what the system has for a backend, by
    its name, and `notes` what backends say of themselves; `advice` is what to do, most useful first."""

    platform: str
    versions: dict[str, str]  # "missing" where a package is not installed
    devices: tuple[DeviceReport, ...]
    chosen: int | None
    problem: str | None
    system: SystemReport
    parts: Mapping[str, SystemPart]
    notes: tuple[str, ...]
    advice: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether some device that "auto" would take works; the exit status of `litegpu doctor` is 0 if so, else 1."""
        return any(device.works for device in self.devices if device.is_automatic)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"ok": self.ok, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class _Part:
    """What one backend says. `doctor` is None for one that has nothing to say but its device."""

    name: str
    listing: Listing
    doctor: Doctor | None
    system: SystemPart | None


def diagnose() -> Diagnosis:
    """Look at this machine: opens every device and runs tiny kernels on each. Takes seconds; never raises."""
    parts = [_part(name, backend) for name, backend in registry.every()]
    doctors = [part.doctor for part in parts if part.doctor is not None]
    devices = tuple(_report(listed) for part in parts for listed in part.listing.devices)
    chosen, problem = _choice(parts)
    makers = dict.fromkeys(maker for part in parts if part.system is not None for maker in part.system.makers)
    system = inspect_system(tuple(makers), [name for doctor in doctors for name in doctor.variables])
    return Diagnosis(
        platform=f"{platform.system()} {platform.release()} on {platform.machine()}",
        versions=_versions((*_PACKAGES, *(name for doctor in reversed(doctors) for name in doctor.packages))),
        devices=devices,
        chosen=chosen,
        problem=problem,
        system=system,
        parts={part.name: part.system for part in parts if part.system is not None},
        notes=tuple(part.listing.note for part in parts if part.listing.note),
        advice=tuple(_advice(devices, parts, system)),
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
        if chosen.is_software:
            asked = registry.owner(chosen.backend)
            lines.append(f"   device=auto uses the CPU; * is what device={asked} uses, software: {chosen.name}")
        else:
            lines.append(f"   * is what device=auto uses: {chosen.name}")
    elif diagnosis.problem:
        lines.append(f"   nothing to use: {diagnosis.problem}")
    facts = [*system_lines(diagnosis.system), *(line for part in diagnosis.parts.values() for line in part.lines())]
    lines += ["", "System", *(f"   {line}" for line in (*facts, *diagnosis.notes))]
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


def _part(name: str, backend: Backend) -> _Part:
    if isinstance(backend, Diagnosed):
        doctor = backend.doctor()
        return _Part(name, doctor.list_devices(), doctor, doctor.inspect(os.environ))
    try:
        device = backend.open_device(None, None, software=True)
    except Exception as error:
        return _Part(name, Listing((), problem=_text(error)), None, None)
    info = device.info
    kind = "software" if info.is_software else "unknown"
    listed = ListedDevice(info.name, info.backend, kind, info.driver, device.features, lambda: device)
    return _Part(name, Listing((listed,), 0), None, None)


def _choice(parts: Sequence[_Part]) -> tuple[int | None, str | None]:
    """The number, among all devices, of the one that "auto" tries first, or None and why there is none."""
    before, problem = 0, None
    for part in parts:
        if registry.ENTRIES[part.name].automatic:
            if part.listing.chosen is not None:
                return before + part.listing.chosen, None
            problem = part.listing.problem
        before += len(part.listing.devices)
    return None, problem


def _report(listed: ListedDevice) -> DeviceReport:
    features, unusable = listed.features, False
    try:
        device = listed.open()
    except Exception as error:
        problem: str | None = _text(error)
        unusable = True
    else:
        features, problem = device.features, _self_test(device)
    return DeviceReport(listed.name, listed.api, listed.kind, listed.driver, features, problem, unusable)


def _passed_over(device: DeviceReport, devices: Sequence[DeviceReport]) -> bool:
    """Whether it is no fault that a device does not work: OpenGL that has no compute shaders, beside another API."""
    return device.is_last_resort and device.unusable and any(d.works and not d.is_software for d in devices)


def _self_test(device: Device) -> str | None:
    """What is wrong with the device, or None."""
    try:
        return _computes_wrongly(device)
    except Exception as error:
        return _text(error)


def _computes_wrongly(device: Device) -> str | None:
    """Run x * 2 + 1 on the device, in float32 and if it has it in float16; what is wrong, or None."""
    import numpy as np

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


def _advice(devices: Sequence[DeviceReport], parts: Sequence[_Part], system: SystemReport) -> list[str]:
    repairs = [part.listing.repair for part in parts if part.listing.repair is not None]
    if repairs:
        return repairs
    advice = [
        f"{device.name} ({device.backend}) fails its self-test: update its driver, or avoid it with "
        "LITEGPU_WEBGPU_ADAPTER=<part of another device's name>."
        for device in devices
        if not device.works and not _passed_over(device, devices)
    ]
    real = [device for device in devices if device.works and not device.is_software]
    working = [f"{device.name} {device.driver}" for device in real]
    advice += permission_advice(system)
    for part in parts:
        if part.doctor is not None and part.system is not None:
            advice += part.doctor.advice(part.listing, part.system, system, working)
    advice += missing_file_advice(system, working)
    if not real and not advice:
        if any(device.works and registry.entry_of(device.backend).automatic for device in devices):
            advice.append("Only a software renderer was found: its results are right, but the CPU path is faster.")
        if system.shows_gpu is False:
            advice.append("No GPU is visible to this machine.")
        else:
            advice += filter(None, (part.doctor.install_advice() for part in parts if part.doctor is not None))
    return advice


def _versions(packages: Sequence[str]) -> dict[str, str]:
    versions = {"Python": platform.python_version(), "litegpu": version.__version__}
    for package in packages:
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
