"""What a delegate would take of a model, in how many partitions, and why it would not take the rest."""

from __future__ import annotations

import copy
import os
from dataclasses import asdict, dataclass
from typing import Any

from litegpu.choosing.called import called
from litegpu.choosing.shares import Share, shares
from litegpu.delegates.cpu import OfficialOptions
from litegpu.delegates.protocol import Delegate
from litegpu.delegates.report import DelegationReport
from litegpu.delegates.xnnpack import xnnpack_partitions
from litegpu.errors import DeviceError, InvokeError
from litegpu.gpu.backends import registry
from litegpu.gpu.backends.abilities import Opener
from litegpu.interpreter import Interpreter
from litegpu.model.reader import read_model
from litegpu.model.types import Model

XNNPACK = "XNNPACK"


@dataclass(frozen=True)
class Left:
    """Nodes of one kind that a delegate would not run, and why. `accepted`: it could, but something else forbids it,
    such as the limit on the number of partitions."""

    op: str
    nodes: tuple[int, ...]
    reason: str
    accepted: bool = False


@dataclass(frozen=True)
class TargetDevice:
    """What a delegate would run on."""

    name: str
    backend: str
    is_software: bool
    float16: bool


@dataclass(frozen=True)
class Coverage:
    """What a delegate would take.

    `taken` of `total` nodes would run on it, in `partitions`; `left` are the others. `without_limit` is (taken,
    partitions) if max_delegated_partitions were 0, where that is more. `device` is what it would run on here, `problem`
    why it cannot run here, or why nobody knows what it would take; `report` has every node.
    `shares`: what is expected of each number of partitions, for a device that can be used here and whose rates are
    known; () if that makes no difference.
    """

    delegate: str
    taken: int
    total: int
    partitions: int
    left: tuple[Left, ...]
    without_limit: tuple[int, int] | None = None
    device: TargetDevice | None = None
    problem: str | None = None
    report: DelegationReport | None = None
    shares: tuple[Share, ...] = ()

    @property
    def complete(self) -> bool:
        return self.taken == self.total

    @property
    def unknown(self) -> bool:
        """Whether nobody knows what the delegate would take; `problem` says why."""
        return self.problem is not None and self.taken == 0 and not self.left

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = {name: getattr(self, name) for name in ("delegate", "taken", "total", "partitions", "without_limit")}
        return plain | {
            "complete": self.complete,
            "unknown": self.unknown,
            "left": [asdict(one) for one in self.left],
            "device": asdict(self.device) if self.device else None,
            "problem": self.problem,
            "report": self.report.as_dict() if self.report else None,
            "expected": [asdict(one) for one in self.shares],
        }


def delegate_coverage(model: str | os.PathLike[str] | bytes, delegate: Delegate) -> Coverage:
    """What `delegate` would take of a model, by the predicate that decides when it is run. Needs no device."""
    report = preview(model, delegate)
    taken, partitions = _size(report, delegate.name)
    left = tuple(Left(op, nodes, reason, accepted) for (_, op, accepted, reason), nodes in report.kinds().items())
    device, problem = _device(delegate)
    more = _without_limit(model, delegate) if any(one.accepted for one in left) else None
    return Coverage(
        delegate=delegate.name,
        taken=taken,
        total=len(report.nodes),
        partitions=partitions,
        left=left,
        without_limit=more if more and more[0] > taken else None,
        device=device,
        problem=problem,
        report=report,
        shares=_shares(model, delegate) if partitions > 1 or more is not None else (),
    )


def preview(model: str | os.PathLike[str] | bytes, delegate: Delegate) -> DelegationReport:
    """What each node's owner would be, and why, with this delegate alone. Nothing is prepared. Raises ModelError, or
    InvokeError for shapes that the official runtime refuses."""
    content = model if isinstance(model, bytes) else None
    path = None if content is not None else os.fspath(model)
    with Interpreter(path, content, experimental_delegates=[delegate], fallback="silent") as interpreter:
        return interpreter.preview_delegation()


def xnnpack_coverage(source: str | os.PathLike[str] | bytes, model: Model) -> Coverage:
    """What the official runtime's default CPU delegate takes; the rest runs on that runtime's plain kernels."""
    operators = model.main.operators
    try:
        partitions = xnnpack_partitions(source, OfficialOptions())
    except InvokeError as error:
        return Coverage(XNNPACK, 0, len(operators), 0, (), problem=str(error))
    taken = {node for partition in partitions for node in partition}
    kinds: dict[str, list[int]] = {}
    for operator in operators:
        if operator.index not in taken:
            kinds.setdefault(operator.name, []).append(operator.index)
    reason = "XNNPACK does not say why; a plain kernel runs it"
    left = tuple(Left(op, tuple(nodes), reason) for op, nodes in sorted(kinds.items(), key=lambda item: -len(item[1])))
    return Coverage(XNNPACK, len(taken), len(operators), len(partitions), left)


def _size(report: DelegationReport, name: str) -> tuple[int, int]:
    return report.counts[name], sum(p.owner == name for p in report.partitions)


def _without_limit(model: str | os.PathLike[str] | bytes, delegate: Delegate) -> tuple[int, int]:
    """(nodes taken, partitions) of a delegate like this one that may have any number of partitions."""
    return _size(preview(model, _unlimited(delegate)), delegate.name)


def _unlimited(delegate: Delegate) -> Delegate:
    unlimited = copy.copy(delegate)
    unlimited.max_delegated_partitions = 0
    return unlimited


def _shares(model: str | os.PathLike[str] | bytes, delegate: Delegate) -> tuple[Share, ...]:
    """What is expected of so many partitions of a delegate like this one."""
    if not isinstance(delegate, Opener):
        return ()
    try:
        device = registry.name_of(delegate.open_device())
    except DeviceError:
        return ()
    unlimited = _unlimited(delegate)
    content = model if isinstance(model, bytes) else None
    path = None if content is not None else os.fspath(model)
    with Interpreter(path, content, experimental_delegates=[unlimited], fallback="silent") as interpreter:
        report = interpreter.preview_delegation()
        return shares(interpreter.graph, report, device, called(read_model(model)))


def _device(delegate: Delegate) -> tuple[TargetDevice | None, str | None]:
    """What a delegate that opens a device would run on, or why it cannot."""
    if not isinstance(delegate, Opener):
        return None, None
    try:
        device = delegate.open_device()
    except DeviceError as error:
        return None, str(error)
    info = device.info
    return TargetDevice(info.name, info.backend, info.is_software, device.features.float16), None
