"""Maps a file into memory, if it is one: what else a path can lead to would block, or has no size."""

from __future__ import annotations

import mmap
import os
import stat

from litegpu.errors import ModelError

#: A pipe that nobody writes to is opened at once then, instead of never.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


def map_file(path: str) -> memoryview:
    """The bytes of a file, read-only and not copied; none of an empty one. Raises ModelError if it cannot be opened, or
    is no regular file."""
    try:
        handle = os.open(path, _FLAGS)
        try:
            status = os.fstat(handle)
            if stat.S_ISDIR(status.st_mode):
                raise ModelError(f"Could not open '{path}'. Is a directory; check the path.")
            if not stat.S_ISREG(status.st_mode):  # a pipe, as of <(curl ...), or a device
                raise ModelError(f"Could not open '{path}'. It is no file; read what it gives, and open that as bytes.")
            if status.st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(handle, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(handle)
    except OSError as error:
        raise ModelError(f"Could not open '{path}'. {error.strerror or error}; check the path.") from None


def check_mapped(content: object) -> None:
    """Raises ModelError if the file that `content` is mapped from, if it is, has become shorter: to touch what is gone
    ends the process, by SIGBUS. What is cut off later still does."""
    mapped = content.obj if isinstance(content, memoryview) else None
    if isinstance(mapped, mmap.mmap) and mapped.size() < len(mapped):
        raise ModelError(
            f"the model's file has been cut from {len(mapped)} to {mapped.size()} bytes since it was opened; write a "
            "new file and move it to this path instead (os.replace), and open the model again"
        )
