"""Turns a Model into the bytes of a .tflite file."""

from __future__ import annotations

from typing import Any

import numpy as np

from litegpu.errors import ModelError
from litegpu.model import flatbuffer, schema
from litegpu.model.types import Model, Operator, Quantization, Sparsity, Subgraph, Tensor


def write_model(model: Model, *, blobs_outside: bool | None = None) -> bytes:
    """The bytes of a .tflite file with the content of `model`; each constant is copied once.

    Constants that shared a buffer share it again; unused buffers and operator codes are dropped. `blobs_outside` puts
    constants behind the flatbuffer as large models have them (by default only where the format demands it).

    Raises:
        ModelError: a value does not fit the schema's field.
    """
    buffers = _Buffers()
    codes: dict[tuple[str, int, int, bool], int] = {}
    try:
        root: flatbuffer.Table = {
            "version": model.version,
            "description": model.description,
            "subgraphs": [_subgraph(subgraph, buffers, codes) for subgraph in model.subgraphs],
            "metadata": [
                {"name": name, "buffer": buffers.add(memoryview(content))} for name, content in model.metadata.items()
            ],
            "signature_defs": [
                {
                    "signature_key": signature.key,
                    "subgraph_index": signature.subgraph,
                    "inputs": [{"name": name, "tensor_index": index} for name, index in signature.inputs.items()],
                    "outputs": [{"name": name, "tensor_index": index} for name, index in signature.outputs.items()],
                }
                for signature in model.signatures
            ],
        }
        root["operator_codes"] = [_code(*code) for code in codes]
        root["buffers"] = buffers.tables
        return flatbuffer.encode(root, blobs_outside=blobs_outside)
    except ValueError as error:
        raise ModelError(f"the model cannot be written: {error}") from None


class _Buffers:
    """The buffers of a new file; the first is empty and means "no constant"."""

    def __init__(self) -> None:
        self.tables: list[flatbuffer.Table] = [{"data": None}]
        self._by_place: dict[tuple[int, int], int] = {}

    def add(self, content: memoryview) -> int:
        """The number of a buffer with this content; the same memory gives the same buffer."""
        place = (np.frombuffer(content, np.uint8).__array_interface__["data"][0], len(content))
        if len(content) == 0 or place not in self._by_place:
            self.tables.append({"data": content})
            self._by_place[place] = len(self.tables) - 1
        return self._by_place[place]


def _subgraph(subgraph: Subgraph, buffers: _Buffers, codes: dict[tuple[str, int, int, bool], int]) -> flatbuffer.Table:
    return {
        "name": subgraph.name,
        "tensors": [_tensor(tensor, buffers) for tensor in subgraph.tensors],
        "operators": [_operator(operator, codes) for operator in subgraph.operators],
        "inputs": subgraph.inputs,
        "outputs": subgraph.outputs,
    }


def _tensor(tensor: Tensor, buffers: _Buffers) -> flatbuffer.Table:
    return {
        "name": tensor.name,
        "type": int(tensor.type),
        "shape": tensor.shape,
        "shape_signature": tensor.shape_signature if tensor.shape_signature != tensor.shape else None,
        "buffer": 0 if tensor.data is None else buffers.add(_bytes(tensor.data)),
        "quantization": None if tensor.quantization is None else _quantization(tensor.quantization),
        "sparsity": None if tensor.sparsity is None else _sparsity(tensor.sparsity),
        "is_variable": tensor.is_variable,
        "has_rank": tensor.has_rank,
    }


def _bytes(data: np.ndarray) -> memoryview:
    """The memory of an array, without a copy where it is contiguous."""
    return np.ascontiguousarray(data).reshape(-1).view(np.uint8).data


def _quantization(quantization: Quantization) -> flatbuffer.Table:
    table: flatbuffer.Table = {
        "scale": quantization.scales,
        "zero_point": quantization.zero_points,
        "min": quantization.minimum,
        "max": quantization.maximum,
        "quantized_dimension": quantization.dimension,
    }
    if quantization.block_size:
        table["details_type"] = schema.enum_values("QuantizationDetails")["BlockwiseQuantization"]
        table["details"] = {
            "scales": quantization.scales_tensor,
            "zero_points": quantization.zero_points_tensor,
            "block_size": quantization.block_size,
        }
    return table


def _sparsity(sparsity: Sparsity) -> flatbuffer.Table:
    return {
        "traversal_order": sparsity.traversal_order,
        "block_map": sparsity.block_map,
        "dim_metadata": [_dimension(*dimension) for dimension in sparsity.dimensions],
    }


def _dimension(form: str, *values: Any) -> flatbuffer.Table:
    if form == "dense":
        return {"format": 0, "dense_size": values[0]}
    segments, indices = values
    return {
        "format": 1,
        "array_segments_type": _index_vector(segments),
        "array_segments": {"values": segments},
        "array_indices_type": _index_vector(indices),
        "array_indices": {"values": indices},
    }


def _index_vector(values: np.ndarray) -> int:
    name = {1: "Uint8Vector", 2: "Uint16Vector"}.get(values.itemsize, "Int32Vector")
    return schema.enum_values("SparseIndexVector")[name]


def _operator(operator: Operator, codes: dict[tuple[str, int, int, bool], int]) -> flatbuffer.Table:
    code = (operator.name, operator.code, operator.version, operator.is_custom)
    table: flatbuffer.Table = {
        "opcode_index": codes.setdefault(code, len(codes)),
        "inputs": operator.inputs,
        "outputs": operator.outputs,
        "intermediates": operator.intermediates or None,
        "custom_options": operator.custom_options or None,
    }
    if operator.options_type:
        union = schema.options_union(operator.options_type)
        field = "builtin_options" if union == "BuiltinOptions" else "builtin_options_2"
        table[f"{field}_type"] = schema.enum_values(union)[operator.options_type]
        table[field] = operator.options
    return table


def _code(name: str, code: int, version: int, is_custom: bool) -> flatbuffer.Table:
    return {
        "deprecated_builtin_code": min(code, schema.enum_values("BuiltinOperator")["PLACEHOLDER_FOR_GREATER_OP_CODES"]),
        "builtin_code": code,
        "custom_code": name if is_custom else None,
        "version": version,
    }
