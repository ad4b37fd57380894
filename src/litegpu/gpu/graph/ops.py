"""What a node may compute: op(inputs), and then its epilogue expression. Shapes are B,H,W,C unless said otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from litegpu.gpu.graph.expression import RESULT, DType, Expr, Shape
from litegpu.gpu.graph.movement import Reshape, Step


@dataclass(frozen=True)
class Elementwise:
    """The epilogue over `operands` only: Arg(i) is operand i (there is no op result). NumPy broadcasting."""


@dataclass(frozen=True)
class Conv2D:
    """inputs: x [B,H,W,G*I], weights [O,KH,KW,I] -> [B,OH,OW,O]. `padding` is what lies before (top, left); what lies
    after follows from the output's shape. Output channel o reads input group o // (O/groups).
    Weights may be a runtime value (groups == 1).
    Each input pixel counts `upsample` times (down, across) before anything else, as after a nearest-neighbour resize;
    `border` says what lies outside then: "zero", or its mirror image, "reflect" or "symmetric" as in Mirror (with
    groups == 1 and a window of more than one tap).
    With a `zero_point` (and groups == 1, constant weights) x is of a narrow type, and stands for x - zero_point."""

    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    groups: int = 1
    upsample: tuple[int, int] = (1, 1)
    border: str = "zero"
    zero_point: int | None = None


@dataclass(frozen=True)
class DepthwiseConv2D:
    """inputs: x [B,H,W,C], weights [1,KH,KW,C*multiplier] -> [B,OH,OW,C*multiplier]; output channel c*multiplier + j
    reads input channel c. Weights may be a runtime value."""

    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    multiplier: int = 1


@dataclass(frozen=True)
class SeparableConv2D:
    """inputs: x, depthwise weights [1,KH,KW,C], weights [O,1,1,C], then the operands of `inner`, constant and of one
    pixel: the depthwise convolution (multiplier 1), `inner` of its result (Arg(0), and Arg(i) for inputs[2 + i]), then
    the 1x1 convolution with the weights. Made by a pass, for devices with a kernel that does both."""

    depthwise: DepthwiseConv2D
    inner: Expr = RESULT


@dataclass(frozen=True)
class PointwiseConv2D:
    """inputs: x [B,H,W,I], weights [O,1,1,I], then the operands of `prologue`, of one pixel, constant or not: the 1x1
    convolution of `prologue` of x (Arg(0), and Arg(i) for inputs[1 + i]). With a `norm` (no prologue) it is that of x
    normalised, of rows of channels that `fetched` moves first, or with a stride of S and weights [O,S,S,I] of windows
    that are normalised each as a whole. With `moved` (neither of these) its rows, of channels, are put somewhere else,
    each to a place of its own. With `parts` (none of these, and no other arguments) it is that of `prologue` of the sum
    of so many pixels, of x [B,1,parts,I]. With `behind` (none of these) its results are normalised, together with the
    other inputs: a bias [1,1,1,O], and perhaps a value as large as the results. Made by passes, for devices with a
    kernel that does both."""

    prologue: Expr = RESULT
    stride: tuple[int, int] = (1, 1)
    norm: LayerNorm | None = None
    moved: tuple[Step, ...] = ()
    fetched: tuple[Step, ...] = ()
    parts: int = 0
    behind: LayerNorm | None = None


@dataclass(frozen=True)
class MomentsConv2D:
    """inputs: x [B,H,W,I], weights [O,1,1,I], then with a `norm` the RowMoments of what it normalises: of x or, if
    `operand` is not 0, of that operand (the number of an Arg), which is as large as the result: the 1x1 convolution of
    x, or of x normalised, with an epilogue that finds the operand normalised. Its kernel stores the RowMoments of
    its result, too, where a node asks for them. Made by a pass, for devices with such a kernel."""

    norm: LayerNorm | None = None
    operand: int = 0


@dataclass(frozen=True)
class MeanConv2D:
    """inputs: x [1,H,W,I], weights [O,1,1,I], then the other arguments of `inner`, all constant, these of one pixel ->
    [1,1,parts,O]: numbers whose sums over the parts are the mean over H and W of `inner` of the 1x1 convolution
    (Arg(0), and Arg(i) for inputs[1 + i]); or, if it is `summed`, the sum. Made by a pass, for devices with a kernel
    that does both."""

    parts: int
    inner: Expr = RESULT
    summed: bool = False


@dataclass(frozen=True)
class PairConv2D:
    """inputs: x [B,H,W,I], weights [E,1,1,I] and bias [1,1,1,E] of a 1x1 convolution, weights [O,1,1,E] of another: the
    first one, of x or (with a `norm`) of x normalised, its bias and `inner` of that (Arg(0)), and the second one. Made
    by a pass, for devices with a kernel that does both."""

    inner: Expr = RESULT
    norm: LayerNorm | None = None


@dataclass(frozen=True)
class PooledConv2D:
    """inputs: x, weights: of each two by two results of `conv` (a Conv2D of one group, whose results are twice as many
    rows and columns) the largest one, which passes over NaN. Made by a pass, for devices with a kernel that does
    both."""

    conv: Conv2D


@dataclass(frozen=True)
class InvertedConv2D:
    """inputs: x [B,H,W,I], weights [E,1,1,I] and bias [1,1,1,E] of a 1x1 convolution, depthwise weights [1,KH,KW,E];
    and then perhaps, if the node projects, the depthwise bias [1,1,1,E] and weights [O,1,1,E] of another 1x1.
    The first convolution, its bias and `expanded` of that (Arg(0)), the depthwise convolution (multiplier 1); its bias,
    `middle` of that (Arg(0)) and the second one, if it projects. Made by a pass, for devices with a kernel that does
    all of it."""

    depthwise: DepthwiseConv2D
    expanded: Expr = RESULT
    middle: Expr = RESULT


@dataclass(frozen=True)
class Squeeze:
    """inputs: x [B,H,W,C], weights [S,1,1,C], a constant -> [B,1,parts,S]: numbers whose sums over the parts are the
    1x1 convolution of the mean of x over H and W. Made by a pass, for devices with a kernel that finds each part where
    it computes x."""

    parts: int


@dataclass(frozen=True)
class Excite:
    """inputs: x [B,H,W,C], what a Squeeze gave [B,1,parts,S], a bias [1,1,1,S], weights [C,1,1,S] and a bias
    [1,1,1,C], constants: x times `gate` (Arg(0)) of the 1x1 convolution, with the second bias, of `inner` (Arg(0)) of
    the sums over the parts with the first bias. Made by a pass, for devices with a kernel that does all of it."""

    inner: Expr = RESULT
    gate: Expr = RESULT


@dataclass(frozen=True)
class TransposeConv2D:
    """inputs: x [B,H,W,I], weights [O,KH,KW,I] -> [B,OH,OW,O]; x[iy,ix] adds to out[iy*stride - padding + ky, ...]."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class IntegerConv2D:
    """inputs: x [B,H,W,G*I] of INT8 or UINT8, weights [O,KH,KW,I], a constant of INT8 -> [B,OH,OW,O]: the INT32 sums,
    which wrap, of (x - zero_point) * (weights - weights_zero_point). What lies outside of x counts as zero_point, so it
    adds nothing. The rest is as in Conv2D. (weights_zero_point is 0 but for files of UINT8.)"""

    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    groups: int = 1
    zero_point: int = 0
    weights_zero_point: int = 0


