"""A WebGPU device for the runtime's tests."""

from __future__ import annotations

import pytest

from litegpu.errors import DeviceError
from litegpu.gpu.backends.webgpu.device import WebGpuDevice, open_device


@pytest.fixture(scope="session")
def device() -> WebGpuDevice:
    try:
        return open_device()
    except DeviceError as error:
        pytest.skip(f"no WebGPU device: {error}")
