"""How many inputs and outputs each builtin operator takes, from the checks of the official kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Arity:
    """Inclusive ranges, None for no upper limit; `optional` holds the inputs that may be absent (-1)."""

    inputs: tuple[int, int | None]
    outputs: tuple[int, int | None] = (1, 1)
    optional: frozenset[int] = frozenset()


def arity(operator: str) -> Arity:
    """The arity of a builtin operator; operators that litegpu knows nothing of may have anything."""
    return _ARITIES.get(operator, _ANYTHING)


_ANYTHING = Arity((0, None), (0, None), frozenset(range(64)))

_BY_INPUTS: Mapping[int, str] = {
    1: """ABS AVERAGE_POOL_2D BITCAST BUCKETIZE CAST CEIL COMPLEX_ABS COS DENSIFY DEPTH_TO_SPACE DEQUANTIZE ELU EXP
        FAKE_QUANT FLOOR GELU HARD_SWISH HASHTABLE_SIZE IMAG L2_NORMALIZATION L2_POOL_2D LEAKY_RELU
        LOCAL_RESPONSE_NORMALIZATION LOG LOGICAL_NOT LOGISTIC LOG_SOFTMAX MATRIX_DIAG MAX_POOL_2D NEG QUANTIZE
        RANDOM_STANDARD_NORMAL RANDOM_UNIFORM RANK READ_VARIABLE REAL RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 ROUND RSQRT
        SHAPE SIGN SIN SKIP_GRAM SOFTMAX SPACE_TO_DEPTH SQRT SQUARE SQUEEZE TANH WHERE ZEROS_LIKE
        STABLEHLO_ABS STABLEHLO_CBRT STABLEHLO_CONVERT STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR
        STABLEHLO_LOG STABLEHLO_LOGISTIC STABLEHLO_NEGATE STABLEHLO_RESHAPE STABLEHLO_RSQRT STABLEHLO_TANH
        STABLEHLO_BROADCAST_IN_DIM STABLEHLO_SLICE STABLEHLO_TRANSPOSE""",
    2: """ADD ARG_MAX ARG_MIN ATAN2 BATCH_MATMUL BITWISE_XOR BROADCAST_ARGS BROADCAST_TO CUMSUM DIV EMBEDDING_LOOKUP
        EQUAL EXPAND_DIMS FILL FLOOR_DIV FLOOR_MOD GATHER GATHER_ND GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND
        LOGICAL_OR MATRIX_SET_DIAG MAXIMUM MEAN MINIMUM MIRROR_PAD MUL MULTINOMIAL NOT_EQUAL PAD POW PRELU REDUCE_ALL
        REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR REVERSE_SEQUENCE
        REVERSE_V2 RFFT2D RIGHT_SHIFT SEGMENT_SUM SQUARED_DIFFERENCE SUB SUM TILE TRANSPOSE
        STABLEHLO_ADD STABLEHLO_AND STABLEHLO_COMPARE STABLEHLO_DIVIDE STABLEHLO_DOT_GENERAL STABLEHLO_GATHER
        STABLEHLO_MAXIMUM STABLEHLO_MINIMUM STABLEHLO_MULTIPLY STABLEHLO_OR STABLEHLO_PAD STABLEHLO_POWER
        STABLEHLO_REMAINDER STABLEHLO_SHIFT_LEFT STABLEHLO_SUBTRACT STABLEHLO_CONVOLUTION""",
    3: """BATCH_TO_SPACE_ND DYNAMIC_UPDATE_SLICE HASHTABLE_FIND PADV2 RANGE SCATTER_ND SELECT SELECT_V2 SLICE
        SPACE_TO_BATCH_ND UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_MIN UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_SUM
        STABLEHLO_CLAMP STABLEHLO_SELECT STABLEHLO_SCATTER""",
    4: "ONE_HOT SPARSE_TO_DENSE STRIDED_SLICE",
    5: "DILATE EMBEDDING_LOOKUP_SPARSE REDUCE_WINDOW RNN UNIDIRECTIONAL_SEQUENCE_RNN",
}

_ARITIES: Mapping[str, Arity] = {
    **{name: Arity((count, count)) for count, names in _BY_INPUTS.items() for name in names.split()},
    "DILATE": Arity((3, 3)),
    "RESHAPE": Arity((1, 2)),
    "CONV_2D": Arity((2, 3), optional=frozenset({2})),
    "DEPTHWISE_CONV_2D": Arity((3, 3), optional=frozenset({2})),  # the runtime crashes on two inputs
    "CONV_3D": Arity((2, 3), optional=frozenset({2})),
    "FULLY_CONNECTED": Arity((2, 3), (1, 2), optional=frozenset({2})),
    "TRANSPOSE_CONV": Arity((3, 4), optional=frozenset({3})),
    "CONV_3D_TRANSPOSE": Arity((3, 4), optional=frozenset({3})),
    "ADD_N": Arity((1, None)),
    "CONCATENATION": Arity((1, None)),
    "PACK": Arity((1, None)),
    "STABLEHLO_CONCATENATE": Arity((1, None)),
    "SPLIT": Arity((2, 2), (1, None)),
    "SPLIT_V": Arity((3, 3), (1, None)),
    "UNPACK": Arity((1, 1), (1, None)),
    "TOPK_V2": Arity((2, 2), (2, 2)),
    "UNIQUE": Arity((1, 1), (2, 2)),
    "NON_MAX_SUPPRESSION_V4": Arity((5, 5), (2, 2)),
    "NON_MAX_SUPPRESSION_V5": Arity((6, 6), (3, 3)),
    "HASHTABLE_LOOKUP": Arity((3, 3), (2, 2)),
    "LSH_PROJECTION": Arity((2, 3), optional=frozenset({2})),
    "SVDF": Arity((5, 5), optional=frozenset({3})),
    "LSTM": Arity((5, 24), (1, 4), optional=frozenset(range(1, 24)) - {18, 19}),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": Arity((20, 24), optional=frozenset(range(1, 24)) - {18, 19}),
    "BIDIRECTIONAL_SEQUENCE_LSTM": Arity((48, 48), (1, 2), optional=frozenset(range(1, 48)) - {35, 36, 37, 38}),
    "BIDIRECTIONAL_SEQUENCE_RNN": Arity((12, 12), (1, 2), optional=frozenset({9, 10, 11})),
    "HASHTABLE": Arity((0, 0)),
    "HASHTABLE_IMPORT": Arity((3, 3), (0, 0)),
    "VAR_HANDLE": Arity((0, 0)),
    "ASSIGN_VARIABLE": Arity((2, 2), (0, 0)),
    "CALL_ONCE": Arity((0, 0), (0, 0)),
    "IF": Arity((1, None), (0, None)),
    "WHILE": Arity((1, None), (0, None)),
}
