"""A GPU delegate that remembers the programs that it prepares, and leaves no trace of being looked into."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.gpu.delegate.options import GpuDelegateOptions
from litegpu.gpu.program import Program

if TYPE_CHECKING:
    from litegpu.delegates.protocol import DelegateKernel, Partition


@dataclass(frozen=True)
class Staging:
    """Positions of a model's inputs and outputs that are inner tensors of the model that is looked into."""

    inputs: frozenset[int] = frozenset()
    outputs: frozenset[int] = frozenset()


class RecordingDelegate(GpuDelegate):
    """`programs` are those prepared so far, in order. What `staging` names is stored and laid out as the tensors inside
    a partition are, so that the kernels next to it are those of the whole model."""

    def __init__(self, options: GpuDelegateOptions, staging: Staging | None = None) -> None:
        super().__init__(options)
        self.programs: list[Program] = []
        self._staging = staging or Staging()

    def prepare(self, partition: Partition) -> DelegateKernel:
        kernel: Any = super().prepare(partition)
        self.programs.append(kernel.program)
        return kernel  # type: ignore[no-any-return]

    def _staged(self, partition: Partition) -> tuple[Collection[int], Collection[int]]:
        graph = partition.subgraph
        inputs = {graph.inputs[i] for i in self._staging.inputs}
        outputs = {graph.outputs[i] for i in self._staging.outputs}
        return (
            [i for i, t in enumerate(partition.inputs) if t in inputs],
            [i for i, t in enumerate(partition.outputs) if t in outputs],
        )

    @property
    def half(self) -> bool:
        """Whether float16 is really used."""
        return bool(self.options.half and self.open_device().features.float16)

    @property
    def device(self) -> tuple[str, bool]:
        """The device's name, and whether it is a program on the CPU."""
        info = self.open_device().info
        return f"{info.name} ({info.backend})", info.is_software
