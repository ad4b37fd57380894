"""C types of wgpu's interface by name, without parsing C.

cffi parses every type that it is asked for, such as "WGPUBufferDescriptor *", together with the names of all others:
30 ms each time, half a second before the first inference. What such a text means is known, though: the declarations
were parsed when wgpu was imported.
"""

from __future__ import annotations

import re
from typing import Any

from cffi import model as _model

model: Any = _model  # cffi has no annotations
_SIMPLE = re.compile(r"(?P<name>\w+)\s*(?P<pointer>\*?)\s*(?:\[(?P<length>\d*)\])?")


def know_types(ffi: Any) -> None:
    """Let `ffi` find pointers to and arrays of declared types by itself; anything else it parses as before. May be
    called twice. Does nothing if this cffi works differently from those that are known."""
    known = getattr(ffi, "_parsed_types", None)
    if isinstance(known, dict) and not isinstance(known, _Types) and hasattr(ffi, "_get_cached_btype"):
        ffi._parsed_types = _Types(ffi, known)


class _Types(dict[str, Any]):
    """cffi's table of types by their text, that fills itself."""

    def __init__(self, ffi: Any, known: dict[str, Any]) -> None:
        super().__init__(known)
        self._ffi = ffi

    def __missing__(self, text: str) -> Any:
        found = _SIMPLE.fullmatch(text.strip()) if isinstance(text, str) else None
        if found is None:
            raise KeyError(text)
        try:
            meant = self._meaning(**found.groupdict())
            with self._ffi._lock:
                result = self._ffi._get_cached_btype(meant), False
        except Exception:  # cffi says what is wrong with it
            raise KeyError(text) from None
        self[text] = result
        return result

    def _meaning(self, name: str, pointer: str, length: str | None) -> Any:
        parser = self._ffi._parser
        meant: Any
        if name in model.PrimitiveType.ALL_PRIMITIVE_TYPES:
            meant, qualifiers = model.PrimitiveType(name), 0
        else:
            meant, qualifiers = parser._declarations[f"typedef {name}"]
        if isinstance(meant, model.RawFunctionType):
            raise KeyError(name)
        if pointer:
            meant = parser._get_type_pointer(meant, qualifiers)
        if length is not None:
            meant = model.ArrayType(meant, int(length) if length else None)
        return meant
