"""One model on several devices: which of them a call goes to, and what is said of the one that fails."""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from litegpu import fork
from litegpu.errors import DeviceError, InvokeError, LiteGpuError
from litegpu.gpu.delegate.array_place import is_on_gpu

log = logging.getLogger("litegpu")


class OnDevice(Protocol):
    """What is used of a LoadedModel on one device."""

    @property
    def _label(self) -> str: ...

    @property
    def _is_lost(self) -> bool: ...

    def _call(self, values: Mapping[str, Any], wanted: Any) -> Any: ...

    def _call_like_before(self, args: Sequence[Any]) -> list[Any] | None: ...

    def _as_result(self, arrays: Sequence[Any]) -> Any: ...


class Spread:
    """Calls go to the device with the fewest calls in flight, of several the next in turn; to one that is lost no more,
    as long as there is another. Thread-safe."""

    def __init__(self, models: Sequence[OnDevice]) -> None:
        self.models = tuple(models)
        self._busy = self._nobody()
        self._last = len(models) - 1
        self._lost: set[int] = set()
        self._lock = threading.Lock()
        fork.follow(self)

    def call(self, values: Mapping[str, Any], wanted: Any) -> Any:
        """One inference, of which the outputs `wanted` are asked for. An error that is not the caller's names the
        device."""
        number = self._begin(next((found for found in map(_device_number, values.values()) if found is not None), None))
        try:
            return self.models[number]._call(values, wanted)
        except (DeviceError, InvokeError) as error:
            raise self._told(number, error) from error
        finally:
            self._busy[number].pop()

    def call_plain(self, arrays: Sequence[np.ndarray], values: Callable[[], Mapping[str, Any]]) -> Any:
        """The same for arrays in host memory and all outputs, but quick, as long as they are like those of the last
        call. `values`: what they are by name."""
        number = self._begin(None)
        try:
            model = self.models[number]
            found = model._call_like_before(arrays)
            return model._call(values(), None) if found is None else model._as_result(found)
        except (DeviceError, InvokeError) as error:
            raise self._told(number, error) from error
        finally:
            self._busy[number].pop()

    def _begin(self, at: int | None) -> int:
        """Count a call of the device with the least to do, or of that with this number: which. Without a lock, which
        calls from many threads would wait for: to count a deque's elements, and to add one, is one step each."""
        count, number = len(self.models), at
        if number is None or number >= count:
            least = math.inf
            for i in range(1, count + 1):
                turn = (self._last + i) % count
                load = len(self._busy[turn]) if turn not in self._lost else sys.maxsize
                if load < least:
                    least, number = load, turn
            assert number is not None
            self._last = number
        self._busy[number].append(None)
        return number

    def _nobody(self) -> list[deque[None]]:
        """For each device, an element for each call."""
        return [deque() for _ in self.models]

    def _told(self, number: int, error: LiteGpuError) -> LiteGpuError:
        """What a caller is told of an error."""
        model = self.models[number]
        if model._is_lost:
            self._leave_out(number)
        return named(error, model._label)

    def _leave_out(self, number: int) -> None:
        with self._lock:
            if number in self._lost:
                return
            self._lost.add(number)
        log.warning("%s is lost: calls go to the others", self.models[number]._label)

    def _forked(self) -> None:
        self._lock = threading.Lock()
        self._busy = self._nobody()


def named(error: LiteGpuError, label: str) -> LiteGpuError:
    """The same error, with the device in its text."""
    try:
        return type(error)(f"{label}: {error}")
    except Exception:  # one with arguments of its own
        return InvokeError(f"{label}: {error}")


def _device_number(value: Any) -> int | None:
    """The number of the GPU that an array is on, as its library and ours count them; None for arrays on the host."""
    if not is_on_gpu(value):
        return None
    place = getattr(value, "__dlpack_device__", None)
    return int(place()[1]) if place is not None else 0
