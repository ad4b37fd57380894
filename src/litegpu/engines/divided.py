"""The engine that runs a model in partitions: those of delegates on their devices, the rest on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from litegpu.delegates import cpu
from litegpu.delegates.bounded import Bounded, CutDelegate, bounded, without_cuts
from litegpu.delegates.folding import may_fold
from litegpu.delegates.late import LateDelegate
from litegpu.delegates.partitioner import ON_CPU, Division, NarrowedDelegate, divide
from litegpu.delegates.plan import Plan, PrepareError, rehearsed
from litegpu.delegates.protocol import Delegate
from litegpu.delegates.report import DelegationReport
from litegpu.delegates.shapes import Inferred, infer
from litegpu.engines.engine import Engine, Setup, Shapes, resized
from litegpu.engines.whole import Whole
from litegpu.errors import ForkError, InvokeError, ModelError, TensorError
from litegpu.model.inline import inline_called
from litegpu.model.list_updates import with_list_updates
from litegpu.model.state import without_resources
from litegpu.model.types import Subgraph, TensorType

log = logging.getLogger("litegpu")


class Divided(Engine):
    """`plan` runs; allocate() makes it and another shape ends it. `official` has no delegates and describes the
    tensors. It is never allocated, so that without a plan it gives the right errors for setting, running and reading.
    """

    def __init__(self, setup: Setup, whole: Callable[[], Engine] | None = None) -> None:
        """`whole`: gives what runs the model where no delegate takes anything; by default a `Whole` of this setup."""
        super().__init__(setup)
        self._whole = whole
        self.plan: Plan | None = None
        self._leaves_outputs = False
        self._division: Division | None = None
        self._late: list[Delegate] = []  # what takes the nodes behind a size that only the run decides
        self._bounds: Bounded | None = None  # if such sizes have bounds that a delegate computes with
        self._may_bound = True
        self._nodes_behind: frozenset[int] = frozenset()
        self._stateful = without_resources(with_list_updates(inline_called(setup.source.model)))
        self._graph = self._stateful.model.main
        self._inferred: tuple[Shapes, Inferred] | None = None  # for these shapes of the inputs
        self._official = resized(setup, setup.options.plain(), {})
        self._intend()

    @property
    def official(self) -> Any:
        return self._official

    @property
    def graph(self) -> Subgraph:
        return self._graph

    # ----------------------------------------------------------------------------------------------- dividing

    def allocate(self) -> Engine:
        """Learn every tensor's shape, divide again if that changed something, and have the partitions prepared."""
        self.ensure_safe()
        if self.plan is not None:
            return self
        with self.setup.own_operators():
            return self if self._prepare() else self._on_cpu()

    def _prepare(self) -> bool:
        """Whether a delegate takes anything."""
        asked = self.setup.asked
        if any(isinstance(d, NarrowedDelegate) for d in asked):  # of other shapes perhaps
            asked[:] = [d.whole if isinstance(d, NarrowedDelegate) else d for d in asked]
            self._division = None
        division, refused = self._divide_inferred()
        unknown = {t for node in refused for t in self._graph.operators[node].outputs}
        stays = bool(self._stateful.states or self._stateful.initializers)  # its variables are not the runtime's
        if stays:
            self.setup.variables.initialize(self._stateful, self.setup.options)
        while division.delegated or stays:
            self._require_kernels(division)
            try:
                states, variables = self._stateful.states, self.setup.variables
                offered = [*asked, *self._late]
                plan = Plan(self._graph, division, offered, self.setup.options, unknown, states, variables)
                plan.leave_outputs(self._leaves_outputs)
                self.setup.announcer.note(plan.notes)
                self.plan = plan  # last: an interrupted preparation is made anew
                return True
            except PrepareError as failure:
                if isinstance(failure.cause, ForkError):
                    raise failure.cause from None
                self._narrow(failure)
                if self._bounds is not None:
                    self._may_bound, self._division = False, None
                    division, refused = self._divide_inferred()
                    unknown = {t for node in refused for t in self._graph.operators[node].outputs}
                    continue
                division = self._divide(self._graph, refused, announce=False)
        return False

    def _on_cpu(self) -> Engine:
        if self._whole is not None:
            return self._whole()
        return Whole(self.setup, self.input_shapes(), undecided=self).allocate()

    def in_shapes(self, shapes: Shapes) -> Engine:
        self._official = resized(self.setup, self.setup.options.plain(), shapes)
        self._reported = ""
        return self

    def preview(self) -> None:
        if self.plan is not None:
            return
        with self.setup.own_operators():
            division, refused = self._divide_inferred()
        while (failure := rehearsed(division, [*self.setup.asked, *self._late])) is not None:
            self._narrow(failure, logging.DEBUG)
            division = self._divide(self._graph, refused, announce=False)

    def _intend(self) -> None:
        """The division for the shapes in the file. Those are not the true ones where the model computes sizes from
        sizes: what follows from them is found first then, so that nothing is told, or refused under "strict", that does
        not hold. What does not run in the file's shapes is allocate()'s to tell."""
        if may_fold(self._graph):
            try:
                with self.setup.own_operators():
                    self._divide_inferred()
                return
            except (InvokeError, ModelError, TensorError) as error:
                log.debug("The file's shapes do not hold: %s", error)
        self._divide(self._graph, {})

    def _divide(self, graph: Subgraph, refused: Mapping[int, str], *, announce: bool = True) -> Division:
        model = self._stateful.model
        if len(graph.tensors) > len(model.main.tensors):  # values that were folded
            model = model.with_main(graph)
        division = divide(model, graph, [*self.setup.asked, *self._late], refused)
        self._division, self._graph = division, graph
        division = replace(division, report=self._by_file(division.report))
        shapes = self.input_shapes().values()
        if not shapes or any(0 not in shape for shape in shapes):  # else there is nothing to compute
            self.setup.announcer.announce(division.report, aloud=announce)
        return division

    def _divide_inferred(self) -> tuple[Division, dict[int, str]]:
        """The division of the subgraph with its true shapes, and which nodes' shapes are unknown: see Inferred."""
        model = self._stateful.model
        shapes = {state.before: model.main.tensors[state.before].shape for state in self._stateful.states}
        inputs = {**self.input_shapes(), **shapes}
        if self._inferred is None or self._inferred[0] != inputs:
            self._inferred = inputs, infer(model, self.setup.options, inputs)
        found = self._inferred[1]
        division = self._with_bounds(found)
        if division is not None and self._bounds is not None:
            return division, self._bounds.refused
        if found.late != self._nodes_behind:
            self._nodes_behind, self._division = found.late, None
            asked, options = self.setup.asked, self.setup.options
            self._late = [LateDelegate(found.late, asked, options)] if found.late else []
        division = self._division
        if division is None or found.refused or found.subgraph is not self._graph:
            division = self._divide(found.subgraph, found.refused)
        return division, found.refused

    def _with_bounds(self, found: Inferred) -> Division | None:
        """The division where sizes that the data decide have bounds, if a delegate takes all that is computed so."""
        before, self._bounds = self._bounds, bounded(found) if found.refused and self._may_bound else None
        if self._bounds is None:
            if before is not None:
                self._nodes_behind, self._late, self._division = frozenset(), [], None
            return None
        late = self._bounds.late
        self._late = [CutDelegate(), *([LateDelegate(late, self.setup.asked, self.setup.options)] if late else [])]
        division = self._divide(self._bounds.subgraph, self._bounds.refused, announce=False)
        if self._bounds.taken(division, self.setup.asked):
            self.setup.announcer.announce(self._by_file(division.report), aloud=True)
            return division
        self._bounds, self._nodes_behind, self._late, self._division = None, frozenset(), [], None
        return None

    def _by_file(self, report: DelegationReport) -> DelegationReport:
        """With the operators that the file has, where others stand for them."""
        operators = self.setup.source.model.main.operators
        if self._bounds is not None:
            report = without_cuts(report, len(operators), self._bounds)
        if all(n.op == o.name for n, o in zip(report.nodes, operators, strict=True)):
            return report
        nodes = (replace(n, op=o.name, code=o.code) for n, o in zip(report.nodes, operators, strict=True))
        return replace(report, nodes=tuple(nodes))

    def _narrow(self, failure: PrepareError, loud: int = logging.WARNING) -> None:
        asked = self.setup.asked
        if failure.position >= len(asked):
            self._late = []
            return
        asked[failure.position] = self.setup.announcer.narrowed(asked[failure.position], failure, loud)

    def _require_kernels(self, division: Division) -> None:
        """Raises InvokeError naming every op on the CPU that the official runtime has no kernel for."""
        left = [o for owner, partition in division.partitions if owner == ON_CPU for o in partition.nodes]
        missing = cpu.unresolved_custom_ops(self._stateful.model, self._graph, left, self.setup.options)
        if missing:
            reasons = {n.index: n.reason for n in division.report.nodes if n.reason and not n.accepted}
            raise InvokeError(cpu.unresolved_message(missing, reasons))

    # ------------------------------------------------------------------------------------------------ running

    def invoke(self) -> None:
        plan = self.plan
        if plan is not None:
            self.ensure_safe()
            plan.invoke()
            return
        try:
            self._official.invoke()
        except (RuntimeError, ValueError) as error:
            raise self.translated(error) from None

    def finish(self) -> None:
        if self.plan is not None:
            self.plan.settle()

    def reset_variables(self) -> None:
        if self.plan is not None:
            self.ensure_safe()
            self.plan.reset_variables()
            return
        try:
            self._official.reset_all_variables()
        except (RuntimeError, ValueError) as error:
            raise self.translated(error) from None

    def is_safe(self) -> bool:
        plan = self.plan
        return not (plan is not None and plan.gave_views and plan.viewed) and super().is_safe()

    def reopened(self) -> None:
        shapes = self.input_shapes()
        self._drop_plan()
        self.in_shapes(shapes)

    def forked(self) -> bool:
        return self.plan is not None and self.plan.forked()

    def close(self, *, wait: bool) -> None:
        self._drop_plan(wait=wait)

    def _drop_plan(self, *, wait: bool = True) -> None:
        plan, self.plan = self.plan, None
        if plan is not None:
            plan.close(wait=wait)

    # ------------------------------------------------------------------------------------------------ tensors

    def set(self, index: int, value: Any) -> None:
        plan = self.plan
        if plan is not None and (index in plan.inputs or self.setup.source.is_computed(index)):
            plan.set_input(index, value)
        else:
            self._set_official(index, value)

    def get(self, index: int, subgraph_index: int) -> Any:
        plan, is_entry = self.plan, subgraph_index == self.setup.source.model.entry
        if plan is not None and is_entry:
            given = plan.given(index)
            if given is not None:
                return given[()]
            if self.setup.source.is_computed(index):
                return plan.value(index).copy()[()]
        tensor = self.setup.source.tensor(index, subgraph_index)
        if tensor is not None and tensor.type is TensorType.STRING and not tensor.is_constant:
            raise TensorError(f"Tensor {index} '{tensor.name}' holds no strings yet; set the inputs and invoke() first")
        return self._get_official(index, 0 if is_entry else subgraph_index)  # where what is run comes first

    def view(self, index: int) -> Any:
        if self.plan is not None and self.setup.source.is_computed(index):
            return self.plan.view(index)
        return self._view_official(index)

    def resize(self, index: int, shape: Any, strict: bool) -> Engine:
        before = self.input_shapes()
        self._resize_official(index, shape, strict)
        shapes = self.input_shapes()
        inner = index not in before  # which asks for another allocation, as officially
        if shapes != before or inner or (self.plan is not None and not self.plan.takes(shapes)):
            self._drop_plan()
        return self

    def described(self, details: list[dict[str, Any]], subgraph_index: int) -> list[dict[str, Any]]:
        """With the shapes that tensors have for the inputs as they were last allocated, or that only the last run could
        tell."""
        if subgraph_index != self.setup.source.model.entry:
            return details
        plan, tensors, inputs = self.plan, self._graph.tensors, self.setup.source.model.main.inputs
        for detail in details:
            index = detail["index"]
            shape = plan.shape(index) if plan is not None else None
            known = index < len(tensors) and not tensors[index].is_constant
            if shape is None and known and (plan is not None or index not in inputs):
                shape = tensors[index].shape
            if shape is not None and tuple(detail["shape"]) != shape:
                if -1 not in detail["shape_signature"]:  # the file has none then
                    detail["shape_signature"] = np.array(shape, np.int32)
                detail["shape"] = np.array(shape, np.int32)
        return details

    # --------------------------------------------------------------------------------------- memory on the GPU

    def leave_outputs(self, leave: bool) -> None:
        self._leaves_outputs = leave
        if self.plan is not None:
            self.plan.leave_outputs(leave)

    def ensure_readable(self, index: int) -> None:
        if self.plan is not None and self.setup.source.is_computed(index):
            self.plan.value(index)

    def output_buffer(self, index: int) -> Any:
        found = self.plan.output_kernel(index) if self.plan is not None else None
        if found is None:
            return super().output_buffer(index)
        kernel, position = found
        return kernel.output_buffer(position, self._graph.tensors[index])
