"""What device="auto" of litegpu.load() means for a model: its GPU, or the CPU where that is quicker."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from typing import Any

from litegpu.choosing.candidate import CPU, Candidate, Measured
from litegpu.choosing.choice import Choice, by_measurement, by_prediction, comparable
from litegpu.choosing.records import recall
from litegpu.device_choice import delegate_for
from litegpu.errors import DeviceError
from litegpu.gpu.backends import registry
from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.interpreter import Interpreter
from litegpu.model.reader import read_model
from litegpu.model.types import Model

log = logging.getLogger("litegpu")

Source = str | os.PathLike[str] | bytes
#: Makes an interpreter of a model: (source, delegate or None, threads of the CPU).
Open = Callable[[Source, Any, int | None], Interpreter]


class Auto:
    """Chooses for one model, and again for each batch that it is opened for.

    delegate: of the GPU that may be chosen, None without one. choice: the last one that was made."""

    def __init__(self, source: Source, precision: str, num_threads: int | None, open_one: Open) -> None:
        """Opens the GPU. Raises ModelError."""
        self._precision = precision
        self._num_threads = num_threads
        self._open = open_one
        self.choice: Choice | None = None
        self._first = source, read_model(source)
        model = self._first[1]
        self._rows = _rows(model)
        found = comparable(recall(model.content), precision, num_threads)
        self.delegate = self._gpu(by_measurement([one for one in found if not one.candidate.is_cpu]))
        self._measured = self._of_this_device(found)

    def open(self, source: Source) -> Interpreter:
        """An interpreter of the model, or of what another batch has made of it."""
        if self.delegate is None:
            return self._open(source, None, self._num_threads)
        if self.delegate.open_device().info.is_software:  # which was named, by the environment
            return self._open(source, self.delegate, self._num_threads)
        model = self._first[1] if source is self._first[0] else read_model(source)
        batch = max(1, _rows(model) // self._rows)
        choice = by_measurement(self._measured, batch)
        if choice is not None:
            self._tell(choice)
            chosen = choice.candidate
            if chosen.is_cpu:
                return self._open(source, None, chosen.num_threads or self._num_threads)
            return self._open(source, self.delegate, self._num_threads)
        gpu = Candidate(registry.name_of(self.delegate.open_device()), self._precision)
        cpu = Candidate(CPU, num_threads=self._num_threads)
        choice = by_prediction(model.main, None, (gpu, cpu), batch)  # if the GPU took all of it
        if not choice.candidate.is_cpu:
            interpreter = self._open(source, self.delegate, self._num_threads)
            choice = by_prediction(interpreter.graph, interpreter.delegation_report(), (gpu, cpu), batch)
            if not choice.candidate.is_cpu:
                self._tell(choice)
                return interpreter
            interpreter.close()
        self._tell(choice)
        return self._open(source, None, self._num_threads)

    def _gpu(self, best: Choice | None) -> GpuDelegate | None:
        """The GPU that was measured to be the quickest, if it is there, else the first."""
        if best is not None:
            try:
                return delegate_for(best.candidate.device, self._precision, {})
            except DeviceError as error:
                log.debug("The GPU that was measured is not there: %s", error)
        return delegate_for("auto", self._precision, {})

    def _of_this_device(self, found: tuple[Measured, ...]) -> tuple[Measured, ...]:
        """What was measured of the GPU that was opened, and of the CPU; nothing if that GPU never was."""
        if self.delegate is None:
            return ()
        device = self.delegate.open_device()
        name, info = registry.name_of(device), device.info
        here = [one for one in found if (one.candidate.device, one.name, one.driver) == (name, info.name, info.driver)]
        return (*here, *(one for one in found if one.candidate.is_cpu)) if here else ()

    def _tell(self, choice: Choice) -> None:
        self.choice = choice
        log.info('device="auto": %s', choice.reason)


def _rows(model: Model) -> int:
    """The leading extent of the first input; 1 where it has none."""
    main = model.main
    shape = main.tensors[main.inputs[0]].shape if main.inputs else ()
    return max(1, math.prod(shape[:1]))
