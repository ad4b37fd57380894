"""The results of h200.py as lines and as a Markdown table; times are seconds in the rows, milliseconds in the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]

_HEADER = (
    "model", "batch", "precision", "GPU ms", "limit ms (GPU/limit)", "host to host ms", "inferences/s", "error",
    "kernels", "torch CUDA graph GPU ms (ratio)", "host to host ms (ratio)", "torch.compile GPU ms (ratio)",
    "LiteRT GPU e2e ms (ratio)", "LiteRT GPU pipelined ms (ratio)",
)  # fmt: skip


def line(row: Row) -> str:
    """One case in one line."""
    name = f"{row['model']} b{row['batch']} {row['precision']}"
    parts = []
    if "gpu" in row:
        parts.append(f"GPU {_ms(row['gpu'])} ms")
    if "limit" in row and "gpu" in row:
        parts.append(f"{row['gpu'] / row['limit']:.2f} x limit {_ms(row['limit'])}")
    if "host" in row:
        parts.append(f"host to host {_ms(row['host'])} ms")
    if "pipelined" in row:
        parts.append(f"{row['batch'] / row['pipelined']:.0f}/s")
    if "error" in row:
        parts.append(f"error {row['error']:.1e}")
    if "kernels" in row:
        parts.append(f"{row['kernels']} kernels, built in {row['build']:.1f} s")
    if "failure" in row:
        parts.append(f"FAILED {row['failure']}")
    return f"{name}: {', '.join(parts)}"


def markdown(machine: Mapping[str, str], command: str, rows: Sequence[Row], notes: Mapping[str, Sequence[str]]) -> str:
    """The machine, the command and the table. Ratios below 1 mean that litegpu takes less time than the peer; the limit
    column shows how many times the limit litegpu takes, and in brackets the same for the peers' own count of it."""
    lines = [
        *(f"- {name}: {value}" for name, value in machine.items()),
        f"- command: `{command}`",
        "",
        "Ratios are litegpu's time over the peer's, or over the limit (the larger of the roofline and the launch floor "
        'of the fused graph; "peers" is their own count of it).',
        "",
        f"| {' | '.join(_HEADER)} |",
        f"|{' --- |' * len(_HEADER)}",
        *(f"| {' | '.join(_cells(row))} |" for row in rows),
    ]
    failures = [f"- {r['model']} b{r['batch']} {r['precision']}: {r['failure']}" for r in rows if "failure" in r]
    failures += [f"- {model}, {text}" for model, texts in notes.items() for text in texts]
    return "\n".join([*lines, *(["", "Failed or left out:", "", *failures] if failures else [])])


def _cells(row: Row) -> list[str]:
    limit = _compared(row, "limit", "gpu")
    if "peers_limit" in row:
        limit += f", peers {_compared(row, 'peers_limit', 'gpu')}"
    return [
        str(row["model"]),
        str(row["batch"]),
        str(row["precision"]),
        _ms(row.get("gpu")) if "failure" not in row or "gpu" in row else "failed",
        limit,
        _ms(row.get("host")),
        f"{row['batch'] / row['pipelined']:.0f}" if "pipelined" in row else "-",
        f"{row['error']:.1e}" if "error" in row else "-",
        str(row.get("kernels", "-")),
        _compared(row, "torch_graph", "gpu"),
        _compared(row, "torch_graph_host", "host"),
        _compared(row, "torch_compile", "gpu"),
        _compared(row, "litert_host", "host"),
        _compared(row, "litert_pipelined", "pipelined"),
    ]


def _compared(row: Row, name: str, ours: str) -> str:
    if name not in row:
        return "-"
    return f"{_ms(row[name])} ({row[ours] / row[name]:.2f})" if ours in row else _ms(row[name])


def _ms(seconds: float | None) -> str:
    """Milliseconds with three digits that count."""
    if seconds is None:
        return "-"
    ms = seconds * 1e3
    return f"{ms:.3f}" if ms < 10 else f"{ms:.2f}" if ms < 100 else f"{ms:.0f}"
