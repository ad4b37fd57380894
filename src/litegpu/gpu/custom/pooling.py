"""Pooling that remembers where each maximum came from, and its inverse (custom operators of MediaPipe)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.custom.definition import Array, Thread, per_thread
from litegpu.gpu.graph import DType, Shape
from litegpu.gpu.kernels.blocking import window_axes
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang import TracedValue, f32x4, i32, i32x4, u32

Pair = tuple[int, int]

_LOWEST = float(np.finfo(np.float32).min)
#: Taps that are unrolled.
_UNROLLED = 16


@dataclass(frozen=True)
class WindowArgmax:
    """Which cell of its window holds the maximum: ky * width + kx, the first of equals, int32. A NaN is passed over;
    0 where nothing is above the lowest float. (max_pool_argmax.cc of MediaPipe.)"""

    window: Pair
    stride: Pair
    padding: Pair  # top, left
    has_reference = True

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        (x,) = inputs
        _, oh, ow, _ = shape
        best, place = np.full(shape, _LOWEST, np.float32), np.zeros(shape, np.int32)
        for ky, kx in itertools.product(range(self.window[0]), range(self.window[1])):
            rows, columns = (
                np.arange(n) * s - p + k
                for n, s, p, k in zip((oh, ow), self.stride, self.padding, (ky, kx), strict=True)
            )
            inside = ((rows >= 0) & (rows < x.shape[1]))[:, None] & ((columns >= 0) & (columns < x.shape[2]))
            cell = x[:, np.clip(rows, 0, x.shape[1] - 1)][:, :, np.clip(columns, 0, x.shape[2] - 1)]
            better = inside[None, :, :, None] & (cell > best)
            best, place = np.where(better, cell, best), np.where(better, ky * self.window[1] + kx, place)
        return place.astype(np.int32)

    def build(self, ctx: KernelContext) -> list[Launch]:
        kh, kw = self.window
        vertical, horizontal = window_axes(ctx, self.window, self.stride, (1, 1), self.padding)

        def compute(t: Thread) -> TracedValue:
            k = t.k
            best, place = k.var(k.const(_LOWEST, f32x4)), k.var(k.const(0, i32x4))

            def tap(ky: TracedValue | int, kx: TracedValue | int, number: TracedValue | int) -> None:
                (iy, ok_y), (ix, ok_x) = vertical.at(k, t.y, ky), horizontal.at(k, t.x, kx)
                found = t.inputs[0].quad(t.b, iy, ix, t.q)
                better = found > best.value
                for ok in (ok_y, ok_x):
                    better = better if ok is None else better & k.splat(ok, 4)
                here = k.const(number, i32x4) if isinstance(number, int) else k.splat(i32(number), 4)
                best.set(k.select(better, found, best.value))
                place.set(k.select(better, here, place.value))

            if kh * kw <= _UNROLLED:
                for ky, kx in itertools.product(range(kh), range(kw)):
                    tap(ky, kx, ky * kw + kx)
            else:
                with k.loop(kh * kw) as i:
                    tap(i // kw, i % kw, i)
            return place.value

        return per_thread(ctx, "window_argmax", DType.INT32, compute)


@dataclass(frozen=True)
class MaxUnpool:
    """inputs: values and their places in the window (as WindowArgmax gives them; floats are truncated) of the same
    shape. Each value goes to y * stride - padding + place // width, x * stride - padding + place % width; everything
    else is zero. Where windows overlap the last in row-major order stays. (max_unpooling.cc of MediaPipe.)"""

    window: Pair
    stride: Pair
    padding: Pair
    has_reference = True

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        values, places = inputs[0], np.trunc(inputs[1]).astype(np.int64)
        result = np.zeros(shape, np.float32)
        b, h, w, c = np.meshgrid(*(np.arange(n) for n in values.shape), indexing="ij")
        inside_window = (places >= 0) & (places < self.window[0] * self.window[1])
        y = h * self.stride[0] - self.padding[0] + places // self.window[1]
        x = w * self.stride[1] - self.padding[1] + places % self.window[1]
        real = inside_window & (y >= 0) & (y < shape[1]) & (x >= 0) & (x < shape[2])
        result[b[real], y[real], x[real], c[real]] = values[real]
        return result

    def build(self, ctx: KernelContext) -> list[Launch]:
        (kh, kw), (sy, sx) = self.window, self.stride

        def compute(t: Thread) -> TracedValue:
            """Looks, from the first to the last, through the windows that cover the pixel."""
            k = t.k
            values, places = t.inputs
            _, h, w, _ = t.shape(0)
            y, x = (
                k.const(i + p, u32) if isinstance(i, int) else i + p
                for i, p in zip((t.y, t.x), self.padding, strict=True)
            )
            result = k.var(k.const(0.0, f32x4))

            def window(back_y: TracedValue | int, back_x: TracedValue | int) -> None:
                iy, ix = y // sy - back_y, x // sx - back_x  # before the first they wrap to huge numbers
                ky, kx = y % sy + back_y * sy, x % sx + back_x * sx
                with k.If((iy < h) & (ix < w) & (ky < kh) & (kx < kw)):
                    found = k.trunc(places.quad(t.b, iy, ix, t.q))
                    wanted = k.splat(i32(ky * kw + kx), 4)
                    result.set(k.select(i32x4(found) == wanted, values.quad(t.b, iy, ix, t.q), result.value))

            rows, columns = -(-kh // sy), -(-kw // sx)
            with k.loop(rows) as i, k.loop(columns) as j:
                window(rows - 1 - i, columns - 1 - j)
            return result.value

        return per_thread(ctx, "max_unpool", DType.FLOAT32, compute)
