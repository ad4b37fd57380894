"""Text from files, made safe to show: nothing in it moves a cursor, changes a colour or reverses what is beside it."""

from __future__ import annotations

import io
import logging
import unicodedata
from typing import Any, TextIO

_MOST = 200  # characters of a name in a table
#: Control characters, marks without a shape (such as those that change the direction), halves of surrogate pairs, and
#: separators of lines and paragraphs.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def visible(text: str, *, keep: str = "\n\t") -> str:
    r"""The text with what cannot be seen as Python writes it in a string, \x1b say. `keep`: what stays as it is."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or unicodedata.category(c) not in _HIDDEN else _escaped(c) for c in text)


def in_line(text: str, most: int | None = _MOST) -> str:
    """visible() in one line, and not longer than `most` characters."""
    shown = visible(text if most is None else text[: most + 1], keep="")
    return shown if most is None or len(shown) <= most else f"{shown[: most - 1]}…"


class VisibleStream(io.TextIOBase):
    """A stream of text to which everything is written as visible() has it. It calls itself no terminal, so that nobody
    sends it colours; `terminal` is what lies beneath, for those who take care themselves."""

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal

    def write(self, text: str) -> int:
        self.terminal.write(visible(text, keep="\n\t"))
        return len(text)

    def flush(self) -> None:
        self.terminal.flush()

    def fileno(self) -> int:
        return self.terminal.fileno()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:  # encoding, errors, buffer ...
        return getattr(self.terminal, name)


def terminal_of(stream: Any) -> Any:
    """What a VisibleStream writes to; any other stream itself."""
    return stream.terminal if isinstance(stream, VisibleStream) else stream


def _escaped(character: str) -> str:
    number = ord(character)
    if character in "\n\r\t":
        return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}[character]
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


class VisibleLog(logging.Filter):
    """Makes the lines of a logger visible()."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = visible(record.getMessage()), ()
        return True
