"""Operators of StableHLO with bodies, and REDUCE_WINDOW, against the official runtime at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from lowered_case import check
from op_cases import OpCase

from litegpu.gpu.lower import check_operator
from litegpu.model import TensorType, read_model
from litegpu.model.writer import ModelBuilder

KINDS = ("float32", "int32", "bool", "int8", "uint8", "int16")
ASSIGN = ""
BODIES = ("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM")


def body(model: ModelBuilder, name: str, kind: TensorType, turned: bool = False) -> int:
    graph = model.subgraph("body")
    a, b = graph.input("a", (), kind), graph.input("b", (), kind)
    graph.output(b if name == ASSIGN else graph.op(name, [b, a] if turned else [a, b], (), type=kind))
    return graph.index


def numbers(rng: random.Random, shape: Sequence[int], kind: str) -> np.ndarray:
    made = np.random.default_rng(rng.getrandbits(32))
    if kind == "float32":
        return made.standard_normal(shape).astype(np.float32)
    low = 0 if kind in ("bool", "uint8") else -3
    return made.integers(low, 2 if kind == "bool" else 4, shape).astype(kind)


def scatter(rng: random.Random) -> OpCase:
    name, kind = rng.choice((ASSIGN, *BODIES)), rng.choice(KINDS)
    type_ = TensorType[kind.upper()]
    x = tuple(rng.randint(1, 5) for _ in range(rng.randint(1, 4)))
    width = rng.randint(1, len(x))
    order = rng.sample(range(len(x)), width)
    inserted = sorted(rng.sample(range(len(x)), rng.randint(0, len(x))))
    kept = [rng.randint(1, x[a]) for a in range(len(x)) if a not in inserted]
    batch = tuple(rng.randint(1, 4) for _ in range(rng.randint(0, 2)))
    vector = rng.randint(0, len(batch))
    drawn = [[rng.randint(-1, x[a]) for a in order] for _ in range(int(np.prod(batch)))]
    indices = np.moveaxis(np.array(drawn, np.int32).reshape(*batch, width), -1, vector)
    rank = len(batch) + len(kept)
    windows = sorted(rng.sample(range(rank), len(kept)))
    rest, sizes = iter(batch), iter(kept)
    updates = tuple(next(sizes) if d in windows else next(rest) for d in range(rank))
    model = ModelBuilder()
    options: dict[str, Any] = dict(
        update_window_dims=windows, inserted_window_dims=inserted, scatter_dims_to_operand_dims=order,
        index_vector_dim=vector, unique_indices=False, indices_are_sorted=False,
    )  # fmt: skip
    operand, given = numbers(rng, x, kind), numbers(rng, updates, kind)
    inputs = [model.input("x", x, type_)]
    arrays = [operand]
    if rng.random() < 0.5:
        inputs.append(model.constant(indices))
    else:
        inputs.append(model.input("indices", indices.shape, TensorType.INT32))
        arrays.append(indices)
    inputs.append(model.input("updates", updates, type_))
    arrays.append(given)
    options["update_computation_subgraph_index"] = body(model, name, type_, rng.random() < 0.5)
    model.output(model.op("STABLEHLO_SCATTER", inputs, x, options, type=type_))
    return OpCase(f"STABLEHLO_SCATTER {name} {kind}", model.build(), arrays)


def windows(rng: random.Random) -> OpCase:
    kind = rng.choice(KINDS)
    name = rng.choice((*BODIES, "STABLEHLO_AND") if kind == "bool" else BODIES)
    type_ = TensorType[kind.upper()]
    x = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 5)))
    inner = [rng.choice((1, 1, 2)) for _ in x]
    low, high = ([rng.choice((0, 0, 1, 2)) for _ in x] for _ in range(2))
    whole = [(n - 1) * d + 1 + a + b for n, d, a, b in zip(x, inner, low, high, strict=True)]
    size = [rng.randint(1, min(3, n)) for n in whole]
    apart = [rng.choice((1, 2)) if (k - 1) * 2 < n else 1 for k, n in zip(size, whole, strict=True)]
    stride = [rng.choice((1, 1, 2, 3)) for _ in x]
    reach = zip(whole, size, apart, stride, strict=True)
    shape = tuple((n - (k - 1) * d - 1) // s + 1 for n, k, d, s in reach)
    model = ModelBuilder()
    begin = numbers(rng, (), kind)
    options: dict[str, Any] = dict(
        window_dimensions=size, window_strides=stride, base_dilations=inner, window_dilations=apart,
        padding=[n for pair in zip(low, high, strict=True) for n in pair],
    )  # fmt: skip
    inputs = [model.input("x", x, type_), model.constant(begin)]
    options["body_subgraph_index"] = body(model, name, type_)
    model.output(model.op("STABLEHLO_REDUCE_WINDOW", inputs, shape, options, type=type_))
    return OpCase(f"STABLEHLO_REDUCE_WINDOW {name} {kind}", model.build(), [numbers(rng, x, kind)])


def builtin_windows(rng: random.Random) -> OpCase:
    kind = rng.choice(KINDS)
    function = rng.choice(("ALL", "ANY") if kind == "bool" else ("ADD", "MUL", "MINIMUM", "MAXIMUM"))
    type_ = TensorType[kind.upper()]
    x = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 5)))
    size = [rng.randint(1, min(3, n)) for n in x]
    apart = [rng.choice((1, 2)) if (k - 1) * 2 < n else 1 for k, n in zip(size, x, strict=True)]
    stride = [rng.choice((1, 1, 2, 3)) for _ in x]
    shape = tuple((n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(x, size, apart, stride, strict=True))
    model = ModelBuilder()
    inputs = [model.input("x", x, type_), model.constant(numbers(rng, (), kind))]
    inputs += [model.constant(np.array(a, np.int64)) for a in (size, stride, apart)]
    model.output(model.op("REDUCE_WINDOW", inputs, shape, dict(reduce_function=function), type=type_))
    return OpCase(f"REDUCE_WINDOW {function} {kind}", model.build(), [numbers(rng, x, kind)])


MAKERS = {"scatter": scatter, "windows": windows, "builtin windows": builtin_windows}


@pytest.mark.parametrize("first", range(0, 90, 10))
@pytest.mark.parametrize("name", MAKERS)
def test_in_numpy(name: str, first: int) -> None:
    for seed in range(first, first + 10):
        check(MAKERS[name](random.Random(f"{name} {seed}")), seed)


@pytest.mark.parametrize("first", range(0, 12, 4))
@pytest.mark.parametrize("name", MAKERS)
def test_on_the_gpu(name: str, first: int) -> None:
    require_gpu()
    _on("webgpu", name, range(first, first + 4))


@pytest.mark.cuda
@pytest.mark.parametrize("name", MAKERS)
def test_on_cuda(name: str) -> None:
    from litegpu.gpu.backends.cuda.opening import available

    if (why := available()) is not None:
        pytest.skip(f"no CUDA device: {why}")
    _on("cuda", name, range(100, 104))


def _on(backend: str, name: str, seeds: range) -> None:
    for seed in seeds:
        case = MAKERS[name](random.Random(f"{name} {seed}"))
        gpu = on_gpu(case.content, backend=backend, max_delegated_partitions=0)
        assert gpu.delegation_report().fully_delegated, gpu.delegation_report().summary()
        for _ in range(2):
            for got, want in zip(run(gpu, case.inputs), run(official(case.content), case.inputs), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=f"{case.name} {seed}")


def test_updates_of_one_place_come_in_order() -> None:
    """The last is kept; a sum is of all."""
    for name, wanted in ((ASSIGN, [0, 7, 0, 0]), ("STABLEHLO_ADD", [0, 12, 0, 0])):
        model = ModelBuilder()
        inputs = [model.input("x", (4,)), model.constant(np.array([[1], [1], [4], [-1]], np.int32))]
        inputs.append(model.input("updates", (4,)))
        options = dict(
            update_window_dims=[], inserted_window_dims=[0], scatter_dims_to_operand_dims=[0], index_vector_dim=1,
            update_computation_subgraph_index=body(model, name, TensorType.FLOAT32),
        )  # fmt: skip
        model.output(model.op("STABLEHLO_SCATTER", inputs, (4,), options))
        arrays = [np.zeros(4, np.float32), np.array([5, 7, 9, 9], np.float32)]
        check(OpCase(name, model.build(), arrays), 0)
        np.testing.assert_array_equal(run(official(model.build()), arrays)[0], wanted)


@pytest.mark.parametrize("name", ["ADD", "MUL", "MAXIMUM", "MINIMUM"])
def test_bodies_as_the_converter_writes_them(name: str) -> None:
    """JAX's cumulative products and the like: a body of an operator that is none of StableHLO's."""
    model = ModelBuilder()
    options = dict(
        window_dimensions=[1, 4], window_strides=[1, 1], base_dilations=[1, 1], window_dilations=[1, 1],
        padding=[0, 0, 3, 0], body_subgraph_index=body(model, name, TensorType.FLOAT32),
    )  # fmt: skip
    x, begin = model.input("x", (3, 4)), model.constant(np.array(1, np.float32))
    model.output(model.op("STABLEHLO_REDUCE_WINDOW", [x, begin], (3, 4), options))
    main = read_model(model.build()).main
    assert check_operator(main, main.operators[0]) is None
    arrays = [numbers(random.Random(name), (3, 4), "float32")]
    for got, want in zip(run(on_gpu(model.build(), backend="reference"), arrays),
                         run(official(model.build()), arrays), strict=True):  # fmt: skip
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_bodies_of_several_operators_are_not_known() -> None:
    model = ModelBuilder()
    graph = model.subgraph("body")
    a, b = graph.input("a", ()), graph.input("b", ())
    graph.output(graph.op("STABLEHLO_ADD", [a, graph.op("STABLEHLO_ADD", [a, b], ())], ()))
    options = dict(window_dimensions=[2], window_strides=[1], base_dilations=[1], window_dilations=[1], padding=[0, 0],
                   body_subgraph_index=graph.index)  # fmt: skip
    x = model.input("x", (4,))
    model.output(model.op("STABLEHLO_REDUCE_WINDOW", [x, model.constant(np.zeros((), np.float32))], (3,), options))
    main = read_model(model.build()).main
    assert "its body is not one operator" in (check_operator(main, main.operators[0]) or "")


def test_a_body_that_keeps_what_was_there_is_not_known() -> None:
    model = ModelBuilder()
    graph = model.subgraph("body")
    a, _ = graph.input("a", ()), graph.input("b", ())
    graph.output(a)
    inputs = [model.input("x", (4,)), model.constant(np.array([[1]], np.int32)), model.input("updates", (1,))]
    options = dict(
        update_window_dims=[], inserted_window_dims=[0], scatter_dims_to_operand_dims=[0], index_vector_dim=1,
        update_computation_subgraph_index=graph.index,
    )  # fmt: skip
    model.output(model.op("STABLEHLO_SCATTER", inputs, (4,), options))
    main = read_model(model.build()).main
    assert "its body is not one operator" in (check_operator(main, main.operators[0]) or "")
