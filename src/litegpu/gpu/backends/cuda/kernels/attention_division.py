"""How the work of attention.cu is divided among warps, workgroups and clusters, and the shared memory that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.gpu.backends.cuda.kernels.matmul import copied
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS, device_shared_bytes, most_shared_bytes
from litegpu.gpu.kernels.context import KernelContext

#: Of them under way at once, at most.
MOST_STAGES = 4
#: Workgroups of a cluster, which divide the keys: as many as clusters can have on every device.
SPLITS = (2, 4, 8)
#: Multiprocessors of a GPC, or two less, among which clusters of four and more workgroups find their places.
NEIGHBOURS = 16
#: Microseconds that a cluster takes more, for its start, two barriers, and reading of what others have; as in
#: specialized.py. (With 0.9 ViT tiny's 197 keys would be divided, which take 3.0 us at once.)
DIVIDED = 1.2
#: Microseconds that a thread takes for eight numbers that it loads and converts. (An H100: 512 float32 keys of depth 64
#: in eight steps of four warps 12.5 us, when some loads of a step waited for others.)
CONVERTED = 0.075


@dataclass(frozen=True)
class AttentionDivision:
    """`down` warps of a workgroup divide the queries, of which each has `blocks` times 16, `across` warps the `step`
    keys that it takes at a time; `split` workgroups, a cluster, divide all keys. Of floats, what TF32 leaves of them is
    found once for all warps (`rests`), and four warps multiply together (`warpgroups`)."""

    down: int
    across: int
    step: int
    split: int = 1
    blocks: int = 1
    rests: bool = False
    warpgroups: bool = False

    def __str__(self) -> str:
        rows = f"{self.down}" if self.blocks == 1 else f"{self.down}*{self.blocks}"
        kind = "w" if self.warpgroups else "r" if self.rests else ""
        return f"{rows}x{self.across}x{self.step}{kind}" + (f"/{self.split}" if self.split > 1 else "")

    @property
    def rows(self) -> int:
        """Queries of a workgroup."""
        return 16 * self.blocks * self.down

    @property
    def threads(self) -> int:
        return 32 * self.down * self.across

    def tiles(self, ctx: KernelContext) -> int:
        """Of queries, of all heads: clusters, or workgroups."""
        batch, heads, queries, _ = ctx.output.shape
        return -(-queries // self.rows) * batch * heads

    def groups(self, ctx: KernelContext) -> int:
        return self.tiles(ctx) * self.split

    def steps(self, keys: int) -> int:
        """Of a workgroup."""
        return -(-keys // (self.step * self.split))


def fits_at_once(ctx: KernelContext, division: AttentionDivision, units: int) -> bool:
    """Whether there is shared memory for it, and whether all workgroups at once find multiprocessors, and keys."""
    together = units if division.split <= 2 else units // NEIGHBOURS * NEIGHBOURS
    few = division.groups(ctx) <= together and (division.split - 1) * division.step < keys_of(ctx)
    return few and fits_shared(ctx, division)


def fits_shared(ctx: KernelContext, division: AttentionDivision) -> bool:
    return places(ctx, division)[1] <= _most_shared(ctx)


def _most_shared(ctx: KernelContext) -> int:
    """Bytes of a workgroup."""
    capability = ctx.features.capability
    return most_shared_bytes(capability) if ctx.half else device_shared_bytes(capability)


def keys_of(ctx: KernelContext) -> int:
    return ctx.views[ctx.node.inputs[1]].shape[2]


def padded_widths(ctx: KernelContext) -> tuple[int, int]:
    """Numbers of a key and of a value as they lie in shared memory."""
    least = 16 if ctx.half else 32
    widths = (ctx.views[ctx.node.inputs[1]].shape[3], ctx.output.shape[3])
    depth, columns = (max(least, 1 << (n - 1).bit_length()) for n in widths)
    return depth, columns


def loading(ctx: KernelContext, division: AttentionDivision) -> float:
    """Microseconds that a step takes more for keys and values that do not come as they are multiplied."""
    views = [ctx.views[i] for i in ctx.node.inputs[1:3]]
    loaded = sum(n for view, n in zip(views, padded_widths(ctx), strict=True) if not copied(view, ctx.half, False))
    return CONVERTED * division.step * loaded / 8 / division.threads


def places(ctx: KernelContext, division: AttentionDivision) -> tuple[int, int]:
    """Steps that may be under way at once, or multiplied, and bytes of shared memory."""
    (depth, columns), size = padded_widths(ctx), 2 if ctx.half else 4
    queries, keys, values = (size * n for n in (division.rows * depth, division.step * depth, division.step * columns))
    more = 0
    if division.warpgroups:  # values once more, and what is left of them, where queries were
        more = max(0, 2 * values - queries) + keys
    elif division.rests:
        more = queries + keys + values
    steps = division.steps(keys_of(ctx))
    # with one workgroup on a multiprocessor nothing else hides how long copies take
    alone = division.groups(ctx) <= (ctx.features.compute_units or USUAL_UNITS) and not loading(ctx, division)
    fitting = (_most_shared(ctx) - queries - more) // (keys + values)
    stages = max(2, min(MOST_STAGES, steps, fitting)) if alone else 2
    sums = 4 * division.across * division.rows * (columns + 8 + 2)
    tiles = queries + more + min(stages, steps) * (keys + values)
    return stages, max(tiles, sums)
