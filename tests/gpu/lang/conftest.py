"""The places that the kernel language's suite runs on."""

from __future__ import annotations

from typing import Any

import pytest
from gpu.lang.runners import RUNNERS, OnDevice, webgpu


@pytest.fixture(params=list(RUNNERS))
def runner(request: pytest.FixtureRequest) -> Any:
    """Each of the runners in turn; skips where there is no device."""
    return RUNNERS[request.param]()


@pytest.fixture
def device() -> OnDevice:
    return webgpu()
