"""Layers of bytes as a whole on devices without warpgroup products, which an emulated driver says it has."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[3]

SCRIPT = """
import collections, sys
import numpy as np
from cuda_emulator import emulator
emulator.install()
from agreement import official, on_gpu, run
from gpu import test_integer_layers as layers
from litegpu.gpu.backends.cuda import base

compiled, plain = collections.Counter(), base.compile_kernels

def noted(kernels, capability, **options):
    assert capability == int(sys.argv[1])
    compiled.update(kernel.name for kernel in kernels)
    return plain(kernels, capability, **options)

base.compile_kernels = noted
for kind in layers.KINDS:
    for seed in range(int(sys.argv[2])):
        layer = layers.Layer("CONV_2D", kind, seed)
        want = run(official(layer.content, layers.OpResolverType.BUILTIN), [layer.inputs])[0]
        gpu = on_gpu(layer.content, backend="cuda", arithmetic="integer")
        assert gpu.delegation_report().fully_delegated, (kind, seed)
        assert np.array_equal(run(gpu, [layer.inputs])[0], want), (kind, seed)
        gpu.close()
assert compiled["byte_convolution"] > 5, compiled
"""


@pytest.mark.skipif(
    shutil.which("g++") is None or not sys.platform.startswith("linux"), reason="the emulator needs g++ on Linux"
)
@pytest.mark.parametrize("capability, layers", [(75, 6), (86, 10), pytest.param(89, 100, marks=pytest.mark.slow)])
def test_layers_of_bytes(capability: int, layers: int) -> None:
    pytest.importorskip("cuda.bindings", reason="no litegpu[cuda]")
    path = os.pathsep.join(p for p in (str(TESTS), *sys.path) if p)
    environment = os.environ | {"PYTHONPATH": path, "EMULATED_CAPABILITY": str(capability)}
    command = [sys.executable, "-c", SCRIPT, str(capability), str(layers)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
