"""The official tool's other files: the result, the outputs, and which node runs where."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from litegpu.delegates.report import DelegationReport
from litegpu.model.reader import DTYPES
from litegpu.model.types import Subgraph, Tensor
from litegpu.tools import protobuf
from litegpu.tools.benchmark.profile_text import profile_csv, profile_message, profile_text
from litegpu.tools.benchmark.result import BenchmarkResult, profile_dict
from litegpu.tools.benchmark.timing import Timing
from litegpu.tools.json_text import json_text

# TfLiteType's numbers, which differ from those in model files.
_TYPES = {
    "FLOAT32": 1, "INT32": 2, "UINT8": 3, "INT64": 4, "STRING": 5, "BOOL": 6, "INT16": 7, "COMPLEX64": 8, "INT8": 9,
    "FLOAT16": 10, "FLOAT64": 11, "COMPLEX128": 12, "UINT64": 13, "RESOURCE": 14, "VARIANT": 15, "UINT32": 16,
    "UINT16": 17, "INT4": 18, "BFLOAT16": 19,
}  # fmt: skip


def profile_content(result: BenchmarkResult, mode: str) -> bytes | str:
    """The profile in the form that --op_profiling_output_mode names."""
    if mode == "proto":
        return profile_message(result, Path(result.flags.graph).name)
    if mode == "csv":
        return profile_csv(result)
    if mode == "json":
        found = profile_dict(result.profile) if result.profile is not None else {}
        startup = {name: seconds * 1e3 for name, seconds in result.startup.parts().items()}
        return json_text({"startup_ms": startup, **found}) + "\n"
    return profile_text(result) + "\n"


def result_message(result: BenchmarkResult) -> bytes:
    """BenchmarkResult."""
    timing, ms = result.inference, 1e-3
    latency = (
        timing.average, timing.minimum, timing.maximum, timing.deviation, timing.median, timing.percentile(5),
        timing.percentile(95), result.init, result.warmup.first, result.warmup.average,
    )  # fmt: skip
    memory = protobuf.integer(1, int(result.memory.init * 1024)) + protobuf.integer(
        2, int(result.memory.overall * 1024)
    )
    if result.flags.report_peak_memory_footprint:
        memory += protobuf.float32(3, result.memory.peak)
    miscellaneous = (
        protobuf.float32(1, result.model_megabytes)
        + protobuf.integer(2, timing.count)
        + protobuf.integer(3, result.warmup.count)
        + protobuf.float32(4, input_throughput(timing, result.input_bytes))
    )
    return (
        protobuf.message(2, b"".join(protobuf.float32(i + 1, value * ms) for i, value in enumerate(latency)))
        + protobuf.message(3, memory)
        + protobuf.message(4, miscellaneous)
    )


def input_throughput(timing: Timing, input_bytes: int) -> float:
    """MiB of inputs per second, as the official tool counts it."""
    return timing.throughput * input_bytes / 2**20


def raw_outputs(outputs: Sequence[tuple[str, np.ndarray]]) -> bytes:
    """The bytes of all outputs, one after the other."""
    return b"".join(array.tobytes() for _, array in outputs if array.dtype.kind not in "SO")


def example_message(outputs: Sequence[tuple[str, np.ndarray]]) -> bytes:
    """tf.Example; outputs that are neither floats of 32 or 64 bits nor integers are left out, as officially."""
    features = b""
    for name, array in outputs:
        if array.dtype in (np.float32, np.float64):
            values = array.astype("<f4").ravel()
            feature = protobuf.message(2, protobuf.message(1, struct.pack(f"<{values.size}f", *values)))
        elif array.dtype.kind in "iu":
            feature = protobuf.message(3, protobuf.packed(1, array.ravel().tolist()))
        else:
            continue
        features += protobuf.message(1, protobuf.text(1, name) + protobuf.message(2, feature))
    return protobuf.message(1, features)


def runtime_message(graph: Subgraph, report: DelegationReport, model_name: str) -> bytes:
    """ModelRuntimeDetails: the nodes of the main subgraph and, behind them, one for each partition of a delegate."""
    delegated = [p for p in report.partitions if p.owner != "CPU"]
    first = len(graph.operators)
    node_of = {node: first + i for i, part in enumerate(delegated) for node in part.nodes}
    content = protobuf.integer(1, graph.index)
    content += b"".join(protobuf.message(2, _edge(tensor)) for tensor in graph.tensors)
    for operator in graph.operators:
        node = protobuf.integer(1, operator.index) + protobuf.text(2, operator.name) + protobuf.text(3, operator.name)
        node += protobuf.packed(4, operator.inputs) + protobuf.packed(5, operator.outputs)
        node += protobuf.packed(6, operator.intermediates)
        if operator.index in node_of:
            node += protobuf.integer(9, node_of[operator.index])
        content += protobuf.message(3, node)
    for i, part in enumerate(delegated):
        node = protobuf.integer(1, first + i) + protobuf.text(2, part.owner) + protobuf.text(3, "DELEGATE")
        node += protobuf.packed(4, part.inputs) + protobuf.packed(5, part.outputs)
        node += protobuf.message(8, protobuf.text(1, part.owner) + protobuf.packed(2, part.nodes))
        content += protobuf.message(3, node)
    plan: dict[int, None] = {}
    for part in report.partitions:
        plan |= dict.fromkeys(dict.fromkeys(node_of.get(node, node) for node in part.nodes))
    content += protobuf.packed(4, plan) + protobuf.integer(5, 1)
    return protobuf.text(1, model_name) + protobuf.message(2, content)


def allocation_type(tensor: Tensor) -> str:
    """The official runtime's name of where a tensor's memory is from, as far as the model tells."""
    if tensor.is_constant:
        return "kTfLiteMmapRo"
    return "kTfLiteArenaRwPersistent" if tensor.is_variable else "kTfLiteArenaRw"


def tensor_bytes(tensor: Tensor) -> int:
    """Of the shape that is known before a run; of strings 0."""
    if tensor.data is not None:
        return int(tensor.data.nbytes)
    dtype = DTYPES.get(tensor.type)
    return 0 if dtype is None or dtype.kind in "SO" else int(np.prod(tensor.shape, dtype=np.int64)) * dtype.itemsize


def _edge(tensor: Tensor) -> bytes:
    return (
        protobuf.integer(1, tensor.index)
        + protobuf.text(2, tensor.name)
        + protobuf.integer(3, _TYPES.get(tensor.type.name, 0))
        + protobuf.packed(4, tensor.shape)
        + protobuf.text(5, allocation_type(tensor))
        + protobuf.integer(7, tensor_bytes(tensor))
    )
