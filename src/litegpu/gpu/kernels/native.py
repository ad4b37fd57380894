"""What a backend adds to the kernels of the language: kernels in its own, and the fusions that only those compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from litegpu.gpu.graph import Graph, Shape
    from litegpu.gpu.kernels.context import KernelContext, Launch
    from litegpu.gpu.lang.features import Features


@dataclass(frozen=True)
class ByteWork:
    """What a model in whole numbers computes: multiplications, elements, how many of them by tables, operators, rows of
    a batch; whether some weights have zero points of their own, and how many products are of attentions that one kernel
    computes."""

    products: float
    elements: int
    tables: int
    operators: int
    batch: int
    zero_points: bool = False
    attentions: int = 0


class Native(Protocol):
    """Each method is asked for devices whose features name it."""

    def launches(self, ctx: KernelContext) -> list[Launch] | None:
        """The launches that compute ctx.node, or None where the kernel of the language is to."""

    def join_first(self, graph: Graph, features: Features, half: bool) -> Graph:
        """The graph with what is fused before attention is looked for. `half`: intermediates will be float16."""

    def join_last(self, graph: Graph, features: Features, half: bool) -> Graph:
        """The graph with what is fused after that."""

    def join_bytes(self, graph: Graph, features: Features) -> Graph:
        """The graph with what is fused of bytes, once they are looked up where they are computed (passes/tables.py)."""

    def attention_pays(self, depth: int, columns: int, keys: int, features: Features, half: bool) -> bool | None:
        """Whether one kernel computes an attention faster than separate products do, of queries of `depth` numbers,
        values of `columns` and so many keys; None where the common rule holds."""

    def keys_of_bytes(self, features: Features) -> int:
        """Keys up to which one kernel computes an attention of bytes; 0 if none does."""

    def joins_moments(self, features: Features) -> bool:
        """Whether there is a kernel for JoinedMoments."""

    def norms_groups(self, shape: Shape, groups: int, features: Features) -> bool:
        """Whether there is a kernel for the GroupNorm of x [B,H,W,C] of that shape, and faster than others."""

    def multiplies_bytes(self, features: Features, work: ByteWork) -> bool:
        """Whether there are kernels of whole numbers with which a model is faster than with those of float16."""


_REGISTERED: dict[str, Callable[[], Native]] = {}


def register(name: str, native: Callable[[], Native]) -> None:
    """Let devices whose features name it have the kernels that `native()` gives, always the same; the backend does so
    when it is loaded."""
    _REGISTERED[name] = native


def of(features: Features) -> Native | None:
    """The native kernels of a device with these features; None if it has none. LookupError if its backend has not been
    loaded, which backends/registry.py does."""
    return _REGISTERED[features.native]() if features.native else None
