"""Partitions in their turn: what each is given, when it is waited for, and that nothing stays open."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from litegpu import Interpreter
from litegpu.delegates.cpu import OfficialOptions
from litegpu.delegates.partitioner import ON_CPU, Division
from litegpu.delegates.plan import ALIGNMENT, Plan, PrepareError, _aligned
from litegpu.delegates.protocol import Partition
from litegpu.errors import DelegateError, InvokeError, TensorError
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import Model

SHAPE = (2, 3)


class Kernel:
    """ABS of its one input, there once it is finished; keeps a count of resets."""

    def __init__(self, partition: Partition) -> None:
        self.partition, self.closed, self.resets, self.read = partition, 0, 0, 0
        self.results = [np.zeros(SHAPE, np.float32) for _ in partition.outputs]
        self.due: np.ndarray | None = None
        self.left: list[int] = []

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        self.due = inputs[0].copy()
        for result in self.results:
            result[...] = np.nan
        return self.results

    def finish(self) -> None:
        if self.due is not None:
            value = self.due
            for result, node in zip(self.results, self.partition.nodes, strict=False):
                value = np.abs(value) if node.name == "ABS" else -value
                result[...] = value
            self.due = None

    def leave(self, positions: Sequence[int]) -> None:
        self.left = list(positions)

    def ensure_readable(self, position: int) -> None:
        self.read += 1

    def output_buffer(self, position: int, tensor: Any) -> Any:
        raise AssertionError("nothing is bound")

    def reset_variables(self) -> None:
        self.resets += 1

    def close(self) -> None:
        self.closed += 1


class OneEach:
    """Takes every ABS and NEG, in a partition of its own each."""

    name = "ONE"
    max_delegated_partitions = min_nodes_per_partition = first_delegate_node_index = 0
    last_delegate_node_index = 1 << 30

    def __init__(self, failing: int = -1) -> None:
        self.kernels: list[Kernel] = []
        self.failing = failing

    def check(self, model: Model, subgraph: Any, operator: Any) -> str | None:
        return None

    def prepare(self, partition: Partition) -> Kernel:
        if len(self.kernels) == self.failing:
            raise RuntimeError("cannot")
        self.kernels.append(Kernel(partition))
        return self.kernels[-1]


def model(ops: Sequence[str] = ("ABS", "NEG", "ABS"), outputs: Sequence[int] = (2,)) -> Model:
    b = ModelBuilder()
    made = [b.input("x", SHAPE)]
    for op in ops:
        made.append(b.op(op, [made[-1]], SHAPE))
    for i in outputs:
        b.output(made[i + 1])
    return read_model(b.build())


def plan(given: Model, delegate: OneEach, cpu: Sequence[int] = ()) -> Plan:
    """A partition for each node; those numbered `cpu` are the CPU's."""
    main, found = given.main, []
    for i, operator in enumerate(main.operators):
        partition = Partition(given, main, (operator,), tuple(operator.inputs), tuple(operator.outputs))
        found.append((ON_CPU if i in cpu else 0, partition))
    division = object.__new__(Division)
    object.__setattr__(division, "partitions", tuple(found))
    return Plan(main, division, [delegate], OfficialOptions())


X = np.array([[1.5, -2, 3], [-4, 5, -6]], np.float32)


def test_each_partition_reads_what_the_one_before_it_finished() -> None:
    delegate = OneEach()
    given = model()
    made = plan(given, delegate)
    for sign in (1, -2):
        made.set_input(given.main.inputs[0], X * sign)
        made.invoke()
        np.testing.assert_array_equal(made.value(given.main.outputs[0]), np.abs(X * sign))
    made.close()
    assert [kernel.closed for kernel in delegate.kernels] == [1, 1, 1]


