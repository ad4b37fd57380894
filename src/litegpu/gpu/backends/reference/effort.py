"""How long an inference in NumPy takes: an estimate, for a warning."""

from __future__ import annotations

import math

from litegpu.gpu.lang import Kernel, tree

#: Statements of one thread that are interpreted in a second, on an ordinary core; fitted to whole models.
STATEMENTS_PER_SECOND = 8e7
#: A loop whose ends are not constants is taken for so many rounds.
_ROUNDS = 16


def seconds(kernel: Kernel) -> float:
    """Of one launch, at worst: branches count as taken, and one that no thread takes costs nothing."""
    return math.prod(kernel.grid) * kernel.threads * _statements(kernel.body) / STATEMENTS_PER_SECOND


def _statements(block: tree.Block) -> float:
    return sum(_cost(s) for s in block.statements)


def _cost(s: tree.Statement) -> float:
    match s:
        case tree.If():
            return _statements(s.then) + (_statements(s.orelse) if s.orelse is not None else 0)
        case tree.For():
            return _rounds(s) * (1 + _statements(s.body))
        case tree.While():
            return _ROUNDS * (_statements(s.head) + _statements(s.body))
    return 1


def _rounds(s: tree.For) -> float:
    start, stop, step = (v.constant for v in (s.start, s.stop, s.step))
    if start is None or stop is None or not step:
        return _ROUNDS
    return max(0, math.ceil((stop - start) / step))
