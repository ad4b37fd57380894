"""The rules of STRIDED_SLICE: which elements masks, begins, ends and strides take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Asked(Protocol):
    """What strided() asks of an operator."""

    def option(self, name: str, default: Any = 0) -> Any: ...

    def require(self, condition: bool, reason: str) -> None: ...


def strided(
    ctx: Asked, x: Sequence[int], given: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """First index, stride and number of elements along each axis of `x`, and the shape of the result.

    The rules of StridedSlice in the TFLite reference: bit i of a mask is about entry i of begin, end and strides.
    """
    masks = {name: int(ctx.option(f"{name}_mask")) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    ctx.require(masks["ellipsis"] & (masks["ellipsis"] - 1) == 0, "more than one ellipsis")
    offset = bool(ctx.option("offset", False))
    ctx.require(not (offset and masks["end"]), "end_mask together with offset has no agreed meaning")
    entries = len(given[0])

    def bit(mask: str, i: int) -> bool:
        return bool(masks[mask] >> i & 1)

    added = sum(bit("new_axis", i) and not bit("ellipsis", i) for i in range(entries))
    ellipses = sum(bit("ellipsis", i) for i in range(entries))
    skipped = len(x) - (entries - added - ellipses)
    ctx.require(skipped >= 0, f"{entries} entries for a tensor of shape {list(x)}")
    begins: list[int] = []
    strides: list[int] = []
    sizes: list[int] = []
    result: list[int] = []

    def whole(count: int) -> None:
        for n in x[len(sizes) : len(sizes) + count]:
            begins.append(0)
            strides.append(1)
            sizes.append(n)
            result.append(n)

    for i in range(entries):
        if bit("ellipsis", i):
            whole(skipped)
            continue
        if bit("new_axis", i):
            result.append(1)
            continue
        n, (begin, end, stride) = x[len(sizes)], (g[i] for g in given)
        first, count = _range(ctx, n, begin, end, stride, bit("begin", i), bit("end", i), bit("shrink_axis", i), offset)
        begins.append(first)
        strides.append(stride)
        sizes.append(count)
        if not bit("shrink_axis", i):
            result.append(count)
    whole(len(x) - len(sizes))
    return tuple(begins), tuple(strides), tuple(sizes), tuple(result)


def _range(
    ctx: Asked, n: int, begin: int, end: int, stride: int, open_begin: bool, open_end: bool, shrink: bool,
    offset: bool,
) -> tuple[int, int]:  # fmt: skip
    """First index and number of elements along an axis of size n."""
    ctx.require(stride != 0, "a stride is 0")
    low, high = (0, n) if stride > 0 else (-1, n - 1)
    first = begin + n if begin < 0 else begin
    if open_begin:
        first = 0 if stride > 0 else n - 1
    if shrink:
        ctx.require(0 <= first < n, f"index {begin} is outside an axis of size {n}")
        return first, 1
    first = min(max(first, low), high)
    last = end + first if offset else end + n if end < 0 else end
    last = min(max(last, low), high)
    if open_end:
        last = n if stride > 0 else -1
    return first, max(0, -((first - last) // stride))


def computed_slice(ctx: Asked, x: Sequence[int], strides: Sequence[int]) -> dict[int, int]:
    """Axis -> entry of the begins, of a STRIDED_SLICE whose begins and ends are computed: one that takes single
    elements of these axes (shrink_axis_mask), and the others whole."""
    masks = {name: int(ctx.option(f"{name}_mask")) for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    ctx.require(not (masks["ellipsis"] or masks["new_axis"]) and len(strides) <= len(x), "begins are computed")
    found: dict[int, int] = {}
    for i, stride in enumerate(strides):
        ctx.require(stride == 1, "begins are computed by the model, and a stride is not 1")
        if masks["shrink_axis"] >> i & 1:
            ctx.require(not masks["begin"] >> i & 1, "begins are computed, and one that is taken is masked")
            found[i] = i
        else:
            whole = masks["begin"] >> i & masks["end"] >> i & 1
            ctx.require(bool(whole), f"begins or ends of axis {i} are computed by the model: its size is not known")
    return found
