"""Tracing: calling a Python function with a Kernel records its statements as a tree, which is then verified."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from litegpu.gpu.lang.kernel import DeviceFunction, Dim3, Kernel
from litegpu.gpu.lang.tree import is_language_file
from litegpu.gpu.lang.types import KernelError, Type
from litegpu.gpu.lang.value import TracedValue
from litegpu.gpu.lang.verify import verify, verify_structure


def trace(fn: Callable[..., None], name: str, workgroup: Dim3, grid: Dim3, **static: Any) -> Kernel:
    """Call `fn(kernel, **static)` and return the verified kernel. Raises KernelError naming the author's line."""
    try:
        kernel = Kernel(name, workgroup, grid)
        fn(kernel, **static)
    except KernelError as error:
        if str(error).startswith(f"kernel {name}: "):
            raise
        raise KernelError(f"kernel {name}: {_origin(error)}: {error}") from error
    verify(kernel)
    kernel.verified = True
    return kernel


def trace_function(
    fn: Callable[..., TracedValue | None], name: str, types: Sequence[Type], **static: Any
) -> DeviceFunction:
    """Call `fn(function, *parameters, **static)`, whose value is the function's, and return the checked function."""
    function = DeviceFunction(name, types)
    function.result = fn(function, *function.parameters, **static)
    verify_structure(function, {p.number for p in function.parameters})
    function.verified = True
    return function


def _origin(error: BaseException) -> str:
    """file:line of the innermost frame that is not the language's own."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_language_file(f.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "?"
