"""How much memory and work a model may ask for, so that a damaged or hostile file cannot take the machine down.

Two environment variables hold the limits, which are read when a model is opened:

LITEGPU_MEMORY_LIMIT    bytes that a model's tensors may take at one time, or bundles in a bundle unpacked; K, M, G and
                        T are understood. By default as much as the machine has.
LITEGPU_WORK_LIMIT      elementary operations (a product in a convolution, an element touched elsewhere) of one
                        inference, likewise; by default 10^15, minutes of a large GPU.

A file says itself how large its tensors are. Where its inputs, constants and options lead to other sizes than those,
a damaged number is far more likely than a wish, so for such tensors there is less by default: 1 GiB and 4 * 10^9
operations; 1 GiB also for what is unpacked. A variable that is set holds for both.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from litegpu.errors import OptionError

MEMORY_VARIABLE = "LITEGPU_MEMORY_LIMIT"
WORK_VARIABLE = "LITEGPU_WORK_LIMIT"

_UNITS: Mapping[str, int] = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Limits:
    """`memory` in bytes, `work` in operations; `unstated_*` of what a file leads to against its own word."""

    memory: int
    work: int
    unstated_memory: int
    unstated_work: int


def limits() -> Limits:
    """The limits that hold now. Raises OptionError if a variable holds something else than a number."""
    memory, work = _read(MEMORY_VARIABLE), _read(WORK_VARIABLE)
    return Limits(
        memory=_machine_memory() if memory is None else memory,
        work=10**15 if work is None else work,
        unstated_memory=min(1 << 30, _machine_memory()) if memory is None else memory,
        unstated_work=4 * 10**9 if work is None else work,
    )


def _read(variable: str) -> int | None:
    text = os.environ.get(variable, "").strip().upper().removesuffix("B").removesuffix("I")
    if not text:
        return None
    unit = text[-1] if text[-1] in _UNITS else ""
    try:
        number = float(text.removesuffix(unit))
        if number > 0:
            return int(number * _UNITS[unit])
    except (ValueError, OverflowError):
        pass
    raise OptionError(f"{variable} is {os.environ[variable]!r}; it must be a positive number, such as 8G")


def _machine_memory() -> int:
    try:
        return max(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 4 << 30)
    except (AttributeError, ValueError, OSError):  # Windows, which does not say
        return 16 << 30
