"""Resource variables: CALL_ONCE, VAR_HANDLE, READ_VARIABLE and ASSIGN_VARIABLE beside the official runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as Official
from control_models import F32, RESOURCE, cached_decoder, handle, once, random, variables_in_control

import litegpu
from litegpu import GpuDelegate, Interpreter
from litegpu.delegates import plan
from litegpu.gpu.delegate.options import WaitType
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder


def opened(content: bytes, **options: Any) -> Interpreter:
    if options.get("backend") == "cuda":
        from litegpu.gpu.backends.cuda.opening import available

        if available() is not None:
            pytest.skip(f"no CUDA device: {available()}")
    delegate = GpuDelegate(**{"backend": "reference", "max_delegated_partitions": 0, **options})
    return Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")


def same(found: Any, wanted: Any) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


def decode(interpreter: Any, steps: int, seed: int = 0) -> list[Any]:
    """Two rows by the signature "prompt", the others by "decode"."""
    found = []
    for at in range(steps):
        runner = interpreter.get_signature_runner("prompt" if at < 2 else "decode")
        found.append(runner(x=random(1, 16, seed=seed + at), at=np.array(at, np.int32)))
    return found


@pytest.mark.parametrize("backend", ["reference", "webgpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("limits", [{}, dict(last_delegate_node_index=9), dict(first_delegate_node_index=8)],
                         ids=["whole", "front", "back"])  # fmt: skip
def test_signatures_share_variables(limits: dict[str, int], backend: str) -> None:
    """Also where operators on the CPU use them."""
    content = cached_decoder()
    interpreter, official = opened(content, backend=backend, **limits), Official(model_content=content)
    for found, wanted in zip(decode(interpreter, 8), decode(official, 8), strict=True):
        same(found, wanted)
    if not limits:
        assert interpreter.delegation_report("decode").fully_delegated
        assert interpreter.delegation_report("prompt").fully_delegated
        names = [node.op for node in interpreter.delegation_report("decode").nodes]
        assert {"CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE"} <= set(names)


def counts(shape: tuple[int, ...]) -> bytes:
    """A variable of INT64 that "add" reads and gives in two words; "reset" gives a constant, and "narrow" one word."""
    b, kind = ModelBuilder(), TensorType.INT64
    once(b, b, {"count": np.full(shape, 5, np.int64)})
    variable, x = handle(b, "count"), b.input("x", shape, kind)
    total = b.op("ADD", [b.op("READ_VARIABLE", [variable], shape, type=kind), x], shape, type=kind)
    b.node("ASSIGN_VARIABLE", [variable, total], [])
    b.output(total)
    b.signature("add", {"x": x}, {"total": total})
    for name in ("reset", "narrow"):
        g = b.subgraph(name)
        w = g.input("w", shape)
        value = g.constant(np.full(shape, 7, np.int64))
        if name == "narrow":
            positive = g.op("GREATER", [w, g.constant(np.zeros((), np.float32))], shape, type=TensorType.BOOL)
            value = g.op("CAST", [positive], shape, dict(in_data_type="BOOL", out_data_type="INT64"), type=kind)
        g.node("ASSIGN_VARIABLE", [handle(g, "count"), value], [])
        result = g.op("EXP", [w], shape)
        g.output(result)
        b.signature(name, {"w": w}, {"result": result}, g)
    return b.build()


@pytest.mark.parametrize("shape", [(), (3,)], ids=["one", "three"])
@pytest.mark.parametrize("backend", ["reference", "webgpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_signatures_have_a_variable_in_one_word_or_in_two(backend: str, shape: tuple[int, ...]) -> None:
    content = counts(shape)
    interpreter, official = opened(content, backend=backend), Official(model_content=content)
    for key in ("add", "add", "reset", "add", "narrow", "add", "add", "narrow", "reset", "narrow", "add"):
        given = {"x": np.full(shape, 2**40 + 1)} if key == "add" else {"w": np.ones(shape, np.float32)}
        same(interpreter.get_signature_runner(key)(**given), official.get_signature_runner(key)(**given))
        assert interpreter.delegation_report(key).fully_delegated


@pytest.mark.parametrize("backend", ["reference", "webgpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_variables_that_cannot_stay_pass_through_the_host(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where outputs are not read before they are asked for."""
    monkeypatch.setattr(plan, "home", lambda *_: None)
    content = cached_decoder()
    interpreter = opened(content, backend=backend)
    for found, wanted in zip(decode(interpreter, 5), decode(Official(model_content=content), 5), strict=True):
        same(found, wanted)
    assert on_device(interpreter) == [False] * 3


