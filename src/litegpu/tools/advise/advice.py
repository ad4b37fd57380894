"""Puts together what can be said of a model without running it: its type, the documented rows, and the coverage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from litegpu.boundary import typed
from litegpu.choosing.shares import Share, quickest
from litegpu.delegates.protocol import Delegate
from litegpu.model.bundle import bundled_content
from litegpu.model.model_type import ModelKind, ModelType, model_type
from litegpu.model.reader import read_model
from litegpu.tools.advise import documented
from litegpu.tools.advise.coverage import Coverage, delegate_coverage, xnnpack_coverage
from litegpu.tools.advise.measuring import MeasuredWays
from litegpu.tools.entered import others_line


@dataclass(frozen=True)
class Recommendation:
    """`delegate` is the name of one of the delegates, or "CPU"; `reasons` are sentences."""

    delegate: str
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Advice:
    """What can be said of a model without running it.

    `row` is the documented row for the model's type, None where the documentation has none for it; `numerics` says how
    litegpu's GPU delegate computes such a model; `coverages` are the delegates that exist here, the CPU's XNNPACK last.
    `measurement`: what was measured, if that was asked for; the recommendation follows from it then.
    `signature`: which of several this is about, in a sentence; the others are not looked at.
    """

    model: str
    type: ModelType
    platform: str
    row: documented.TypeRow | None
    numerics: str
    coverages: tuple[Coverage, ...]
    recommendation: Recommendation
    measurement: MeasuredWays | None = None
    signature: str = ""

    @property
    def fully_delegated(self) -> bool:
        """Whether some delegate other than the CPU's own would take every node."""
        return any(coverage.complete for coverage in self.coverages[:-1])

    @property
    def here(self) -> dict[str, str]:
        """Delegate -> "yes", "partly" or "no" for this model on this machine, "absent" if the delegate is, "not asked"
        if nobody did. The CPU takes every model."""
        found = {one.delegate: "not asked" if one.here else "absent" for one in documented.PLATFORMS}
        found[documented.CPU] = "yes"
        for coverage in self.coverages[:-1]:
            extent = "yes" if coverage.complete else "partly" if coverage.taken else "no"
            found[coverage.delegate] = extent if coverage.problem is None else "absent"
        return found

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        kind = self.type.kind
        return {
            "model": self.model,
            "signature": self.signature,
            "type": {
                "kind": kind.name.lower(),
                "text": kind.value,
                "counts": dict(self.type.counts),
                "evidence": list(self.type.evidence),
            },
            "platform": self.platform,
            "documented": {
                "platforms": [asdict(one) | {"here": one.here} for one in documented.PLATFORMS],
                "model_types": [{"model_type": row.model_type, **row.takes} for row in documented.MODEL_TYPES],
                "this_model": {"model_type": self.row.model_type, **self.row.takes} if self.row else None,
            },
            "here": self.here,
            "numerics": self.numerics,
            "delegates": [coverage.as_dict() for coverage in self.coverages],
            "recommendation": asdict(self.recommendation),
            "measurement": None if self.measurement is None else self.measurement.as_dict(),
        }


@typed
def advise(
    model: str | os.PathLike[str] | bytes,
    *,
    delegates: Sequence[Delegate] | None = None,
    measured: MeasuredWays | None = None,
) -> Advice:
    """Say what is known of a model before anything is run or compiled.

    model: a .tflite file, a model in a bundle (`hands.task/hand_detector.tflite`), or the bytes of one.
    delegates: those to be asked, each alone, by the predicate that decides when a model is run; by default the GPU
        delegate. No device is needed for that; whether one can be used here is said beside it.
    measured: what `litegpu.tools.advise.measure` found, which then decides what is recommended.

    Raises ModelError for what is no model, InvokeError for one whose shapes the official runtime refuses.
    """
    content = model if isinstance(model, bytes) else bundled_content(os.fspath(model))
    source = bytes(content) if content is not None else os.fspath(model)
    read = read_model(source)
    kind = model_type(read)
    if delegates is None:
        from litegpu.gpu.delegate.delegate import GpuDelegate

        delegates = [GpuDelegate()]
    asked = [delegate_coverage(source, delegate) for delegate in delegates]
    return Advice(
        model="(bytes)" if isinstance(model, bytes) else os.fspath(model),
        type=kind,
        platform=documented.this_platform(),
        row=documented.row_of(kind.kind),
        numerics=_NUMERICS[kind.kind],
        coverages=(*asked, xnnpack_coverage(source, read)),
        recommendation=_recommend(asked) if measured is None else _by_measurement(measured),
        measurement=measured,
        signature=others_line(source),
    )


