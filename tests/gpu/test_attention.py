"""Attention in one kernel, against the official CPU runtime's separate operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from agreement import FLOAT16, FLOAT32, assert_agrees, official, on_gpu, require_gpu, run

from litegpu.gpu.build import build_program
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.graph import Attention, Copy, Elementwise
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower import lower_partition
from litegpu.gpu.passes import optimise
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType


def network(
    lead=(2, 3), m=5, n=9, d=8, e=8, *, scale: str = "mul", masked=None, shared=False, learnt=False, pictures=0,
    chosen="", low=-3e38, expanded=False,
) -> bytes:  # fmt: skip
    """`chosen`: what is left ("kept") or replaced by `low` ("hidden") of the logits is computed from words, and
    (`expanded`) repeated for each of them. `shared`:
    keys and values are those of all the batch, `learnt`: the queries are. With `pictures` the batch is the windows of
    so many, each of which has a mask for each of its windows."""
    b = ModelBuilder()
    q, k = (
        b.input("q", (1 if learnt else lead[0], lead[1], m, d)),
        b.input("k", (1 if shared else lead[0], lead[1], n, d)),
    )
    v = b.input("v", (1 if shared else lead[0], lead[1], n, e))
    whole = (*lead, m, n)
    logits = b.op("BATCH_MATMUL", [q, k], whole, {"adj_y": True})
    if scale == "mul":
        logits = b.op("MUL", [logits, b.constant(np.array(d**-0.5, np.float32))], whole)
    elif scale == "div":
        logits = b.op("DIV", [logits, b.constant(np.array(d**0.5, np.float32))], whole)
    if masked is not None:
        logits = b.op("ADD", [logits, b.input("mask", masked)], whole)
    if scale == "after":
        logits = b.op("MUL", [logits, b.constant(np.array(d**-0.5, np.float32))], whole)
    if chosen:
        words, places = b.input("words", (lead[0], n), TensorType.INT32), (lead[0], 1, 1, n)
        operator = "EQUAL" if chosen == "hidden" else "NOT_EQUAL"
        which = b.op(operator, [words, b.constant(np.int32(0))], (lead[0], n), type=TensorType.BOOL)
        which = b.op("RESHAPE", [which, b.constant(np.array(places, np.int32))], places)
        if expanded:
            which = b.op("BROADCAST_TO", [which, b.constant(np.array(whole, np.int32))], whole)
        filled = b.constant(np.array(low, np.float32))
        logits = b.op("SELECT_V2", [which, *([filled, logits] if chosen == "hidden" else [logits, filled])], whole)
    if pictures:
        rng = np.random.default_rng(1)
        bias = rng.standard_normal((1, lead[1], m, n)).astype(np.float32)
        logits = b.op("ADD", [logits, b.constant(bias)], whole)
        apart = (pictures, lead[0] // pictures, lead[1], m * n)
        mask = rng.standard_normal((1, apart[1], 1, m * n)).astype(np.float32)
        logits = b.op("RESHAPE", [logits, b.constant(np.array(apart, np.int32))], apart)
        logits = b.op("ADD", [logits, b.constant(mask)], apart)
        logits = b.op("RESHAPE", [logits, b.constant(np.array(whole, np.int32))], whole)
    weights = b.op(
        "SOFTMAX", [logits], whole, {"beta": {"beta": 0.5, "no beta": 0.0, "negative": -1.0}.get(scale, 1.0)}
    )
    b.output(b.op("BATCH_MATMUL", [weights, v], (*lead, m, e)))
    return b.build()


CASES: dict[str, dict[str, Any]] = {
    "plain": dict(), "one key": dict(n=1), "odd": dict(lead=(1, 5), m=3, n=17, d=5, e=3), "one column": dict(d=1, e=1),
    "many keys": dict(lead=(1, 2), m=4, n=100, d=17, e=12), "divided": dict(scale="div"), "unscaled": dict(scale=""),
    "beta": dict(scale="beta"), "masked": dict(masked=(2, 1, 5, 9)), "row mask": dict(masked=(1, 1, 1, 9)),
    "scaled with the mask": dict(lead=(2, 3), d=36, masked=(2, 3, 5, 9), scale="after"),
    "windows": dict(lead=(6, 2), pictures=3), "a window each": dict(lead=(3, 2), pictures=3),
    "windows of one picture": dict(lead=(4, 2), pictures=1), "shared keys": dict(shared=True),
    "words": dict(lead=(3, 2), chosen="kept"), "padding": dict(lead=(3, 2), n=40, chosen="hidden", low=-1e9),
    "learnt queries": dict(learnt=True), "learnt and masked": dict(lead=(3, 2), learnt=True, masked=(3, 1, 1, 9)),
    "wide": dict(lead=(1, 1), m=3, n=40, d=64, e=100),
}  # fmt: skip


def inputs_of(content: bytes, scale: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    model = read_model(content).main
    return [
        words(model.tensors[i].shape)
        if model.tensors[i].type is TensorType.INT32
        else (rng.standard_normal(model.tensors[i].shape) * scale).astype(np.float32)
        for i in model.inputs
    ]


def words(shape: tuple[int, ...]) -> np.ndarray:
    """Fewer in each sentence than in the one before, none in the last."""
    count = np.linspace(shape[1], 0, shape[0]).astype(np.int32)[:, None]
    return np.where(np.arange(shape[1]) < count, 7, 0).astype(np.int32)


def joined(content: bytes, features: Features) -> bool:
    model = read_model(content).main
    graph = optimise(lower_partition(model, model.operators, model.inputs, model.outputs).graph, features)
    return [type(n.op) for n in graph.nodes if not isinstance(n.op, (Copy, Elementwise))] == [Attention]


@pytest.mark.parametrize("d, e, joins", [(256, 8, True), (257, 8, False), (8, 128, True), (8, 129, False)])
def test_what_a_thread_s_registers_hold(d: int, e: int, joins: bool) -> None:
    assert joined(network(lead=(1, 1), m=2, n=3, d=d, e=e), Features()) == joins


@pytest.mark.parametrize("inner", ["SOFTMAX", "BATCH_MATMUL"])
def test_what_others_read_is_computed(inner: str) -> None:
    """Logits, or weights, that another operator reads as well, or that the graph gives out, are not joined away."""
    for handed_out in (False, True):
        b = ModelBuilder()
        q, k, v = b.input("q", (1, 2, 5, 8)), b.input("k", (1, 2, 9, 8)), b.input("v", (1, 2, 9, 8))
        logits = b.op("BATCH_MATMUL", [q, k], (1, 2, 5, 9), {"adj_y": True})
        weights = b.op("SOFTMAX", [logits], (1, 2, 5, 9), {"beta": 1.0})
        b.output(b.op("BATCH_MATMUL", [weights, v], (1, 2, 5, 8)))
        shared = weights if inner == "SOFTMAX" else logits
        axes = b.constant(np.array([3], np.int32))
        b.output(shared if handed_out else b.op("SUM", [shared, axes], (1, 2, 5), {"keep_dims": False}))
        content = b.build()
        graph = read_model(content).main
        lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs).graph
        better = optimise(lowered, Features())
        assert not any(isinstance(node.op, Attention) for node in better.nodes)
        arrays = [a.reshape(lowered.values[v].shape) for a, v in zip(inputs_of(content), lowered.inputs, strict=True)]
        for got, want in zip(evaluate_graph(better, arrays), evaluate_graph(lowered, arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_attention(case: str) -> None:
    content = network(**CASES[case])
    assert joined(content, Features())
    x = inputs_of(content, 3.0)
    want = run(official(content), x)[0]
    model = read_model(content).main
    lowered = lower_partition(model, model.operators, model.inputs, model.outputs)
    assert_agrees(evaluate_graph(optimise(lowered.graph, Features()), x)[0].reshape(want.shape), want, FLOAT32)
    require_gpu()
    assert_agrees(run(on_gpu(content), x)[0], want, FLOAT32)


@pytest.mark.parametrize("scale", ("no beta", "negative"))
def test_without_a_positive_beta_it_is_not_joined(scale: str) -> None:
    """The kernel looks for the largest logit, which the official one makes of the least product then."""
    content = network(n=9, scale=scale)
    assert not joined(content, Features())
    require_gpu()
    x = inputs_of(content)
    assert_agrees(run(on_gpu(content), x)[0], run(official(content), x)[0], FLOAT32)


@pytest.mark.parametrize(
    "case", [dict(lead=(1, 4)), dict(lead=(3, 2), chosen="hidden"), dict(lead=(3, 2), chosen="kept")]
)
def test_in_float16(case: dict[str, Any]) -> None:
    """A sentence without a word gives the mean of all values."""
    require_gpu()
    content = network(m=20, n=30, d=16, e=16, **case)
    x = inputs_of(content)
    assert_agrees(run(on_gpu(content, precision_loss_allowed=True), x)[0], run(official(content), x)[0], FLOAT16)


def test_masked_keys_count_for_nothing() -> None:
    """-infinity for some, and for all keys that a thread sees first."""
    require_gpu()
    content = network(lead=(1, 1), m=4, n=70, d=4, e=4, masked=(1, 1, 4, 70))
    x = inputs_of(content)
    x[3][:] = 0
    x[3][0, 0, 0, :69] = -np.inf
    x[3][0, 0, 1, ::2] = -np.inf
    got, want = run(on_gpu(content), x)[0], run(official(content), x)[0]
    assert np.isfinite(want).all()
    assert_agrees(got, want, FLOAT32)


def test_tensor_cores_do_large_ones() -> None:
    """Where they multiply what there is: floats on GPUs of data centres alone."""
    plain, cuda = Features(), Features(native="cuda", capability=86)
    assert joined(network(lead=(1, 8), m=100, n=100), plain) and joined(network(lead=(1, 8), m=100, n=30), cuda)
    content = network(lead=(1, 8), m=512, n=512, d=64, e=64)
    assert not joined(content, plain) and not joined(content, cuda)
    assert joined(content, Features(native="cuda", capability=90))
    model = read_model(content).main
    lowered = lower_partition(model, model.operators, model.inputs, model.outputs)
    for half, capability, expected in (
        (True, 86, "flash_attention"), (False, 86, "tiled_matmul"),
        (True, 90, "flash_attention"), (False, 90, "flash_attention"), (False, 80, "flash_attention"),
    ):  # fmt: skip
        features = Features(native="cuda", capability=capability, compute_units=132, float16=True)
        names = {k.name for k in build_program(lowered.graph, features, "cuda", half=half).kernels}
        assert expected in names


@pytest.mark.parametrize("computed", [False, True])
def test_a_bias_and_a_mask_are_one(computed: bool) -> None:
    """As in shifted windows: a bias for each pair of places and a mask for each window, if both are constants."""
    b, rng = ModelBuilder(), np.random.default_rng(3)
    shape = (4, 2, 5, 8)
    q, k, v = (b.input(name, shape) for name in "qkv")
    logits = b.op("BATCH_MATMUL", [q, k], (4, 2, 5, 5), {"adj_y": True})
    bias = b.constant(rng.standard_normal((1, 2, 5, 5)).astype(np.float32))
    logits = b.op("ADD", [logits, bias], (4, 2, 5, 5))
    mask = np.where(rng.random((4, 1, 5, 5)) < 0.3, -100, 0).astype(np.float32)
    other = b.input("mask", mask.shape) if computed else b.constant(mask)
    logits = b.op("ADD", [logits, other], (4, 2, 5, 5))
    b.output(b.op("BATCH_MATMUL", [b.op("SOFTMAX", [logits], (4, 2, 5, 5), {"beta": 1.0}), v], shape))
    content = b.build()
    assert joined(content, Features()) == (not computed)
    require_gpu()
    given = inputs_of(content)
    (want,), (got,) = run(official(content), given), run(on_gpu(content), given)
    assert_agrees(got, want, FLOAT32)


def test_one_mask_for_all_that_choose_alike() -> None:
    """And none where what is filled in may count, or where something else is added as well."""
    b = ModelBuilder()
    words = b.op(
        "NOT_EQUAL", [b.input("w", (2, 9), TensorType.INT32), b.constant(np.int32(0))], (2, 9), type=TensorType.BOOL
    )
    words = b.op("RESHAPE", [words, b.constant(np.array((2, 1, 1, 9), np.int32))], (2, 1, 1, 9))
    x, found = b.input("x", (2, 3, 9, 8)), []
    for low in (-3e38, -1e9, -5.0):
        logits = b.op("BATCH_MATMUL", [x, x], (2, 3, 9, 9), {"adj_y": True})
        logits = b.op("SELECT_V2", [words, logits, b.constant(np.array(low, np.float32))], (2, 3, 9, 9))
        x = b.op("BATCH_MATMUL", [b.op("SOFTMAX", [logits], (2, 3, 9, 9), {"beta": 1.0}), x], (2, 3, 9, 8))
    b.output(x)
    model = read_model(b.build()).main
    graph = optimise(lower_partition(model, model.operators, model.inputs, model.outputs).graph, Features())
    found = [n for n in graph.nodes if isinstance(n.op, Attention)]
    assert len(found) == 2
    assert len({n.inputs[3] for n in found}) == 1


def test_keys_and_values_that_several_heads_share() -> None:
    """As PyTorch repeats them, and turns the keys: the copies are as they would be alone."""
    b = ModelBuilder()
    q, k, v = b.input("q", (2, 4, 5, 8)), b.input("k", (2, 2, 9, 8)), b.input("v", (2, 2, 9, 8))

    def repeated(x: int) -> int:
        for operator, shape in (
            ("RESHAPE", (2, 2, 1, 9, 8)),
            ("BROADCAST_TO", (2, 2, 2, 9, 8)),
            ("RESHAPE", (2, 4, 9, 8)),
        ):
            x = b.op(operator, [x, b.constant(np.array(shape, np.int32))], shape)
        return x

    turned = b.op("TRANSPOSE", [repeated(k), b.constant(np.array((0, 1, 3, 2), np.int32))], (2, 4, 8, 9))
    weights = b.op("SOFTMAX", [b.op("BATCH_MATMUL", [q, turned], (2, 4, 5, 9))], (2, 4, 5, 9), {"beta": 1.0})
    b.output(b.op("BATCH_MATMUL", [weights, repeated(v)], (2, 4, 5, 8)))
    content = b.build()
    assert joined(content, Features())
    x = inputs_of(content)
    model = read_model(content).main
    lowered = lower_partition(model, model.operators, model.inputs, model.outputs)
    want, found = run(official(content), x)[0], optimise(lowered.graph, Features())
    assert [type(n.op) for n in found.nodes] == [Attention]
    assert [found.values[v].shape[1] for v in found.nodes[0].inputs] == [4, 2, 2]
    assert_agrees(evaluate_graph(found, x)[0].reshape(want.shape), want, FLOAT32)
    require_gpu()
    assert_agrees(run(on_gpu(content), x)[0], want, FLOAT32)


def test_a_mask_that_is_repeated_for_each_logit_is_computed_once() -> None:
    """As torch's masked_fill of an expanded mask comes out."""
    content = network(lead=(3, 2), chosen="hidden", expanded=True)
    model = read_model(content).main
    graph = optimise(lower_partition(model, model.operators, model.inputs, model.outputs).graph, Features())
    (found,) = (n for n in graph.nodes if isinstance(n.op, Attention))
    assert graph.values[found.inputs[3]].shape == (3, 1, 1, 9)
    x = inputs_of(content)
    want = run(official(content), x)[0]
    assert_agrees(evaluate_graph(graph, x)[0].reshape(want.shape), want, FLOAT32)
