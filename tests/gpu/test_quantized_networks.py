"""Networks of the kinds whose quantized files are public, in whole numbers: every element equals the official CPU's."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from agreement import official, on_gpu, require_cuda, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType
from quantized_networks import NETWORKS, STYLES, network

#: What the GPU leaves to the CPU in whole numbers.
LEFT = {"attention": {"LOG_SOFTMAX"}}
#: What takes less than a few seconds on a software driver.
QUICK = ("keywords", "movenet", "unet", "gated")
CASES = [(name, style) for name in NETWORKS for style in STYLES
         if (name, style) != ("attention", "uint8")]  # whose products the official runtime refuses  # fmt: skip


def some(name: str, style: str) -> Any:
    quick = name in QUICK and style != "int8, a scale a tensor"
    return pytest.param(name, style, marks=[] if quick else [pytest.mark.slow])


def check(name: str, style: str, batch: int, **options: Any) -> None:
    content = network(name, STYLES[style], batch)
    cpu, gpu = official(content, OpResolverType.BUILTIN), on_gpu(content, arithmetic="integer", **options)
    left = {node.op for node in gpu.delegation_report().nodes if node.owner == "CPU"}
    assert left == LEFT.get(name, set())
    detail, rng = cpu.get_input_details()[0], np.random.default_rng(batch)
    shape, dtype = detail["shape"], np.dtype(detail["dtype"])
    limits = np.iinfo(np.int8 if dtype.kind == "f" else dtype)
    x = rng.integers(limits.min, limits.max + 1, shape).astype(dtype) / (100 if dtype.kind == "f" else 1)
    for got, want in zip(run(gpu, [x.astype(dtype)]), run(cpu, [x.astype(dtype)]), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("name", "style"), [some(*case) for case in CASES])
def test_on_webgpu(name: str, style: str) -> None:
    require_gpu()
    check(name, style, 1)


@pytest.mark.cuda
@pytest.mark.parametrize(("name", "style"), CASES)
def test_on_cuda(name: str, style: str) -> None:
    require_cuda()
    if os.environ.get("LITEGPU_CUDA_EMULATOR") and name not in ("keywords", "movenet"):
        pytest.skip("takes minutes on the emulator")
    check(name, style, 1, backend="cuda", precision_loss_allowed=True)
    check(name, style, 3, backend="cuda", precision_loss_allowed=True)
