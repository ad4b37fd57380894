"""Types of the C interface found by name are those that cffi would have parsed."""

from __future__ import annotations

import pytest

pytest.importorskip("wgpu")

from wgpu.backends.wgpu_native import _ffi

from litegpu.gpu.backends.webgpu import types as webgpu_types


@pytest.mark.parametrize(
    "text",
    ["WGPUBufferDescriptor *", "WGPUBindGroupEntry []", "WGPUAdapter[3]", "WGPUBackendType", "uint8_t[]", "float *",
     "WGPUInstanceExtras*"],
)  # fmt: skip
def test_types_are_the_parsed_ones(text: str) -> None:
    ffi = _ffi.ffi
    webgpu_types.know_types(ffi)
    table = ffi._parsed_types
    assert isinstance(table, webgpu_types._Types)
    table.pop(text, None)
    found = ffi.typeof(text)
    meant = table[text]
    try:
        ffi._parsed_types = {}
        with ffi._lock:
            parsed = ffi._typeof_locked(text)
    finally:
        ffi._parsed_types = table
    assert meant == parsed and found is parsed[0]


def test_what_is_not_known_is_parsed_or_refused() -> None:
    ffi = _ffi.ffi
    webgpu_types.know_types(ffi)
    assert ffi.typeof("void(*)(int, char *)").kind == "function"
    assert ffi.typeof("WGPUChainedStruct * *").item.kind == "pointer"
    with pytest.raises(Exception, match="WGPUNothing"):
        ffi.typeof("WGPUNothing *")
