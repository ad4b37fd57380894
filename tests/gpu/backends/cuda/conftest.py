"""What the tests of the CUDA backend share."""

from __future__ import annotations

from typing import Any

import pytest
from agreement import require_cuda


@pytest.fixture(scope="module")
def device() -> Any:
    """The CUDA device, or a skip."""
    require_cuda()
    from litegpu.gpu.backends.cuda.opening import open_device

    return open_device()
