"""Every public function, given arguments of wrong types: an error of litegpu's own, never a bare one."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import litegpu
from litegpu import LiteGpuError
from litegpu.model.builder import ModelBuilder

pytestmark = pytest.mark.filterwarnings("ignore")  # what NumPy and the official runtime warn of is another matter
SHAPE = (1, 4)
WRONG: dict[str, Any] = {
    "None": None,
    "object": object(),
    "int": -7,
    "huge": 10**30,
    "float": 1.5,
    "nan": float("nan"),
    "str": "what?",
    "bytes": b"\x00\x01",
    "list": [object()],
    "dict": {"a": object()},
    "array": np.zeros((2, 2), complex),
    "objects": np.array([None, "x"], object),
    "function": len,
    "class": int,
}


def content() -> bytes:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    y = b.op("NEG", [x], SHAPE)
    b.output(y)
    b.signature("serve", {"x": x}, {"y": y})
    return b.build()


def interpreter() -> litegpu.Interpreter:
    found = litegpu.Interpreter(model_content=content())
    found.allocate_tensors()
    return found


def methods() -> Iterator[tuple[str, Callable[..., Any], int]]:
    """Name, a function that calls it on something new, and how many arguments are varied."""
    one = interpreter()
    for name in ("resize_tensor_input", "set_tensor", "get_tensor", "tensor", "get_tensor_details",
                 "get_signature_runner", "ensure_tensor_data_is_readable", "get_output_buffer",
                 "modify_graph_with_delegate"):  # fmt: skip
        count = 2 if name in ("resize_tensor_input", "set_tensor") else 1
        if name == "tensor":
            yield "Interpreter.tensor()", lambda i: one.tensor(i)(), 1
        else:
            yield f"Interpreter.{name}", getattr(one, name), count
    yield "set_tensor(0, ...)", lambda value: one.set_tensor(one.get_input_details()[0]["index"], value), 1
    yield "resize(0, ...)", lambda value: one.resize_tensor_input(one.get_input_details()[0]["index"], value), 1
    runner = one.get_signature_runner()
    yield "SignatureRunner", lambda value: runner(x=value), 1
    model = litegpu.load(content(), "cpu")
    yield "LoadedModel", lambda value: model(value), 1
    yield "LoadedModel by name", lambda value: model(x=value), 1
    yield "stream", lambda items: list(model.stream(items)), 1
    yield "stream, an item", lambda item: list(model.stream([item])), 1
    yield "stream, ahead", lambda ahead: list(model.stream([np.zeros(SHAPE, np.float32)], ahead)), 1
    yield "empty_input", model.empty_input, 2
    delegate = litegpu.GpuDelegate()
    yield "bind_buffer_to_tensor", delegate.bind_buffer_to_tensor, 2
    yield "SignatureRunner()", litegpu.SignatureRunner, 2


FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "load": (litegpu.load, 3),
    "Interpreter(path)": (lambda value: litegpu.Interpreter(value), 1),
    "Interpreter(content)": (lambda value: litegpu.Interpreter(model_content=value), 1),
    "list_models": (litegpu.list_models, 1),
    "read_model": (litegpu.read_model, 1),
    "register_op": (litegpu.register_op, 2),
    "unregister_op": (litegpu.unregister_op, 1),
    "advise": (litegpu.advise, 1),
    "analyze": (litegpu.analyze, 1),
    "benchmark": (litegpu.benchmark, 1),
    "compare_benchmarks": (litegpu.compare_benchmarks, 1),
    "GpuDelegate": (litegpu.GpuDelegate, 1),
    "ImageInput": (litegpu.ImageInput, 2),
}


def typed(name: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        work(*arguments)
    except LiteGpuError as error:
        assert str(error), name
    except FileNotFoundError:
        pass  # of a path that is not there, as open() raises it


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    work, count = FUNCTIONS[name]
    for arguments in itertools.product(WRONG.values(), repeat=min(count, 2)):
        typed(name, work, arguments)
    for word, value in WRONG.items():
        keywords = [p for p in inspect.signature(work).parameters.values() if p.kind is p.KEYWORD_ONLY]
        for parameter in keywords:
            typed(f"{name}({parameter.name}={word})", lambda p=parameter.name, v=value: work(content(), **{p: v}), ())


def test_methods() -> None:
    for name, work, count in methods():
        for arguments in itertools.product(WRONG.values(), repeat=count):
            typed(name, work, arguments)


@pytest.mark.parametrize("parameter", list(inspect.signature(litegpu.Interpreter).parameters)[2:])
def test_options_of_the_interpreter(parameter: str) -> None:
    for value in WRONG.values():
        typed(parameter, lambda value=value: litegpu.Interpreter(model_content=content(), **{parameter: value}), ())


@pytest.mark.parametrize("parameter", list(inspect.signature(litegpu.GpuDelegateOptions).parameters))
def test_options_of_the_delegate(parameter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for value in WRONG.values():
        typed(parameter, lambda value=value: litegpu.GpuDelegateOptions(**{parameter: value}), ())
        typed(parameter, lambda value=value: litegpu.GpuDelegate(**{parameter: value}), ())