KEYS = ("keys", "values", "steps")


def on_device(interpreter: Interpreter) -> list[bool]:
    return [interpreter._setup.variables.on_device(("", name)) is not None for name in KEYS]


@pytest.mark.parametrize("wait", ["PASSIVE", "DO_NOT_WAIT"])
def test_variables_stay_on_the_device(wait: str) -> None:
    """The signatures use the same memory, which is written once and not read, until somebody else needs it."""
    content = cached_decoder()
    interpreter = opened(content, backend="webgpu", wait_type=WaitType[wait])
    official = Official(model_content=content)
    wanted = decode(official, 5)
    for found, right in zip(decode(interpreter, 5), wanted, strict=True):
        same(found, right)
    assert on_device(interpreter) == [True] * 3
    interpreter.modify_graph_with_delegate(GpuDelegate(backend="reference"))  # divides anew
    assert on_device(interpreter) == [False] * 3
    for key, at in (("decode", 5), ("prompt", 6), ("decode", 7)):
        value = dict(x=random(1, 16, seed=at), at=np.array(at, np.int32))
        same(interpreter.get_signature_runner(key)(**value), official.get_signature_runner(key)(**value))
    assert on_device(interpreter) == [True] * 3


@pytest.mark.parametrize("wait", ["PASSIVE", "DO_NOT_WAIT"])
def test_inferences_by_tensors_and_by_signatures(wait: str) -> None:
    content = cached_decoder()
    results: list[list[Any]] = []
    for one in (opened(content, backend="webgpu", wait_type=WaitType[wait]), Official(model_content=content)):
        one.allocate_tensors()
        made: list[Any] = []
        for at in range(4):
            for detail, value in zip(one.get_input_details(), (random(1, 16, seed=at), np.array(at, np.int32)),
                                     strict=True):  # fmt: skip
                one.set_tensor(detail["index"], value)
            one.invoke()
            made += [one.get_tensor(detail["index"]) for detail in one.get_output_details()]
            one.get_signature_runner("prompt")(x=random(1, 16, seed=9 + at), at=np.array(7 - at, np.int32))
        results.append(made)
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_stream_of_a_model_with_variables() -> None:
    """In turn, as each inference depends on those before."""
    content = cached_decoder()
    rows = [dict(zip(("x", "at"), (random(1, 16, seed=at), np.array(at, np.int32)), strict=True)) for at in range(6)]
    with litegpu.load(content, "webgpu") as one, litegpu.load(content, "cpu") as other:
        names, theirs = list(one.inputs), list(other.inputs)
        items = [dict(zip(names, row.values(), strict=True)) for row in rows]
        for found, row in zip(one.stream(items), rows, strict=True):
            wanted = other(**dict(zip(theirs, row.values(), strict=True)))
            for a, b in zip(found.values(), wanted.values(), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_variables_belong_to_an_interpreter() -> None:
    content = cached_decoder()
    first, second = opened(content), opened(content)
    wanted = decode(Official(model_content=content), 4)
    decode(first, 4, seed=50)
    same(decode(second, 4)[-1], wanted[-1])


def test_a_reset_leaves_variables_as_it_does_officially() -> None:
    content = cached_decoder()
    results = []
    for one in (opened(content), Official(model_content=content)):
        decode(one, 3)
        one.allocate_tensors()
        one.reset_all_variables()
        results.append(one.get_signature_runner("decode")(x=random(1, 16), at=np.array(4, np.int32)))
    same(*results)
    assert results[0]["steps"] == 2


@pytest.mark.parametrize("handed", [False, True], ids=["own", "handed"])
@pytest.mark.parametrize("kind", ["IF", "WHILE"])
def test_variables_in_subgraphs(kind: str, handed: bool) -> None:
    content = variables_in_control(kind, handed)
    interpreter, official = opened(content), Official(model_content=content)
    for one in (interpreter, official):
        one.allocate_tensors()
    for seed in range(5):
        results: list[np.ndarray] = []
        for one in (interpreter, official):
            one.set_tensor(one.get_input_details()[0]["index"], random(4, seed=seed))
            one.invoke()
            results.append(one.get_tensor(one.get_output_details()[0]["index"]))
        np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)


