"""Nodes behind a size that only the run decides: divided among the delegates once it is known, for each size anew."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence

import numpy as np

from litegpu.blame import described
from litegpu.delegates.cpu import CpuPartition, OfficialOptions
from litegpu.delegates.hindmost import Hindmost
from litegpu.delegates.partitioner import divide
from litegpu.delegates.plan import Plan, PrepareError
from litegpu.delegates.protocol import Delegate, DelegateKernel, Partition
from litegpu.delegates.shapes import infer
from litegpu.errors import ForkError, LiteGpuError
from litegpu.model.types import Model, Operator, Subgraph

log = logging.getLogger("litegpu")

Shapes = tuple[tuple[int, ...], ...]

#: Plans for different sizes that are kept, and how many are made at most: a model whose sizes never come again would
#: compile for each inference.
_KEPT, _MOST_PLANS = 4, 16
#: How often the CPU runs a size before there is a plan for it.
_TIMES = 1


class LateDelegate(Hindmost):
    """Takes `nodes`, whose shapes are not known; `asked` are asked for them when they are. Satisfies
    protocol.Delegate."""

    def __init__(self, nodes: Collection[int], asked: Sequence[Delegate], options: OfficialOptions) -> None:
        self._nodes, self._asked, self._options = frozenset(nodes), tuple(asked), options

    def check(self, model: Model, subgraph: Subgraph, operator: Operator) -> str | None:
        return None if operator.index in self._nodes else "Its shapes are known."

    def prepare(self, partition: Partition) -> DelegateKernel:
        return LateKernel(partition, self._asked, self._options)


class LateKernel:
    """A partition whose inputs come in sizes that only the run decides; satisfies protocol.DelegateKernel."""

    uses_gpu = True

    def __init__(self, partition: Partition, asked: Sequence[Delegate], options: OfficialOptions) -> None:
        self._partition, self._asked, self._options = partition, asked, options
        self._on_cpu = CpuPartition(partition, options, frozenset(partition.inputs))
        self._order = [self._on_cpu.outputs.index(t) for t in partition.outputs]
        self._seen: Counter[Shapes] = Counter()
        self._plans: OrderedDict[Shapes, Plan | None] = OrderedDict()  # None: the CPU runs it; the latest last
        self._left = _MOST_PLANS

    @property
    def notes(self) -> tuple[str, ...]:
        """For the delegation report."""
        plans = [plan for plan in self._plans.values() if plan is not None]
        if not plans:
            return ()
        count = len(self._partition.nodes)
        return (f"{count} ops behind a size that the run decides are divided anew for each, now for {len(plans)}",)

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        plan = self._plan(tuple(a.shape for a in inputs))
        if plan is None:
            found = self._on_cpu.invoke(inputs)
            return [found[i] for i in self._order]
        for tensor, value in zip(self._partition.inputs, inputs, strict=True):
            plan.set_input(tensor, value)
        plan.invoke()
        return [plan.value(tensor) for tensor in self._partition.outputs]

    def reset_variables(self) -> None:
        """There are none."""

    def abandon(self) -> None:
        self._close(wait=False)

    def close(self) -> None:
        self._close(wait=True)

    def _close(self, *, wait: bool) -> None:
        while self._plans:
            _, plan = self._plans.popitem()
            if plan is not None:
                plan.close(wait=wait)
        self._on_cpu.close()

    def _plan(self, shapes: Shapes) -> Plan | None:
        """For inputs of these shapes; None while, or where, the CPU runs them."""
        if shapes in self._plans:
            self._plans.move_to_end(shapes)
            return self._plans[shapes]
        self._seen[shapes] += 1
        empty = any(0 in shape for shape in shapes)
        if empty or self._seen[shapes] <= _TIMES or self._left == 0:
            return None
        if len(self._plans) == _KEPT:
            _, oldest = self._plans.popitem(last=False)
            if oldest is not None:
                oldest.close()
        self._left -= 1
        self._plans[shapes] = made = self._made(shapes)
        return made

    def _made(self, shapes: Shapes) -> Plan | None:
        part = self._partition
        operators = tuple(dataclasses.replace(o, index=i) for i, o in enumerate(part.nodes))
        graph = dataclasses.replace(part.subgraph, operators=operators, inputs=part.inputs, outputs=part.outputs)
        try:
            known = infer(part.model.with_main(graph), self._options, dict(zip(part.inputs, shapes, strict=True)))
            model = part.model.with_main(known.subgraph)
            division = divide(model, known.subgraph, self._asked, known.refused)
            unknown = {t for node in known.refused for t in operators[node].outputs}
            if division.delegated:
                return Plan(known.subgraph, division, self._asked, self._options, unknown)
        except ForkError:
            raise
        except (LiteGpuError, PrepareError) as error:
            log.debug("The CPU runs what is behind a size that the run decides: %s", described(error))
        return None
