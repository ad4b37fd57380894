"""Where a value's elements lie: a strided window onto a piece of memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

from litegpu.gpu.graph import DType, Shape


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
        b, y, x, c = self.strides
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


def packed(root: int, shape: Shape, dtype: DType) -> View:
    """The layout of the user's arrays: row-major without padding."""
    _, h, w, c = shape
    return View(root, shape, (h * w * c, w * c, c, 1), dtype, zero_padded=c % 4 == 0, size=math.prod(shape))
