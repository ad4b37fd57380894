"""Interrupts a function where Ctrl-C could: by raising KeyboardInterrupt at one after the other of those places."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import litegpu
from litegpu.background import in_finalizer

_PACKAGE = str(Path(litegpu.__file__).parent)
#: Not CALL_INTRINSIC_1, which Python 3.12 ends generators with.
_AFTER = ("CALL", "RESUME", "JUMP_BACKWARD")


class Interruptions:
    """CPython looks for signals after calls, at the beginnings of functions and on the way back of loops, and raises
    there what their handlers raise. This raises at the `at`-th such place in the package's code, or calls the `handler`
    there, or counts them.

    Places in finalizers, and in what weak references call, are left out: what is raised there is printed, by CPython,
    and lost."""

    def __init__(self, at: int | None = None, handler: Callable[[], object] | None = None) -> None:
        self.at, self.handler = at, handler
        self.count = 0
        self.where = ""
        self._before: dict[FrameType, int] = {}

    def during(self, action: Callable[[], Any]) -> Any:
        """Call `action`."""
        sys._getframe().f_trace_opcodes = True  # Python 3.12 traces opcodes only if a frame asks before settrace()
        sys.settrace(self._called)
        try:
            return action()
        finally:
            sys.settrace(None)
            self._before.clear()

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(_PACKAGE) or in_finalizer(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._traced

    def _traced(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            before, now = self._before.get(frame), frame.f_lasti
            self._before[frame] = now
            if before is not None and now in _places(frame.f_code).get(before, ()):
                self.count += 1
                if self.count == self.at:
                    self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                    if self.handler is None:
                        raise KeyboardInterrupt(self.where)
                    self.handler()
        elif event == "return":
            self._before.pop(frame, None)
        return self._traced


@functools.cache
def _places(code: CodeType) -> dict[int, frozenset[int]]:
    """By the offset of each instruction that a signal is looked for after: those of the next ones, where an exception
    is handled as it would be after the first."""
    handlers = dis._parse_exception_table(code)  # type: ignore[attr-defined]

    def handler(offset: int) -> Any:
        return next(((h.target, h.depth) for h in handlers if h.start <= offset < h.end), None)

    instructions = [i for i in dis.get_instructions(code) if i.opname != "CACHE"]
    offsets = frozenset(i.offset for i in instructions)
    return {
        i.offset: frozenset(o for o in offsets if handler(o) == handler(i.offset))
        for i in instructions
        if i.opname.startswith(_AFTER) and not i.opname.startswith("CALL_INTRINSIC")
    }
