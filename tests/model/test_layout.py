"""What the reader, `cut` and the sparse encoding make of files written by hand, in every detail of the schema."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from litegpu.errors import ModelError
from litegpu.model import ModelBuilder, TensorType, cut, flatbuffer, quantized, read_model, write_model
from litegpu.model.sparse import densified
from litegpu.model.types import Model, Quantization, Sparsity, Subgraph, Tensor

F, I8 = TensorType.FLOAT32, TensorType.INT8


# -------------------------------------------------------------------------------------------------- the reader


def table(tensors: Sequence[dict[str, Any]] = (), *, buffers: Sequence[dict[str, Any]] = (), **values: Any) -> bytes:
    """A file with one subgraph of such tensors; buffer 0 is empty as it is by convention."""
    graph = {"tensors": list(tensors), "operators": values.pop("operators", []), "inputs": (), "outputs": ()}
    root = {"version": 3, "subgraphs": [graph], "buffers": [{"data": None}, *buffers], **values}
    return flatbuffer.encode(root)


def tensor(type_: TensorType, shape: tuple[int, ...], buffer: int, **values: Any) -> dict[str, Any]:
    return {"name": "t", "type": int(type_), "shape": shape, "buffer": buffer, **values}


def read(content: bytes) -> Model:
    return read_model(content, verify=False)


@pytest.mark.parametrize("type_, bits", [(TensorType.INT4, 4), (TensorType.INT2, 2), (TensorType.UINT4, 4),
                                         (TensorType.INT8, 8), (TensorType.BFLOAT16, 16), (F, 32)])  # fmt: skip
@pytest.mark.parametrize("count", range(1, 10))
def test_constants_have_the_bytes_of_their_elements(type_: TensorType, bits: int, count: int) -> None:
    """Of packed ones the last byte is begun, whatever their number; one byte more or less is wrong."""
    size = (count * bits + 7) // 8

    def content(size: int) -> bytes:
        return table([tensor(type_, (count,), 1)], buffers=[{"data": memoryview(bytes(size))}])

    data = read(content(size)).main.tensors[0].data
    assert data is not None and data.nbytes == size
    for wrong in (size - 1, size + 1):
        if wrong:
            with pytest.raises(ModelError, match=rf"needs {size} bytes, but its buffer 1 has {wrong}"):
                read(content(wrong))


def test_the_first_buffer_is_no_constant_whatever_it_holds() -> None:
    root = {"version": 3, "buffers": [{"data": memoryview(bytes(8))}],
            "subgraphs": [{"tensors": [tensor(F, (2,), 0)], "operators": [], "inputs": (), "outputs": ()}]}  # fmt: skip
    assert read(flatbuffer.encode(root)).main.tensors[0].data is None


@pytest.mark.parametrize("signature, shape", [(None, (2, 3)), ((-1, 3), (2, 3)), ((), (2, 3))])
def test_a_shape_signature_that_is_absent_is_the_shape(signature: tuple[int, ...] | None, shape: Any) -> None:
    read_tensor = read(table([tensor(F, shape, 0, shape_signature=signature)])).main.tensors[0]
    assert read_tensor.shape_signature == (signature or shape)


def test_every_operator_keeps_its_number() -> None:
    """Those above 127 do not fit the older field, which then holds 127."""
    from litegpu.model import schema

    names = schema.enum_values("BuiltinOperator")
    codes = [{"deprecated_builtin_code": min(n, 127), "builtin_code": n, "version": 2}
             for name, n in names.items() if name not in ("CUSTOM", "PLACEHOLDER_FOR_GREATER_OP_CODES")]  # fmt: skip
    operators = [{"opcode_index": i, "inputs": (), "outputs": ()} for i in range(len(codes))]
    read_names = [(o.name, o.version) for o in read(table(operators=operators, operator_codes=codes)).main.operators]
    assert read_names == [(n, 2) for n in names if n not in ("CUSTOM", "PLACEHOLDER_FOR_GREATER_OP_CODES")]
    old = [{"deprecated_builtin_code": names["CONV_2D"], "builtin_code": 0, "version": 1}]  # as before there were both
    assert read(table(operators=operators[:1], operator_codes=old)).main.operators[0].name == "CONV_2D"


def test_options_of_either_field_arrive() -> None:
    b = ModelBuilder()
    x = b.input("x", (4,))
    y = b.op("STABLEHLO_CONCATENATE", [x, x], (8,), {"dimension": 5})
    b.output(b.op("LEAKY_RELU", [y], (8,), {"alpha": 0.75}))
    first, second = read(b.build()).main.operators
    assert (first.options_type, dict(first.options)) == ("StablehloConcatenateOptions", {"dimension": 5})
    assert (second.options_type, dict(second.options)) == ("LeakyReluOptions", {"alpha": 0.75})


@pytest.mark.parametrize("mark", [0, 1])
def test_marks_of_no_offset(mark: int) -> None:
    """Converters write 0 or 1 where nothing lies behind the flatbuffer."""
    data = np.array([1, 2], np.float32)
    buffers = [{"data": memoryview(data.tobytes()), "offset": mark, "size": mark}]
    found = read(table([tensor(F, (2,), 1)], buffers=buffers)).main.tensors[0].data
    np.testing.assert_array_equal(found, data)


@pytest.mark.parametrize("beyond", [0, 1, 7, 8])
def test_buffers_behind_the_flatbuffer_end_with_the_file(beyond: int) -> None:
    data = np.array([1, 2], np.float32)

    def content(offset: int) -> bytes:
        return table([tensor(F, (2,), 1)], buffers=[{"data": None, "offset": offset, "size": 8}])

    end = len(content(1 << 20))
    whole = content(end) + data.tobytes()
    assert len(content(end)) == end
    if not beyond:
        np.testing.assert_array_equal(read(whole).main.tensors[0].data, data)
        return
    with pytest.raises(ModelError, match=rf"buffer 1 says that it lies at bytes {end} to {end + 8}"):
        read(whole[:-beyond])


def test_a_model_without_a_subgraph_is_refused() -> None:
    with pytest.raises(ModelError, match="has no subgraph"):
        read(flatbuffer.encode({"version": 3, "subgraphs": [], "buffers": [{"data": None}]}))


@pytest.mark.parametrize(
    "values, words",
    [
        (dict(type=99), "element type 99"),
        (dict(buffer=7), "refers to buffer 7 of 1"),
        (dict(external_buffer=3), "keeps its data in another file"),
    ],
)
def test_tensors_that_cannot_be_read(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=f"subgraph 0: tensor 0 't' .*{words}|{words}"):
        read(table([tensor(F, (2,), 0) | values]))


def test_codes_that_are_not_there() -> None:
    operators = [{"opcode_index": 1, "inputs": (), "outputs": ()}]
    codes = [{"deprecated_builtin_code": 0, "builtin_code": 0, "version": 1}]
    with pytest.raises(ModelError, match="operator 0 refers to operator code 1 of 1"):
        read(table(operators=operators, operator_codes=codes))
    with pytest.raises(ModelError, match=r"operator code 0 .* without a name"):
        read(table(operators=[], operator_codes=[{"deprecated_builtin_code": 32, "builtin_code": 32, "version": 1}]))


def test_zero_points_that_are_absent_are_zero() -> None:
    content = table(
        [tensor(I8, (2,), 0, quantization={"scale": np.array([0.5, 2], np.float32), "quantized_dimension": 0})]
    )
    quantization = read(content).main.tensors[0].quantization
    assert quantization is not None and quantization.zero_points.tolist() == [0, 0]
    assert quantization.scales.tolist() == [0.5, 2]


# -------------------------------------------------------------------------------------------------------- cut


def test_everything_that_a_node_names_is_renumbered() -> None:
    """The second of two nodes, which has absent operands, intermediates and weights quantized in blocks."""
    b = ModelBuilder()
    x = b.input("x", (1, 8))
    filler = b.op("NEG", [x], (1, 8))
    scales = b.constant(np.array([[0.5], [0.25]], np.float32).astype(np.float16), "scales")
    zeros = b.constant(np.zeros((2, 1), np.int8), "zero points")
    weights = b.constant(np.ones((2, 8), np.int8), "weights", type=TensorType.INT4, quantization=quantized(1.0))
    middle = b.tensor((3,), F, "middle")
    y = b.op("FULLY_CONNECTED", [filler, weights, None], (1, 2))
    b.output(y)
    model = b.model()
    blocks = Quantization(np.zeros(0, np.float32), np.zeros(0, np.int64), block_size=8, scales_tensor=scales,
                          zero_points_tensor=zeros)  # fmt: skip
    tensors = tuple(
        dataclasses.replace(t, quantization=blocks) if t.index == weights else t for t in model.main.tensors
    )
    operators = (model.main.operators[0], dataclasses.replace(model.main.operators[1], intermediates=(middle, -1)))
    main = dataclasses.replace(model.main, tensors=tensors, operators=operators)
    model = dataclasses.replace(model, subgraphs=(main,))
    part = read(cut(model, 0, [1], [filler], [y])).main

    def names(indices: Sequence[int]) -> list[str]:
        return ["" if i < 0 else part.tensors[i].name for i in indices]

    (operator,) = part.operators
    wanted = [model.main.tensors[i].name for i in (filler, weights)]
    assert names(operator.inputs) == [*wanted, ""] and names(operator.intermediates) == ["middle", ""]
    assert names(operator.outputs) == names(part.outputs) == [model.main.tensors[y].name]
    assert [t.name for t in part.tensors] == [t.name for t in model.main.tensors if t.index != x]
    found = next(t for t in part.tensors if t.name == "weights").quantization
    assert found is not None and names([found.scales_tensor, found.zero_points_tensor]) == ["scales", "zero points"]
    assert found.scales_tensor != scales


@pytest.mark.parametrize("branch, kept", [(1, ["inner", "outer"]), (2, ["inner"])])
def test_subgraphs_that_are_called_by_called_ones_come_along(branch: int, kept: list[str]) -> None:
    """`outer` calls `inner`; another subgraph stays behind, so that the numbers change."""
    b = ModelBuilder()
    x = b.input("x", (2,))
    flag = b.input("flag", (), TensorType.BOOL)
    unused = b.subgraph("unused")
    unused.output(unused.op("NEG", [unused.input("v", (2,))], (2,)))
    inner = b.subgraph("inner")
    inner.output(inner.op("ABS", [inner.input("v", (2,))], (2,)))
    outer = b.subgraph("outer")
    v = outer.input("v", (2,))
    calls = {"then_subgraph_index": 2, "else_subgraph_index": 2}
    outer.output(outer.op("IF", [outer.constant(np.array(True)), v], (2,), calls, type=F))
    calls = {"then_subgraph_index": 3, "else_subgraph_index": 3}
    y = b.op("IF", [flag, x], (2,), calls, type=F)
    z = b.op("IF", [flag, x], (2,), {"then_subgraph_index": 2, "else_subgraph_index": 2}, type=F)
    b.output(y, z)
    model = read(b.build())
    node = branch - 1
    part = read_model(cut(model, 0, [node], [flag, x], model.main.operators[node].outputs))
    assert [s.name for s in part.subgraphs[1:]] == kept
    called = [[part.subgraphs[i].name for i in o.subgraphs] for s in part.subgraphs for o in s.operators]
    assert called == ([["outer", "outer"], [], ["inner", "inner"]] if branch == 1 else [["inner", "inner"], []])


def test_a_partition_gives_what_it_makes_or_is_given() -> None:
    b = ModelBuilder()
    x = b.input("x", (2,))
    y = b.op("NEG", [x], (2,))
    z = b.op("ABS", [y], (2,))
    constant = b.constant(np.array([1, 2], np.float32))
    b.output(z, constant)
    model = read(b.build())
    assert read(cut(model, 0, [1], [y], [z, y, constant])).main.outputs == (1, 0, 2)
    for missing, outputs in ((y, [y]), (x, [z, x])):
        with pytest.raises(ModelError, match=rf"output tensor {missing} .* is not made in the partition"):
            cut(model, 0, [1] if missing == x else [], [y] if missing == x else [x], outputs)


# ----------------------------------------------------------------------------------------------------- sparse


def _blocks_in_order(dense: np.ndarray, block: tuple[int, int], compressed: bool,
                     order: tuple[int, ...]) -> tuple[Sparsity, np.ndarray]:  # fmt: skip
    """Encodes a matrix in blocks, of which those without an element are left out if `compressed`. `order` says whether
    rows or columns of blocks come first, and the same of the elements in a block."""
    counts = [-(-n // size) for n, size in zip(dense.shape, block, strict=True)]
    padded = np.zeros([c * size for c, size in zip(counts, block, strict=True)], dense.dtype)
    padded[: dense.shape[0], : dense.shape[1]] = dense
    first, second = order[:2]
    segments, indices, values = [0], [], []
    for i in range(counts[first]):
        for j in range(counts[second]):
            at = {first: i, second: j}
            part = padded[at[0] * block[0] : (at[0] + 1) * block[0], at[1] * block[1] : (at[1] + 1) * block[1]]
            if compressed and not part.any():
                continue
            indices.append(j)
            values.append(part if order[2] == 2 else part.T)
        segments.append(len(indices))
    second_level: tuple[Any, ...] = ("dense", counts[second])
    if compressed:
        second_level = ("csr", np.array(segments, np.int32), np.array(indices, np.int32))
    dimensions = (("dense", counts[first]), second_level, *(("dense", block[a - 2]) for a in order[2:]))
    return Sparsity(order, (0, 1), dimensions), np.concatenate([v.ravel() for v in values])


@pytest.mark.parametrize("shape", [(4, 6), (3, 5)])
@pytest.mark.parametrize("order", [(a, 1 - a, b, 5 - b) for a, b in itertools.product((0, 1), (2, 3))])
@pytest.mark.parametrize("compressed", [True, False])
def test_sparse_constants_in_blocks(shape: tuple[int, int], order: tuple[int, ...], compressed: bool) -> None:
    """Blocks of 2x3 in every traversal order; of the smaller matrix they reach beyond its edges."""
    dense = np.zeros(shape, np.float32)
    dense[0, 1], dense[1, 0], dense[2, 4], dense[2, 3] = 1, 2, 3, 4
    sparsity, values = _blocks_in_order(dense, (2, 3), compressed, order)
    constant = Tensor(0, "w", F, shape, shape, 1, values.view(np.uint8), sparsity=sparsity)
    np.testing.assert_array_equal(densified(constant), dense)
    short = dataclasses.replace(constant, data=values[:-1].view(np.uint8))
    with pytest.raises(ModelError, match=f"has {values.size - 1} values for the {values.size} places"):
        densified(short)


@pytest.mark.parametrize("type_", [np.uint8, np.uint16, np.int32])
def test_sparse_indices_of_every_width(type_: type[np.integer]) -> None:
    levels: tuple[Any, ...] = (("dense", 2), ("csr", np.array([0, 1, 3], type_), np.array([2, 0, 3], type_)))
    sparsity = Sparsity((0, 1), (), levels)
    data = np.array([5, 6, 7], np.float32).view(np.uint8)
    main = Subgraph(0, "main", (Tensor(0, "w", F, (2, 4), (2, 4), 1, data, sparsity=sparsity),), (), (), ())
    model = read(write_model(Model((main,), (), "", 3, {}, b"")))
    found = model.main.tensors[0]
    assert found.sparsity is not None and found.sparsity.dimensions[1][1].dtype == type_
    np.testing.assert_array_equal(densified(found), np.array([[0, 0, 5, 0], [6, 0, 0, 7]], np.float32))


# ------------------------------------------------------------------------------------------------- the writer


def test_constants_share_a_buffer_if_they_are_the_same_memory() -> None:
    """Not if one begins where the other does, and not if they are empty."""
    memory = np.arange(8, dtype=np.float32)

    def constant(index: int, data: np.ndarray) -> Tensor:
        return Tensor(index, f"t{index}", F, data.shape, data.shape, 0, data)

    empty = memory[:0]
    pieces = (memory, memory[:4], memory, memory[:4], memory[4:], empty, empty)
    main = Subgraph(0, "main", tuple(constant(i, data) for i, data in enumerate(pieces)), (), (), ())
    tensors = read(write_model(Model((main,), (), "", 3, {}, b""))).main.tensors
    for tensor, data in zip(tensors, pieces, strict=True):
        np.testing.assert_array_equal(tensor.data, data)
    buffers = [tensor.buffer for tensor in tensors]
    assert buffers[0] == buffers[2] and buffers[1] == buffers[3]
    assert len(set(buffers)) == 5 and 0 not in buffers, "an empty constant has a buffer of its own"


def test_operators_above_127_are_written_for_older_readers() -> None:
    """Who know the older field alone, where 127 says that they do not know the operator."""
    from litegpu.model import schema

    b = ModelBuilder()
    x = b.input("x", (2,))
    for name in ("ABS", "GELU"):
        x = b.op(name, [x], (2,))
    b.output(x)
    numbers = schema.enum_values("BuiltinOperator")
    codes = flatbuffer.decode(memoryview(b.build()))["operator_codes"]
    assert [(c["deprecated_builtin_code"], c["builtin_code"]) for c in codes] == [
        (numbers["ABS"], numbers["ABS"]), (127, numbers["GELU"]),
    ]  # fmt: skip


def test_blocks_of_scales_round_trip() -> None:
    blocks = Quantization(np.zeros(0, np.float32), np.zeros(0, np.int64), 1, block_size=32, scales_tensor=1,
                          zero_points_tensor=0)  # fmt: skip
    tensors = tuple(Tensor(i, f"t{i}", F, (2,), (2,), 0, quantization=blocks if i == 0 else None) for i in range(2))
    model = Model((Subgraph(0, "main", tensors, (), (), ()),), (), "", 3, {}, b"")
    found = read(write_model(model)).main.tensors[0].quantization
    assert found is not None
    assert (found.block_size, found.scales_tensor, found.zero_points_tensor, found.dimension) == (32, 1, 0, 1)
