"""Epilogues that are finished and stored in the registers of those who multiplied: see runs.cu."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels import biased
from litegpu.gpu.backends.cuda.kernels.layer import NARROW, Layer, ToldNorm
from litegpu.gpu.backends.cuda.printer import print_cuda_function
from litegpu.gpu.graph import Apply, Arg, DType, Expr, IntegerConv2D, Literal, arguments, tables
from litegpu.gpu.kernels.access import Operands, byte_bounds, open_table, pack, pixel_pitch
from litegpu.gpu.kernels.context import KernelContext
from litegpu.gpu.kernels.expression import Argument, evaluate, unlimited
from litegpu.gpu.kernels.terms import sum_type
from litegpu.gpu.lang import Kernel, Memory, TracedValue, Type, f16x4, f32, f32x4, i8x4, i32, i32x4, u8x4, u32x4
from litegpu.gpu.lang.tracing import trace_function
from litegpu.gpu.view import View

#: Bytes that a thread stores at once, the more the better.
RUN_BYTES = (16, 8)
#: Bytes of a line of the second-level cache.
LINE = 128
#: Of halves that are stored from registers: columns of a tile at least, and bytes of a result to which such are added.
LEAST_COLUMNS, MOST_ADDED = 96, 60 << 20
#: Bytes of what is added to results that is fetched while others are stored.
MOST_FETCHED = 16 << 20
_QUADS: dict[DType, Type] = {DType.INT8: i8x4, DType.UINT8: u8x4, DType.FLOAT16: f16x4, DType.FLOAT32: f32x4}
_COMPUTED = {DType.INT8: i32x4, DType.UINT8: i32x4, DType.FLOAT16: f32x4, DType.FLOAT32: f32x4}
#: As C++ calls a quad in memory, by the bytes of one of its numbers.
_BYTES = {"int8": "signed char", "uint8": "unsigned char"}
_NAMES = {1: "unsigned", 2: "uint2", 4: "float4"}


@dataclass(frozen=True)
class RunEpilogue:
    """A node's epilogue, for native_launch."""

    run: int
    first: np.ndarray  # what sums begin with, besides corrections: int32, of each output
    definitions: tuple[str, ...]
    macros: dict[str, int | str]
    operands: Operands
    parameters: tuple[str, ...]
    narrow: bool  # a row of results of a tile is less than a line of the cache
    added: int = 0  # values like the results that are read