def test_the_cpu_too() -> None:
    given = model(("ABS", "NEG", "ABS"), outputs=(1, 2))
    for cpu in ((1,), (0, 2), (2,)):
        made = plan(given, OneEach(), cpu)
        made.set_input(given.main.inputs[0], X)
        made.invoke()
        np.testing.assert_array_equal(made.value(given.main.outputs[0]), -np.abs(X))
        np.testing.assert_array_equal(made.value(given.main.outputs[1]), np.abs(X))
        made.close()


def test_a_partition_that_cannot_be_prepared_closes_those_before_it() -> None:
    delegate = OneEach(failing=2)
    with pytest.raises(PrepareError) as caught:
        plan(model(), delegate)
    assert caught.value.position == 0 and caught.value.nodes == (2,)
    assert [kernel.closed for kernel in delegate.kernels] == [1, 1]


def test_variables_of_all_partitions_are_reset() -> None:
    delegate = OneEach()
    made = plan(model(), delegate)
    made.reset_variables()
    assert [kernel.resets for kernel in delegate.kernels] == [1, 1, 1]
    made.close()


def test_only_outputs_that_nobody_else_reads_stay_on_the_gpu() -> None:
    """Of three results, all outputs, the first two are read by the partitions behind them."""
    delegate = OneEach()
    given = model(outputs=(0, 1, 2))
    made = plan(given, delegate)
    first, second, last = given.main.outputs
    assert made.output_kernel(first) is made.output_kernel(second) is None
    assert made.output_kernel(last) == (delegate.kernels[2], 0)
    made.leave_outputs(True)
    assert [kernel.left for kernel in delegate.kernels] == [[], [], [0]]
    made.leave_outputs(False)
    assert [kernel.left for kernel in delegate.kernels] == [[], [], []]
    made.set_input(given.main.inputs[0], X)
    made.invoke()
    made.value(first), made.value(second)
    assert [kernel.read for kernel in delegate.kernels] == [0, 0, 0]
    made.value(last)
    assert [kernel.read for kernel in delegate.kernels] == [0, 0, 1]
    made.close()


@pytest.mark.parametrize("shape", [(3,), (6,), (), (1, 2, 3), (3, 2), (2, 4), (0, 3)])
def test_inputs_of_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    given = model()
    made = plan(given, OneEach())
    made.set_input(given.main.inputs[0], X)
    with pytest.raises(TensorError, match="Dimension mismatch"):
        made.set_input(given.main.inputs[0], np.zeros(shape, np.float32))
    with pytest.raises(TensorError, match="type"):
        made.set_input(given.main.inputs[0], X.astype(np.float64))
    made.invoke()
    np.testing.assert_array_equal(made.value(given.main.outputs[0]), np.abs(X))
    made.close()


