"""The `litegpu` command: reads the command line and calls the tools."""

from __future__ import annotations

import logging
import os
import sys
from typing import NoReturn

from litegpu.cli import (  # noqa: F401 (each module adds its commands to the application)
    advise,
    cache,
    difference,
    evaluate,
    evaluate_maps,
    inspect,
    mapping,
    measure,
    run,
    zoo,
)
from litegpu.cli.application import app, with_ray_address
from litegpu.errors import LiteGpuError


def main() -> NoReturn:
    """Entry point: exit status 0 for success, 1 for an error (one line on stderr), 2 for a wrong command line."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, stream=sys.stderr)
    try:
        app(with_ray_address(sys.argv[1:]))
    except LiteGpuError as error:
        if os.environ.get("LITEGPU_DEBUG"):
            raise
        print(f"litegpu: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)
