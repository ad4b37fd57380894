"""The dump of an interpreter's state: tensors, memory, nodes, and who runs them."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.delegates.report import DelegationReport
from litegpu.model.types import Subgraph
from litegpu.tools.benchmark.files import allocation_type, tensor_bytes
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.opening import Opened


def state_text(opened: Opened, flags: BenchmarkFlags) -> str:
    """All subgraphs; the delegation is that of the main one. Addresses are not known, so that column has none."""
    lines = [f"Interpreter has {len(opened.interpreter.model.subgraphs)} subgraphs."]
    for subgraph in opened.interpreter.model.subgraphs:
        main = subgraph.index == 0
        lines += _subgraph(opened.interpreter.graph if main else subgraph, opened.report if main else None, flags)
    return "\n".join(lines)


def _subgraph(graph: Subgraph, report: DelegationReport | None, flags: BenchmarkFlags) -> list[str]:
    sizes = [tensor_bytes(tensor) for tensor in graph.tensors]
    lines = [
        "",
        f"-----------Subgraph-{graph.index} has {len(graph.tensors)} tensors and {len(graph.operators)} nodes"
        "------------",
        _listed("Inputs", graph.inputs, sizes),
        _listed("Outputs", graph.outputs, sizes),
        "",
    ]
    widths = flags.tensor_name_display_length, flags.tensor_type_display_length, flags.alloc_type_display_length
    lines.append(
        f"Tensor ID {'Name':<{widths[0]}} {'Type':<{widths[1]}} {'AllocType':<{widths[2]}} Size (Bytes/MB)    "
        "Shape      MemAddr-Offset"
    )
    kinds: dict[str, list[int]] = {}
    for tensor, size in zip(graph.tensors, sizes, strict=True):
        kind = allocation_type(tensor)
        kinds.setdefault(kind, []).append(tensor.index)
        cells = (
            _cut_end(tensor.name, widths[0]),
            _cut_front(f"kTfLite{tensor.type.name.capitalize()}", widths[1]),
            _cut_front(kind, widths[2]),
        )
        shape = ",".join(map(str, tensor.shape))
        lines.append(
            f"Tensor {tensor.index:3} {cells[0]:<{widths[0]}} {cells[1]:<{widths[1]}} {cells[2]:<{widths[2]}} "
            f"{size:<8} / {size / 2**20:.2f} [{shape}] [-1, -1)"
        )
    lines.append("")
    for kind, found in kinds.items():
        largest = max(found, key=lambda i: sizes[i])
        total = sum(sizes[i] for i in found)
        lines.append(
            f"{kind} Info: Tensor {largest} has the max size {sizes[largest]} bytes ({sizes[largest] / 2**20:.3f} MB). "
            f"All {len(found)} take {total} bytes ({total / 2**20:.3f} MB) without sharing."
        )
    lines.append("")
    nodes = {node.index: node for node in report.nodes} if report is not None else {}
    for operator in graph.operators:
        told = nodes.get(operator.index)
        owner = (
            "not delegated" if told is None or told.owner == "CPU"
            else f"delegated by {told.owner}, partition {told.partition}"
        )  # fmt: skip
        kind = f"Custom Name {operator.name}" if operator.is_custom else f"Builtin Code {operator.code} {operator.name}"
        lines.append(f"Node {operator.index:3} Operator {kind} ({owner})")
        for name, members in (
            ("Input", operator.inputs), ("Output", operator.outputs), ("Intermediate", operator.intermediates),
        ):  # fmt: skip
            if members:
                lines.append(f"  {len(members)} {_listed(f'{name} Tensors', members, sizes)}")
    if report is not None:
        lines += ["", f"Execution plan as the list of {len(report.partitions)} parts:"]
        lines += [f"  {p.index}: {p.owner} runs {len(p.nodes)} nodes: {list(p.nodes)}" for p in report.partitions]
    return lines


def _listed(name: str, tensors: Sequence[int], sizes: list[int]) -> str:
    total = sum(sizes[i] for i in tensors if i >= 0)
    return f"{name}: {list(tensors)} -> {total}B ({total / 2**20:.2f}MB)"


def _cut_end(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(width - 3, 0)]}..."


def _cut_front(text: str, width: int) -> str:
    return text if len(text) <= width else f"...{text[len(text) - max(width - 3, 0) :]}"
