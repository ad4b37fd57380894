"""Operators that rearrange whole tensors: reshapes, transposition, concatenation, packing, tiling, space and depth."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from litegpu.gpu.graph import (
    RESULT,
    Arg,
    Concat,
    DType,
    Lookup,
    Pad,
    Reshape,
    Shape,
    Slice,
    Step,
    Tile,
    Transpose,
    bhwc,
    step_shape,
)
from litegpu.gpu.lower import integers
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.quantization import Grid, grid_of
from litegpu.gpu.lower.registry import lowers
from litegpu.model.types import Tensor


def move(ctx: OpContext, steps: Sequence[Step], source: int = 0, output: Tensor | None = None) -> None:
    """One copy from input `source` to an output: `steps` see the .tflite shapes, whatever their rank."""
    shape = ctx.shape(source)
    result = shape
    for step in steps:
        result = step_shape(step, result)
    ctx.check_shape(result, output)
    ctx.copy(ctx.value(source), between(shape, steps, result), ctx.output_value(output))


def between(shape: Shape, steps: Sequence[Step], result: Shape) -> list[Step]:
    """`steps` from a tensor of `shape` to one of `result`, starting from and ending with B,H,W,C."""
    begin = [] if bhwc(shape) == shape else [Reshape(bhwc(shape), shape)]
    end = [] if bhwc(result) == result else [Reshape(result, bhwc(result))]
    return [*begin, *steps, *end]


# ---------------------------------------------------------------------------------------- reinterpretation


@lowers("RESHAPE")
def reshape(ctx: OpContext) -> None:
    if ctx.has(1) and ctx.tensor(1).data is None:
        ctx.integers(1, "the new sizes")
    _reinterpret(ctx)


@lowers("SQUEEZE")
def squeeze(ctx: OpContext) -> None:
    x = ctx.shape(0)
    dims = ctx.option("squeeze_dims", ())
    axes = {ctx.axis(int(a), len(x)) for a in ([] if dims is None else dims)}
    ctx.require(all(x[a] == 1 for a in axes), f"axes {sorted(axes)} of shape {list(x)} are not all of size 1")
    ctx.check_shape(n for i, n in enumerate(x) if not (i in axes if axes else n == 1))
    _reinterpret(ctx)


@lowers("EXPAND_DIMS")
def expand_dims(ctx: OpContext) -> None:
    x, where = ctx.shape(0), ctx.integers(1, "the axis")
    ctx.require(len(where) == 1, f"{len(where)} axes where the operator takes one")
    axis = ctx.axis(where[0], len(x) + 1)
    ctx.check_shape((*x[:axis], 1, *x[axis:]))
    _reinterpret(ctx)


def _reinterpret(ctx: OpContext) -> None:
    x, y = ctx.shape(0), tuple(ctx.output.shape)
    ctx.require(math.prod(x) == math.prod(y), f"shape {list(x)} does not hold as many elements as {list(y)}")
    source, target = bhwc(x), bhwc(y)
    ctx.copy(ctx.value(0), [] if source == target else [Reshape(source, target)], ctx.output_value())


# ------------------------------------------------------------------------------------ transposition, tiling


@lowers("TRANSPOSE")
def transpose(ctx: OpContext) -> None:
    rank = len(ctx.shape(0))
    given = ctx.integers(1, "the permutation")
    perm = tuple(ctx.axis(p, rank) for p in given)
    ctx.require(sorted(perm) == list(range(rank)), f"{list(given)} is no permutation of {rank} axes")
    move(ctx, [Transpose(perm)])


@lowers("TILE")
def tile(ctx: OpContext) -> None:
    multiples = ctx.integers(1, "the multiples")
    ctx.require(
        len(multiples) == len(ctx.shape(0)) and all(m >= 0 for m in multiples),
        f"multiples {list(multiples)} for a tensor of shape {list(ctx.shape(0))}",
    )
    move(ctx, [Tile(multiples)])


@lowers("BROADCAST_TO")
def broadcast_to(ctx: OpContext) -> None:
    x, target = ctx.shape(0), ctx.integers(1, "the sizes")
    whole = (1,) * (len(target) - len(x)) + x
    fits = len(whole) == len(target) and all(n in (1, wanted) for n, wanted in zip(whole, target, strict=True))
    ctx.require(fits, f"shape {list(x)} does not broadcast to {list(target)}")
    multiples = tuple(wanted if n == 1 else 1 for n, wanted in zip(whole, target, strict=True))
    move(ctx, [Reshape(x, whole), Tile(multiples)] if whole != x else [Tile(multiples)])


@lowers("DILATE")
def dilate(ctx: OpContext) -> None:
    """Each element with the padding behind it, but for the last one of an axis."""
    x, factors = ctx.shape(0), ctx.integers(1, "the factors")
    ctx.require(len(factors) == len(x) and all(f > 0 for f in factors), f"factors {list(factors)} for {list(x)}")
    ctx.require(ctx.is_constant(2) and ctx.dtype(2) is ctx.dtype(0), "the padding value must be a constant of one type")
    fill = float(ctx.array(2).reshape(()))
    ctx.require(fill == int(fill) if ctx.dtype(0) is DType.INT32 else True, f"a padding value of {fill}")
    move(ctx, spread(x, factors, fill)[0])


def spread(x: Shape, factors: Sequence[int], fill: float) -> tuple[list[Step], Shape]:
    """What puts factor - 1 times `fill` between the elements along each axis of a tensor of shape `x`, and the shape
    that comes of it."""
    steps: list[Step] = []
    shape = x
    for axis, (n, factor) in enumerate(zip(x, factors, strict=True)):
        if factor == 1:
            continue
        split, whole = (*shape[:axis], n, 1, *shape[axis + 1 :]), (*shape[:axis], n * factor, *shape[axis + 1 :])
        behind = tuple(factor - 1 if i == axis + 1 else 0 for i in range(len(split)))
        spaced = (*shape[:axis], n, factor, *shape[axis + 1 :])
        kept = (*shape[:axis], (n - 1) * factor + 1, *shape[axis + 1 :])
        cut = Slice((0,) * len(x), (1,) * len(x), kept)
        steps += [Reshape(shape, split), Pad((0,) * len(split), behind, fill), Reshape(spaced, whole), cut]
        shape = kept
    return steps, shape


# ------------------------------------------------------------------------------------------- space and depth


@lowers("SPACE_TO_DEPTH")
def space_to_depth(ctx: OpContext) -> None:
    b, h, w, c = ctx.shape(0)
    block = _block(ctx)
    ctx.require(h % block == 0 and w % block == 0, f"blocks of {block} do not fit shape {[b, h, w, c]}")
    split, result = (b, h // block, block, w // block, block, c), (b, h // block, w // block, block * block * c)
    gathered = (b, h // block, w // block, block, block, c)
    move(ctx, [Reshape((b, h, w, c), split), Transpose((0, 1, 3, 2, 4, 5)), Reshape(gathered, result)])


@lowers("DEPTH_TO_SPACE")
def depth_to_space(ctx: OpContext) -> None:
    b, h, w, c = ctx.shape(0)
    block = _block(ctx)
    ctx.require(c % (block * block) == 0, f"{c} channels do not divide into blocks of {block} x {block}")
    depth = c // (block * block)
    split, result = (b, h, w, block, block, depth), (b, h * block, w * block, depth)
    spread = (b, h, block, w, block, depth)
    move(ctx, [Reshape((b, h, w, c), split), Transpose((0, 1, 3, 2, 4, 5)), Reshape(spread, result)])


@lowers("SPACE_TO_BATCH_ND")
def space_to_batch(ctx: OpContext) -> None:
    x, block, pads = _blocks(ctx, "the paddings")
    ctx.require(min((n for pair in pads for n in pair), default=0) >= 0, f"paddings {pads} are negative")
    m = len(block)
    before = (0, *(p for p, _ in pads), *(0 for _ in x[m + 1 :]))
    after = (0, *(p for _, p in pads), *(0 for _ in x[m + 1 :]))
    padded = tuple(p + n + q for p, n, q in zip(before, x, after, strict=True))
    ctx.require(
        all(n % k == 0 for n, k in zip(padded[1:], block, strict=False)),
        f"blocks {list(block)} do not divide the padded shape {list(padded)}",
    )
    cells = [n // k for n, k in zip(padded[1:], block, strict=False)]
    split = (x[0], *(s for pair in zip(cells, block, strict=True) for s in pair), *x[m + 1 :])
    order = (*range(2, 2 * m + 1, 2), 0, *range(1, 2 * m, 2), *range(2 * m + 1, len(split)))
    result = (x[0] * math.prod(block), *cells, *x[m + 1 :])
    gathered = tuple(split[i] for i in order)
    move(ctx, [Pad(before, after, ctx.zero), Reshape(padded, split), Transpose(order), Reshape(gathered, result)])


@lowers("BATCH_TO_SPACE_ND")
def batch_to_space(ctx: OpContext) -> None:
    x, block, crops = _blocks(ctx, "the crops")
    m, area = len(block), math.prod(block)
    ctx.require(x[0] % area == 0, f"a batch of {x[0]} does not divide into blocks {list(block)}")
    split = (*block, x[0] // area, *x[1:])
    # batch, then each spatial axis followed by its block's axis, then the rest
    order = (m, *(a for i in range(m) for a in (m + 1 + i, i)), *range(2 * m + 1, len(split)))
    spread = tuple(split[i] for i in order)
    whole = (x[0] // area, *(n * k for n, k in zip(x[1:], block, strict=False)), *x[m + 1 :])
    result = (whole[0], *(n - p - q for n, (p, q) in zip(whole[1:], crops, strict=False)), *whole[m + 1 :])
    ctx.require(
        min(result) >= 0 and min((n for pair in crops for n in pair), default=0) >= 0, f"crops {crops} do not fit"
    )
    begin = (0, *(p for p, _ in crops), *(0 for _ in whole[m + 1 :]))
    cropped = Slice(begin, (1,) * len(whole), result)
    move(ctx, [Reshape(x, split), Transpose(order), Reshape(spread, whole), cropped])


def _block(ctx: OpContext) -> int:
    block = int(ctx.option("block_size"))
    ctx.require(block > 0, f"block size {block} is not positive")
    return block


def _blocks(ctx: OpContext, what: str) -> tuple[Shape, tuple[int, ...], list[tuple[int, int]]]:
    """Input shape, block per spatial axis, and the pairs of input 2."""
    x, block, flat = ctx.shape(0), ctx.integers(1, "the blocks"), ctx.integers(2, what)
    ctx.require(len(block) == len(x) - 2, f"blocks {list(block)} for a tensor of shape {list(x)}")
    ctx.require(min(block) > 0, f"blocks {list(block)} are not positive")
    ctx.require(len(flat) == 2 * len(block), f"{what} have {len(flat)} numbers for {len(block)} axes")
    return x, block, list(zip(flat[::2], flat[1::2], strict=True))


# --------------------------------------------------------------------------------------- joining tensors


@lowers("CONCATENATION")
def concatenation(ctx: OpContext) -> None:
    rank = len(ctx.output.shape)
    axis = ctx.axis(int(ctx.option("axis")), rank)
    shapes = [ctx.shape(i) for i in range(len(ctx.operator.inputs))]
    for s in shapes:
        same = len(s) == rank and all(n == m for i, (n, m) in enumerate(zip(s, shapes[0], strict=True)) if i != axis)
        ctx.require(same, f"shapes {list(shapes[0])} and {list(s)} do not join along axis {axis}")
    ctx.check_shape(sum(s[axis] for s in shapes) if i == axis else n for i, n in enumerate(shapes[0]))
    if not _join_rescaled(ctx, shapes, axis):
        _join(ctx, [ctx.value(i) for i in range(len(shapes))], shapes, axis, activated=True)


@lowers("PACK")
def pack(ctx: OpContext) -> None:
    rank = len(ctx.output.shape)
    axis = ctx.axis(int(ctx.option("axis")), rank)
    count, x = len(ctx.operator.inputs), ctx.shape(0)
    ctx.require(all(ctx.shape(i) == x for i in range(count)), "inputs of different shapes")
    ctx.check_shape((*x[:axis], count, *x[axis:]))
    layer = (*x[:axis], 1, *x[axis:])
    _join(ctx, [ctx.reshaped(ctx.value(i), layer) for i in range(count)], [layer] * count, axis)


def _join_rescaled(ctx: OpContext, shapes: Sequence[Shape], axis: int) -> bool:
    """Join bytes that stand for numbers in different ways, each by a table of what it is in the result; False where
    that is not so."""
    made, inputs = grid_of(ctx.output), range(len(ctx.operator.inputs))
    if made is None or ctx.moves_bytes or not all(integers.is_stored(ctx, i) for i in (*inputs, None)):
        return False
    if int(ctx.option("fused_activation_function")) != 0:
        return False
    values = []
    for i in inputs:
        grid, value = grid_of(ctx.tensor(i)), integers.stored(ctx, i)
        assert grid is not None
        if grid != made:
            table = ctx.builder.constant(_rescaled(grid, made).reshape(1, 1, 1, 256))
            mapped = ctx.builder.value(ctx.builder.values[value].shape, ctx.builder.values[value].dtype)
            value = ctx.add(Lookup(grid.low), [value, table], mapped)
        values.append(value)
    ctx.gives_stored = True
    _join(ctx, values, shapes, axis)
    return True


def _rescaled(given: Grid, made: Grid) -> np.ndarray:
    """What is stored for each stored number: ConcatenationWithScaling of TFLite, in float32."""
    scale = np.float32(given.scale) * (np.float32(1) / np.float32(made.scale))
    x = np.arange(given.low, given.high + 1).astype(np.float32) * scale + np.float32(-given.zero) * scale
    nearest = np.sign(x) * np.floor(np.abs(x.astype(np.float64)) + 0.5)
    result: np.ndarray = np.clip(nearest + made.zero, made.low, made.high).astype(np.int32)
    return result


def _join(ctx: OpContext, values: list[int], shapes: Sequence[Shape], axis: int, *, activated: bool = False) -> None:
    """Values of these shapes along an axis, then the fused activation if the operator has one."""
    rank, result = len(ctx.output.shape), tuple(ctx.output.shape)
    place = axis + 4 - rank
    if place < 1 < rank - 3:  # one of several that are B
        place = 1

        def parted(s: Shape) -> Shape:
            return math.prod(s[:axis]), s[axis], math.prod(s[axis + 1 : -1]), s[-1]

        values = [ctx.reshaped(v, parted(s)) for v, s in zip(values, shapes, strict=True)]
        result = parted(result)
    found = {ctx.builder.values[v].dtype for v in values}
    ctx.require(len(found) == 1, "inputs of different types are not taken together")
    dtype = found.pop()
    epilogue = ctx.activation(Arg(0), dtype) if activated else RESULT
    joined = values[0]
    widened = dtype.is_narrow and place == 3 and any(ctx.builder.values[v].shape[3] % 4 for v in values)
    if widened:  # no thread may write a part of a word
        dtype = DType.INT32
        words = [ctx.builder.value(ctx.builder.values[v].shape, dtype) for v in values]
        values = [ctx.elementwise(Arg(0), [v], word) for v, word in zip(values, words, strict=True)]
        joined = values[0]
    if len(values) > 1:
        own = epilogue == RESULT and not widened and bhwc(result) == bhwc(ctx.output.shape)
        joined = ctx.add(Concat(place), values, ctx.output_value() if own else ctx.intermediate(result, dtype))
        if own:
            return
    joined = ctx.reshaped(joined, ctx.output.shape)
    if epilogue != RESULT or widened:
        ctx.elementwise(epilogue, [joined], ctx.output_value())
    else:
        ctx.copy(joined, [], ctx.output_value())
