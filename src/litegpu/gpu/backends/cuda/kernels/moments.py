"""Moments of parts of an image put together, and those of groups of channels."""

from __future__ import annotations

from litegpu.gpu.backends.cuda.kernels.runs import nothing_stored
from litegpu.gpu.backends.cuda.kernels.source import native_launch
from litegpu.gpu.graph import RESULT, DType, JoinedMoments
from litegpu.gpu.kernels.context import KernelContext, Launch

#: Threads of a workgroup in which each warp has a group of channels of its own, and of one that has a single group:
#: those of so many numbers and more.
THREADS, TEAM, MANY = 128, 512, 2048


def build(ctx: KernelContext) -> list[Launch] | None:
    """See moments.cu for the constants. None where others say how the moments lie, which layout does not."""
    op, source, target = ctx.node.op, ctx.views[ctx.node.inputs[0]], ctx.views[ctx.node.output]
    assert isinstance(op, JoinedMoments)
    images, parts, _, channels = source.shape
    alike = source.dtype is target.dtype is DType.FLOAT32 and source.strides[3] == target.strides[3] == 1
    if not alike or ctx.node.epilogue != RESULT:
        return None
    size = -(-op.pixels // parts)
    many = parts * channels // op.groups >= MANY
    threads, team = (TEAM, TEAM) if many else (THREADS, 32)
    constants: dict[str, int | str] = {
        "PARTS": parts, "PART": size, "LAST": op.pixels - size * (parts - 1), "CHANNELS": channels // op.groups,
        "GROUPS": op.groups, "IMAGES": images, "THREADS": threads, "TEAM": team,
        "FROM": source.offset, "FROM_B": source.strides[0], "FROM_Y": source.strides[1], "FROM_X": source.strides[2],
        "TO": target.offset, "TO_B": target.strides[0], "TO_X": target.strides[2],
    }  # fmt: skip
    return [
        native_launch(
            ctx, "joined_moments", ("moments.cu",), constants, {"moments": source, "joined": target}, label="moments",
            workgroup=(threads, 1, 1), dispatch=(-(-images * op.groups * team // threads), 1, 1),
            runs=nothing_stored(),
        )
    ]  # fmt: skip
