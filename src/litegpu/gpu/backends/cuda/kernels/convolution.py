"""Convolution as a matrix product: on tensor cores (float16, float32 sums; bytes, int32 sums; float32 as two halves or
as TF32 and what it leaves) or by plain multiplications of float32."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from litegpu.gpu.backends.cuda.kernels import (
    biased,
    columns,
    fetched,
    float_convolution,
    grouped,
    halo,
    matvec,
    overlapped,
    patch,
    persistent,
    pingpong,
    row_norm,
    runs,
    specialized,
    stem,
    tf32,
    wide_stem,
    window,
)
from litegpu.gpu.backends.cuda.kernels.layer import Layer, has_functions, is_half, residuals_of, stored_constants
from litegpu.gpu.backends.cuda.kernels.offer import Option, cheapest
from litegpu.gpu.backends.cuda.kernels.overlapped import overlaps_tiles, will_overlap
from litegpu.gpu.backends.cuda.kernels.prologue import constants_of, factors_bytes, files_of, instructions, operands_of
from litegpu.gpu.backends.cuda.kernels.source import Where, label_of, native_launch
from litegpu.gpu.backends.cuda.kernels.tile import (
    COPYING_CAPABILITY,
    TF32_CAPABILITIES,
    WARPGROUP_CAPABILITY,
    TileProduct,
    WorkgroupTile,
    cost,
    most_shared_bytes,
    multiprocessor_shared_bytes,
    ranked,
    that_fit,
)
from litegpu.gpu.graph import Conv2D, DType, Shape
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import padded

#: What an element of a residual takes more in the kernel of convolution.cu than its estimate says, in microseconds.
RESIDUAL = 1.4e-6
#: What a step takes more there in which patches of a picture are gathered (ViT's at batch 1: 6.9 us in six steps where
#: 2.8 was estimated).
GATHERED = 0.5
#: What layers of windows take there of what is estimated, at the least, where there are warpgroup products: a tile is
#: not to be taken for a tenth less than others whose estimates are better. (64x64x256 by 3x3, on an H200: 11.3 us
#: estimated and 21 taken, by specialized.cu 12.0 and 12.5.)
WINDOWS = 1.1
#: The depth of layers of one round, at least, for which tiles for overlapping kernels are taken where others do not
#: overlap: ViT's of 192 took 1 to 2% longer.
LEAST_ROUND_DEPTH = 256
#: Sums of a thread, at most, where it keeps what the epilogue reads beside them.
MOST_SUMS_AHEAD = 16
#: Microseconds from which layers of floats are multiplied as halves where kernels overlap: below, warps that copy for
#: others gain less than they cost there (ResNet-50's at batch 1: 16 layers of 4 to 5.5 us took 0.75 more each, Swin
#: and ConvNeXt's of 7 less).
LEAST_HALVED = 6.0
#: What pixels that are joined must take of what they take one by one: 0.57 to 0.76 by estimates for windows that move
#: by four of them.
JOINED = 0.85


def build(ctx: KernelContext) -> list[Launch] | None:
    """One launch; None for weights that are not constant or do not fit the type, other kinds of input, and what
    grouped.py does not do of groups."""
    op, node = ctx.node.op, ctx.node
    assert isinstance(op, Conv2D)
    weights = ctx.value(node.inputs[1]).data
    if op.groups > 1:
        return grouped.build(ctx)
    if weights is None or ctx.value(node.inputs[0]).is_constant:
        return None
    source = ctx.views[node.inputs[0]]
    half = is_half(ctx, source, weights)
    if half is None:
        return None
    run, floats = (runs.run_of(ctx), runs.run_of(ctx, floats=True)) if half else (0, 0)
    layer = Layer(op, source, weights, ctx.output.shape, half, residuals_of(ctx), run=run, floats=floats)
    return [fastest(ctx, replace(layer, functions=has_functions(node.epilogue)))]


#: An estimate, what launches the kernel, and candidates, the cheapest first.
_Kernel = tuple[Callable[..., float], Callable[..., Launch], Sequence[object]]


def fastest(ctx: KernelContext, layer: Layer, where: Where | None = None) -> Launch:
    """The convolution by the tile, block of pixels or division of few rows that is estimated to be the fastest, with
    others if some are to be measured. `where`: as for native_launch, if the layer's output is a part of the node's."""
    layer = _of_wider_pixels(layer, ctx.features)
    units = ctx.features.compute_units
    overlapping = alone = False
    if ctx.features.capability == WARPGROUP_CAPABILITY:
        overlapping = will_overlap(ctx.graph)
        alone = not overlapping and overlaps_tiles(ctx.graph) and layer.norm is None
    kernels, first = _chosen(layer, ctx.features, overlapping or alone, alone=alone)
    options = [(of(layer, one, units), make, one) for of, make, found in kernels for one in found[: ctx.most]]
    return cheapest(ctx, layer, options, where, first=first)


def _chosen(
    layer: Layer, features: Features, overlapping: bool, *, alone: bool = False
) -> tuple[list[_Kernel], Option]:
    """All kernels, and what to take of them: of a program whose kernels overlap, or one whose do not. `alone`: they do
    not, and are small enough for the same tiles."""
    kernels = _kernels(layer, features)
    if overlapping and not alone:  # where it was not measured
        kernels = [kernel for kernel in kernels if kernel[1] is not pingpong.launch]
    if overlapping and not layer.half:
        kernels = [one for one in kernels if one[1] is not float_convolution.launch or _is_long(layer, one, features)]
    first = _cheapest(layer, kernels, features.compute_units)
    large = alone and first[1] is pingpong.launch
    if layer.half and overlapping and layer.gate is None and not large:  # gates were not measured
        return _overlapping(layer, kernels, first, features, alone=alone)
    return kernels, first


def _is_long(layer: Layer, kernel: _Kernel, features: Features) -> bool:
    """Whether the first candidate takes long enough for layers of floats where kernels overlap."""
    cost_of, _, found = kernel
    return bool(found) and cost_of(layer, found[0], features.compute_units) >= LEAST_HALVED


def _of_wider_pixels(layer: Layer, features: Features) -> Layer:
    """The layer, or the same with neighbouring pixels joined where that is estimated to be clearly quicker. Windows
    that move by two have kernels of their own."""
    joined = layer.joined_pixels if layer.op.stride[1] > 2 else None
    gains = joined is not None and estimate(joined, features) < JOINED * estimate(layer, features)
    return joined if joined is not None and gains else layer


def estimate(layer: Layer, features: Features) -> float:
    """Microseconds of the convolution, by the kernel that is estimated to be the fastest."""
    units = features.compute_units
    tiles, others = _options(layer, features)
    found = [of(layer, some[0], units) for of, _, some in others if some]
    return min([_tile_cost(product_of(layer, features.capability), tiles[0], features), *found])


def _tile_cost(product: TileProduct, tile: WorkgroupTile, features: Features) -> float:
    """cost(), and what it does not know of windows."""
    windows = product.windowed and product.half and features.capability == WARPGROUP_CAPABILITY
    return cost(product, tile, features.compute_units) * (WINDOWS if windows else 1.0)


def estimate_alone(
    op: Conv2D, source: Shape, weights: np.ndarray, target: Shape, features: Features, *, overlapping: bool = False
) -> float:
    """estimate() of a convolution in float16 of dense values of these shapes, with nothing in front and behind; or that
    of a program whose kernels overlap."""
    layer = Layer(op, padded(0, source, DType.FLOAT16), weights, target, True)
    return _chosen(layer, features, overlapping)[1][0] if overlapping else estimate(layer, features)


def _options(layer: Layer, features: Features) -> tuple[Sequence[WorkgroupTile], list[_Kernel]]:
    """The tiles for the kernel of convolution.cu, the cheapest first, and the other kernels."""
    units, capability = features.compute_units, features.capability
    tiles, more = ranked(product_of(layer, capability), units), factors_bytes(layer) if layer.half else 0
    if more and capability != WARPGROUP_CAPABILITY:
        tiles = [t for t in tiles if t.shared_bytes(layer.half) + more <= most_shared_bytes(capability)]
    divided = specialized.launch, specialized.ranked(layer, capability, units)
    if layer.fetched:
        return tiles, [(specialized.cost, *divided)]
    others: list[_Kernel] = [
        (matvec.cost, matvec.launch, matvec.ranked(layer, units)),
        (specialized.cost, *divided),
        (persistent.cost, persistent.launch, persistent.ranked(layer, capability, units)),
        (columns.cost, columns.launch, columns.ranked(layer, capability, units)),
        (pingpong.cost, pingpong.launch, pingpong.ranked(layer, capability, units)),
        (float_convolution.cost, float_convolution.launch, float_convolution.ranked(layer, capability, units)),
    ]
    if layer.prologue is None and layer.norm is None:  # which these do not know
        blocks = that_fit(window.ranked(layer, units), functools.partial(window.shared_bytes, layer), capability)
        stems = that_fit(stem.ranked(layer, units), functools.partial(stem.shared_bytes, layer), capability)
        others += [
            (window.cost, window.launch, blocks),
            (stem.cost, stem.launch, stems),
            (wide_stem.cost, wide_stem.launch, wide_stem.ranked(layer, capability, units)),
            (halo.cost, halo.launch, halo.ranked(layer, capability, units)),
            (patch.cost, patch.launch, patch.ranked(layer, capability, units)),
        ]
    return tiles, others


def _kernels(layer: Layer, features: Features) -> list[_Kernel]:
    """All kernels, with what their estimates do not know of the first."""
    tiles, others = _options(layer, features)
    gathered = any(make is patch.launch and found for _, make, found in others) and layer.access == "GATHER"
    product, residual = product_of(layer, features.capability), math.prod(layer.shape) * layer.residuals * RESIDUAL

    def of_tile(layer: Layer, tile: WorkgroupTile, units: int) -> float:
        gathering = GATHERED * -(-layer.depth // tile.depth) if gathered else 0.0
        return _tile_cost(product, tile, features) + residual + gathering

    return [(of_tile, launch, tiles), *others]


def _cheapest(layer: Layer, kernels: Sequence[_Kernel], units: int) -> Option:
    best = ((estimate(layer, found[0], units), make, found[0]) for estimate, make, found in kernels if found)
    return min(best, key=lambda option: option[0])


def _overlapping(
    layer: Layer, kernels: Sequence[_Kernel], chosen: Option, features: Features, *, alone: bool
) -> tuple[list[_Kernel], Option]:
    """The kernels and what to take of them in a program whose kernels overlap: what was chosen for kernels that have
    the device to themselves, or what is clearly faster there. `alone`: of one whose do not, but are as small."""
    units, capability = features.compute_units, features.capability
    stems, (of_tile, _, _) = overlapped.stems(layer, units), kernels[0]
    found: list[_Kernel] = [
        (overlapped.measured(estimate), launches, candidates)
        for estimate, launches, candidates in kernels
        if launches not in (launch, specialized.launch, stem.launch)
    ]
    found += [
        (overlapped.stem_cost, stem.launch, stems),
        (overlapped.specialized_cost, specialized.launch, overlapped.divisions(layer, capability, units)),
        (overlapped.tile_cost, launch, overlapped.tiles(layer, product_of(layer, capability), units)),
    ]
    _, make, one = chosen
    if make is stem.launch and not alone:
        one = stems[0]
    estimates = {launches: estimate for estimate, launches, _ in found}
    own = (of_tile if make is launch and not overlapped.knows(layer) else estimates[make])(layer, one, units)
    least, first = own - overlapped.CLEARLY, (own, make, one)
    for estimate, launches, candidates in found:
        if not candidates or (alone and not _is_one_round(layer, launches, candidates[0], units)):
            continue
        if (there := estimate(layer, candidates[0], units)) < least:
            least, first = there, (there, launches, candidates[0])
    return found if overlapped.knows(layer) else [kernels[0], *found], first


def _is_one_round(layer: Layer, launches: Callable[..., Launch], one: object, units: int) -> bool:
    """Whether each multiprocessor has a workgroup at most, and enough to do: where kernels do not overlap, the
    estimates for those that do are better than others there."""
    if launches in (halo.launch, wide_stem.launch):  # whose workgroups stay
        return True
    if launches is not specialized.launch or not isinstance(one, specialized.SpecializedTile):
        return False
    rows, columns = -(-math.prod(layer.shape[:3]) // one.rows), -(-layer.shape[3] // one.columns)
    return layer.depth >= LEAST_ROUND_DEPTH and rows * columns * one.split <= units


def product_of(layer: Layer, capability: int) -> TileProduct:
    """The convolution as a matrix product, on a device of that compute capability (times ten). Products of bytes are of
    one warp each."""
    gathered, windowed = layer.access == "GATHER", layer.access == "WINDOW"
    rows, columns = math.prod(layer.shape[:3]), layer.shape[3]
    shared = multiprocessor_shared_bytes(capability)
    prepared = instructions(layer) + (0.0 if layer.norm is None else row_norm.INSTRUCTIONS)
    if layer.whole_numbers:
        depth, warps = -(-layer.depth // 2), min(capability, COPYING_CAPABILITY)
        return TileProduct(rows, columns, depth, True, gathered, windowed, warps, shared=shared)
    floats = capability in TF32_CAPABILITIES and layer.tf32
    return TileProduct(rows, columns, layer.depth, layer.half, gathered, windowed, capability, prepared, floats, shared)


def packed(layer: Layer, tile: WorkgroupTile) -> np.ndarray:
    """The weights as [outputs, depth], both in whole tiles; behind each tile what TF32 leaves of it, where four warps
    multiply it together."""
    outputs, kh, kw, inputs = layer.weights.shape
    channels = layer.depth // (kh * kw)
    each = _depth(layer, tile)
    columns, depth = -(-outputs // tile.columns) * tile.columns, -(-layer.depth // each) * each
    kind = np.int8 if layer.whole_numbers else np.float16 if layer.half else np.float32
    rows = np.zeros((outputs, kh * kw, channels), kind)
    rows[..., :inputs] = layer.weights.reshape(outputs, kh * kw, inputs)
    result = np.zeros((columns, depth), rows.dtype)
    result[:outputs, : layer.depth] = rows.reshape(outputs, -1)
    if not tile.has_rests:
        return result
    tiles = np.stack([part.reshape(-1, tile.columns, depth) for part in (result, tf32.rests(result))], axis=1)
    return tiles.reshape(2 * columns, depth)


def _depth(layer: Layer, tile: WorkgroupTile) -> int:
    """Elements of a step."""
    return tile.depth * (2 if layer.whole_numbers else 1)


def launch(ctx: KernelContext, layer: Layer, tile: WorkgroupTile, where: Where | None = None) -> Launch:
    """The convolution with the given tile."""
    made = settings(ctx, layer, tile)
    constants, operands = made.constants, made.operands
    begun = None
    if _may_begin(made):
        begun = biased.with_begun_sums(ctx, layer.weights.reshape(layer.shape[3], -1), -(-layer.shape[3] // 4) * 4)
    if begun is not None:
        (ctx, bias), constants = begun, constants | {"BEGUN": 1}
        operands = {**operands, "bias": bias}
    return native_launch(
        ctx, made.name, made.files, constants, operands, label=label_of(ctx), workgroup=(tile.threads, 1, 1),
        dispatch=(made.groups, 1, 1), shared_bytes=made.shared_bytes, variant=str(tile), where=where,
        rounds=layer.rounds, inner=fetched.functions_of(ctx, layer), ahead=bool(constants["AHEAD"]),
    )  # fmt: skip


def _may_begin(made: Settings) -> bool:
    """Whether the kernel can begin its sums with what it loads ahead: floats that several warps add up, of no more
    operands than the input and the weights."""
    constants = made.constants
    return bool(constants["AHEAD"]) and constants["WARPS_K"] != 1 and made.operands.keys() == {"x", "w"}


def _loads_ahead(tile: WorkgroupTile) -> bool:
    """Whether threads load what the epilogue reads before they multiply: each keeps its quad, and has registers."""
    return tile.threads % (tile.columns // 4) == 0 and tile.rows * tile.columns <= MOST_SUMS_AHEAD * tile.threads


@dataclass(frozen=True)
class Settings:
    """What native_launch needs for convolution.cu."""

    name: str
    files: tuple[str, ...]
    constants: dict[str, int | str]
    operands: Operands
    groups: int
    shared_bytes: int


def settings(ctx: KernelContext, layer: Layer, tile: WorkgroupTile) -> Settings:
    """For the convolution with the given tile; see convolution.cu for the constants."""
    product, view = product_of(layer, ctx.features.capability), layer.source
    weights = packed(layer, tile)
    rows, columns = -(-product.rows // tile.rows), -(-product.columns // tile.columns)
    source, load = layer.load
    constants: dict[str, int | str] = {
        **layer.constants(), "HALF": int(product.half), "SOURCE": source, "LOAD(value)": load, "VECTOR": layer.vector,
        **tile.constants(), "AHEAD": int(_loads_ahead(tile)), "BEGUN": 0, "BK": _depth(layer, tile), "TILES_N": columns,
        "PIXELS": product.rows, "QUADS": -(-layer.shape[3] // 4), "DEPTH": weights.shape[1], "ACCESS": layer.access,
        **constants_of(layer, tile.shared_bytes(True) if layer.half else None, tile.depth),
        **row_norm.constants_of(layer.norm),
    }  # fmt: skip
    if layer.access in ("POINTS", "FLOATS") and layer.pitch is not None:
        constants["PITCH_X"] = layer.pitch
    if tile.tf32:
        constants["NUMBERS"] = 1
    if layer.access == "GATHER" and layer.half:
        constants |= stored_constants(view.dtype, layer.op.zero_point or 0)
    operands: Operands = {"x": view, "w": weights, **operands_of(layer, halves=layer.half, step=tile.depth)}
    name = "tensor_convolution" if layer.half else "tiled_convolution"
    if layer.whole_numbers:
        constants |= {
            "WHOLE": 1, "LOAD(value)": "(int)(value)", "UNSIGNED": int(view.dtype is DType.UINT8),
            "PADDED": int(bool(layer.op.zero_point)),
        }  # fmt: skip
        operands |= {"outside": layer.outside, "corrections": layer.corrections(weights.shape[0])}
        name = "byte_convolution"
    first, *others = tile.files
    stored = () if layer.whole_numbers else ("stored.cu",)
    files = (first, *row_norm.files_of(layer.norm), *others, "border.cu", *stored, *files_of(layer), "convolution.cu")
    shared = tile.shared_bytes(product.half) + (factors_bytes(layer, tile.depth) if layer.half else 0)
    return Settings(name, files, constants, operands, rows * columns, shared)
