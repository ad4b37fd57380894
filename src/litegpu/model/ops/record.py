"""What the package knows about one operator: its entry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from litegpu.model.ops.batch_node import BatchNode, Place
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.ops.spans import SpanRule, among
from litegpu.model.types import Operator, Tensor, TensorType

Types = frozenset[TensorType]

FLOAT: Types = frozenset({TensorType.FLOAT32})
BOOL: Types = frozenset({TensorType.BOOL})
INT32: Types = frozenset({TensorType.INT32})
#: Integers of up to 32 bits that stand for nothing else.
WHOLE: Types = frozenset({TensorType.INT32, TensorType.INT16, TensorType.INT8, TensorType.UINT8})
COMPLEX: Types = frozenset({TensorType.COMPLEX64})
INT16: Types = frozenset({TensorType.INT16})
SIGNED: Types = frozenset({TensorType.INT16, TensorType.INT8})
UINT32: Types = frozenset({TensorType.UINT32})
UNSIGNED: Types = frozenset({TensorType.UINT32, TensorType.UINT16})
INTEGERS: Types = frozenset({TensorType.INT32, TensorType.INT64})
NUMBER = FLOAT | INT32
ANY = NUMBER | BOOL
#: A bias: whole numbers beside quantized data and weights (INT64 constants count as INT32).
BIAS = NUMBER
#: An operand that must be constant (an axis, a shape); the lowering function reads it.
STATIC: Types = frozenset()

#: More inputs than any model has.
MANY = 1 << 16
#: The highest rank of a tensor on the GPU.
MAX_RANK = 6

#: How halves of a quantum are rounded.
Halves = Literal["even", "up", "away"]

ShapeRule = Callable[[ShapeNode], Sequence[Shape]]
Estimate = Callable[[ShapeNode], Shape]
BatchRule = Callable[[BatchNode], Place | None]
Hazard = Callable[[Operator, Sequence[Tensor]], None]
ShapeHazard = Callable[[Operator, Sequence[Tensor], Sequence[Shape]], str | None]
Abort = Callable[[Operator, Sequence[Tensor]], str | None]
Work = Callable[[Mapping[str, Any], Sequence[Shape], int], int | None]


@dataclass(frozen=True)
class Gpu:
    """How the GPU runs an operator (gpu/lower has the function): what it takes, and how it treats quantized tensors."""

    #: The highest version whose meaning the lowering function knows.
    max_version: int
    #: The types that each input may have, the last for all further ones.
    inputs: tuple[Types, ...] = (FLOAT,)
    #: The types of the results, None for those of the first input.
    outputs: Types | None = None
    #: How many inputs there are: exactly, or the fewest and the most.
    counts: tuple[int, int] | int = 1
    #: Lowest and highest of the data: the first input that is not STATIC.
    ranks: tuple[int, int] = (0, MAX_RANK)
    #: For docs/ops.md.
    notes: str = ""
    #: Whether FLOAT32 also stands for the numbers that quantized tensors stand for.
    quantized: bool = True
    #: "linear": results scale with the operands, so that it works on quanta as on real numbers. "reads": it reads
    #: quanta at no cost, as it multiplies them with weights, or makes them real numbers as it reads them.
    quanta: Literal["", "reads", "linear"] = ""
    #: "moved": the CPU moves or chooses elements without looking at what they stand for. "alike": it takes input and
    #: output to be quantized alike.
    grids: Literal["", "moved", "alike"] = ""
    #: Of these types the CPU takes into account that what is joined is quantized otherwise than the result.
    rescales: Types = frozenset()
    #: What it does with axes that the lowering function has to be told of tensors of more than four
    #: (gpu/lower/ranks.py): "broadcast" one against the other, all of them or, "matrices", but for the last two; reduce
    #: the "axes" in input 1; choose "rows" of the first. The others go by the last axis or by the tensors' own shapes.
    joins: Literal["", "broadcast", "matrices", "axes", "rows"] = ""
    #: Of what moves whatever there is: whether it computes new numbers all the same, so that FLOAT16, which is taken
    #: wherever FLOAT32 is, has to be rounded.
    widens: bool = False
    #: Integers of less than 32 bits, or without a sign, that stand for nothing else and are taken for INT32, as by all
    #: that move whatever there is; of what it gives the lowest bits are kept.
    small: Types = frozenset()
    #: Between which numbers the integers of the results lie (spans.py). With it, or if the operator moves whatever
    #: there is, INT64 is taken for INT32 where 32 bits are enough for sure.
    span: SpanRule | None = None
    #: Whether real numbers give what the CPU gives for bytes: elements as they are, or rounded once. (Of the others
    #: gpu/lower knows it in whole numbers, or it stays on the CPU in these.)
    exact: bool = False
    #: How the CPU's kernel rounds halves of a quantum: XNNPACK's to even numbers, but upwards after additions; the
    #: reference kernel of pools away from a stored zero.
    halves: Halves = "even"
    #: No real number that it computes is larger in magnitude.
    largest: float = math.inf

    @property
    def count(self) -> tuple[int, int]:
        """The fewest and the most inputs."""
        return (self.counts, self.counts) if isinstance(self.counts, int) else self.counts

    @property
    def results(self) -> Types:
        """The types of the results."""
        return self.inputs[0] if self.outputs is None else self.outputs

    @property
    def span_rule(self) -> SpanRule | None:
        """Between which numbers the integers of the results lie; None if INT64 is not taken."""
        return self.span or (among if any(types >= ANY for types in self.inputs) else None)

    @property
    def data(self) -> int:
        """Which input is the first that need not be constant; 0 if all have to be."""
        return next((i for i, types in enumerate(self.inputs) if types is not STATIC), 0)

    def types(self, i: int) -> Types:
        """The types that input i may have."""
        return self.inputs[min(i, len(self.inputs) - 1)]


@dataclass(frozen=True)
class Repeating:
    """How a result that does not depend on the batch is computed for each of it all the same."""

    #: The input that holds values rather than axes, sizes, tables or weights; None if all do.
    data: int | None = 0
    #: Where that input would have to have the batch for the output to have it at a place; None if it need not. Without
    #: a rule, along the same axis counted from the last.
    before: Callable[[BatchNode, int, Place], Place | None] | None = None
    #: Changes a constant operand so that the node itself repeats; False if it cannot.
    sizes: Callable[[BatchNode, Place], bool] | None = None


@dataclass(frozen=True)
class Op:
    """One operator: a builtin one by its name in the schema, or a custom one by its custom code.

    What is left out holds for most operators. An operator that the GPU runs has a rule for shapes and one for batches,
    or says in `without` why it can have none.
    """

    name: str
    #: Operands, results and ranges of options (model/ops/operands.py); None if the official runtime has no kernel.
    operands: str | None = None
    #: The same for fewer than `few[0]` inputs.
    few: tuple[int, str] | None = None
    custom: bool = False
    without: str = ""

    # -------------------------------------------------------------------------------------------- shapes and sizes
    shape: ShapeRule | None = None
    #: The shape of the first result where only the official runtime knows it for sure, to hold it against the limits.
    estimate: Estimate | None = None
    #: The shapes of the results where the data decide how many rows the first has: the most of that one.
    bound: ShapeRule | None = None
    #: Whether each row of the result is made of a row of what it reads, which may be all its inputs, or is the second.
    by_rows: Literal["", "all", "second"] = ""
    #: Elementary operations, by options, shapes of the inputs and elements of the results; None, or no function, for
    #: the elements that are touched.
    work: Work | None = None
    #: Whether `work` counts multiplications that each go with an addition.
    multiplies: bool = False
    #: "elements": it moves, chooses or makes elements, without arithmetic; "shape": it only gives the same elements
    #: another shape, which the runtimes do in place.
    moves: Literal["", "elements", "shape"] = ""
    #: Whether options ask for much more work than anybody means; by the same.
    outsized: Callable[[Mapping[str, Any], Sequence[Shape], int], bool] | None = None
    #: Whether the result has no dimensions.
    is_scalar: Callable[[Operator, Sequence[Tensor]], bool] | None = None
    #: The first operand that is a size.
    sizes_from: int = 1

    # --------------------------------------------------------------------------------------------------- batches
    batch: BatchRule | None = None
    repeating: Repeating = field(default=Repeating())

    # ----------------------------------------------------------------------------------------- what crashes kernels
    hazard: Hazard | None = None
    shape_hazard: ShapeHazard | None = None
    #: What an official kernel aborts on, None if it does not; `aborts_in` names the kernels that do.
    aborts: Abort | None = None
    aborts_in: Literal["", "xnnpack", "reference"] = ""

    # ------------------------------------------------------------------------------------------------ what it means
    #: Whether it follows from its inputs' shapes, or is computed early if it follows from constants.
    folds: Literal["", "shapes", "values"] = ""
    #: Whether what it computes in decides the model's kind.
    has_weights: bool = False
    #: Whether it stands between operators that compute in different ways.
    is_seam: bool = False
    #: Whether its result is its input in wider numbers.
    widens: bool = False
    #: Whether its result holds strings if an input does.
    passes_strings: bool = False
    #: Whether what it gives next follows from how often it ran before.
    goes_on: bool = False
    #: How it hands its operands to subgraphs: all, all but the first, or as the state of a loop.
    calls: Literal["", "all", "branch", "loop"] = ""

    # ------------------------------------------------------------------------------------------------- in a file
    #: The schema's table of its options, "" if that is called after it.
    table: str = ""
    #: The names of the int32 that a custom operator's options are the image of.
    struct: tuple[str, ...] = ()
    #: Whether only the official runtime's default delegate has the custom operator.
    of_xnnpack: bool = False
    #: What type a result has, unless said otherwise: this one, or the one in an option, or that of an input.
    makes: TensorType | None = None
    makes_option: str = ""
    makes_like: int = 0
    #: Options whose default in the schema is none that the runtime takes.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    #: The version that the official converter gives it, by the shapes of its inputs (None if absent) and its options.
    version: Callable[[Sequence[Shape | None], Mapping[str, Any]], int] | None = None

    # ---------------------------------------------------------------------------------------------------- the GPU
    gpu: Gpu | None = None
    #: Why it stays on the CPU, if it does: for docs/ops.md.
    stays: str = ""
    #: How it becomes part of what the GPU runs where no kernel stands for it: for docs/ops.md.
    linked: str = ""

    def line(self, inputs: int) -> str | None:
        """The operands of the form that has so many inputs."""
        return self.few[1] if self.few is not None and inputs < self.few[0] else self.operands
