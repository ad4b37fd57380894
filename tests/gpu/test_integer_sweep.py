"""Every op on 8-bit tensors in whole numbers: equal to the official runtime's default on every element."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType
from op_cases import OpCase
from quantized_cases import FIXED, KINDS, SAME, WEIGHTS, operators, quantized_case

from litegpu.errors import ModelError
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model import read_model, write_model
from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import Quantization, TensorType

#: What is left to the CPU.
REFUSED = {(kind, op) for kind in ("int8", "uint8") for op in ("REDUCE_PROD", "LOG_SOFTMAX")}
TYPES: dict[TensorType, type[np.generic]] = {
    TensorType.INT8: np.int8,
    TensorType.UINT8: np.uint8,
    TensorType.INT16: np.int16,
    TensorType.FLOAT32: np.float32,
}
#: Of 16 bits, at least in some forms.
WORDS_LEFT = {
    *("BATCH_MATMUL", "CONV_2D", "DEPTHWISE_CONV_2D", "DIV", "FULLY_CONNECTED", "REDUCE_PROD", "SUM"),
    "TRANSPOSE_CONV",
}
#: Of what some forms are: windows smaller than strides, comparisons of quanta above one, results of scales that are so
#: small that the CPU overflows.
PARTLY = {
    *("TRANSPOSE_CONV", "NOT_EQUAL", "EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"),
    *("ADD", "MUL", "SUB"),
}
#: What has tables and results that are quantized alike, and what takes floats alone.
LEFT_OUT = {"EMBEDDING_LOOKUP", "FAKE_QUANT"}
ALL = [(kind, op) for kind in ("int8", "uint8") for op in operators(kind) if (kind, op) not in REFUSED]
ALL = [(kind, op) for kind, op in ALL if op not in LEFT_OUT]
PER_OP, PER_OP_FULL = 4, 60
#: How quantization parameters are chosen: by what the op computes, at random, or so that many results are halves.
WAYS = ("fitting", "odd", "halves")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "op"), ALL)
def test_sample_in_numpy(kind: str, op: str, way: str) -> None:
    for seed in range(PER_OP):
        case = integer_case(op, kind, way, seed)
        if case is not None:
            graph = read_model(case.content).main
            lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs, integer=True)
            _compare(case, evaluate_graph(lowered.graph, case.inputs), seed)


@pytest.mark.parametrize(("kind", "op"), ALL)
def test_sample_on_gpu(kind: str, op: str) -> None:
    for i, way in enumerate(WAYS):
        _sweep(kind, op, way, range(PER_OP + i, PER_OP + i + 1))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "op"), ALL)
def test_full(kind: str, op: str, way: str) -> None:
    _sweep(kind, op, way, range(PER_OP + len(WAYS), PER_OP_FULL))


@pytest.mark.parametrize("op", operators("int16"))
def test_of_words_in_numpy(op: str) -> None:
    """What is not left to the CPU is equal."""
    for seed in range(PER_OP):
        case = quantized_case(op, "int16", seed)
        if case is None or not _runs(case):
            continue
        graph = read_model(case.content).main
        reason = check_operator(graph, graph.operators[0], integer=True)
        assert reason is None or (op in WORDS_LEFT and "arithmetic='integer'" in reason), f"{case.name}: {reason}"
        if reason is None:
            lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs, integer=True)
            _compare(case, evaluate_graph(lowered.graph, case.inputs), seed)


@pytest.mark.parametrize("shape", [(1, 1001), (300, 2), (2, 5, 9), (1, 4, 4, 21)])
def test_softmax_of_words(shape: tuple[int, ...]) -> None:
    for seed in range(12):
        r, n, m = random.Random(seed), np.random.default_rng(seed), ModelBuilder()
        x = m.input("x", shape, TensorType.INT16, quantization=quantized(math.exp(r.uniform(-13, -5)), 0))
        y = m.tensor(shape, TensorType.INT16, "y", quantization=quantized(2.0**-15, 0))
        m.node("SOFTMAX", [x], [y], dict(beta=r.choice((0.5, 1.0, 2.0))))
        m.output(y)
        case = OpCase("SOFTMAX", m.build(), [n.integers(-32768, 32768, shape).astype(np.int16)])
        graph = read_model(case.content).main
        lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs, integer=True)
        _compare(case, evaluate_graph(lowered.graph, case.inputs), seed)


@pytest.mark.parametrize("op", ["LOGISTIC", "TANH", "GELU", "ADD", "SOFTMAX"])
def test_of_words_on_gpu(op: str) -> None:
    require_gpu()
    case = quantized_case(op, "int16", 1)
    assert case is not None
    _compare(case, run(on_gpu(case.content, arithmetic="integer"), case.inputs), 1)


@pytest.mark.parametrize("made", list(TYPES), ids=lambda t: t.name)
@pytest.mark.parametrize("given", list(TYPES), ids=lambda t: t.name)
def test_from_one_quantization_to_another(given: TensorType, made: TensorType) -> None:
    """QUANTIZE and DEQUANTIZE of each type; of rows that do not fill the CPU's SIMD lanes, too."""
    if given is made is TensorType.FLOAT32 or (given, made) == (TensorType.INT16, TensorType.UINT8):
        pytest.skip("the runtime has none")
    for seed in range(12):
        r, n, m, shape = random.Random(seed), np.random.default_rng(seed), ModelBuilder(), (1, 1 + seed % 3, 40)
        scales = [math.exp(r.uniform(-6, 1)) / (256 if t is TensorType.INT16 else 1) for t in (given, made)]
        bytes_ = {given, made} == {TensorType.INT8, TensorType.UINT8}
        scales[1] = scales[0] if seed % 2 else scales[1]
        parameters = []
        for t, scale in zip((given, made), scales, strict=True):
            low, high = (0, 0) if t is TensorType.INT16 else (0, 255) if t is TensorType.UINT8 else (-128, 127)
            parameters.append(None if t is TensorType.FLOAT32 else quantized(scale, r.randint(low, high)))
        x = m.input("x", shape, given, quantization=parameters[0])
        y = m.tensor(shape, made, "y", quantization=parameters[1])
        m.node("DEQUANTIZE" if made is TensorType.FLOAT32 else "QUANTIZE", [x], [y])
        m.output(y)
        if given is TensorType.FLOAT32:
            array = (n.integers(-300, 300, shape) * scales[1] / 2).astype(np.float32)
        else:
            limits = np.iinfo(given.name.lower())
            array = n.integers(limits.min, limits.max + 1, shape).astype(TYPES[given])
        case = OpCase("QUANTIZE", m.build(), [array])
        graph = read_model(case.content).main
        reason = check_operator(graph, graph.operators[0], integer=True)
        assert (reason is None) == (not bytes_ or scales[0] == scales[1]), reason
        if reason is None:
            lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs, integer=True)
            _compare(case, evaluate_graph(lowered.graph, case.inputs), seed)


