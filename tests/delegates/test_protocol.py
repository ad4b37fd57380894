"""What isinstance says of delegates and kernels: what they have, themselves or through what they wrap."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import litegpu
from litegpu import GpuDelegate
from litegpu.delegates import protocol
from litegpu.delegates.partitioner import FailedDelegate, NarrowedDelegate
from litegpu.delegates.protocol import (
    Abandons,
    Delegate,
    DelegateKernel,
    FinishesLater,
    HasNotes,
    KeepsOutputs,
    KeepsVariables,
    LendsInputs,
    OfficialDelegate,
    OnGpu,
    Rehearses,
    ResetsVariables,
    lacking,
    members,
)
from litegpu.gpu.delegate.kernel import GpuKernel
from litegpu.gpu.delegate.slices import SlicedKernel
from litegpu.tools.benchmark.delegates import GpuWatch

SOURCE = Path(litegpu.__file__).parent
KERNELS = (DelegateKernel, ResetsVariables, LendsInputs, FinishesLater, HasNotes, Abandons, KeepsOutputs, OnGpu)


class Wrapper:
    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Plain:
    def invoke(self, inputs: Any) -> list[np.ndarray]:
        return []

    def close(self) -> None:
        pass


class Rich(Plain):
    uses_gpu = False
    notes = ()

    def finish(self) -> None:
        pass

    reset_variables = abandon = finish

    def input_memory(self, i: int) -> None:
        return None

    leave = ensure_readable = output_buffer = input_memory


@pytest.mark.parametrize("wrapped", [False, True])
def test_kernels(wrapped: bool) -> None:
    plain, rich = (Wrapper(one) if wrapped else one for one in (Plain(), Rich()))
    assert [isinstance(plain, kind) for kind in KERNELS] == [True] + [False] * (len(KERNELS) - 1)
    assert all(isinstance(rich, kind) for kind in KERNELS)
    assert not isinstance(None, DelegateKernel) and lacking(None, DelegateKernel) == ("invoke", "close")


def test_methods_have_to_be_callable() -> None:
    one = Rich()
    one.finish = one.close = None  # type: ignore[method-assign, assignment]
    one.invoke = 3  # type: ignore[method-assign, assignment]
    assert not isinstance(one, FinishesLater) and lacking(one, DelegateKernel) == ("invoke", "close")


def test_delegates(numpy_delegate: Any) -> None:
    mine, gpu = numpy_delegate(), GpuDelegate(backend="reference")
    for wrap in (lambda one: one, Wrapper, lambda one: NarrowedDelegate(one, {})):
        assert isinstance(wrap(mine), Delegate) and isinstance(wrap(gpu), Delegate)
        assert not isinstance(wrap(mine), (KeepsVariables, Rehearses))
        assert isinstance(wrap(gpu), KeepsVariables) and isinstance(wrap(gpu), Rehearses)
    assert isinstance(GpuWatch(gpu), Delegate) and isinstance(GpuWatch(gpu), Rehearses)
    assert isinstance(FailedDelegate("x", ValueError()), Delegate)
    assert not isinstance(gpu, OfficialDelegate) and not isinstance(object(), Delegate)
    del mine.max_delegated_partitions
    assert lacking(mine, Delegate) == ("max_delegated_partitions",)


def test_what_protocols_declare() -> None:
    assert members(DelegateKernel) == ("invoke", "close") and members(HasNotes) == ("notes",)
    assert members(Delegate)[-2:] == ("check", "prepare") and len(members(Delegate)) == 7
    assert members(OnGpu) == ("uses_gpu",)


def test_the_gpu_s_own_kernels_have_their_abilities() -> None:
    for kind in KERNELS:
        assert not lacking(GpuKernel, kind), kind
    for kind in (DelegateKernel, HasNotes, Abandons, OnGpu):
        assert not lacking(SlicedKernel, kind), kind
    assert not isinstance(SlicedKernel, LendsInputs)


def test_nothing_else_asks_what_a_delegate_or_a_kernel_has() -> None:
    """hasattr, and getattr with a default, are for the user's objects and for libraries."""
    asked = {name for kind in vars(protocol).values() if isinstance(kind, protocol.Ability) for name in members(kind)}
    asked |= {"lost", "given", "time_graph", "open_device", "programmatic", "way", "pinned", "holds", "bind"} - {"name"}
    asked -= {"name", "close"}
    found = []
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("hasattr", "getattr")
            ):
                name = node.args[1]
                if len(node.args) == (2 if node.func.id == "hasattr" else 3) and isinstance(name, ast.Constant):
                    found += [f"{path}:{node.lineno}"] if name.value in asked else []
    assert not found
