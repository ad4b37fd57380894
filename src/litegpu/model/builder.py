"""Builds models op by op, for tests and for the example models."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.errors import ModelError, OptionError
from litegpu.model import schema
from litegpu.model.ops import BUILTIN, Op
from litegpu.model.packing import packed
from litegpu.model.serialize import write_model
from litegpu.model.types import Model, Operator, Quantization, Signature, Sparsity, Subgraph, Tensor, TensorType

if TYPE_CHECKING:
    import numpy.typing as npt

Shape = Sequence[int]


def quantized(
    scales: float | Sequence[float] | np.ndarray, zero_points: int | Sequence[int] | np.ndarray = 0, dimension: int = 0
) -> Quantization:
    """real = scale * (q - zero_point), per tensor or per index of `dimension`."""
    scale = np.atleast_1d(np.asarray(scales, np.float32))
    zero_point = np.broadcast_to(np.asarray(zero_points, np.int64), scale.shape)
    return Quantization(scale, zero_point, dimension)


class SubgraphBuilder:
    """One subgraph under construction; its methods add to it and return tensor indices.

    Shapes may hold -1 for dimensions unknown until the model is resized: the tensor then has 1 there, and -1 in its
    shape signature.
    """

    def __init__(self, index: int = 0, name: str = "main") -> None:
        self.index = index
        self.name = name
        self._tensors: list[Tensor] = []
        self._operators: list[Operator] = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []

    def input(
        self,
        name: str,
        shape: Shape,
        type: TensorType = TensorType.FLOAT32,
        *,
        shape_signature: Shape | None = None,
        quantization: Quantization | None = None,
    ) -> int:
        """A graph input."""
        tensor = self.tensor(shape, type, name, shape_signature=shape_signature, quantization=quantization)
        self._inputs.append(tensor)
        return tensor

    def output(self, *tensors: int) -> None:
        """Makes tensors the graph's next outputs."""
        for tensor in tensors:
            self._check(tensor, "output")
        self._outputs.extend(tensors)

    def variable(
        self,
        name: str,
        shape: Shape,
        type: TensorType = TensorType.FLOAT32,
        *,
        quantization: Quantization | None = None,
    ) -> int:
        """A tensor that keeps its value from one inference to the next, zero at first."""
        return self.tensor(shape, type, name, quantization=quantization, is_variable=True)

    def constant(
        self,
        values: npt.ArrayLike | Sequence[bytes],
        name: str | None = None,
        *,
        type: TensorType | None = None,
        quantization: Quantization | None = None,
        sparsity: Sparsity | None = None,
        shape: Shape | None = None,
    ) -> int:
        """A constant, whose type is that of the array unless given (int32 and float32 for plain Python numbers).

        INT4, UINT4 and INT2 take an array of small integers, BFLOAT16 one of floats, STRING byte strings; they are
        packed as the runtime expects. With `sparsity` the values are those that the encoding keeps, and `shape` is that
        of the tensor which they stand for.
        """
        array, type_, data = packed(values, type)
        index = self.tensor(
            array.shape if shape is None else shape,
            type_,
            name or f"constant_{len(self._tensors)}",
            quantization=quantization,
        )
        if sparsity is not None:
            data = data.reshape(-1).view(np.uint8)
        self._tensors[index] = dataclasses.replace(self._tensors[index], data=data, sparsity=sparsity)
        return index

    def tensor(
        self,
        shape: Shape,
        type: TensorType = TensorType.FLOAT32,
        name: str | None = None,
        *,
        shape_signature: Shape | None = None,
        quantization: Quantization | None = None,
        is_variable: bool = False,
    ) -> int:
        """A tensor that some operator will write."""
        index = len(self._tensors)
        signature = tuple(int(extent) for extent in (shape if shape_signature is None else shape_signature))
        extents = tuple(1 if extent < 0 else int(extent) for extent in shape)
        self._tensors.append(
            Tensor(
                index=index,
                name=name or f"tensor_{index}",
                type=TensorType(type),
                shape=extents,
                shape_signature=signature,
                buffer=0,
                quantization=quantization,
                is_variable=is_variable,
                has_rank=len(extents) > 0,
            )
        )
        return index

    def op(
        self,
        operator: str,
        inputs: Sequence[int | None],
        shape: Shape,
        options: Mapping[str, Any] | None = None,
        *,
        type: TensorType | None = None,
        name: str | None = None,
        quantization: Quantization | None = None,
        version: int | None = None,
        intermediates: Sequence[int] = (),
    ) -> int:
        """A builtin operator with one output, whose index is returned.

        Absent optional inputs are None or -1. The output's type follows from the operator and its inputs unless given.
        Options are named as in the schema; enumerations take names or numbers.
        """
        _check_name(operator)
        type_ = self._output_type(operator, inputs, options or {}) if type is None else type
        output = self.tensor(shape, type_, name, quantization=quantization)
        self.node(operator, inputs, [output], options, version=version, intermediates=intermediates)
        return output

    def op_multi(
        self,
        operator: str,
        inputs: Sequence[int | None],
        outputs: Sequence[tuple[Shape, TensorType]],
        options: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
        intermediates: Sequence[int] = (),
    ) -> list[int]:
        """A builtin operator with outputs of the given shapes and types."""
        tensors = [self.tensor(shape, type_) for shape, type_ in outputs]
        self.node(operator, inputs, tensors, options, version=version, intermediates=intermediates)
        return tensors

    def custom(
        self,
        operator: str,
        inputs: Sequence[int | None],
        outputs: Sequence[tuple[Shape, TensorType]],
        custom_options: bytes = b"",
        *,
        version: int = 1,
    ) -> list[int]:
        """A custom operator with outputs of the given shapes and types."""
        tensors = [self.tensor(shape, type_) for shape, type_ in outputs]
        self._append(
            Operator(
                index=len(self._operators),
                name=operator,
                code=schema.enum_values("BuiltinOperator")["CUSTOM"],
                version=version,
                inputs=self._optional(operator, inputs),
                outputs=tuple(tensors),
                custom_options=bytes(custom_options),
                is_custom=True,
            )
        )
        return tensors

    def node(
        self,
        operator: str,
        inputs: Sequence[int | None],
        outputs: Sequence[int],
        options: Mapping[str, Any] | None = None,
        *,
        version: int | None = None,
        intermediates: Sequence[int] = (),
    ) -> None:
        """A builtin operator that writes tensors which exist already."""
        code = _check_name(operator)
        table = schema.options_table(operator)
        values = _options(operator, table, options or {})
        numbers = self._optional(operator, inputs)
        self._append(
            Operator(
                index=len(self._operators),
                name=operator,
                code=code,
                version=self._version(operator, numbers, values) if version is None else version,
                inputs=numbers,
                outputs=tuple(outputs),
                options=values,
                options_type=table,
                intermediates=tuple(intermediates),
            )
        )

    def graph(self) -> Subgraph:
        """The subgraph as it is so far."""
        return Subgraph(
            index=self.index,
            name=self.name,
            tensors=tuple(self._tensors),
            operators=tuple(self._operators),
            inputs=tuple(self._inputs),
            outputs=tuple(self._outputs),
        )

    def _append(self, operator: Operator) -> None:
        for tensor in (*operator.outputs, *operator.intermediates):
            self._check(tensor, operator.name)
        self._operators.append(operator)

    def _optional(self, operator: str, inputs: Sequence[int | None]) -> tuple[int, ...]:
        numbers = tuple(-1 if tensor is None else int(tensor) for tensor in inputs)
        for tensor in numbers:
            if tensor != -1:
                self._check(tensor, operator)
        return numbers

    def _check(self, tensor: int, user: str) -> None:
        if not 0 <= tensor < len(self._tensors):
            raise ModelError(f"{user} uses tensor {tensor}, but the graph has {len(self._tensors)}; add it first")

    def _output_type(self, operator: str, inputs: Sequence[int | None], options: Mapping[str, Any]) -> TensorType:
        known = BUILTIN.get(operator, Op(operator))
        if known.makes is not None:
            return known.makes
        if known.makes_option:
            default = known.defaults.get(known.makes_option, "FLOAT32")
            return TensorType(_enumerated("TensorType", known.makes_option, options.get(known.makes_option, default)))
        position = known.makes_like
        source = self._optional(operator, inputs)[position] if position < len(inputs) else -1
        if source < 0:
            raise OptionError(f"the output type of {operator} does not follow from its inputs: give `type`")
        return self._tensors[source].type

    def _version(self, operator: str, inputs: tuple[int, ...], options: Mapping[str, Any]) -> int:
        """The version that the official converter gives the float operator, as its features demand."""
        known = BUILTIN.get(operator)
        if known is None or known.version is None:
            return 1
        return known.version([None if i < 0 else self._tensors[i].shape for i in inputs], options)