@dataclass(frozen=True)
class IntegerDepthwiseConv2D:
    """inputs: x [B,H,W,C] of INT8 or UINT8, weights [1,KH,KW,C*multiplier], a constant of INT32 within -255 to 255 ->
    [B,OH,OW,C*multiplier]: the INT32 sums of (x - zero_point) * weights. The rest is as in DepthwiseConv2D."""

    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    multiplier: int = 1
    zero_point: int = 0


@dataclass(frozen=True)
class FirstWindow:
    """Of a convolution that is no 1x1: its rows and columns of results, and how its window moves (see Conv2D)."""

    size: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]


@dataclass(frozen=True)
class IntegerInvertedConv2D:
    """inputs: x [B,H,W,I] of INT8 or UINT8, weights [E,1,1,I], bias and scale [1,1,1,E] of a 1x1 convolution, or of one
    with another window, `first`, outside of which x is zero_point; depthwise weights [1,KH,KW,E]; and then perhaps, if
    the node projects, a bias and scale [1,1,1,E] and weights [O,1,1,E] of another 1x1. All constants are FLOAT32, and
    but for the scales whole numbers. What is expanded is the whole number nearest to (sum + bias) * scale within
    bounds[0], the sum being of (x - zero_point) * weights; the depthwise sums of that are the result, or with bounds[1]
    treated likewise, and the result INT32 sums of those with the last weights. None of the others reaches 2**24."""

    depthwise: DepthwiseConv2D
    zero_point: int
    bounds: tuple[tuple[float, float], ...]
    first: FirstWindow | None = None


