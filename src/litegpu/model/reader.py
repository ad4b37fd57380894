"""Reads the bytes of a .tflite file into a Model whose constants are views of those bytes."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.boundary import reading, typed
from litegpu.errors import ModelError
from litegpu.model import flatbuffer, schema
from litegpu.model.bodies import with_bodies
from litegpu.model.bundle import bundled_content
from litegpu.model.mapping import map_file
from litegpu.model.types import (
    Model,
    Operator,
    Quantization,
    Signature,
    Sparsity,
    Subgraph,
    Tensor,
    TensorType,
)

Source = str | os.PathLike[str] | bytes | bytearray | memoryview

# NumPy's type of an element; types that are absent here have none and their constants stay flat bytes.
DTYPES: Mapping[TensorType, np.dtype[Any]] = {
    TensorType.FLOAT32: np.dtype(np.float32),
    TensorType.FLOAT16: np.dtype(np.float16),
    TensorType.INT32: np.dtype(np.int32),
    TensorType.UINT8: np.dtype(np.uint8),
    TensorType.INT64: np.dtype(np.int64),
    TensorType.BOOL: np.dtype(np.bool_),
    TensorType.INT16: np.dtype(np.int16),
    TensorType.COMPLEX64: np.dtype(np.complex64),
    TensorType.INT8: np.dtype(np.int8),
    TensorType.FLOAT64: np.dtype(np.float64),
    TensorType.COMPLEX128: np.dtype(np.complex128),
    TensorType.UINT64: np.dtype(np.uint64),
    TensorType.UINT32: np.dtype(np.uint32),
    TensorType.UINT16: np.dtype(np.uint16),
}

# Bits of one element; None where the size of a constant does not follow from its shape.
ELEMENT_BITS: Mapping[TensorType, int | None] = {
    **{type_: dtype.itemsize * 8 for type_, dtype in DTYPES.items()},
    TensorType.BFLOAT16: 16,
    TensorType.INT4: 4,
    TensorType.UINT4: 4,
    TensorType.INT2: 2,
    TensorType.STRING: None,
    TensorType.RESOURCE: None,
    TensorType.VARIANT: None,
}


@typed
def read_model(source: Source, *, verify: bool = True) -> Model:
    """Reads a model from a path (mapped into memory, not copied) or from bytes. A path may lead into a bundle.

    `verify=False` leaves out the checks of what the model means (see `litegpu.model.verifier`) and is for tools that
    look at broken models; offsets are always checked.

    Raises:
        ModelError: the file cannot be opened, is not a model, or contradicts itself.
    """
    path = os.fspath(source) if isinstance(source, str | os.PathLike) else None
    where = f"'{path}'" if path is not None else "the model content"
    with reading(where):
        content = _open(path) if path is not None else memoryview(source).cast("B").toreadonly()  # type: ignore[arg-type]
        return _read(content, source if isinstance(source, bytes) else content, path, where, verify)


def _read(view: memoryview, content: bytes | memoryview, path: str | None, where: str, verify: bool) -> Model:
    try:
        root = flatbuffer.decode(view)
    except flatbuffer.FormatError as error:
        official = "The model is not a valid Flatbuffer buffer"  # as the official runtime says
        raise ModelError(f"{where} is not a readable .tflite model. {official}: {error}. {_advice(view)}") from None
    try:
        model = _model(root, view, content, path)
        if verify:
            from litegpu.model.verifier import verify_model

            verify_model(model)
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from None
    return model


def constant_bytes(type_: TensorType, shape: Sequence[int]) -> int | None:
    """Bytes of a dense constant, 4-bit and 2-bit elements packed; None where the shape does not say."""
    bits = ELEMENT_BITS[type_]
    return None if bits is None else (math.prod(shape) * bits + 7) // 8


def _open(path: str) -> memoryview:
    bundled = bundled_content(path)
    if bundled is not None:
        return bundled
    content = map_file(path)
    if len(content) == 0:
        raise ModelError(f"Could not open '{path}'. The file is empty; fetch or convert it again.")
    return content


def _advice(content: memoryview) -> str:
    start = bytes(content[:64]).lstrip().lower()
    if start.startswith(b"<"):
        return "It is an HTML or XML page: the download fetched a web page instead of the model; fetch it again."
    if start.startswith(b"version https://git-lfs"):
        return "It is a Git LFS pointer: run `git lfs pull` to fetch the model itself."
    if start.startswith(b"pk"):
        return "It is a zip archive: save it as a file and open that."
    return "The file is damaged, truncated, or of another format; fetch or convert it again."


def _model(root: flatbuffer.Table, view: memoryview, content: bytes | memoryview, path: str | None) -> Model:
    buffers = [_buffer(index, buffer, view) for index, buffer in enumerate(root["buffers"])]
    codes = [_code(index, code) for index, code in enumerate(root["operator_codes"])]
    subgraphs = tuple(
        _subgraph(index, subgraph, buffers, codes, view) for index, subgraph in enumerate(root["subgraphs"])
    )
    if not subgraphs:
        raise ModelError("the model has no subgraph, so there is nothing to run; convert it again")
    return Model(
        subgraphs=with_bodies(subgraphs),
        signatures=tuple(_signature(signature) for signature in root["signature_defs"]),
        description=root["description"] or "",
        version=root["version"],
        metadata={entry["name"] or "": _metadata(entry, buffers) for entry in root["metadata"]},
        content=content,
        path=path,
    )


def _buffer(index: int, buffer: flatbuffer.Table, view: memoryview) -> memoryview | None:
    """A buffer's bytes, which large models keep behind the flatbuffer; None if it has none."""
    offset, size = buffer["offset"], buffer["size"]
    if offset > 1:  # the converter's marks for "none" are 0 and 1
        return _outside(f"buffer {index}", offset, size, view)
    data: memoryview | None = buffer["data"]
    return data