class ModelBuilder(SubgraphBuilder):
    """A model under construction, and its main graph."""

    def __init__(self, description: str = "", name: str = "main") -> None:
        super().__init__(0, name)
        self.description = description
        self._graphs: list[SubgraphBuilder] = [self]
        self._signatures: list[Signature] = []
        self._metadata: dict[str, bytes] = {}

    def subgraph(self, name: str) -> SubgraphBuilder:
        """A further subgraph, to be called by IF, WHILE and the like with its number, SubgraphBuilder.index."""
        graph = SubgraphBuilder(len(self._graphs), name)
        self._graphs.append(graph)
        return graph

    def signature(
        self, key: str, inputs: Mapping[str, int], outputs: Mapping[str, int], graph: SubgraphBuilder | None = None
    ) -> None:
        """A named entry point of the main graph, or of another: argument names to tensor indices."""
        self._signatures.append(Signature(key, (graph or self).index, dict(inputs), dict(outputs)))

    def metadata(self, name: str, content: bytes) -> None:
        """A named blob."""
        self._metadata[name] = content

    def model(self) -> Model:
        """The model as it is so far, without the bytes of a file."""
        return Model(
            subgraphs=tuple(graph.graph() for graph in self._graphs),
            signatures=tuple(self._signatures),
            description=self.description,
            version=3,
            metadata=dict(self._metadata),
            content=b"",
        )

    def build(self) -> bytes:
        """The bytes of a .tflite file."""
        return write_model(self.model())


