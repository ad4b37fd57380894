"""Delegates in the Interpreter: fallback, messages, resizing, failures, and models that run whole on the CPU."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as Official
from batch_networks import framed

import litegpu
from litegpu.delegates.plan import Plan
from litegpu.interpreter import Interpreter, OpResolverType
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

SHAPE = (2, 3)


def chain(*ops: str, shape: tuple[int, ...] = SHAPE) -> bytes:
    b = ModelBuilder()
    value = b.input("x", shape)
    inside = tuple(max(n, 1) for n in shape)
    for op in ops:
        value = b.op(op, [value] * (2 if op in ("ADD", "MUL", "SUB") else 1), inside)
    b.output(value)
    return b.build()


def run(interpreter: Any, *values: np.ndarray) -> list[np.ndarray]:
    for detail, value in zip(interpreter.get_input_details(), values, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def like_official(content: bytes, delegates: list[Any], *values: np.ndarray) -> Interpreter:
    """Our interpreter after it gave, twice, what the official one gives."""
    ours = Interpreter(model_content=content, experimental_delegates=delegates, fallback="silent")
    theirs = Official(model_content=content)
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
    for factor in (1, -3):
        given = [(v * factor).astype(v.dtype) for v in values]
        for a, b in zip(run(ours, *given), run(theirs, *given), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-6)
    return ours


X = np.arange(6, dtype=np.float32).reshape(SHAPE) - 2


# ------------------------------------------------------------------------------------------ fallback and messages


def test_warn_says_each_kind_once_and_a_summary(numpy_delegate, caplog) -> None:
    caplog.set_level(logging.DEBUG, logger="litegpu")
    interpreter = Interpreter(
        model_content=chain("ADD", "ABS", "ADD", "ABS"), experimental_delegates=[numpy_delegate()]
    )
    interpreter.allocate_tensors()
    interpreter.allocate_tensors()
    assert [(r.levelname, r.getMessage()) for r in caplog.records if r.levelno >= logging.INFO] == [
        (
            "WARNING",
            "op code #101 cannot be handled by this delegate. ABS: Operation is not supported. (nodes 1, 3)",
        ),
        ("WARNING", "2/4 ops on NumPy in 2 partitions, 2 on the CPU: ABS x2 (Operation is not supported.)"),
    ]


def test_a_complete_delegation_only_informs(numpy_delegate, caplog) -> None:
    caplog.set_level(logging.INFO, logger="litegpu")
    Interpreter(model_content=chain("ADD", "RELU"), experimental_delegates=[numpy_delegate()]).allocate_tensors()
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("INFO", "2/2 ops on NumPy in 1 partition")]


def test_silent_says_nothing(numpy_delegate, caplog) -> None:
    caplog.set_level(logging.INFO, logger="litegpu")
    interpreter = Interpreter(
        model_content=chain("ADD", "ABS"), experimental_delegates=[numpy_delegate()], fallback="silent"
    )
    interpreter.allocate_tensors()
    assert not caplog.records and interpreter.delegation_report().delegated == 1


def test_strict_refuses_what_is_not_complete(numpy_delegate) -> None:
    Interpreter(
        model_content=chain("ADD", "MUL"), experimental_delegates=[numpy_delegate()], fallback="strict"
    ).allocate_tensors()
    with pytest.raises(litegpu.DelegateError, match=r"1/2 ops on NumPy(.|\n)*#101.*ABS: Operation is not supported"):
        Interpreter(model_content=chain("ADD", "ABS"), experimental_delegates=[numpy_delegate()], fallback="strict")
    with pytest.raises(RuntimeError, match="IF: Operation is not supported"):
        Interpreter(model_content=control_flow(), experimental_delegates=[numpy_delegate()], fallback="strict")


def failing(numpy_delegate: Any, **changes: Any) -> Any:
    class Failing(numpy_delegate):
        name = "failing"

        def prepare(self, partition):
            raise MemoryError("no room on the device")

    return Failing(**changes)


def test_a_delegate_that_fails_to_prepare_falls_back_with_one_warning(numpy_delegate, caplog) -> None:
    caplog.set_level(logging.INFO, logger="litegpu")
    interpreter = Interpreter(model_content=chain("ADD", "MUL"), experimental_delegates=[failing(numpy_delegate)])
    caplog.clear()
    interpreter.allocate_tensors()
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "MemoryError: no room on the device" in record.getMessage()
    np.testing.assert_array_equal(run(interpreter, X)[0], (X + X) ** 2)
    report = interpreter.delegation_report()
    assert report.delegated == 0 and "no room on the device" in str(report.nodes[0].reason)
    interpreter.resize_tensor_input(0, [1, 3])
    interpreter.allocate_tensors()
    np.testing.assert_array_equal(run(interpreter, X[:1])[0], (X[:1] + X[:1]) ** 2)
    assert len(caplog.records) == 1


def test_a_failing_delegate_leaves_its_nodes_to_the_next(numpy_delegate) -> None:
    delegates = [failing(numpy_delegate), numpy_delegate()]
    interpreter = like_official(chain("ADD", "ABS", "MUL"), delegates, X)
    assert interpreter.delegation_report().counts == {"failing": 0, "NumPy": 2, "CPU": 1}


def test_a_failing_delegate_is_an_error_under_strict(numpy_delegate) -> None:
    interpreter = Interpreter(
        model_content=chain("ADD"), experimental_delegates=[failing(numpy_delegate)], fallback="strict"
    )
    with pytest.raises(litegpu.DelegateError, match="no room on the device") as error:
        interpreter.allocate_tensors()
    assert isinstance(error.value.__cause__, MemoryError)
    with pytest.raises(litegpu.InvokeError, match="not ready"):
        interpreter.invoke()


@pytest.mark.parametrize("mistake", ["raise", "count", "shape", "dtype"])
def test_a_delegate_that_fails_to_invoke_is_named(numpy_delegate, mistake: str) -> None:
    class Kernel:
        def invoke(self, inputs):
            if mistake == "raise":
                raise OSError("device lost")
            return {"count": [], "shape": [X[:1]], "dtype": [X.astype(np.float64)]}[mistake]

        def close(self):
            pass

    class Wrong(numpy_delegate):
        def prepare(self, partition):
            return Kernel()

    interpreter = Interpreter(model_content=chain("ADD"), experimental_delegates=[Wrong()])
    interpreter.allocate_tensors()
    text = {"raise": "device lost", "count": "0 results for 1", "shape": r"\[1, 3\]", "dtype": "float64"}[mistake]
    with pytest.raises(litegpu.DelegateError, match=f"NumPy.*{text}"):
        run(interpreter, X)
    with pytest.raises(litegpu.TensorError, match="Tensor data is null"):
        interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


# ------------------------------------------------------------------------------------------ tensors of a plan


def test_outputs_that_are_read_inside_inputs_that_are_outputs_and_repeated_outputs(numpy_delegate) -> None:
    b = ModelBuilder()
    x, unused = b.input("x", SHAPE), b.input("unused", SHAPE)
    constant = b.constant(np.full(SHAPE, 5, np.float32))
    a = b.op("ADD", [x, constant], SHAPE)
    c = b.op("MUL", [a, a], SHAPE)
    d = b.op("ABS", [a], SHAPE)
    b.output(a, c, x, d, a, constant)
    content = b.build()
    interpreter = Interpreter(model_content=content, experimental_delegates=[numpy_delegate()], fallback="silent")
    interpreter.allocate_tensors()
    for factor in (1, 2):
        results = run(interpreter, X * factor, X)
        expected = X * factor + 5
        for found, wanted in zip(
            results, [expected, expected**2, X * factor, abs(expected), expected, np.full(SHAPE, 5)], strict=True
        ):
            np.testing.assert_array_equal(found, wanted)
    assert unused == 1


def test_intermediates_of_a_partition_cannot_be_read_and_borders_can(numpy_delegate) -> None:
    interpreter = Interpreter(
        model_content=chain("ADD", "MUL", "ABS", "COS", "NEG", "ADD"),
        experimental_delegates=[numpy_delegate()],
        fallback="silent",
    )
    interpreter.allocate_tensors()
    run(interpreter, X)
    np.testing.assert_array_equal(interpreter.get_tensor(2), (X + X) ** 2)
    for inside in (1, 3, 4):
        with pytest.raises(litegpu.TensorError, match="Tensor data is null"):
            interpreter.get_tensor(inside)
    with pytest.raises(litegpu.TensorError, match="not an input"):
        interpreter.set_tensor(2, X)


def test_preserve_all_tensors_keeps_the_intermediates_of_cpu_partitions(numpy_delegate) -> None:
    interpreter = Interpreter(
        model_content=chain("ADD", "ABS", "COS", "ADD"),
        experimental_delegates=[numpy_delegate()],
        experimental_preserve_all_tensors=True,
        fallback="silent",
    )
    interpreter.allocate_tensors()
    run(interpreter, X)
    np.testing.assert_array_equal(interpreter.get_tensor(2), abs(X + X))


def test_two_interpreters_share_a_delegate(numpy_delegate) -> None:
    delegate = numpy_delegate()
    first = like_official(chain("ADD", "ABS"), [delegate], X)
    second = like_official(chain("MUL"), [delegate], X)
    np.testing.assert_array_equal(run(first, X)[0], abs(X + X))
    np.testing.assert_array_equal(run(second, X)[0], X * X)
    assert len(delegate.kernels) == 2


def test_closing_frees_the_kernels(numpy_delegate) -> None:
    delegate = numpy_delegate()
    with Interpreter(model_content=chain("ADD"), experimental_delegates=[delegate]) as interpreter:
        interpreter.allocate_tensors()
        assert not delegate.kernels[0].closed
    assert delegate.kernels[0].closed
    interpreter = Interpreter(model_content=chain("ADD"), experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    del interpreter
    assert delegate.kernels[1].closed


def test_a_second_thread_is_refused_while_one_runs(numpy_delegate) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(numpy_delegate):
        def prepare(self, partition):
            kernel = super().prepare(partition)
            invoke = kernel.invoke

            def wait(inputs):
                entered.set()
                leave.wait(10)
                return invoke(inputs)

            kernel.invoke = wait
            return kernel

    interpreter = Interpreter(model_content=chain("ADD"), experimental_delegates=[Slow()])
    interpreter.allocate_tensors()
    thread = threading.Thread(target=interpreter.invoke)
    thread.start()
    assert entered.wait(10)
    with pytest.raises(litegpu.InvokeError, match="another thread"):
        interpreter.invoke()
    leave.set()
    thread.join()
    interpreter.invoke()


# ------------------------------------------------------------------------------------------ shapes


def test_resize_prepares_again(numpy_delegate) -> None:
    delegate = numpy_delegate()
    content = chain("ADD", "ABS", "MUL", shape=(-1, 3))
    interpreter = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")
    for n in (1, 4, 2):
        interpreter.resize_tensor_input(0, [n, 3], strict=True)
        interpreter.allocate_tensors()
        kernels = len(delegate.kernels)
        interpreter.resize_tensor_input(0, [n, 3])  # the same shape: nothing to do
        interpreter.allocate_tensors()
        assert len(delegate.kernels) == kernels
        x = np.arange(3 * n, dtype=np.float32).reshape(n, 3)
        (result,) = run(interpreter, x)
        np.testing.assert_array_equal(result, (2 * x) ** 2)
        assert interpreter.get_output_details()[0]["shape"].tolist() == [n, 3]
        assert delegate.kernels[-1].partition.subgraph.tensors[1].shape == (n, 3)
    assert [k.closed for k in delegate.kernels] == [True] * (len(delegate.kernels) - 2) + [False] * 2
    interpreter.resize_tensor_input(0, [5, 3])
    with pytest.raises(litegpu.InvokeError, match="not ready"):
        interpreter.invoke()


def test_a_shape_that_the_graph_refuses(numpy_delegate) -> None:
    b = ModelBuilder()
    x = b.input("x", (1, 6))
    b.output(b.op("RESHAPE", [b.op("ADD", [x, x], (1, 6))], (2, 3), {"new_shape": [2, 3]}))
    interpreter = Interpreter(model_content=b.build(), experimental_delegates=[numpy_delegate()], fallback="silent")
    interpreter.resize_tensor_input(0, [1, 7])
    for _ in range(2):
        with pytest.raises(litegpu.InvokeError, match="RESHAPE") as error:
            interpreter.allocate_tensors()
        assert str(error.value).count("RESHAPE") == 1
    interpreter.resize_tensor_input(0, [1, 6])
    interpreter.allocate_tensors()
    np.testing.assert_array_equal(run(interpreter, X.reshape(1, 6))[0], 2 * X)


def test_shapes_known_only_when_the_model_runs(numpy_delegate) -> None:
    # RESHAPE to a runtime shape: what follows it stays on the CPU, what precedes it does not.
    b = ModelBuilder()
    x, shape = b.input("x", SHAPE), b.input("shape", (2,), TensorType.INT32)
    a = b.op("ADD", [x, x], SHAPE)
    r = b.op("RESHAPE", [a, shape], (1, 1))
    b.output(b.op("MUL", [r, r], (1, 1)), b.op("RELU", [a], SHAPE))
    content = b.build()
    interpreter = Interpreter(model_content=content, experimental_delegates=[numpy_delegate()], fallback="silent")
    interpreter.allocate_tensors()
    report = interpreter.delegation_report()
    assert [n.owner for n in report.nodes] == ["NumPy", "CPU", "CPU", "NumPy"]
    assert "op number 1, RESHAPE, decides" in str(report.nodes[2].reason)
    for shape_value in ([3, 2], [6, 1], [1, 6]):
        wide, plain = run(interpreter, X, np.array(shape_value, np.int32))
        np.testing.assert_array_equal(wide, (2 * X).reshape(shape_value) ** 2)
        np.testing.assert_array_equal(plain, np.maximum(2 * X, 0))
        assert interpreter.get_output_details()[0]["shape"].tolist() == shape_value


def test_a_dynamic_tensor_crosses_from_one_cpu_partition_to_another(numpy_delegate) -> None:
    b = ModelBuilder()
    x, shape = b.input("x", SHAPE), b.input("shape", (2,), TensorType.INT32)
    r = b.op("RESHAPE", [x, shape], (1, 1))
    c = b.op("ABS", [x], SHAPE)
    d = b.op("ADD", [c, c], SHAPE)
    e = b.op("COS", [d], SHAPE)
    b.output(b.op("CONCATENATION", [r, e], (1, 1), {"axis": 0}), d)
    interpreter = Interpreter(model_content=b.build(), experimental_delegates=[numpy_delegate()], fallback="silent")
    interpreter.allocate_tensors()
    assert interpreter.delegation_report().delegated == 1
    for _ in range(2):
        joined, _ = run(interpreter, X, np.array([2, 3], np.int32))
        np.testing.assert_allclose(joined, np.concatenate([X, np.cos(2 * abs(X))]), rtol=1e-6)


# ------------------------------------------------------------------------------------------ adding a delegate


def test_modify_graph_with_delegate(numpy_delegate) -> None:
    interpreter = Interpreter(model_content=chain("ADD", "ABS", "MUL"), fallback="silent")
    assert interpreter.delegation_report().summary() == "all 3 ops on the CPU: no delegate was given"
    interpreter.resize_tensor_input(0, [1, 3])
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, X[:1])
    interpreter.modify_graph_with_delegate(numpy_delegate(ops=["ADD"]))
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(3), (2 * X[:1]) ** 2)
    interpreter.modify_graph_with_delegate(numpy_delegate())
    assert interpreter.delegation_report().delegated == 2
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(3), (2 * X[:1]) ** 2)
    with pytest.raises(litegpu.DelegateError):
        interpreter.modify_graph_with_delegate("gpu")


def test_modify_graph_under_strict_leaves_the_interpreter_usable(numpy_delegate) -> None:
    interpreter = Interpreter(model_content=chain("ADD", "ABS"), fallback="strict")
    interpreter.allocate_tensors()
    with pytest.raises(litegpu.DelegateError, match="Not every op"):
        interpreter.modify_graph_with_delegate(numpy_delegate())
    interpreter.allocate_tensors()
    np.testing.assert_array_equal(run(interpreter, X)[0], abs(2 * X))


# ------------------------------------------------------------------------------------------ whole on the CPU


def control_flow() -> bytes:
    b = ModelBuilder()
    condition, x = b.input("condition", (1,), TensorType.BOOL), b.input("x", SHAPE)
    branches = [b.subgraph("then"), b.subgraph("else")]
    for branch, op in zip(branches, ("ADD", "MUL"), strict=True):
        value = branch.input("x", SHAPE)
        branch.output(branch.op(op, [value, value], SHAPE))
    options = {"then_subgraph_index": branches[0].index, "else_subgraph_index": branches[1].index}
    b.output(*b.op_multi("IF", [condition, x], [(SHAPE, TensorType.FLOAT32)], options))
    return b.build()


def test_control_flow_runs_on_the_cpu(numpy_delegate, caplog) -> None:
    interpreter = Interpreter(model_content=control_flow(), experimental_delegates=[numpy_delegate()])
    assert interpreter.delegation_report().nodes[0].reason == "Operation is not supported."
    assert [r.levelname for r in caplog.records] == ["WARNING", "WARNING"]
    interpreter.allocate_tensors()
    np.testing.assert_array_equal(run(interpreter, np.array([True]), X)[0], X + X)
    np.testing.assert_array_equal(run(interpreter, np.array([False]), X)[0], X * X)


def test_strings_run_whole_on_the_cpu(numpy_delegate) -> None:
    b = ModelBuilder()
    s, x = b.input("s", (2,), TensorType.STRING), b.input("x", SHAPE)
    b.output(b.op("RESHAPE", [s], (2, 1), {"new_shape": [2, 1]}), b.op("ADD", [x, x], SHAPE))
    interpreter = Interpreter(model_content=b.build(), experimental_delegates=[numpy_delegate()], fallback="silent")
    interpreter.allocate_tensors()
    assert "'s' is a STRING tensor" in str(interpreter.delegation_report().nodes[1].reason)
    np.testing.assert_array_equal(run(interpreter, np.array([b"a", b"bc"]), X)[1], 2 * X)


@pytest.mark.parametrize("shared", [False, True])
def test_variables_are_kept_by_cpu_partitions(numpy_delegate, shared: bool) -> None:
    """Unless nodes share one: then the model runs whole."""
    b = ModelBuilder()
    x = b.input("x", (1, 2))
    state = b.variable("state", (1, 4))
    weights = [b.constant(np.full((2, 2), 0.5, np.float32)), b.constant(np.ones((2, 2), np.float32))]
    rank = {"rank": 1, "fused_activation_function": "NONE"}
    y = b.op("SVDF", [x, weights[0], weights[1], None, state], (1, 2), rank)
    y = b.op("ADD", [y, y], (1, 2))
    b.output(b.op("SVDF", [y, weights[0], weights[1], None, state], (1, 2), rank) if shared else y)
    content = b.build()
    ours = Interpreter(model_content=content, experimental_delegates=[numpy_delegate()], fallback="silent")
    theirs = Official(model_content=content)
    nodes = ours.delegation_report().nodes
    assert ("share the variable 'state'" if shared else "the delegate keeps none") in str(nodes[0].reason)
    assert (nodes[1].owner == "CPU") == shared
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
    one = np.ones((1, 2), np.float32)
    first = run(ours, one)[0]
    np.testing.assert_array_equal(first, run(theirs, one)[0])
    second = run(ours, one)[0]
    np.testing.assert_array_equal(second, run(theirs, one)[0])
    assert (first != second).any()
    ours.reset_all_variables()
    np.testing.assert_array_equal(run(ours, one)[0], first)


# ------------------------------------------------------------------------------------------ custom ops


def custom_model() -> bytes:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    (a,) = b.custom("Doubler", [x], [(SHAPE, TensorType.FLOAT32)])
    (c,) = b.custom("Tripler", [b.op("ABS", [a], SHAPE)], [(SHAPE, TensorType.FLOAT32)])
    (d,) = b.custom("Doubler", [c], [(SHAPE, TensorType.FLOAT32)])
    b.output(d)
    return b.build()


class CustomOps:
    """Takes the custom ops that it is given factors for."""

    name = "custom"
    max_delegated_partitions = 0
    min_nodes_per_partition = 0
    first_delegate_node_index = 0
    last_delegate_node_index = 1000

    def __init__(self, **factors: float) -> None:
        self.factors = factors

    def check(self, model, subgraph, operator):
        return None if operator.name in self.factors else "Operation is not supported."

    def prepare(self, partition):
        factors = self.factors

        class Kernel:
            def invoke(self, inputs):
                values = dict(zip(partition.inputs, inputs, strict=True))
                for node in partition.nodes:
                    values[node.outputs[0]] = values[node.inputs[0]] * np.float32(factors[node.name])
                return [values[i] for i in partition.outputs]

            def close(self):
                pass

        return Kernel()


def test_every_unresolved_custom_op_is_named() -> None:
    interpreter = Interpreter(model_content=custom_model())
    with pytest.raises(litegpu.InvokeError) as error:
        interpreter.allocate_tensors()
    text = str(error.value)
    assert "Doubler (op number 0, 3)" in text and "Tripler (op number 2)" in text
    assert "unresolved custom op" in text and "InterpreterWithCustomOps" in text


def test_custom_ops_that_a_delegate_takes_are_no_error() -> None:
    delegate = CustomOps(Doubler=2, Tripler=3)
    interpreter = Interpreter(model_content=custom_model(), experimental_delegates=[delegate], fallback="silent")
    interpreter.allocate_tensors()
    np.testing.assert_array_equal(run(interpreter, X)[0], abs(X) * 12)
    assert interpreter.delegation_report().counts == {"custom": 3, "CPU": 1}
    interpreter.resize_tensor_input(0, [1, 3])
    with pytest.raises(litegpu.InvokeError, match=r"'x' was resized.*Doubler"):
        interpreter.allocate_tensors()


def test_custom_ops_that_no_delegate_takes_are_named() -> None:
    interpreter = Interpreter(
        model_content=custom_model(), experimental_delegates=[CustomOps(Doubler=2)], fallback="silent"
    )
    with pytest.raises(litegpu.InvokeError, match=r"Tripler \(op number 2\)") as error:
        interpreter.allocate_tensors()
    assert "Doubler" not in str(error.value)
    assert "No delegate took them (Tripler: Operation is not supported.)" in str(error.value)
    with pytest.raises(litegpu.InvokeError, match="not ready"):
        interpreter.invoke()


def test_custom_ops_that_only_the_default_delegate_has(models_dir: Path, numpy_delegate) -> None:
    """XNNPACK runs the custom ops of this model, the official kernels do not: whole, in partitions, and resized."""
    content = (models_dir / "hair_segmentation.tflite").read_bytes()
    ours = Interpreter(model_content=content, experimental_delegates=[numpy_delegate()], fallback="silent")
    theirs = Official(model_content=content)
    for size in (512, 128):
        x = np.random.default_rng(2).random((1, size, size, 4), np.float32)
        for interpreter in (ours, theirs):
            interpreter.resize_tensor_input(0, x.shape)
            interpreter.allocate_tensors()
        assert ours.delegation_report().delegated > 0
        (a,), (b,) = run(ours, x), run(theirs, x)
        assert a.shape == (1, size, size, 2) and np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


def test_custom_ops_that_the_official_runtime_lacks_run_in_numpy(models_dir: Path) -> None:
    content = (models_dir / "hair_segmentation.tflite").read_bytes()
    plain = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    ours = Interpreter(model_content=content, experimental_op_resolver_type=plain)
    theirs = Official(model_content=content)
    for interpreter in (ours, theirs):
        interpreter.allocate_tensors()
    report = ours.delegation_report()
    assert report.delegates == () and report.counts == {"CPU": 259} and len(report.partitions) > 1
    x = np.random.default_rng(2).random((1, 512, 512, 4), np.float32)
    (a,), (b,) = run(ours, x), run(theirs, x)
    assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


# ------------------------------------------------------------------------------------------ real models


@pytest.mark.parametrize("name", ["mobilenet_v1_1.0_224_random_f16.tflite", "kws_ref_model_float32.tflite"])
def test_real_models_in_many_partitions(models_dir: Path, numpy_delegate, name: str) -> None:
    """A delegate that runs CONV_2D through the CPU's own kernels: the borders and the order are what is tested."""
    from litegpu.delegates.cpu import CpuPartition, OfficialOptions

    class Convolutions(numpy_delegate):
        def check(self, model, subgraph, operator):
            return None if operator.name in ("CONV_2D", "DEQUANTIZE") else "Not a convolution."

        def prepare(self, partition):
            kernel = CpuPartition(partition, OfficialOptions())

            class Copying:
                close = kernel.close

                def invoke(self, inputs):
                    return [a.copy() for a in kernel.invoke(inputs)]

            return Copying()

    content = (models_dir / name).read_bytes()
    rng = np.random.default_rng(1)
    shape = Official(model_content=content).get_input_details()[0]["shape"]
    interpreter = like_official(content, [Convolutions()], rng.standard_normal(shape).astype(np.float32))
    assert 1 < len(interpreter.delegation_report().partitions) < 60


