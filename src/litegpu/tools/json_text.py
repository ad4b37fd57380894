"""Results as JSON that every parser reads: it has no numbers for NaN and the infinities."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(value: object) -> str:
    """Plain values as indented JSON."""
    return json.dumps(plain(value), indent=2, default=str, allow_nan=False)


def plain(value: Any) -> Any:
    """`value` with what JSON cannot say as strings: "nan", "inf" and "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
