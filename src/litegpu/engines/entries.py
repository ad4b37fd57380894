"""The engines of an interpreter's further signatures: those whose subgraph is not the main one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from litegpu.delegates import cpu
from litegpu.delegates.demand import check_demand, check_input_shape
from litegpu.delegates.partitioner import NarrowedDelegate, whole_on_cpu
from litegpu.delegates.protocol import Delegate
from litegpu.delegates.report import CPU, DelegationReport
from litegpu.engines.announcing import Announcer
from litegpu.engines.divided import Divided
from litegpu.engines.engine import Engine, Setup, Shapes
from litegpu.engines.whole import Whole
from litegpu.errors import InvokeError, ModelError


class Entries:
    """Each subgraph is divided by itself, when it is first asked for, among the delegates of `setup`; all share its
    file and, by the delegates' devices, compiled code. Where delegates take nothing, one official interpreter runs it.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._divided: dict[int, Divided | None] = {}
        self._on_cpu: dict[int, Shapes] = {}  # shapes in which delegates took nothing
        self._main: Engine | None = None
        self._official: Whole | None = None
        self.is_used = False  # any of these engines

    def engine(self, subgraph: int, values: Mapping[int, Any], main: Engine) -> Engine:
        """What runs a subgraph whose inputs have these values, by tensor; allocated, unless it is `Whole`. `main`: of
        the main subgraph. Raises InvokeError or DelegateError."""
        self._main = main
        divided = self._opened(subgraph)
        if divided is None:
            return self._whole()
        for index, value in values.items():
            check_input_shape(np.shape(value))
            divided.resize(index, np.shape(value), False)
        shapes = divided.input_shapes()
        if divided.plan is None and self._on_cpu.get(subgraph) == shapes:
            return self._whole()
        try:
            check_demand(divided.setup.source.model.main, shapes)
        except ModelError as error:
            raise InvokeError(str(error)) from None
        engine = divided.allocate()
        if engine is not divided:
            self._on_cpu[subgraph] = shapes
        return engine

    def existing(self, subgraph: int) -> Divided | None:
        """The one that divides a subgraph, if it was asked for and is divided."""
        return self._divided.get(subgraph)

    def report(self, subgraph: int) -> DelegationReport:
        """What runs where of a subgraph, as far as is known before it runs."""
        divided = self._opened(subgraph)
        if divided is None:
            main = self._setup.source.model.subgraphs[subgraph]
            return whole_on_cpu(main, [d.name for d in self._asked()], self._undividable(subgraph))
        if divided.plan is not None:
            divided.setup.announcer.note(divided.plan.notes)
        return divided.setup.announcer.report

    def settle(self) -> None:
        for engine in self._engines():
            engine.settle()

    def reset_variables(self) -> None:
        for engine in self._engines():
            engine.reset_variables()

    def forked(self) -> None:
        """In the child of a fork: what another thread was doing is not waited for."""
        for engine in self._engines():
            if not engine.forked():
                engine.reopened()

    def close(self, *, wait: bool) -> None:
        for engine in self._engines():
            engine.close(wait=wait)
        self._divided.clear()
        self._main = self._official = None

    def _engines(self) -> list[Engine]:
        found = [engine for engine in (*self._divided.values(), self._official) if engine is not None]
        return [e for e in found if not (isinstance(e, Divided) and e.plan is None)]

    def _opened(self, subgraph: int) -> Divided | None:
        if subgraph not in self._divided:
            self.is_used = True
            self._divided[subgraph] = None if self._undividable(subgraph) else self._open(subgraph)
        return self._divided[subgraph]

    def _open(self, subgraph: int) -> Divided:
        from litegpu.gpu.delegate.missing_ops import for_missing_ops

        source = self._setup.source.entering(subgraph)
        asked = self._asked()
        if any(o.is_custom for o in source.model.main.operators):
            asked += for_missing_ops(source.model, self._setup.options, alone=not asked)
        announcer = Announcer(self._setup.announcer.fallback)
        setup = replace(self._setup, source=source, asked=asked, announcer=announcer, freed={})
        return Divided(setup, self._whole)

    def _asked(self) -> list[Delegate]:
        whole = [d.whole if isinstance(d, NarrowedDelegate) else d for d in self._setup.asked]
        return [d for d in whole if d.name != CPU]

    def _undividable(self, subgraph: int) -> dict[int, str]:
        model = replace(self._setup.source.model, entry=subgraph)
        return cpu.undividable(model)

    def _whole(self) -> Engine:
        if isinstance(self._main, Whole):
            return self._main
        if self._official is None:
            self.is_used = True
            self._official = Whole(self._setup, {})
        return self._official