def test_the_gpu_keeps_nothing_of_the_cpu() -> None:
    """What a CPU partition gave is a view of its memory: it runs again only if nobody holds it, after failures too."""
    from agreement import on_gpu, require_gpu

    require_gpu()
    b = ModelBuilder()
    x = b.input("x", (2, 4))
    reversed_ = b.op("REVERSE_SEQUENCE", [x, b.constant([4, 2])], (2, 4), {"seq_dim": 1, "batch_dim": 0})
    b.output(b.op("EXP", [b.op("ADD", [reversed_, reversed_], (2, 4))], (2, 4)))
    gpu = on_gpu(b.build(), first_delegate_node_index=1)
    assert gpu.delegation_report().counts["CPU"] == 1
    value = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32) / 8
    wanted = np.exp(2 * np.array([[4, 3, 2, 1], [6, 5, 7, 8]], np.float32) / 8)
    assert gpu.plan is not None
    kernel: Any = gpu.plan.kernels[0]
    run = kernel.session.run
    for attempt in range(4):
        gpu.set_tensor(x, value)
        if attempt == 1:
            kernel.session.run = lambda *_, **__: 1 / 0
            with pytest.raises(litegpu.DelegateError):
                gpu.invoke()
            kernel.session.run = run
        gpu.invoke()
        np.testing.assert_allclose(gpu.get_tensor(gpu.get_output_details()[0]["index"]), wanted, rtol=1e-5)


