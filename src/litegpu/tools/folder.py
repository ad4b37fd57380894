"""What lies in a folder of data, which others may have filled."""

from __future__ import annotations

import os
import stat
from typing import Literal


def kind_of(entry: os.DirEntry[str]) -> Literal["folder", "file", "other"]:
    """Links are what they lead to. One that leads nowhere, or in a circle, is a file: who reads it is told why it
    cannot be read. Pipes, sockets and devices are something else: reading a pipe may never end."""
    try:
        mode = entry.stat().st_mode
    except OSError:
        return "file"
    if stat.S_ISDIR(mode):
        return "folder"
    return "file" if stat.S_ISREG(mode) else "other"
