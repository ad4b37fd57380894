"""Random numbers that a seed makes repeatable: Philox 4x32-10 (Salmon et al. 2011), as the official runtime has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.custom.definition import Array, Thread, per_thread
from litegpu.gpu.graph import DType, Shape
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang import Kernel, TracedValue, f32, u32

_ROUNDS = 10
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
#: The smallest number of which a logarithm is taken.
_LEAST = 1e-7


@dataclass(frozen=True)
class Philox:
    """inputs: how many groups of four were drawn before, [1,1,1,1] INT32 -> [1,1,1,N] FLOAT32: from 0 to 1, or `normal`
    by Box and Muller. (random_ops.cc of TFLite, philox_random.h and random_distributions.h of TSL.)"""

    seed: int
    seed2: int
    normal: bool
    has_reference = True

    @property
    def keys(self) -> list[tuple[int, int]]:
        """Of each round."""
        start = (self.seed & _MASK, self.seed >> 32 & _MASK)
        return [(start[0] + r * _WEYL[0] & _MASK, start[1] + r * _WEYL[1] & _MASK) for r in range(_ROUNDS)]

    @property
    def upper(self) -> tuple[int, int]:
        """The second half of the counter."""
        return self.seed2 & _MASK, self.seed2 >> 32 & _MASK

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        groups = -(-shape[3] // 4)
        mask = np.uint64(_MASK)
        first = (np.arange(groups, dtype=np.uint64) + np.uint64(int(inputs[0].reshape(())) & _MASK)) & mask
        c = [first, np.zeros_like(first), *(np.full_like(first, n) for n in self.upper)]
        for key in self.keys:
            a, b = (c[2 * i] * np.uint64(_FACTORS[i]) for i in (0, 1))
            half = np.uint64(32)
            c = [(b >> half) ^ c[1] ^ np.uint64(key[0]), b & mask, (a >> half) ^ c[3] ^ np.uint64(key[1]), a & mask]
        bits = np.stack(c, -1).astype(np.uint32)
        drawn = ((bits & np.uint32(0x7FFFFF)) | np.uint32(127 << 23)).view(np.float32) - np.float32(1)
        if self.normal:
            size = np.sqrt(-2 * np.log(np.maximum(drawn[:, ::2].astype(np.float64), _LEAST)))
            angle = 2 * math.pi * drawn[:, 1::2].astype(np.float64)
            drawn = np.stack([np.sin(angle) * size, np.cos(angle) * size], -1).reshape(-1, 4)
        return drawn.reshape(-1)[: shape[3]].reshape(shape).astype(np.float32)

    def build(self, ctx: KernelContext) -> list[Launch]:
        def compute(t: Thread) -> TracedValue:
            k = t.k
            q = t.q if isinstance(t.q, TracedValue) else k.const(t.q, u32)
            c = [q + k.bitcast(t.inputs[0].at(0, 0, 0, 0), u32), *(k.const(n, u32) for n in (0, *self.upper))]
            for key in self.keys:
                (a_high, a_low), (b_high, b_low) = (_product(k, c[2 * i], _FACTORS[i]) for i in (0, 1))
                c = [b_high ^ c[1] ^ key[0], b_low, a_high ^ c[3] ^ key[1], a_low]
            drawn = [k.bitcast((n & 0x7FFFFF) | (127 << 23), f32) - 1.0 for n in c]
            if self.normal:
                drawn = [n for i in (0, 2) for n in _normal(k, drawn[i], drawn[i + 1])]
            return k.vec(*drawn)

        return per_thread(ctx, "philox", DType.FLOAT32, compute)


def _product(k: Kernel, x: TracedValue, factor: int) -> tuple[TracedValue, TracedValue]:
    """The high and the low word, made of products of half words."""
    low, high = factor & 0xFFFF, factor >> 16
    x_low, x_high = x & 0xFFFF, x >> 16
    first, second, third = x_low * low, x_low * high, x_high * low
    middle = (first >> 16) + (second & 0xFFFF) + (third & 0xFFFF)
    return x_high * high + (second >> 16) + (third >> 16) + (middle >> 16), x * factor


def _normal(k: Kernel, first: TracedValue, second: TracedValue) -> tuple[TracedValue, TracedValue]:
    size = k.sqrt(k.log(k.max(first, _LEAST)) * -2.0)
    angle = second * (2 * math.pi)
    return k.sin(angle) * size, k.cos(angle) * size
