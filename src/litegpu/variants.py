"""What a model was open for before: where sizes of inputs change from call to call, as batches do, those that come
again find what was opened for them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.background import leave
from litegpu.interpreter import Interpreter
from litegpu.slots import Slots

#: The inputs' shapes, in the order of their names.
Shapes = tuple[tuple[int, ...], ...]

#: So many are kept, within so many bytes, but one in any case.
_MOST, _MOST_BYTES = 16, 512 << 20


@dataclass(eq=False)
class Variant:
    """A model that is open for some shapes. `slots`: where calls run, None before the first; `details` and `expected`:
    of the inputs, by name; `taken`: what device="auto" took for it (Auto.taken), else None."""

    interpreter: Interpreter
    slots: Slots | None
    details: dict[str, dict[str, Any]]
    expected: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
    taken: tuple[Any, ...] | None

    @property
    def nbytes(self) -> int:
        """About as much memory as it holds, on the host and on devices."""
        return self.interpreter.held_bytes(1 if self.slots is None else len(self.slots))

    def close(self) -> None:
        """Free it once its calls, which nobody else can begin any more, have ended; waits for none of them."""
        if self.slots is not None:
            self.slots.refuse()
            if self.slots.busy:
                leave(functools.partial(self.end, wait=True))
                return
        self.end(wait=True)

    def end(self, *, wait: bool) -> None:
        """Free it; `wait` for its calls."""
        if self.slots is not None and wait:
            self.slots.end()
        self.slots = None
        self.interpreter._close(wait=wait)


class Variants:
    """Those of a model that it is not open for at the moment. The model's lock is held in all methods but in loops."""

    def __init__(self) -> None:
        self._kept: dict[Shapes, tuple[Variant, int]] = {}  # and its bytes; latest last

    def __iter__(self) -> Iterator[Variant]:
        return iter([variant for variant, _ in list(self._kept.values())])

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, shapes: Shapes) -> Variant | None:
        """That for these shapes, which is kept here no longer."""
        found = self._kept.pop(shapes, None)
        if found is None:
            return None
        found[0].interpreter.set_aside(False)
        return found[0]

    def keep(self, shapes: Shapes, variant: Variant) -> None:
        """Until these shapes come again, or too many others."""
        variant.interpreter.set_aside(True)
        self._kept[shapes] = variant, variant.nbytes
        while len(self._kept) > 1 and (len(self._kept) > _MOST or self._nbytes > _MOST_BYTES):
            self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        """Free them all, once their calls have ended."""
        while self._kept:
            self._drop(next(iter(self._kept)))

    def end(self, *, wait: bool) -> None:
        """The same; `wait` for these."""
        while self._kept:
            shapes, (variant, _) = next(iter(self._kept.items()))
            variant.end(wait=wait)
            del self._kept[shapes]  # when it has ended, as an interrupted close() comes again

    def forked(self) -> None:
        """In the child of a fork: calls of other threads go on in the parent."""
        for variant in self:
            variant.slots = None

    @property
    def _nbytes(self) -> int:
        return sum(size for _, size in self._kept.values())

    def _drop(self, shapes: Shapes) -> None:
        variant, _ = self._kept.pop(shapes)
        variant.close()


def shapes_of(values: Mapping[str, Any], names: tuple[str, ...]) -> Shapes:
    """Those of arrays, or of what has a `shape`."""
    return tuple(tuple(values[name].shape) for name in names)
