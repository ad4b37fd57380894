"""tanh and logistic of 16-bit fixed-point numbers as gemmlowp computes them, for every number there is."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_LEAST, _MOST = -(1 << 15), (1 << 15) - 1
#: exp(-1/4), exp(-1/2), exp(-1) and so on, of 31 bits behind the point.
_POWERS = (1672461947, 1302514674, 790015084, 290630308, 39332535, 720401, 242)


@functools.cache
def tanh_table(integer_bits: int) -> Array:
    """tanh of all numbers with so many bits before the point, from the least on; int32 with 15 bits behind it."""
    a = _numbers()
    e = _exp_of_negative(np.where(a > 0, -a, a), integer_bits + 1)
    t = _shifted_left(_reciprocal(e) - (1 << 13), 2)  # (1 - e) / (1 + e)
    return np.where(a == 0, 0, np.where(a > 0, t, -t)).astype(np.int32)


@functools.cache
def logistic_table(integer_bits: int) -> Array:
    """1 / (1 + exp(-a)), otherwise as tanh_table()."""
    a = _numbers()
    positive = _shifted_left(_reciprocal(_exp_of_negative(-np.abs(a), integer_bits)), 1)
    return np.where(a == 0, 1 << 14, np.where(a > 0, positive, _MOST - positive)).astype(np.int32)


def _numbers() -> Array:
    return np.arange(_LEAST, _MOST + 1, dtype=np.int64)


def _product(a: Array, b: Array | int) -> Array:
    """SaturatingRoundingDoublingHighMul of int16."""
    ab = a * b
    nudged = ab + np.where(ab >= 0, 1 << 14, 1 - (1 << 14))
    return np.asarray(np.minimum(np.sign(nudged) * (np.abs(nudged) >> 15), _MOST))


def _shifted_left(a: Array, bits: int) -> Array:
    """SaturatingRoundingMultiplyByPOT with a positive exponent."""
    return np.asarray(np.clip(a << bits, _LEAST, _MOST))


def _shifted_right(a: Array, bits: int) -> Array:
    """RoundingDivideByPOT."""
    mask = (1 << bits) - 1
    return np.asarray((a >> bits) + ((a & mask) > (mask >> 1) + (a < 0)))


def _constant(bits31: int) -> int:
    return int(_shifted_right(np.array(bits31, np.int64), 16))


def _exp_of_negative(a: Array, integer_bits: int) -> Array:
    """exp_on_negative_values, with 15 bits behind the point."""
    fraction = 15 - integer_bits
    quarter = 1 << (fraction - 2)
    rest = (a & (quarter - 1)) - quarter
    result = _exp_of_a_quarter(_shifted_left(rest, integer_bits))
    remainder = rest - a
    for exponent, power in enumerate(_POWERS, start=-2):
        if integer_bits > exponent:
            chosen = (remainder & (1 << (fraction + exponent))) != 0
            result = np.where(chosen, _product(result, _constant(power)), result)
    if integer_bits > 5:
        result = np.where(a < -(1 << (20 - integer_bits)), 0, result)
    return np.where(a == 0, _MOST, result)


def _exp_of_a_quarter(a: Array) -> Array:
    """Of numbers from -1/4 on, less than 0: a Taylor series around -1/8."""
    constant = _constant(1895147668)
    x = a + (1 << 12)
    square = _product(x, x)
    cube, fourth = _product(square, x), _product(square, square)
    third = _product(_shifted_right(fourth, 2) + cube, _constant(715827883))
    tail = _shifted_right(third + square, 1)
    return np.asarray(np.clip(constant + _product(x + tail, constant), _LEAST, _MOST))


def _reciprocal(a: Array) -> Array:
    """2 / (1 + a) for numbers from 0 to 1, with 13 bits behind the point: three steps of Newton and Raphson."""
    half = (a + _MOST + 1) // 2
    x = _constant(1515870810) + _product(half, _constant(-1010580540))
    for _ in range(3):
        x = x + _shifted_left(_product(x, (1 << 13) - _product(half, x)), 2)
    return x
