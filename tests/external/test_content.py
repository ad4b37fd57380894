"""The delegate finds the very model of an interpreter, or leaves it to the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter

from litegpu.external import content, layout
from litegpu.external.graph import HostedGraph
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType

SHAPE = (1, 3, 4)
Opened = Callable[..., Any]


def network(factor: float = 2.0, name: str = "x") -> bytes:
    """factor * x"""
    b = ModelBuilder()
    x = b.input(name, SHAPE)
    b.output(b.op("MUL", [x, b.constant(np.full(1, factor, np.float32), "factor")], SHAPE, name="product"))
    return b.build()


def product(interpreter: Any) -> float:
    """What the interpreter makes of ones."""
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.ones(SHAPE, np.float32))
    interpreter.invoke()
    return float(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).max())


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[content.Found]:
    """The models that are found."""
    seen: list[content.Found] = []
    find = content.find

    def remembered(graph: HostedGraph, path: str | None) -> content.Found:
        seen.append(find(graph, path))
        return seen[-1]

    monkeypatch.setattr(content, "find", remembered)
    return seen


def test_the_bytes_object_itself(opened: Opened, found: list[content.Found]) -> None:
    models = [network(k) for k in range(2, 6)]  # four of them in memory, of the same names
    for k, model in enumerate(models, start=2):
        assert product(opened(model, fallback="strict")) == k
        assert found[-1].model.content is model


def test_a_model_within_a_model(opened: Opened, found: list[content.Found]) -> None:
    """The inner one lies nearer to the names and constants behind it."""
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    b.constant(np.frombuffer(network(7), np.uint8), "a model")
    b.output(b.op("MUL", [x, b.constant(np.full(1, 3, np.float32), "factor")], SHAPE))
    outer = b.build()
    assert product(opened(outer, fallback="strict")) == 3
    assert found[-1].model.content is outer


def test_a_file(opened: Opened, found: list[content.Found], tmp_path: Path) -> None:
    path = tmp_path / "a model (1).tflite"
    path.write_bytes(network(3))
    assert product(opened(path, fallback="strict")) == 3
    assert found[-1].model.path == str(path)


def test_a_file_of_a_file_system_with_other_numbers(
    opened: Opened, found: list[content.Found], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes are compared then."""
    monkeypatch.setattr(content, "_is_mapped", lambda *_: False)
    (tmp_path / "m.tflite").write_bytes(network(3))
    assert product(opened(tmp_path / "m.tflite", fallback="strict")) == 3
    assert len(found) == 1


def test_a_file_that_was_replaced(
    delegate: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(network(3))
    interpreter = Interpreter(str(path))
    (tmp_path / "new").write_bytes(network(5))
    os.replace(tmp_path / "new", path)
    own = delegate()
    interpreter._interpreter.ModifyGraphWithDelegate(own._get_native_delegate_pointer())
    assert product(interpreter) == 3
    assert "The whole graph runs on the CPU" in caplog.text
    del interpreter, own


def test_a_path_that_is_given(opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "same.tflite").write_bytes(network(3))
    (tmp_path / "other factor.tflite").write_bytes(network(5))
    (tmp_path / "other name.tflite").write_bytes(network(3, "another"))
    (tmp_path / "none.tflite").write_bytes(b"none")
    assert product(opened(network(3), fallback="strict", model_path=tmp_path / "same.tflite")) == 3
    for name, why in (
        ("other factor", "has changed since"), ("other name", "is not the interpreter's model"),
        ("none", "not a readable .tflite model"), ("missing", "Could not open"),
    ):  # fmt: skip
        caplog.clear()
        assert product(opened(network(3), model_path=tmp_path / f"{name}.tflite")) == 3
        assert "The whole graph runs on the CPU" in caplog.text and why in caplog.text
        with pytest.raises(RuntimeError, match="litegpu:"):
            opened(network(3), model_path=tmp_path / f"{name}.tflite", fallback="strict")


def test_without_a_map_of_the_memory(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on macOS: only with model_path."""
    monkeypatch.setattr(content, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(content, "_MEMORY", tmp_path / "mem")
    assert product(opened(network(3))) == 3
    assert "give the option model_path" in caplog.text
    (tmp_path / "m.tflite").write_bytes(network(3))
    assert product(opened(network(3), fallback="strict", model_path=tmp_path / "m.tflite")) == 3


def test_a_model_that_is_not_python_s(
    opened: Opened, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content, "_bytes_objects", lambda *_: iter(()))
    assert product(opened(network(3))) == 3
    assert "not an object of Python's" in caplog.text


def test_tensors_without_names(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    """Constants are enough; without these too, nothing is known of where the model lies."""
    b = ModelBuilder()
    x = b.input("", SHAPE)
    b.output(b.op("MUL", [x, b.constant(np.full(1, 3, np.float32))], SHAPE, name=""))
    assert product(opened(b.build(), fallback="strict")) == 3


def test_an_empty_constant_at_the_end(opened: Opened) -> None:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    product_ = b.op("MUL", [x, b.constant(np.full(1, 3, np.float32), "factor")], SHAPE)
    b.output(b.op("SUM", [product_, b.constant(np.zeros(0, np.int32), "axes")], SHAPE, {"keep_dims": True}))
    assert product(opened(b.build(), fallback="strict")) == 3


@pytest.mark.parametrize("change", ["type", "name", "data", "constant", "variable"])
def test_what_differs_is_not_taken(
    opened: Opened, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    tensor = HostedGraph.tensor
    changes: dict[str, Any] = {
        "type": {"type": TensorType.INT8}, "name": {"name": 4096}, "data": {"data": 4096},
        "constant": {"allocation": 2}, "variable": {"variable": True},
    }  # fmt: skip
    monkeypatch.setattr(
        HostedGraph,
        "tensor",
        lambda self, i: replace(tensor(self, i), **changes[change]) if i == 1 else tensor(self, i),
    )
    assert product(opened(network(3))) == 3
    assert "The whole graph runs on the CPU" in caplog.text


@pytest.mark.parametrize("change", [{"code": 0}, {"inputs": (1, 0)}, {"outputs": (0,)}, {"index": 7}])
def test_another_node_is_not_taken(
    opened: Opened, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    nodes = HostedGraph.nodes
    monkeypatch.setattr(HostedGraph, "nodes", lambda self: tuple(replace(node, **change) for node in nodes(self)))
    assert product(opened(network(3))) == 3
    assert "is not that of the model" in caplog.text


def test_a_model_with_control_flow_stays_whole(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    doubled = b.op("MUL", [x, b.constant(np.full(1, 2, np.float32), "two")], SHAPE)
    other = b.subgraph("other")
    y = other.input("y", SHAPE)
    other.output(other.op("ABS", [y], SHAPE, name="z"))
    b.output(b.op("NEG", [doubled], SHAPE))
    interpreter = opened(b.build())
    interpreter.set_tensor(0, np.ones(SHAPE, np.float32))
    interpreter.invoke()
    assert (interpreter.get_tensor(interpreter.get_output_details()[0]["index"]) == -2).all()
    assert "it has 2 subgraphs" in caplog.text
    with pytest.raises(RuntimeError, match="strict"):
        opened(b.build(), fallback="strict")


def test_another_runtime(opened: Opened, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_package", lambda: Path("/nowhere"))
    assert product(opened(network(3))) == 3
    assert "the interpreter is not ai-edge-litert's" in caplog.text
