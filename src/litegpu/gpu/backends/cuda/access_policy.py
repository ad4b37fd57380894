"""What the second-level cache lets go of first: what a launch reads, and nobody afterwards.

It would stay in the cache until what later kernels read and write has taken its place, and that of the weights, which
the next inference reads from memory then.
"""

from __future__ import annotations

from collections.abc import Mapping

from litegpu.gpu.program import Program

#: Less takes nobody's place.
LEAST_BYTES = 256 << 10


def streamed_bindings(program: Program, cache_bytes: int, most_bytes: int) -> Mapping[int, tuple[int, int]]:
    """By the number of the launch, which of its bindings that is, and its bytes. `cache_bytes`: of the device's
    second-level cache, `most_bytes`: of a launch's access policy window, 0 if there are none.

    None where all that the program touches is larger than the cache, so that nothing stays there anyway, and none where
    it fits into half of it, as the cache has two halves and may keep a line in both."""
    size = program.arena_size + program.constants.nbytes
    inputs = sum(port.nbytes for port in program.inputs)  # which may lie elsewhere
    if size > cache_bytes or size + inputs <= cache_bytes // 2:
        return {}
    found = {}
    for i, dispatch in enumerate(program.dispatches):
        if dispatch.spent is not None:
            nbytes = dispatch.bindings[dispatch.spent].size
            if LEAST_BYTES <= nbytes <= most_bytes:
                found[i] = dispatch.spent, nbytes
    return found
