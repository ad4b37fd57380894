"""What went where: the record of a delegation, and the lines that tell a user about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

CPU = "CPU"


@dataclass(frozen=True)
class NodeReport:
    """Where one node of the model runs. `index` is its place in the file (the number that Netron shows), `code` its
    builtin operator code, `partition` the position in DelegationReport.partitions, `accepted` whether some delegate
    could have run it, `reason` why it stays on the CPU."""

    index: int
    op: str
    code: int
    owner: str
    partition: int
    accepted: bool
    reason: str | None


@dataclass(frozen=True)
class PartitionReport:
    """Nodes that run together, and the tensors (indices) that cross the border. A DEQUANTIZE of a constant can stand in
    several partitions: each computes it for itself."""

    index: int
    owner: str
    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class DelegationReport:
    """Every node and every partition, in order; `delegates` are the names of those that were asked, in order. `notes`:
    what delegates say about the partitions that they prepared, such as what stays in float32 and why."""

    delegates: tuple[str, ...]
    nodes: tuple[NodeReport, ...]
    partitions: tuple[PartitionReport, ...]
    notes: tuple[str, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """Nodes per owner; every delegate that was asked and the CPU are there, with 0 if they got none."""
        found = Counter(n.owner for n in self.nodes)
        return {name: found[name] for name in (*dict.fromkeys(self.delegates), CPU)}

    @property
    def delegated(self) -> int:
        """How many nodes run on some delegate."""
        return sum(n.owner != CPU for n in self.nodes)

    @property
    def fully_delegated(self) -> bool:
        """Whether delegates took every node."""
        return self.delegated == len(self.nodes)

    def kinds(self) -> dict[tuple[int, str, bool, str], tuple[int, ...]]:
        """(builtin code, op name, accepted, reason) of what stays on the CPU -> node numbers, most frequent first."""
        found: dict[tuple[int, str, bool, str], list[int]] = {}
        for n in self.nodes:
            if n.owner == CPU and n.reason is not None:
                found.setdefault((n.code, n.op, n.accepted, n.reason), []).append(n.index)
        return {kind: tuple(nodes) for kind, nodes in sorted(found.items(), key=lambda item: -len(item[1]))}

    def spared(self) -> dict[str, tuple[int, ...]]:
        """Reason -> numbers of the nodes that a delegate could run but that stay on the CPU."""
        found: dict[str, list[int]] = {}
        for (_, _, accepted, reason), nodes in self.kinds().items():
            if accepted:
                found.setdefault(reason, []).extend(nodes)
        return {reason: tuple(sorted(nodes)) for reason, nodes in found.items()}

    def warnings(self) -> list[str]:
        """One line per kind of node that no delegate can run, with the op's name, the reason and the node numbers; and
        one per reason for which nodes that one could run are left on the CPU."""
        lines = [
            f"op code #{code} cannot be handled by this delegate. {op}: {reason} ({_numbers(nodes)})"
            for (code, op, accepted, reason), nodes in self.kinds().items()
            if not accepted
        ]
        lines += [
            f"{_count(len(nodes), 'op')} that the delegate could run left on the CPU: {reason} ({_numbers(nodes)})"
            for reason, nodes in self.spared().items()
        ]
        return lines

    def summary(self) -> str:
        """One line, such as `174/176 ops on GPU in 1 partition, 2 on the CPU: ARG_MAX (reason)`."""
        total, counts = len(self.nodes), self.counts
        if not self.delegates:
            return f"all {total} ops on the CPU: no delegate was given"
        parts = []
        for name in dict.fromkeys(self.delegates):
            part = f"{counts[name]}/{total} ops on {name}"
            if counts[name]:
                part += f" in {_count(sum(p.owner == name for p in self.partitions), 'partition')}"
            parts.append(part)
        if counts[CPU]:
            parts.append(f"{counts[CPU] if self.delegated else f'all {counts[CPU]}'} on the CPU")
        refused: dict[str, list[str]] = {}  # reason -> ops
        for (_, op, accepted, reason), nodes in self.kinds().items():
            if not accepted:
                refused.setdefault(reason, []).append(f"{op}{f' x{len(nodes)}' if len(nodes) > 1 else ''}")
        reasons = [f"{', '.join(ops)} ({reason})" for reason, ops in refused.items()]
        reasons += [f"{_count(len(nodes), 'op')} {reason}" for reason, nodes in self.spared().items()]
        return ", ".join(parts) + (f": {'; '.join(reasons)}" if reasons else "")

    def as_dict(self) -> Mapping[str, Any]:
        """Plain dictionaries, lists, strings and numbers, ready for JSON."""
        return {
            "delegates": list(self.delegates),
            "counts": self.counts,
            "summary": self.summary(),
            "notes": list(self.notes),
            "nodes": [asdict(n) for n in self.nodes],
            "partitions": [
                {**asdict(p), "nodes": list(p.nodes), "inputs": list(p.inputs), "outputs": list(p.outputs)}
                for p in self.partitions
            ],
        }

    def __str__(self) -> str:
        rows = [("node", "op", "owner", "partition", "reason")]
        first = {n.reason: n.index for n in reversed(self.nodes)}  # a reason is said once
        rows += [
            (str(n.index), n.op, n.owner, str(n.partition), _reason(n.reason, first[n.reason], n.index))
            for n in self.nodes
        ]
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        lines = ["  ".join((*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[4])) for row in rows]
        return "\n".join([*(line.rstrip() for line in lines), *self.notes, self.summary()])


def _reason(reason: str | None, first: int, node: int) -> str:
    if not reason or first == node or len(reason) < 40:
        return reason or ""
    return f"as node {first}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _numbers(nodes: tuple[int, ...], limit: int = 8) -> str:
    listed = ", ".join(str(n) for n in nodes[:limit])
    more = f" and {len(nodes) - limit} more" if len(nodes) > limit else ""
    return f"{'node' if len(nodes) == 1 else 'nodes'} {listed}{more}"
