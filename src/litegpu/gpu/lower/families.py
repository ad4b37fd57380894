"""In which module each operator is lowered: a model brings those of its own operators, as all take long to import."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

_OPERATORS = {
    "bidirectional": "BIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_RNN",
    "bits": "BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_AND STABLEHLO_SHIFT_LEFT",
    "bodies": "REDUCE_WINDOW STABLEHLO_REDUCE_WINDOW STABLEHLO_SCATTER",
    "chance": "RANDOM_STANDARD_NORMAL RANDOM_UNIFORM",
    "convert": "BUCKETIZE CAST DENSIFY DEQUANTIZE FAKE_QUANT QUANTIZE",
    "convolution": "CONV_2D DEPTHWISE_CONV_2D TRANSPOSE_CONV",
    "detection": "NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 TFLite_Detection_PostProcess",
    "elementwise": (
        "ABS ADD ADD_N ATAN2 CEIL COS DIV ELU EQUAL EXP FLOOR FLOOR_DIV FLOOR_MOD GELU GREATER GREATER_EQUAL "
        "HARD_SWISH LEAKY_RELU LESS LESS_EQUAL LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR LOGISTIC MAXIMUM "
        "MINIMUM MUL NEG NOT_EQUAL POW PRELU RELU RELU6 RELU_0_TO_1 RELU_N1_TO_1 ROUND RSQRT SELECT SELECT_V2 "
        "SIGN SIN SQRT SQUARE SQUARED_DIFFERENCE SUB TANH ZEROS_LIKE"
    ),
    "filling": "FILL MATRIX_DIAG MATRIX_SET_DIAG RANGE RANK SHAPE",
    "gathering": "GATHER GATHER_ND ONE_HOT SCATTER_ND",
    "lookup": "DYNAMIC_UPDATE_SLICE EMBEDDING_LOOKUP HASHTABLE_LOOKUP REVERSE_SEQUENCE SPARSE_TO_DENSE",
    "matmul": "BATCH_MATMUL FULLY_CONNECTED",
    "movement": (
        "BATCH_TO_SPACE_ND BROADCAST_TO CONCATENATION DEPTH_TO_SPACE DILATE EXPAND_DIMS PACK RESHAPE "
        "SPACE_TO_BATCH_ND SPACE_TO_DEPTH SQUEEZE TILE TRANSPOSE"
    ),
    "ordering": "CUMSUM REVERSE_V2 TOPK_V2",
    "perception": (
        "Convolution2DTransposeBias Landmarks2TransformMatrix Landmarks2TransformMatrixV2 "
        "MaxPoolingWithArgmax2D MaxUnpooling2D Resampler TransformLandmarks TransformTensor "
        "TransformTensorBilinear"
    ),
    "pooling": "AVERAGE_POOL_2D L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION MAX_POOL_2D",
    "recurrent": "LSTM UNIDIRECTIONAL_SEQUENCE_LSTM",
    "reduction": ("ARG_MAX ARG_MIN L2_NORMALIZATION MEAN REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD SUM"),
    "resize": "RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR",
    "rnn": "RNN SVDF UNIDIRECTIONAL_SEQUENCE_RNN",
    "segments": "SEGMENT_SUM UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_MIN UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_SUM",
    "sized": "UNIQUE WHERE",
    "slicing": "MIRROR_PAD PAD PADV2 SLICE SPLIT SPLIT_V STRIDED_SLICE UNPACK",
    "softmax": "LOG_SOFTMAX SOFTMAX",
    "spectra": "COMPLEX_ABS IMAG REAL RFFT2D",
    "stablehlo": (
        "STABLEHLO_ADD STABLEHLO_GATHER STABLEHLO_MAXIMUM STABLEHLO_MINIMUM STABLEHLO_MULTIPLY STABLEHLO_PAD"
    ),
    "volume": "CONV_3D CONV_3D_TRANSPOSE",
}
#: Operator -> family.
FAMILY: Mapping[str, str] = {name: family for family, names in _OPERATORS.items() for name in names.split()}


def load(family: str) -> None:
    """Have the operators of a family registered."""
    importlib.import_module(f"{__package__}.{family}")
