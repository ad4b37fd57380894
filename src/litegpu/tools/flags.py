"""The flags of the official benchmark tool, by name, and how a command line is read into them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
from typing import Any

from litegpu.errors import OptionError

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def _flag(default: Any, label: str, meaning: str) -> Any:
    return dataclass_field(default=default, metadata={"label": label, "help": meaning})


@dataclass(frozen=True)
class BenchmarkFlags:
    """What `litegpu benchmark` is told; names, types, defaults and meanings are those of the official tool unless the
    help says otherwise."""

    graph: str = _flag("", "Graph", "the .tflite file (required)")
    num_threads: int = _flag(-1, "Num threads", "CPU threads; -1: one")
    num_runs: int = _flag(50, "Min num runs", "timed runs wanted")
    min_secs: float = _flag(1.0, "Min runs duration (seconds)", "keep running at least so long")
    max_secs: float = _flag(150.0, "Max runs duration (seconds)", "start no further run after so long")
    run_delay: float = _flag(-1.0, "Inter-run delay (seconds)", "sleep after each run; 0 or less: none")
    warmup_runs: int = _flag(1, "Min warmup runs", "warm-up runs wanted")
    warmup_min_secs: float = _flag(0.5, "Min warmup runs duration (seconds)", "keep warming up at least so long")
    use_gpu: bool = _flag(False, "Use gpu", "run on the GPU what it can take")
    gpu_precision_loss_allowed: bool = _flag(True, "Allow lower precision in gpu", "float16 where the GPU has it")
    gpu_experimental_enable_quant: bool = _flag(
        True, "Enable quant in gpu delegate", "8-bit nodes too (officially moot)"
    )
    gpu_backend: str = _flag("", "Force gpu backend", "cuda, webgpu, vulkan, metal, d3d12 or gl; empty: the best")
    max_delegated_partitions: int = _flag(0, "Max number of delegated partitions", "0 means 1, as officially")
    require_full_delegation: bool = _flag(False, "Require full delegation", "fail unless the GPU takes every op")
    input_layer: str = _flag("", "Input layers", "names of all inputs, with commas between")
    input_layer_shape: str = _flag("", "Input shapes", "their shapes: 1,224,224,3:1,10")
    input_layer_value_range: str = _flag("", "Input value ranges", "name,low,high:name,low,high")
    input_layer_value_files: str = _flag("", "Input value files", "name:path,name:path; raw bytes")
    enable_op_profiling: bool = _flag(False, "Enable op profiling", "time each GPU kernel after the runs")
    dry_run: bool = _flag(False, "Run w/o invoking kernels", "load and prepare only")
    verbose: bool = _flag(False, "Log parameter values verbosely", "print every parameter")


def parse_flags(arguments: Sequence[str]) -> tuple[BenchmarkFlags, list[str], list[str]]:
    """The flags, the names of those given, and the arguments that are none of them.

    `--name=value` and `--name value` are read, and a bare `--name` is true for booleans. The first of several counts.
    Raises OptionError for a value that does not fit the flag's type.
    """
    kinds = {field.name: type(field.default) for field in fields(BenchmarkFlags)}
    values: dict[str, Any] = {}
    unknown: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, has_value, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or name not in kinds:
            unknown.append(argument)
            continue
        if not has_value:
            follows = bool(rest) and not rest[0].startswith("--")
            if kinds[name] is bool:
                text = rest.pop(0) if follows and rest[0] in _BOOLEANS else "true"
            elif follows:
                text = rest.pop(0)
            else:
                raise OptionError(f"--{name} needs a value: --{name}=...")
        value = _converted(name, text, kinds[name])
        if name in values:
            unknown.append(argument)
        else:
            values[name] = value
    flags = BenchmarkFlags(**values)
    if flags.num_threads < -1 or flags.num_threads == 0:
        raise OptionError(f"--num_threads is {flags.num_threads}; it must be 1 or more, or -1")
    return flags, list(values), unknown


def usage() -> str:
    """One line per flag: name with default, type, meaning."""
    rows = []
    for field in fields(BenchmarkFlags):
        default = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
        rows.append((f"--{field.name}={default}", type(field.default).__name__, field.metadata["help"]))
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    return "\n".join(f"  {flag:<{widths[0]}}  {kind:<{widths[1]}}  {meaning}" for flag, kind, meaning in rows)


def suggestion(argument: str) -> str:
    """The flag that an unknown argument resembles, for a message; empty if there is none."""
    name = argument.removeprefix("--").partition("=")[0]
    near = difflib.get_close_matches(name, [field.name for field in fields(BenchmarkFlags)], 1)
    return f" (did you mean --{near[0]}?)" if near else ""


def _converted(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text not in _BOOLEANS:
            raise OptionError(f"--{name} is {text!r}; it must be true, false, 1 or 0")
        return _BOOLEANS[text]
    try:
        return kind(text)
    except ValueError:
        raise OptionError(f"--{name} is {text!r}; it must be a number of type {kind.__name__}") from None
