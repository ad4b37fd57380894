"""What each operator takes and gives: how many operands, of which types and ranks, and the ranges of its options.

One line for each operator of the official runtime. A line states what its kernels rely on without asking, so that a
model which breaks it would crash the process; what they report by themselves is left to them. So an operand without a
type may be of any numeric type, and a result `.` is one whose type the kernel sets or checks itself.

    NAME  operands -> results  ; options

operand  `x` one tensor, `b~` may be absent (-1), `b^` may be left out, `b?` either, `x+` one or more, `x*` any number.
         Then, each if it matters: `[4]` or `[1-8]` its rank, `{8}` at most so many elements, `:int32|int64` its types,
         `:any` numbers and strings, `:object` anything, `:=x` the type of another operand.
result   the same; `=x` is short for a tensor of the type of operand x.
option   `stride_h:1..16777215`, an inclusive range that the value must lie in.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from litegpu.model.types import TensorType


@dataclass(frozen=True)
class Operand:
    """One place, or the last one, which may `repeat`."""

    name: str
    optional: bool = False  # may be -1
    omissible: bool = False  # may be left out at the end
    repeat: bool = False
    ranks: tuple[int, int] | None = None
    most: int | None = None  # elements
    types: frozenset[TensorType] | None = None  # None for any type at all
    like: str = ""  # the operand whose type it must have


@dataclass(frozen=True)
class Signature:
    """What an operator takes and gives."""

    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    options: Mapping[str, tuple[float, float]]

    def input(self, position: int) -> Operand | None:
        return _at(self.inputs, position)

    def output(self, position: int) -> Operand | None:
        return _at(self.outputs, position)


def count(operands: tuple[Operand, ...]) -> tuple[int, int | None]:
    """The least and the most operands, None for no limit."""
    least = sum(not o.omissible for o in operands)
    return least, None if any(o.repeat for o in operands) else len(operands)


@functools.cache
def signature(operator: str, custom: bool = False) -> Signature | None:
    """The signature of a builtin operator, or of a custom one that the official runtime has; None if unknown."""
    line = (_custom_lines() if custom else _lines()).get(operator)
    if line is None:
        return None
    operands, _, options = line.partition(";")
    given, _, results = operands.partition("->")
    return Signature(
        tuple(_operand(word) for word in given.split()),
        tuple(_operand(word) for word in results.split()),
        dict(_option(word) for word in options.split()),
    )


def known_operators() -> Iterator[str]:
    """The builtin operators that the table has."""
    return iter(_lines())


def _at(operands: tuple[Operand, ...], position: int) -> Operand | None:
    if position < len(operands):
        return operands[position]
    return operands[-1] if operands and operands[-1].repeat else None


_WORD = re.compile(r"(?P<name>[a-z_0-9]+|\.|=[a-z_0-9]+)(?P<count>[~?^+*]?)(?:\[(?P<ranks>[0-9-]+)\])?"
                   r"(?:\{(?P<most>[0-9]+)\})?(?::(?P<types>[a-z0-9=_|]+))?")  # fmt: skip


def _operand(word: str) -> Operand:
    found = _WORD.fullmatch(word)
    assert found, word
    name, many, types = found["name"], found["count"], found["types"] or ""
    if name.startswith("="):
        name, types = ".", name
    low, _, high = (found["ranks"] or "").partition("-")
    return Operand(
        name,
        optional=many in ("~", "?"),
        omissible=many in ("?", "^", "*"),
        repeat=many in ("+", "*"),
        ranks=(int(low), int(high or low)) if low else None,
        most=int(found["most"]) if found["most"] else None,
        types=None if types == "object" or types.startswith("=") or (name == "." and not types) else _types(types),
        like=types[1:] if types.startswith("=") else "",
    )


def _types(names: str) -> frozenset[TensorType]:
    found: set[TensorType] = set()
    for name in (names or "number").split("|"):
        found |= _CLASSES[name] if name in _CLASSES else {TensorType[name.upper()]}
    return frozenset(found)


def _option(word: str) -> tuple[str, tuple[float, float]]:
    name, _, span = word.partition(":")
    low, _, high = span.partition("..")
    return name, (float(low), float(high))


#: What the runtime manages as objects: an operator that takes them for numbers follows wild pointers.
OBJECTS = frozenset({TensorType.STRING, TensorType.RESOURCE, TensorType.VARIANT})
NUMBERS = frozenset(TensorType) - OBJECTS
_CLASSES = {
    "number": NUMBERS,
    "any": NUMBERS | {TensorType.STRING},
    "bytes": NUMBERS - {TensorType.INT4, TensorType.UINT4, TensorType.INT2},  # at least one for an element
}

_WEIGHTS = "float32|float16|int8|uint8|int4|int2"
#: Input weights, recurrent weights, peepholes, biases, projection and its bias.
_LAYER = "i~ i i i r~ r r r p~ p~ p~ b~ b b b m~ n~"

_RNN = f"w:{_WEIGHTS} r:=w b:float32 h:float32"
_SIZE = "1..16777215"
_STRIDES = f"stride_h:{_SIZE} stride_w:{_SIZE}"
_PLANE = f"{_STRIDES} dilation_h_factor:{_SIZE} dilation_w_factor:{_SIZE}"
_VOLUME = f"stride_d:{_SIZE} dilation_d_factor:{_SIZE} {_PLANE}"
_POOL = f"{_STRIDES} filter_height:{_SIZE} filter_width:{_SIZE}"

_TABLE = f"""
ABS                        x -> .
ADD                        a b -> .
ADD_N                      x+ -> .
ARG_MAX                    x axis{{1}}:int32|int64 -> .
ARG_MIN                    x axis{{1}}:int32|int64 -> .
ASSIGN_VARIABLE            v:resource x:any ->
ATAN2                      a b -> .
AVERAGE_POOL_2D            x -> =x  ; {_POOL}
BATCH_MATMUL               a b -> .:float32|int8|int16|int32
BATCH_TO_SPACE_ND          x block{{3}}:int32 crops{{6}}:int32 -> .
BIDIRECTIONAL_SEQUENCE_LSTM x {_LAYER} {_LAYER} fh fc bh bc a~ w~ w~ w~ w~ w~ w~ w~ w~ -> =x =x^
BIDIRECTIONAL_SEQUENCE_RNN x:float32 {_RNN} w2:=w r2:=w b2:float32 h2:float32 a~ aw~ aw2~ -> =x =x^
BITCAST                    x:bytes -> .:bytes
BITWISE_XOR                a b -> .
BROADCAST_ARGS             a{{8}}:int32|int64 b{{8}}:int32|int64 -> .
BROADCAST_TO               x:any shape{{8}}:int32|int64 -> .
BUCKETIZE                  x -> .
CALL                       x*:object -> .*:object
CALL_ONCE                  ->
CAST                       x -> .:number
CEIL                       x -> .
COMPLEX_ABS                x -> .
CONCATENATION              x+:any -> .
CONV_2D                    x w:{_WEIGHTS} b? -> .  ; {_PLANE}
CONV_3D                    x w b? -> .  ; {_VOLUME}
CONV_3D_TRANSPOSE          shape{{5}}:int32 w x b? -> .  ; {_VOLUME}
COS                        x -> .
CUMSUM                     x axis{{1}}:int32 -> =x
DENSIFY                    x -> =x
DEPTHWISE_CONV_2D          x w:{_WEIGHTS} b~ -> .  ; {_PLANE}
DEPTH_TO_SPACE             x -> .  ; block_size:{_SIZE}
DEQUANTIZE                 x -> .
DILATE                     x factors padding -> .
DIV                        a b -> .
DYNAMIC_UPDATE_SLICE       x u at{{8}}:int32|int64 -> .
ELU                        x -> .
EMBEDDING_LOOKUP           at:int32 x:float32|float16|uint8|int8|int4|int2|int16|int32 -> .
EMBEDDING_LOOKUP_SPARSE    at:int32 indices:int32 shape{{8}}:int32 weights:float32 x:float32 -> .:float32
EQUAL                      a:any b:any -> .
EXP                        x -> .
EXPAND_DIMS                x:any axis{{1}}:int32|int64 -> =x
FAKE_QUANT                 x:float32 -> .  ; num_bits:1..16
FILL                       shape{{8}}:int32|int64 x:any -> .
FLOOR                      x -> .
FLOOR_DIV                  a b -> .
FLOOR_MOD                  a b -> .
FULLY_CONNECTED            x w b? -> . .^
GATHER                     x:any at -> .
GATHER_ND                  x:any at -> .
GELU                       x -> .
GREATER                    a b -> .
GREATER_EQUAL              a b -> .
HARD_SWISH                 x -> .
HASHTABLE                  -> .:resource
HASHTABLE_FIND             t:resource keys:any default:any -> .:any
HASHTABLE_IMPORT           t:resource keys:any values:any ->
HASHTABLE_LOOKUP           at:int32 keys:int32 x:any -> =x .:uint8
HASHTABLE_SIZE             t:resource -> .
IF                         p:bool x*:object -> .*:object
IMAG                       x -> .
L2_NORMALIZATION           x -> .
L2_POOL_2D                 x -> =x  ; {_POOL}
LEAKY_RELU                 x -> .
LESS                       a b -> .
LESS_EQUAL                 a b -> .
LOCAL_RESPONSE_NORMALIZATION x -> .  ; radius:0..1048575
LOG                        x -> .
LOGICAL_AND                a b -> .
LOGICAL_NOT                x -> .
LOGICAL_OR                 a b -> .
LOGISTIC                   x -> .
LOG_SOFTMAX                x -> .
LSH_PROJECTION             hash:float32 x:any weight?:float32 -> .:int32
LSTM                       x {_LAYER} h c n1? n2? n3? n4? -> . .^ .^ .^
LSTM_BASIC                 x h w b c -> . .^ .^ .^
MATRIX_DIAG                x -> .
MATRIX_SET_DIAG            x d:=x -> .
MAXIMUM                    a b -> .
MAX_POOL_2D                x -> =x  ; {_POOL}
MEAN                       x axes{{8}}:int32 -> =x
MINIMUM                    a b -> .
MIRROR_PAD                 x margins{{16}}:int32|int64 -> =x
MUL                        a b -> =a
MULTINOMIAL                x:float32 n{{1}}:int32 -> .:int32|int64
NEG                        x -> .
NON_MAX_SUPPRESSION_V4     boxes scores n iou score -> . .
NON_MAX_SUPPRESSION_V5     boxes scores n iou score sigma -> . . .
NOT_EQUAL                  a:any b:any -> .
ONE_HOT                    at depth{{1}}:int32 on off -> .
PACK                       x+:any -> .
PAD                        x margins{{16}}:int32|int64|int8|int16|bool -> .
PADV2                      x margins{{16}}:int32|int64|int8|int16|bool v -> .
POW                        a b -> .
PRELU                      x a:=x -> .
QUANTIZE                   x -> .
RANDOM_STANDARD_NORMAL     shape{{8}} -> .:float32
RANDOM_UNIFORM             shape{{8}} -> .:float32
RANGE                      a b c -> .
RANK                       x:any -> .
READ_VARIABLE              v:resource -> .:any
REAL                       x -> .
REDUCE_ALL                 x:bool axes{{8}}:int32 -> .:bool
REDUCE_ANY                 x:bool axes{{8}}:int32 -> .:bool
REDUCE_MAX                 x axes{{8}}:int32 -> =x
REDUCE_MIN                 x axes{{8}}:int32 -> =x
REDUCE_PROD                x axes{{8}}:int32 -> =x
REDUCE_WINDOW              x v window{{8}}:int64 strides{{8}}:int64 dilations{{8}}:int64 -> =x
RELU                       x -> .
RELU6                      x -> .
RELU_0_TO_1                x -> .
RELU_N1_TO_1               x -> .
RESHAPE                    x:any|variant shape^{{8}}:int32|int64 -> =x
RESIZE_BILINEAR            x size{{2}}:int32 -> =x
RESIZE_NEAREST_NEIGHBOR    x size{{2}}:int32 -> .
REVERSE_SEQUENCE           x n -> .
REVERSE_V2                 x axes{{8}}:int32 -> .
RFFT2D                     x size{{2}}:int32 -> .
RIGHT_SHIFT                a b -> .
RNN                        x:float32 {_RNN} -> .:float32
ROUND                      x -> .
RSQRT                      x -> .
SCATTER_ND                 at x shape{{8}} -> .
SEGMENT_SUM                x at:int32 -> =x
SELECT                     p a:any b:any -> .
SELECT_V2                  p a:any b:any -> .
SHAPE                      x:any|variant -> .
SIGN                       x -> .
SIN                        x -> .
SKIP_GRAM                  x:string -> .:string
SLICE                      x:any begin{{8}}:int32|int64 size{{8}}:int32|int64 -> =x
SOFTMAX                    x -> .
SPACE_TO_BATCH_ND          x block{{3}}:int32 margins{{6}}:int32 -> .
SPACE_TO_DEPTH             x -> .  ; block_size:{_SIZE}
SPARSE_TO_DENSE            at shape{{8}} v d -> .
SPLIT                      axis{{1}}:int32 x:any -> .+
SPLIT_V                    x:any sizes axis{{1}}:int32 -> .+
SQRT                       x -> .
SQUARE                     x -> .
SQUARED_DIFFERENCE         a b -> .
SQUEEZE                    x:any -> =x
STRIDED_SLICE              x:any begin{{8}}:int32|int64 end{{8}}:=begin strides{{8}}:=begin -> =x
SUB                        a b -> .
SUM                        x axes{{8}}:int32 -> =x
SVDF                       x:float32|int8 w:float32|uint8|int8 t:float32|uint8|int8|int16 b~ s -> .
TANH                       x -> .
TILE                       x:any n{{8}}:int32|int64 -> =x
TOPK_V2                    x k{{1}}:int32|int16 -> . .
TRANSPOSE                  x:any axes{{8}}:int32|int64 -> =x
TRANSPOSE_CONV             shape{{4}}:int32 w x b? -> .  ; stride_h:1..1024 stride_w:1..1024
UNIDIRECTIONAL_SEQUENCE_LSTM x {_LAYER} h c n1? n2? n3? n4? -> .
UNIDIRECTIONAL_SEQUENCE_RNN x:float32 {_RNN} -> .:float32
UNIQUE                     x -> . .
UNPACK                     x:any -> .+
UNSORTED_SEGMENT_MAX       x at:int32 n:int32 -> =x
UNSORTED_SEGMENT_MIN       x at:int32 n:int32 -> =x
UNSORTED_SEGMENT_PROD      x at:int32 n:int32 -> =x
UNSORTED_SEGMENT_SUM       x at:int32 n:int32 -> =x
VAR_HANDLE                 -> .:resource
WHERE                      x -> .
WHILE                      x+:object -> .*:object
ZEROS_LIKE                 x:number|variant -> .
STABLEHLO_ABS              x -> =x
STABLEHLO_ADD              a b -> =a
STABLEHLO_AND              a b -> =a
STABLEHLO_BROADCAST_IN_DIM x -> .
STABLEHLO_CASE             x*:object -> .*:object
STABLEHLO_CBRT             x -> =x
STABLEHLO_CLAMP            a x b -> .
STABLEHLO_COMPARE          a b -> .
STABLEHLO_COMPOSITE        x*:object -> .*:object
STABLEHLO_CONCATENATE      x+ -> .
STABLEHLO_CONVERT          x -> .
STABLEHLO_CONVOLUTION      a b -> .
STABLEHLO_COSINE           x -> =x
STABLEHLO_CUSTOM_CALL      x*:object -> .*:object
STABLEHLO_DIVIDE           a b -> =a
STABLEHLO_DOT_GENERAL      a b -> .
STABLEHLO_DYNAMIC_SLICE    x at* -> .
STABLEHLO_DYNAMIC_UPDATE_SLICE x u at* -> .
STABLEHLO_EXPONENTIAL      x -> =x
STABLEHLO_FLOOR            x -> =x
STABLEHLO_GATHER           x at -> .
STABLEHLO_IOTA             -> .
STABLEHLO_LOG              x -> =x
STABLEHLO_LOGISTIC         x -> =x
STABLEHLO_MAXIMUM          a b -> =a
STABLEHLO_MINIMUM          a b -> =a
STABLEHLO_MULTIPLY         a b -> =a
STABLEHLO_NEGATE           x -> =x
STABLEHLO_OR               a b -> =a
STABLEHLO_PAD              x v -> .
STABLEHLO_POWER            a b -> =a
STABLEHLO_REDUCE           x* -> .*
STABLEHLO_REDUCE_WINDOW    x* -> .*
STABLEHLO_REMAINDER        a b -> =a
STABLEHLO_RESHAPE          x -> .
STABLEHLO_RNG_BIT_GENERATOR x -> . .
STABLEHLO_RSQRT            x -> =x
STABLEHLO_SCATTER          x at u -> .
STABLEHLO_SELECT           p a b -> .
STABLEHLO_SHIFT_LEFT       a b -> =a
STABLEHLO_SLICE            x -> .
STABLEHLO_SORT             x* -> .*
STABLEHLO_SUBTRACT         a b -> =a
STABLEHLO_TANH             x -> =x
STABLEHLO_TRANSPOSE        x -> .
STABLEHLO_WHILE            x*:object -> .*:object
"""

_COUNT = "1..1048576"
_DETECTIONS = f"max_detections:{_COUNT} max_classes_per_detection:{_COUNT} num_classes:{_COUNT}"
_MEMORY = "stride_width:1..65536 stride_height:1..65536"
_WINDOW = f"{_MEMORY} filter_width:1..65536 filter_height:1..65536"
#: The custom operators for which the official runtime, or its default delegate, has kernels.
_CUSTOM = f"""
AudioSpectrogram              x -> .  ; window_size:2..1048576 stride:1..2147483647
Mfcc                          x rate -> .  ; filterbank_channel_count:1..65536 dct_coefficient_count:1..65536
NumericVerify                 x y -> .
TFLite_Detection_PostProcess  boxes[3] scores[3] anchors[2]:=boxes -> . . . .  ; {_DETECTIONS}
MaxPoolingWithArgmax2D        x[4]:float32 -> .:float32 .^  ; {_WINDOW}
MaxUnpooling2D                x[4]:float32 at[4] -> .:float32  ; {_WINDOW}
Convolution2DTransposeBias    x[4] w[4] b^[1] -> .  ; {_MEMORY}
"""


@functools.cache
def _lines() -> Mapping[str, str]:
    return _split(_TABLE)


@functools.cache
def _custom_lines() -> Mapping[str, str]:
    return _split(_CUSTOM)


def _split(table: str) -> dict[str, str]:
    return {line.split()[0]: line.partition(" ")[2] for line in table.strip().splitlines()}
