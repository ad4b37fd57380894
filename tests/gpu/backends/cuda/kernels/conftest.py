"""What the tests of native kernels share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def device(device: Any) -> Any:
    """A device that has the native kernels, or a skip."""
    if device.features.capability < 80:
        pytest.skip("needs compute capability 8.0")
    return device
