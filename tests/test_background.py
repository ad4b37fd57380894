"""Inferences in the background."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import pytest

from litegpu import GpuDelegate, Interpreter, InvokeError
from litegpu.background import Background, InferenceFuture
from litegpu.model.builder import ModelBuilder

SHAPE = (1, 4, 4, 3)


def content() -> bytes:
    builder = ModelBuilder()
    builder.output(builder.op("ABS", [builder.input("x", SHAPE)], SHAPE))
    return builder.build()


def opened(delegates) -> Interpreter:
    one = Interpreter(model_content=content(), experimental_delegates=delegates, fallback="silent")
    one.allocate_tensors()
    return one


@pytest.mark.parametrize("gpu", [False, True])
def test_with_futures_and_with_asyncio(gpu: bool) -> None:
    with opened([GpuDelegate(wait_type="do_not_wait")] if gpu else []) as one:
        (x,), (y,) = one.get_input_details(), one.get_output_details()
        for value in (-1.0, -2.0):
            one.set_tensor(x["index"], np.full(SHAPE, value, np.float32))
            future: Any = one.invoke_async()
            assert isinstance(future, concurrent.futures.Future)
            concurrent.futures.wait([future])
            assert future.result() is None
            assert (one.get_tensor(y["index"]) == -value).all()

        async def several() -> list[float]:
            found = []
            for value in (-3.0, -4.0, -5.0):
                one.set_tensor(x["index"], np.full(SHAPE, value, np.float32))
                await one.invoke_async()
                found.append(float(one.get_tensor(y["index"]).max()))
            return found

        assert asyncio.run(several()) == [3.0, 4.0, 5.0]


def test_other_methods_wait_and_errors_are_the_futures() -> None:
    with opened([]) as one:
        (x,), (y,) = one.get_input_details(), one.get_output_details()
        for _ in range(20):
            one.set_tensor(x["index"], np.full(SHAPE, -1, np.float32))
            one.invoke_async()
            one.set_tensor(x["index"], np.full(SHAPE, -2, np.float32))  # for the next one
            assert (one.get_tensor(y["index"]) == 1).all()
        one.resize_tensor_input(x["index"], (2, 4, 4, 3))
        with pytest.raises(InvokeError):
            one.invoke_async().result()
        one.allocate_tensors()
        one.invoke_async().result()
    with pytest.raises(InvokeError, match="closed"):
        one.invoke_async().result()


def test_one_after_the_other() -> None:
    background, order = Background(), []

    def work(number: int) -> None:
        time.sleep(0.01)
        order.append((number, threading.current_thread() is threading.main_thread()))

    futures = [background.start(partial(work, i)) for i in range(3)]
    background.settle()
    assert order == [(0, False), (1, False), (2, False)] and all(f.done() for f in futures)
    assert isinstance(futures[0], InferenceFuture)
    background.close()
    background.close()


def test_interpreters_that_are_forgotten_leave_no_thread() -> None:
    def count() -> int:
        return sum(t.name.startswith("litegpu inference") for t in threading.enumerate())

    before = count()
    for _ in range(3):
        one = opened([])
        one.invoke_async()
        del one
    deadline = time.monotonic() + 10
    while count() > before and time.monotonic() < deadline:
        time.sleep(1e-3)
    assert count() <= before
