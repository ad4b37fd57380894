"""What the GPU would run, kernel by kernel: the same nodes as in the program that is built."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu import Interpreter
from litegpu.delegates.protocol import Partition
from litegpu.gpu.build import build_program
from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.gpu.delegate.fused import USUAL, fused
from litegpu.gpu.lower import lower_partition
from litegpu.model import ModelBuilder, TensorType
from litegpu.zoo import build_model


def partition(content: bytes) -> Partition:
    delegate = GpuDelegate()
    with Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent") as interpreter:
        (told,) = [p for p in interpreter.preview_delegation().partitions if p.owner == delegate.name]
        graph, model = interpreter.graph, interpreter.model
    return Partition(model, graph, tuple(graph.operators[n] for n in told.nodes), told.inputs, told.outputs)


@pytest.mark.parametrize("name", ["mobilenet_v1", "deeplab_v3"])
@pytest.mark.parametrize("half", [False, True])
def test_it_is_what_is_built(name: str, half: bool) -> None:
    part = partition(build_model(name, resolution=33))
    graph = lower_partition(part.subgraph, part.nodes, part.inputs, part.outputs).graph
    program = build_program(graph, USUAL, half=half)
    nodes = fused(part, half=half).nodes
    assert list(dict.fromkeys(d.sources for d in program.dispatches)) == list(dict.fromkeys(n.sources for n in nodes))
    assert len(nodes) <= len(program.dispatches), "a node may take several launches"
    assert sum(n.flops for n in nodes) > 1e6 and all(n.bytes for n in nodes)


def test_float16_halves_the_bytes_and_has_risks() -> None:
    part = partition(build_model("mobilenet_v1", width=0.25, resolution=32, classes=10))
    whole, half = fused(part), fused(part, half=True)
    assert sum(n.bytes for n in half.nodes) == pytest.approx(sum(n.bytes for n in whole.nodes) / 2, rel=0.02)
    assert whole.risks == half.risks and all("exponentials" in reason for reason in half.risks.values())
    assert half.risks, "the logits that softmax reads"


def test_risks_are_of_the_models_own_tensors() -> None:
    """Lowering has further ones, for the words of INT64: they have no names to be told by."""
    b = ModelBuilder()
    x = b.input("x", (4, 4), TensorType.INT64)
    y = b.op("CAST", [b.op("MUL", [x, x], (4, 4), type=TensorType.INT64)], (4, 4), type=TensorType.FLOAT32)
    weights = b.constant(np.ones((3, 4), np.float32))
    b.output(b.op("FULLY_CONNECTED", [y, weights, None], (4, 3)))
    part = partition(b.build())
    found = fused(part)
    assert len(part.nodes) == 3 and found.risks
    assert all(t < len(part.subgraph.tensors) for t in found.risks)
