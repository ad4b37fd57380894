"""A float model as the converter's full-integer quantization writes it: int8 activations and weights, int32 biases.

Activations have a scale for each tensor, from the range that it was seen in; weights of convolutions and products one
for each filter. Ops that only move or pick values keep the scale, so what they read and write shares one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from litegpu.errors import ModelError
from litegpu.model.builder import quantized
from litegpu.model.types import Model, Operator, Quantization, Subgraph, Tensor, TensorType

Range = tuple[float, float]  # the least and the largest value seen

#: The axis of the filters in an op's second input; its third is the bias.
_WEIGHTED = {"CONV_2D": 0, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 0}
#: What these read and write has one scale, and the inputs that are values.
_SAME_SCALE: dict[str, slice] = {
    **dict.fromkeys(("MAX_POOL_2D", "AVERAGE_POOL_2D", "RESHAPE", "TRANSPOSE", "PAD", "RESIZE_BILINEAR"), slice(1)),
    **dict.fromkeys(("STRIDED_SLICE", "SLICE", "GATHER"), slice(1)),
    "SPLIT": slice(1, 2),
    "CONCATENATION": slice(None),
}
#: Scale and zero point that the runtime's kernels ask of a result.
_FIXED = {"SOFTMAX": (1 / 256, -128), "LOGISTIC": (1 / 256, -128), "TANH": (1 / 128, 0)}
#: The first version of an operator that takes int8.
_VERSIONS = {
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D"), 3),
    **dict.fromkeys(("ADD", "MUL", "SUB", "MEAN", "SOFTMAX", "LOGISTIC", "TANH", "CONCATENATION", "GATHER"), 2),
    **dict.fromkeys(("MAX_POOL_2D", "AVERAGE_POOL_2D", "PAD", "TRANSPOSE", "RESIZE_BILINEAR", "STRIDED_SLICE"), 2),
    **dict.fromkeys(("SPLIT", "SLICE", "SQUARED_DIFFERENCE", "RSQRT"), 2),
    **{"FULLY_CONNECTED": 4, "BATCH_MATMUL": 2},
}


def quantize(model: Model, ranges: Mapping[int, Range]) -> Model:
    """`ranges`: of each float tensor of the main graph that an op writes or that is an input.

    Raises ModelError for a tensor whose range is not given.
    """
    return dataclasses.replace(model, subgraphs=(_Quantizing(model.main, ranges).run(), *model.subgraphs[1:]))


class _Quantizing:
    def __init__(self, graph: Subgraph, ranges: Mapping[int, Range]) -> None:
        self.graph = graph
        self.tensors: list[Tensor] = list(graph.tensors)
        self._parents: dict[int, int] = {}
        weights = {i for op in graph.operators if op.name in _WEIGHTED for i in op.inputs[1:]}
        for op in graph.operators:
            if (moved := _SAME_SCALE.get(op.name)) is not None:
                for other in (*op.inputs[moved], *op.outputs):
                    self._parents[self._root(other)] = self._root(op.outputs[0])
        fixed = {self._root(op.outputs[0]): _FIXED[op.name] for op in graph.operators if op.name in _FIXED}
        grouped: dict[int, Range] = {}
        floats = [t for t in graph.tensors if t.type is TensorType.FLOAT32 and t.index not in weights]
        for tensor in floats:
            low, high = self._range(tensor, ranges)
            before = grouped.get(self._root(tensor.index), (0.0, 0.0))
            grouped[self._root(tensor.index)] = (min(before[0], low), max(before[1], high))
        for tensor in floats:
            root = self._root(tensor.index)
            self.tensors[tensor.index] = _activation(tensor, fixed.get(root) or _asymmetric(*grouped[root]))

    def run(self) -> Subgraph:
        operators = tuple(self._operator(op) for op in self.graph.operators)
        return dataclasses.replace(self.graph, tensors=tuple(self.tensors), operators=operators)

    def _operator(self, op: Operator) -> Operator:
        if op.name in _WEIGHTED:
            self._weigh(op)
        return dataclasses.replace(op, version=max(op.version, _VERSIONS.get(op.name, 1)))

    def _weigh(self, op: Operator) -> None:
        """Quantizes the weights and the bias, which belong to this op alone."""
        axis = _WEIGHTED[op.name]
        weights = self.tensors[op.inputs[1]]
        assert weights.data is not None
        others = tuple(i for i in range(weights.data.ndim) if i != axis)
        scales = np.maximum(np.abs(weights.data).max(axis=others) / 127, 1e-9).astype(np.float32)
        along = [1] * weights.data.ndim
        along[axis] = -1
        values = np.clip(np.rint(weights.data / scales.reshape(along)), -127, 127).astype(np.int8)
        quantization = quantized(scales, 0, axis)
        self.tensors[weights.index] = dataclasses.replace(
            weights, data=values, type=TensorType.INT8, quantization=quantization
        )
        if len(op.inputs) > 2 and op.inputs[2] >= 0:
            source = self.tensors[op.inputs[0]].quantization
            bias = self.tensors[op.inputs[2]]
            assert source is not None and bias.data is not None
            scales = (scales * source.scales[0]).astype(np.float32)
            counts = np.clip(np.rint(bias.data.astype(np.float64) / scales), -(2**30), 2**30).astype(np.int32)
            self.tensors[bias.index] = dataclasses.replace(
                bias, data=counts, type=TensorType.INT32, quantization=quantized(scales, 0, 0)
            )

    def _range(self, tensor: Tensor, ranges: Mapping[int, Range]) -> Range:
        if tensor.data is not None:
            return float(tensor.data.min()), float(tensor.data.max())
        if tensor.index not in ranges:
            raise ModelError(f"tensor {tensor.index} '{tensor.name}' was not measured, so it cannot be quantized")
        return ranges[tensor.index]

    def _root(self, tensor: int) -> int:
        while (parent := self._parents.get(tensor, tensor)) != tensor:
            tensor = parent
        return tensor


def _asymmetric(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point so that -128..127 covers the range, in which zero is."""
    scale = max((high - low) / 255, 1e-8)
    return scale, int(np.clip(np.rint(-128 - low / scale), -128, 127))


def _activation(tensor: Tensor, place: tuple[float, int]) -> Tensor:
    scale, zero_point = place
    quantization: Quantization = quantized(scale, zero_point)
    data = tensor.data
    if data is not None:
        data = np.clip(np.rint(data / np.float32(scale)) + zero_point, -128, 127).astype(np.int8)
    return dataclasses.replace(tensor, type=TensorType.INT8, data=data, quantization=quantization)
