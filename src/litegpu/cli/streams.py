"""Standard output and error of the command: files cannot command a terminal through them, and a reader may leave."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from litegpu.visible import VisibleStream, terminal_of


def open_streams(arguments: Sequence[str]) -> None:
    """Have everything that is printed pass visible(). Help is left alone: it is all our own, and has colours."""
    if sys.stdout is None:  # closed by whoever started us: nobody wants to read it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (until the end of the process)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal's encoding lacks is no error
            stream.reconfigure(errors="backslashreplace")
    if arguments and "--help" not in arguments:
        sys.stdout, sys.stderr = VisibleStream(sys.stdout), VisibleStream(sys.stderr)


def end_streams() -> None:
    """Write what is left. A reader that has gone away is no error worth a word; any other is an exit status of 1."""
    sys.stderr = terminal_of(sys.stderr)
    try:
        sys.stdout.flush()
    except (OSError, ValueError) as error:
        _silence()
        if not isinstance(error, BrokenPipeError):
            why = error.strerror if isinstance(error, OSError) else error
            with contextlib.suppress(OSError, ValueError):
                print(f"litegpu: Cannot write the results: {why}", file=sys.stderr)
        sys.exit(1)
    finally:
        sys.stdout = terminal_of(sys.stdout)


def _silence() -> None:
    """Send what follows on standard output nowhere, or Python would complain once more as it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), terminal_of(sys.stdout).fileno())
