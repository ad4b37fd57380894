"""Quantized networks at random in whole numbers: every element equals the official CPU's, before and after the passes,
on each backend."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest
from agreement import official, on_gpu, require_cuda, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType
from quantized_networks import STYLES
from random_networks import ENDS, network

from litegpu.gpu.backends import registry
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.gpu.passes import optimise
from litegpu.model import read_model

SAMPLE, ON_GPU, FULL = 6, 2, 200


@pytest.mark.parametrize("style", [*STYLES, "words"])
@pytest.mark.parametrize("seed", range(SAMPLE))
def test_in_numpy(seed: int, style: str) -> None:
    _in_numpy(f"sample {seed}", style, seed)


@pytest.mark.slow
@pytest.mark.parametrize("style", [*STYLES, "words"])
def test_full(style: str) -> None:
    drawn = random.SystemRandom().getrandbits(32)
    for seed in range(FULL):
        _in_numpy(f"{drawn} {seed}", style, seed)


@pytest.mark.parametrize("style", [*STYLES, "words"])
@pytest.mark.parametrize("seed", range(ON_GPU))
def test_on_webgpu(seed: int, style: str) -> None:
    require_gpu()
    _on_gpu(f"gpu {seed}", style, seed)


@pytest.mark.cuda
@pytest.mark.parametrize("style", [*STYLES, "words"])
@pytest.mark.parametrize("seed", range(ON_GPU))
def test_on_cuda(seed: int, style: str) -> None:
    require_cuda()
    if os.environ.get("LITEGPU_CUDA_EMULATOR") and (seed > 0 or style != "int8"):
        pytest.skip("takes a minute on the emulator")
    _on_gpu(f"cuda {seed}", style, seed, backend="cuda", precision_loss_allowed=True)


def _case(seed: str, style: str, number: int) -> tuple[bytes, list[np.ndarray], list[np.ndarray]]:
    """A network, inputs, and what the official runtime gives."""
    content = network(seed, style, ENDS[number % len(ENDS)])
    cpu, rng, inputs = official(content, OpResolverType.BUILTIN), np.random.default_rng(number), []
    for detail in cpu.get_input_details():
        dtype = np.dtype(detail["dtype"])
        if dtype.kind == "f":
            inputs.append(rng.uniform(-1.1, 1.1, detail["shape"]).astype(dtype))
        else:
            limits = np.iinfo(dtype)
            inputs.append(rng.integers(limits.min, limits.max + 1, detail["shape"]).astype(dtype))
    return content, inputs, run(cpu, inputs)


def _in_numpy(seed: str, style: str, number: int) -> None:
    content, inputs, wanted = _case(seed, style, number)
    main = read_model(content).main
    if any(check_operator(main, o, integer=True) is not None for o in main.operators):
        return
    registry.backend("cuda")  # whose passes are to be known
    plain = lower_partition(main, main.operators, main.inputs, main.outputs, integer=True).graph
    cuda = Features(float16=True, compute_units=132, native="cuda", capability=90, byte_products=True)
    for graph in (plain, optimise(plain, Features(byte_products=True)), optimise(plain, cuda, half=True)):
        _compare(seed, evaluate_graph(graph, inputs), wanted)


def _on_gpu(seed: str, style: str, number: int, **options: Any) -> None:
    content, inputs, wanted = _case(seed, style, number)
    _compare(seed, run(on_gpu(content, arithmetic="integer", **options), inputs), wanted)


def _compare(seed: str, got: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        np.testing.assert_array_equal(np.asarray(a).reshape(b.shape), b, err_msg=f"seed {seed!r}, output {i}")
