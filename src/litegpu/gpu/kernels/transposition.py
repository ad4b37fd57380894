"""Copies that exchange the channels with another axis: by tiles, so that both sides are read and written in rows."""

from __future__ import annotations

import dataclasses
import math

from litegpu.gpu.graph import Copy, DType
from litegpu.gpu.kernels.access import COMPUTE, Index, Operands, Position, Source, divide, open_sink, remainder
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang import Kernel, TracedValue, trace
from litegpu.gpu.view import View, follow

#: What a workgroup moves: channels of the source (of as many pixels of the output), and of the output.
ROWS, COLUMNS = 32, 64
THREADS = 128
#: Shorter axes are not worth a tile.
LEAST = 16


def transposed(ctx: KernelContext) -> tuple[int, View] | None:
    """The axis of the output along which neighbours are neighbours in the source too, four by four, and the source with
    that axis and the channels exchanged; None where channels stay channels, or memory is not read in rows."""
    node, op = ctx.node, ctx.node.op
    assert isinstance(op, Copy)
    if ctx.value(node.inputs[0]).is_constant or ctx.features.max_threads < THREADS:
        return None
    view = follow(ctx.views[node.inputs[0]], op.steps)
    return None if view is None else exchange(view)


def exchange(view: View) -> tuple[int, View] | None:
    """For a source as it is seen by a copy's output: see `transposed`."""
    if view.dtype is DType.BOOL or view.dtype.is_narrow or view.shape[3] < LEAST:
        return None
    for axis in (2, 1, 0):
        if view.strides[axis] == 1 and view.shape[axis] >= LEAST:
            shape, strides = list(view.shape), list(view.strides)
            shape[3], shape[axis] = shape[axis], shape[3]
            strides[3], strides[axis] = strides[axis], strides[3]
            exchanged = dataclasses.replace(
                view, shape=tuple(shape), strides=(strides[0], strides[1], strides[2], strides[3]), zero_padded=False
            )
            return (axis, exchanged) if exchanged.vector else None
    return None


def transposition(ctx: KernelContext, axis: int, exchanged: View) -> Launch:
    """Each thread reads some quads along the source's channels, and stores as many along the output's."""
    shape = ctx.output.shape
    quads = -(-shape[3] // 4)
    across, down = -(-shape[3] // COLUMNS), -(-shape[axis] // ROWS)
    others = [n for a, n in enumerate(shape[:3]) if a != axis]
    operands: Operands = {}

    def kernel(k: Kernel) -> None:
        source = Source(k, exchanged, operands, "x")
        t = k.local_id()
        group: Index = k.group_id()
        first_column = remainder(group, across, across * down * math.prod(others)) * COLUMNS
        group = divide(group, across)
        first_row = remainder(group, down, down * math.prod(others)) * ROWS
        group = divide(group, down)
        other = [divide(group, others[1]), remainder(group, others[1], math.prod(others))]

        def at(row: Index) -> tuple[Index, Index, Index]:
            """(b, y, x) with this number along the axis."""
            place = [*other[:axis], row, *other[axis:]]
            return place[0], place[1], place[2]

        shared = k.shared(COMPUTE[exchanged.dtype], ROWS * (COLUMNS + 1))  # one more, for other banks
        loads: list[tuple[TracedValue, TracedValue]] = []
        for j in range(ROWS // 4 * COLUMNS // THREADS):
            item = t + j * THREADS
            q, column = item % (ROWS // 4), item // (ROWS // 4)
            found = source.quad(
                *at(k.min(first_column + column, shape[3] - 1)), k.min(first_row // 4 + q, exchanged.quads - 1)
            )
            loads.append((q * (4 * (COLUMNS + 1)) + column, found))
        for place, found in loads:
            for lane in range(4):
                shared[place + lane * (COLUMNS + 1)] = found[lane]
        k.barrier()
        places, values, inside = [], [], []
        for j in range(ROWS * COLUMNS // 4 // THREADS):
            item = t + j * THREADS
            q, row = item % (COLUMNS // 4), item // (COLUMNS // 4)
            place = row * (COLUMNS + 1) + q * 4
            values.append(k.vec(*(shared[place + lane] for lane in range(4))))
            pixel, quad = first_row + row, first_column // 4 + q
            inside.append((pixel < shape[axis]) & (quad < quads))
            places.append(Position(shape, coordinates=(*at(k.min(pixel, shape[axis] - 1)), k.min(quad, quads - 1))))
        open_sink(ctx, k, operands).write_all(places, values, inside)

    groups = across * down * math.prod(others)
    return Launch(trace(kernel, "transposition", (THREADS, 1, 1), (groups, 1, 1)), operands, "copy")
