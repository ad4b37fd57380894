"""Files with many of something are opened in a time that grows as they do: nothing is compared with everything."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from litegpu.errors import ModelError
from litegpu.model import ModelBuilder, TensorType, read_model


def calls(count: int, back: int | None = None) -> ModelBuilder:
    """Composites that stand for composites, so deep; `back`: the innermost stands for this subgraph."""
    model = ModelBuilder()
    bodies = [model.subgraph(f"s{i}") for i in range(count)]

    def call(graph: Any, name: str, called: int) -> None:
        options = dict(name="odml.x", decomposition_subgraph_index=called, version=1)
        graph.output(graph.op("STABLEHLO_COMPOSITE", [graph.input(name, (2,))], (2,), options))

    for i, body in enumerate(bodies[:-1]):
        call(body, "a", i + 2)
    if back is None:
        bodies[-1].output(bodies[-1].op("ABS", [bodies[-1].input("a", (2,))], (2,)))
    else:
        call(bodies[-1], "a", back)
    call(model, "x", 1)
    return model


def variables(count: int) -> ModelBuilder:
    """Each assigned and read."""
    model = ModelBuilder()
    x = model.input("x", (2,))
    for i in range(count):
        options = dict(container="", shared_name=f"v{i}")
        handle = model.op("VAR_HANDLE", [], (), options, type=TensorType.RESOURCE)
        model.op_multi("ASSIGN_VARIABLE", [handle, x], [])
        x = model.op("READ_VARIABLE", [handle], (2,), type=TensorType.FLOAT32)
    model.output(x)
    return model


def large(count: int) -> ModelBuilder:
    """Tensors of many elements."""
    model = ModelBuilder()
    x = model.input("x", (2**27,))
    for _ in range(count):
        x = model.op("ABS", [x], (2**27,))
    model.output(x)
    return model


def steps(work: Callable[[], object]) -> int:
    """Lines and turns of comprehensions that Python runs, whatever else the machine does."""
    count = 0

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal count
        count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("make", [calls, variables, large])
def test_the_work_grows_as_the_file_does(make: Callable[[int], ModelBuilder], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITEGPU_MEMORY_LIMIT", "1T")
    monkeypatch.setenv("LITEGPU_WORK_LIMIT", "1e16")

    few, many = make(100).build(), make(400).build()
    read_model(few)  # what is done once
    assert steps(lambda: read_model(many)) < 6 * steps(lambda: read_model(few))


def test_a_circle_behind_a_long_chain() -> None:
    read_model(calls(50).build())
    with pytest.raises(ModelError, match=r"subgraphs \[0, 1, .*, 50\] call each other in a circle"):
        read_model(calls(50, back=48).build())
