"""What the kernels of an LSTM's steps need to know of the layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from litegpu.gpu.backends.cuda.halves import HALF_CONVERSIONS, INLINE
from litegpu.gpu.backends.cuda.kernels.layer import LOAD
from litegpu.gpu.backends.cuda.kernels.source import float_text, text_of
from litegpu.gpu.backends.cuda.overlap import PROGRAMMATIC_LAUNCH
from litegpu.gpu.graph import RESULT, DType, apply
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch, NativeBuffer, NativeKernel
from litegpu.gpu.kernels.lstm import Lstm
from litegpu.gpu.view import View

#: The compute capability that has clusters, and the most workgroups that every cluster may have.
CLUSTER_CAPABILITY, MOST_WORKGROUPS = 90, 8
#: Cycles of a step beside its work, of one workgroup and of several (estimated, not measured).
ALONE, TOGETHER = 300, 900


def is_plain(ctx: KernelContext, op: Lstm) -> bool:
    """Whether the kernels have all that the layer needs."""
    plain = Lstm(op.units, op.units, op.time_major, apply("tanh", RESULT), cell_clip=op.cell_clip)
    gates, *_ = (ctx.views[v] for v in ctx.node.inputs[:1])
    states = [ctx.views[v].dtype for v in ctx.node.inputs[2:4]]
    return (
        op == plain
        and ctx.node.epilogue == RESULT
        and gates.dtype in LOAD
        and ctx.views[ctx.node.output].dtype in LOAD
        and all(dtype is DType.FLOAT32 for dtype in states)
    )


def weights_of(ctx: KernelContext) -> np.ndarray:
    """The recurrent weights, [4N,N]."""
    weights = ctx.value(ctx.node.inputs[1]).data
    assert weights is not None
    return weights


def steps_and_batch(ctx: KernelContext, op: Lstm) -> tuple[int, int]:
    _, rows, columns, _ = ctx.output.shape
    return (rows, columns) if op.time_major else (columns, rows)


def steps_launch(
    ctx: KernelContext,
    op: Lstm,
    name: str,
    files: Sequence[str],
    constants: Mapping[str, int | str],
    weights: np.ndarray,
    *,
    threads: int,
    groups: int,
    shared_bytes: int,
    variant: str,
) -> Launch:
    """A launch of the kernel `name` in `files`, with `constants` and those of the layer as macros: NAME; UNITS; STEPS,
    BATCH; CLIP (0: none); GATES_TYPE, LOAD_GATE(value), GATES_OFFSET, GATES_T, GATES_B, GATES_C (of the view, in
    elements: a step, a sequence, a channel); FIRST_OUTPUT(batch, unit), FIRST_STATE(batch, unit) (indices); OUT_TYPE,
    STORE_OUT(value), OUT_OFFSET, OUT_T, OUT_B, OUT_C.

    The kernel's parameters are gates, weights, output, state and out.
    """
    gates_id, _, output_id, state_id = ctx.node.inputs
    gates, output, state, out = (ctx.views[v] for v in (gates_id, output_id, state_id, ctx.node.output))
    steps, batch = steps_and_batch(ctx, op)
    loads, load = LOAD[gates.dtype]
    stores, store = ("unsigned short", "float_to_half(value)") if out.dtype is DType.FLOAT16 else ("float", "value")
    macros: dict[str, int | str] = {
        "NAME": name, "UNITS": op.units, "BATCH": batch, "STEPS": steps, **constants,
        "CLIP": float_text(op.cell_clip), "GATES_TYPE": loads, "LOAD_GATE(value)": load,
        **_strides("GATES", gates, op.time_major), "OUT_TYPE": stores, "STORE_OUT(value)": store,
        **_strides("OUT", out, op.time_major), "FIRST_OUTPUT(b, u)": _index(output), "FIRST_STATE(b, u)": _index(state),
    }  # fmt: skip
    parts = [f"#define INLINE {INLINE}", PROGRAMMATIC_LAUNCH, HALF_CONVERSIONS]
    parts += [f"#define {macro} {value}" for macro, value in macros.items()]
    parts += map(text_of, files)
    operands: Operands = {"gates": gates, "weights": weights, "output": output, "state": state, "out": out}
    buffers = tuple(NativeBuffer(n, "read_write" if isinstance(v, View) else "read") for n, v in operands.items())
    kernel = NativeKernel(name, "\n".join(parts) + "\n", (threads, 1, 1), (groups, 1, 1), buffers, shared_bytes)
    return Launch(kernel, operands, "lstm", variant)


def _strides(name: str, view: View, time_major: bool) -> dict[str, int | str]:
    _, rows, columns, channels = view.strides
    step, sequence = (rows, columns) if time_major else (columns, rows)
    return {f"{name}_OFFSET": view.offset, f"{name}_T": step, f"{name}_B": sequence, f"{name}_C": channels}


def _index(view: View) -> str:
    """Element (b, u) of a state [1,1,B,N]."""
    return f"({view.offset} + (b) * {view.strides[2]} + (u) * {view.strides[3]})"
