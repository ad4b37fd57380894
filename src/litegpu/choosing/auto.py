"""What device="auto" of litegpu.load() means for a model: its GPU, or the CPU where that is quicker, or another
delegate that was measured to be the quickest."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from typing import Any

from litegpu.choosing.called import called
from litegpu.choosing.candidate import CPU, Candidate, Measured
from litegpu.choosing.choice import Choice, by_measurement, by_prediction, comparable
from litegpu.choosing.records import recall
from litegpu.device_choice import asked_for, delegate_for
from litegpu.errors import DelegateLoadError, DeviceError, OptionError
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

    delegate: of the GPU that may be chosen, in the arithmetic that was chosen last, None without one. used: the
    delegate of what was opened last, None for the CPU. choice: the last one that was made."""

    def __init__(self, source: Source, precision: str, num_threads: int | None, open_one: Open) -> None:
        """Opens the GPU. Raises ModelError."""
        self._precision = precision
        self._num_threads = num_threads
        self._open = open_one
        self.choice: Choice | None = None
        self.used: Any = None
        self._others: dict[str, Any] = {}  # delegates that are not the GPU's, by name
        self._first = source, read_model(source)
        model = self._first[1]
        self._rows = _rows(model)
        found = comparable(recall(model.content), precision, num_threads)
        gpus = [one for one in found if one.candidate.device in registry.ENTRIES and one.accepted]
        self.delegate = self._gpu(by_measurement(gpus))
        self._measured = tuple(one for one in self._of_this_device(found) if one.accepted)

    def open(self, source: Source) -> Interpreter:
        """An interpreter of the model, or of what another batch has made of it."""
        self.used = None
        if self.delegate is None and not self._measured:
            return self._open(source, None, self._num_threads)
        if self.delegate is not None and self.delegate.open_device().info.is_software:  # named by the environment
            return self._on(source, self.delegate)
        model = self._first[1] if source is self._first[0] else read_model(source)
        batch = max(1, _rows(model) // self._rows)
        choice = by_measurement(self._measured, batch)
        while choice is not None:
            chosen = choice.candidate
            if chosen.is_cpu:
                self._tell(choice)
                return self._open(source, None, chosen.num_threads or self._num_threads)
            delegate = self._in(chosen) if chosen.device in registry.ENTRIES else self._other(chosen.device)
            if delegate is not None:
                self._tell(choice)
                return self._on(source, delegate)
            self._measured = tuple(one for one in self._measured if one.candidate.device != chosen.device)
            choice = by_measurement(self._measured, batch)
        if self.delegate is None:
            return self._open(source, None, self._num_threads)
        gpu = Candidate(registry.name_of(self.delegate.open_device()), self._precision)
        cpu = Candidate(CPU, num_threads=self._num_threads)
        work = called(model)
        choice = by_prediction(model.main, None, (gpu, cpu), batch, work)  # if the GPU took all of it
        if not choice.candidate.is_cpu:
            interpreter = self._open(source, self.delegate, self._num_threads)
            choice = by_prediction(interpreter.graph, interpreter.delegation_report(), (gpu, cpu), batch, work)
            if not choice.candidate.is_cpu:
                self._tell(choice)
                self.used = self.delegate
                return interpreter
            interpreter.close()
        self._tell(choice)
        return self._open(source, None, self._num_threads)

    @property
    def taken(self) -> tuple[Any, ...]:
        """What was chosen last, for take()."""
        return self.delegate, self.used, self.choice

    def open_as(self, source: Source, taken: tuple[Any, ...]) -> Interpreter:
        """An interpreter of the model with what was `taken`; for any thread, as nothing is chosen."""
        _, used, choice = taken
        threads = choice.candidate.num_threads if choice is not None and choice.candidate.is_cpu else None
        return self._open(source, used, threads or self._num_threads)

    def take(self, taken: tuple[Any, ...]) -> None:
        """Be as when that was `taken`."""
        self.delegate, self.used, self.choice = taken

    def _on(self, source: Source, delegate: Any) -> Interpreter:
        self.used = delegate
        return self._open(source, delegate, self._num_threads)

    def _in(self, chosen: Candidate) -> GpuDelegate | None:
        """The GPU's delegate, in the arithmetic that was chosen."""
        if self.delegate is not None and self.delegate.options.arithmetic != chosen.arithmetic:
            self.delegate = delegate_for(chosen.device, self._precision, chosen.gpu_options)
        return self.delegate

    def _other(self, name: str) -> Any:
        """A delegate that is not the GPU's, None if it cannot be had."""
        if name not in self._others:
            try:
                self._others[name] = asked_for(name, self._precision, {})
            except (DeviceError, DelegateLoadError, OptionError) as error:
                log.debug("The delegate that was measured is not there: %s", error)
                self._others[name] = None
        return self._others[name]

    def _gpu(self, best: Choice | None) -> GpuDelegate | None:
        """The GPU that was measured to be the quickest, if it is there and no program on the CPU, else the first."""
        if best is not None:
            try:
                found = delegate_for(best.candidate.device, self._precision, best.candidate.gpu_options)
                if found is not None and not found.open_device().info.is_software:
                    return found
            except DeviceError as error:
                log.debug("The GPU that was measured is not there: %s", error)
        return delegate_for("auto", self._precision, {})

    def _of_this_device(self, found: tuple[Measured, ...]) -> tuple[Measured, ...]:
        """What was measured of the GPU that was opened, of other delegates and of the CPU; nothing if there is a GPU
        that never was."""
        rest = [one for one in found if one.candidate.device not in registry.ENTRIES]
        if self.delegate is None:
            return tuple(rest)
        device = self.delegate.open_device()
        name, info = registry.name_of(device), device.info
        here = [one for one in found if (one.candidate.device, one.name, one.driver) == (name, info.name, info.driver)]
        return (*here, *rest) if here else ()

    def _tell(self, choice: Choice) -> None:
        self.choice = choice
        log.info('device="auto": %s', choice.reason)


def _rows(model: Model) -> int:
    """The leading extent of the first input; 1 where it has none."""
    main = model.main
    shape = main.tensors[main.inputs[0]].shape if main.inputs else ()
    return max(1, math.prod(shape[:1]))
