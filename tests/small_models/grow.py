"""Grows a model piece by piece: what a piece takes is, where it fits, what earlier ones give.

`corpus_model(seed, number)` is a model of 1 to 12 operators (a few more where a piece has several), one that the
official runtime runs.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from agreement import PLAIN, official, run
from ai_edge_litert.interpreter import OpResolverType
from op_cases import OpCase
from quantized_cases import AGAINST_FLOAT, NEAR

from litegpu.errors import LiteGpuError
from litegpu.model import ModelBuilder, read_model, write_model
from litegpu.model.builder import SubgraphBuilder
from litegpu.model.types import Model, Operator, Quantization, Tensor, TensorType
from small_models.pieces import HYBRID, STYLES, converted, draw, reshaped

_STORED = {TensorType.INT8, TensorType.UINT8, TensorType.INT16}
#: Operators whose whole numbers have to be in order, or different.
_ORDERED = {
    *("SCATTER_ND", "SPARSE_TO_DENSE", "SEGMENT_SUM", "HASHTABLE_LOOKUP", "STABLEHLO_SCATTER", "WHERE", "UNIQUE"),
    *("SLICE", "STRIDED_SLICE"),
}  # fmt: skip
#: Operators whose floats have to be different, or to be boxes, or of which every bit counts.
_SORTED = {"NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5", "BITCAST", "UNIQUE"}
#: What has a state from one inference to the next.
_STATEFUL = {"VAR_HANDLE", "RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL"}


@dataclass(frozen=True)
class Known:
    """A tensor of the model, with the value that the official runtime gives it."""

    tensor: int
    type: TensorType
    quantization: Quantization | None
    value: np.ndarray
    #: Whether its size is known beforehand.
    fixed: bool = True


@dataclass(frozen=True)
class Piece:
    """A part of the model as a model of its own, and which of the known values it takes and gives."""

    name: str
    content: bytes
    takes: tuple[int, ...]
    gives: tuple[int, ...]

    @property
    def has_tables(self) -> bool:
        """Whether it is one operator that the official runtime looks up in a coarse table, or rounds in steps."""
        return self._kind in AGAINST_FLOAT

    @property
    def is_near(self) -> bool:
        """Whether it is one operator whose results the GPU knows within one quantum."""
        return self._kind in NEAR

    @property
    def _kind(self) -> tuple[str, str]:
        main = read_model(self.content).main
        made = main.tensors[main.outputs[0]]
        alone = len(main.operators) == 1 and made.quantization is not None
        return made.type.name.lower(), main.operators[0].name if alone else ""


@dataclass
class Entry:
    """A subgraph that can be run: its inputs are the first known values."""

    graph: SubgraphBuilder
    known: list[Known] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    entering: list[int] = field(default_factory=list)  # known values that are inputs
    leaving: list[int] = field(default_factory=list)

    @property
    def inputs(self) -> list[np.ndarray]:
        return [self.known[i].value for i in self.entering]


@dataclass(frozen=True)
class CorpusModel:
    """A model with inputs. `reference`: the same with weights of 8 bits beside floats as the floats that they stand
    for, which is what the GPU computes with."""

    name: str
    style: str
    content: bytes
    reference: bytes
    entries: tuple[Entry, ...]
    signatures: tuple[str, ...]
    stateful: bool

    @property
    def nodes(self) -> int:
        return sum(len(g.operators) for g in read_model(self.content).subgraphs)

    @property
    def operators(self) -> set[str]:
        return {o.name for g in read_model(self.content).subgraphs for o in g.operators}


def corpus_model(seed: str, number: int) -> CorpusModel:
    """The model of that number; the same at every call."""
    for attempt in range(50):
        rng = random.Random(f"corpus {seed} {number} {attempt}")
        style = rng.choices(list(STYLES), list(STYLES.values()))[0]
        found = Grower(rng, style).model(f"{seed} {number}")
        if found is not None:
            return found
    raise AssertionError(f"corpus {seed} {number}: no model that the official runtime runs")


class Grower:
    """Makes one model."""

    def __init__(self, rng: random.Random, style: str) -> None:
        self.rng, self.style = rng, style
        self.builder = ModelBuilder()
        self.entry = Entry(self.builder)

    def model(self, name: str) -> CorpusModel | None:
        """None if the official runtime does not run it."""
        keys = ("first", "second") if self.rng.random() < 0.04 else ()
        entries = []
        for key in keys or ("main",):
            graph = self.builder if key in ("main", "first") else self.builder.subgraph(key)
            self.entry = Entry(graph)
            entries.append(self.entry)
            if not self._grow():
                return None
            if keys:
                inputs = {f"x{i}": self.entry.known[i].tensor for i in self.entry.entering}
                outputs = {f"y{i}": self.entry.known[i].tensor for i in self.entry.leaving}
                self.builder.signature(key, inputs, outputs, graph)
        content = self.builder.build()
        try:
            model = read_model(content)
        except LiteGpuError:
            return None
        stateful = any(
            o.name in _STATEFUL or any(t >= 0 and g.tensors[t].is_variable for t in o.inputs)
            for g in model.subgraphs for o in g.operators
        )  # fmt: skip
        reference = _with_real_weights(model)
        found = CorpusModel(name, self.style, content, reference, tuple(entries), keys, stateful)
        return found if _runs(found) else None

    def _grow(self) -> bool:
        wanted, attempts = self.rng.randint(1, 12), 0
        while len(self.entry.graph.graph().operators) < wanted and attempts < 40:
            attempts += 1
            shapes = [k.value.shape for k in self.entry.known if k.value.size <= 20_000 and k.fixed]
            try:
                case = draw(self.rng, self.style, shapes[-6:])
            except (ValueError, RuntimeError, IndexError):  # the official runtime has none of that kind
                continue
            if case is not None:
                self._take(case)
        used = {i for p in self.entry.pieces for i in p.takes}
        given = [i for p in self.entry.pieces for i in p.gives]
        self.entry.leaving = [i for i in given if i not in used or self.rng.random() < 0.1]
        self.entry.graph.output(*(self.entry.known[i].tensor for i in self.entry.leaving))
        return bool(self.entry.leaving)

    # ------------------------------------------------------------------------------------------------- one piece

    def _take(self, case: OpCase) -> bool:
        """Put a piece in; False if the official runtime does not run it on what it would take."""
        try:
            model = read_model(case.content)
        except LiteGpuError:
            return False
        names = {o.name for o in model.main.operators}
        before = len(self.entry.known)
        takes: list[int | np.ndarray] = []
        for t, array in zip(model.main.inputs, case.inputs, strict=True):
            tensor = model.main.tensors[t]
            fixed = names & (_SORTED if array.dtype.kind == "f" else _ORDERED)
            found = None if fixed else self._found(tensor, array, before)
            takes.append(array if found is None else found)
        return self._place(case.name, case.content, model, takes)

    def _place(self, name: str, content: bytes, model: Model, takes: Sequence[int | np.ndarray]) -> bool:
        values = [self.entry.known[t].value if isinstance(t, int) else t for t in takes]
        try:
            results = run(official(content, resolver(model)), values)
        except (RuntimeError, ValueError):
            return False
        main = model.main
        sources = []
        for t, taken in zip(main.inputs, takes, strict=True):
            if not isinstance(taken, int):
                tensor = main.tensors[t]
                number = len(self.entry.known)
                at = self.entry.graph.input(
                    f"input_{number}", tensor.shape, tensor.type, quantization=tensor.quantization
                )
                self.entry.known.append(Known(at, tensor.type, tensor.quantization, taken))
                self.entry.entering.append(number)
                taken = number
            sources.append(taken)
        places = dict(zip(main.inputs, (self.entry.known[i].tensor for i in sources), strict=True))
        self._copy(model, places)
        gives = []
        for t, array in zip(main.outputs, results, strict=True):
            gives.append(len(self.entry.known))
            tensor = main.tensors[t]
            fixed = -1 not in tensor.shape_signature
            self.entry.known.append(Known(places[t], tensor.type, tensor.quantization, array, fixed))
        self.entry.pieces.append(Piece(name, content, tuple(sources), tuple(gives)))
        return True

    def _copy(self, model: Model, places: dict[int, int]) -> None:
        """The piece's tensors and operators into the graph, and its further subgraphs into the model."""
        further = {
            g.index: self.builder.subgraph(f"{g.name}_{len(self.entry.pieces)}_{g.index}")
            for g in model.subgraphs
            if g is not model.main
        }
        for index, graph in further.items():
            given = model.subgraphs[index]
            mapped = {t: graph.input(given.tensors[t].name, given.tensors[t].shape, given.tensors[t].type)
                      for t in given.inputs}  # fmt: skip
            self._copy_into(graph, given.operators, given.tensors, mapped, further)
            graph.output(*(mapped[t] for t in given.outputs))
        self._copy_into(self.entry.graph, model.main.operators, model.main.tensors, places, further)

    def _copy_into(
        self, graph: SubgraphBuilder, operators: Sequence[Operator], tensors: Sequence[Tensor], places: dict[int, int],
        further: dict[int, SubgraphBuilder],
    ) -> None:  # fmt: skip
        halves = self.style == "halves"
        for operator in operators:
            weights = HYBRID.get(operator.name)
            for place, t in enumerate(operator.inputs):
                if t >= 0 and t not in places:
                    tensor = tensors[t]
                    half = halves and tensor.type is TensorType.FLOAT32 and tensor.shape and self.rng.random() < 0.8
                    weight = weights is not None and place == weights[0]
                    places[t] = _half(graph, tensor) if half and (weight or place) else _copied(graph, tensor)
            for t in (*operator.outputs, *operator.intermediates):
                if t not in places:
                    places[t] = _copied(graph, tensors[t])
            options = {k: further[v].index if k.endswith("subgraph_index") else v for k, v in operator.options.items()}
            inputs = [None if t < 0 else places[t] for t in operator.inputs]
            graph.node(operator.name, inputs, [places[t] for t in operator.outputs], options, version=operator.version,
                       intermediates=[places[t] for t in operator.intermediates])  # fmt: skip

    # --------------------------------------------------------------------------------------------- what it takes

    def _found(self, wanted: Tensor, array: np.ndarray, before: int) -> int | None:
        """A known value in the place of an input's, changed so that it fits; None if there is none."""
        if self.rng.random() < 0.1:
            return None
        known = self.entry.known
        numbers = [i for i in range(before) if known[i].value.size == array.size and known[i].fixed]
        alike = [i for i in numbers if self.entry.known[i].value.shape == array.shape]
        self.rng.shuffle(alike)
        others = [i for i in numbers if i not in alike and self.rng.random() < 0.3]
        for i in alike[:4] + others[:1]:
            found = self._fitted(i, wanted, array)
            if found is not None:
                return found
        return None

    def _fitted(self, i: int, wanted: Tensor, array: np.ndarray) -> int | None:
        known = self.entry.known[i]
        if known.value.shape != array.shape and wanted.shape and known.value.shape:
            content = reshaped(known.value.shape, tuple(array.shape), known.type, known.quantization)
            i = self._adapted("reshape", content, i)
            known = self.entry.known[i] if i >= 0 else known
        if i < 0 or known.value.shape != array.shape:
            return None
        if known.type is TensorType.FLOAT32 and wanted.type is known.type:
            if fits(known.value, array):
                return i
            if coarse(array) or not np.isfinite(known.value).all():
                return None
            tamed = converted("LOGISTIC" if array.min(initial=1) > 0 else "TANH", array.shape, (known.type, None),
                              (known.type, None))  # fmt: skip
            i = self._adapted("tame", tamed, i)
            return i if i >= 0 and fits(self.entry.known[i].value, array) else None
        real = known.quantization is not None and known.type in _STORED
        stored = wanted.quantization is not None and wanted.type in _STORED
        if stored and array.min() > _zero(wanted.quantization) and known.value.min() <= _zero(known.quantization) + 1:
            return None
        if wanted.type is known.type and not real and not stored:
            return i if fits(known.value, array) else None
        if wanted.type is known.type and real and stored and same(known.quantization, wanted.quantization):
            return i
        if real and (stored or wanted.type is TensorType.FLOAT32):
            content = converted("QUANTIZE" if stored else "DEQUANTIZE", array.shape, (known.type, known.quantization),
                                (wanted.type, wanted.quantization))  # fmt: skip
            i = self._adapted("convert", content, i)
            return i if i >= 0 and (stored or fits(self.entry.known[i].value, array)) else None
        if known.type is TensorType.FLOAT32 and stored and np.isfinite(known.value).all():
            content = converted("QUANTIZE", array.shape, (known.type, None), (wanted.type, wanted.quantization))
            i = self._adapted("quantize", content, i)
            return i if i >= 0 else None
        return None

    def _adapted(self, name: str, content: bytes, i: int) -> int:
        placed = self._place(name, content, read_model(content), [i])
        return len(self.entry.known) - 1 if placed else -1


