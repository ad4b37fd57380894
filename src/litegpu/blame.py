"""Errors in functions that are the user's: what went wrong and on which line, in words."""

from __future__ import annotations

import traceback
from pathlib import Path

_OWN = str(Path(__file__).parent)


def described(error: BaseException) -> str:
    """ "ZeroDivisionError: division by zero (op.py, line 12, in check)"."""
    kind, text, where = type(error).__name__, str(error), place(error)
    return f"{kind}{': ' if text else ''}{text}{f' ({where})' if where else ''}"


def place(error: BaseException) -> str:
    """The innermost line of the user's that the error came through; "" if it was none."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_OWN)]
    users = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith("<frozen")]
    return f"{users[-1].filename}, line {users[-1].lineno}, in {users[-1].name}" if users else ""
