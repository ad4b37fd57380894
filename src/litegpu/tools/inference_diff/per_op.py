"""Op by op: which op is the first to deviate on the GPU, and how the error grows through the graph.

Three comparisons with the reference's value of every inner tensor:

- lock-step: the whole model runs as it does otherwise, and hands out what its kernels write. Only tensors that a kernel
  of the unchanged program writes anyway are asked for, so that the same ops stay fused, and they are copied from where
  the program has them, so that they are stored and laid out as otherwise (in float16 perhaps).
- alone: every op of the GPU's runs by itself, fed with the reference's values, so that its error is its own.
- kernel alone: the same for the ops that one kernel computes together.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.delegates.report import CPU
from litegpu.errors import OptionError
from litegpu.gpu.program import Program
from litegpu.interpreter import Interpreter
from litegpu.model.types import Model, Subgraph
from litegpu.tools.console import progress
from litegpu.tools.inference_diff import surgery
from litegpu.tools.inference_diff.difference_inputs import Feed
from litegpu.tools.inference_diff.exact import exact_results
from litegpu.tools.inference_diff.fusion import Kernels, kernels_of, with_views
from litegpu.tools.inference_diff.measures import Difference, measure
from litegpu.tools.inference_diff.recording import RecordingDelegate, Staging
from litegpu.tools.json_text import plain

if TYPE_CHECKING:
    from litegpu.delegates.report import DelegationReport

OpenReference = Callable[[bytes], Interpreter]
OpenTest = Callable[[bytes, Staging], tuple[Interpreter, RecordingDelegate]]
Values = Mapping[int, np.ndarray]


@dataclass(frozen=True)
class NodeDifference:
    """One node. `tensor` and `shape` are those of its (worst) output. `kernel`: the nodes that its kernel computes, if
    more than itself. `lock_step` is None where the value exists only inside a kernel, `alone` for nodes on the CPU,
    `kernel_alone` but for the last node of a kernel of several. `growth`: the lock-step error over the largest of those
    of the tensors that go into the kernel. Of nodes that deviate alone, `test_from_exact` and `reference_from_exact`:
    the relative L2 errors of both sides beside the op in float64 (see exact.py), None where that is not known."""

    node: int
    op: str
    owner: str
    tensor: str
    shape: tuple[int, ...]
    kernel: tuple[int, ...]
    lock_step: Difference | None
    alone: Difference | None
    kernel_alone: Difference | None
    growth: float | None
    test_from_exact: float | None = None
    reference_from_exact: float | None = None

    def blame(self, tolerance: float) -> str:
        """Which side is wrong: "test", "reference", "both", or "" where that cannot be said."""
        if self.test_from_exact is None or self.reference_from_exact is None:
            return ""
        wrong = [not error <= tolerance for error in (self.test_from_exact, self.reference_from_exact)]
        return {(True, False): "test", (False, True): "reference", (True, True): "both"}.get((wrong[0], wrong[1]), "")


@dataclass(frozen=True)
class PerOpReport:
    """`tolerance`: the relative L2 error from which on a node deviates; quantized results one quantum off never do.

    first_alone: the first node that deviates on the reference's values. first_kernel: the nodes of the first kernel of
    several that does so although none of its nodes does alone. first_lock_step: the first node that deviates in the
    whole model. same_kernels: handing out inner tensors changed no kernel's ops; same_outputs: nor any bit of the
    model's outputs. dynamic_range: nodes with 8-bit weights and float inputs, which here have float weights on the
    reference's side, since its kernels would quantize their inputs.
    """

    tolerance: float
    nodes: tuple[NodeDifference, ...]
    first_alone: int | None
    first_kernel: tuple[int, ...] | None
    first_lock_step: int | None
    same_kernels: bool
    same_outputs: bool
    dynamic_range: tuple[int, ...]

    @property
    def culprit(self) -> int | None:
        """The node to look at: the first that deviates by itself, else the last of the first kernel that does."""
        return self.first_alone if self.first_alone is not None else (self.first_kernel or (None,))[-1]

    def verdict(self) -> str:
        """One or two sentences."""
        rows = {row.node: row for row in self.nodes}
        if self.first_alone is not None:
            row = rows[self.first_alone]
            assert row.alone is not None
            text = (
                f"Node {row.node} {row.op} ('{row.tensor}') is the first to deviate by itself: relative L2 "
                f"{row.alone.relative_l2:.2e} on the reference's own values, more than {self.tolerance:.0e}."
                f"{self._blame()}"
            )
        elif self.first_kernel is not None:
            row = rows[self.first_kernel[-1]]
            assert row.kernel_alone is not None
            nodes = ", ".join(map(str, self.first_kernel))
            text = (
                f"The kernel of the nodes {nodes} is the first to deviate: relative L2 "
                f"{row.kernel_alone.relative_l2:.2e} on the reference's own values, although its ops agree alone."
            )
        elif self.first_lock_step is not None:
            return (
                f"No op deviates by itself by more than {self.tolerance:.0e}. In the whole model the error passes that "
                f"at {_named(rows[self.first_lock_step])}: {self._growth(rows[self.first_lock_step])}."
            )
        else:
            return f"No op deviates by more than {self.tolerance:.0e}, neither by itself nor in the whole model."
        if self.first_lock_step is not None:
            text += f" In the whole model the error passes that at {_named(rows[self.first_lock_step])}."
        return text

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        found: dict[str, Any] = plain({"verdict": self.verdict(), "culprit": self.culprit} | asdict(self))
        return found

    def _blame(self) -> str:
        """Which side exact arithmetic is on, for each node that deviates alone."""
        told = {
            "reference": "wrong in the reference, and right on the GPU",
            "test": "wrong on the GPU, and right in the reference",
            "both": "wrong on both sides",
        }
        text = ""
        for side, sentence in told.items():
            rows = [row for row in self.nodes if row.blame(self.tolerance) == side]
            if rows:
                sides = [(r, _e(r.test_from_exact), _e(r.reference_from_exact)) for r in rows]
                names = ", ".join(f"{r.node} {r.op} (GPU {test}, reference {other})" for r, test, other in sides)
                text += f" By exact arithmetic {sentence}: {names}."
        return text

    def _growth(self, row: NodeDifference) -> str:
        if row.growth is None or not math.isfinite(row.growth):
            return "its inputs agree"
        return f"it is {row.growth:.3g} times that of the node's inputs"


def analyse(
    model: Model,
    report: DelegationReport,
    programs: Sequence[Program],
    feed: Feed,
    outputs: Sequence[np.ndarray],
    *,
    open_reference: OpenReference,
    open_test: OpenTest,
    tolerance: float,
) -> PerOpReport:
    """`model`: as it was divided, `report` and `programs`: how, and what the GPU runs; `feed`: one array per input;
    `outputs`: what the model makes of it on the GPU."""
    main = model.main
    if len(feed) != len(main.inputs):
        raise OptionError("op by op is for models without variables: theirs would have to be fed as well")
    kernels = kernels_of(main, programs)
    with progress() as bar:
        task = bar.add_task("op by op", total=1.0)

        def step(fraction: float) -> None:
            bar.update(task, completed=fraction, refresh=True)

        in_float, dynamic_range = surgery.with_float_weights(model)
        wanted = _reference_values(surgery.with_careful_sums(in_float), feed, open_reference)
        step(0.2)
        on_gpu = [n.index for n in report.nodes if n.owner != CPU]
        border = _border(report)
        found, same_kernels = _lock_step(model, report, kernels, feed, open_test)
        step(0.4)
        singles = [(n,) for n in on_gpu if surgery.computes(main, main.operators[n])]
        alone = _alone(model, singles, wanted, border, open_test, lambda f: step(0.4 + 0.4 * f))
        parts = {group: with_views(main, group, kernels) for group in kernels.several}
        by_part = _alone(model, list(parts.values()), wanted, border, open_test, lambda f: step(0.8 + 0.2 * f))
        together = {group: by_part[part] for group, part in parts.items() if part in by_part}
    compare = _Comparison(main, wanted)
    nodes = tuple(
        _beside_exact(model, row, wanted, alone.get((row.node,), {}), tolerance)
        if _deviates(row.alone, tolerance)
        else row
        for row in _rows(main, report, kernels.groups, compare, found, alone, together)
    )
    # As bytes: NaN in the same places is the same.
    same = all(found[t].tobytes() == a.tobytes() for t, a in zip(main.outputs, outputs, strict=True) if t in found)
    return _concluded(nodes, tolerance, same_kernels, same, dynamic_range)


@dataclass(frozen=True)
class _Comparison:
    main: Subgraph
    wanted: Values

    def worst(self, tensors: Iterable[int], got: Values) -> tuple[int, Difference] | None:
        """Of several tensors the one that is farthest from the reference."""
        found = [(t, self.one(t, got[t])) for t in tensors if t in got and t in self.wanted]
        return max(found, key=lambda pair: pair[1].relative_l2, default=None)

    def one(self, tensor: int, got: np.ndarray) -> Difference:
        return measure(got, self.wanted[tensor], _detail(self.main, tensor))


def _reference_values(model: Model, feed: Feed, open_reference: OpenReference) -> dict[int, np.ndarray]:
    """Every inner tensor's value, and the inputs'."""
    main = model.main
    computing = [o for o in main.operators if not surgery.widens_constant(main, o)]
    made = [t for o in computing for t in o.outputs if t >= 0 and surgery.is_readable(main, t)]
    values = dict(zip(main.inputs, feed, strict=True))
    for portion in surgery.portions(main, [(t,) for t in made]):
        tensors = made[portion]
        with contextlib.closing(open_reference(surgery.exposed(model, tensors))) as interpreter:
            values |= _run(interpreter, feed, _outputs(main, tensors))
    return values


def _lock_step(
    model: Model, report: DelegationReport, kernels: Kernels, feed: Feed, open_test: OpenTest
) -> tuple[dict[int, np.ndarray], bool]:
    """The values of the tensors that kernels write and that the CPU computes, in the whole model; whether all of the
    model's kernels were there."""
    main = model.main
    nodes = [n.index for n in report.nodes if n.index in kernels.written or n.owner == CPU]
    nodes = [n for n in nodes if surgery.computes(main, main.operators[n])]
    items = [[t for t in main.operators[n].outputs if t >= 0 and surgery.is_readable(main, t)] for n in nodes]
    border = _border(report)
    values: dict[int, np.ndarray] = {}
    same = True
    for portion in surgery.portions(main, items):
        tensors = [t for item in items[portion] for t in item]
        outputs = _outputs(main, tensors)
        inner = Staging(outputs=frozenset(i for i, t in enumerate(outputs) if t not in border))
        interpreter, recording = open_test(surgery.exposed(model, tensors), inner)
        with contextlib.closing(interpreter):
            values |= _run(interpreter, feed, outputs)
            # exposed() keeps all nodes, in order, so their numbers are the model's.
            same &= kernels.sources <= kernels_of(main, recording.programs).sources
    return values, same