def coarse(array: np.ndarray) -> bool:
    """Whether every precision holds all of the array's numbers exactly, so that nothing depends on how they are
    rounded."""
    if array.dtype.kind != "f":
        return True
    return bool(np.isfinite(array).all() and (abs(array) <= 512).all() and (2 * array == np.rint(2 * array)).all())


def fits(value: np.ndarray, array: np.ndarray) -> bool:
    """Whether a value is of the kind that an operator was drawn for."""
    if array.dtype.kind == "b" or not array.size:
        return True
    if array.dtype.kind == "c":
        return bool(np.isfinite(value).all() and abs(value).max() < 100)
    if array.dtype.kind in "iu":
        return bool(value.min() >= array.min() and value.max() <= array.max())
    if not np.isfinite(value).all() or (coarse(array) and not coarse(value)):
        return False
    if array.min() > 0 and value.min() < 0.05:
        return False
    return float(abs(value).max()) <= max(8.0, 3 * float(abs(array).max()))


def same(a: Quantization | None, b: Quantization | None) -> bool:
    if a is None or b is None:
        return a is b
    return np.array_equal(a.scales, b.scales) and np.array_equal(a.zero_points, b.zero_points)


def _zero(quantization: Quantization | None) -> int:
    return 0 if quantization is None or not quantization.zero_points.size else int(quantization.zero_points[0])


