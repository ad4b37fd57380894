"""Text files that users name: read whole, if they are not too long."""

from __future__ import annotations

import os

from litegpu.errors import OptionError


def read_text(path: str | os.PathLike[str], what: str, most: int) -> str:
    """The text of a UTF-8 file. Raises OptionError, which calls it `what`, if it cannot be read or has more than `most`
    characters."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read(most + 1)
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else f"it is no text in UTF-8 ({error})"
        raise OptionError(f"Cannot read {what} {os.fspath(path)}: {cause}") from None
    if len(text) > most:
        raise OptionError(f"{os.fspath(path)} ({what}) is longer than {most >> 20} MiB")
    return text
