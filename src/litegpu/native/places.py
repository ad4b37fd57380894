"""Where the libraries of the package's C files are: in the package, or compiled into the user's cache."""

from __future__ import annotations

import atexit
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from litegpu.errors import OptionError
from litegpu.native.compiling import Sources
from litegpu.own_folder import default_folder, make_private

log = logging.getLogger("litegpu")

L = TypeVar("L")


def opened(sources: Sources, open_library: Callable[[Path], L], *, build: bool) -> L | None:
    """The library of these sources, as `open_library` opens it, which raises OSError for one that is not of this
    system. None if there is none; with `build` it is compiled then. Raises OSError for one that is there and cannot be
    opened, unless it is compiled anew, and what compiling raises."""
    name, problem = sources.file_name(), None
    for folder in (sources.folder, cache_folder(sources, make=False)):
        if folder is None or not (folder / name).exists():
            continue
        try:
            return open_library(folder / name)
        except OSError as error:  # of another C library, or on a disk from which nothing may be run
            problem = problem or error
    if not build:
        if problem is not None:
            raise problem
        return None
    target = cache_folder(sources, make=True)
    assert target is not None
    return open_library(sources.compile(target))


def cache_folder(sources: Sources, *, make: bool) -> Path | None:
    """The folder of what was compiled, which only the user can write. Without a cache, where one may be made, a
    temporary one of this process."""
    try:
        folder = default_folder() / sources.folder.name
        if not make and not folder.exists():
            return None
        make_private(folder, "the cache folder")
    except OptionError as error:
        if not make:
            return None
        log.warning("what is compiled for litegpu's own use is not kept: %s", error)
        return _temporary()
    return folder


@functools.cache
def _temporary() -> Path:
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="litegpu-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