def resolver(model: Model) -> OpResolverType:
    """The official runtime whose results the GPU's are held against: with XNNPACK for quantized models alone, whose
    kernels for floats differ from the runtime's own where there are NaNs and infinities."""
    stored = any(t.quantization is not None and t.type in _STORED and t.data is None
                 for g in model.subgraphs for t in g.tensors)  # fmt: skip
    return OpResolverType.BUILTIN if stored else PLAIN


def _copied(graph: SubgraphBuilder, tensor: Tensor) -> int:
    if tensor.data is None:
        return graph.tensor(tensor.shape, tensor.type, shape_signature=tensor.shape_signature or tensor.shape,
                            quantization=tensor.quantization, is_variable=tensor.is_variable)  # fmt: skip
    return graph.constant(tensor.data, type=tensor.type, quantization=tensor.quantization)


def _half(graph: SubgraphBuilder, tensor: Tensor) -> int:
    """A constant as float16, made float32 by DEQUANTIZE."""
    if tensor.data is None:
        return _copied(graph, tensor)
    half = graph.constant(np.asarray(tensor.data).astype(np.float16))
    return graph.op("DEQUANTIZE", [half], tensor.shape, type=TensorType.FLOAT32)


def _with_real_weights(model: Model) -> bytes:
    """Constants of 8 bits that are multiplied with floats, as floats."""
    graphs = []
    for graph in model.subgraphs:
        tensors = list(graph.tensors)
        for operator in graph.operators:
            first = next((t for t in operator.inputs if t >= 0 and tensors[t].data is None), -1)
            if first < 0 or operator.name in ("DEQUANTIZE", "QUANTIZE"):
                continue
            floats = tensors[operator.outputs[0]].type is TensorType.FLOAT32 if operator.outputs else False
            for t in operator.inputs if floats else ():
                tensor = tensors[t]
                q = tensor.quantization
                if t >= 0 and tensor.type is TensorType.INT8 and tensor.data is not None and q is not None:
                    along = [-1 if i == q.dimension and q.scales.size > 1 else 1 for i in range(tensor.data.ndim)]
                    real = (tensor.data.astype(np.float32) * q.scales.reshape(along)).astype(np.float32)
                    tensors[t] = dataclasses.replace(tensor, type=TensorType.FLOAT32, data=real, quantization=None)
        graphs.append(dataclasses.replace(graph, tensors=tuple(tensors)))
    return write_model(dataclasses.replace(model, subgraphs=tuple(graphs)))


def _runs(model: CorpusModel) -> bool:
    from small_models.judge import wanted

    try:
        wanted(model, model.content)
        wanted(model, model.reference)
    except (RuntimeError, ValueError):
        return False
    return True
