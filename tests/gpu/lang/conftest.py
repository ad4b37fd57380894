"""The places that the kernel language's suite runs on."""

from __future__ import annotations

from typing import Any

import pytest
from gpu.lang.runners import RUNNERS, OnDevice, cuda, webgpu

_ON_CUDA = pytest.param("cuda", marks=pytest.mark.cuda)


@pytest.fixture(params=[_ON_CUDA if name == "cuda" else name for name in RUNNERS])
def runner(request: pytest.FixtureRequest) -> Any:
    """Each of the runners in turn; skips where there is no device."""
    return RUNNERS[request.param]()


@pytest.fixture(params=["webgpu", _ON_CUDA])
def device(request: pytest.FixtureRequest) -> OnDevice:
    """Each kind of device in turn."""
    return cuda() if request.param == "cuda" else webgpu()