_FLOAT = (
    'The GPU computes in float32 by default; precision="float16" is faster, with a relative error of about 1e-3, and '
    'precision="auto" keeps in float32 what float16 would spoil.'
)
_INTEGER = (
    "The GPU rounds to what each quantized tensor can hold: mostly the CPU's results to the bit, and with "
    "arithmetic='integer' always. How the model was trained makes no difference."
)
_NUMERICS = {
    ModelKind.FLOAT32: _FLOAT,
    ModelKind.FLOAT16: _FLOAT,
    ModelKind.FLOAT16_WEIGHTS: f"Weights are widened when the model is prepared. {_FLOAT}",
    ModelKind.DYNAMIC_RANGE: (
        "The GPU keeps activations in floating point, nearer to the float model than the CPU, which quantizes them at "
        "every inference."
    ),
    ModelKind.FULL_INTEGER: _INTEGER,
    ModelKind.QUANTIZATION_AWARE: _INTEGER,
    ModelKind.INTEGER_16X8: f"The original GPU delegate refuses 16-bit activations, litegpu's takes them. {_INTEGER}",
    ModelKind.MIXED: "Each operator is computed by the rule for its own tensors, in floating point.",
}


def _by_measurement(measured: MeasuredWays) -> Recommendation:
    best = measured.best
    name = documented.CPU if best is None or best.candidate.is_cpu else str(best.candidate)
    return Recommendation(name, measured.recommendation)


def _recommend(coverages: Sequence[Coverage]) -> Recommendation:
    """The delegate that would take most, if one here takes anything and has a device."""
    if not coverages:
        return Recommendation(documented.CPU, ("No delegate was asked.",))
    best = max(coverages, key=lambda coverage: (coverage.problem is None, coverage.taken))
    if best.taken == 0:
        reason = best.left[0].reason if len({one.reason for one in best.left}) == 1 else "the reasons are listed."
        return Recommendation(documented.CPU, (f"{best.delegate} would take no op: {reason}",))
    if best.problem is not None:
        why = f"{best.delegate} would take {best.taken} of {best.total} ops, but cannot be used here: {best.problem}"
        return Recommendation(documented.CPU, (why,))
    if best.device is not None and best.device.is_software:
        why = f"{best.device.name} is a program on the CPU: its results are right, but the CPU path is faster."
        return Recommendation(documented.CPU, (why,))
    reasons = [_extent(best)]
    if best.without_limit is not None:
        taken, partitions = best.without_limit
        reasons.append(
            f"With max_delegated_partitions=0 it would take {taken}, in {partitions} partitions; each costs a copy in "
            "and out, so measure both."
        )
    reasons += _expected(best.shares)
    reasons.append("Whether that is faster, `litegpu advise --measure` says.")
    return Recommendation(best.delegate, tuple(reasons))


def _expected(found: Sequence[Share]) -> list[str]:
    """Which number of partitions would be the quickest, where there are several."""
    best = quickest(found)
    if best is None or len(found) < 3:
        return []
    told = [f"{share.seconds * 1e3:.3g} ms with {share.partitions}" for share in found[1:]]
    text = f"Expected are {found[0].seconds * 1e3:.3g} ms on the CPU alone and, by partitions, {', '.join(told)}"
    if best.partitions == 0:
        return [f"{text}: the CPU alone is the quickest."]
    return [f"{text}: max_delegated_partitions={best.partitions} is the quickest."]


def _extent(best: Coverage) -> str:
    if best.complete and best.partitions == 1:
        return "It would take every op, in one partition: nothing is copied in between."
    left = best.total - best.taken
    rest = "" if best.complete else f"; {left} {'runs' if left == 1 else 'run'} on the CPU"
    return f"It would take {best.taken} of {best.total} ops{rest}."
