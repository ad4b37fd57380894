"""Signatures whose subgraph is not the main one, and control flow on the CPU, beside the official runtime."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as Official
from control_models import around, random, three_signatures

from litegpu import GpuDelegate, Interpreter
from litegpu.errors import DelegateError, InvokeError, TensorError
from litegpu.model import ModelBuilder


def opened(content: bytes, **options: Any) -> Interpreter:
    delegate = GpuDelegate(backend="reference", **options)
    return Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")


def same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


def test_each_signature_is_delegated_by_itself() -> None:
    content = three_signatures()
    interpreter, official = opened(content), Official(model_content=content)
    for key, name, width in (("encode", "x", 8), ("decode", "h", 16), ("both", "x", 8)):
        value = {name: random(1, width, seed=9)}
        same(interpreter.get_signature_runner(key)(**value), official.get_signature_runner(key)(**value))
        assert interpreter.delegation_report(key).fully_delegated
    assert interpreter.delegation_report("both").delegated == 3
    with pytest.raises(TensorError, match="Invalid signature_key"):
        interpreter.delegation_report("none")


def test_a_signature_is_resized_by_itself() -> None:
    content = three_signatures()
    interpreter, official = opened(content), Official(model_content=content)
    mine, theirs = interpreter.get_signature_runner("both"), official.get_signature_runner("both")
    for rows in (3, 1, 4):
        value = random(rows, 8, seed=rows)
        same(mine(x=value), theirs(x=value))
        assert mine.get_input_details()["x"]["shape"].tolist() == [rows, 8]
        assert mine.get_output_details()["y"]["shape"].tolist() == [rows, 8]
    same(interpreter.get_signature_runner("encode")(x=value[:1]), official.get_signature_runner("encode")(x=value[:1]))


def test_wrong_values_of_a_signature_are_told() -> None:
    runner = opened(three_signatures()).get_signature_runner("decode")
    with pytest.raises(TensorError, match="FLOAT32"):
        runner(h=np.zeros((1, 16), np.float64))
    with pytest.raises((TensorError, InvokeError)):
        runner(h=np.zeros((1, 15), np.float32))
    with pytest.raises(TensorError, match="expected 1"):
        runner()
    assert runner(h=np.zeros((1, 16), np.float32))["y"].shape == (1, 8)


def test_strict_is_about_each_signature() -> None:
    delegate = GpuDelegate(backend="reference", last_delegate_node_index=1)  # "both" has three nodes
    interpreter = Interpreter(model_content=three_signatures(), experimental_delegates=[delegate], fallback="strict")
    interpreter.get_signature_runner("decode")(h=random(1, 16))
    with pytest.raises(DelegateError, match="2/3 ops"):
        interpreter.get_signature_runner("both")(x=random(1, 8))


def test_nothing_of_a_signature_delegated() -> None:
    content = three_signatures()
    delegate = GpuDelegate(backend="reference", first_delegate_node_index=99)
    interpreter = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")
    official = Official(model_content=content)
    for rows in (1, 2, 2):
        value = random(rows, 8, seed=3)
        same(interpreter.get_signature_runner("both")(x=value), official.get_signature_runner("both")(x=value))
    assert interpreter.delegation_report("both").delegated == 0


def test_programs_in_the_cache_are_those_of_their_signature(tmp_path: Any) -> None:
    """The same operators on the same tensors, with other weights."""
    from litegpu.model.writer import ModelBuilder

    model = ModelBuilder()
    for key, graph in (("a", model), ("b", model.subgraph("b"))):
        x = graph.input("x", (1, 8))
        y = graph.op("MUL", [x, graph.constant(random(1, 8, seed=ord(key)))], (1, 8))
        graph.output(y)
        model.signature(key, {"x": x}, {"y": y}, graph)
    content, value = model.build(), random(1, 8)
    for _ in range(2):
        interpreter = opened(content, serialization_dir=str(tmp_path), model_token="m")
        for key in ("a", "b"):
            found = interpreter.get_signature_runner(key)(x=value)["y"]
            np.testing.assert_array_equal(found, value * random(1, 8, seed=ord(key)))


@pytest.mark.parametrize("count", [2, 900])
def test_constants_that_a_signature_gives(count: int) -> None:
    """Of a subgraph that is not the first, small ones and large ones; and its input, as it is."""
    model = ModelBuilder()
    x = model.input("x", (2,))
    model.output(first := model.op("ABS", [x], (2,)))
    model.signature("first", {"x": x}, {"o": first})
    other = model.subgraph("other")
    y = other.input("y", (count,))
    given = other.constant(np.arange(count, dtype=np.float32))
    negative = other.op("NEG", [y], (count,))
    other.output(negative, given, y)
    model.signature("second", {"y": y}, {"negative": negative, "given": given, "same": y}, other)
    content = model.build()
    array = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    with opened(content) as mine:
        official = Official(model_content=content)
        for _ in range(2):
            same(mine.get_signature_runner("second")(y=array), official.get_signature_runner("second")(y=array))


def test_closing_frees_the_signatures_too() -> None:
    delegate = GpuDelegate(backend="reference")
    interpreter = Interpreter(model_content=three_signatures(), experimental_delegates=[delegate])
    runner = interpreter.get_signature_runner("both")
    runner(x=random(1, 8))
    assert any(p.alive for p in delegate.prepared)
    interpreter.close()
    assert not any(p.alive for p in delegate.prepared)
    with pytest.raises(InvokeError, match="closed"):
        runner(x=random(1, 8))


def test_signatures_of_interpreters_in_threads() -> None:
    content, wrong = three_signatures(), []
    wanted = Official(model_content=content).get_signature_runner("both")(x=random(1, 8))["y"]

    def work() -> None:
        with opened(content) as interpreter:
            found = interpreter.get_signature_runner("both")(x=random(1, 8))["y"]
            if not np.allclose(found, wanted, atol=1e-5):
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.cuda
def test_signatures_share_weights_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones: those of "both" are those of "encode" and of "decode"."""
    pytest.importorskip("cuda.bindings", reason="no litegpu[cuda]")
    from litegpu.gpu.backends.cuda import constants
    from litegpu.gpu.backends.cuda.opening import available

    if available() is not None:
        pytest.skip(f"no CUDA device: {available()}")
    monkeypatch.setattr(constants, "LARGE", 256)
    content = three_signatures()
    delegate = GpuDelegate(backend="cuda")
    official = Official(model_content=content)
    with Interpreter(model_content=content, experimental_delegates=[delegate]) as interpreter:
        shared: list[set[int]] = []
        for key, name, width in (("encode", "x", 8), ("decode", "h", 16), ("both", "x", 8)):
            value = {name: random(1, width, seed=9)}
            same(interpreter.get_signature_runner(key)(**value), official.get_signature_runner(key)(**value))
            kernel = delegate.prepared[-1].kernel()
            assert kernel is not None
            large = kernel.session.memory._constants._large  # type: ignore[attr-defined]
            shared.append({one.address for one in large.values()})
        assert len(shared[0]) == len(shared[1]) == 1
        assert shared[2] == shared[0] | shared[1]


@pytest.mark.parametrize("kind", ["IF", "WHILE"])
def test_what_is_around_control_flow_is_delegated(kind: str) -> None:
    content = around(kind)
    delegate = GpuDelegate(backend="reference", max_delegated_partitions=0)
    interpreter = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")
    official = Official(model_content=content)
    interpreter.allocate_tensors()
    official.allocate_tensors()
    owners = {node.op: node.owner for node in interpreter.delegation_report().nodes}
    assert owners["SOFTMAX"] == owners["TANH"] == "GPU"
    for seed in range(4):
        results: list[np.ndarray] = []
        for one in (interpreter, official):
            one.set_tensor(one.get_input_details()[0]["index"], random(1, 8, seed=seed))
            one.invoke()
            results.append(one.get_tensor(one.get_output_details()[0]["index"]))
        np.testing.assert_allclose(results[0], results[1], rtol=1e-4, atol=1e-6)
