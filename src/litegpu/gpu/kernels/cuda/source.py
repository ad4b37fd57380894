"""The text of a native kernel: what it needs from the kernel language, its constants, and a file of CUDA C++."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import resources

import numpy as np

from litegpu.gpu.kernels.access import Operands, Position, open_sink
from litegpu.gpu.kernels.context import Context, Launch, NativeBuffer, NativeKernel
from litegpu.gpu.lang import Value, f32x4, u32
from litegpu.gpu.lang.cuda import print_cuda_function
from litegpu.gpu.lang.cuda_functions import HALF_CONVERSIONS, INLINE, PROGRAMMATIC_LAUNCH
from litegpu.gpu.lang.kernel import Kernel, trace_function
from litegpu.gpu.view import View

Dim3 = tuple[int, int, int]

#: From the number of an output pixel in the kernel's order, and a quad of channels, to a place in the node's output.
Where = Callable[[Value, Value], Position]


def native_launch(
    ctx: Context,
    name: str,
    files: tuple[str, ...],
    constants: Mapping[str, int | str],
    operands: Operands,
    *,
    label: str,
    workgroup: Dim3,
    dispatch: Dim3,
    shared_bytes: int = 0,
    variant: str = "",
    where: Where | None = None,
) -> Launch:
    """A launch of the kernel `name` in `files`, compiled with `constants` as macros.

    The kernel's parameters are `operands` in order (name -> View or constant array), then EPILOGUE_BUFFERS. Its macro
    STORE(pixel, quad, value) applies the node's epilogue to four channels, a float4, of pixel number `pixel` (row-major
    over B, H, W, unless `where` says otherwise) and stores them.
    """
    shape = ctx.output.shape
    epilogue: Operands = {}

    def store(k: Kernel, pixel: Value, quad: Value, value: Value) -> None:
        at = where(pixel, quad) if where is not None else Position(shape, pixel=pixel, q=quad)
        open_sink(ctx, k, epilogue).write(at, value)

    function = trace_function(store, "store_quad", (u32, u32, f32x4))
    printed = print_cuda_function(function, ctx.features)
    buffers = [NativeBuffer(n, _access(v)) for n, v in operands.items()]
    buffers += [NativeBuffer(f"epilogue_{m.name}", m.access) for m in function.buffers]
    macros = {
        **constants,
        "NAME": name,
        "EPILOGUE_BUFFERS": "".join(f", {p}" for p in printed.parameters),
        "STORE(pixel, quad, value)": f"store_quad({', '.join(printed.names)}, pixel, quad, value)",
    }
    parts = [
        *dict.fromkeys([f"#define INLINE {INLINE}", PROGRAMMATIC_LAUNCH, HALF_CONVERSIONS, *printed.definitions]),
        *(f"#define {macro} {value}" for macro, value in macros.items()),
        *map(text_of, files),
    ]
    kernel = NativeKernel(name, "\n".join(parts) + "\n", workgroup, dispatch, tuple(buffers), shared_bytes)
    return Launch(kernel, {**operands, **{f"epilogue_{n}": v for n, v in epilogue.items()}}, label, variant)


@functools.cache
def text_of(file: str) -> str:
    """A file of this folder."""
    return (resources.files(__package__) / file).read_text()


def _access(operand: View | np.ndarray) -> str:
    return "read_write" if isinstance(operand, View) else "read"
