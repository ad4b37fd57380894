"""Whether litegpu's results for a model of the corpus are right.

What is computed in other precision, or in another order, differs from the official runtime's results by as much as the
model makes of it. How much that may be is measured: the official runtime runs the model piece by piece, and what every
piece gives is disturbed by what the precision loses. A result may be off by a few times what the disturbed ones are.
Where the official runtime looks numbers up in coarse tables, the operator on floats stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from agreement import FLOAT16, FLOAT32, official, on_gpu, relative_l2, run
from ai_edge_litert.interpreter import OpResolverType
from op_cases import OpCase
from quantized_cases import real_case

import litegpu
from litegpu.model import read_model
from litegpu.model.types import TensorType
from small_models.grow import CorpusModel, Entry, coarse, resolver

#: What a number is disturbed by, relative to itself.
_LOST = {False: 3e-7, True: 2.0**-11}
_TRIES, _TIMES = 6, 6
Results = list[list[np.ndarray]]
#: The runtime's own results; without XNNPACK, for which the product of a number and a 1x1 tensor has no dimensions in
#: some models.
_AS_IS = OpResolverType.BUILTIN, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
#: How a model is run.
MODES = ("float32", "float16", "integer")


#: The least number above zero in float16, and the largest.
_LEAST_HALF, _MOST_HALF = 2.0**-24, 65504


@dataclass(frozen=True)
class Verdict:
    """`left`: why not everything is on the GPU, by operator; `wrong`: in what the results differ, "" if nothing."""

    left: tuple[str, ...] = ()
    wrong: str = ""

    @property
    def whole(self) -> bool:
        return not self.left


def inferences(model: CorpusModel) -> int:
    return 3 if model.stateful else 1


def wanted(model: CorpusModel, content: bytes, kind: OpResolverType | None = None) -> Results:
    """What the official runtime gives, with `kind` of kernels: for every inference of every entry its outputs."""
    interpreter = official(content, resolver(read_model(content)) if kind is None else kind)
    results = _inferred(model, interpreter)
    return _piecewise(model, lambda array, *_: array) if _has_tables(model) else results


def found(model: CorpusModel, **options: object) -> tuple[Results, tuple[str, ...]]:
    """What litegpu gives with a GPU delegate, and the reasons of what is left to the CPU."""
    with on_gpu(model.content, max_delegated_partitions=0, **options) as interpreter:
        results = _inferred(model, interpreter)
        reports = [interpreter.delegation_report(key) for key in model.signatures] or [interpreter.delegation_report()]
    return results, reasons(reports)


def reasons(reports: Sequence[litegpu.DelegationReport]) -> tuple[str, ...]:
    left = [f"{n.op}: {n.reason}" for r in reports if not r.fully_delegated for n in r.nodes if n.owner == "CPU"]
    return tuple(dict.fromkeys(left))


def _inferred(model: CorpusModel, interpreter: Any) -> Results:
    results: Results = []
    for number, entry in enumerate(model.entries):
        for _ in range(inferences(model)):
            if not model.signatures:
                results.append([np.array(a) for a in run(interpreter, entry.inputs)])
                continue
            runner = interpreter.get_signature_runner(model.signatures[number])
            made = runner(**{f"x{i}": entry.known[i].value for i in entry.entering})
            results.append([np.array(made[f"y{i}"]) for i in entry.leaving])
    return results


def judged(model: CorpusModel, got: Results, want: Results, half: bool) -> str:
    """In what they differ more than they may; "" if they are right."""
    disturbed: list[Results] | None = None
    for number, (mine, theirs) in enumerate(zip(got, want, strict=True)):
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            if a.shape != b.shape or a.dtype != b.dtype:
                return f"output {i} is {a.dtype} {a.shape}, not {b.dtype} {b.shape}"
            if half and b.dtype == np.float32:  # float16 ends at 65504, of which the user is warned
                a, b = (
                    np.where(np.isinf(a) & (abs(b) > _MOST_HALF) & (np.sign(a) == np.sign(b)), 0, x) for x in (a, b)
                )
            error = _difference(a, b)
            known = FLOAT16 if half else 2.0**-11 if b.dtype == np.float16 else FLOAT32
            if error <= known * (b.dtype.kind in "fc"):
                continue
            if disturbed is None:
                disturbed = [_disturbed(model, half, seed) for seed in range(_TRIES)]
            allowed = _TIMES * max(_difference(d[number][i], b) for d in disturbed)
            if not error <= allowed:
                return f"inference {number} output {i} {b.dtype} {b.shape}: {error:.3g} where {allowed:.3g} may be"
    return ""


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    """Of floats the relative error, of stored numbers the largest difference, of bools how many differ."""
    if b.dtype.kind == "c":
        return max(relative_l2(a.real, b.real), relative_l2(a.imag, b.imag))
    if b.dtype.kind == "f":
        return relative_l2(a, b)
    if b.dtype.kind == "b":
        return float((a != b).sum())
    return float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max(initial=0))


def _disturbed(model: CorpusModel, half: bool, seed: int) -> Results:
    """What the official runtime gives piece by piece, with noise in between."""
    rng = np.random.default_rng(seed)

    def between(array: np.ndarray, quantized: bool, near: bool, entering: bool) -> np.ndarray:
        stored = array.dtype == np.int16 and half  # float16 does not tell all of these apart
        return _noisy(array, quantized and (stored or not entering), near, half, rng)

    return _piecewise(model, between)


#: Changes an array; told whether it is quantized, whether it is known within one quantum, and whether it is an input.
Between = Callable[[np.ndarray, bool, bool, bool], np.ndarray]


def _piecewise(model: CorpusModel, between: Between) -> Results:
    """What the official runtime gives piece by piece."""
    results: Results = []
    for entry in model.entries:
        pieces = [None if p.has_tables else official(p.content, resolver(read_model(p.content))) for p in entry.pieces]
        results += [_one_piecewise(entry, pieces, between) for _ in range(inferences(model))]
    return results


def _one_piecewise(entry: Entry, pieces: Sequence[Any], between: Between) -> list[np.ndarray]:
    values = {
        i: between(known.value, known.quantization is not None, False, True)
        for i, known in ((i, entry.known[i]) for i in entry.entering)
    }
    for piece, interpreter in zip(entry.pieces, pieces, strict=True):
        inputs = [values[i] for i in piece.takes]
        real = interpreter is None
        results = real_case(OpCase(piece.name, piece.content, inputs)) if real else run(interpreter, inputs)
        for i, array in zip(piece.gives, results, strict=True):
            values[i] = between(array, entry.known[i].quantization is not None, piece.is_near, False)
    return [values[i] for i in entry.leaving]


def _has_tables(model: CorpusModel) -> bool:
    return any(p.has_tables for e in model.entries for p in e.pieces)


def _noisy(array: np.ndarray, quantized: bool, near: bool, half: bool, rng: np.random.Generator) -> np.ndarray:
    if array.dtype.kind in "fc":
        if array.dtype.kind == "f" and coarse(array):
            return np.array(array)
        lost = rng.standard_normal(array.shape) * _LOST[half or array.dtype == np.float16]
        noisy = np.asarray(array * (1 + lost)).astype(array.dtype)
        if half:  # which has no numbers between these and zero
            noisy[abs(noisy) < _LEAST_HALF] *= rng.integers(0, 2, int((abs(noisy) < _LEAST_HALF).sum()))
        return noisy
    if quantized and array.dtype in (np.int8, np.uint8, np.int16):
        limits = np.iinfo(array.dtype)
        often = 0.5 if near or half else 0.02
        off = (rng.random(array.shape) < often) * rng.choice((-1, 1), array.shape)
        if half and array.dtype == np.int16:  # numbers that float16 rounds
            off = np.rint(array * rng.standard_normal(array.shape) * _LOST[half]).astype(np.int32) + off
        return np.clip(array.astype(np.int32) + off, limits.min, limits.max).astype(array.dtype)
    return np.array(array)


def verdicts(model: CorpusModel, modes: Sequence[str], backend: str) -> dict[str, Verdict]:
    """By mode: "float32", "float16", "integer", or "plan", which only divides the model."""
    answers: dict[str, Verdict] = {}
    stored = any(t.type in (TensorType.INT8, TensorType.UINT8) and t.data is None
                 for g in read_model(model.content).subgraphs for t in g.tensors)  # fmt: skip
    want = None if list(modes) == ["plan"] else wanted(model, model.reference)
    for mode in modes:
        if mode == "plan":
            answers[mode] = Verdict(planned(model))
        elif mode != "integer" or stored:
            options: dict[str, Any] = dict(precision_loss_allowed=mode == "float16")
            options |= dict(arithmetic="integer") if mode == "integer" else {}
            try:
                got, left = found(model, backend=backend, **options)
            except litegpu.LiteGpuError as error:
                answers[mode] = Verdict((), f"{type(error).__name__}: {error}"[:300])
                continue
            assert want is not None
            wrong = judged(model, got, want, mode == "float16")
            if wrong:  # the runtime's kernels differ about the sign of zero
                default = wanted(model, model.reference, OpResolverType.BUILTIN)
                wrong = judged(model, got, default, mode == "float16")
            for kind in _AS_IS:
                if wrong:  # as the runtime does: in whole numbers, which auto takes too, with what overflows in them
                    whole = _inferred(model, official(model.content, kind))
                    wrong = judged(model, got, whole, mode == "float16")
            answers[mode] = Verdict(left, wrong)
    return answers


def planned(model: CorpusModel) -> tuple[str, ...]:
    """Why not everything would be on the GPU, without one."""
    with on_gpu(model.content, max_delegated_partitions=0, backend="reference") as interpreter:
        for key in model.signatures:
            interpreter.get_signature_runner(key)
        reports = [interpreter.delegation_report(key) for key in model.signatures] or [interpreter.delegation_report()]
    return reasons(reports)
