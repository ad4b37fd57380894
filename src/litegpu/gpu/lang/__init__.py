"""The kernel language: kernels are Python functions, traced to a tree that the printers of the backends write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from litegpu.later import attributes

if TYPE_CHECKING:
    from litegpu.gpu.lang.features import Features
    from litegpu.gpu.lang.kernel import Kernel
    from litegpu.gpu.lang.tracing import trace
    from litegpu.gpu.lang.tree import Array, Memory, Variable
    from litegpu.gpu.lang.types import (
        KernelError,
        Type,
        boolean,
        boolx2,
        boolx4,
        f16,
        f16x2,
        f16x4,
        f32,
        f32x2,
        f32x4,
        i8,
        i8x4,
        i32,
        i32x2,
        i32x4,
        u8,
        u8x4,
        u32,
        u32x2,
        u32x4,
        vec,
    )
    from litegpu.gpu.lang.value import TracedValue

__all__ = [
    "Array",
    "Features",
    "Kernel",
    "KernelError",
    "Memory",
    "TracedValue",
    "Type",
    "Variable",
    "boolean",
    "boolx2",
    "boolx4",
    "f16",
    "f16x2",
    "f16x4",
    "f32",
    "f32x2",
    "f32x4",
    "i8",
    "i8x4",
    "i32",
    "i32x2",
    "i32x4",
    "trace",
    "u8",
    "u8x4",
    "u32",
    "u32x2",
    "u32x4",
    "vec",
]

#: What runs a program that was built before needs none of it but `features`.
__getattr__ = attributes(
    __name__,
    {
        "features": "Features",
        "kernel": "Kernel",
        "tracing": "trace",
        "tree": "Array Memory Variable",
        "types": "KernelError Type boolean boolx2 boolx4 f16 f16x2 f16x4 f32 f32x2 f32x4 i8 i8x4 i32 i32x2 i32x4 u8 "
        "u8x4 u32 u32x2 u32x4 vec",
        "value": "TracedValue",
    },
)
