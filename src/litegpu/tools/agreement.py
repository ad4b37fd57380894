"""How far apart two results are, and whether that is near enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

TOLERANCES = {"float32": 1e-5, "float16": 1e-2, "auto": 1e-2}  # relative L2 that the GPU delegate is tested to


@dataclass(frozen=True)
class Agreement:
    """One output of the GPU beside that of the CPU. `relative_l2`: ||gpu - cpu|| / ||cpu|| (infinite if NaN or infinity
    stand in different places); `max_abs`: the largest difference; `identical`: every bit is the same. `max_quanta`: the
    largest difference of an output that holds stored numbers, or real numbers made of them, in steps between two of
    these. `constant`: all that the CPU gave is one number, or none is finite, which every program would agree with."""

    output: str
    relative_l2: float
    max_abs: float
    identical: bool
    is_float: bool
    max_quanta: float | None = None
    constant: bool = False


def compare(name: str, got: np.ndarray, want: np.ndarray, step: float = 0.0) -> Agreement:
    """Two arrays of one shape, in float64. `step`: between two numbers that a quantized output can hold, if it is one
    (1 where the arrays hold the stored numbers)."""
    if got.dtype.kind not in "fiub":
        same = bool(np.array_equal(got, want))
        return Agreement(name, 0.0 if same else np.inf, 0.0 if same else np.inf, same, False)
    a, b = got.astype(np.float64), want.astype(np.float64)
    is_float = got.dtype.kind == "f"
    identical = got.tobytes() == want.tobytes()
    finite = np.isfinite(b)
    constant = _says_nothing(b[finite], is_float)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return Agreement(name, np.inf, np.inf, False, is_float, None, constant)
    difference, norm = a[finite] - b[finite], float(np.linalg.norm(b[finite]))
    error = float(np.linalg.norm(difference))
    largest = float(np.abs(difference).max(initial=0))
    quanta = largest / step if step else None
    return Agreement(name, error / norm if norm else error, largest, identical, is_float, quanta, constant)


def _says_nothing(finite: np.ndarray, is_float: bool) -> bool:
    """Whether what a CPU computed tells no right program from a wrong one: nothing, or one number again and again (a
    single one may be an answer, but zero is what a program that did nothing gives)."""
    if not finite.size:
        return True
    return bool((finite == finite.flat[0]).all()) and (finite.size > 1 or (is_float and finite.flat[0] == 0))


@dataclass(frozen=True)
class Verdict:
    """A sentence, whether the results are near enough, and whether they could have been anything else."""

    text: str
    agrees: bool
    tells: bool = True


def judge(found: Sequence[Agreement], precision: str, hybrid: Sequence[Agreement] = (), hybrid_ops: int = 0) -> Verdict:
    """What the agreement of all outputs on all inputs amounts to.

    `hybrid`: the same beside a CPU that computes `hybrid_ops` ops, whose weights have 8 bits, with these as floats. The
    official kernels round the inputs of such ops to 8 bits, which the GPU does not: then that agreement counts.
    """
    limit = TOLERANCES[precision]
    counted = hybrid or found
    worst = max((a.relative_l2 for a in counted), default=0.0)
    apart = [a for a in counted if not _near(a, limit)]
    if apart:
        return Verdict(
            f"agreement: relative L2 {worst:.1e} is MORE than the {limit:.0e} expected of {precision} "
            f"(output '{max(apart, key=lambda a: a.relative_l2).output}'); litegpu inference-diff --per-op says "
            "which op it comes from",
            False,
        )
    if all(a.constant for a in counted):
        return Verdict(
            "agreement: the results are equal, but each output of the CPU's is one number throughout, or not finite: "
            "the comparison says nothing. Give an input that makes a difference",
            True,
            tells=False,
        )
    if all(a.identical for a in found):
        return Verdict("agreement: every output equals the CPU's, bit for bit", True)
    text = f"relative L2 {worst:.1e}, within {limit:.0e} for {precision}"
    if worst > limit:
        text = "stored numbers at most one step apart, the others within " + f"{limit:.0e} for {precision}"
    if hybrid:
        apart_from_official = max((a.relative_l2 for a in found), default=0.0)
        text = (
            f"relative L2 {apart_from_official:.1e} from the CPU, which rounds the inputs of {hybrid_ops} ops with "
            f"8-bit weights to 8 bits; with these weights as floats, {text}"
        )
    return Verdict(f"agreement: {text}", True)


def _near(found: Agreement, limit: float) -> bool:
    if found.max_quanta is not None and found.max_quanta <= 1 + 1e-3:
        return True
    if not found.is_float and found.max_quanta is None:
        return found.identical or (limit > TOLERANCES["float32"] and found.relative_l2 <= limit)
    return found.relative_l2 <= limit


def step_of(detail: Mapping[str, Any], array: np.ndarray, widened: float = 0.0) -> float:
    """Between two neighbours that an output can hold: 1 for stored numbers, `widened` for floats made of such."""
    if array.dtype.kind in "iu":
        return 1.0 if detail["quantization"][0] or len(detail["quantization_parameters"]["scales"]) else 0.0
    return widened if array.dtype.kind == "f" else 0.0
