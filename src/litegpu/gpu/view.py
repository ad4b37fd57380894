"""Where a value's elements lie: a strided window onto a piece of memory."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from litegpu.gpu.graph import DType, Reshape, Shape, Slice, Step, Tile, Transpose


@dataclass(frozen=True)
class View:
    """Element (b,y,x,c) of a value is element offset + b*sb + y*sy + x*sx + c*sc of the memory `root`.

    All in elements of `dtype`. `zero_padded`: the elements between the last channel and the next multiple of four
    belong to this view alone and hold zeros (they may be read, and must be written as zeros).
    """

    root: int
    shape: Shape
    strides: tuple[int, int, int, int]
    dtype: DType
    offset: int = 0
    zero_padded: bool = False
    size: int = 0  # elements of the root's memory

    @property
    def quads(self) -> int:
        """Groups of four channels."""
        return -(-self.shape[3] // 4)

    @property
    def vector(self) -> bool:
        """Whether four channels can be addressed as one aligned vec4 (not whether lanes past C are this view's)."""
        b, y, x, c = self.strides
        s = self.shape
        return (c == 1 and self.offset % 4 == 0 and self.size % 4 == 0
                and all(k % 4 == 0 or n == 1 for k, n in ((b, s[0]), (y, s[1]), (x, s[2]))))  # fmt: skip

    @property
    def whole_quads(self) -> bool:
        """Whether all lanes of the last quad belong to this view."""
        return self.shape[3] % 4 == 0 or self.zero_padded

    @property
    def dense(self) -> bool:
        """Whether quad i of the value (in b,y,x,c order) is quad offset/4 + i of the memory."""
        p = self.quads * 4
        b, y, x, _ = self.strides
        n = self.shape
        return self.vector and self.whole_quads and all(
            size == 1 or stride == want
            for size, stride, want in ((n[2], x, p), (n[1], y, n[2] * p), (n[0], b, n[1] * n[2] * p))
        )  # fmt: skip


def padded(root: int, shape: Shape, dtype: DType) -> View:
    """The usual layout of an intermediate: channels innermost, padded with zeros to a multiple of four."""
    b, h, w, c = shape
    p = -(-c // 4) * 4
    return View(root, shape, (h * w * p, w * p, p, 1), dtype, zero_padded=True, size=b * h * w * p)


def packed(root: int, shape: Shape, dtype: DType, *, written: bool = False) -> View:
    """The layout of the user's arrays: row-major without padding.

    Where several elements share a word, memory is whole groups of four; if the kernels write it (`written`), a value of
    one pixel has what is left of its last group as padding."""
    b, h, w, c = shape
    size = math.prod(shape)
    spare = written and dtype.is_narrow and b * h * w == 1
    if dtype.is_narrow:
        size = -(-size // 4) * 4
    return View(root, shape, (h * w * c, w * c, c, 1), dtype, zero_padded=c % 4 == 0 or spare, size=size)


def follow(view: View, steps: tuple[Step, ...]) -> View | None:
    """The view through which a Copy with these steps reads `view`, or None if no strided window does it."""
    axes: list[_Axes] = [(_Axis(n, s, i == 3),) for i, (n, s) in enumerate(zip(view.shape, view.strides, strict=True))]
    offset = view.offset
    for step in steps:
        match step:
            case Transpose(perm):
                axes = [axes[p] for p in perm]
            case Slice(begin, stride, target):
                sliced: list[_Axes] = []
                for parts, start, k, n in zip(axes, begin, stride, target, strict=True):
                    if (start, k, n) == (0, 1, _size(parts)):
                        sliced.append(parts)
                        continue
                    if len(parts) > 1:
                        return None
                    whole = parts[0]
                    offset += start * whole.stride
                    last = whole.last_channels and k == 1 and start % 4 == 0 and start + n == whole.size
                    sliced.append((_Axis(n, whole.stride * k, last),))
                axes = sliced
            case Tile(multiples):
                if any(m > 1 and _size(parts) > 1 for parts, m in zip(axes, multiples, strict=True)):
                    return None
                axes = [parts if m == 1 else (_Axis(m, 0, False),) for parts, m in zip(axes, multiples, strict=True)]
            case Reshape(_, target):
                reshaped = _reshape([a for parts in axes for a in parts if a.size != 1], target)
                if reshaped is None:
                    return None
                axes = reshaped
            case _:
                return None
    if len(axes) != 4 or any(len(parts) > 1 or parts[0].stride < 0 for parts in axes):
        return None
    b, y, x, c = (parts[0] for parts in axes)
    return View(
        view.root,
        (b.size, y.size, x.size, c.size),
        (b.stride, y.stride, x.stride, c.stride if c.size > 1 else 1),
        view.dtype,
        offset,
        zero_padded=c.size % 4 == 0 or (view.zero_padded and c.last_channels),
        size=view.size,
    )


@dataclass(frozen=True)
class _Axis:
    size: int
    stride: int
    last_channels: bool  # the axis is the root's channels up to the last one, from a multiple of four


#: An axis; or several that together are one for the time being, as no stride goes through all of it.
_Axes = tuple[_Axis, ...]


def inverse(steps: tuple[Step, ...]) -> tuple[Step, ...] | None:
    """The movement back, if the steps only reshape and transpose."""
    back: list[Step] = []
    for step in steps:
        match step:
            case Reshape(source, target):
                back.append(Reshape(target, source))
            case Transpose(perm):
                back.append(Transpose(tuple(perm.index(i) for i in range(len(perm)))))
            case _:
                return None
    return tuple(reversed(back))


def _size(parts: _Axes) -> int:
    return math.prod(a.size for a in parts)


def _reshape(sources: list[_Axis], target: Shape) -> list[_Axes] | None:
    """The axes of a row-major reinterpretation of `sources`, none of which has the size 1, or None where the strides do
    not allow one."""
    wanted = [n for n in target if n != 1]
    found: list[_Axes] = []
    i = j = 0
    while i < len(sources) and j < len(wanted):
        first, out = i, j
        have, want = sources[i].size, wanted[j]
        while have != want:
            if have < want:
                i += 1
                have *= sources[i].size
            else:
                j += 1
                want *= wanted[j]
        i, j = i + 1, j + 1
        group, sizes = sources[first:i], wanted[out:j]
        if any(a.stride != b.stride * b.size for a, b in itertools.pairwise(group)):
            apart = _divided(group, sizes)
            if apart is None:
                return None
            found += apart
            continue
        stride = group[-1].stride
        parts: list[_Axes] = []
        for n in reversed(sizes):
            parts.append((_Axis(n, stride, len(group) == len(sizes) == 1 and group[0].last_channels),))
            stride *= n
        found += reversed(parts)
    filled = iter(found)
    return [(_Axis(1, 0, False),) if n == 1 else next(filled) for n in target]


def _divided(group: list[_Axis], sizes: list[int]) -> list[_Axes] | None:
    """The axes of a group as those of other sizes, some of which they may be together, or None."""
    left, found = list(group), []
    for n in sizes:
        parts: list[_Axis] = []
        while (have := _size(tuple(parts))) < n:
            a = left.pop(0)
            if have * a.size > n:
                if n % have or a.size % (n // have):
                    return None
                inner = a.size // (n // have)
                left.insert(0, _Axis(inner, a.stride, False))
                a = _Axis(n // have, a.stride * inner, False)
            parts.append(a)
        if _size(tuple(parts)) != n:
            return None
        found.append(tuple(parts))
    return found
