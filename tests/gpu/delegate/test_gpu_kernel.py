"""A partition on a device: what is written, read, waited for and freed, in which order and by one thread at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_device import FakeDevice, FakeSession

from litegpu.errors import DeviceError
from litegpu.gpu.delegate.kernel import GpuKernel
from litegpu.gpu.delegate.options import WaitType
from litegpu.gpu.graph import DType
from litegpu.gpu.program import MemoryReport, Port, Program
from litegpu.model.types import TensorType

SHAPE = (2, 3)


def port(name: str, dtype: DType = DType.FLOAT32) -> Port:
    return Port(name, 0, (1, 1, 2, 3), dtype, 0, 24)


def program(inputs: int = 2, types: tuple[DType, ...] = (DType.FLOAT32, DType.FLOAT32)) -> Program:
    ports = tuple(port(f"x{i}") for i in range(inputs))
    outputs = tuple(port(f"y{i}", t) for i, t in enumerate(types))
    return Program((), (), np.zeros(0, np.uint8), 1024, ports, outputs, MemoryReport(0, 0, 0))


def kernel(wait: WaitType = WaitType.PASSIVE, **more: Any) -> tuple[GpuKernel, FakeSession]:
    device = FakeDevice()
    one = GpuKernel(
        device, program(), [TensorType.FLOAT32] * 2, [SHAPE] * 2, [SHAPE] * 2, wait=wait, **more
    )  # fmt: skip
    return one, device.sessions[0]


def arrays(*values: float) -> list[np.ndarray]:
    return [np.full(SHAPE, v, np.float32) for v in values]


def test_inputs_are_written_in_order_and_outputs_read() -> None:
    one, session = kernel()
    first, second = one.invoke(arrays(1.0, 10.0))
    assert session.calls == ["write 0", "write 1", "run", "read 0", "read 1"]
    assert (first == 66).all() and (second == 67).all()
    assert (session.written[0] == 1).all() and (session.written[1] == 10).all()
    one.finish()
    assert session.calls[-1] == "read 1"  # nothing is read twice


def test_what_is_not_waited_for_is_read_when_it_is_asked_for() -> None:
    one, session = kernel(WaitType.DO_NOT_WAIT)
    results = one.invoke(arrays(1.0, 2.0))
    assert session.calls == ["write 0", "write 1", "run"]
    one.finish()
    assert session.calls[3:] == ["read 0", "read 1"] and (results[0] == 18).all()
    one.finish()
    assert len(session.calls) == 5


def test_results_have_the_tensors_types() -> None:
    device = FakeDevice()
    types = [TensorType.INT64, TensorType.BOOL]
    one = GpuKernel(device, program(1, (DType.INT32, DType.BOOL)), types, [SHAPE] * 2, [SHAPE])
    whole, truth = one.invoke([np.full(SHAPE, 2, np.float32)])
    assert whole.dtype == np.int64 and (whole == 12).all()
    assert truth.dtype == np.bool_ and truth.all()


def test_booleans_are_written_as_words() -> None:
    device = FakeDevice()
    ports = (port("x", DType.BOOL),)
    made = Program((), (), np.zeros(0, np.uint8), 1024, ports, (port("y"),), MemoryReport(0, 0, 0))
    one = GpuKernel(device, made, [TensorType.FLOAT32], [SHAPE], [SHAPE])
    one.invoke([np.array([[True, False, True]] * 2)])
    assert device.sessions[0].written[0].dtype == np.int32


def test_an_input_in_the_session_s_memory_is_not_copied() -> None:
    """If it is given that very array; another one is, and what does not fit is not lent."""
    one, session = kernel()
    session.memory = {0: np.full(6, 2, np.float32), 1: np.zeros(5, np.float32)}
    lent = one.input_memory(0)
    assert lent is not None and lent.shape == SHAPE and one.input_memory(1) is None
    session.memory.pop(1)
    assert (one.invoke([lent, *arrays(0.0)])[0] == 12).all()
    assert session.calls == ["write 1", "run", "read 0", "read 1"]
    session.calls.clear()
    one.invoke(arrays(3.0, 0.0))
    assert session.calls[:2] == ["write 0", "write 1"] and (session.written[0] == 3).all()


def test_what_is_bound_is_neither_written_nor_read_until_asked() -> None:
    one, session = kernel()
    one.bound["input", 1] = one.bound["output", 0] = object()
    one.leave([0])
    results = one.invoke(arrays(1.0, 10.0))
    assert session.calls == ["write 0", "run", "read 1"]
    results[0][...] = -1
    one.ensure_readable(0)
    assert session.calls[3:] == ["read 0"] and (results[0] == 6).all()
    one.ensure_readable(0)
    assert session.calls[3:] == ["read 0"]  # its array is of the last inference now
    one.invoke(arrays(2.0, 0.0))
    one.ensure_readable(0)
    assert (results[0] == 12).all()
    one.leave([])
    one.invoke(arrays(3.0, 0.0))
    assert (results[0] == 18).all()


def test_a_session_that_takes_no_buffers_says_so() -> None:
    one, session = kernel()
    tensor: Any = SimpleNamespace(index=3, name="x", shape=SHAPE)
    for act in (lambda: one.bind("input", 0, tensor, object()), lambda: one.output_buffer(0, tensor)):
        with pytest.raises(DeviceError, match=r"fake \(vulkan\) takes no buffers"):
            act()
    with pytest.raises(DeviceError, match="takes no libraries' arrays"):
        one.rebind("input", 0, object())
    one.unbind("input", 0)
    assert session.calls == [] and not one.bound
    one.invoke(arrays(1.0, 2.0))
    assert session.calls[-1] == "read 1"


def test_closing_closes_the_session_and_ends_the_thread() -> None:
    one, session = kernel(WaitType.AGGRESSIVE)
    one.invoke(arrays(1.0, 2.0))
    assert [t for t in threading.enumerate() if t.name == "litegpu keep-awake"]
    one.bound["input", 0] = object()
    one.close()
    assert one.closed and session.closed and not one.bound
    assert not [t for t in threading.enumerate() if t.name == "litegpu keep-awake"]


def test_variables_are_reset_after_what_runs() -> None:
    one, session = kernel(WaitType.DO_NOT_WAIT)
    one.invoke(arrays(1.0, 2.0))
    one.reset_variables()
    assert session.calls[3:] == ["read 0", "read 1", "reset"]


@pytest.mark.parametrize("act", [
    lambda one: one.finish(), lambda one: one.ensure_readable(0), lambda one: one.reset_variables(),
    lambda one: one.invoke(arrays(0.0, 0.0)), lambda one: one.unbind("input", 0), lambda one: one.profile(),
    lambda one: one.collect((0,)), lambda one: one.begin({0: arrays(0.0)[0]}, (0,)),
], ids=["finish", "ensure_readable", "reset", "invoke", "unbind", "profile", "collect", "begin"])  # fmt: skip
def test_one_thread_at_a_time(act: Callable[[GpuKernel], object]) -> None:
    """While an inference is under way in one thread, nothing of another reaches the session."""
    one, session = kernel()
    session.go.clear()
    first = threading.Thread(target=one.invoke, args=(arrays(1.0, 2.0),))
    second = threading.Thread(target=act, args=(one,))
    first.start()
    assert session.inside.wait(60)
    calls = list(session.calls)
    second.start()
    second.join(0.1)
    assert second.is_alive() and session.calls == calls
    session.go.set()
    for thread in (first, second):
        thread.join(60)
        assert not thread.is_alive()
