"""Which engine a model begins with."""

from __future__ import annotations

from litegpu.delegates import cpu
from litegpu.delegates.partitioner import whole_on_cpu
from litegpu.delegates.report import CPU
from litegpu.engines.divided import Divided
from litegpu.engines.engine import Engine, Setup
from litegpu.engines.whole import Whole


def open_engine(setup: Setup) -> Engine:
    """Decides from the shapes in the file what goes where, and reports it. Raises DelegateError or ModelError."""
    model = setup.source.model
    undividable = cpu.undividable(model) if setup.asked else {}
    if setup.asked and not undividable:
        return Divided(setup)
    asked = [delegate.name for delegate in setup.asked if delegate.name != CPU]
    setup.announcer.announce(whole_on_cpu(model.main, asked, undividable))
    return Whole(setup, {})