def _border(report: DelegationReport) -> set[int]:
    """The tensors that enter and leave the GPU in the model as it is."""
    return {t for p in report.partitions if p.owner != CPU for t in (*p.inputs, *p.outputs)}


def _alone(
    model: Model,
    parts: Sequence[tuple[int, ...]],
    wanted: Values,
    border: Container[int],
    open_test: OpenTest,
    step: Callable[[float], None],
) -> dict[tuple[int, ...], dict[int, np.ndarray]]:
    """What each part makes of the reference's values; parts that the GPU does not take by themselves are missing."""
    main = model.main
    found: dict[tuple[int, ...], dict[int, np.ndarray]] = {}
    known = [part for part in parts if _is_fed(main, part, wanted) and surgery.leaving(main, part)]
    handed = [[*surgery.leaving(main, part), *_read(main, part)] for part in known]
    for portion in surgery.portions(main, handed):
        apart = surgery.isolated(model, known[portion])
        positions = (
            frozenset(i for i, t in enumerate(tensors) if t not in border) for tensors in (apart.inputs, apart.outputs)
        )
        interpreter, _ = open_test(apart.content, Staging(*positions))
        with contextlib.closing(interpreter):
            told = interpreter.delegation_report().nodes
            left = {node for node, place in zip(apart.nodes, told, strict=True) if place.owner == CPU}
            values = _run(interpreter, [wanted[t] for t in apart.inputs], apart.outputs)
        for part in known[portion]:
            if left.isdisjoint(part):
                found[part] = {t: values[t] for t in surgery.leaving(main, part)}
        step((portion.stop or 0) / len(known))
    return found