@pytest.mark.parametrize("half", [False, True])
def test_words_between_kernels(half: bool) -> None:
    """Float16 does not hold them."""
    require_gpu()
    m, n, shape = ModelBuilder(), np.random.default_rng(0), (1, 8, 8, 16)
    x, y = (m.input(name, shape, TensorType.INT16, quantization=quantized(0.001, 0)) for name in "xy")
    made = [m.tensor(shape, TensorType.INT16, f"t{i}", quantization=quantized(0.002, 0)) for i in range(2)]
    m.node("ADD", [x, y], [made[0]], {"pot_scale_int16": False})
    m.node("MUL", [made[0], x], [made[1]], {})
    pooled = m.tensor((1, 4, 4, 16), TensorType.INT16, "p", quantization=quantized(0.002, 0))
    window = dict(filter_height=2, filter_width=2, stride_h=2, stride_w=2, padding=1)
    m.node("MAX_POOL_2D", [made[1]], [pooled], window)
    m.output(made[1])
    m.output(pooled)
    case = OpCase("chain", m.build(), [n.integers(-32768, 32768, shape).astype(np.int16) for _ in "xy"])
    gpu = on_gpu(case.content, arithmetic="integer", precision_loss_allowed=half)
    assert gpu.delegation_report().fully_delegated
    _compare(case, run(gpu, case.inputs), 0)


@pytest.mark.parametrize("rest", [0, 7])
def test_sums_of_words_by_sixteens(rest: int) -> None:
    """The CPU's kernel rounds the terms of these once, and those of what is left over twice."""
    m, n, count = ModelBuilder(), np.random.default_rng(0), (1 << 18) + rest
    q = [quantized(s, 0) for s in (0.0011, 0.0017, 0.0021)]
    x, y = (m.input(name, (count,), TensorType.INT16, quantization=p) for name, p in zip("xy", q, strict=False))
    z = m.tensor((count,), TensorType.INT16, "z", quantization=q[2])
    m.node("ADD", [x, y], [z], {"pot_scale_int16": False})
    m.output(z)
    case = OpCase("ADD", m.build(), [n.integers(-32768, 32768, count).astype(np.int16) for _ in "xy"])
    graph = read_model(case.content).main
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs, integer=True)
    _compare(case, evaluate_graph(lowered.graph, case.inputs), 0)