@dataclass(frozen=True)
class IntegerSeparableConv2D:
    """What of an IntegerInvertedConv2D comes after the expansion. inputs: x [B,H,W,C] of INT8 or UINT8, depthwise
    weights [1,KH,KW,C], bias and scale [1,1,1,C], weights [O,1,1,C], constants as there."""

    depthwise: DepthwiseConv2D
    zero_point: int
    bounds: tuple[float, float]


@dataclass(frozen=True)
class IntegerSqueeze:
    """inputs: x [B,H,W,C] of INT8 or UINT8, weights [S,1,1,C], a constant of INT8 -> [B,1,1,S]: the 1x1 convolution of
    bytes, as IntegerConv2D has it, of those of type `kind` that `mean` gives of the INT32 sum of x over H and W. Made
    by a pass, for devices with a kernel that does both."""

    mean: Expr
    kind: DType
    zero_point: int = 0


@dataclass(frozen=True)
class SqueezedSums:
    """Of an IntegerExcite that finds s as well: bytes of type `kind` that `inner` gives (Arg(i) is inputs[2 + i], up to
    `operands` of these) of what `squeeze` is of the node's first operand, Arg(0). Its sums over H and W are added up by
    who computes it, in `copies` [B,copies,C] from number `begin` on of what is zero before."""

    squeeze: IntegerSqueeze
    inner: Expr
    kind: DType
    operands: int
    copies: int
    begin: int


@dataclass(frozen=True)
class IntegerExcite:
    """inputs: s [B,1,1,S] of INT8 or UINT8, weights [C,1,1,S], a constant of INT8, then the operands of `gate`,
    constants of one pixel and tables -> [B,H,W,C], INT32, the same at all pixels: the bytes of type `kind` that `gate`
    gives (Arg(i) is inputs[1 + i]) of the 1x1 convolution of s, Arg(0), as IntegerConv2D has it. With `squeezed`, s
    [B,1,1,S] is found from sums: inputs are INT32 [1,1,1,N] of zeros, to which sums are added while the program runs,
    weights [C,1,1,S], weights [S,1,1,C], then the operands of `inner` and of `gate`. Made by a pass, for devices with a
    kernel that has an epilogue for each pixel."""

    gate: Expr
    kind: DType
    zero_point: int = 0
    squeezed: SqueezedSums | None = None

    @property
    def gate_operands(self) -> int:
        """Where the operands of `gate` begin among the inputs."""
        return 2 if self.squeezed is None else 3 + self.squeezed.operands


