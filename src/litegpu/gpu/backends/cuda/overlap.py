"""Programmatic dependent launch: which programs' kernels overlap, and what a kernel has to wait for."""

from __future__ import annotations

import statistics

from litegpu.gpu.lang import tree
from litegpu.gpu.program import Program

#: Set to 0, kernels do not overlap by programmatic dependent launch where the device can.
PROGRAMMATIC_VARIABLE = "LITEGPU_CUDA_PROGRAMMATIC"
#: A microsecond or less on a fast GPU: what starting a kernel costs.
LITTLE_BYTES = 3 << 20


def latency_bound(program: Program) -> bool:
    """Whether most kernels touch so little memory that their time goes into starting and waiting: then overlap pays
    (on an H200, MobileNet v1 80 to 70 us at batch 1), else it does not (DeepLab v3, batch 64: 2.4 to 2.7 ms)."""
    touched = [sum(binding.size for binding in d.bindings) for d in program.dispatches]
    return bool(touched) and statistics.median(touched) <= LITTLE_BYTES


def touches_arena(s: tree.Statement) -> bool:
    """Whether a statement, or one inside it, loads from or stores to memory that other kernels may write."""
    match s:
        case tree.Bind(value=v):
            return v.op == "load" and v.attr.space == "global" and bool(v.attr.access != "read")
        case tree.Store():
            return s.memory.space == "global"
        case tree.If():
            blocks = [s.then] + ([s.orelse] if s.orelse is not None else [])
        case tree.For():
            blocks = [s.body]
        case tree.While():
            blocks = [s.head, s.body]
        case _:
            return False
    return any(touches_arena(inner) for b in blocks for inner in b.statements)
