"""The Typer application that the commands join, and what they share: choices of device and precision, JSON output."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

app = typer.Typer(
    help="Run .tflite models on any GPU, with the CPU for the rest, and see whether it was worth it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Start with [bold]litegpu doctor[/], then [bold]litegpu demo[/]. LITEGPU_DEBUG=1..4 shows what goes on.",
)


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    WEBGPU = "webgpu"
    CUDA = "cuda"


class Precision(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    AUTO = "auto"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="[ADDRESS]",
        help="Work on Ray: on the cluster at this address (host:port, ray://...); without one, on the cluster that is "
        "running, else on a local one; local: always on a new local one.",
        show_default=False,
    ),
]
_ADDRESS = re.compile(r"auto|local|ray://.+|[\w.-]+:\d+|\[[0-9a-fA-F:]+\]:\d+")


def with_ray_address(arguments: Sequence[str]) -> list[str]:
    """The arguments, with what `--ray` means without an address: Typer has no options whose value may be absent."""
    found: list[str] = []
    for i, argument in enumerate(arguments):
        if argument == "--ray" and not _ADDRESS.fullmatch("".join(arguments[i + 1 : i + 2])):
            argument = "--ray=auto"
        found.append(argument)
    return found


def print_json(value: object) -> None:
    """Print one JSON object on standard output."""
    print(json.dumps(value, indent=2, default=str))
