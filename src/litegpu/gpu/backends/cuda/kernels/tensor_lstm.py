"""The steps of an LSTM on tensor cores: several sequences in float16."""

from __future__ import annotations

import itertools
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

#: Units that two products' rows are the gates of, and columns of weights that a thread reads at once.
GROUP, CHUNK = 8, 32
#: Sequences that are the columns of a product.
TILE = 8
MOST_WARPS = 16
#: 32-bit registers of a multiprocessor, and of a thread at most; those that a thread needs beside weights, and for each
#: group of units and tile of sequences.
_REGISTERS, _MOST_REGISTERS = 64 << 10, 255
_OTHER_REGISTERS, _CELL_REGISTERS = 56, 20
#: Cycles of a product on one of four tensor cores, and until its sums are there (estimated, not measured).
_PRODUCT, _LATENCY = 8, 33


@dataclass(frozen=True)
class TensorLstmDivision:
    """How units, their weights and sequences are divided; see tensor_lstm.cu."""

    cluster: int
    warps: int
    groups: int  # of a warp
    tiles: int  # of a cluster
    chunks: int
    in_registers: int  # of the chunks

    @property
    def threads(self) -> int:
        return self.warps * 32

    @property
    def groups_each(self) -> int:
        """Of a workgroup."""
        return self.warps * self.groups

    @property
    def sequences(self) -> int:
        """Of a cluster."""
        return self.tiles * TILE

    @property
    def shared_weights(self) -> int:
        """Bytes of weights in shared memory."""
        return (self.chunks - self.in_registers) * self.threads * self.groups * 64

    @property
    def shared_bytes(self) -> int:
        """With the outputs of two steps, and the barriers of these."""
        return self.shared_weights + 2 * self.tiles * self.chunks * 512 + 16

    def __str__(self) -> str:
        return f"lstm {self.cluster} x {self.threads}, {self.groups} groups each, {self.sequences} sequences, mma"


def division(units: int, capability: int, batch: int, compute_units: int = 0) -> TensorLstmDivision | None:
    """The division that is estimated to take the least for a step of all sequences, if any fits."""
    return min(
        divisions(units, capability),
        key=lambda d: (cycles(d, batch, compute_units), d.cluster, d.tiles, d.warps),
        default=None,
    )


def divisions(units: int, capability: int) -> list[TensorLstmDivision]:
    """Those of which every workgroup has units, and room for its weights."""
    clusters = [1, 2, 4, MOST_WORKGROUPS] if capability >= CLUSTER_CAPABILITY else [1]
    groups, chunks, found = -(-units // GROUP), -(-units // CHUNK), []
    for cluster, each, tiles in itertools.product(clusters, (1, 2, 3, 4), (1, 2, 4)):
        warps = -(-groups // (cluster * each))
        room = registers_for_weights(warps, each, tiles) // (each * 16) if warps <= MOST_WARPS else 0
        if room < 1:
            continue
        d = TensorLstmDivision(cluster, warps, each, tiles, chunks, min(chunks, room))
        if (cluster - 1) * d.groups_each < groups and d.shared_bytes <= device_shared_bytes(capability):
            found.append(d)
    return found


def registers_for_weights(warps: int, groups: int, tiles: int) -> int:
    """Of a thread, beside what else it needs."""
    all_registers = min(_MOST_REGISTERS, _REGISTERS // (128 * -(-warps // 4)) // 8 * 8)  # compilers count four warps
    return all_registers - _OTHER_REGISTERS - _CELL_REGISTERS * groups * tiles


def launch(ctx: KernelContext, op: Lstm, d: TensorLstmDivision) -> Launch:
    """The layer with the given division."""
    _, batch = steps_and_batch(ctx, op)
    constants: dict[str, int | str] = {
        "CLUSTER": d.cluster, "WARPS": d.warps, "GROUPS": d.groups, "TILES": d.tiles, "CHUNKS": d.chunks,
        "IN_REGISTERS": d.in_registers,
    }  # fmt: skip
    exchange = ("pipeline.cu", "remote.cu") if d.cluster > 1 else ()
    return steps_launch(
        ctx, op, "tensor_lstm", ("device.cu", *exchange, "tensor_lstm.cu"), constants,
        packed(weights_of(ctx), op.units, d), threads=d.threads, groups=-(-batch // d.sequences) * d.cluster,
        shared_bytes=d.shared_bytes, variant=str(d),
    )  # fmt: skip


def packed(weights: np.ndarray, units: int, d: TensorLstmDivision) -> np.ndarray:
    """Weights [4N, N] as [workgroup, chunk, piece, thread] runs of eight halves: what a lane gives to a product of 16
    rows and 16 columns. Which column is which is free, as long as the outputs have the same order: a lane reads its
    eight of a chunk's 32 at once."""
    wide = np.zeros((GATES, d.cluster * d.groups_each * GROUP, d.chunks * CHUNK), np.float16)
    wide[:, :units, :units] = weights.reshape(GATES, units, units)
    # product, half of its rows; workgroup, warp, group, row; chunk, lane of four, step, half of the columns, one of two
    split = wide.reshape(2, 2, d.cluster, d.warps, d.groups, GROUP, d.chunks, 4, 2, 2, 2)
    lanes = split.transpose(2, 6, 4, 0, 8, 3, 5, 7, 9, 1, 10)
    return np.ascontiguousarray(lanes).reshape(d.cluster, d.chunks, 4 * d.groups, d.threads, 8)


def cycles(d: TensorLstmDivision, batch: int, compute_units: int) -> float:
    """Estimated, of a step of all sequences."""
    rounds = -(-batch // (d.sequences * max(1, (compute_units or USUAL_UNITS) // d.cluster)))
    steps, independent = 2 * d.chunks, 2 * d.groups * d.tiles
    tensor_cores = -(-d.warps // 4) * steps * independent * _PRODUCT
    chain = steps * max(_LATENCY, independent * _PRODUCT) / (2 if independent == 2 else 1)
    shared = (d.shared_weights + d.warps * d.chunks * 512 * d.tiles) / 128
    return rounds * (max(tensor_cores, chain) + shared + (ALONE if d.cluster == 1 else TOGETHER))
