"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def _folder(variable: str, name: str) -> Path:
    default = Path(__file__).resolve().parents[2] / "shared" / name
    path = Path(os.environ.get(variable, default))
    if not path.is_dir():
        pytest.skip(f"{path} is absent: set {variable} to a folder of {name} to run this test")
    return path


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder of real models, or a skip."""
    return _folder("LITEGPU_MODELS", "models")


@pytest.fixture(scope="session")
def images_dir() -> Path:
    """The folder of photographs, or a skip."""
    return _folder("LITEGPU_IMAGES", "images")
