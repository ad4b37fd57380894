"""Small programs for any backend: kernels of the language, printed by the backend that they are for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from litegpu.gpu.backends import registry
from litegpu.gpu.backends.contract import Device
from litegpu.gpu.graph import DType
from litegpu.gpu.lang import Kernel, f32, i32, trace
from litegpu.gpu.program import Binding, Dispatch, KernelCode, MemoryReport, Port, Program

COUNT = 256  # elements of every tensor
THREADS = 64
SLOT = 1024  # bytes from one tensor in the arena to the next: aligned for every device


def place(k: Kernel) -> Any:
    """This thread's element."""
    return k.group_id() * THREADS + k.local_id()


def doubled(k: Kernel) -> None:
    """y = 2 x + c[0]"""
    x, c, y = k.buffer("x", f32, COUNT), k.buffer("c", f32, 4, access="read"), k.buffer("y", f32, COUNT)
    y[place(k)] = x[place(k)] * 2 + c[0]


def negated(k: Kernel) -> None:
    """y = -x of integers."""
    x, y = k.buffer("x", i32, COUNT), k.buffer("y", i32, COUNT)
    y[place(k)] = -x[place(k)]


def summed(k: Kernel) -> None:
    """The variable v grows by x, and y is its value."""
    x, y, v = (k.buffer(name, f32, COUNT) for name in "xyv")
    total = v[place(k)] + x[place(k)]
    v[place(k)] = total
    y[place(k)] = total


def code(device: Device, body: Callable[[Kernel], None]) -> tuple[KernelCode, Kernel]:
    """The kernel of COUNT threads, in the device's language."""
    kernel = trace(body, body.__name__, (THREADS, 1, 1), (COUNT // THREADS, 1, 1))
    source = registry.of_language(device.target).print_kernel(kernel, device.features)
    return KernelCode(kernel.name, source, kernel.workgroup, tuple(b.access for b in kernel.buffers)), kernel


def port(name: str, slot: int, dtype: DType = DType.FLOAT32) -> Port:
    return Port(name, slot, (1, 1, 1, COUNT), dtype, SLOT * slot, 4 * COUNT)


def affine(device: Device, steps: int = 1, add: float = 1.0, *, in_place: bool = False) -> Program:
    """`steps` times 2 x + add. Outputs: the last tensor, and the first one that is computed. `in_place`: the last one
    is written over the input."""
    made, kernel = code(device, doubled)
    last = 0 if in_place else steps
    slots = [*range(steps), last]
    dispatches = [
        Dispatch(
            0,
            kernel.dispatch,
            (Binding("arena", SLOT * a, 4 * COUNT), Binding("constants", 0, 16), Binding("arena", SLOT * b, 4 * COUNT)),
            f"affine [{i}]",
            (i,),
        )
        for i, (a, b) in enumerate(itertools.pairwise(slots))
    ]
    return _program(
        [made], dispatches, steps + 1, [port("x", 0)], [port("last", last), port("first", slots[1])],
        constants=np.array([add, 0, 0, 0], np.float32),
    )  # fmt: skip


def negation(device: Device) -> Program:
    made, kernel = code(device, negated)
    bindings = tuple(Binding("arena", SLOT * i, 4 * COUNT) for i in range(2))
    ports = [port(name, i, DType.INT32) for i, name in enumerate("xy")]
    return _program([made], [Dispatch(0, kernel.dispatch, bindings, "negation [0]", (0,))], 2, ports[:1], ports[1:])


def counter(device: Device) -> Program:
    """With a variable."""
    made, kernel = code(device, summed)
    bindings = tuple(Binding("arena", SLOT * i, 4 * COUNT) for i in range(3))
    x, y, v = (port(name, i) for i, name in enumerate("xyv"))
    return _program(
        [made], [Dispatch(0, kernel.dispatch, bindings, "counter [0]", (0,))], 3, [x], [y], variables=(v,)
    )  # fmt: skip


def _program(
    kernels: Sequence[KernelCode],
    dispatches: Sequence[Dispatch],
    slots: int,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    constants: np.ndarray | None = None,
    variables: tuple[Port, ...] = (),
) -> Program:
    size = SLOT * slots
    held = np.zeros(0, np.uint8) if constants is None else np.zeros(256, np.uint8)
    if constants is not None:
        held[: constants.nbytes] = constants.view(np.uint8)
    return Program(
        kernels=tuple(kernels),
        dispatches=tuple(dispatches),
        constants=held,
        arena_size=size,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        memory=MemoryReport(size, size, size),
        variables=variables,
    )
