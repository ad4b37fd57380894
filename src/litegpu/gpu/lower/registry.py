"""Which operators the GPU runs: the lowering functions, and the entries of the record that say what they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from litegpu.gpu.lower.context import OpContext
from litegpu.gpu.lower.families import FAMILY, load
from litegpu.model.ops import BUILTIN, CUSTOM, Gpu, Op
from litegpu.model.types import Operator

Lower = Callable[[OpContext], None]
T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """One operator, its function, and what that takes."""

    op: Op
    gpu: Gpu
    lower: Lower


_REGISTRY: dict[tuple[str, bool], Entry] = {}


def lowers(*names: str) -> Callable[[Lower], Lower]:
    """Register a function as the lowering of the operators `names`, whose entries in model/ops say what it takes."""

    def register(function: Lower) -> Lower:
        for name in names:
            _register(name, function)
        return function

    return register


def lowers_as(**kinds: T) -> Callable[[Callable[[OpContext, T], None]], Callable[[OpContext, T], None]]:
    """The same for a function that is told of which kind each operator is."""

    def register(function: Callable[[OpContext, T], None]) -> Callable[[OpContext, T], None]:
        for name, kind in kinds.items():
            _register(name, _of_kind(function, kind))
        return function

    return register


def find(operator: Operator) -> Entry | None:
    """How an operator is lowered, None if it is not among those that are."""
    key = operator.name, operator.is_custom
    if key not in _REGISTRY and operator.name in FAMILY:
        load(FAMILY[operator.name])
    return _REGISTRY.get(key)


def supported_ops() -> tuple[Entry, ...]:
    """Every operator that the GPU runs, by name."""
    for family in dict.fromkeys(FAMILY.values()):
        load(family)
    return tuple(sorted(_REGISTRY.values(), key=lambda entry: entry.op.name))


def _register(name: str, function: Lower) -> None:
    op = BUILTIN.get(name) or CUSTOM[name]
    if (name, op.custom) in _REGISTRY:
        raise ValueError(f"{name} is registered twice")
    if op.gpu is None:
        raise ValueError(f"the entry of {name} says nothing of the GPU")
    _REGISTRY[name, op.custom] = Entry(op, op.gpu, function)


def _of_kind(function: Callable[[OpContext, T], None], kind: T) -> Lower:
    return lambda ctx: function(ctx, kind)
