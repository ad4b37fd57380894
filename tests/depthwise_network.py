"""Networks around a depthwise convolution, for the tests of its native kernels."""

from __future__ import annotations

import numpy as np
from first_output import first_output

from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import RESULT, Arg, Conv2D, DepthwiseConv2D, DType, GraphBuilder, apply

SAME = DepthwiseConv2D(padding=(1, 1))


def network(shape, taps, op=SAME, *, direct=False, residual=False, weights=None):
    """x -> 1x1 convolution (unless `direct`), relu -> depthwise + bias (+ its own input), relu6 -> twice that, so that
    the depthwise convolution's input and output are intermediates."""
    rng = np.random.default_rng(0)
    builder = GraphBuilder()
    b, h, w, c = shape
    x = builder.value(shape, DType.FLOAT32)
    middle = x
    if not direct:
        eye = builder.constant(np.eye(c, dtype=np.float32).reshape(c, 1, 1, c))
        middle = builder.node(Conv2D(), [x, eye], builder.value(shape, DType.FLOAT32), apply("max", RESULT, 0.0))
    size = [
        (n + 2 * p - ((k - 1) * d + 1)) // s + 1
        for n, p, k, d, s in zip((h, w), op.padding, taps, op.dilation, op.stride, strict=True)
    ]
    if weights is None:
        weights = rng.standard_normal((1, *taps, c * op.multiplier))
    outputs = weights.shape[3]
    expression, operands = apply("add", RESULT, Arg(1)), [builder.constant(rng.standard_normal((1, 1, 1, outputs)))]
    if residual:
        expression, operands = apply("add", expression, Arg(2)), [*operands, middle]
    expression = apply("min", apply("max", expression, -6.0), 6.0)
    out = builder.value((b, *size, outputs), DType.FLOAT32)
    builder.node(op, [middle, builder.constant(weights)], out, expression, operands)
    if direct:
        return builder.graph([x], [out]), rng.standard_normal(shape).astype(np.float32)
    eye = builder.constant(2 * np.eye(outputs, dtype=np.float32).reshape(outputs, 1, 1, outputs))
    last = builder.node(Conv2D(padding=(1, 1)), [out, eye], builder.value((b, size[0] + 2, size[1] + 2, outputs),
                                                                           DType.FLOAT32))  # fmt: skip
    return builder.graph([x], [last]), rng.standard_normal(shape).astype(np.float32)


def run(device, graph, x, half: bool, features=None, kernel: str | None = "blocked_depthwise") -> np.ndarray:
    """What the device gives, by this native kernel, or None of them."""
    program = build_program(graph, features or device.features, "cuda", half=half)
    names = {k.name for k in program.kernels} & {"blocked_depthwise", "long_depthwise"}
    assert names == (set() if kernel is None else {kernel})
    return first_output(device, program, [x], graph.values[graph.outputs[0]].shape)


def check(device, graph, x, half: bool, kernel: str | None = "blocked_depthwise") -> None:
    """That it agrees with NumPy."""
    got = run(device, graph, x, half, kernel=kernel)
    (want,) = evaluate_graph(graph, [x])
    assert np.isfinite(want).all() and np.isfinite(got).all()
    assert np.linalg.norm(got - want) <= (2e-3 if half else 1e-6) * np.linalg.norm(want)
