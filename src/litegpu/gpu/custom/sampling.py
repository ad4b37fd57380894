"""Bilinear sampling of an image at computed coordinates (custom operators Resampler and TransformTensor)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.custom.definition import Array, Thread, per_thread
from litegpu.gpu.graph import DType, Shape
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang import Kernel, TracedValue, f32, f32x4, i32, u32


@dataclass(frozen=True)
class Resample:
    """inputs: image [B,H,W,C], warp [B,OH,OW,>=2] with x and y in pixels -> [B,OH,OW,C]: bilinear between the four
    pixels around, of which those outside of the image count as zero. (resampler.cc of MediaPipe and of TF Addons.)"""

    has_reference = True

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        image, warp = inputs
        return _sample(image, warp[..., 0], warp[..., 1])

    def build(self, ctx: KernelContext) -> list[Launch]:
        def compute(t: Thread) -> TracedValue:
            place = t.inputs[1].quad(t.b, t.y, t.x, 0)
            return _taps(t, place[0], place[1])

        return per_thread(ctx, "resample", DType.FLOAT32, compute)


@dataclass(frozen=True)
class TransformImage:
    """inputs: image [1,H,W,C], matrix of 16 numbers as [1,1,1,16] -> [1,OH,OW,C]. Output pixel (x, y) shows the image,
    bilinearly, at the first two rows of the matrix times (x, y, 0, 1); zero where that lies outside of the centres of
    the outermost pixels. `centred`: coordinates count from the pixels' corners, so their centres are at 0.5.
    (transform_tensor_bilinear.cc of MediaPipe; version 2 is centred.)"""

    centred: bool
    has_reference = True

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        image, matrix = inputs[0], inputs[1].reshape(4, 4).astype(np.float32)
        y, x = np.meshgrid(*(np.arange(n, dtype=np.float32) for n in shape[1:3]), indexing="ij")
        rows = matrix[:2].copy()
        if self.centred:
            rows[:, 3] += rows[:, 0] * np.float32(0.5) + rows[:, 1] * np.float32(0.5) - np.float32(0.5)
        sx, sy = (row[0] * x + row[1] * y + row[3] for row in rows)
        inside = (sx >= 0) & (sx <= image.shape[2] - 1) & (sy >= 0) & (sy <= image.shape[1] - 1)
        return np.where(inside[None, :, :, None], _sample(image, sx[None], sy[None]), np.float32(0))

    def build(self, ctx: KernelContext) -> list[Launch]:
        def compute(t: Thread) -> TracedValue:
            k, (_, h, w, _) = t.k, t.shape(0)
            x, y = (f32(k.const(i, u32) if isinstance(i, int) else i) for i in (t.x, t.y))
            places = []
            for row in (0, 1):
                m = t.inputs[1].quad(0, 0, 0, row)
                last = m[3] + (m[0] * 0.5 + m[1] * 0.5 - 0.5) if self.centred else m[3]
                places.append(m[0] * x + m[1] * y + last)
            sx, sy = places
            inside = (sx >= 0.0) & (sx <= float(w - 1)) & (sy >= 0.0) & (sy <= float(h - 1))
            result = k.var(k.const(0.0, f32x4))
            with k.If(inside):
                result.set(_taps(t, sx, sy))
            return result.value

        return per_thread(ctx, "transform_image", DType.FLOAT32, compute)


def _taps(t: Thread, x: TracedValue, y: TracedValue) -> TracedValue:
    """The image (input 0) at (x, y), with zeros around it. Far away, at infinities and NaN: zero."""
    k, (_, h, w, _) = t.k, t.shape(0)
    result = k.var(k.const(0.0, f32x4))
    with k.If((x > -1.0) & (x < float(w)) & (y > -1.0) & (y < float(h))):
        left, top = k.floor(x), k.floor(y)
        right_part, low_part = x - left, y - top
        rows = [_line(t.k, top, offset, h) for offset in (0, 1)]
        columns = [_line(t.k, left, offset, w) for offset in (0, 1)]
        for (iy, ok_y), part_y in zip(rows, (1.0 - low_part, low_part), strict=True):
            for (ix, ok_x), part_x in zip(columns, (1.0 - right_part, right_part), strict=True):
                with k.If(ok_y & ok_x):
                    pixel = t.inputs[0].quad(t.b, iy, ix, t.q)
                    result.set(k.fma(pixel, k.splat(part_x * part_y, 4), result.value))
    return result.value


def _line(k: Kernel, first: TracedValue, offset: int, size: int) -> tuple[TracedValue, TracedValue]:
    """Row or column first + offset as an index, and whether it is inside."""
    i = k.bitcast(i32(first), u32) + offset  # -1 wraps to a huge number
    return i, i < size


def _sample(image: Array, x: Array, y: Array) -> Array:
    """`image` [B,H,W,C] at x, y [B,OH,OW], zeros around it."""
    _, h, w, _ = image.shape
    near = (x > -1) & (x < w) & (y > -1) & (y < h)
    x, y = (np.where(near, v, 0).astype(np.float32) for v in (x, y))
    left, top = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
    batch = np.arange(image.shape[0])[:, None, None]
    total = np.zeros((*x.shape, image.shape[3]), np.float64)
    for iy, part_y in ((top, 1 - (y - top)), (top + 1, y - top)):
        for ix, part_x in ((left, 1 - (x - left)), (left + 1, x - left)):
            inside = near & (iy >= 0) & (iy < h) & (ix >= 0) & (ix < w)
            pixel = image[batch, np.clip(iy, 0, h - 1), np.clip(ix, 0, w - 1)]
            total += np.where(inside[..., None], pixel.astype(np.float64) * (part_x * part_y)[..., None], 0)
    return total.astype(np.float32)