def _outside(what: str, offset: int, size: int, view: memoryview) -> memoryview:
    if offset + size > len(view):
        raise ModelError(
            f"{what} says that it lies at bytes {offset} to {offset + size} of a file of {len(view)} bytes; "
            "the file is damaged or truncated, fetch it again"
        )
    return view[offset : offset + size]


def _code(index: int, code: flatbuffer.Table) -> tuple[str, int, int, bool]:
    """(name, builtin code, version, is custom) of an operator code."""
    # Codes above 127 do not fit the deprecated field, which then holds 127: the larger one is meant.
    number = max(code["deprecated_builtin_code"], code["builtin_code"])
    name = schema.enum_names("BuiltinOperator").get(number)
    if name is None:
        raise ModelError(
            f"operator code {index} has number {number}, which the installed ai-edge-litert does not know; "
            "the file is damaged, or ai-edge-litert is too old for it"
        )
    if name != "CUSTOM":
        return name, number, code["version"], False
    if not code["custom_code"]:
        raise ModelError(f"operator code {index} is of a custom operator without a name; convert the model again")
    return code["custom_code"], number, code["version"], True


def _metadata(entry: flatbuffer.Table, buffers: Sequence[memoryview | None]) -> bytes:
    if entry["buffer"] >= len(buffers):
        raise ModelError(
            f"metadata '{entry['name']}' refers to buffer {entry['buffer']} of {len(buffers)}; convert the model again"
        )
    return bytes(buffers[entry["buffer"]] or b"")


def _signature(signature: flatbuffer.Table) -> Signature:
    return Signature(
        key=signature["signature_key"] or "",
        subgraph=signature["subgraph_index"],
        inputs={entry["name"] or "": entry["tensor_index"] for entry in signature["inputs"]},
        outputs={entry["name"] or "": entry["tensor_index"] for entry in signature["outputs"]},
    )


def _subgraph(
    index: int,
    subgraph: flatbuffer.Table,
    buffers: Sequence[memoryview | None],
    codes: Sequence[tuple[str, int, int, bool]],
    view: memoryview,
) -> Subgraph:
    try:
        return Subgraph(
            index=index,
            name=subgraph["name"] or "",
            tensors=tuple(_tensor(number, tensor, buffers) for number, tensor in enumerate(subgraph["tensors"])),
            operators=tuple(
                _operator(number, operator, codes, view) for number, operator in enumerate(subgraph["operators"])
            ),
            inputs=_integers(subgraph["inputs"]),
            outputs=_integers(subgraph["outputs"]),
        )
    except ModelError as error:
        raise ModelError(f"subgraph {index}: {error}") from None


def _tensor(index: int, tensor: flatbuffer.Table, buffers: Sequence[memoryview | None]) -> Tensor:
    name = tensor["name"] or ""
    type_ = _TENSOR_TYPES.get(tensor["type"])
    if type_ is None:
        raise ModelError(
            f"tensor {index} '{name}' has element type {tensor['type']}, which is unknown; "
            "the file is damaged or newer than litegpu"
        )
    if tensor["buffer"] >= len(buffers):
        raise ModelError(
            f"tensor {index} '{name}' refers to buffer {tensor['buffer']} of {len(buffers)}; convert the model again"
        )
    if tensor["external_buffer"]:
        raise ModelError(
            f"tensor {index} '{name}' keeps its data in another file (external buffer {tensor['external_buffer']}), "
            "which is not supported; convert the model with its weights inside"
        )
    shape = _integers(tensor["shape"])
    sparsity = None if tensor["sparsity"] is None else _sparsity(tensor["sparsity"])
    return Tensor(
        index=index,
        name=name,
        type=type_,
        shape=shape,
        shape_signature=_integers(tensor["shape_signature"]) or shape,
        buffer=tensor["buffer"],
        data=_constant(f"tensor {index} '{name}'", type_, shape, sparsity, tensor["buffer"], buffers),
        quantization=_quantization(tensor["quantization"]),
        sparsity=sparsity,
        is_variable=tensor["is_variable"],
        has_rank=tensor["has_rank"],
    )


