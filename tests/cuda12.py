"""NVIDIA's packages of CUDA 12, which lie beside the environment's own of CUDA 13."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from litegpu.gpu.backends.cuda import nvrtc


def packages() -> Path:
    """The folder that scripts/setup makes of them, or that LITEGPU_CUDA12_PACKAGES names; or a skip."""
    path = Path(os.environ.get("LITEGPU_CUDA12_PACKAGES", Path(sys.prefix) / "cuda12"))
    if not (path / "cuda" / "bindings").is_dir():
        pytest.skip(f"{path} does not have NVIDIA's packages of CUDA 12: scripts/setup installs them")
    return path


def compiler() -> nvrtc.Nvrtc:
    """NVRTC of CUDA 12, or a skip."""
    (folder, *_), name = nvrtc.PLACES[12]
    return nvrtc.Nvrtc(str(packages() / "nvidia" / folder / name))