@dataclass(frozen=True)
class IntegerTransposeConv2D:
    """inputs: x [B,H,W,I] of INT8 or UINT8, weights [O,KH,KW,I], a constant of INT8 -> [B,OH,OW,O]: the INT32 sums of
    (x - zero_point) * (weights - weights_zero_point), placed as in TransposeConv2D."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    zero_point: int = 0
    weights_zero_point: int = 0


@dataclass(frozen=True)
class IntegerMatMul:
    """inputs: a [B,H,M,K], b [B',H',K,N], both of INT8 or UINT8 -> [.., .., M, N]: the INT32 sums of
    (a - zero_point) * (b - other_zero_point), as in MatMul."""

    transpose_a: bool = False
    transpose_b: bool = False
    zero_point: int = 0
    other_zero_point: int = 0


@dataclass(frozen=True)
class IntegerSoftmax:
    """inputs: x of INT8 or UINT8, a table t [1,1,1,256] of float32, a constant -> INT32, in units of `scale`: with d as
    x taken from the largest of the channels, t[d] / (the sum of t[d]) to the nearest, halves up. In float32 the sum is
    taken in order, then its product with `scale` inverted, and multiplied."""

    scale: float


@dataclass(frozen=True)
class IntegerAttention:
    """inputs: q [B,H,M,D], k [B,H,N,D], v [B,H,N,E] of INT8 or UINT8, a table as of an IntegerSoftmax, then operands
    that broadcast to [B',H,M,N], B' a divisor of B, as they come again and again -> [B,H,M,E]: the IntegerSoftmax over
    N of `logits`, kept within 0 and 255, times v less its zero point, in INT32. `logits` are bytes: Arg(0) is the INT32
    sum of (q - zero_points[0]) * (k - zero_points[1]), Arg(i) is inputs[3 + i]. Made by a pass, for devices with a
    kernel that does all of it."""

    logits: Expr
    scale: float
    zero_points: tuple[int, int, int]


@dataclass(frozen=True)
class Lookup:
    """inputs: x of INT8 or UINT8, a table [1,1,1,256], a constant -> the table's element for each number of x, that for
    `lowest` first."""

    lowest: int


@dataclass(frozen=True)
class MatMul:
    """inputs: a [B,H,M,K], b [B',H',K,N] -> [.., .., M, N]; leading axes broadcast; a transposed flag means that the
    stored value has its last two axes exchanged. Both may be runtime values."""

    transpose_a: bool = False
    transpose_b: bool = False


@dataclass(frozen=True)
class Attention:
    """inputs: q [B,H,M,D], k [B',H',N,D], v [B',H',N,E] and perhaps a mask that broadcasts to [B,H,M,N] -> [B,H,M,E]:
    the softmax over N of scale * q k^T + beta * mask, times v. B' is B or 1. H' divides H, for each of k and v by
    itself: so many heads of queries side by side share one. A mask with more than one row of the batch may have fewer
    than B, a divisor of it: they come again and again. Made by a pass."""

    scale: float = 1.0
    beta: float = 1.0


@dataclass(frozen=True)
class Pool2D:
    """kind "average" (divides by the number of cells inside the input), "squares" (the average of their squares) or
    "max" (starts at the lowest float). Of a narrow type the result is INT32, averages rounded with halves away from
    zero. `inputs` are x and the other arguments of `prologue`, constants of one pixel; it is evaluated per element of
    x, Arg(0), before its average is taken. Where cells `outside` of the input are said to hold a number they count like
    the others; of averages it is zero."""

    kind: str
    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int] = (0, 0)
    prologue: Expr = RESULT
    outside: float | None = None


@dataclass(frozen=True)
class Resize2D:
    """kind "bilinear" or "nearest"; TFLite's coordinate rules (align_corners, half_pixel_centers).

    With `bits`, bilinear of INT32 with weights of so many bits (interpolation.py), numbers of up to 16 bits; halves are
    rounded up with 11 of them, as XNNPACK does, and away from zero with 10, as the runtime's own kernel does."""

    kind: str
    align_corners: bool = False
    half_pixel_centers: bool = False
    bits: int = 0


@dataclass(frozen=True)
class Reduce:
    """kind "sum", "mean", "max", "min" or "prod" over `axes` (of B,H,W,C), keeping size-1 axes. `inputs` are the
    arguments of `prologue`, broadcast against each other; it is evaluated per element before reducing."""

    kind: str
    axes: tuple[int, ...]
    prologue: Expr = RESULT


@dataclass(frozen=True)
class RowStage:
    """A reduction of a RowChain over the channels, of `kind` as in Reduce: of `prologue` of each element. `epilogue` is
    the function of that, and of numbers of the row, that the chain goes on with."""

    kind: str
    prologue: Expr
    epilogue: Expr


@dataclass(frozen=True)
class RowChain:
    """inputs: what broadcasts to [B,H,W,C], and tables -> [B,H,W,C]: `result` of each element, where Arg(i) is
    inputs[i], and Arg(len(inputs) + j) what stage j gave for the pixel; in its own epilogue, the reduction itself.
    Made by a pass."""

    stages: tuple[RowStage, ...]
    result: Expr


@dataclass(frozen=True)
class ArgReduce:
    """kind "max" or "min" along `axis`, first extreme wins -> INT32, the axis kept with size 1. A NaN is never chosen
    over a number."""

    kind: str
    axis: int


@dataclass(frozen=True)
class Softmax:
    """exp(beta * (x - max)) / sum over C."""

    beta: float = 1.0


@dataclass(frozen=True)
class LayerNorm:
    """(x - mean) / sqrt(variance + epsilon), with the mean and the variance over C; x / sqrt(mean of squares + epsilon)
    if it is not `centred`. With `moved` the rows, of channels, are put somewhere else, each to a place of its own. Made
    by passes."""

    epsilon: float
    centred: bool = True
    moved: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Moments:
    """inputs: x [B,H,W,C] -> [B,parts,2,C]: of each part of the pixels of an image the mean, and the sum of the squares
    of what is left. A part is H*W / parts neighbours in row-major order, rounded up; the last one may be shorter.
    Made by a pass."""

    parts: int


@dataclass(frozen=True)
class RowMoments:
    """inputs: x [B,H,W,C] -> [B,H,W,2*parts]: of each `columns` channels of a pixel (the last ones may be fewer) the
    sum, and that of their squares. Made by a pass, of what a MomentsConv2D gives, whose kernel stores both."""

    columns: int


@dataclass(frozen=True)
class JoinedMoments:
    """inputs: the Moments [B,parts,2,C] of `pixels` of an image -> [B,1,2,C], its Moments in one part, where each
    channel has the mean of `groups` equal parts of the channels that it is one of, and the sum of the squares of what
    is left there, divided by the channels that it has. Made by a pass, for devices with a kernel that does it."""

    pixels: int
    groups: int


@dataclass(frozen=True)
class InstanceNorm:
    """inputs: x [B,H,W,C] and the Moments of it, or these joined: (x - mean) / sqrt(variance + epsilon), with the mean
    and the variance over H and W that they tell. Made by a pass."""

    epsilon: float


@dataclass(frozen=True)
class GroupNorm:
    """x [B,H,W,C]: (x - mean) / sqrt(variance + epsilon), with the mean and the variance over H, W and each of `groups`
    equal parts of the channels. Made by a pass, for devices with a kernel that does it."""

    groups: int
    epsilon: float


@dataclass(frozen=True)
class Copy:
    """Movement of elements: `steps` applied in order to the input (steps may pass through any rank); the first step
    sees the input's B,H,W,C shape and the last one gives the output's."""

    steps: tuple[Step, ...]

    @property
    def keeps_order(self) -> bool:
        """Whether all elements stay in their order, in another shape."""
        return all(isinstance(step, Reshape) for step in self.steps)


@dataclass(frozen=True)
class Concat:
    """inputs joined along `axis` (of B,H,W,C)."""

    axis: int


@dataclass(frozen=True)
class Gather:
    """inputs: x, indices (INT32, runtime). Views x as [batch, outer, axis, inner] and indices as [batch, count];
    output is [batch, outer, count, inner] reinterpreted row-major as the output's shape. An index out of range
    gives 0."""

    batch: int
    outer: int
    size: int
    inner: int
    count: int


class Definition(Protocol):
    """What a Custom node consists of, as far as it is no matter of kernels."""

    @property
    def has_reference(self) -> bool:
        """Whether evaluate() can be called."""

    def evaluate(self, inputs: Sequence[np.ndarray], shape: Shape) -> np.ndarray:
        """The result of B,H,W,C `shape` for inputs in B,H,W,C; of float32, int32 or bool."""


@dataclass(frozen=True)
class Custom:
    """What `definition` says: its evaluate() computes the node in NumPy, its build() (kernels.context.Builds) makes
    the kernels. For operators of users, and for those of .tflite that share nothing with any other."""

    definition: Definition


Op = (
    Elementwise | Conv2D | DepthwiseConv2D | SeparableConv2D | PointwiseConv2D | PairConv2D | PooledConv2D
    | MomentsConv2D | InvertedConv2D | MeanConv2D | Squeeze | Excite | TransposeConv2D
    | MatMul | Pool2D | Resize2D | Reduce | RowChain | ArgReduce | LayerNorm | Moments | RowMoments
    | JoinedMoments | InstanceNorm | GroupNorm | Softmax
    | Attention | Copy | Concat | Gather | Custom
    | IntegerConv2D | IntegerDepthwiseConv2D | IntegerInvertedConv2D | IntegerSeparableConv2D | IntegerTransposeConv2D
    | IntegerSqueeze | IntegerExcite | IntegerMatMul | IntegerSoftmax
    | IntegerAttention | Lookup
)  # fmt: skip
