"""Checks that a model means something before any runtime is asked to run it."""

from __future__ import annotations

from litegpu.model.types import Model


def verify_model(model: Model) -> None:
    """Raises ModelError if the model contradicts itself."""
