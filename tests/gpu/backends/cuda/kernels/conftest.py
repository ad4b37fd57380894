"""What the tests of native kernels share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def device() -> Any:
    """A device that has the native kernels, or a skip."""
    from litegpu.gpu.backends.cuda.opening import available, open_device

    reason = available()
    if reason is not None:
        pytest.skip(f"no CUDA device: {reason}")
    found = open_device()
    if found.features.capability < 80:
        pytest.skip("needs compute capability 8.0")
    return found
