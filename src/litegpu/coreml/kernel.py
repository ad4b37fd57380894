"""A partition that Core ML has loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from litegpu import fork
from litegpu.background import Patient
from litegpu.coreml.conversion import own_name, result_name
from litegpu.delegates.protocol import Partition
from litegpu.errors import InvokeError


class CoreMlKernel:
    """`model`: coremltools' MLModel of the partition, or what has its predict()."""

    #: Its service is not reached from a forked process, be it on a GPU or not.
    uses_gpu = True

    def __init__(self, model: Any, partition: Partition, notes: Sequence[str]) -> None:
        self.notes = tuple(notes)
        self._patient = Patient()
        self._model = model
        self._inputs = [own_name(t) for t in partition.inputs]
        self._outputs = [(result_name(t), partition.subgraph.tensors[t].shape) for t in partition.outputs]
        fork.follow(self)

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        self._patient.settle()
        model = self._model
        if model is None:
            raise InvokeError("The partition is closed")
        given = {name: np.ascontiguousarray(x) for name, x in zip(self._inputs, inputs, strict=True)}
        found: list[Any] = []
        self._patient.call(lambda: found.append(model.predict(given)))
        return [np.asarray(found[0][name], np.float32).reshape(shape) for name, shape in self._outputs]

    def abandon(self) -> None:
        """What still runs keeps what it needs alive."""
        self._model = None

    def close(self) -> None:
        self._patient.settle()
        self.abandon()

    def _forked(self) -> None:
        fork.keep(self._model)
