"""The Typer application that the commands join, and what they share: choices of device and precision, JSON output."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from litegpu.device_choice import device_words, is_device
from litegpu.tools.json_text import json_text

#: The exit status after Ctrl-C, as shells give it: 128 and the number of SIGINT.
INTERRUPTED = 130
#: The same of SIGTERM.
TERMINATED = 143


class Terminated(KeyboardInterrupt):
    """SIGTERM, where it is heeded like Ctrl-C."""


@contextlib.contextmanager
def heeding_sigterm() -> Iterator[None]:
    """SIGTERM, which would end the process at once, raises Terminated."""

    def heed(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, heed) if threading.current_thread() is threading.main_thread() else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


class _Interruptible(TyperGroup):
    """Commands that Ctrl-C ends with exit status 130 and one line, unless they say more themselves."""

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _telling():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        with _telling():
            return super().invoke(ctx)


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        print("litegpu: interrupted", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    cls=_Interruptible,
    help="Run .tflite models on any GPU, with the CPU for the rest, and see whether it was worth it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Start with [bold]litegpu doctor[/], then [bold]litegpu demo[/]. LITEGPU_DEBUG=1..4 shows what goes on.",
)


class Precision(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    AUTO = "auto"


class ArithmeticKind(StrEnum):
    AUTO = "auto"
    FLOAT = "float"
    INTEGER = "integer"


#: Of a GPU.
Arithmetic = Annotated[
    ArithmeticKind,
    typer.Option(help="Of a GPU with 8-bit tensors: integer is equal to the CPU, auto the faster."),
]


#: Of a model's inputs; what it takes is in tools/entered.py.
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        "--input_shape",
        help="Of an input whose size the file leaves open: 1,16000, or NAME=1,16000. May be repeated.",
        show_default=False,
    ),
]


class OnError(StrEnum):
    """What an input that cannot be read does."""

    FAIL = "fail"
    SKIP = "skip"


def _device(text: str) -> str:
    if not is_device(text):
        raise typer.BadParameter(f"{text!r} is none of {', '.join(device_words())}")
    return text


Device = Annotated[
    str,
    typer.Option(
        parser=_device,
        metavar=f"[{'|'.join(device_words('N'))}]",
        help="Where to run: auto is a GPU if there is one (software does not count), else the CPU.",
    ),
]

#: The largest whole numbers that flags take: what the official tools' hold, and what a machine could be asked for.
LARGEST = 2**31 - 1
MOST_THREADS = 4096
MOST_WORKERS = 1024
MOST_ITEMS = 1 << 16  # at once


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
Patience = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="A worker process without a sign of life for so long is replaced, and its work is another one's.",
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
    print(json_text(value))
