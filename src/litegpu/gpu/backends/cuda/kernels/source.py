"""The text of a native kernel: what it needs from the kernel language, its constants, and a file of CUDA C++."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import resources

import numpy as np

from litegpu.gpu.backends.cuda.halves import HALF_CONVERSIONS, INLINE
from litegpu.gpu.backends.cuda.kernels.runs import RunEpilogue
from litegpu.gpu.backends.cuda.overlap import PROGRAMMATIC_LAUNCH
from litegpu.gpu.backends.cuda.printer import ahead_of, print_cuda_function
from litegpu.gpu.graph import TransposeConv2D
from litegpu.gpu.kernels.access import Operands, Position, open_sink
from litegpu.gpu.kernels.context import KernelContext, Launch, NativeBuffer, NativeKernel
from litegpu.gpu.kernels.terms import sum_type
from litegpu.gpu.lang import TracedValue, Type, u32
from litegpu.gpu.lang.kernel import Kernel
from litegpu.gpu.lang.tracing import trace_function
from litegpu.gpu.program import RowMap
from litegpu.gpu.view import View

Dim3 = tuple[int, int, int]

#: From the number of an output pixel in the kernel's order, and a quad of channels, to a place in the node's output.
Where = Callable[[TracedValue, TracedValue], Position]


class Traced:
    """A function of the kernel language that a native kernel calls.

    MACRO(parameters...) is the call; its buffers become parameters of the kernel, with `name` in front of theirs. With
    `places`, so many parameters that say where it reads, it is MACRO(parameters..., constants, operands): what
    MACRO_CONSTANTS(place), of the last of them, and MACRO_OPERANDS(places...) give, of the types MACRO_CONSTANTS_TYPE
    and MACRO_OPERANDS_TYPE.
    """

    def __init__(
        self,
        ctx: KernelContext,
        name: str,
        types: Sequence[Type],
        fn: Callable[..., TracedValue | None],
        places: int = 0,
    ) -> None:
        """`fn(kernel, operands, *parameters)` traces it; `operands` collects what its buffers are bound to."""
        self.operands: Operands = {}
        self.name = name
        function = trace_function(lambda k, *parameters: fn(k, self.operands, *parameters), name, types)
        self.printed = print_cuda_function(function, ctx.features, places)
        self.buffers = [NativeBuffer(f"{name}_{m.name}", m.access) for m in function.buffers]
        self._count, self._places = len(types), places

    @property
    def parameters(self) -> list[str]:
        """The kernel's own parameters for the function's buffers."""
        names = zip(self.printed.parameters, self.printed.names, strict=True)
        return [p.removesuffix(n) + f"{self.name}_{n}" for p, n in names]

    @property
    def macros(self) -> dict[str, str]:
        """How the kernel calls the function: MACRO(p0, ...) and what that stands for."""
        buffers, own = [f"{self.name}_{n}" for n in self.printed.names], [f"p{i}" for i in range(self._count)]
        macro, found = self.name.upper(), {}
        for ahead in ahead_of(self.name, self._places) if self._places else ():
            places = own[self._places - ahead.number : self._places]
            name = f"{macro}_{ahead.what.upper()}"
            found[f"{name}({', '.join(places)})"] = f"{ahead.load}({', '.join([*buffers, *places])})"
            found[f"{name}_TYPE"] = ahead.type
        if self._places:
            own += ["constants", "operands"]
        return found | {f"{macro}({', '.join(own)})": f"{self.name}({', '.join(buffers + own)})"}

    def bound(self) -> Operands:
        return {f"{self.name}_{n}": v for n, v in self.operands.items()}


def native_launch(
    ctx: KernelContext,
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
    inner: Traced | Sequence[Traced] = (),
    pixels: int = 1,
    pixel_count: int | None = None,
    options: tuple[str, ...] = (),
    needed: tuple[str, ...] = (),
    runs: RunEpilogue | None = None,
    rounds: Collection[str] = (),
    maps: tuple[RowMap, ...] = (),
    ahead: bool = False,
) -> Launch:
    """A launch of the kernel `name` in `files`, compiled with `constants` as macros.

    The kernel's parameters are `operands` in order (name -> View or constant array), then EPILOGUE_BUFFERS, and `maps`
    as constants of the type TensorMap (bulk.cu). Its macro
    STORE(pixel, quad, value) applies the node's epilogue to four channels, a float4 (of the integer convolutions and
    products an int4), of pixel number `pixel` (row-major over B, H, W, unless `where` says otherwise) and stores them;
    with `pixels`, so many at once: STORE(pixel, ..., quad, value, ...). Those whose number is `pixel_count`
    or more are not stored. With `ahead` it is STORE(pixel, quad, value, constants, operands): what
    STORE_CONSTANTS(quad) gives, which kernels load before they wait for others, and STORE_OPERANDS(pixel, quad),
    which they load before their own work. `inner`: other functions that it calls.
    `needed`: definitions that come before all others. `runs`: the epilogue in another form, instead of STORE.
    `rounds`: operands that it rounds to float16 before all else.
    """
    shape = ctx.output.shape

    def store(k: Kernel, bound: Operands, *parameters: TracedValue) -> None:
        quad, numbers, inside = parameters[pixels], parameters[:pixels], None
        if pixel_count is not None:
            inside = [pixel < pixel_count for pixel in numbers]
            numbers = tuple(k.min(pixel, pixel_count - 1) for pixel in numbers)  # what the epilogue reads exists
        places = [
            where(pixel, quad) if where is not None else Position(shape, pixel=pixel, q=quad) for pixel in numbers
        ]
        open_sink(ctx, k, bound).write_all(places, parameters[pixels + 1 :], inside)

    functions = [inner] if isinstance(inner, Traced) else list(inner)
    definitions = list(needed)
    macros = {**constants, "NAME": name}
    parameters: list[str] = []
    if runs is None:
        types = (u32,) * (pixels + 1) + (sum_type(ctx.node.op),) * pixels
        functions.insert(0, Traced(ctx, "store", types, store, places=pixels + 1 if ahead else 0))
    else:
        operands, macros = operands | runs.operands, macros | runs.macros
        definitions += runs.definitions
        parameters += runs.parameters
    buffers = [NativeBuffer(n, _access(v)) for n, v in operands.items()]
    parameters += [p for f in functions for p in f.parameters]
    macros["EPILOGUE_BUFFERS"] = "".join(f", {p}" for p in parameters)
    bound = dict(operands)
    for function in functions:
        definitions += function.printed.definitions
        buffers += function.buffers
        bound |= function.bound()
        macros |= function.macros
    parts = [
        *dict.fromkeys([f"#define INLINE {INLINE}", PROGRAMMATIC_LAUNCH, HALF_CONVERSIONS, *definitions]),
        *(f"#define {macro} {value}" for macro, value in macros.items()),
        *map(text_of, files),
    ]
    kernel = NativeKernel(
        name, "\n".join(parts) + "\n", workgroup, dispatch, tuple(buffers), shared_bytes, options, maps
    )
    return Launch(kernel, bound, label, variant, rounds=rounds, narrow=runs is not None and runs.narrow)


def label_of(ctx: KernelContext) -> str:
    """What profiles call the work of the node."""
    return "transpose_conv_2d" if isinstance(ctx.node.op, TransposeConv2D) else "conv_2d"


@functools.cache
def text_of(file: str) -> str:
    """A file of this folder."""
    return (resources.files(__package__) / file).read_text(encoding="utf-8")


def float_text(value: float) -> str:
    """A float as C++ writes it."""
    return f"{np.float32(value)!r}f".replace("np.float32(", "").replace(")", "")


def _access(operand: View | np.ndarray) -> str:
    return "read_write" if isinstance(operand, View) else "read"
