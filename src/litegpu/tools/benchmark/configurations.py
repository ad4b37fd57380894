"""What --compare, --perf_options_list and --batch_sizes name: configurations, each with flags of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from litegpu.delegate_registry import known_delegates
from litegpu.device_choice import is_device, names_delegate
from litegpu.errors import OptionError
from litegpu.gpu.backends import registry
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.parse import with_changes

_BACKENDS = registry.words()[1:]
_SHORT = {
    "threads": "num_threads",
    "xnnpack": "use_xnnpack",
    "precision": "gpu_precision",
    "arithmetic": "gpu_arithmetic",
    "backend": "gpu_backend",
    "wait": "gpu_wait_type",
    "device": "gpu_device",
    "tuning": "gpu_tuning",
    "partitions": "max_delegated_partitions",
    "quantized": "gpu_experimental_enable_quant",
}
_PERFORMANCE_OPTIONS = ("all", "cpu", "gpu", "none")
_ELSEWHERE = ("nnapi", "coreml", "dsp")
_THREADS = (1, 2, 4)


@dataclass(frozen=True)
class Configuration:
    """A name, and the flags that it stands for."""

    label: str
    flags: BenchmarkFlags


def configurations(flags: BenchmarkFlags, wanted: str | Mapping[str, Mapping[str, Any]]) -> list[Configuration]:
    """What is to be compared, with `flags` for what is not said of it.

    `wanted`: `cpu,gpu,gpu:precision=float32:wait=active`, where each is cpu, gpu, cuda:1 or a backend (cuda, webgpu
    ...), followed by settings: the short names threads, xnnpack, precision, arithmetic, backend, wait, device, tuning,
    partitions and quantized, or any flag. Or the name of another delegate, followed by options of its, and threads and
    xnnpack of the CPU: `openvino:device=GPU:precision=float16`. Or name -> settings. Raises OptionError.
    """
    if not isinstance(wanted, str):
        return [Configuration(label, with_changes(flags, changes)) for label, changes in wanted.items()]
    found = [Configuration(item, _flags(flags, item)) for item in filter(None, wanted.split(","))]
    if not found:
        raise OptionError("--compare names no configuration: use for instance --compare=cpu,gpu")
    labels = [c.label for c in found]
    if len(set(labels)) < len(labels):
        raise OptionError(f"--compare={wanted} names a configuration twice")
    return found


def performance_options(flags: BenchmarkFlags, wanted: str) -> list[Configuration]:
    """The official tool's configurations for --perf_options_list, under its names. Raises OptionError."""
    names = list(dict.fromkeys(filter(None, wanted.split(","))))
    for name in names:
        if name in _ELSEWHERE:
            raise OptionError(f"--perf_options_list={wanted}: there is no {name} here; use gpu")
        if name not in _PERFORMANCE_OPTIONS:
            known = ", ".join(_PERFORMANCE_OPTIONS)
            raise OptionError(f"--perf_options_list={wanted}: {name!r} is unknown; it has to be one of {known}")
    if "none" in names:
        if len(names) > 1:
            raise OptionError("--perf_options_list: 'none' has to stand alone")
        return [Configuration("none", flags)]
    found = []
    plain = replace(flags, use_gpu=False, use_xnnpack=False)
    if "all" in names or "cpu" in names:
        for threads in _THREADS:
            name = f"cpu w/ {threads} threads"
            found.append(Configuration(name, replace(plain, num_threads=threads)))
            found.append(Configuration(f"{name} (xnnpack)", replace(plain, num_threads=threads, use_xnnpack=True)))
    if "all" in names or "gpu" in names:
        gpu = replace(plain, use_gpu=True, gpu_precision="")
        found.append(Configuration("gpu-fp16", replace(gpu, gpu_precision_loss_allowed=True)))
        found.append(Configuration("gpu-default", replace(gpu, gpu_precision_loss_allowed=False)))
    return found


def batch_sizes(text: str) -> list[int]:
    """The numbers in --batch_sizes. Raises OptionError."""
    try:
        found = [int(item) for item in filter(None, text.split(","))]
    except ValueError:
        found = [0]
    if any(n < 1 for n in found):
        raise OptionError(f"--batch_sizes={text} is not a list of positive integers such as 1,4,16")
    return list(dict.fromkeys(found))


def _flags(flags: BenchmarkFlags, item: str) -> BenchmarkFlags:
    kind, *settings = item.split(":")
    changes: dict[str, str] = {"use_gpu": "false" if kind == "cpu" else "true"}
    if kind in _BACKENDS:
        changes["gpu_backend"] = kind
        if settings and is_device(f"{kind}:{settings[0]}"):  # cuda:1, as everywhere
            changes["gpu_device"] = settings.pop(0)
    elif kind not in ("cpu", "gpu") and names_delegate(kind):
        return _named(flags, kind, settings)
    elif kind not in ("cpu", "gpu"):
        known = ", ".join(("cpu", "gpu", *_BACKENDS, *(d.name for d in known_delegates() if d.name != "gpu")))
        raise OptionError(f"{item!r} in --compare begins with none of {known}")
    for setting in settings:
        name, value = _setting(setting)
        changes[_SHORT.get(name, name)] = value
    return with_changes(flags, changes)


def _named(flags: BenchmarkFlags, kind: str, settings: Sequence[str]) -> BenchmarkFlags:
    """The flags for a delegate by name."""
    changes = {"use_gpu": "false", "external_delegate_path": kind}
    options = []
    for setting in settings:
        name, value = _setting(setting)
        if name in ("threads", "xnnpack"):
            changes[_SHORT[name]] = value
        else:
            options.append(f"{name}:{value}")
    return with_changes(flags, changes | {"external_delegate_options": ";".join(options)})


def _setting(text: str) -> tuple[str, str]:
    """Name and value. Raises OptionError."""
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"{text!r} in --compare is not name=value")
    return name, value
