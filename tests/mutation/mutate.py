"""Damages a model's file: its tables and numbers in terms of the schema, or its bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from litegpu.model import flatbuffer, schema

Table = dict[str, Any]

EXTENTS = (0, 1, 2, 3, 5, 8, 100, 255, 4096, 65536, 2**20, 2**24 + 1, 2**31 - 1, -1, -(2**31))
INTEGERS = (-(2**31), -1000, -129, -2, -1, 0, 1, 2, 3, 7, 8, 100, 127, 128, 1000, 65536, 2**20, 2**30, 2**31 - 1)
REALS = (0.0, -0.0, -1.0, 1.0, 0.5, 3.0, 1e-38, 1e-45, 1e-20, 1e-8, 1e8, 1e30, 3e38, float("inf"), float("nan"), -0.001)
CUSTOM = (
    *("AudioSpectrogram", "Mfcc", "TFLite_Detection_PostProcess", "MaxPoolingWithArgmax2D", "MaxUnpooling2D"),
    *("Convolution2DTransposeBias", "TransformTensorBilinear", "TransformLandmarks", "Landmarks2TransformMatrix"),
    *("RollTensor", "NumericVerify", "odml.rmsnorm", "FlexErf", "x\x1b[31m", "?"),
)  # fmt: skip
STRINGS = ("", "a", "x" * 300, "\x1b[31mred", "\n", "ü/../..", "%s%n{}", "main")


def mutated(content: bytes, seed: str) -> bytes:
    """A damaged copy; the same for the same seed."""
    rng = random.Random(seed)
    for _ in range(30):
        result = _bytes(content, rng) if rng.random() < 0.15 else _structure(content, rng)
        if result is not None and result != content:
            return result
    return content


def _bytes(content: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(content)
    kind = rng.random()
    if kind < 0.1:
        return bytes(damaged[: rng.randrange(len(damaged))])
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if kind < 0.6:
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
        elif kind < 0.8:
            damaged[rng.randrange(len(damaged))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        else:
            at = 4 * rng.randrange(max(1, len(damaged) // 4 - 1))
            damaged[at : at + 4] = (rng.choice(INTEGERS) & 0xFFFFFFFF).to_bytes(4, "little")
    return bytes(damaged)


def _structure(content: bytes, rng: random.Random) -> bytes | None:
    root = flatbuffer.decode(memoryview(content))
    for name in ("subgraphs", "buffers", "operator_codes", "metadata", "signature_defs"):
        root[name] = list(root[name])
    for graph in root["subgraphs"]:
        graph["tensors"], graph["operators"] = list(graph["tensors"]), list(graph["operators"])
    try:
        for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
            _pick(rng)(root, rng)
        return flatbuffer.encode(root)
    except (ValueError, TypeError, KeyError, OverflowError, IndexError):
        return None  # the value does not even fit the format, or an earlier change is in the way


def _pick(rng: random.Random) -> Callable[[Table, random.Random], None]:
    kinds, weights = zip(*_KINDS, strict=True)
    return rng.choices(kinds, weights)[0]


def _graph(root: Table, rng: random.Random) -> Table:
    return rng.choice(root["subgraphs"]) if root["subgraphs"] else {"tensors": [], "operators": []}


def _tensor(root: Table, rng: random.Random) -> Table | None:
    tensors = _graph(root, rng)["tensors"]
    return rng.choice(tensors) if tensors else None


def _operator(root: Table, rng: random.Random) -> Table | None:
    operators = _graph(root, rng)["operators"]
    return rng.choice(operators) if operators else None


def _integers(values: Any) -> list[int]:
    return [] if values is None else [int(v) for v in values]


def _change_type(root: Table, rng: random.Random) -> None:
    if (tensor := _tensor(root, rng)) is not None:
        tensor["type"] = rng.choice((0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, *range(10, 22)))
        if rng.random() < 0.4 and tensor["buffer"]:  # so that it stays a constant that fits
            _fit(root, tensor, rng)


def _fit(root: Table, tensor: Table, rng: random.Random) -> None:
    bits = {0: 32, 1: 16, 2: 32, 3: 8, 4: 64, 6: 8, 7: 16, 8: 64, 9: 8, 10: 64, 11: 128, 12: 64, 15: 32, 16: 16, 17: 4}
    size = 1
    for extent in _integers(tensor["shape"]):
        size *= max(extent, 0)
    size = (size * bits.get(tensor["type"], 8) + 7) // 8
    if size > 1 << 20:
        return
    data = bytes(rng.randbytes(size)) if rng.random() < 0.5 else bytes(size)
    root["buffers"].append({"data": data, "offset": 0, "size": 0})
    tensor["buffer"] = len(root["buffers"]) - 1


def _change_shape(root: Table, rng: random.Random) -> None:
    tensor = _tensor(root, rng)
    if tensor is None:
        return
    shape = _integers(tensor["shape"])
    kind = rng.random()
    if kind < 0.5 and shape:
        shape[rng.randrange(len(shape))] = rng.choice(EXTENTS)
    elif kind < 0.6 and shape:
        shape[rng.randrange(len(shape))] ^= 1 << rng.randrange(31)
    elif kind < 0.7:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice((0, 1, 1, 2, 3)))
    elif kind < 0.8 and shape:
        del shape[rng.randrange(len(shape))]
    elif kind < 0.85:
        rng.shuffle(shape)
    elif kind < 0.9:
        shape = [rng.choice((1, 1, 2, 3)) for _ in range(rng.randrange(10))]
    elif (other := _tensor(root, rng)) is not None:
        shape = _integers(other["shape"])
    tensor["shape"] = [max(-(2**31), min(2**31 - 1, n)) for n in shape]
    if rng.random() < 0.2:
        tensor["shape_signature"] = [rng.choice((-1, n)) for n in shape]
    elif rng.random() < 0.8:
        tensor["shape_signature"] = None
    if tensor["buffer"] and rng.random() < 0.6:
        _fit(root, tensor, rng)


def _change_constant(root: Table, rng: random.Random) -> None:
    tensors = [t for g in root["subgraphs"] for t in g["tensors"] if 0 < t["buffer"] < len(root["buffers"])]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    small = [t for t in tensors if t["type"] in (2, 4) and len(root["buffers"][t["buffer"]]["data"] or b"") <= 64]
    if small and rng.random() < 0.7:
        tensor = rng.choice(small)
    data = bytearray(root["buffers"][tensor["buffer"]]["data"] or b"")
    width = {2: 4, 4: 8, 9: 1, 3: 1, 7: 2}.get(tensor["type"], 4)
    kind = rng.random()
    if kind < 0.6 and len(data) >= width:
        at = width * rng.randrange(len(data) // width)
        data[at : at + width] = (rng.choice(INTEGERS) % (1 << 8 * width)).to_bytes(width, "little")
    elif kind < 0.8 and len(data) >= 4 and tensor["type"] == 0:
        at = 4 * rng.randrange(len(data) // 4)
        data[at : at + 4] = np.float32(rng.choice(REALS)).tobytes()
    elif kind < 0.9:
        data = bytearray(len(data)) if rng.random() < 0.5 else bytearray(rng.randbytes(len(data)))
    else:  # other numbers of elements
        count = rng.choice((0, 1, 3, 5, 9, 64))
        data = bytearray((data * 70)[: count * width]) if data else bytearray(count * width)
        tensor["shape"] = [count]
    root["buffers"].append({"data": bytes(data), "offset": 0, "size": 0})
    tensor["buffer"] = len(root["buffers"]) - 1


def _change_role(root: Table, rng: random.Random) -> None:
    tensor = _tensor(root, rng)
    if tensor is None:
        return
    kind = rng.random()
    if kind < 0.5:
        tensor["is_variable"] = not tensor["is_variable"]
    elif kind < 0.7:
        tensor["buffer"] = 0
        if rng.random() < 0.6:
            graph = next(g for g in root["subgraphs"] if any(t is tensor for t in g["tensors"]))
            number = next(i for i, t in enumerate(graph["tensors"]) if t is tensor)
            graph["inputs"] = [*_integers(graph["inputs"]), number]
    elif kind < 0.9:
        tensor["buffer"] = rng.randrange(len(root["buffers"]) + 1)
    else:
        tensor["has_rank"] = not tensor["has_rank"]


def _change_operands(root: Table, rng: random.Random) -> None:
    graph = _graph(root, rng)
    if not graph["operators"]:
        return
    operator = rng.choice(graph["operators"])
    field = rng.choices(("inputs", "outputs", "intermediates"), (8, 2, 1))[0]
    places = _integers(operator[field])
    kind = rng.random()
    if kind < 0.2 and len(places) > 1:
        a, b = rng.sample(range(len(places)), 2)
        places[a], places[b] = places[b], places[a]
    elif kind < 0.45 and places:
        places[rng.randrange(len(places))] = rng.choice(places)
    elif kind < 0.65 and places:
        places[rng.randrange(len(places))] = rng.randrange(-1, len(graph["tensors"]) + 1)
    elif kind < 0.8 and places:
        places[rng.randrange(len(places))] = -1
    elif kind < 0.9 and places:
        del places[rng.randrange(len(places))]
    else:
        places.append(rng.randrange(-1, len(graph["tensors"])))
    operator[field] = places


def _change_opcode(root: Table, rng: random.Random) -> None:
    if not root["operator_codes"]:
        return
    code = rng.choice(root["operator_codes"])
    kind = rng.random()
    if kind < 0.15:
        code["version"] = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 100, -1))
        return
    if kind < 0.35:
        code["custom_code"] = rng.choice(CUSTOM)
        code["builtin_code"] = code["deprecated_builtin_code"] = 32
        return
    number = rng.randrange(0, 211)
    code["builtin_code"], code["deprecated_builtin_code"] = number, min(number, 127)
    code["version"] = rng.choice((1, 1, 2, 3, 4))
    name = schema.enum_names("BuiltinOperator").get(number, "")
    if rng.random() < 0.75:
        for graph in root["subgraphs"]:
            for operator in graph["operators"]:
                if root["operator_codes"][operator["opcode_index"]] is code:
                    _give_options(operator, schema.options_table(name))


def _give_options(operator: Table, table: str) -> None:
    _drop_options(operator)
    if table:
        union = schema.options_union(table)
        field = "builtin_options" if union == "BuiltinOptions" else "builtin_options_2"
        kept = {f.name: 1 for f in schema.fields(table) if f.kind is schema.Kind.SCALAR and f.name in _ONES}
        values = {
            f.name: f.default if f.kind is schema.Kind.SCALAR else () if f.kind is schema.Kind.TABLES else None
            for f in schema.fields(table)
        }
        operator[f"{field}_type"], operator[field] = schema.enum_values(union)[table], {**values, **kept}


def _drop_options(operator: Table) -> None:
    for field in ("builtin_options", "builtin_options_2"):
        operator[field], operator[f"{field}_type"] = None, 0


def _change_options(root: Table, rng: random.Random) -> None:
    operator = _operator(root, rng)
    if operator is None:
        return
    custom = operator["custom_options"]
    if custom is not None and len(custom):
        operator["custom_options"] = _bytes(bytes(custom), rng) if rng.random() < 0.8 else None
        return
    if rng.random() < 0.05:
        operator["custom_options"] = rng.randbytes(rng.choice((1, 4, 12, 40)))
        return
    for field in ("builtin_options", "builtin_options_2"):
        options = operator[field]
        if not options:
            continue
        if rng.random() < 0.08:
            _drop_options(operator)
            return
        name = rng.choice(list(options))
        value = options[name]
        kinds = {f.name: f for f in schema.fields(schema.enum_names(_UNIONS[field])[operator[f"{field}_type"]])}
        options[name] = _other(value, kinds[name], rng)


_UNIONS = {"builtin_options": "BuiltinOptions", "builtin_options_2": "BuiltinOptions2"}


def _other(value: Any, field: schema.Field, rng: random.Random) -> Any:
    if field.kind is schema.Kind.SCALAR:
        if field.code == "?":
            return not value
        if field.code in "fd":
            return rng.choice(REALS)
        if field.code in "bB":
            return rng.choice((0, 1, 2, 3, 4, 5, 6, 9, 17, 100, 127))
        other = rng.choice(INTEGERS) if rng.random() < 0.8 else int(value) ^ (1 << rng.randrange(31))
        return max(other, 0) if field.code in "IQH" else other
    if field.kind is schema.Kind.SCALARS:
        values = _integers(value)
        kind = rng.random()
        if kind < 0.6 and values:
            values[rng.randrange(len(values))] = rng.choice(INTEGERS)
        elif kind < 0.7:
            values = values * 9
        elif kind < 0.8:
            values = []
        else:
            values.append(rng.choice(INTEGERS))
        return [v % 256 for v in values] if field.code in "bB?" else values
    if field.kind is schema.Kind.STRING:
        return rng.choice(STRINGS)
    return value


def _change_quantization(root: Table, rng: random.Random) -> None:
    tensor = _tensor(root, rng)
    if tensor is None:
        return
    q = tensor["quantization"]
    if q is None or rng.random() < 0.05:
        count = rng.choice((1, 1, 2, max([1, *_integers(tensor["shape"])[-1:]])))
        count, scalar = min(max(count, 1), 1000), schema.Kind.SCALAR
        tensor["quantization"] = {
            **{f.name: f.default if f.kind is scalar else None for f in schema.fields("QuantizationParameters")},
            "scale": [rng.choice((0.01, 0.5, *REALS)) for _ in range(count)],
            "zero_point": [rng.choice((0, 0, 1, -128, 127)) for _ in range(count)],
        }  # fmt: skip
        return
    q = tensor["quantization"] = dict(q)
    kind = rng.random()
    scales = [] if q["scale"] is None else [float(v) for v in q["scale"]]
    points = _integers(q["zero_point"])
    if kind < 0.1:
        tensor["quantization"] = None
    elif kind < 0.55 and scales:
        if rng.random() < 0.6:
            scales = [rng.choice(REALS)] * len(scales)
        else:
            scales[rng.randrange(len(scales))] = rng.choice(REALS)
        q["scale"] = scales
    elif kind < 0.7 and points:
        points[rng.randrange(len(points))] = rng.choice((-129, -128, -1, 0, 1, 127, 128, 255, 2**31, -(2**40)))
        q["zero_point"] = points
    elif kind < 0.8:
        q["quantized_dimension"] = rng.choice((-1, 0, 1, 2, 3, 4, 100, -(2**31)))
    elif kind < 0.9:
        q["scale"], q["zero_point"] = scales[:-1] or None, points[:-1] or None
    else:
        q["scale"], q["zero_point"] = [*scales, 0.1], [*points, 0]


def _change_graph(root: Table, rng: random.Random) -> None:
    graph = _graph(root, rng)
    operators, kind = graph["operators"], rng.random()
    if kind < 0.2 and operators:
        del operators[rng.randrange(len(operators))]
    elif kind < 0.35 and operators:
        operators.insert(rng.randrange(len(operators) + 1), dict(rng.choice(operators)))
    elif kind < 0.5 and len(operators) > 1:
        rng.shuffle(operators)
    elif kind < 0.6 and operators and root["operator_codes"]:
        rng.choice(operators)["opcode_index"] = rng.randrange(len(root["operator_codes"]) + 1)
    elif kind < 0.95:
        field = rng.choice(("inputs", "outputs"))
        places = _integers(graph[field])
        if places and rng.random() < 0.4:
            del places[rng.randrange(len(places))]
        else:
            places.insert(rng.randrange(len(places) + 1), rng.randrange(-1, len(graph["tensors"]) + 1))
        graph[field] = places
    else:
        root["subgraphs"].append(dict(graph))


def _change_names(root: Table, rng: random.Random) -> None:
    kind = rng.random()
    if kind < 0.3 and (tensor := _tensor(root, rng)) is not None:
        tensor["name"] = rng.choice((None, *STRINGS))
    elif kind < 0.7 and root["signature_defs"]:
        signature = rng.choice(root["signature_defs"])
        field = rng.choice(("signature_key", "subgraph_index", "inputs", "outputs"))
        if field == "signature_key":
            signature[field] = rng.choice((None, *STRINGS))
        elif field == "subgraph_index":
            signature[field] = rng.choice((0, 1, 7, 2**32 - 1))
        elif signature[field]:
            entry = rng.choice(signature[field])
            entry["tensor_index"] = rng.choice((0, 1, 2, 1000))
            entry["name"] = rng.choice((None, entry["name"], *STRINGS))
    elif kind < 0.8:
        root["version"] = rng.choice((0, 1, 2, 3, 4, 2**32 - 1))
    elif kind < 0.9 and root["metadata"]:
        entry = rng.choice(root["metadata"])
        entry["buffer"], entry["name"] = rng.randrange(len(root["buffers"]) + 2), rng.choice((None, *STRINGS))
    else:
        _graph(root, rng)["name"] = rng.choice(STRINGS)


def _change_sparsity(root: Table, rng: random.Random) -> None:
    tensors = [t for g in root["subgraphs"] for t in g["tensors"] if t["sparsity"] is not None]
    if not tensors:
        return _change_constant(root, rng)
    sparsity = rng.choice(tensors)["sparsity"]
    kind = rng.random()
    if kind < 0.3:
        field = rng.choice(("traversal_order", "block_map"))
        values = _integers(sparsity[field])
        values.insert(rng.randrange(len(values) + 1), rng.choice(INTEGERS))
        sparsity[field] = values[rng.randrange(2) :]
        return None
    dimension = rng.choice(sparsity["dim_metadata"])
    if dimension["format"] == 0 or kind < 0.4:
        dimension["dense_size"] = rng.choice(EXTENTS)
    else:
        vector = dimension[rng.choice(("array_segments", "array_indices"))]
        if vector is not None and vector["values"] is not None:
            values = _integers(vector["values"])
            if values:
                values[rng.randrange(len(values))] = rng.choice((0, 1, 2, 100, 255))
            vector["values"] = values
    return None


_ONES = ("stride_h", "stride_w", "stride_d", "dilation_h_factor", "dilation_w_factor", "dilation_d_factor",
         "filter_height", "filter_width", "depth_multiplier", "block_size", "num_splits", "num", "beta")  # fmt: skip

_KINDS: Sequence[tuple[Callable[[Table, random.Random], Any], float]] = (
    (_change_type, 3),
    (_change_shape, 5),
    (_change_constant, 3),
    (_change_role, 2),
    (_change_operands, 3),
    (_change_opcode, 4),
    (_change_options, 4),
    (_change_quantization, 3),
    (_change_graph, 1.5),
    (_change_names, 0.5),
    (_change_sparsity, 0.5),
)