def test_an_inference_that_fails_leaves_variables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from litegpu.gpu.delegate.kernel import GpuKernel

    content = cached_decoder()
    interpreter = opened(content)
    decode(interpreter, 3)
    with monkeypatch.context() as patch:
        patch.setattr(GpuKernel, "_read", lambda *_: (_ for _ in ()).throw(MemoryError))
        with pytest.raises(RuntimeError):
            interpreter.get_signature_runner("decode")(x=random(1, 16), at=np.array(7, np.int32))
    official = Official(model_content=content)
    wanted = decode(official, 4)[-1]
    same(interpreter.get_signature_runner("decode")(x=random(1, 16, seed=3), at=np.array(3, np.int32)), wanted)


def changing(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> bytes:
    """A variable that is read in one shape and assigned in another."""
    model = ModelBuilder()
    x = model.input("x", shapes[1])
    once(model, model, {"v": np.ones(shapes[0], np.float32)})
    y = model.op("READ_VARIABLE", [handle(model, "v")], shapes[0], type=F32)
    model.node("ASSIGN_VARIABLE", [handle(model, "v"), x], [])
    model.output(model.op("ABS", [y], shapes[0]))
    return model.build()


def test_variables_that_change_their_shape_are_left_to_the_cpu() -> None:
    report = opened(changing(((2,), (3,)))).delegation_report()
    assert report.delegated == 0
    assert "the variable 'v' is FLOAT32 [2] and FLOAT32 [3] in places" in str(report.nodes[0].reason)
    assert opened(changing(((2,), (2,)))).delegation_report().fully_delegated


def test_a_variable_that_is_read_without_a_shape() -> None:
    """As converters write it: what is assigned tells the shape."""
    model = ModelBuilder()
    x = model.input("x", (2,))
    once(model, model, {"v": np.array([3, 4], np.float32)})
    read = model.op("READ_VARIABLE", [handle(model, "v")], (), type=F32)
    model.output(model.op("ADD", [x, read], (2,)))
    content = model.build()
    interpreter, official = opened(content), Official(model_content=content)
    for one in (interpreter, official):
        one.allocate_tensors()
        one.set_tensor(one.get_input_details()[0]["index"], random(2))
        one.invoke()
    found, wanted = (one.get_tensor(one.get_output_details()[0]["index"]) for one in (interpreter, official))
    np.testing.assert_allclose(found, wanted)
    assert interpreter.delegation_report().fully_delegated


def test_a_variable_that_nothing_assigns() -> None:
    """Where a loop reads it: the official runtime's error, rather than zeros."""
    model = ModelBuilder()
    count, own = model.input("count", (), TensorType.INT32), handle(model, "v")
    condition, body = model.subgraph("condition"), model.subgraph("body")
    for graph in (condition, body):
        n, v = graph.input("n", (), TensorType.INT32), graph.input("v", (), RESOURCE)
        if graph is condition:
            graph.output(graph.op("LESS", [n, graph.constant(np.array(2, np.int32))], (), type=TensorType.BOOL))
            continue
        value = graph.op("READ_VARIABLE", [v], (1,), type=TensorType.INT32)
        graph.output(
            graph.op("SUM", [graph.op("ADD", [n, value], (1,)), graph.constant(np.array([0], np.int32))], ()), v
        )
    options = dict(cond_subgraph_index=1, body_subgraph_index=2)
    made = model.op_multi("WHILE", [count, own], [((), TensorType.INT32), ((), RESOURCE)], options)
    model.output(made[0])
    interpreter = opened(model.build())
    assert "nothing assigns a value to the variable 'v'" in str(interpreter.delegation_report().nodes[0].reason)
    interpreter.allocate_tensors()
    interpreter.set_tensor(count, np.array(0, np.int32))
    with pytest.raises(RuntimeError, match="READ_VARIABLE"):
        interpreter.invoke()


def test_hash_tables_are_left_to_the_cpu() -> None:
    model = ModelBuilder()
    x = model.input("x", (2,))
    table = model.tensor((), RESOURCE)
    model.node("HASHTABLE", [], [table], dict(table_id=1, key_dtype="INT64", value_dtype="INT64"))
    model.output(model.op("ABS", [x], (2,)), model.op("HASHTABLE_SIZE", [table], (1,), type=TensorType.INT64))
    report = opened(model.build()).delegation_report()
    assert report.delegated == 0
    assert "HASHTABLE, uses a resource" in str(report.nodes[0].reason)


def test_calls_of_calls_are_not_copied_for_each_way() -> None:
    """A file of a few kilobytes whose subgraphs call each other in 2^40 ways."""
    model = ModelBuilder()
    x = model.input("x", (2,))
    once(model, model, {"v": np.ones(2, np.float32)})
    graphs = [model.subgraph(f"g{i}") for i in range(40)]
    for i, graph in enumerate(graphs):
        inner = graph.input("x", (2,))
        if i + 1 < len(graphs):
            truth = graph.constant(np.array(True))
            options = dict(then_subgraph_index=graphs[i + 1].index, else_subgraph_index=graphs[i + 1].index)
            graph.output(*graph.op_multi("IF", [truth, inner], [((2,), F32)], options))
        else:
            graph.output(
                graph.op("ADD", [inner, graph.op("READ_VARIABLE", [handle(graph, "v")], (2,), type=F32)], (2,))
            )
    truth = model.constant(np.array(True))
    options = dict(then_subgraph_index=graphs[0].index, else_subgraph_index=graphs[0].index)
    model.output(*model.op_multi("IF", [truth, x], [((2,), F32)], options))
    interpreter = opened(model.build())
    interpreter.allocate_tensors()
    interpreter.invoke()
    assert interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).tolist() == [1, 1]


