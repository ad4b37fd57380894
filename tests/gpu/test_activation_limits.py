"""Limits of fused activations halfway between two stored numbers: rounded as the kernel rounds that the CPU uses."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType

from litegpu.delegates.xnnpack import partitions_of
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import TensorType

Array = np.ndarray[Any, np.dtype[Any]]

#: The fused activations, and a real number that limits their results.
ACTIVATIONS = {"RELU": (1, 1.0), "RELU_N1_TO_1": (2, 1.0), "RELU6": (3, 6.0)}
TYPES = {"int8": TensorType.INT8, "uint8": TensorType.UINT8, "int16": TensorType.INT16}
SUMS, POOLS = ("ADD", "SUB", "MUL"), ("MAX_POOL_2D", "AVERAGE_POOL_2D")
LAYERS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")
OPS = (*SUMS, *POOLS, *LAYERS)
#: Windows, strides and paddings of pools. XNNPACK takes those whose windows leave nothing out.
WINDOWS = [((1, 1), (1, 1), 1), ((2, 2), (2, 2), 1), ((3, 2), (1, 2), 0), ((1, 1), (2, 2), 1), ((3, 1), (1, 2), 0)]
#: The scales of both operands for that of the result, and whether the second is one element.
OPERANDS = [((1.0, 1.0), False), ((1.3, 0.6), False), ((1.0, 1.0), True), ((0.7, 1.9), True)]
STEPS = (1, 2, 3, 8, 9, 20, 84, 85, 126, 127)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    name: str
    content: bytes
    inputs: list[Array]


def grids(kind: str, limit: float, seed: int) -> Iterator[tuple[float, int]]:
    """Scales of which there are n + 1/2 in the limit, or all but that, with even and odd zero points."""
    r, low = random.Random(f"{kind} {limit} {seed}"), np.iinfo(kind).min
    for n in STEPS:
        scale = np.float32(limit / ((n if kind != "int16" else 100 * n + n % 2) + 0.5))
        towards = np.float32(r.choice((0, 9)))
        for _ in range(r.choice((0, 0, 1, 2, 4))):
            scale = np.nextafter(scale, towards)
        zero = (
            0 if kind == "int16" else low + r.choice((0, 1, 27, 100, 127, 128, 129, 200, 254, 255, r.randint(0, 255)))
        )
        yield float(scale), zero


def cases(op: str, kind: str, seed: int) -> Iterator[Case]:
    forms: list[Any] = [*OPERANDS] if op in SUMS else [*WINDOWS] if op in POOLS else [None]
    for (activation, (code, limit)), form in itertools.product(ACTIVATIONS.items(), forms):
        for scale, zero in grids(kind, limit, seed):
            made = _summed if op in SUMS else _pooled if op in POOLS else _layer
            content, inputs = made(op, kind, scale, zero, code, form)
            yield Case(f"{op} {kind} {activation} {form} scale {scale!r} zero {zero}", content, inputs)


def _numbers(kind: str) -> Array:
    """All numbers of a type, or some of all magnitudes."""
    limits = np.iinfo(kind)
    return np.linspace(limits.min, limits.max, 256).astype(kind)


def _summed(op: str, kind: str, scale: float, zero: int, code: int, form: Any) -> tuple[bytes, list[Array]]:
    (first, second), alone = form
    m, x, shape = ModelBuilder(), _numbers(kind), (1, 4, 256)
    if op == "MUL":  # by a factor below 1, as the built-in kernels need
        first, second = (0.7 * f / scale**0.5 for f in (first, second))
    y = x[-1:] if alone else np.stack([x[::-1], x, np.full_like(x, x[0]), np.full_like(x, x[-1])])
    given = [np.broadcast_to(x, shape).copy(), y.reshape((1,) if alone else shape)]
    operands = [
        m.input(name, a.shape, TYPES[kind], quantization=quantized(scale * f, zero))
        for name, a, f in zip("xy", given, (first, second), strict=True)
    ]
    options = {"fused_activation_function": code} | ({"pot_scale_int16": False} if op != "MUL" else {})
    m.node(op, operands, [z := m.tensor(shape, TYPES[kind], "z", quantization=quantized(scale, zero))], options)
    m.output(z)
    return m.build(), given


def _pooled(op: str, kind: str, scale: float, zero: int, code: int, form: Any) -> tuple[bytes, list[Array]]:
    window, stride, padding = form
    m, x, q = ModelBuilder(), np.broadcast_to(_numbers(kind), (1, 4, 4, 256)).copy(), quantized(scale, zero)
    size = [-(-4 // s) if padding == 0 else (4 - w) // s + 1 for w, s in zip(window, stride, strict=True)]
    options = dict(zip(("filter_height", "filter_width", "stride_h", "stride_w"), (*window, *stride), strict=True))
    given = m.input("x", x.shape, TYPES[kind], quantization=q)
    made = m.tensor((1, *size, 256), TYPES[kind], "z", quantization=q)
    m.node(op, [given], [made], options | {"padding": padding, "fused_activation_function": code})
    m.output(made)
    return m.build(), [x]


def _layer(op: str, kind: str, scale: float, zero: int, code: int, form: Any) -> tuple[bytes, list[Array]]:
    """A layer of one weight, which gives twice what it is given."""
    m, dense, unsigned = ModelBuilder(), op == "FULLY_CONNECTED", kind == "uint8"
    shape, ones = ((256, 1), (1, 1)) if dense else ((1, 16, 16, 1), (1, 1, 1, 1))
    x = _numbers(kind).reshape(shape)
    weights = np.full(ones, 16 + 128 * unsigned, np.uint8 if unsigned else np.int8)
    given = m.input("x", shape, TYPES[kind], quantization=quantized(scale, zero))
    operands = [given, m.constant(weights, quantization=quantized(1 / 8, 128 * unsigned))]
    if op == "TRANSPOSE_CONV":
        operands = [m.constant(np.array(shape, np.int32)), operands[1], given]
    bias = np.zeros(1, np.int64 if kind == "int16" else np.int32)
    operands.append(m.constant(bias, quantization=quantized(scale / 8, 0)))
    made = m.tensor(shape, TYPES[kind], "z", quantization=quantized(scale, zero))
    options = {"fused_activation_function": code}
    if not dense:
        options |= dict(padding=1, stride_h=1, stride_w=1)
    if op in ("CONV_2D", "DEPTHWISE_CONV_2D"):
        options |= dict(dilation_h_factor=1, dilation_w_factor=1)
    if op == "DEPTHWISE_CONV_2D":
        options["depth_multiplier"] = 1
    m.node(op, operands, [made], options)
    m.output(made)
    return m.build(), [x]


ALL = [(op, kind) for op in OPS for kind in TYPES]


@pytest.mark.parametrize("xnnpack", [True, False])
@pytest.mark.parametrize("integer", [True, False])
@pytest.mark.parametrize(("op", "kind"), ALL)
def test_in_numpy(op: str, kind: str, integer: bool, xnnpack: bool) -> None:
    """Without XNNPACK, and of words that are real numbers, the reference kernels are what there is to equal."""
    compared, reference = 0, not (integer if kind == "int16" else xnnpack)
    for case in cases(op, kind, 0):
        graph = read_model(case.content).main
        if check_operator(graph, graph.operators[0], integer=integer) is not None:
            assert op == "TRANSPOSE_CONV" and kind == "int16", case.name
            continue
        lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs, integer=integer, xnnpack=xnnpack)
        _compare(case, evaluate_graph(lowered.graph, case.inputs), reference)
        compared += 1
    assert compared or (op, kind) == ("TRANSPOSE_CONV", "int16")


@pytest.mark.parametrize("arithmetic", ["integer", "float"])
@pytest.mark.parametrize("op", OPS)
def test_on_gpu(op: str, arithmetic: str) -> None:
    require_gpu()
    for case in list(cases(op, "int8", 1))[12::20]:
        gpu = on_gpu(case.content, arithmetic=arithmetic)
        assert gpu.delegation_report().fully_delegated, case.name
        _compare(case, run(gpu, case.inputs))


def test_which_pools_xnnpack_takes() -> None:
    """So the cases have both rules."""
    taken = []
    for window in WINDOWS:
        interpreter = official(_pooled("MAX_POOL_2D", "int8", 0.4, 0, 2, window)[0], OpResolverType.BUILTIN)
        taken.append(bool(partitions_of(interpreter)))
    assert taken == [True, True, True, False, False]


def _compare(case: Case, got: list[Array], reference: bool = False) -> None:
    kernels = OpResolverType.BUILTIN_REF if reference else OpResolverType.BUILTIN
    wanted = run(official(case.content, kernels), case.inputs)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a.reshape(b.shape), b, err_msg=case.name)
