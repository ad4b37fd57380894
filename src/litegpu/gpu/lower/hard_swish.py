"""HARD_SWISH of bytes: as the CPU does it, and in a few operations on floats that give the same for every byte.

The CPU multiplies in fixed point and rounds at each step: some forty operations. What comes of that is within a few
hundredths of clip(t * a + b, 0, 1) * (t * c + d) + e, where t are the quanta, so that other numbers a to e, close to
those that the function has, mostly lead to the same whole number for all bytes. They are found by going from the worst
of them to where it would be right, one after the other, and count only where nothing comes close to a half, so that it
does not matter how a device rounds a product before it adds."""

from __future__ import annotations

import functools
from dataclasses import astuple, dataclass

import numpy as np

from litegpu.gpu.graph import Arg, Expr, whole
from litegpu.gpu.graph import apply as fn
from litegpu.gpu.lower import fixed_point as fixed
from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.quantization import Grid

#: Distance from a half that is wanted of all results, what will do, and steps towards it.
WANTED, LEAST, STEPS = 0.002, 0.0005, 400
#: Results are smaller than this, so that the bits of a float round them.
LARGEST = 1 << 19


@dataclass(frozen=True)
class Curve:
    """clip(t * slope + middle, 0, 1) * (t * scale + shift) + more."""

    slope: float
    middle: float
    scale: float
    shift: float
    more: float

    def of(self, x: Expr, bottom: int, top: int) -> Expr:
        """For quanta, int32, the whole numbers from `bottom` to `top`."""
        t = fn("to_float32", x)
        share = fn("min", fn("max", fn("add", fn("mul", t, self.slope), self.middle), 0.0), 1.0)
        line = fn("add", fn("mul", t, self.scale), self.shift)
        result = fn("add", fn("mul", share, line), self.more)
        return fn("nearest", fn("min", fn("max", fn("small", result), float(bottom)), float(top)))

    def values(self, t: np.ndarray) -> np.ndarray:
        """The same before it is rounded and limited, exactly."""
        return self._share(t) * (t * self.scale + self.shift) + self.more

    def slopes(self, t: np.ndarray) -> np.ndarray:
        """How these change with each of the five numbers, in their order."""
        share, line = self._share(t), t * self.scale + self.shift
        inside = (share > 0) & (share < 1)
        return np.stack([inside * line * t, inside * line, share * t, share, np.ones(len(t))], 1)

    def moved(self, by: np.ndarray) -> Curve:
        return Curve(*(float(n) for n in np.array(astuple(self)) + by))

    def rounded(self) -> Curve:
        """With numbers that float32 has."""
        return Curve(*(float(np.float32(n)) for n in astuple(self)))

    def _share(self, t: np.ndarray) -> np.ndarray:
        return np.asarray(np.clip(t * self.slope + self.middle, 0, 1))


def hard_swish(ctx: OpContext, x: Expr, given: Grid, made: Grid) -> Expr | None:
    """Of quanta of `given`, those of `made`; None where the CPU refuses them."""
    if given.bits > 8 or fixed.multiplier_of(given.scale / 128 / made.scale)[1] > 0:
        return None
    found = curve(given, made)
    return in_steps(x, given, made) if found is None else found.of(x, made.low - made.zero, made.high - made.zero)


@functools.lru_cache(maxsize=256)
def curve(given: Grid, made: Grid) -> Curve | None:
    """What gives in_steps() for all quanta, within what is stored; None if none is found."""
    from litegpu.gpu.evaluate import evaluate_expr  # which a model from the cache does without

    t = np.arange(given.low - given.zero, given.high - given.zero + 1)
    bottom, top = made.low - made.zero, made.high - made.zero
    want = np.clip(np.asarray(evaluate_expr(in_steps(Arg(0), given, made), [t.astype(np.int32)])), bottom, top)

    def off_by(found: Curve) -> tuple[np.ndarray, np.ndarray]:
        """By how much each is off, and how far beyond what rounding and the limits put right."""
        off = found.values(t) - want
        return off, np.maximum(np.where(want < top, off, 0), np.where(want > bottom, -off, 0)) - 0.5

    found = Curve(given.scale / 6, 0.5, given.scale / made.scale, 0.0, 0.0)
    rows = found.slopes(t)
    # steps that change all numbers as much as they matter: along a row, as if the columns stood upright on each other
    sizes = np.sqrt((rows**2).sum(0)) + 1e-9
    alike = np.linalg.inv((rows / sizes).T @ (rows / sizes) + 1e-6 * np.eye(5)) / np.outer(sizes, sizes)
    for n in range(STEPS):
        off, beyond = off_by(found)
        worst, wanted = int(np.argmax(beyond)), WANTED * (1 - 0.7 * n / STEPS)
        if beyond[worst] <= -wanted:
            break
        row = found.slopes(t[worst : worst + 1])[0]
        step = alike @ row
        found = found.moved(-1.3 * (beyond[worst] + wanted) * np.sign(off[worst]) * step / (row @ step))
    found = found.rounded()
    _, beyond = off_by(found)
    largest = np.max(np.abs(found.values(t)))
    return found if np.max(beyond) <= -LEAST and largest < LARGEST else None


def in_steps(x: Expr, given: Grid, made: Grid) -> Expr:
    """x * relu6(x + 3) / 6 in 16 bits; the second factor, from 0 to 1, has 15 of them behind the point."""
    fine = np.float32(given.scale) / np.float32(128)
    output, output_shift = fixed.narrow_multiplier_of(float(fine / np.float32(made.scale)))
    reluish, shift = fixed.narrow_multiplier_of(float(fine / np.float32(3.0 / 32768.0)))
    hires = fixed.shifted_left(x, 7)
    bound: Expr = hires
    if shift > 0:
        bound = _saturated(fixed.shifted_left(bound, shift - 1)) if shift > 1 else bound
    bound = fixed.high_product(bound, reluish)
    if shift > 0:
        bound = _saturated(fixed.shifted_left(bound, 1))
    elif shift < 0:
        bound = fixed.rounded_away(bound, -shift)
    bound = fn("shift_right", fn("add", bound, whole(1 << 15)), whole(1))
    product = fn("mul", bound, fixed.high_product(hires, output))
    towards_zero = fn("select", fn("lt", product, whole(0)), fn("add", product, whole((1 << 15) - 1)), product)
    high = fn("shift_right", towards_zero, whole(15))
    return fixed.rounded_away(high, -output_shift) if output_shift < 0 else high


def _saturated(x: Expr) -> Expr:
    return fn("min", fn("max", x, whole(-32768)), whole(32767))