def _constant(
    what: str,
    type_: TensorType,
    shape: tuple[int, ...],
    sparsity: Sparsity | None,
    buffer: int,
    buffers: Sequence[memoryview | None],
) -> np.ndarray | None:
    data = buffers[buffer]
    if data is None or buffer == 0:  # by convention buffer 0 is empty and means "no constant"
        return None
    flat = np.frombuffer(data, np.uint8)
    size = None if sparsity is not None or any(extent < 0 for extent in shape) else constant_bytes(type_, shape)
    if len(data) == 0 and size != 0:
        return None
    if size is None:
        return flat
    if len(data) != size:
        raise ModelError(
            f"{what} of {type_.name} and shape {list(shape)} needs {size} bytes, but its buffer {buffer} has "
            f"{len(data)}; the file is damaged or its converter is wrong, convert the model again"
        )
    dtype = DTYPES.get(type_)
    return flat if dtype is None else flat.view(dtype).reshape(shape)


def _quantization(table: flatbuffer.Table | None) -> Quantization | None:
    """None when the table carries no scales, which converters write for float tensors."""
    if table is None:
        return None
    scales, details = table["scale"], table["details"]
    blockwise = details if details is not None and "block_size" in details else None
    if blockwise is None and (scales is None or len(scales) == 0):
        return None
    scales = _NO_SCALES if scales is None else scales
    zero_points = table["zero_point"]
    return Quantization(
        scales=scales,
        zero_points=np.zeros(len(scales), np.int64) if zero_points is None else zero_points,
        dimension=table["quantized_dimension"],
        minimum=table["min"],
        maximum=table["max"],
        block_size=blockwise["block_size"] if blockwise else 0,
        scales_tensor=blockwise["scales"] if blockwise else -1,
        zero_points_tensor=blockwise["zero_points"] if blockwise else -1,
    )


def _sparsity(table: flatbuffer.Table) -> Sparsity:
    dimensions: list[tuple[Any, ...]] = []
    for dimension in table["dim_metadata"]:
        if dimension["format"] == 0:
            dimensions.append(("dense", dimension["dense_size"]))
        else:
            dimensions.append(
                ("csr", _index_array(dimension["array_segments"]), _index_array(dimension["array_indices"]))
            )
    return Sparsity(_integers(table["traversal_order"]), _integers(table["block_map"]), tuple(dimensions))


def _index_array(table: flatbuffer.Table | None) -> np.ndarray:
    if table is None or table["values"] is None:
        return np.zeros(0, np.int32)
    return np.asarray(table["values"])


def _operator(
    index: int, operator: flatbuffer.Table, codes: Sequence[tuple[str, int, int, bool]], view: memoryview
) -> Operator:
    if operator["opcode_index"] >= len(codes):
        raise ModelError(
            f"operator {index} refers to operator code {operator['opcode_index']} of {len(codes)}; "
            "convert the model again"
        )
    name, code, version, is_custom = codes[operator["opcode_index"]]
    kind, table = schema.enum_names("BuiltinOptions")[operator["builtin_options_type"]], operator["builtin_options"]
    if table is None and operator["builtin_options_2"] is not None:
        kind, table = (
            schema.enum_names("BuiltinOptions2")[operator["builtin_options_2_type"]],
            operator["builtin_options_2"],
        )
    options = {} if table is None else {field: _option(value) for field, value in table.items()}
    _fill_absent(kind, options)
    custom_options = operator["custom_options"]
    if operator["large_custom_options_offset"] > 1:
        custom_options = _outside(
            f"the options of operator {index} {name}",
            operator["large_custom_options_offset"],
            operator["large_custom_options_size"],
            view,
        )
    return Operator(
        index=index,
        name=name,
        code=code,
        version=version,
        inputs=_integers(operator["inputs"]),
        outputs=_integers(operator["outputs"]),
        options=options,
        options_type="" if table is None else kind,
        custom_options=bytes(custom_options or b""),
        intermediates=_integers(operator["intermediates"]),
        is_custom=is_custom,
        subgraphs=_called(options),
    )


def _option(value: Any) -> Any:
    if isinstance(value, np.ndarray | memoryview):
        return tuple(value.tolist())
    return value


def _fill_absent(table: str, options: dict[str, Any]) -> None:
    """Absent vectors and strings read as empty ones."""
    for name, value in options.items():
        if value is None:
            options[name] = "" if name in _string_fields(table) else ()


@functools.cache
def _string_fields(table: str) -> frozenset[str]:
    return frozenset(field.name for field in schema.fields(table) if field.kind is schema.Kind.STRING)


def _called(options: Mapping[str, Any]) -> tuple[int, ...]:
    called: list[int] = []
    for name, value in options.items():
        if schema.names_subgraph(name):
            called.extend(value if isinstance(value, tuple) else (value,))
    return tuple(called)


def _integers(vector: np.ndarray | None) -> tuple[int, ...]:
    return () if vector is None else tuple(vector.tolist())


_TENSOR_TYPES = {int(type_): type_ for type_ in TensorType}
_NO_SCALES = np.zeros(0, np.float32)
