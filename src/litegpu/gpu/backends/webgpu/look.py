"""Looking for infinities and NaN among large outputs where they are: the host takes a hundred times as long."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.gpu.graph import DType
from litegpu.gpu.program import Binding, Dispatch, KernelCode, Program

#: Smaller outputs are looked at on the host before a dispatch is encoded.
_LEAST_BYTES = 256 << 10
_THREADS, _MOST_GROUPS = 256, 1024
#: Of the word that the kernel writes to.
WORD_BYTES = 16

#: Both are read_write, as they are parts of the arena, which cannot be read-only and written in one dispatch.
LOOK = KernelCode(
    "find_not_finite",
    f"""
@group(0) @binding(0) var<storage, read_write> values: array<u32>;
@group(0) @binding(1) var<storage, read_write> found: array<u32>;
@compute @workgroup_size({_THREADS})
fn find_not_finite(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{
    let count = arrayLength(&values);
    let step = {_THREADS}u * groups.x;
    var any = false;
    for (var i = id.x; i < count; i += step) {{
        any = any || (values[i] & 0x7f800000u) == 0x7f800000u;
    }}
    if (any) {{ found[0] = 1u; }}
}}
""",
    (_THREADS, 1, 1),
    ("read_write", "read_write"),
)


def looked_at(program: Program, most_bytes: int) -> Sequence[int]:
    """The outputs that the kernel is for: large ones, of which it may see no more than `most_bytes` each."""
    ports = enumerate(program.outputs)
    return [i for i, port in ports if port.dtype is DType.FLOAT32 and _LEAST_BYTES <= port.nbytes <= most_bytes]


def word_offset(program: Program, alignment: int) -> int:
    """Where in the arena, behind the program's own part, the word is. It is 0 until something is found; who has seen
    that sets it to 0 again."""
    return -(-program.arena_size // alignment) * alignment


def look_dispatch(program: Program, index: int, word: int) -> Dispatch:
    """Writes 1 to the word at `word` if not all of output `index` is finite; its kernel comes behind the program's."""
    port = program.outputs[index]
    groups = min(-(-port.nbytes // (4 * _THREADS)), _MOST_GROUPS)
    return Dispatch(
        kernel=len(program.kernels),
        groups=(groups, 1, 1),
        bindings=(Binding("arena", port.offset, port.nbytes), Binding("arena", word, WORD_BYTES)),
        label=f"look at {port.name!r}",
        sources=(),
    )
