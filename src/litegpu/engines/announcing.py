"""Says what a delegation left on the CPU, as loudly as the caller wants."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from litegpu import debug
from litegpu.blame import described
from litegpu.delegates.partitioner import FailedDelegate, NarrowedDelegate
from litegpu.delegates.plan import PrepareError
from litegpu.delegates.protocol import Delegate
from litegpu.delegates.report import DelegationReport
from litegpu.errors import DelegateError

log = logging.getLogger("litegpu")

FALLBACKS = ("strict", "warn", "silent")

#: Nodes that a delegate may fail to prepare before it is not asked any more.
_MOST_LEFT_OUT = 64


@dataclass(eq=False)
class Announcer:
    """The last report, and `fallback`: "warn" logs what stays on the CPU, "silent" does not, "strict" raises."""

    fallback: str
    report: DelegationReport = field(default_factory=lambda: DelegationReport((), (), ()))

    def announce(self, report: DelegationReport, *, aloud: bool = True) -> None:
        """Keep the report, refuse it under "strict" with DelegateError, and log it if it tells something new."""
        news = report.delegates != () and report != self.report
        self.report = report
        if not report.delegates:
            return
        complete = report.fully_delegated
        if self.fallback == "strict" and not complete:
            details = "\n".join(report.warnings())
            raise DelegateError(f'Not every op was delegated, and fallback is "strict". {report.summary()}\n{details}')
        if news:
            level = logging.WARNING if self.fallback == "warn" and not complete else logging.INFO
            if not aloud or self.fallback == "silent":
                level = logging.DEBUG
            for line in report.warnings():
                log.log(level, "%s", line)
            log.log(level, "%s", report.summary())
            debug.say(debug.PARTITIONS, "%s", report)

    def note(self, notes: tuple[str, ...]) -> None:
        """Keep the notes of a plan; an inference may add some."""
        if notes != self.report.notes:
            self.report = replace(self.report, notes=notes)

    def narrowed(self, delegate: Delegate, failure: PrepareError, loud: int = logging.WARNING) -> Delegate:
        """What is asked instead of a delegate that failed while preparing: nothing any more, or it for all nodes but
        those that it blames. Raises DelegateError under "strict"."""
        cause = failure.cause
        text = described(cause)
        if self.fallback == "strict":
            raise DelegateError(
                f"Delegate {delegate.name} failed to prepare a partition of {len(failure.nodes)} nodes, and fallback "
                f'is "strict". {text}'
            ) from cause
        level = loud if self.fallback == "warn" else logging.DEBUG
        known: Mapping[int, str] = delegate.reasons if isinstance(delegate, NarrowedDelegate) else {}
        if failure.blamed and len(known) < _MOST_LEFT_OUT:
            numbers = ", ".join(map(str, failure.blamed))
            log.log(
                level, "Delegate %s cannot take ops number %s, which run on the CPU. %s", delegate.name, numbers, text
            )
            whole = delegate.whole if isinstance(delegate, NarrowedDelegate) else delegate
            reasons = {**known, **dict.fromkeys(failure.blamed, f"The delegate failed to prepare it: {text}")}
            return NarrowedDelegate(whole, reasons)
        log.log(level, "Delegate %s failed to prepare and is left out; its ops run on the CPU. %s", delegate.name, text)
        return FailedDelegate(delegate.name, cause)
