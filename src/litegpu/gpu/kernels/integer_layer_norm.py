"""Layer normalization in whole numbers, as TFLite has it for LSTM (PortableApplyLayerNorm): sums of 64 bits, and an
inverse root by Newton and Raphson."""

from __future__ import annotations

from typing import Any

import numpy as np

from litegpu.gpu.evaluate.expressions import fixed_product
from litegpu.gpu.evaluate.expressions import one_over_root as root_in_numpy
from litegpu.gpu.kernels.expression import constant
from litegpu.gpu.kernels.fixed_point import fixed_mul, one_over_root
from litegpu.gpu.lang import Kernel, Memory, TracedValue, u32, vec

Array = np.ndarray[Any, np.dtype[Any]]
#: The mean of a row times 1024, and what one over its deviation is: a multiplier and how far to the right.
Moments = tuple[TracedValue, TracedValue, TracedValue]


def moments(k: Kernel, values: Memory, count: int, guard: TracedValue) -> Moments:
    """Of `count` numbers of 16 bits in shared memory, or of each lane of them; `guard` stands for variances less than
    1. Each thread computes them."""
    kind = values.type
    unsigned = vec(u32, kind.lanes)
    total, low, high = (k.var(constant(k, 0, kind)) for _ in range(3))
    with k.loop(count) as i:
        v = values[i]
        square = v * v
        total.set(total.value + v)
        low.set(low.value + (square & 0x7FFF))
        high.set(high.value + (square >> 15))
    whole = k.idiv_trunc(total.value, constant(k, count, kind))
    rest = total.value - whole * count
    mean = whole * 1024 + k.idiv_trunc(rest * 1024, constant(k, count, kind))
    bits = [k.bitcast(x, unsigned) for x in (low.value, high.value)]
    bottom = bits[0] + (bits[1] << 15)
    one, none = constant(k, 1, unsigned), constant(k, 0, unsigned)
    top = (bits[1] >> 17) + k.select(bottom < bits[0], one, none)
    times = constant(k, (1 << 20) // count, unsigned)
    first = _product(k, bottom, times)
    magnitude = k.bitcast(k.abs(mean), unsigned)
    second = _product(k, magnitude, magnitude)
    words = first[0] - second[0]
    above = first[1] + top * times - second[1] - k.select(first[0] < second[0], one, none)
    variance = k.bitcast((above << 12) | (words >> 20), kind)
    small = (above >= 1 << 31) | (variance < 1)
    return (mean, *one_over_root(k, k.select(small, guard, variance)))


def normalized(
    k: Kernel, x: TracedValue, found: Moments, coefficient: TracedValue, bias: TracedValue,
    factor: tuple[TracedValue | int, TracedValue | int],
) -> TracedValue:  # fmt: skip
    """A number of 16 bits of the row that the moments are of."""
    mean, multiplier, right = found
    product = fixed_mul(k, x * 1024 - mean, multiplier, -right) * coefficient
    rest = (product & 1023) + (bias & 1023)
    above, rest = (product >> 10) + (bias >> 10) + (rest >> 10), rest & 1023
    positive = (above > 0) | ((above == 0) & (rest > 0))
    one, none = (constant(k, i, x.type) for i in (1, 0))
    up = k.select(rest > 512, one, k.select(positive & (rest == 512), one, none))
    scaled = fixed_mul(k, above + up, factor[0], factor[1] + 12)
    return k.clamp(scaled, constant(k, -(1 << 15), x.type), constant(k, (1 << 15) - 1, x.type))


def moments_in_numpy(values: Array, guard: int) -> tuple[Array, Array, Array]:
    """Of each row."""
    found = [_moments_of([int(v) for v in row], guard) for row in values]
    columns = np.array(found, np.int64).T
    return columns[0][:, None], columns[1][:, None], columns[2][:, None]


def normalized_in_numpy(
    x: Array, found: tuple[Array, Array, Array], coefficients: Array, biases: Array, factor: tuple[int, int]
) -> Array:
    mean, multiplier, right = found
    scaled = fixed_product(x * 1024 - mean, multiplier, -right).astype(np.int64) * coefficients
    total = scaled.astype(np.int32).astype(np.int64) + biases
    nearest = np.where(total > 0, (total + 512) >> 10, -((512 - total) >> 10))
    return np.clip(fixed_product(nearest, factor[0], factor[1] + 12).astype(np.int64), -(1 << 15), (1 << 15) - 1)


def _product(k: Kernel, a: TracedValue, b: TracedValue) -> tuple[TracedValue, TracedValue]:
    """The low and the high word of a product without signs."""
    a_low, a_high, b_low, b_high = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
    first, second, third = a_low * b_low, a_low * b_high, a_high * b_low
    middle = (first >> 16) + (second & 0xFFFF) + (third & 0xFFFF)
    return (first & 0xFFFF) | (middle << 16), a_high * b_high + (second >> 16) + (third >> 16) + (middle >> 16)


def _moments_of(values: list[int], guard: int) -> tuple[int, int, int]:
    count = len(values)
    total = sum(values) * 1024
    mean = total // count if total >= 0 else -(-total // count)
    variance = sum(v * v for v in values) * ((1 << 20) // count) - mean * mean
    multiplier, right = root_in_numpy(np.array(variance >> 20 if variance >= 1 << 20 else guard, np.int64))
    return mean, int(multiplier), int(right)
