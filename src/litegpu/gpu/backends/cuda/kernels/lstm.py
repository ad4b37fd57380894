"""The steps of an LSTM by a cluster of workgroups, which keep the recurrent weights."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.halves import HALF_CONVERSIONS, INLINE
from litegpu.gpu.backends.cuda.kernels.layer import LOAD
from litegpu.gpu.backends.cuda.kernels.source import text_of
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS, device_shared_bytes
from litegpu.gpu.backends.cuda.overlap import PROGRAMMATIC_LAUNCH
from litegpu.gpu.graph import RESULT, Custom, DType, apply, fits_half
from litegpu.gpu.kernels.access import Operands
from litegpu.gpu.kernels.context import KernelContext, Launch, NativeBuffer, NativeKernel
from litegpu.gpu.kernels.lstm import GATES, Lstm
from litegpu.gpu.view import View

#: The compute capability that has clusters, and the most workgroups that every cluster may have.
CLUSTER_CAPABILITY, MOST_WORKGROUPS = 90, 8
MOST_THREADS = 512
#: 32-bit registers of a thread that weights may have, of the 128 that there are.
MOST_REGISTERS = 64
#: Bytes of weights that a workgroup may have in shared memory.
MOST_SHARED_BYTES = 200 << 10
#: Sequences that a cluster may have at once.
MOST_SEQUENCES = 4
#: Cycles of a step beside the products, of one workgroup and of several (estimated, not measured).
_ALONE, _TOGETHER = 300, 900


@dataclass(frozen=True)
class LstmDivision:
    """How units and their weights are divided; see lstm.cu."""

    cluster: int
    lanes: int
    units_each: int
    chunks: int
    in_registers: int  # of the chunks
    half: bool = False

    @property
    def threads(self) -> int:
        return -(-self.units_each * GATES * self.lanes // 32) * 32

    @property
    def shared_weights(self) -> int:
        """Bytes of weights in shared memory."""
        return (self.chunks - self.in_registers) * self.threads * (8 if self.half else 16)

    def shared_outputs(self, sequences: int) -> int:
        """Bytes of the outputs of two steps, of so many sequences, in shared memory."""
        return 2 * sequences * self.chunks * self.lanes * 4 * 4

    def __str__(self) -> str:
        return f"lstm {self.cluster} x {self.threads}, {self.lanes} lanes, {'half' if self.half else 'float'} weights"


def build(ctx: KernelContext) -> list[Launch] | None:
    """The launch for a plain layer whose weights fit in registers; None leaves it to the language."""
    assert isinstance(ctx.node.op, Custom)
    op = ctx.node.op.definition
    if not isinstance(op, Lstm) or not _is_plain(ctx, op):
        return None
    weights = ctx.value(ctx.node.inputs[1]).data
    half = ctx.half and weights is not None and fits_half(weights)
    found = division(op.units, ctx.features.capability, half)
    return None if found is None else [launch(ctx, op, found)]


def division(units: int, capability: int, half: bool = False) -> LstmDivision | None:
    """The division with the least work in a step, if any fits. `half`: weights may be float16."""
    clusters = [1, 2, 4, MOST_WORKGROUPS] if capability >= CLUSTER_CAPABILITY else [1]
    candidates = []
    for cluster, lanes, narrow in itertools.product(clusters, (1, 2, 4, 8), (False, True) if half else (False,)):
        each, chunks = -(-units // cluster), -(-units // (4 * lanes))
        d = LstmDivision(cluster, lanes, each, chunks, min(chunks, MOST_REGISTERS // (2 if narrow else 4)), narrow)
        room = min(MOST_SHARED_BYTES, device_shared_bytes(capability) - d.shared_outputs(MOST_SEQUENCES))
        shared = d.shared_weights == 0 or (capability >= CLUSTER_CAPABILITY and d.shared_weights <= room)
        if d.threads <= MOST_THREADS and shared and (cluster - 1) * each < units:
            candidates.append(d)
    return min(candidates, key=_cost, default=None)


def launch(ctx: KernelContext, op: Lstm, d: LstmDivision) -> Launch:
    """The layer with the given division."""
    gates_id, weights_id, output_id, state_id = ctx.node.inputs
    gates, output, state, out = (ctx.views[v] for v in (gates_id, output_id, state_id, ctx.node.output))
    _, rows, columns, _ = ctx.output.shape
    steps, batch = (rows, columns) if op.time_major else (columns, rows)
    room = (ctx.features.compute_units or USUAL_UNITS) // d.cluster
    each = min(MOST_SEQUENCES, -(-batch // room))
    weights = ctx.value(weights_id).data
    assert weights is not None
    loads, load = LOAD[gates.dtype]
    stores, store = ("unsigned short", "float_to_half(value)") if out.dtype is DType.FLOAT16 else ("float", "value")
    constants: dict[str, int | str] = {
        "NAME": "lstm_cluster", "CLUSTER": d.cluster, "UNITS": op.units, "UNITS_EACH": d.units_each, "BATCH": batch,
        "BATCH_EACH": each, "STEPS": steps, "LANES": d.lanes, "CHUNKS": d.chunks, "THREADS": d.threads,
        "IN_REGISTERS": d.in_registers, "HALF": int(d.half),
        "CLIP": f"{float(np.float32(op.cell_clip))!r}f", "GATES_TYPE": loads, "LOAD_GATE(value)": load,
        **_strides("GATES", gates, op.time_major), "OUT_TYPE": stores, "STORE_OUT(value)": store,
        **_strides("OUT", out, op.time_major), "FIRST_OUTPUT(b, u)": _index(output), "FIRST_STATE(b, u)": _index(state),
    }  # fmt: skip
    parts = [f"#define INLINE {INLINE}", PROGRAMMATIC_LAUNCH, HALF_CONVERSIONS]
    parts += [f"#define {macro} {value}" for macro, value in constants.items()]
    parts += [text_of(file) for file in ("cluster.cu", "lstm.cu")]
    operands: Operands = {"gates": gates, "weights": packed(weights, op.units, d), "output": output, "state": state}
    operands["out"] = out
    buffers = tuple(NativeBuffer(n, "read_write" if isinstance(v, View) else "read") for n, v in operands.items())
    shared_bytes = d.shared_outputs(each) + d.shared_weights
    dispatch = (-(-batch // each) * d.cluster, 1, 1)
    workgroup = (d.threads, 1, 1)
    text = "\n".join(parts) + "\n"
    kernel = NativeKernel("lstm_cluster", text, workgroup, dispatch, buffers, shared_bytes)
    return Launch(kernel, operands, "lstm", str(d))


def packed(weights: np.ndarray, units: int, d: LstmDivision) -> np.ndarray:
    """Weights [4N, N] as [workgroup, chunk, thread] groups of four."""
    wide = np.zeros((GATES, d.cluster * d.units_each, d.chunks * d.lanes * 4), np.float32)
    wide[:, :units, :units] = weights.reshape(GATES, units, units)
    split = wide.reshape(GATES, d.cluster, d.units_each, d.chunks, d.lanes, 4).transpose(1, 3, 2, 0, 4, 5)
    result = np.zeros((d.cluster, d.chunks, d.threads, 4), np.float16 if d.half else np.float32)
    result[:, :, : d.units_each * GATES * d.lanes] = split.reshape(d.cluster, d.chunks, -1, 4)
    return result


def _cost(d: LstmDivision) -> float:
    """Cycles of a step: products and conversions, weights and outputs from shared memory, and what is there anyway."""
    products = d.units_each * GATES * d.chunks * d.lanes * 4 / 128 * (2 if d.half else 1)
    return (
        products
        + (d.shared_weights + d.threads * d.chunks * 4) / 128
        + (_ALONE if d.cluster == 1 else _TOGETHER)
        + 30 * math.log2(d.lanes)
    )


def _is_plain(ctx: KernelContext, op: Lstm) -> bool:
    """Whether the kernel has all that the layer needs."""
    plain = Lstm(op.units, op.units, op.time_major, apply("tanh", RESULT), cell_clip=op.cell_clip)
    gates, *_ = (ctx.views[v] for v in ctx.node.inputs[:1])
    states = [ctx.views[v].dtype for v in ctx.node.inputs[2:4]]
    return (
        op == plain
        and op.units % 4 == 0
        and ctx.node.epilogue == RESULT
        and gates.dtype in LOAD
        and ctx.views[ctx.node.output].dtype in LOAD
        and all(dtype is DType.FLOAT32 for dtype in states)
    )


def _strides(name: str, view: View, time_major: bool) -> dict[str, int | str]:
    _, rows, columns, channels = view.strides
    step, sequence = (rows, columns) if time_major else (columns, rows)
    return {f"{name}_OFFSET": view.offset, f"{name}_T": step, f"{name}_B": sequence, f"{name}_C": channels}


def _index(view: View) -> str:
    """Element (b, u) of a state [1,1,B,N]."""
    return f"({view.offset} + (b) * {view.strides[2]} + (u) * {view.strides[3]})"