@pytest.mark.parametrize(("op", "largest"), [("ADD", 256), ("SUB", 256), ("MUL", 256)])
def test_scales_by_which_the_cpu_overflows(op: str, largest: float) -> None:
    """Up to a ratio it is equal, beyond it is left."""
    n = np.random.default_rng(0)
    given = [n.integers(-128, 128, (16, 40)).astype(np.int8) for _ in "xy"]
    for ratio, known in ((0.9 * largest, True), (1.1 * largest, False)):
        m = ModelBuilder()
        scale, made = 0.05, (0.05 if op != "MUL" else 0.05**2) / ratio
        operands = [m.input(name, (16, 40), TensorType.INT8, quantization=quantized(scale, 3)) for name in "xy"]
        m.node(op, operands, [z := m.tensor((16, 40), TensorType.INT8, "z", quantization=quantized(made, -90))], {})
        m.output(z)
        case = OpCase(op, m.build(), given)
        graph = read_model(case.content).main
        reason = check_operator(graph, graph.operators[0], integer=True)
        assert (reason is None) == known, reason
        if known:
            lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs, integer=True)
            _compare(case, evaluate_graph(lowered.graph, given), 0)


@pytest.mark.parametrize(("kind", "op"), sorted(REFUSED))
def test_what_is_not_known_is_left_to_the_cpu(kind: str, op: str) -> None:
    case = quantized_case(op, kind, 0) if op in operators(kind) else None
    if case is None:
        pytest.skip("the runtime has none")
    graph = read_model(case.content).main
    reason = check_operator(graph, graph.operators[0], integer=True)
    assert reason is not None and "arithmetic='integer'" in reason
    assert check_operator(graph, graph.operators[0]) is None


@pytest.mark.parametrize("op", ["ADD_N", "ATAN2", "CUMSUM", "POW"])
def test_what_real_numbers_alone_are_known_for_is_left_to_the_cpu(op: str) -> None:
    case = quantized_case(op, "int8", 0)
    assert case is not None
    graph = read_model(case.content).main
    assert check_operator(graph, graph.operators[0]) is None
    assert "arithmetic='integer'" in str(check_operator(graph, graph.operators[0], integer=True))


def integer_case(op: str, kind: str, way: str, seed: int) -> OpCase | None:
    """A case that the official runtime runs and the GPU takes."""
    try:
        case = quantized_case(op, kind, seed)
    except ValueError:  # it takes no real numbers
        return None
    if case is not None and way != "fitting":
        case = None if op in WEIGHTS else _requantized(case, kind, way == "halves", seed)
    if case is None:
        return None
    try:
        graph = read_model(case.content).main
    except ModelError:
        return None
    if check_operator(graph, graph.operators[0]) is not None or not _runs(case):
        return None
    reason = check_operator(graph, graph.operators[0], integer=True)
    assert reason is None or (op in PARTLY and "arithmetic='integer'" in reason), f"{case.name}: {reason}"
    return case if reason is None else None


def _requantized(case: OpCase, kind: str, halves: bool, seed: int) -> OpCase:
    """The case with other scales and zero points, and stored numbers of the whole range."""
    chosen, noise = random.Random(f"{case.name} {seed}"), np.random.default_rng(seed)
    model = read_model(case.content)
    main, low = model.main, -128 if kind == "int8" else 0
    (operator,) = main.operators

    def parameters() -> Quantization:
        scale = 2.0 ** chosen.randint(-6, -1) if halves else math.exp(chosen.uniform(-6, 1))
        zero = low + chosen.choice((0, 255, 128, chosen.randint(0, 255), chosen.randint(0, 255)))
        return Quantization(np.array([scale], np.float32), np.array([zero], np.int64))

    shared, tensors = parameters(), list(main.tensors)
    for i in dict.fromkeys((*operator.inputs, *operator.outputs)):
        fixed = operator.name in FIXED and i in operator.outputs
        if i >= 0 and tensors[i].type is KINDS[kind] and not fixed:
            found = shared if operator.name in SAME else parameters()
            tensors[i] = dataclasses.replace(tensors[i], quantization=found)
    inputs = [
        noise.integers(low, low + 256, a.shape).astype(a.dtype) if tensors[i].type is KINDS[kind] else a
        for i, a in zip(main.inputs, case.inputs, strict=True)
    ]
    changed = dataclasses.replace(main, tensors=tuple(tensors))
    return OpCase(case.name, write_model(dataclasses.replace(model, subgraphs=(changed,))), inputs)


def _runs(case: OpCase) -> bool:
    try:
        run(official(case.content, OpResolverType.BUILTIN), case.inputs)
    except (RuntimeError, ValueError):
        return False
    return True


def _sweep(kind: str, op: str, way: str, seeds: range) -> None:
    require_gpu()
    for seed in seeds:
        case = integer_case(op, kind, way, seed)
        if case is None:
            continue
        gpu = on_gpu(case.content, arithmetic="integer")
        assert gpu.delegation_report().fully_delegated, case.name
        _compare(case, run(gpu, case.inputs), seed)


def _compare(case: OpCase, got: list[np.ndarray], seed: int) -> None:
    wanted = run(official(case.content, OpResolverType.BUILTIN), case.inputs)
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        np.testing.assert_array_equal(a.reshape(b.shape), b, err_msg=f"{case.name} (seed {seed}) output {i}")
