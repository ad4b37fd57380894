"""A costly pattern that was found in a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from litegpu.tools.analyze.examined import Examined


@dataclass(frozen=True)
class Finding:
    """`pattern`: its name in docs/guide/analyze.md. `nodes`: where; `what` was found there; `advice`: what to do.
    `gain`: seconds of an inference that the advice is estimated to save, and `how` that was estimated."""

    pattern: str
    nodes: tuple[int, ...]
    what: str
    advice: str
    gain: float
    how: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


#: A function that looks for one pattern.
Pattern = Callable[[Examined], list[Finding]]
