"""How a command line, or keyword arguments, are read into the flags."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields
from typing import Any

from litegpu.delegate_registry import is_here
from litegpu.errors import OptionError
from litegpu.tools.benchmark.answers import DELEGATES, KNOWN
from litegpu.tools.benchmark.flags import LONGEST_PAUSE, BenchmarkFlags, LoadFlags, ReportFlags

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_OFF = ("", "false", "0")
_LARGEST = 2**31 - 1  # the official flags hold 32 bits
_WIDEST = 1000  # characters of a column
_PROFILE_MODES = ("stdout", "csv", "proto", "json")


@dataclass(frozen=True)
class CommandLine:
    """`given` are the names of the flags that were given, `unknown` the arguments that are none, or none any more, and
    `answers` what to say about flags without effect."""

    flags: BenchmarkFlags
    report: ReportFlags
    load: LoadFlags
    given: tuple[str, ...]
    unknown: tuple[str, ...]
    answers: tuple[str, ...]


def parse_flags(arguments: Sequence[str]) -> CommandLine:
    """Read `--name=value` and `--name value`; a bare `--name` is true for booleans. The first of several counts, and
    hyphens in names count as underscores. Without --graph, the first word that is no flag's is the model.

    Raises OptionError for a value that does not fit the flag's type, and for a delegate that there is not here.
    """
    kinds = {field.name: field.metadata["kind"] for field in _all_fields()}
    values: dict[str, Any] = {}
    unknown: list[str] = []
    answers: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        name, has_value, text = argument.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if not argument.startswith("--") or (name not in kinds and name not in KNOWN):
            unknown.append(argument)
            continue
        kind = kinds.get(name, str)
        if not has_value:
            follows = bool(rest) and not rest[0].startswith("--")
            if kind is bool or name not in kinds:
                text = rest.pop(0) if follows and rest[0] in _BOOLEANS else "true"
            elif follows:
                text = rest.pop(0)
            else:
                raise OptionError(f"--{name} needs a value: --{name}=...")
        if name in KNOWN:
            if name in DELEGATES and text not in _OFF:
                if is_here(name.removeprefix("use_")):
                    values.setdefault("external_delegate_path", name.removeprefix("use_"))
                    continue
                raise OptionError(f"--{name}={text} cannot be had: {DELEGATES[name]}")
            answers.append(f"--{name} has no effect: {KNOWN[name]}")
        elif name in values:
            unknown.append(argument)
        else:
            values[name] = _converted(name, text, kind)
    words = [a for a in unknown if not a.startswith("-")]
    if "graph" not in values and words:
        values["graph"] = words[0]
        unknown.remove(words[0])
    report = ReportFlags(**_those_of(ReportFlags, values))
    load = LoadFlags(**_those_of(LoadFlags, values))
    report.check()
    load.check()
    flags = checked(BenchmarkFlags(**_those_of(BenchmarkFlags, values)))
    return CommandLine(flags, report, load, tuple(values), tuple(unknown), tuple(answers))


def flags_from(model: str | os.PathLike[str] | BenchmarkFlags, changes: Mapping[str, Any]) -> BenchmarkFlags:
    """The flags for a model by keyword arguments of the flags' names. Raises OptionError for unknown names and for
    values of another type."""
    if isinstance(model, BenchmarkFlags):
        return with_changes(model, changes)
    if not isinstance(model, str | os.PathLike):
        raise OptionError(f"the model is {type(model).__name__}; it must be the path of a file")
    return with_changes(BenchmarkFlags(graph=os.fspath(model)), changes)


def with_changes(flags: BenchmarkFlags, changes: Mapping[str, Any]) -> BenchmarkFlags:
    """The flags with others in place of some; text is read as on the command line. Raises OptionError."""
    from dataclasses import replace

    kinds = {field.name: field.metadata["kind"] for field in fields(BenchmarkFlags)}
    values = {}
    for name, value in changes.items():
        if name not in kinds:
            raise OptionError(f"litegpu benchmark has no flag {name}{suggestion(name)}")
        kind = kinds[name]
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if isinstance(value, str):
            value = _converted(name, value, kind)
        elif kind is float and type(value) is int:
            value = float(value)
        elif not (type(value) is kind or (value is None and name == "use_xnnpack")):
            raise OptionError(f"{name} is {value!r}; it must be of type {kind.__name__}")
        values[name] = value
    return checked(replace(flags, **values))


def checked(flags: BenchmarkFlags) -> BenchmarkFlags:
    """The same flags; raises OptionError for values that can never be right."""
    for field in fields(BenchmarkFlags):
        value = getattr(flags, field.name)
        if type(value) is int and abs(value) > _LARGEST and value != field.default:
            raise OptionError(f"--{field.name} is {value}; it must be from {-_LARGEST} to {_LARGEST}")
        if type(value) is float and math.isnan(value):
            raise OptionError(f"--{field.name} is nan; it must be a number of type float")
        if field.name.endswith("_display_length") and not 0 <= value <= _WIDEST:
            raise OptionError(f"--{field.name} is {value}; it must be from 0 to {_WIDEST}")
    if flags.max_secs < 0:
        raise OptionError(f"--max_secs is {flags.max_secs:g}: no run would be started; it must be 0 or more")
    for name, seconds in (("run_delay", flags.run_delay), ("run_frequency", flags.pace)):
        if seconds > LONGEST_PAUSE:
            raise OptionError(f"--{name}={getattr(flags, name):g} would wait for more than {LONGEST_PAUSE:g} s")
    if flags.num_threads < -1 or flags.num_threads == 0:
        raise OptionError(f"--num_threads is {flags.num_threads}; it must be 1 or more, or -1")
    if flags.op_profiling_output_mode not in _PROFILE_MODES:
        known = ", ".join(_PROFILE_MODES)
        raise OptionError(
            f"--op_profiling_output_mode is {flags.op_profiling_output_mode!r}; it must be one of {known}"
        )
    if flags.export_model_runtime_info and not flags.model_runtime_info_output_file:
        raise OptionError("--export_model_runtime_info needs --model_runtime_info_output_file=FILE")
    for name in ("max_delegated_partitions", "min_nodes_per_partition", "first_delegate_node_index"):
        if getattr(flags, name) < 0:
            raise OptionError(f"--{name} is {getattr(flags, name)}; it must be 0 or more")
    return flags


def usage() -> str:
    """One line per flag: name with default, type, meaning."""
    rows = []
    for field in _all_fields():
        default = "" if field.default is None else str(field.default)
        default = default.lower() if field.metadata["kind"] is bool else default
        rows.append((f"--{field.name}={default}", field.metadata["kind"].__name__, field.metadata["help"]))
    widths = [max(len(row[i]) for row in rows if len(row[i]) < 40) for i in range(2)]
    return "\n".join(f"  {flag:<{widths[0]}}  {kind:<{widths[1]}}  {meaning}" for flag, kind, meaning in rows)


def suggestion(argument: str) -> str:
    """The flag that an unknown argument resembles, for a message; empty if there is none."""
    name = argument.removeprefix("--").partition("=")[0].replace("-", "_")
    near = difflib.get_close_matches(name, [field.name for field in _all_fields()], 1)
    return f" (did you mean --{near[0]}?)" if near else ""


def _all_fields() -> tuple[Field[Any], ...]:
    return (*fields(BenchmarkFlags), *fields(LoadFlags), *fields(ReportFlags))


def _those_of(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def _converted(name: str, text: str, kind: type) -> Any:
    if kind is bool:
        if text not in _BOOLEANS:
            raise OptionError(f"--{name} is {text!r}; it must be true, false, 1 or 0")
        return _BOOLEANS[text]
    try:
        value = kind(text)
        if value != value:  # no loop ends, and none begins, by NaN
            raise ValueError
        return value
    except ValueError:
        raise OptionError(f"--{name} is {text!r}; it must be a number of type {kind.__name__}") from None
