"""Layers of bytes, and networks, on devices without warpgroup products, which an emulated driver says it has."""

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


#: A network of the zoo by its name, in float16 or whole numbers; and kernels that it must have.
NETWORK = """
import sys
import numpy as np
from cuda_emulator import emulator
emulator.install()
from agreement import FLOAT16, assert_agrees, official, on_gpu, random_inputs, run
from ai_edge_litert.interpreter import OpResolverType
from litegpu.gpu.backends.cuda import base
from zoo.test_families import small

compiled, plain = set(), base.compile_kernels

def noted(kernels, capability, **options):
    assert capability == int(sys.argv[1])
    compiled.update(kernel.name for kernel in kernels)
    return plain(kernels, capability, **options)

base.compile_kernels = noted
name, integer = sys.argv[2], sys.argv[3] == "int8"
content = small(name, **({"quantized": True} if integer else {"precision": "float16"}))
cpu = official(content, OpResolverType.BUILTIN) if integer else official(content)
how = {"arithmetic": "integer"} if integer else {"precision_loss_allowed": True}
inputs, gpu = random_inputs(cpu), on_gpu(content, backend="cuda", **how)
assert gpu.delegation_report().fully_delegated
for got, want in zip(run(gpu, inputs), run(cpu, inputs), strict=True):
    if integer:
        np.testing.assert_array_equal(got, want)
    else:
        assert_agrees(got, want, FLOAT16, name)
gpu.close()
assert compiled >= set(sys.argv[4:]), compiled
"""
#: Of each, kernels that only fused graphs have.
NETWORKS = {
    "mobilenet_v2": ("mean_convolution",),
    "mobilenet_v3": ("squeeze", "excite", "mean_convolution"),
    "efficientnet_b0": ("squeeze", "excite"),
    "densenet121": (),
    "vit_tiny": (),
    "swin_tiny": (),
    "resnext50": (),
}
QUICK = ((75, "mobilenet_v3", "float16"), (75, "mobilenet_v2", "int8"), (120, "efficientnet_b0", "float16"))
MORE = [
    pytest.param(capability, name, kind, marks=pytest.mark.slow)
    for capability in (75, 80, 86, 89, 100, 120)
    for name in NETWORKS
    for kind in ("float16", "int8")
    if (capability, name, kind) not in QUICK
]


def emulated(capability: int, script: str, *arguments: str) -> None:
    pytest.importorskip("cuda.bindings", reason="no litegpu[cuda]")
    path = os.pathsep.join(p for p in (str(TESTS), *sys.path) if p)
    environment = os.environ | {"PYTHONPATH": path, "EMULATED_CAPABILITY": str(capability)}
    command = [sys.executable, "-c", script, str(capability), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or not sys.platform.startswith("linux"), reason="the emulator needs g++ on Linux"
)


@needs_compiler
@pytest.mark.parametrize("capability, layers", [(75, 6), (86, 10), pytest.param(89, 100, marks=pytest.mark.slow)])
def test_layers_of_bytes(capability: int, layers: int) -> None:
    emulated(capability, SCRIPT, str(layers))


@needs_compiler
@pytest.mark.parametrize("capability, name, kind", [*QUICK, *MORE])
def test_networks(capability: int, name: str, kind: str) -> None:
    """Results are those of the CPU: of whole numbers all elements."""
    kernels = ("byte_inverted_convolution",) if name == "mobilenet_v2" else ()
    emulated(capability, NETWORK, name, kind, *(NETWORKS[name] if kind == "float16" else kernels))
