"""What an inference of a model takes, op by op, where each runs and why, and what costs more than it must."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from litegpu.boundary import typed
from litegpu.delegates.protocol import Delegate
from litegpu.delegates.report import CPU, DelegationReport
from litegpu.errors import DeviceError
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.model.bundle import bundled_content
from litegpu.tools.advise.coverage import preview
from litegpu.tools.analyze import rates as known_rates
from litegpu.tools.analyze.estimate import Crossing
from litegpu.tools.analyze.examined import Examined, examine
from litegpu.tools.analyze.finding import Finding
from litegpu.tools.analyze.measured import measured_times
from litegpu.tools.analyze.measured_rates import measure_rates
from litegpu.tools.analyze.patterns import find_patterns
from litegpu.tools.analyze.rates import DeviceRates


@dataclass(frozen=True)
class AloneAnswer:
    """Of a delegate that was asked alone, about one node: whether it would run it, and why not, by the partitioner.
    `accepted`: it could, but something else forbids it, such as the limit on the number of partitions."""

    delegate: str
    taken: bool
    accepted: bool
    reason: str | None


@dataclass(frozen=True)
class OpAnalysis:
    """One node. `owner`, `partition`, `accepted`, `reason`: as in the delegation report. `flops`, `bytes`: by itself
    (model/costs.py). Seconds: `estimated`; `limit`, the least that the device can do it in because of `bound` (0 on the
    CPU, of which no limit is known); `measured`, None if it was not. `shared`: the other nodes of its kernels, whose
    time is divided among them. `share`: of the device's limit that is reached: limit / measured, else limit /
    estimated; None without a limit. `answers`: of the other delegates that were asked, in their order."""

    index: int
    op: str
    version: int
    owner: str
    partition: int
    accepted: bool
    reason: str | None
    inputs: tuple[tuple[int, ...], ...]
    outputs: tuple[tuple[int, ...], ...]
    flops: int
    bytes: int
    estimated: float
    limit: float
    bound: str
    shared: tuple[int, ...]
    measured: float | None = None
    answers: tuple[AloneAnswer, ...] = ()

    @property
    def share(self) -> float | None:
        taken = self.estimated if self.measured is None else self.measured
        return min(1.0, self.limit / taken) if taken and self.limit else None


@dataclass(frozen=True)
class Analysis:
    """`rates`: the device that times are estimated for; `device`: the one that they were measured on, "" if they were
    not. `total`: seconds that are expected of an inference, `measured`: that it took, or None. `notes`: what could not
    be found out. `others`: the reports of other delegates, each asked alone."""

    model: str
    device: str
    rates: DeviceRates
    half: bool
    ops: tuple[OpAnalysis, ...]
    crossings: tuple[Crossing, ...]
    findings: tuple[Finding, ...]
    report: DelegationReport
    total: float
    measured: float | None = None
    notes: tuple[str, ...] = ()
    others: tuple[DelegationReport, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON; times in seconds."""
        return {
            "model": self.model,
            "device": self.device,
            "precision": "float16" if self.half else "float32",
            "rates": self.rates.as_dict(),
            "summary": self.report.summary(),
            "total": self.total,
            "measured": self.measured,
            "notes": list(self.notes),
            "others": [one.summary() for one in self.others],
            "findings": [finding.as_dict() for finding in self.findings],
            "crossings": [asdict(one) for one in self.crossings],
            "ops": [{**asdict(op), "share": op.share} for op in self.ops],
        }


@typed
def analyze(
    model: str | os.PathLike[str] | bytes,
    *,
    delegate: GpuDelegate | None = None,
    rates: str | None = None,
    measure: bool = False,
    others: Sequence[Delegate] = (),
) -> Analysis:
    """Say of each op of a model who runs it and why, what it computes and moves, and how long that takes.

    model: a .tflite file, a model in a bundle (`hands.task/hand_detector.tflite`), or the bytes of one.
    delegate: the GPU delegate that is asked; its options decide about precision and device.
    rates: the device that times are estimated for, such as "H200"; by default the one that is here, by its stated
        figures or, with `measure`, by measured ones where there are none; else the H200.
    measure: run it, and read the kernels' times.
    others: delegates that are asked too, each alone; times are the GPU's and the CPU's all the same.

    Nothing is run without `measure`, which needs a device. Raises ModelError for what is no model, InvokeError for one
    whose shapes the official runtime refuses, OptionError for a device whose figures nobody knows, DeviceError.
    """
    content = model if isinstance(model, bytes) else bundled_content(os.fspath(model))
    source = bytes(content) if content is not None else os.fspath(model)
    delegate = GpuDelegate() if delegate is None else delegate
    device = _device(delegate) if measure or rates is None else None
    if measure and device is None:
        delegate.open_device()  # which says why not
    found = examine(source, delegate, device, _rates(rates, delegate, device, measure))
    times: Mapping[int, float] = {}
    measured: float | None = None
    notes: tuple[str, ...] = ()
    if measure:
        times, measured, notes = measured_times(source, delegate.options, found)
    reports = tuple(preview(source, one) for one in others)
    return Analysis(
        model="(bytes)" if isinstance(model, bytes) else os.fspath(model),
        device=device.info.name if measure and device is not None else "",
        rates=found.rates,
        half=found.half,
        ops=tuple(_op(found, i, times.get(i), reports) for i in range(len(found.operators))),
        crossings=found.crossings,
        findings=tuple(find_patterns(found)),
        report=found.report,
        total=found.total,
        measured=measured,
        notes=notes,
        others=reports,
    )


def _device(delegate: GpuDelegate) -> Device | None:
    try:
        return delegate.open_device()
    except DeviceError:
        return None


def _rates(wanted: str | None, delegate: GpuDelegate, device: Device | None, measure: bool) -> DeviceRates:
    if wanted is not None:
        return known_rates.named(wanted)
    known = known_rates.of_device(device.info.name) if device is not None else None
    if known is None and measure and device is not None:
        return measure_rates(device.info.name, delegate.options)
    return known or known_rates.H200


def _op(found: Examined, i: int, measured: float | None, reports: Sequence[DelegationReport]) -> OpAnalysis:
    operator, told, cost, time = found.operators[i], found.report.nodes[i], found.costs[i], found.times[i]
    return OpAnalysis(
        index=operator.index,
        op=operator.name,
        version=operator.version,
        owner=told.owner,
        partition=told.partition,
        accepted=told.accepted,
        reason=told.reason,
        inputs=tuple(t.shape for t in found.tensors(operator.inputs)),
        outputs=tuple(t.shape for t in found.tensors(operator.outputs)),
        flops=cost.flops,
        bytes=cost.bytes,
        estimated=time.estimated,
        limit=time.limit,
        bound=time.bound,
        shared=time.shared,
        measured=measured,
        answers=tuple(_answer(one, i) for one in reports),
    )


def _answer(report: DelegationReport, i: int) -> AloneAnswer:
    told = report.nodes[i]
    return AloneAnswer(report.delegates[0], told.owner != CPU, told.accepted, told.reason)
