"""Ctrl-C while the command is still being imported ends it as it does later: with exit status 130 and one line."""

from __future__ import annotations

import os
import sys
from types import TracebackType


def _is_command() -> bool:
    """Whether the process is `litegpu` or `python -m litegpu`, whose first argument is "-m" while it is imported."""
    name = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    return name == "-m" or name.removesuffix(".exe") == "litegpu"


def _hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    origin: BaseException | None = error
    while origin is not None and not isinstance(origin, KeyboardInterrupt):  # it becomes an ImportError in places
        origin = origin.__cause__ or origin.__context__
    if origin is None:
        sys.__excepthook__(kind, error, traceback)
        return
    print("litegpu: interrupted", file=sys.stderr, flush=True)
    os._exit(130)


if _is_command():
    sys.excepthook = _hook
