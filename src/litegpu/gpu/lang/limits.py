"""What every printer checks before it prints: a kernel's name, and its demands against what the device has."""

from __future__ import annotations

from litegpu.gpu.lang import tree
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lang.kernel import Kernel
from litegpu.gpu.lang.types import KernelError

MAX_WORKGROUP_Z = 64  # what all devices have, and some no more


def check_limits(kernel: Kernel, features: Features, reserved: frozenset[str], language: str) -> None:
    """Raise KernelError if `kernel` needs what `features` lack or its name is one of `reserved` in `language`."""

    def need(condition: bool, message: str) -> None:
        if not condition:
            raise KernelError(f"kernel {kernel.name}: {message}")

    need(kernel.name not in reserved, f"the name is reserved in {language}")
    need(len(kernel.buffers) <= features.max_buffers, f"{len(kernel.buffers)} buffers, {features.max_buffers} allowed")
    need(kernel.threads <= features.max_threads, f"{kernel.threads} threads, {features.max_threads} allowed")
    need(kernel.workgroup[2] <= MAX_WORKGROUP_Z, f"{kernel.workgroup[2]} threads along z, {MAX_WORKGROUP_Z} allowed")
    need(
        kernel.shared_bytes <= features.max_shared_bytes,
        f"{kernel.shared_bytes} bytes of shared memory, {features.max_shared_bytes} allowed",
    )
    need(max(kernel.dispatch) <= features.max_groups, f"dispatch {kernel.dispatch}, {features.max_groups} allowed")
    need(features.subgroups or not kernel.needs_subgroups, "needs subgroup operations, which the device lacks")
    if features.max_rounds:
        found = rounds(kernel.body)
        need(found <= features.max_rounds, f"a thread goes {found} times round loops, {features.max_rounds} allowed")
    for b in kernel.buffers:
        need(
            b.nbytes <= features.max_binding_bytes,
            f"buffer {b.name} has {b.nbytes} bytes, {features.max_binding_bytes} allowed in one binding",
        )


def rounds(block: tree.Block) -> int:
    """How often a thread goes round loops, inner ones included, at most; loops whose end only data tell: once."""
    found = 0
    for statement in block.statements:
        match statement:
            case tree.For():
                found += _trips(statement) * (1 + rounds(statement.body))
            case tree.While():
                found += 1 + rounds(statement.head) + rounds(statement.body)
            case tree.If():
                found += max(rounds(statement.then), rounds(statement.orelse) if statement.orelse else 0)
    return found


def _trips(loop: tree.For) -> int:
    first, last, by = (v.constant for v in (loop.start, loop.stop, loop.step))
    return 1 if last is None else max(0, -(-(int(last) - int(first or 0)) // int(by or 1)))