def run_of(ctx: KernelContext, *, by_quads: bool = False, floats: bool = False) -> int:
    """Channels that a thread can store at once; 0 where results, or what is added to them, do not lie in such runs.
    `by_quads`: single quads are enough; `floats`: of results in float32, and of no others."""
    kind = ctx.views[ctx.node.output].dtype
    if (kind is DType.FLOAT32) != floats:
        return 0
    size = kind.nbytes
    if floats:
        return RUN_BYTES[0] // size if _is_by_runs(ctx, RUN_BYTES[0] // size) else 0
    lengths = [n // size for n in RUN_BYTES] + [4] * by_quads
    return next((run for run in lengths if _is_by_runs(ctx, run)), 0)


def run_in(layer: Layer, columns: int) -> int:
    """Channels that a thread stores at once of a tile of so many columns; 0 if it cannot."""
    runs = (n // layer.size for n in RUN_BYTES)
    return next((run for run in runs if run <= layer.run and columns % (4 * run) == 0), 0)


def pays(layer: Layer, columns: int) -> bool:
    """Whether sums of tiles of so many columns may be stored from registers, rather than by way of shared memory: those
    of halves where they were measured to be quicker so (docs/performance.md)."""
    added = layer.residuals > 0 and math.prod(layer.shape) * layer.size > MOST_ADDED
    return layer.whole_numbers or (columns >= LEAST_COLUMNS and not added)


def epilogue_of(ctx: KernelContext, layer: Layer, columns: int, run: int = 0) -> RunEpilogue:
    """The node's, where there are runs, for a tile of so many columns, or for runs of a certain length."""
    expr, bias = _without_bias(ctx)
    first = np.broadcast_to(bias, (1, 1, 1, layer.shape[3])).reshape(-1).astype(np.int32)
    made = _made(ctx, run or run_in(layer, columns), expr, first, layer.told)
    return dataclasses.replace(made, narrow=columns * layer.size < LINE)


def epilogue_by_runs(ctx: KernelContext, run: int) -> RunEpilogue:
    """The node's, where there are such runs, of one that is no layer: RESULT is what a kernel hands on."""
    return _made(ctx, run, ctx.node.epilogue, np.zeros(0, np.int32))


def _is_by_runs(ctx: KernelContext, run: int) -> bool:
    node, output = ctx.node, ctx.views[ctx.node.output]
    if output.dtype not in _QUADS or output.shape[3] % run or not _lies_by_runs(output, run):
        return False
    for i in arguments(node.epilogue) - tables(node.epilogue) - {0}:
        value = ctx.value(node.operands[i - 1])
        if value.data is not None:
            fits = value.data.size == 1 or value.shape == (1, 1, 1, output.shape[3])
            if not fits or value.data.dtype not in (np.int32, np.float32):
                return False
            continue
        view = ctx.views[value.id]
        if _is_by_places(ctx, view):
            continue
        like = value.shape == output.shape and view.dtype in _QUADS and view.dtype.nbytes == output.dtype.nbytes
        if not like or not _lies_by_runs(view, run):
            return False
    return True


def _is_by_places(ctx: KernelContext, view: View) -> bool:
    """Whether it is one byte of each of a convolution's results."""
    known = isinstance(ctx.node.op, IntegerConv2D) and view.dtype.is_narrow
    return known and view.shape == (*ctx.output.shape[:3], 1) and pixel_pitch(view) is not None


def _lies_by_runs(view: View, run: int) -> bool:
    pitch = pixel_pitch(view)
    return view.strides[3] == 1 and pitch is not None and pitch % run == 0 and view.offset % run == 0


def _without_bias(ctx: KernelContext) -> tuple[Expr, np.ndarray]:
    """The epilogue of a sum that begins with its bias, and that."""
    node = ctx.node
    bias = ctx.value(node.operands[0]).data if node.operands else None
    if bias is None or bias.dtype != np.int32:
        return node.epilogue, np.zeros(1, np.int32)
    begun = biased.begun(node.epilogue)
    return (node.epilogue, np.zeros(1, np.int32)) if begun is None else (begun, bias)


def _made(ctx: KernelContext, run: int, expr: Expr, first: np.ndarray, told: ToldNorm | None = None) -> RunEpilogue:
    node, output = ctx.node, ctx.views[ctx.node.output]
    bounds = byte_bounds(output.dtype)
    views = {i: ctx.views[v] for i, v in enumerate(node.operands, 1) if not ctx.value(v).is_constant}
    known = {i: found for i, view in views.items() if (found := byte_bounds(view.dtype))}
    looked_up = tables(expr)
    operands: Operands = {}

    def read(k: Kernel, i: int) -> Argument:
        value, name = ctx.value(node.operands[i - 1]), f"e{i - 1}"
        if i in looked_up:
            return open_table(ctx, k, value.id, operands)
        if value.data is None:
            operands[name] = view = ctx.views[value.id]
            if _is_by_places(ctx, view):
                return k.splat(k.buffer(name, i32, 1)[0], 4)
            return _COMPUTED[view.dtype](quads(k, name, view.dtype)[0])
        kind = f32x4 if value.data.dtype == np.float32 else i32x4
        if value.data.size == 1:
            return k.const(value.data.item(), kind)
        operands[name] = pack(value.data)
        return k.buffer(name, kind, 1)[0]

    def finish(k: Kernel, total: TracedValue) -> None:
        used = arguments(expr) - {0}
        args = [read(k, i) if i in used else None for i in range(1, len(node.operands) + 1)]
        if told is not None:
            total, args = normalised(k, told, total, args)
        stored = shifted_once(unlimited(expr, *bounds), known) if bounds else expr
        value = evaluate(k, stored, [total, *args], rough=ctx.half)
        if output.dtype is DType.UINT8:
            value = u32x4(k.max(value, 0))
        quads(k, "results", output.dtype)[0] = value if value.type.lanes == 4 else k.splat(value, 4)

    def normalised(
        k: Kernel, told: ToldNorm, total: TracedValue, args: list[Argument]
    ) -> tuple[TracedValue, list[Argument]]:
        """The sum by its row's factor, or the operand less the mean, too."""
        norm = k.buffer("norm", f32, 2)
        factor = k.splat(norm[1], 4)
        if not told.operand:
            return total * factor, args
        value = args[told.operand - 1]
        assert isinstance(value, TracedValue)
        left = value - k.splat(norm[0], 4) if told.op.centred else value
        return total, [*args[: told.operand - 1], left * factor, *args[told.operand :]]

    def quads(k: Kernel, name: str, dtype: DType) -> Memory:
        return k.buffer(name, _QUADS[dtype], 1, compute=f32x4 if dtype is DType.FLOAT16 else None)

    function = trace_function(finish, "finish", (sum_type(node.op),))
    printed = print_cuda_function(function, ctx.features)
    known_tables = {n: v for n, v in operands.items() if isinstance(v, np.ndarray) and v.itemsize == 1}
    channels = {n: v for n, v in operands.items() if isinstance(v, np.ndarray) and v.itemsize > 1}
    values = {n: v for n, v in operands.items() if isinstance(v, View)}
    places = {n: v for n, v in values.items() if _is_by_places(ctx, v)}
    pixels = {n: v for n, v in values.items() if n not in places}
    given = {n: f"own.{n} + i" for n in channels} | {n: f"more.{n} + q" for n in pixels} | {"results": "to"}
    given |= {n: f"&more.{n}" for n in places} | {n: f"own.{n}" for n in known_tables} | {"norm": "&more.norm.x"}
    macros: dict[str, int | str] = {
        "RUN": run, "RESULT_BYTES": output.dtype.nbytes, "STREAMED": int(ctx.streams),
        "PER_CHANNEL(each)": " ".join(f"each({_kind(v)}, {n})" for n, v in channels.items()),
        "PER_PIXEL(each)": " ".join(f"each({n}, {pixel_pitch(v)}u / 4, {v.offset}u / 4)" for n, v in pixels.items()),
        "RESULT_PITCH": f"({pixel_pitch(output)}u / 4)", "RESULT_OFFSET": f"({output.offset}u / 4)",
        "FINISH(own, i, more, q, sum, to)": f"finish({', '.join(given[m.name] for m in function.buffers)}, sum)",
        "PLACES": f"{{{', '.join([*channels, *pixels, *places, *known_tables, 'results'])}}}",
    }  # fmt: skip
    if known_tables:
        macros["PER_TABLE(each)"] = " ".join(f"each({_BYTES[v.dtype.name]}, {n})" for n, v in known_tables.items())
    if places:
        each = (f"each({NARROW[v.dtype]}, {n}, {pixel_pitch(v)}u, {v.offset}u)" for n, v in places.items())
        macros["PER_PLACE(each)"] = " ".join(each)
    parameters = [f"const {_kind(v)}* __restrict__ {n}" for n, v in channels.items()]
    parameters += [f"{_NAMES[output.dtype.nbytes]}* {n}" for n in pixels]
    parameters += [f"const {NARROW[v.dtype]}* {n}" for n, v in places.items()]
    parameters += [f"const {_BYTES[v.dtype.name]}* __restrict__ {n}" for n, v in known_tables.items()]
    parameters.append(f"{_NAMES[output.dtype.nbytes]}* results")
    bound: Operands = {**channels, **pixels, **places, **known_tables, "results": output}
    return RunEpilogue(run, first, printed.definitions, macros, bound, tuple(parameters), False, len(pixels))


def _kind(data: np.ndarray) -> str:
    return "float4" if data.dtype == np.float32 else "int4"


def shifted_once(expr: Expr, known: Mapping[int, tuple[int, int]]) -> Expr:
    """`expr` with what is added to a shifted sum added to the sum instead, if nothing overflows then. `known`: the
    bounds of arguments that are bytes."""
    match expr:
        case Apply("add", (Apply("shift_right", (Apply("add", (x, Literal(rounding))), Literal(by))), Literal(zero))):
            bounds, more = _bounds(x, known), int(zero) << int(by)
            if bounds is not None and max(map(abs, bounds)) + abs(int(rounding)) + abs(more) < 1 << 31:
                total = Apply("add", (x, Literal(int(rounding) + more, DType.INT32)))
                return Apply("shift_right", (total, Literal(by, DType.INT32)))
    return expr


def _bounds(expr: Expr, known: Mapping[int, tuple[int, int]]) -> tuple[int, int] | None:
    """The smallest and the largest value of an expression of whole numbers, and of all in it, if they are known."""
    match expr:
        case Literal(number):
            return int(number), int(number)
        case Arg(i):
            return known.get(i)
        case Apply("nearest", (Apply("min", (Apply("max", (_, Literal(low))), Literal(high))),)):
            return math.floor(low), math.ceil(high)
        case Apply("add" | "sub" | "mul" as fn, (a, b)):
            one, other = _bounds(a, known), _bounds(b, known)
            if one is None or other is None:
                return None
            act = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}[fn]
            ends = [act(p, q) for p in one for q in other]
            return (min(ends), max(ends)) if max(map(abs, ends)) < 1 << 31 else None
    return None


def columns_of(weights: np.ndarray, run: int) -> np.ndarray:
    """[outputs, ...] as the columns of a product stand for them, in whole fours of runs: of each four, those that a
    thread has of eight columns by eight are two that follow one another."""
    outputs = weights.shape[0]
    whole = np.zeros((-(-outputs // (4 * run)) * 4 * run, *weights.shape[1:]), weights.dtype)
    whole[:outputs] = weights
    parts = whole.reshape(-1, 4, run // 2, 2, *weights.shape[1:])
    return np.ascontiguousarray(parts.swapaxes(1, 2)).reshape(whole.shape)


def fetched_bytes(epilogue: RunEpilogue, layer: Layer, rows: int) -> int:
    """Bytes of shared memory for a run of each of so many rows times four threads, if what is added to the results is
    fetched while others are stored: a single value that is normalised on the way, and small. (Of others it was
    slower: docs/performance.md.)"""
    normalised = layer.told is not None and layer.told.operand > 0
    small = math.prod(layer.shape) * layer.size <= MOST_FETCHED
    fits = epilogue.added == 1 and epilogue.run * layer.size == RUN_BYTES[0]
    return rows * 4 * RUN_BYTES[0] if normalised and small and fits else 0


def nothing_stored() -> RunEpilogue:
    """For kernels that write no element of their node's result: none of this is used."""
    return RunEpilogue(0, np.zeros(0, np.int32), (), {}, {}, (), narrow=False)
