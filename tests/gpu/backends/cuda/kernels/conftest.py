"""What the tests of native kernels share."""

from __future__ import annotations

from typing import Any

import pytest

from litegpu.gpu.backends.cuda import native  # noqa: F401 with all that has will_overlap by name, before it is replaced
from litegpu.gpu.backends.cuda.kernels import convolution, overlapped


@pytest.fixture(scope="module")
def device(device: Any) -> Any:
    """A device that has the native kernels, or a skip."""
    if device.features.capability < 80:
        pytest.skip("needs compute capability 8.0")
    return device


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are chosen as where each kernel has the device to itself: test_overlapped.py has the others."""
    for module in (convolution, overlapped):
        for name in ("will_overlap", "overlaps_tiles"):
            monkeypatch.setattr(module, name, lambda graph: False)
