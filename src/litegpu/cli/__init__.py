"""The `litegpu` command: reads the command line and calls the tools."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from typing import NoReturn

from litegpu.cli import (  # noqa: F401 (each module adds its commands to the application)
    advise,
    analyze,
    cache,
    difference,
    evaluate,
    inspect,
    mapping,
    measure,
    run,
    zoo,
)
from litegpu.cli.application import app, with_ray_address
from litegpu.cli.streams import end_streams, open_streams
from litegpu.errors import LiteGpuError
from litegpu.gpu.backends import registry


def main() -> NoReturn:
    """Runs the command line: exit status 0 for success, 1 for an error and 130 after Ctrl-C (one line on stderr), 2 for
    a wrong command line."""
    open_streams(sys.argv[1:])
    _log_warnings()
    try:
        app(with_ray_address(sys.argv[1:]))
    except (LiteGpuError, OSError, MemoryError) as error:
        if os.environ.get("LITEGPU_DEBUG"):
            raise
        if not isinstance(error, BrokenPipeError):
            print(f"litegpu: {_line(error)}", file=sys.stderr)
        sys.exit(1)
    finally:
        end_streams()
    sys.exit(0)


def _log_warnings() -> None:
    """On standard error; but for those of backends' libraries, since what is wrong for us comes as an error of ours.
    Their loggers are not touched, nor made: a library may not be importable where another made its logger."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(lambda record: record.name.partition(".")[0] not in registry.libraries())
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, handlers=[handler])
    # Pillow's, for pictures of more than 89 million pixels: it opens them, and refuses those of twice as many.
    warnings.filterwarnings("ignore", message="Image size .* could be decompression bomb")


def _line(error: LiteGpuError | OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        return f"out of memory {error}".strip()
    if isinstance(error, LiteGpuError) or not error.strerror:
        return str(error)
    return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
