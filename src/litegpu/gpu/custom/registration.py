"""Which custom operators a user has registered kernels for."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.boundary import typed
from litegpu.errors import OptionError
from litegpu.gpu.custom.definition import Dim3, Group, Thread
from litegpu.gpu.custom.operation import Operation
from litegpu.gpu.graph import Shape
from litegpu.gpu.lang import Features, TracedValue
from litegpu.model import schema

#: From an operator, and a thread of its kernel, four channels of an output.
ThreadKernel = Callable[[Operation, Thread], TracedValue]
#: What a thread does that stores its results itself.
GroupKernel = Callable[[Operation, Group], None]
#: (threads of a workgroup, workgroups) for an operator, the output's B,H,W,C and what the device can do.
Grid = Callable[[Operation, Shape, Features], tuple[Dim3, Dim3]]
#: None, or the reason why the GPU cannot run the operator.
Check = Callable[[Operation], str | None]
#: The outputs in NumPy, one array or several, from the inputs (None where an optional one is absent).
Reference = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Registration:
    """What register_op was given; `kernels` has one entry per output."""

    name: str
    kernels: tuple[ThreadKernel | GroupKernel, ...]
    check: Check | None
    reference: Reference | None
    grid: Grid | None
    max_version: int

    @property
    def kernel_name(self) -> str:
        """A name for kernels that every target takes."""
        letters = re.sub(r"[^A-Za-z0-9]+", "_", self.name).strip("_").lower()
        return f"custom_{letters}" if letters else "custom"


@typed
def register_op(
    name: str,
    kernel: ThreadKernel | GroupKernel | Sequence[ThreadKernel | GroupKernel],
    *,
    check: Check | None = None,
    reference: Reference | None = None,
    grid: Grid | None = None,
    max_version: int = 1,
    replace: bool = False,
) -> None:
    """Let the GPU delegate run the custom operator `name` (its custom code in the file, case-sensitive).

    kernel: `kernel(op, thread)` is called once while the kernel is traced and returns, as a value of four lanes, the
        channels that one thread computes; for an operator with several outputs, a sequence with one function for each.
        The elementwise ops around the operator are computed in the same kernel.
    check: `check(op)` gives None if the kernel can run the operator, else the reason why not, a sentence for the user.
        Types other than float32, int32 and bool, ranks above 4 and unknown shapes are refused before it is asked;
        quantized tensors count as float32, the real numbers that they stand for.
    reference: `reference(op, *inputs)` gives the output in NumPy, or a tuple of outputs, with the model's shapes. It
        runs the operator where the GPU does not, that is without a delegate too, and lets constants be folded.
    grid: gives `(threads of a workgroup, workgroups)` for a kernel that divides the work itself: it is called as
        `grid(op, output shape, features)`, and `kernel(op, group)` then stores what it computes.
    max_version: the highest version of the operator that the kernel knows.
    replace: allow `name` to be registered already.

    Raises OptionError (a ValueError) for arguments that cannot be. Mistakes in the kernel are reported when a model
    with the operator is prepared: a KernelError that names the line.
    """
    kernels = tuple(kernel) if isinstance(kernel, Sequence) else (kernel,)
    if not isinstance(name, str) or not name:
        raise OptionError(f"{name!r} cannot be the custom code of an operator: give the name that the model has")
    if name in schema.enum_values("BuiltinOperator"):
        raise OptionError(f"{name} is a builtin operator: only custom operators can be registered")
    if not kernels or not all(callable(k) for k in kernels):
        raise OptionError(f"the kernel of {name} must be a function, or one for each output, not {kernel!r}")
    for what, function in (("check", check), ("reference", reference), ("grid", grid)):
        if function is not None and not callable(function):
            raise OptionError(f"{what} of {name} must be a function, not {function!r}")
    if isinstance(max_version, bool) or not isinstance(max_version, int) or max_version < 1:
        raise OptionError(f"max_version of {name} is {max_version!r}: it must be 1 or more")
    if name in _REGISTERED and not replace:
        raise OptionError(f"{name} is registered already: pass replace=True, or call unregister_op first")
    _REGISTERED[name] = Registration(name, kernels, check, reference, grid, max_version)


@typed
def unregister_op(name: str) -> None:
    """Forget a registered operator; models that are open already keep it, also for
    other batches. Raises OptionError if there is none."""
    if name not in _REGISTERED:
        known = ", ".join(sorted(_REGISTERED)) or "none"
        raise OptionError(f"{name!r} is not registered (registered: {known})")
    del _REGISTERED[name]


def registered(name: str) -> Registration | None:
    """What was registered for a custom code: now, or when the model was opened that is being worked on."""
    return known().get(name)


def known() -> dict[str, Registration]:
    """All registrations, as registered() finds them; not to be changed."""
    kept = _KEPT.get()
    return _REGISTERED if kept is None else kept


@contextlib.contextmanager
def keeping(registrations: dict[str, Registration] | None) -> Iterator[None]:
    """In this thread, what was known earlier is what is registered; None changes nothing."""
    token = _KEPT.set(registrations if registrations is not None else _KEPT.get())
    try:
        yield
    finally:
        _KEPT.reset(token)


_REGISTERED: dict[str, Registration] = {}
_KEPT: ContextVar[dict[str, Registration] | None] = ContextVar("_KEPT", default=None)


def as_outputs(name: str, result: Any, shapes: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[np.ndarray]:
    """What a reference gave as arrays of these shapes and types; raises OptionError if it is something else."""
    given = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(given) != len(shapes):
        raise OptionError(f"the reference of {name} gave {len(given)} arrays: the operator has {len(shapes)} outputs")
    arrays = []
    for i, (array, (shape, dtype)) in enumerate(zip(given, shapes, strict=True)):
        array = np.asarray(array)
        if array.shape != shape or array.dtype.kind != dtype.kind:
            raise OptionError(
                f"the reference of {name} gave {array.dtype} {list(array.shape)} for output {i}, which is {dtype} "
                f"{list(shape)}"
            )
        arrays.append(array.astype(dtype, copy=False))
    return arrays
