"""Where an element of a moved tensor comes from: coordinates followed back through movement steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from litegpu.gpu.graph import Mirror, Pad, Reshape, Shape, Slice, Step, Take, Tile, Transpose, step_shape
from litegpu.gpu.kernels.access import Index, address
from litegpu.gpu.lang import Kernel, TracedValue


@dataclass(frozen=True, eq=False)
class Quad:
    """A coordinate that is 4 * q + lane: four neighbours at a time."""

    q: Index


Coordinate = Index | Quad
Lookup = Callable[[tuple[int, ...], Index], TracedValue]  # element `index` of a table of u32


def no_table(indices: tuple[int, ...], index: Index) -> TracedValue:
    """The Lookup of movements whose places are computed."""
    raise ValueError(f"no table of {len(indices)} places for {index}")


@dataclass(frozen=True, eq=False)
class Origin:
    """Where an element comes from. Where one of `inside` is false, the element is that entry's fill instead, and the
    coordinates are meaningless; the first entry counts first."""

    coordinates: list[Coordinate]
    inside: list[tuple[TracedValue | bool, float]]


def shapes_along(steps: Sequence[Step], shape: Shape) -> list[Shape]:
    """The shape before the first step, after it, and so on."""
    shapes = [tuple(shape)]
    for step in steps:
        shapes.append(step_shape(step, shapes[-1]))
    return shapes


def origin(k: Kernel, steps: Sequence[Step], shapes: Sequence[Shape], at: Sequence[Coordinate], look: Lookup) -> Origin:
    """Follow the coordinates `at` of the last shape back to the first. A Quad may be among them if `moves_quads`."""
    coordinates = list(at)
    inside: list[tuple[TracedValue | bool, float]] = []
    for step, shape in zip(reversed(steps), reversed(shapes[:-1]), strict=True):
        match step:
            case Reshape(source, target):
                coordinates = before_reshape(source, target, coordinates)
            case Transpose(perm):
                coordinates = [coordinates[perm.index(i)] for i in range(len(perm))]
            case Slice(begin, stride, _):
                coordinates = [_sliced(i, b, s) for i, b, s in zip(coordinates, begin, stride, strict=True)]
            case Pad(before, after, fill):
                for axis, (b, a) in enumerate(zip(before, after, strict=True)):
                    coordinates[axis] = _sliced(coordinates[axis], -b, 1)
                    if b > 0 or a > 0:
                        inside.append((_within(coordinates[axis], shape[axis]), fill))
            case Mirror(before, after, symmetric):
                for axis, (b, a) in enumerate(zip(before, after, strict=True)):
                    i = coordinates[axis]
                    if not isinstance(i, Quad):
                        coordinates[axis] = mirrored(k, i, shape[axis], b, a, symmetric)
            case Tile(multiples):
                coordinates = [_tiled(i, n, m) for i, n, m in zip(coordinates, shape, multiples, strict=True)]
            case Take(axis, indices):
                i = coordinates[axis]
                assert not isinstance(i, Quad)
                if inside:  # the coordinate may be outside of the table, and is then of no account
                    i = min(max(i, 0), len(indices) - 1) if isinstance(i, int) else k.min(i, len(indices) - 1)
                coordinates[axis] = _taken(i, indices, look)
    return Origin(coordinates, inside)


def moves_quads(steps: Sequence[Step], shapes: Sequence[Shape]) -> bool:
    """Whether every aligned group of four channels of the last shape is an aligned group of the first (lanes past the
    last channel aside), or lies wholly outside of it."""
    axis = len(shapes[-1]) - 1
    for step, shape, after_shape in zip(reversed(steps), reversed(shapes[:-1]), reversed(shapes[1:]), strict=True):
        if after_shape[axis] == 1:
            return False
        match step:
            case Reshape(source, target):
                found = _quad_axis_before_reshape(source, target, axis)
                if found is None:
                    return False
                axis = found
            case Transpose(perm):
                axis = perm[axis]
            case Slice(begin, stride, _):
                if begin[axis] % 4 or stride[axis] != 1:
                    return False
            case Pad(before, after, _):
                if before[axis] % 4 or (after[axis] > 0 and shape[axis] % 4):
                    return False
            case Mirror(before, after, _):
                if before[axis] or after[axis]:
                    return False
            case Tile(multiples):
                if multiples[axis] > 1 and shape[axis] % 4:
                    return False
            case Take(taken, _):
                if taken == axis:
                    return False
    return axis == len(shapes[0]) - 1


def reshape_moves_quads(source: Shape, target: Shape) -> bool:
    """`moves_quads` for one row-major reshape."""
    return moves_quads([Reshape(source, target)], [source, target])


def before_reshape(source: Shape, target: Shape, at: Sequence[Coordinate]) -> list[Coordinate]:
    """Coordinates in `source` of the element that a row-major reshape to `target` puts at `at`. Runs of axes whose
    sizes multiply to the same number are converted on their own, so axes that stay need no division."""
    result: list[Coordinate] = [0] * len(source)
    for sources, targets in _runs(source, target):
        if len(sources) == len(targets) == 1:
            result[sources[0]] = at[targets[0]]
            continue
        last = at[targets[-1]]
        unit = 4 if isinstance(last, Quad) else 1
        terms: list[tuple[Index, int]] = []
        stride = 1
        for axis in reversed(targets):
            i = at[axis]
            terms.insert(0, (i.q if isinstance(i, Quad) else i, stride))
            stride *= target[axis] // unit if axis == targets[-1] else target[axis]
        linear = address(0, terms)
        extent = stride
        for axis in reversed(sources):
            n = source[axis] // unit if axis == sources[-1] else source[axis]
            i = linear if extent == n else linear % n
            result[axis] = Quad(i) if unit == 4 and axis == sources[-1] else i
            if extent > n:
                linear, extent = linear // n, extent // n
            else:
                linear, extent = 0, 1
    return result


# --------------------------------------------------------------------------------------------- single steps


def _runs(source: Shape, target: Shape) -> list[tuple[list[int], list[int]]]:
    """The smallest runs of axes (those of size 1 left out) with equal products, outermost first."""
    a = [i for i, n in enumerate(source) if n > 1]
    b = [i for i, n in enumerate(target) if n > 1]
    runs: list[tuple[list[int], list[int]]] = []
    while a or b:
        left, right = [a.pop(0)], [b.pop(0)]
        while (have := math.prod(source[i] for i in left)) != (want := math.prod(target[i] for i in right)):
            if have < want:
                left.append(a.pop(0))
            else:
                right.append(b.pop(0))
        runs.append((left, right))
    return runs


def _quad_axis_before_reshape(source: Shape, target: Shape, axis: int) -> int | None:
    """The axis of `source` whose aligned fours are the aligned fours along `axis` of `target`."""
    sources, targets = next(run for run in _runs(source, target) if axis in run[1])
    same = len(sources) == len(targets) == 1
    innermost = targets[-1] == axis and target[axis] % 4 == 0 and source[sources[-1]] % 4 == 0
    return sources[-1] if same or innermost else None


def _sliced(i: Coordinate, begin: int, stride: int) -> Coordinate:
    """begin + stride * i; a begin below zero wraps, as u32 does."""
    if isinstance(i, Quad):
        return Quad(address(begin // 4, [(i.q, 1)]))
    return address(begin, [(i, stride)])


def _within(i: Coordinate, n: int) -> TracedValue | bool:
    if isinstance(i, Quad):
        i, n = i.q, -(-n // 4)
    return 0 <= i < n if isinstance(i, int) else i < n


def mirrored(k: Kernel, i: Index, n: int, before: int, after: int, symmetric: bool) -> Index:
    """TFLite's MirrorPad: at the edges the index turns around, with the edge element repeated if `symmetric`."""
    edge = 1 if symmetric else 0
    if isinstance(i, int):
        i -= before
        i = -edge - i if i < 0 else i
        return 2 * n - 2 + edge - i if i >= n else i
    result = i - before if before else i
    if after:
        last = before + 2 * n - 2 + edge
        result = k.select(i >= before + n, last - i, result)
    if before:
        result = k.select(i < before, before - edge - i, result)
    return result


def _tiled(i: Coordinate, n: int, multiple: int) -> Coordinate:
    if multiple == 1:
        return i
    if n == 1:
        return 0
    if isinstance(i, Quad):
        return Quad(0 if n == 4 else i.q % (n // 4))
    return i % n


def _taken(i: Index, indices: tuple[int, ...], look: Lookup) -> Index:
    if isinstance(i, int):
        return indices[i]
    step = indices[1] - indices[0] if len(indices) > 1 else 0
    if all(indices[j] == indices[0] + j * step for j in range(len(indices))):
        return address(indices[0], [(i, step)])
    count = len(indices)
    if all(indices[j] == (indices[0] + j) % count for j in range(count)):  # shifted around
        return address(indices[0], [(i, 1)]) % count
    return look(indices, i)