def test_times_of_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds, each with its own nodes and waiting included."""
    from litegpu.delegates import plan as module

    given = model()
    made = plan(given, OneEach(), cpu=(1,))
    made.set_input(given.main.inputs[0], X)
    clock = iter([10.0, 10.25, 20.0, 20.5, 30.0, 31.0])
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(clock)))  # of this module alone
    with made.timed() as times:
        made.invoke()
    assert [(t.owner, t.nodes, t.start, t.seconds) for t in times] == [
        ("ONE", (0,), 10.0, 0.25), ("CPU", (1,), 20.0, 0.5), ("ONE", (2,), 30.0, 1.0),
    ]  # fmt: skip
    made.invoke()
    assert len(times) == 3
    made.close()


def test_an_interpreter_closes_its_partitions() -> None:
    b = ModelBuilder()
    b.output(b.op("ABS", [b.input("x", SHAPE)], SHAPE))
    delegate = OneEach()
    one = Interpreter(model_content=b.build(), experimental_delegates=[delegate])
    one.allocate_tensors()
    one.resize_tensor_input(0, SHAPE)
    one.allocate_tensors()
    assert [kernel.closed for kernel in delegate.kernels][:-1] == [1] * (len(delegate.kernels) - 1)
    one.close()
    assert all(kernel.closed for kernel in delegate.kernels)


class Odd(Kernel):
    """A kernel with other memory, results or manners than it should have."""

    memory: np.ndarray | None = None
    given: Any = None
    failing = False

    def input_memory(self, position: int) -> np.ndarray | None:
        return self.memory

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        if self.failing:
            raise RuntimeError("out of luck")
        return super().invoke(inputs) if self.given is None else self.given

    def close(self) -> None:
        super().close()
        if self.failing:
            raise RuntimeError("stuck")


class Manners(OneEach):
    """OneEach whose kernels are Odd, with `values` set in the one at a place."""

    def __init__(self, at: int = 0, **values: Any) -> None:
        super().__init__()
        self.at, self.values = at, values

    def prepare(self, partition: Partition) -> Kernel:
        kernel = Odd(partition)
        if len(self.kernels) == self.at:
            vars(kernel).update(self.values)
        self.kernels.append(kernel)
        return kernel


@pytest.mark.parametrize("wait", [True, False])
def test_kernels_that_can_are_abandoned_by_who_does_not_wait(wait: bool) -> None:
    abandoned: list[int] = []
    delegate = Manners(at=1, abandon=lambda: abandoned.append(1))
    plan(model(), delegate).close(wait=wait)
    assert [kernel.closed for kernel in delegate.kernels] == [1, int(wait), 1] and len(abandoned) == (not wait)


def test_an_input_that_one_partition_reads_lies_in_its_memory() -> None:
    memory = np.zeros(SHAPE, np.float32)
    given = model()
    made = plan(given, Manners(memory=memory))
    made.set_input(given.main.inputs[0], X)
    np.testing.assert_array_equal(memory, X)
    made.invoke()
    np.testing.assert_array_equal(made.value(given.main.outputs[0]), np.abs(X))
    made.close()


@pytest.mark.parametrize(
    "other", [np.zeros(SHAPE, np.float64), np.zeros(SHAPE, np.int32), np.zeros((3, 2), np.float32)]
)
def test_memory_that_is_not_the_input_s_is_not_used(other: np.ndarray) -> None:
    given = model()
    made = plan(given, Manners(memory=other))
    made.set_input(given.main.inputs[0], X)
    assert not other.any()
    made.invoke()
    np.testing.assert_array_equal(made.value(given.main.outputs[0]), np.abs(X))
    made.close()


def test_an_input_that_two_partitions_read_lies_in_the_memory_of_neither() -> None:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    b.output(b.op("ABS", [x], SHAPE), b.op("NEG", [x], SHAPE))
    given, memory = read_model(b.build()), np.zeros(SHAPE, np.float32)
    made = plan(given, Manners(memory=memory))
    made.set_input(x, X)
    assert not memory.any()
    made.close()


@pytest.mark.parametrize(
    "results, words",
    [
        ([np.zeros(SHAPE, np.float64)], r"gave float64 \[2, 3\] for tensor 2, which is float32 \[2, 3\]"),
        ([np.zeros((3, 2), np.float32)], r"gave float32 \[3, 2\] for tensor 2"),
        ([np.zeros(SHAPE, np.float32)] * 2, "gave 2 results for 1 outputs"),
        ([], "gave 0 results for 1 outputs"),
        ([[1.0]], r"invoke\(\) gave a list of list"),
        (3, r"invoke\(\) gave a int"),
    ],
)
def test_what_a_kernel_has_to_give(results: Any, words: str) -> None:
    given = model()
    made = plan(given, Manners(at=1, given=results))
    made.set_input(given.main.inputs[0], X)
    with pytest.raises(DelegateError, match=words):
        made.invoke()
    made.close()


def test_after_a_failure_nothing_can_be_read_but_inputs() -> None:
    """Not what the partitions before it made, nor what they made before."""
    delegate = Manners(at=1)
    given = model(outputs=(0, 2))
    made = plan(given, delegate)
    x, (first, last) = given.main.inputs[0], given.main.outputs
    made.set_input(x, X)
    made.invoke()
    np.testing.assert_array_equal(made.value(first), np.abs(X))
    delegate.kernels[1].failing = True  # type: ignore[attr-defined]
    with pytest.raises(DelegateError, match=r"ONE failed to invoke: .*out of luck"):
        made.invoke()
    for output in (first, last):
        with pytest.raises(TensorError, match="Tensor data is null"):
            made.value(output)
    np.testing.assert_array_equal(made.value(x), X)
    delegate.kernels[1].failing = False  # type: ignore[attr-defined]
    made.invoke()
    np.testing.assert_array_equal(made.value(last), np.abs(X))
    made.close()


def test_a_kernel_that_cannot_be_closed_keeps_no_other_open(caplog: pytest.LogCaptureFixture) -> None:
    delegate = Manners(at=1, failing=True)
    plan(model(), delegate).close()
    assert [kernel.closed for kernel in delegate.kernels] == [1, 1, 1]
    assert "failed to close a kernel" in caplog.text and "stuck" in caplog.text


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int64, np.bool_])
def test_inputs_are_aligned_zeros(shape: tuple[int, ...], dtype: Any) -> None:
    for _ in range(5):
        array = _aligned(shape, np.dtype(dtype))
        assert array.shape == shape and array.dtype == dtype and not array.any() and array.flags.c_contiguous
        assert array.ctypes.data % ALIGNMENT == 0 and array.flags.writeable


def test_a_scalar_takes_a_scalar() -> None:
    b = ModelBuilder()
    x = b.input("x", ())
    b.output(b.op("ABS", [x], ()))
    made = plan(read_model(b.build()), OneEach())
    made.set_input(x, np.float32(2))
    for shape in ((1,), (0,), (1, 1)):
        with pytest.raises(TensorError, match="Dimension mismatch"):
            made.set_input(x, np.full(shape, 3, np.float32))
    assert made.value(x) == 2
    made.close()


def test_one_thread_at_a_time() -> None:
    """The second is refused while the first is inside, and served when it has left."""
    entered, leave = threading.Event(), threading.Event()

    class Slow(Odd):
        def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            entered.set()
            assert leave.wait(60)
            return super().invoke(inputs)

    delegate = OneEach()
    delegate.prepare = Slow  # type: ignore[method-assign]
    made = plan(model(("ABS",), (0,)), delegate)
    first = threading.Thread(target=made.invoke)
    first.start()
    try:
        assert entered.wait(60)
        for refused in (made.invoke, made.reset_variables):
            with pytest.raises(InvokeError, match="in use by another thread"):
                refused()
    finally:
        leave.set()
        first.join()
    made.invoke()
    made.close()


def test_before_the_first_inference_what_is_known_is_zero() -> None:
    """And what only the run gives a shape is not there."""
    given = model(outputs=(0, 2))
    first, last = given.main.outputs
    found = [(0, Partition(given, given.main, (o,), tuple(o.inputs), tuple(o.outputs))) for o in given.main.operators]
    division = object.__new__(Division)
    object.__setattr__(division, "partitions", tuple(found))
    made = Plan(given.main, division, [OneEach()], OfficialOptions(), frozenset({last}))
    assert made.value(first).shape == SHAPE and not made.value(first).any()
    with pytest.raises(TensorError, match="Tensor data is null"):
        made.value(last)
    made.close()


def test_nodes_that_an_error_blames_are_the_partition_s_own() -> None:
    class Blame(RuntimeError):
        nodes: Any = (7, 2, 5)

    error = Blame("x")
    assert PrepareError(0, (1, 2, 5), error).blamed == (2, 5)
    error.nodes = 2
    assert PrepareError(0, (1, 2), error).blamed == ()
    assert PrepareError(0, (1, 2), RuntimeError("y")).blamed == ()
