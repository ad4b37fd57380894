"""What the official runtime is asked for on the CPU side: every argument under its own name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import interpreter as official

import litegpu
from litegpu.delegates.cpu import CpuPartition, OfficialOptions
from litegpu.delegates.protocol import Partition
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType

SHAPE = (2, 3)
NAMES = {
    "delegates": "experimental_delegates", "num_threads": "num_threads",
    "op_resolver_type": "experimental_op_resolver_type", "preserve_all_tensors": "experimental_preserve_all_tensors",
    "disable_delegate_clustering": "experimental_disable_delegate_clustering",
    "default_delegate_latest_features": "experimental_default_delegate_latest_features",
    "compress_quantization_zero_points": "experimental_compress_quantization_zero_points",
    "disable_delegate_node_fusion": "experimental_disable_delegate_node_fusion",
    "force_delegate_node_profiling": "experimental_force_delegate_node_profiling",
}  # fmt: skip


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of every official interpreter made."""
    found: list[dict[str, Any]] = []
    real = official.Interpreter

    class Noted(real):  # type: ignore[misc, valid-type]
        def __init__(self, **arguments: Any) -> None:
            found.append(arguments)
            if "sentinel" not in map(repr, arguments.values()):
                super().__init__(**arguments)

    monkeypatch.setattr(official, "Interpreter", Noted)
    return found


class Sentinel:
    def __repr__(self) -> str:
        return "sentinel"


@pytest.mark.parametrize("name", NAMES)
def test_every_option_arrives(given: list[dict[str, Any]], name: str) -> None:
    value: Any = Sentinel() if name != "delegates" else (Sentinel(),)
    try:
        OfficialOptions(**{name: value}).create(content=b"")
    except (ValueError, TypeError):  # it is no model
        assert name == "delegates"
    arrived = given[0][NAMES[name]]
    assert arrived == (list(value) if name == "delegates" else value)
    others = {n: v for n, v in given[0].items() if n not in (NAMES[name], "model_path", "model_content")}
    assert "sentinel" not in repr(others)


def test_no_option_is_forgotten() -> None:
    assert {f.name for f in fields(OfficialOptions)} - {"custom_op_registerers"} == set(NAMES)


def test_a_partition_has_the_options_of_the_interpreter(given: list[dict[str, Any]]) -> None:
    b = ModelBuilder()
    b.output(b.op("ABS", [b.input("x", SHAPE)], SHAPE))
    model = read_model(b.build())
    main = model.main
    partition = Partition(model, main, tuple(main.operators), tuple(main.inputs), tuple(main.outputs))
    one = CpuPartition(partition, OfficialOptions(num_threads=3))
    assert given[-1]["num_threads"] == 3
    (got,) = one.invoke([np.full(SHAPE, -2, np.float32)])
    assert (got == 2).all()
    del got
    one.close()
    assert one._interpreter is None and not one._views


@pytest.mark.parametrize("operator", ["ADD", "MUL"])
def test_the_square_of_a_variable(operator: str, numpy_delegate) -> None:
    """XNNPACK crashes on an operator that reads the content of a resource variable twice; the plain kernels do not."""
    model = ModelBuilder()
    x = model.input("x", (2, 3))
    handle = model.op("VAR_HANDLE", [], (), dict(shared_name="v"), type=TensorType.RESOURCE)
    model.node("ASSIGN_VARIABLE", [handle, x], [])
    content = model.op("READ_VARIABLE", [handle], (2, 3), type=TensorType.FLOAT32)
    y = model.op(operator, [content, content], (2, 3))
    model.output(model.op("ADD", [y, x], (2, 3)))
    model.signature("serving_default", {"x": x}, {"y": model.graph().outputs[0]})
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = (value + value if operator == "ADD" else value * value) + value
    for delegates in (None, [numpy_delegate()]):
        interpreter = litegpu.Interpreter(model_content=model.build(), experimental_delegates=delegates)
        found = interpreter.get_signature_runner("serving_default")(x=value)["y"]
        np.testing.assert_array_equal(found, expected)
        interpreter.allocate_tensors()
        opened = interpreter.official
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], value)
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(interpreter.get_output_details()[0]["index"]), expected)
        interpreter.allocate_tensors()
        assert interpreter.official is opened
