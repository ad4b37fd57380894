"""Patterns that cost time on a GPU and that another export of the model would avoid, each a function over the graph."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.delegates.report import CPU as ON_CPU
from litegpu.model.ops import find
from litegpu.model.types import Operator, TensorType
from litegpu.tools.analyze.estimate import crossing, tensor_bytes
from litegpu.tools.analyze.examined import Examined
from litegpu.tools.analyze.finding import Finding, Pattern

_FLOATS = (TensorType.FLOAT32, TensorType.FLOAT16)
_QUAD = 4  # channels that lie together on the GPU
_FEWEST_CHANNELS = 4


def copies(model: Examined) -> list[Finding]:
    """Reshapes, transpositions and space/batch ops that are kernels of their own, since no view of their source has
    their order."""
    nodes: set[int] = set()
    seconds = 0.0
    for partition in model.fused.values():
        for kernel in partition.nodes:
            movers = [n for n in kernel.sources if _moves(model.operators[n])]
            if kernel.moves and movers:
                nodes.update(movers)
                seconds += model.rates.limit(0, kernel.bytes) + model.rates.launch
    if not nodes:
        return []
    names = ", ".join(dict.fromkeys(model.operators[n].name for n in sorted(nodes)))
    return [
        Finding(
            "copies", tuple(sorted(nodes)), f"{names}: elements are moved by kernels that compute nothing",
            "keep one layout (NHWC) from input to output, let dilation be an option of the convolution rather than "
            "SPACE_TO_BATCH_ND around it, and leave reshapes of channels that are no multiple of four to the end",
            seconds, "the time of these kernels: bytes over bandwidth, and a launch each",
        )
    ]  # fmt: skip


def odd_channels(model: Examined) -> list[Finding]:
    """Convolutions that make one channel more than a multiple of four."""
    nodes, saved = [], 0.0
    for operator in model.operators:
        known = find(operator)
        if known is None or not known.multiplies or model.owner(operator.index) == ON_CPU:
            continue
        shape = model.graph.tensors[operator.outputs[0]].shape
        channels = shape[-1] if shape else 0
        if channels <= _FEWEST_CHANNELS or channels % _QUAD != 1 or _is_last(model, operator):
            continue
        nodes.append(operator.index)
        touched = [operator.index, *model.readers.get(operator.outputs[0], ())]
        share = 1 - (channels - 1) / (channels + _QUAD - 1)
        saved += share * sum(model.times[n].limit for n in touched)
    if not nodes:
        return []
    return [
        Finding(
            "channels", tuple(nodes), "one channel more than a multiple of four: the GPU stores and computes three "
            "that nobody needs", "train with a multiple of four channels, one fewer here",
            saved, "the padded share of what they and their readers take at the limit",
        )
    ]  # fmt: skip


def three_channel_inputs(model: Examined) -> list[Finding]:
    """Images of three channels that a convolution reads element by element."""
    nodes, saved = [], 0.0
    for t in model.graph.inputs:
        tensor = model.graph.tensors[t]
        if len(tensor.shape) != 4 or tensor.shape[-1] != 3:
            continue
        reads = [n for n in _through(model, t) if model.owner(n) != ON_CPU]
        nodes += reads
        saved += 2 * bool(reads) * tensor_bytes(model.graph, [t]) / model.rates.bandwidth
    if not nodes:
        return []
    return [
        Finding(
            "image", tuple(dict.fromkeys(nodes)), "reads an image of three channels, whose pixels begin nowhere in "
            "particular: three loads instead of one",
            "give the first convolution a fourth input channel with weights of zero, and the model RGBA images",
            saved, "two of three loads of the input, each as long as reading it once",
        )
    ]  # fmt: skip


def islands(model: Examined) -> list[Finding]:
    """Partitions on the CPU between those of a delegate."""
    found = []
    for partition in model.report.partitions:
        given = {t for p in model.report.partitions if p.owner != ON_CPU for t in p.outputs}
        wanted = {t for p in model.report.partitions if p.owner != ON_CPU for t in p.inputs}
        if partition.owner != ON_CPU or given.isdisjoint(partition.inputs) or wanted.isdisjoint(partition.outputs):
            continue
        reasons = dict.fromkeys(r for n in partition.nodes if (r := model.report.nodes[n].reason))
        move = crossing(partition, model.graph, model.rates).seconds
        faster = _faster_on_gpu(model, partition.nodes)
        names = ", ".join(dict.fromkeys(model.operators[n].name for n in partition.nodes))
        found.append(
            Finding(
                "islands", partition.nodes, f"{names} on the CPU between parts on the GPU: {'; '.join(reasons)}",
                "replace what the delegate refuses, or move it to the model's beginning or end",
                move + max(faster, 0.0), "copies there and back with a wait, and the CPU's time less the GPU's",
            )
        )  # fmt: skip
    return found


def versions(model: Examined) -> list[Finding]:
    """Ops of a version that no delegate knows, though it knows older ones."""
    nodes = []
    for operator in model.operators:
        known = find(operator)
        if known is None or known.gpu is None or model.owner(operator.index) != ON_CPU:
            continue
        if operator.version > known.gpu.max_version:
            nodes.append(operator.index)
    if not nodes:
        return []
    names = ", ".join(dict.fromkeys(f"{model.operators[n].name} version {model.operators[n].version}" for n in nodes))
    return [
        Finding(
            "versions", tuple(nodes), f"{names}: newer than what the delegate knows",
            "convert without the option that made the converter choose this version, or with an older converter",
            max(_faster_on_gpu(model, nodes), 0.0), "the CPU's time less the GPU's at its limit",
        )
    ]  # fmt: skip


def int64(model: Examined) -> list[Finding]:
    """Runtime tensors of 64-bit integers."""
    wide = [
        t for o in model.operators for t in o.outputs
        if t >= 0 and not model.graph.tensors[t].is_constant and model.graph.tensors[t].type is TensorType.INT64
    ]  # fmt: skip
    if not wide:
        return []
    nodes = sorted({model.producers[t] for t in wide} | {n for t in wide for n in model.readers.get(t, ())})
    on_cpu = [n for n in nodes if model.owner(n) == ON_CPU]
    seconds = tensor_bytes(model.graph, wide) / model.rates.bandwidth + max(_faster_on_gpu(model, on_cpu), 0.0)
    return [
        Finding(
            "int64", tuple(nodes), "indices of 64 bits: twice the memory, and delegates refuse most of what reads them",
            "let the converter write INT32 (output_type of ARG_MAX, casts in front of GATHER)",
            seconds, "half of the bytes written and read, and the CPU's time less the GPU's of those that stay there",
        )
    ]  # fmt: skip


def dynamic_shapes(model: Examined) -> list[Finding]:
    """Shapes that the file leaves open, or that only a run decides."""
    found = []
    open_ = [t for t in model.model.main.inputs if min(model.model.main.tensors[t].shape_signature, default=0) < 0]
    if open_:
        first = sorted({n for t in open_ for n in model.readers.get(t, ())})
        found.append(
            Finding(
                "dynamic", tuple(first), "the file leaves sizes of its inputs open",
                "export it with the sizes that you use: most other delegates refuse open ones; litegpu prepares the "
                "model anew for each size",
                0.0, "no gain within an inference: it is paid at every new size",
            )
        )  # fmt: skip
    decided = [n.index for n in model.report.nodes if n.reason and "known only when the model runs" in n.reason]
    if decided:
        found.append(
            Finding(
                "dynamic", tuple(decided), "shapes that only a run decides, so that all after them stays on the CPU",
                "give what decides them a constant size, such as a fixed number of detections",
                max(_faster_on_gpu(model, decided), 0.0), "the CPU's time less the GPU's at its limit",
            )
        )  # fmt: skip
    return found


def activations(model: Examined) -> list[Finding]:
    """Activations that are nodes of their own behind a node which could have them as an option."""
    nodes, seconds = [], 0.0
    alone = {n for p in model.fused.values() for k in p.nodes if k.elementwise for n in k.sources}
    for operator in model.operators:
        if operator.name not in _FUSABLE or len(operator.inputs) != 1:
            continue
        source = model.producers.get(operator.inputs[0])
        if source is None or len(model.readers[operator.inputs[0]]) > 1:
            continue
        if model.operators[source].options.get("fused_activation_function") != 0:
            continue
        if model.owner(operator.index) != ON_CPU and operator.index not in alone:
            continue  # litegpu has fused it
        nodes.append(operator.index)
        seconds += model.times[operator.index].estimated
    if not nodes:
        return []
    return [
        Finding(
            "activations", tuple(nodes), "activations that are not fused into what they follow",
            "convert again: the converter writes them as an option of the op in front, if nothing else reads that",
            seconds, "the estimated time of these nodes",
        )
    ]  # fmt: skip


def float16_risks(model: Examined) -> list[Finding]:
    """Values that float16 would spoil, by the rules of precision="auto"."""
    risks = {t: reason for p in model.fused.values() for t, reason in p.risks.items()}
    if not risks:
        return []
    nodes = sorted({model.producers[t] for t in risks if t in model.producers})
    reasons: dict[str, list[int]] = {}
    for t, reason in risks.items():
        reasons.setdefault(reason, []).append(t)
    told = "; ".join(f"{model.graph.tensors[ts[0]].name}: {reason}" for reason, ts in list(reasons.items())[:3])
    seconds = tensor_bytes(model.graph, risks) / model.rates.bandwidth
    return [
        Finding(
            "float16", tuple(nodes), f"values that float16 would spoil, {len(risks)} of them ({told})",
            'use precision="auto", which keeps these in float32, or float32; scale such values down in training',
            seconds, "half of the bytes of these values, written and read, that float16 would save",
        )
    ]  # fmt: skip


PATTERNS: tuple[Pattern, ...] = (
    islands, copies, odd_channels, three_channel_inputs, versions, int64, dynamic_shapes, activations, float16_risks,
)  # fmt: skip

_FUSABLE = ("RELU", "RELU6", "RELU_N1_TO_1", "TANH")


def find_patterns(model: Examined) -> list[Finding]:
    """All that were found, the largest gain first."""
    return sorted((f for pattern in PATTERNS for f in pattern(model)), key=lambda f: -f.gain)


def _moves(operator: Operator) -> bool:
    known = find(operator)
    return known is not None and bool(known.moves)


def _multiplies(operator: Operator) -> bool:
    known = find(operator)
    return known is not None and known.multiplies


def _is_last(model: Examined, operator: Operator) -> bool:
    """Whether nothing multiplies behind an operator: its channels are what the model is to tell."""
    after = {t for t in operator.outputs if t >= 0}
    for other in model.operators[operator.index + 1 :]:
        if not after.isdisjoint(other.inputs):
            if _multiplies(other):
                return False
            after.update(other.outputs)
    return True


def _through(model: Examined, tensor: int) -> list[int]:
    """The nodes that multiply an image with weights, perhaps after it was converted, scaled or given a margin."""
    found: list[int] = []
    for n in model.readers.get(tensor, ()):
        if _multiplies(model.operators[n]):
            found.append(n)
            continue
        for t in model.operators[n].outputs:
            shape = model.graph.tensors[t].shape if t >= 0 else ()
            found += _through(model, t) if len(shape) == 4 and shape[-1] == 3 else []
    return found


def _faster_on_gpu(model: Examined, nodes: Sequence[int]) -> float:
    """Seconds that nodes on the CPU would win on the GPU, at its limit, and with a launch each."""
    there = sum(model.times[n].estimated for n in nodes)
    limits = (model.rates.limit(model.costs[n].flops, model.costs[n].bytes, model.half) for n in nodes)
    return there - sum(limit + model.rates.launch for limit in limits)
