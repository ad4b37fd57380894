"""One model on several devices: which of them a call goes to, and what is said of the one that fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

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


class Spread:
    """Calls go to the device with the fewest calls in flight, of several the next in turn; to one that is lost no more,
    as long as there is another. Thread-safe."""

    def __init__(self, models: Sequence[OnDevice]) -> None:
        self.models = tuple(models)
        self._busy = [0] * len(models)
        self._last = len(models) - 1
        self._lost: set[int] = set()
        self._lock = threading.Lock()
        fork.follow(self)

    def call(self, values: Mapping[str, Any], wanted: Any) -> Any:
        """One inference, of which the outputs `wanted` are asked for. An error that is not the caller's names the
        device."""
        number = self._begin(values)
        try:
            return self.models[number]._call(values, wanted)
        except (DeviceError, InvokeError) as error:
            if self.models[number]._is_lost:
                self._leave_out(number)
            raise named(error, self.models[number]._label) from error
        finally:
            with self._lock:
                self._busy[number] -= 1

    def _begin(self, values: Mapping[str, Any]) -> int:
        at = next((found for found in map(_device_number, values.values()) if found is not None), None)
        with self._lock:
            if at is not None and at < len(self.models):
                number = at
            else:
                count = len(self.models)
                turns = [(self._last + 1 + i) % count for i in range(count)]
                number = min((n for n in turns if n not in self._lost), key=self._busy.__getitem__, default=turns[0])
                self._last = number
            self._busy[number] += 1
        return number

    def _leave_out(self, number: int) -> None:
        with self._lock:
            if number in self._lost:
                return
            self._lost.add(number)
        log.warning("%s is lost: calls go to the others", self.models[number]._label)

    def _forked(self) -> None:
        self._lock = threading.Lock()


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
