"""Flags of the official tools that a command does not have: recognised, and answered with what to use instead."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from typer.core import TyperCommand

from litegpu.delegate_registry import is_here
from litegpu.delegates.elsewhere import ELSEWHERE
from litegpu.errors import OptionError

_ANDROID, _QUALCOMM, _APPLE = (ELSEWHERE[name].answer for name in ("nnapi", "hexagon", "coreml"))
_CPU = "the CPU runs XNNPACK with its defaults"
_SPEED = "it is about speed, not about results"
_PLUGIN = "in Python, litegpu.load_delegate loads such a library"
_BISECT = "in Python, it is an option of litegpu.GpuDelegate"

#: Flags that would put another delegate to work: leaving them out would measure something else than was asked for.
_DELEGATES = {
    **{f"use-{name}": foreign.answer for name, foreign in ELSEWHERE.items()},
    "use-ynnpack": _CPU,
    "external-delegate-path": _PLUGIN,
    "stable-delegate-settings-file": _PLUGIN,
}
#: Flags that change nothing here.
_IGNORED = {
    **dict.fromkeys(("use-xnnpack", "xnnpack-force-fp16", "xnnpack-weight-cache-file-path"), _CPU),
    **dict.fromkeys(("xnnpack-runtime-flags", "ynnpack-static-shape", "ynnpack-fast-math"), _CPU),
    **dict.fromkeys(("ynnpack-consistent-arithmetic", "ynnpack-no-excess-precision"), _CPU),
    **dict.fromkeys(("nnapi-execution-preference", "nnapi-execution-priority", "nnapi-accelerator-name"), _ANDROID),
    **dict.fromkeys(("disable-nnapi-cpu", "nnapi-allow-fp16", "nnapi-allow-dynamic-dimensions"), _ANDROID),
    **dict.fromkeys(("nnapi-use-burst-mode", "nnapi-support-library-path"), _ANDROID),
    **dict.fromkeys(("hexagon-profiling", "hexagon-lib-path"), _QUALCOMM),
    "coreml-version": _APPLE,
    "external-delegate-options": _PLUGIN,
    **dict.fromkeys(("gpu-inference-for-sustained-speed", "gpu-wait-type"), _SPEED),
    "gpu-experimental-enable-quant": "8-bit ops always run on the GPU, as the official tool has it",
    "min-nodes-per-partition": _BISECT,
    **dict.fromkeys(("first-delegate-node-index", "last-delegate-node-index"), _BISECT),
    **dict.fromkeys(
        ("delegate-serialize-dir", "delegate-serialize-token"), "litegpu cache says what is kept, and where"
    ),
    "num-threads": "use --num_interpreter_threads",
}
_OFF = ("", "0", "false")


class OfficialCommand(TyperCommand):
    """A command that warns of official flags it has no use for, and refuses those of other delegates."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Without the flags that are recognised. Raises OptionError for a delegate that does not exist here."""
        return super().parse_args(ctx, without_official(args))


class DelegateFlagsCommand(TyperCommand):
    """A command that has the official flags but for those of other delegates."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, without_official(args, ignored={}))


def without_official(arguments: Sequence[str], ignored: Mapping[str, str] = _IGNORED) -> list[str]:
    """The arguments without flags that change nothing, and with --delegate for the flags of a delegate of another
    system that is here. Raises OptionError for one that is not."""
    kept = []
    for argument in arguments:
        flag, _, value = argument.partition("=")
        name = flag.removeprefix("--").replace("_", "-") if flag.startswith("--") else ""
        if name in _DELEGATES:
            if value in _OFF and "=" in argument:
                continue
            if is_here(name.removeprefix("use-")):
                kept.append(f"--delegate={name.removeprefix('use-')}")
            else:
                raise OptionError(f"{flag} cannot be had here: {_DELEGATES[name]}")
        elif name in ignored:
            print(f"litegpu: {flag} is ignored: {ignored[name]}", file=sys.stderr)
        else:
            kept.append(argument)
    return kept