FORKING = """
import os
import numpy as np
from control_models import cached_decoder, random
from ai_edge_litert.interpreter import Interpreter as Official
from litegpu import GpuDelegate, Interpreter

def decode(one, first, last):
    run = one.get_signature_runner("decode")
    return [run(x=random(1, 16, seed=at), at=np.array(at, np.int32))["y"] for at in range(first, last)]

content = cached_decoder()
mine = Interpreter(model_content=content, experimental_delegates=[GpuDelegate(backend="reference")])
decode(mine, 0, 3)
wanted = decode(Official(model_content=content), 0, 5)[3:]
child = os.fork()
right = np.allclose(decode(mine, 3, 5), wanted, atol=1e-4)
os._exit((0 if right else 1) if child == 0 else (0 if right and os.waitpid(child, 0)[1] == 0 else 1))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_variables_after_a_fork() -> None:
    """Parent and child go on from the same values, each by itself; in a process that has used no GPU."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), *sys.path])
    done = subprocess.run([sys.executable, "-c", FORKING], env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == 0


CONSTANTS = """
import gc, os
import numpy as np
from control_models import F32, branch, handle, once, random
from ai_edge_litert.interpreter import Interpreter as Official
from litegpu import GpuDelegate, Interpreter
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

I64 = TensorType.INT64 # which XNNPACK does not take

def assigned(graph, v, values):
    variable = handle(graph, "state")
    graph.node("ASSIGN_VARIABLE", [variable, graph.constant(values)], [])
    return [graph.op("READ_VARIABLE", [variable], (3,), type=I64), graph.op("NEG", [v[0]], (3,))]

b = ModelBuilder()
once(b, b, {"state": np.arange(3)})
p, x = b.input("p", (), TensorType.BOOL), b.input("x", (3,))
made = branch(b, b, p, [x], [((3,), F32)], [((3,), I64), ((3,), F32)],
              lambda g, v: assigned(g, v, np.arange(3) + 2**40), lambda g, v: assigned(g, v, np.arange(3) - 7))
b.output(*made, b.op("READ_VARIABLE", [handle(b, "state")], (3,), type=I64))
content = b.build()
for limits in ({}, dict(last_delegate_node_index=0)):
    mine = Interpreter(model_content=content, experimental_delegates=[GpuDelegate(backend="reference", **limits)],
                       fallback="silent")
    official = Official(model_content=content)
    for number in range(6):
        found = []
        for one in (mine, official):
            one.allocate_tensors()
            for detail, value in zip(one.get_input_details(), (np.array(number % 3 == 0), random(3, seed=number))):
                one.set_tensor(detail["index"], value)
            one.invoke()
            found.append([one.get_tensor(detail["index"]) for detail in one.get_output_details()])
        assert all(np.array_equal(a, w) for a, w in zip(*found)), (limits, number, found)
    owners = {node.op: node.owner for node in mine.delegation_report().nodes}
    assert (owners["IF"] == "CPU") == bool(limits), owners
    mine.close()
del mine, official
gc.collect()
print("right")
"""


def test_constants_that_branches_assign() -> None:
    """Where the official IF runs them as well, which frees a constant that was reshaped."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path, "MALLOC_PERTURB_": "85"}
    done = subprocess.run(
        [sys.executable, "-c", CONSTANTS], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.endswith("right\n"), done.stdout + done.stderr[-2000:]
