"""Refuses constants and options on which the official runtime would crash instead of reporting an error."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.model.types import Operator, Tensor


def check_operator(operator: Operator, tensors: Sequence[Tensor]) -> None:
    """Raises ModelError."""


def check_sparsity(tensor: Tensor) -> None:
    """Raises ModelError."""
