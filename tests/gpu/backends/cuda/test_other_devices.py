"""Networks as they are planned for each of NVIDIA's GPUs: its multiprocessors can start every kernel, and NVRTC makes
machine code of them that keeps its numbers in registers.

A sample for each GPU; `-m slow` goes through all networks of the zoo, of benchmarks/strangers and of shared/models."""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cuda_devices import GPUS, Gpu, faults, taken

from litegpu.errors import TensorError
from litegpu.gpu.build import build_program
from litegpu.gpu.lang import KernelError
from litegpu.gpu.lower import Unsupported, lower_partition
from litegpu.gpu.program import KernelCode, Program
from litegpu.limits import WORK_VARIABLE
from litegpu.model import read_model, with_batch
from litegpu.model.types import Model
from litegpu.zoo import CATALOGUE, build_model

SMALL = ("mobilenet_v2", "mobilenet_v3", "efficientnet_b0", "squeezenet", "vit_tiny", "shufflenet_v2")
KINDS, BATCHES = ("float16", "float32", "integer"), (1, 8, 64)
#: Networks planned for each GPU, and kernels compiled of these.
SAMPLE, COMPILED = 2, 3
#: Kernels compiled for each GPU of each network, of all.
EACH = 2
#: Bytes that a thread may write to memory and read again because it has too few registers.
MOST_SPILLED = 96
#: What is said of a batch that a model cannot have, and of one for which there is no memory.
REFUSED = ("the batch cannot become", "the device has at most")

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "benchmarks"))
STRANGERS: dict[str, Any] = importlib.import_module("strangers").NETWORKS


@pytest.fixture(scope="module")
def compiler() -> Any:
    """NVRTC, or a skip."""
    try:
        from litegpu.gpu.backends.cuda import nvrtc

        return nvrtc.chosen()
    except Exception as error:  # of the loader of NVIDIA's libraries, or ImportError
        pytest.skip(f"no NVRTC (pip install litegpu[cuda]): {error}")


@functools.lru_cache(maxsize=4)
def _model(name: str, quantized: bool, folder: Path | None = None) -> Model:
    if folder is not None:
        return read_model((folder / f"{name}.tflite").read_bytes())
    if name in CATALOGUE:
        return read_model(build_model(name, **({"quantized": True} if quantized else {})))
    return read_model(STRANGERS[name]())


def _program(model: Model, batch: int, kind: str, gpu: Gpu) -> Program:
    graph = (with_batch(model, batch) if batch > 1 else model).main
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs, integer=kind == "integer")
    return build_program(lowered.graph, gpu.features, "cuda", half=kind != "float32", integer=kind == "integer")


def _planned(model: Model, batch: int, kind: str, gpu: Gpu) -> Program | None:
    """The program; None where the GPU does not take the whole model, nor that batch of it."""
    try:
        return _program(model, batch, kind, gpu)
    except Unsupported:
        return None
    except (TensorError, KernelError) as error:
        if not any(text in str(error) for text in REFUSED):
            raise
        return None


def _check_compiled(compiler: Any, kernel: KernelCode, gpu: Gpu) -> None:
    if gpu.capability not in compiler.capabilities:
        pytest.skip(f"NVRTC {compiler} has no code for {gpu.capability}")
    found = taken(compiler, kernel, gpu.capability)
    assert not found.faults(kernel, gpu)
    assert found.spilled <= MOST_SPILLED, f"{kernel.name} with {math.prod(kernel.workgroup)} threads: {found}"


@pytest.mark.parametrize("name", GPUS)
def test_a_sample_of_networks(compiler: Any, name: str) -> None:
    gpu, rng = GPUS[name], random.Random(name)
    kernels: dict[str, KernelCode] = {}
    for network, batch, kind in rng.sample([*itertools.product(SMALL, BATCHES, KINDS)], SAMPLE):
        program = _program(_model(network, kind == "integer"), batch, kind, gpu)
        assert not [fault for kernel in program.kernels for fault in faults(kernel, gpu)]
        kernels |= {kernel.name: kernel for kernel in rng.sample(program.kernels, len(program.kernels))}
    for kernel in rng.sample(sorted(kernels.values(), key=lambda kernel: kernel.name), COMPILED):
        _check_compiled(compiler, kernel, gpu)


def _networks(shared: Path) -> Iterator[tuple[str, bool, Path | None]]:
    for name in (*CATALOGUE, *STRANGERS):
        yield name, False, None
        if name in CATALOGUE:
            yield name, True, None
    yield from ((path.stem, False, shared) for path in sorted(shared.glob("*.tflite")) if path.stem != "malformed")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_all_networks(compiler: Any, part: int, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every network for every GPU, in some batch and of some kind each; it takes hours."""
    monkeypatch.setenv(WORK_VARIABLE, str(10**12))
    rng, planned = random.Random(part), 0
    for name, quantized, folder in itertools.islice(_networks(models_dir), part, None, 16):
        model = _model(name, quantized, folder)
        bytes_in = any(t.type.name in ("INT8", "UINT8") and not t.is_constant for t in model.main.tensors)
        for gpu in GPUS.values():
            batch, kind = rng.choice(BATCHES), rng.choice(KINDS if bytes_in else KINDS[:2])
            program = _planned(model, batch, kind, gpu)
            if program is None:
                continue
            planned += 1
            assert not [fault for kernel in program.kernels for fault in faults(kernel, gpu)], (name, batch, kind)
            for kernel in rng.sample(program.kernels, min(EACH, len(program.kernels))):
                _check_compiled(compiler, kernel, gpu)
    assert planned > len(GPUS)