def test_another_shape_is_another_chance_for_delegates(numpy_delegate) -> None:
    """What no delegate takes runs on the CPU as a whole, until a shape comes that one takes."""

    class Small(numpy_delegate):
        def check(self, model: Any, subgraph: Any, operator: Any) -> str | None:
            if subgraph.tensors[operator.inputs[0]].shape[0] > 2:
                return "Too many rows."
            reason: str | None = super().check(model, subgraph, operator)
            return reason

    interpreter = Interpreter(model_content=chain("ADD", "MUL"), experimental_delegates=[Small()], fallback="silent")
    for rows in (1, 5, 2, 7, 7, 1):
        interpreter.resize_tensor_input(0, (rows, 3))
        interpreter.allocate_tensors()
        value = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(run(interpreter, value)[0], (2 * value) ** 2)
        assert interpreter.runs_whole == (rows > 2)
        assert interpreter.delegation_report().delegated == (0 if rows > 2 else 2)
        assert interpreter.graph.tensors[0].shape == (rows, 3)


def test_outputs_are_left_on_the_gpu_after_a_resize_too(numpy_delegate, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(Plan, "leave_outputs", lambda self, leave: asked.append(leave))
    interpreter = Interpreter(model_content=chain("ADD"), experimental_delegates=[numpy_delegate()])
    interpreter.set_allow_buffer_handle_output(True)
    for rows in (2, 4):
        interpreter.resize_tensor_input(0, (rows, 3))
        interpreter.allocate_tensors()
    interpreter.modify_graph_with_delegate(numpy_delegate())
    assert asked == [True] * 3


@pytest.mark.parametrize("way", ["SPLIT_V", "UNPACK"])
def test_nothing_is_told_or_refused_of_shapes_that_do_not_hold(way: str, caplog: pytest.LogCaptureFixture) -> None:
    """Sizes that follow from sizes, as files with an open batch have them: known as soon as the model is open."""
    content = framed(way)
    for fallback in ("strict", "warn"):
        delegate = litegpu.GpuDelegate(backend="reference")
        interpreter = Interpreter(model_content=content, experimental_delegates=[delegate], fallback=fallback)
        assert interpreter.delegation_report().fully_delegated
        interpreter.allocate_tensors()
        assert interpreter.delegation_report().fully_delegated
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