def _check_name(operator: str) -> int:
    """The code of a builtin operator."""
    codes = schema.enum_values("BuiltinOperator")
    if operator not in codes:
        raise OptionError(f"no operator is called '{operator}'{_nearest(operator, codes)}")
    return codes[operator]


def _options(operator: str, table: str, given: Mapping[str, Any]) -> dict[str, Any]:
    fields = {field.name: field for field in schema.fields(table)} if table else {}
    values: dict[str, Any] = {
        name: field.default if field.kind is schema.Kind.SCALAR else "" if field.kind is schema.Kind.STRING else ()
        for name, field in fields.items()
    }
    known = BUILTIN.get(operator)
    values.update({} if known is None else known.defaults)
    for name, value in given.items():
        field = fields.get(name)
        if field is None:
            raise OptionError(f"{operator} has no option '{name}'{_nearest(name, fields)}")
        if field.kind is schema.Kind.SCALAR and name in schema.ENUM_FIELDS:
            value = _enumerated(schema.ENUM_FIELDS[name], name, value)
        elif field.kind is schema.Kind.SCALARS:
            value = tuple(np.asarray(value).tolist())
        values[name] = value
    return values


def _enumerated(enumeration: str, option: str, value: int | str) -> int:
    if not isinstance(value, str):
        return int(value)
    names = schema.enum_values(enumeration)
    if value not in names:
        raise OptionError(f"{option} cannot be '{value}'{_nearest(value, names)}")
    return names[value]


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; choose among {', '.join(known)}" if known else "; it has no options"
