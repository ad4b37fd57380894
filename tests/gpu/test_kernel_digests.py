"""The kernels printed for the example models are those on record: a refactor shows no difference, a change what moved.

After an intended change, write the record again with `PYTHONPATH=tests python tests/gpu/test_kernel_digests.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from gpu.backends.cuda.kernels import test_attention as attention
from gpu.backends.cuda.kernels import test_convolution as convolution
from gpu.backends.cuda.kernels import test_lstm as lstm
from gpu.backends.cuda.kernels import test_matmul as matmul
from gpu.backends.cuda.kernels import test_patch as patch

from litegpu.gpu.backends import registry
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import Conv2D, Graph, MatMul
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower import lower_partition
from litegpu.model import read_model
from litegpu.zoo import build_model

RECORD = Path(__file__).with_name("kernel_digests.json")


def zoo(name: str) -> Callable[[], Graph]:
    def make() -> Graph:
        graph = read_model(build_model(name)).main
        return lower_partition(graph, graph.operators, graph.inputs, graph.outputs).graph

    return make


MODELS: dict[str, Callable[[], Graph]] = {
    **{name: zoo(name) for name in ("mobilenet_v1", "deeplab_v3", "posenet")},
    "window": lambda: convolution.network((1, 128, 128, 8), (16, 3, 3, 8), Conv2D(padding=(1, 1)))[0],
    "stem": lambda: convolution.network((1, 64, 64, 3), (16, 5, 5, 3), Conv2D(padding=(2, 2)))[0],
    "attention": lambda: attention.network(**attention.CASES["vision"])[0],
    "masked attention": lambda: attention.network(**attention.CASES["mask"])[0],
    "attention of many": lambda: attention.network((64, 3), 197, 197, 64, 64, inner="qkv")[0],
    "attention of few": lambda: attention.network((64, 12), 16, 16, 32, 32, inner="qkv")[0],
    "patches": lambda: patch.network((8, 224, 224, 3), (16, 16), 192, False)[0],
    "lstm": lambda: lstm.network(128, 4, 1, True)[0],
    "lstm of many": lambda: lstm.network(128, 4, 20, True)[0],
    "matmul": lambda: matmul.network((1, 2, 64, 72), (1, 2, 40, 72), MatMul(False, True), inner="ab")[0],
}
#: Models of which it takes long to rank the native candidates; those that the others choose are enough.
SLOW = ("deeplab_v3", "posenet")
#: The printer, whether in float16, and the compute capability, which brings the kernels written in CUDA C++.
TARGETS = {
    "wgsl": ("wgsl", False, 0), "cuda": ("cuda", True, 0),
    "native float16": ("cuda", True, 90), "native float32": ("cuda", False, 80),
}  # fmt: skip


def digests(name: str) -> dict[str, list[str]]:
    """For each target, one line per dispatch: label, groups and a hash of the kernel's text without comments."""
    lines = {}
    for target, (printer, half, capability) in TARGETS.items():
        if capability and name in SLOW:
            continue
        features = Features(float16=half, compute_units=16, native="cuda", capability=capability)
        program = build_program(MODELS[name](), features, printer, half=half)
        lines[target] = [
            f"{d.label} {'x'.join(map(str, d.groups))} {program.kernels[d.kernel].name} "
            + hashlib.sha256(_text(program.kernels[d.kernel].source).encode()).hexdigest()[:16]
            for d in program.dispatches
        ]
    return lines


def _text(source: str) -> str:
    """What compilers see of it."""
    return re.sub(r"\s*//[^\n]*", "", source)


@pytest.mark.parametrize("name", MODELS)
def test_kernels_are_those_on_record(name: str) -> None:
    assert digests(name) == json.loads(RECORD.read_text())[name], (
        f"if this is meant: PYTHONPATH=tests python {Path(__file__).name}"
    )


def test_every_native_kernel_is_on_record() -> None:
    """Whatever is in CUDA C++ moves in some line of the record."""
    known = {
        line.split()[-2] for lines in json.loads(RECORD.read_text()).values() for one in lines.values() for line in one
    }
    assert known >= {
        "blocked_depthwise", "flash_attention", "lstm_cluster", "patch_convolution", "short_attention",
        "specialized_convolution", "stem_convolution", "tensor_convolution", "tensor_lstm", "tensor_matmul",
        "tiled_convolution", "vector_convolution", "warpgroup_attention", "window_convolution",
    }  # fmt: skip


if __name__ == "__main__":
    registry.backend("cuda")
    RECORD.write_text(json.dumps({name: digests(name) for name in MODELS}, indent=1) + "\n")
