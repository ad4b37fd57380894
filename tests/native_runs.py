"""A driver of the tests' own in front of CPU models, so that a batcher's native code has something to call."""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu import native
from litegpu.batching import sizes
from litegpu.gpu.backends.abilities import NativeRun
from litegpu.native.compiling import Sources

_OWN = {"write": "write_number", "record": "record_event"}
_NAMES = {name: _OWN.get(name, name) for name in NativeRun.FUNCTIONS}


@functools.cache
def _driver() -> dict[str, int]:
    """The functions of driver.c."""
    folder = tempfile.mkdtemp(prefix="litegpu-")
    library = ctypes.CDLL(str(Sources(Path(__file__).parent / "native_driver", "driver").compile(Path(folder))))
    return {name: ctypes.cast(getattr(library, own), ctypes.c_void_p).value or 0 for name, own in _NAMES.items()}


class FakeDriver:
    """`error`: what the next launches give. `late`: how often the device is asked before an inference has ended.
    `launches`: so many there were. `lanes`: of batchers that are made. `writes`: the device says by itself when one has
    ended. `rounded`: the model's inputs that come as float16 if the batcher wants that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lanes: int = 1, rounded: Collection[str] = ()) -> None:
        self.error, self.late, self.launches = 0, 1, 0
        self._rounded = rounded
        self.watched, self.writes = False, True
        self._kept: list[Any] = []
        self.streams: list[ctypes.c_int64] = []  # how often each is still to be asked
        self.streams_by_launch: list[ctypes.c_int64] = []  # of inferences, latest last
        if native.build() is None:
            pytest.skip("no native code here")
        monkeypatch.setattr("litegpu.batching.batcher.AHEAD_IN_C", lanes)
        monkeypatch.setattr(
            sizes._OfModel, "native_run", lambda runner, types, halves=(): self._native_run(runner, halves)
        )
        monkeypatch.setattr(sizes._OfModel, "__init__", self._initialized(sizes._OfModel.__init__))

    def _initialized(self, before: Any) -> Any:
        def made(runner: Any, model: Any) -> None:
            before(runner, model)
            runner.inputs = {name: i for i, name in enumerate(model.inputs)}
            runner.outputs = range(len(model.outputs))
            runner.watched = self.watched
            runner.rounded = self._rounded

        return made

    def _native_run(self, runner: Any, halves: Collection[str]) -> NativeRun:
        model = runner._model
        types = {n: np.dtype(np.float16) if n in halves else d["dtype"] for n, d in model.inputs.items()}
        inputs = {n: np.full(tuple(d["shape"]), 77, types[n]) for n, d in model.inputs.items()}
        outputs = [np.full(tuple(d["shape"]), 77, d["dtype"]) for d in model.outputs.values()]
        stream, ended, event = ctypes.create_string_buffer(40), ctypes.c_uint32(7), ctypes.create_string_buffer(16)
        left = ctypes.c_int64.from_buffer(stream)

        def launched() -> int:
            self.streams_by_launch.append(left)
            left.value = self.late
            self.launches += 1
            if self.error:
                return self.error
            try:
                found = runner.run({n: a.astype(model.inputs[n]["dtype"]) for n, a in inputs.items()})
            except BaseException:
                return 719
            for array, one in zip(outputs, found, strict=True):
                array[...] = one
            return 0

        launch = ctypes.CFUNCTYPE(ctypes.c_int)(launched)
        graph = ctypes.c_void_p(ctypes.cast(launch, ctypes.c_void_p).value)
        self.streams.append(left)
        self._kept += [launch, graph, stream, ended, event, inputs, outputs]
        return NativeRun(
            **_driver() | ({} if self.writes else {"write": 0}), context=1, stream=ctypes.addressof(stream),
            graph=ctypes.addressof(graph), ended=ctypes.addressof(ended), event=ctypes.addressof(event),
            inputs=tuple(a.ctypes.data for a in inputs.values()), outputs=tuple(a.ctypes.data for a in outputs),
        )  # fmt: skip
