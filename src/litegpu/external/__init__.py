"""litegpu's GPU inside the official interpreter: a shared library with the entry points of an external delegate."""

from __future__ import annotations

import functools
import threading

from litegpu.boundary import typed
from litegpu.external import host, layout
from litegpu.external.shared_library import Library, cache_folder, find

_lock = threading.Lock()
_library: Library | None = None


@typed
def external_delegate_path(build: bool = True) -> str:
    """The path of the library, for `ai_edge_litert.interpreter.load_delegate(path, options)`: the official interpreter
    then runs parts of its graph on the GPU. Options have the names of GpuDelegateOptions. It serves this process, which
    has to have called this.

    build: compile the library, into the cache, if it did not come with the package. The first call on a machine also
        tries the installed official runtime, in a process of its own, which takes a second.

    Raises DelegateError: there is no library and no C compiler, or the installed runtime is not as litegpu knows it.
    """
    global _library
    with _lock:
        if _library is None:
            library = find(build=build)
            layout.require_checked(library, cache_folder())
            library.start(functools.partial(host.create, library))
            _library = library
        return str(_library.path)
