"""The steps of which movement of elements consists: index expressions from shape to shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

from litegpu.gpu.graph.expression import Shape


@dataclass(frozen=True)
class Reshape:
    """Row-major reinterpretation; `source` and `target` shapes hold the same number of elements, any rank."""

    source: Shape
    target: Shape


@dataclass(frozen=True)
class Transpose:
    """target.shape[i] = source.shape[perm[i]]."""

    perm: tuple[int, ...]


@dataclass(frozen=True)
class Slice:
    """source index = begin + stride * target index, per axis; strides may be negative; `target` is the shape."""

    begin: tuple[int, ...]
    stride: tuple[int, ...]
    target: Shape


@dataclass(frozen=True)
class Pad:
    """Constant padding: source index = target index - before; outside the source the result is `fill`, converted to
    the value's type. Negative amounts cut off."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    fill: float = 0.0


@dataclass(frozen=True)
class Mirror:
    """Mirror padding; `symmetric` repeats the edge element, otherwise (REFLECT) it does not."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    symmetric: bool = False


@dataclass(frozen=True)
class Tile:
    """source index = target index mod source size, per axis."""

    multiples: tuple[int, ...]


@dataclass(frozen=True)
class Take:
    """source index along `axis` = indices[target index]: GATHER with constant indices."""

    axis: int
    indices: tuple[int, ...]


Step = Reshape | Transpose | Slice | Pad | Mirror | Tile | Take


def step_shape(step: Step, shape: Shape) -> Shape:
    """The shape that `step` gives to a tensor of `shape`."""
    match step:
        case Reshape(source, target):
            if tuple(shape) != tuple(source) or math.prod(source) != math.prod(target):
                raise ValueError(f"{step} does not apply to a tensor of shape {shape}")
            return target
        case Transpose(perm):
            return tuple(shape[p] for p in perm)
        case Slice(_, _, target):
            return target
        case Pad(before, after) | Mirror(before, after):
            return tuple(b + n + a for b, n, a in zip(before, shape, after, strict=True))
        case Tile(multiples):
            return tuple(n * m for n, m in zip(shape, multiples, strict=True))
        case Take(axis, indices):
            return tuple(len(indices) if i == axis else n for i, n in enumerate(shape))
