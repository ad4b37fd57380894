"""Landmarks of faces and hands, and the crops that they give (custom operators of MediaPipe)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.custom.definition import Array, Thread, per_thread
from litegpu.gpu.graph import DType, Shape
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang import TracedValue, f32, u32

_FAR = 100000.0  # what bounding boxes begin with, as in MediaPipe


@dataclass(frozen=True)
class TransformPoints:
    """inputs: points [1,1,N,D], D 2 or 3, and a matrix of 16 numbers as [1,1,1,16] -> the same shape: x and y are the
    first two rows of the matrix times (x, y, 0, 1), its last column times `scale`; z stays. (transform_landmarks.cc of
    MediaPipe.)"""

    scale: float = 1.0
    has_reference = True

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        points, rows = inputs[0].astype(np.float64), inputs[1].reshape(4, 4)[:2].astype(np.float64)
        moved = points[..., :2] @ rows[:, :2].T + rows[:, 3] * self.scale
        return np.concatenate([moved, points[..., 2:]], 3).astype(np.float32)

    def build(self, ctx: KernelContext) -> list[Launch]:
        def compute(t: Thread) -> TracedValue:
            point = t.inputs[0].quad(t.b, t.y, t.x, 0)
            rows = [t.inputs[1].quad(0, 0, 0, i) for i in (0, 1)]
            x, y = (m[0] * point[0] + m[1] * point[1] + m[3] * self.scale for m in rows)
            return t.k.vec(x, y, point[2], point[3])

        return per_thread(ctx, "transform_points", DType.FLOAT32, compute)


@dataclass(frozen=True)
class CropMatrix:
    """inputs: landmarks as [1,1,1,3N] and the int32 numbers of those in the crop [1,1,1,M] -> the first version of
    MediaPipe's matrix from an image of `output` (height, width) to one of `input`, [1,1,4,4]. The crop is the bounding
    box, times `multiplier`, in a frame turned so that the line between the landmarks `left` and `right` is level;
    landmarks go from 0 to `extent`. (landmarks_to_transform_matrix.cc, namespace v1.)"""

    input: tuple[int, int]
    output: tuple[int, int]
    extent: float
    multiplier: float
    left: int
    right: int
    has_reference = True

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        points = inputs[0].reshape(-1, 3)[:, :2].astype(np.float64)
        dx, dy = points[self.right] - points[self.left]
        angle = -np.arctan(dy / dx)
        (low, high), back = _box(points, inputs[1], angle)
        sx, sy = (high - low) * self.multiplier / self.extent
        mx, my = back @ ((low + high) / 2) / self.extent * 2 - 1
        (ih, iw), (oh, ow) = self.input, self.output
        to_relative = np.array([[2 / (ow - 1), 0, -1], [0, 2 / (oh - 1), -1], [0, 0, 1]])
        turn = np.array([[*back[0], mx], [*back[1], my], [0, 0, 1]])
        to_absolute = np.array([[(iw - 1) / 2, 0, (iw - 1) / 2], [0, (ih - 1) / 2, (ih - 1) / 2], [0, 0, 1]])
        m = to_absolute @ turn @ np.diag([sx, sy, 1]) @ to_relative
        rows = [[m[0, 0], m[0, 1], 0, m[0, 2]], [m[1, 0], m[1, 1], 0, m[1, 2]], [0, 0, 1, 0], [0, 0, 0, 1]]
        return np.array(rows, np.float32).reshape(shape)

    def build(self, ctx: KernelContext) -> list[Launch]:
        (ih, iw), (oh, ow) = self.input, self.output

        def compute(t: Thread) -> TracedValue:
            k = t.k
            dx, dy = (_coordinate(t, self.right, i) - _coordinate(t, self.left, i) for i in (0, 1))
            length = k.sqrt(dx * dx + dy * dy)
            cos, sin = k.abs(dx) / length, k.select(dx < 0.0, dy, -dy) / length  # of -atan(dy / dx)
            low, high = _box_in_kernel(t, cos, sin)
            (sx, sy) = ((b - a) * (self.multiplier / self.extent) for a, b in zip(low, high, strict=True))
            mx, my = ((a + b) * 0.5 for a, b in zip(low, high, strict=True))
            half = 2.0 / self.extent
            middle_x, middle_y = (mx * cos + my * sin) * half - 1.0, (my * cos - mx * sin) * half - 1.0
            width, height = (iw - 1) / 2, (ih - 1) / 2
            across, down = 2.0 / (ow - 1), 2.0 / (oh - 1)
            first = (
                cos * sx * (width * across),
                sin * sy * (width * down),
                (middle_x + 1.0 - cos * sx - sin * sy) * width,
            )
            second = (
                -(sin * sx) * (height * across),
                cos * sy * (height * down),
                (middle_y + 1.0 + sin * sx - cos * sy) * height,
            )
            return _matrix_row(t, first, second)

        return per_thread(ctx, "crop_matrix", DType.FLOAT32, compute)


@dataclass(frozen=True)
class TurnedCropMatrix:
    """As CropMatrix, in pixels and with the line turned to `target` radians: the second version of MediaPipe's matrix.
    `scale` (x, y) enlarges the crop. (landmarks_to_transform_matrix.cc, namespace v2.)"""

    output: tuple[int, int]
    scale: tuple[float, float]
    target: float
    left: int
    right: int
    has_reference = True

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        points = inputs[0].reshape(-1, 3)[:, :2].astype(np.float64)
        dx, dy = points[self.right] - points[self.left]
        (low, high), back = _box(points, inputs[1], self.target - np.arctan2(dy, dx))
        size = np.array(self.output[::-1])
        linear = back * ((high - low) * np.array(self.scale) / size)
        shift = back @ ((low + high) / 2) - linear @ (size / 2)
        result = np.eye(4)
        result[:2, :2], result[:2, 3] = linear, shift
        result[2] = [0, 0, 1, 0]
        return result.astype(np.float32).reshape(shape)

    def build(self, ctx: KernelContext) -> list[Launch]:
        oh, ow = self.output

        def compute(t: Thread) -> TracedValue:
            k = t.k
            dx, dy = (_coordinate(t, self.right, i) - _coordinate(t, self.left, i) for i in (0, 1))
            length = k.sqrt(dx * dx + dy * dy)
            level = length == 0.0  # atan2(0, 0) is 0
            along, up = k.select(level, 1.0, dx / length), k.select(level, 0.0, dy / length)
            target_cos, target_sin = float(np.cos(self.target)), float(np.sin(self.target))
            cos, sin = along * target_cos + up * target_sin, along * target_sin - up * target_cos
            low, high = _box_in_kernel(t, cos, sin)
            sx = (high[0] - low[0]) * (self.scale[0] / ow)
            sy = (high[1] - low[1]) * (self.scale[1] / oh)
            mx, my = ((a + b) * 0.5 for a, b in zip(low, high, strict=True))
            x, y = mx * cos + my * sin, my * cos - mx * sin
            first = (cos * sx, sin * sy, x - cos * sx * (ow / 2) - sin * sy * (oh / 2))
            second = (-(sin * sx), cos * sy, y + sin * sx * (ow / 2) - cos * sy * (oh / 2))
            return _matrix_row(t, first, second)

        return per_thread(ctx, "crop_matrix", DType.FLOAT32, compute)


def _box(points: Array, subset: Array, angle: float) -> tuple[tuple[Array, Array], Array]:
    """The bounding box of the turned points as (lowest, highest), and the matrix that turns back."""
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turned = points[subset.reshape(-1)] @ turn.T
    return (turned.min(0), turned.max(0)), turn.T


def _box_in_kernel(t: Thread, cos: TracedValue, sin: TracedValue) -> tuple[list[TracedValue], list[TracedValue]]:
    k = t.k
    low, high = ([k.var(k.const(far, f32)) for _ in range(2)] for far in (_FAR, -_FAR))
    with k.loop(t.shape(1)[3]) as i:
        number = k.bitcast(t.inputs[1].at(0, 0, 0, i), u32)
        x, y = (t.inputs[0].at(0, 0, 0, number * 3 + axis) for axis in (0, 1))
        for axis, v in enumerate((x * cos - y * sin, x * sin + y * cos)):
            low[axis].set(k.min(low[axis].value, v))
            high[axis].set(k.max(high[axis].value, v))
    return [v.value for v in low], [v.value for v in high]


def _coordinate(t: Thread, landmark: int, axis: int) -> TracedValue:
    return t.inputs[0].at(0, 0, 0, 3 * landmark + axis)


def _matrix_row(
    t: Thread, first: tuple[TracedValue, TracedValue, TracedValue], second: tuple[TracedValue, TracedValue, TracedValue]
) -> TracedValue:
    """Row t.x of the matrix whose first two rows are (a, b, 0, c)."""
    k = t.k
    row = k.const(t.x, u32) if isinstance(t.x, int) else t.x
    zero, one = k.const(0.0, f32), k.const(1.0, f32)
    rows = [k.vec(a, b, zero, c) for a, b, c in (first, second)]
    lower = k.select(row == 2, k.vec(zero, zero, one, zero), k.vec(zero, zero, zero, one))
    return k.select(row == 0, rows[0], k.select(row == 1, rows[1], lower))