def _is_fed(main: Subgraph, part: Sequence[int], wanted: Values) -> bool:
    """Whether the reference gave all that a part reads, in the shape that the model has for it."""
    return all(t in wanted and wanted[t].shape == main.tensors[t].shape for t in _read(main, part))


def _read(main: Subgraph, part: Sequence[int]) -> list[int]:
    """The computed tensors that a part takes from elsewhere."""
    inside = {t for n in part for t in main.operators[n].outputs}
    widened = {t for o in main.operators if surgery.widens_constant(main, o) for t in o.outputs}
    read = dict.fromkeys(t for n in part for t in main.operators[n].inputs if t >= 0)
    tensors = main.tensors
    return [t for t in read if not (t in inside or t in widened or tensors[t].is_constant or tensors[t].is_variable)]


def _run(interpreter: Interpreter, feed: Sequence[np.ndarray], tensors: Sequence[int]) -> dict[int, np.ndarray]:
    """One inference; `tensors` are those that the outputs are."""
    for detail, array in zip(interpreter.get_input_details(), feed, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    details = interpreter.get_output_details()
    return {t: np.asarray(interpreter.get_tensor(d["index"])) for t, d in zip(tensors, details, strict=True)}


def _outputs(main: Subgraph, tensors: Sequence[int]) -> list[int]:
    """Of an exposed model."""
    return [*main.outputs, *(t for t in tensors if t not in main.outputs)]


def _rows(
    main: Subgraph,
    report: DelegationReport,
    kernels: Mapping[int, tuple[int, ...]],
    compare: _Comparison,
    found: Values,
    alone: Mapping[tuple[int, ...], Values],
    together: Mapping[tuple[int, ...], Values],
) -> tuple[NodeDifference, ...]:
    errors: dict[int, float] = dict.fromkeys(main.inputs, 0.0)  # of tensors, in lock-step
    rows = []
    for told, operator in zip(report.nodes, main.operators, strict=True):
        if not surgery.computes(main, operator) or not any(t in compare.wanted for t in operator.outputs):
            continue
        kernel = kernels.get(operator.index, (operator.index,))
        lock_step = compare.worst(operator.outputs, found)
        single = compare.worst(operator.outputs, alone.get((operator.index,), {}))
        joined = compare.worst(operator.outputs, together.get(kernel, {})) if len(kernel) > 1 else None
        if lock_step is not None:
            errors |= {t: compare.one(t, found[t]).relative_l2 for t in operator.outputs if t in found}
        elif not len(kernel) > 1:  # moves nothing: its result is a part of its input
            errors |= dict.fromkeys(operator.outputs, max((errors.get(t, 0.0) for t in operator.inputs), default=0.0))
        shown = lock_step or single or joined
        tensor = main.tensors[shown[0] if shown else operator.outputs[0]]
        rows.append(
            NodeDifference(
                operator.index, operator.name, told.owner, tensor.name, tensor.shape,
                kernel if len(kernel) > 1 else (),
                lock_step[1] if lock_step else None,
                single[1] if single else None,
                joined[1] if joined else None,
                _growth(lock_step[1].relative_l2, [errors.get(t) for t in _read(main, kernel)]) if lock_step else None,
            )
        )  # fmt: skip
    return tuple(rows)


def _beside_exact(model: Model, row: NodeDifference, wanted: Values, got: Values, tolerance: float) -> NodeDifference:
    """The row with how far each side is from the op in float64, on the reference's values."""
    found = exact_results(model, model.main.operators[row.node], wanted)
    if found is None:
        return row
    exact, independent = found
    compare = _Comparison(model.main, exact)
    test, reference = (compare.worst(got, side) for side in (got, {t: wanted[t] for t in got if t in wanted}))
    if test is None or reference is None:
        return row
    errors = [0.0 if (d.max_quanta or 2) <= 1 else d.relative_l2 for _, d in (test, reference)]
    if not independent and errors[0] <= tolerance:
        return row
    return replace(row, test_from_exact=errors[0], reference_from_exact=errors[1])


def _deviates(found: Difference | None, tolerance: float) -> bool:
    if found is None or (found.max_quanta is not None and found.max_quanta <= 1):
        return False
    return not found.relative_l2 <= tolerance


def _e(error: float | None) -> str:
    return "-" if error is None else f"{error:.1e}"


def _growth(error: float, inputs: Sequence[float | None]) -> float | None:
    known = [e for e in inputs if e is not None]
    largest = max(known, default=0.0)
    if largest == 0.0 or not math.isfinite(error):
        return None
    return error / largest


def _concluded(
    nodes: tuple[NodeDifference, ...],
    tolerance: float,
    same_kernels: bool,
    same_outputs: bool,
    dynamic_range: tuple[int, ...],
) -> PerOpReport:
    def deviates(found: Difference | None) -> bool:
        return _deviates(found, tolerance)

    guilty = {n.node for n in nodes if deviates(n.alone)}
    kernels = [n.kernel for n in nodes if deviates(n.kernel_alone) and guilty.isdisjoint(n.kernel)]
    return PerOpReport(
        tolerance,
        nodes,
        min(guilty, default=None),
        next(iter(kernels), None),
        next((n.node for n in nodes if deviates(n.lock_step)), None),
        same_kernels,
        same_outputs,
        dynamic_range,
    )


def _detail(main: Subgraph, tensor: int) -> dict[str, Any]:
    """As get_tensor_details() has it, as far as measures need it."""
    t = main.tensors[tensor]
    q = t.quantization
    single = q is not None and len(q.scales) == 1
    quantization = (float(q.scales[0]), int(q.zero_points[0])) if q is not None and single else (0.0, 0)
    return {"name": t.name, "quantization": quantization}


def _named(row: NodeDifference) -> str:
    assert row.lock_step is not None
    return f"node {row.node} {row.op} (relative L2 {row.lock_step.relative_l2:.2e})"
