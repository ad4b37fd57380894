"""GPU kernels for custom operators of one's own: `register_op`, and what a kernel function is given."""

from __future__ import annotations

from litegpu.gpu.custom.definition import Group, Thread
from litegpu.gpu.custom.operation import Operation, TensorInfo
from litegpu.gpu.custom.registration import Registration, register_op, registered, unregister_op

__all__ = [
    "Group",
    "Operation",
    "Registration",
    "TensorInfo",
    "Thread",
    "register_op",
    "registered",
    "unregister_op",
]
