"""The steps of an LSTM by a cluster of workgroups, which keep the recurrent weights: few sequences, or float32."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.kernels.lstm_layer import (
    ALONE,
    CLUSTER_CAPABILITY,
    MOST_WORKGROUPS,
    TOGETHER,
    steps_and_batch,
    steps_launch,
    weights_of,
)
from litegpu.gpu.backends.cuda.kernels.tile import USUAL_UNITS, device_shared_bytes
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.lstm import GATES, Lstm

MOST_THREADS = 512
#: 32-bit registers of a thread that weights may have, of the 128 that there are.
MOST_REGISTERS = 64
#: Bytes of weights that a workgroup may have in shared memory.
MOST_SHARED_BYTES = 200 << 10
#: Sequences that a cluster may have at once.
MOST_SEQUENCES = 4
#: What the work of a step takes beside its estimate. (H200: 4 sequences of 512 units 18 us, one of 256 units 1.4.)
_MEASURED = 2.0


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


def division(units: int, capability: int, half: bool = False) -> LstmDivision | None:
    """The division with the least work in a step, if any fits. `half`: weights may be float16."""
    if units % 4:
        return None
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
    _, batch = steps_and_batch(ctx, op)
    each = _sequences_each(d, batch, ctx.features.compute_units)
    constants: dict[str, int | str] = {
        "CLUSTER": d.cluster, "UNITS_EACH": d.units_each, "BATCH_EACH": each, "LANES": d.lanes, "CHUNKS": d.chunks,
        "THREADS": d.threads, "IN_REGISTERS": d.in_registers, "HALF": int(d.half),
    }  # fmt: skip
    return steps_launch(
        ctx, op, "lstm_cluster", ("cluster.cu", "lstm.cu"), constants, packed(weights_of(ctx), op.units, d),
        threads=d.threads, groups=-(-batch // each) * d.cluster,
        shared_bytes=d.shared_outputs(each) + d.shared_weights, variant=str(d),
    )  # fmt: skip


def cycles(d: LstmDivision, batch: int, compute_units: int) -> float:
    """Estimated, of a step of all sequences."""
    each, room = _sequences_each(d, batch, compute_units), _clusters(d, compute_units)
    rounds = -(-batch // (each * room))
    return rounds * (_MEASURED * each * _work(d) + _beside(d))


def packed(weights: np.ndarray, units: int, d: LstmDivision) -> np.ndarray:
    """Weights [4N, N] as [workgroup, chunk, thread] groups of four."""
    wide = np.zeros((GATES, d.cluster * d.units_each, d.chunks * d.lanes * 4), np.float32)
    wide[:, :units, :units] = weights.reshape(GATES, units, units)
    split = wide.reshape(GATES, d.cluster, d.units_each, d.chunks, d.lanes, 4).transpose(1, 3, 2, 0, 4, 5)
    result = np.zeros((d.cluster, d.chunks, d.threads, 4), np.float16 if d.half else np.float32)
    result[:, :, : d.units_each * GATES * d.lanes] = split.reshape(d.cluster, d.chunks, -1, 4)
    return result


def _sequences_each(d: LstmDivision, batch: int, compute_units: int) -> int:
    """Sequences that a cluster has at once."""
    return min(MOST_SEQUENCES, -(-batch // _clusters(d, compute_units)))


def _clusters(d: LstmDivision, compute_units: int) -> int:
    """That run at the same time."""
    return max(1, (compute_units or USUAL_UNITS) // d.cluster)


def _cost(d: LstmDivision) -> float:
    """Cycles of a step of one sequence: its work, and what is there anyway."""
    return _work(d) + _beside(d)


def _work(d: LstmDivision) -> float:
    """Of a sequence: products and conversions, weights and outputs from shared memory."""
    products = d.units_each * GATES * d.chunks * d.lanes * 4 / 128 * (2 if d.half else 1)
    return products + (d.shared_weights + d.threads * d.chunks * 4) / 128


def _beside(d: LstmDivision) -> float:
    return (ALONE if d.cluster == 1 else TOGETHER) + 30 * math.log2(d.lanes)
