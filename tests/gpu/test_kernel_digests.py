"""The kernels printed for the example models are those on record: a refactor shows no difference, a change what moved.

After an intended change, write the record again with `python tests/gpu/test_kernel_digests.py`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from litegpu.gpu.build import build_program
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower import lower_partition
from litegpu.model import read_model
from litegpu.zoo import build_model

RECORD = Path(__file__).with_name("kernel_digests.json")
MODELS = ("mobilenet_v1", "deeplab_v3", "posenet")
TARGETS = {"wgsl": False, "cuda": True}  # target -> float16


def digests(name: str) -> dict[str, list[str]]:
    """For each target, one line per dispatch: label, groups and a hash of the kernel's text."""
    graph = read_model(build_model(name)).main
    lines = {}
    for target, half in TARGETS.items():
        lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
        features = Features(float16=half, compute_units=16)
        program = build_program(lowered.graph, features, target, half=half)
        lines[target] = [
            f"{d.label} {'x'.join(map(str, d.groups))} "
            + hashlib.sha256(program.kernels[d.kernel].source.encode()).hexdigest()[:16]
            for d in program.dispatches
        ]
    return lines


@pytest.mark.parametrize("name", MODELS)
def test_kernels_are_those_on_record(name: str) -> None:
    assert digests(name) == json.loads(RECORD.read_text())[name], f"if this is intended: python {Path(__file__).name}"


if __name__ == "__main__":
    RECORD.write_text(json.dumps({name: digests(name) for name in MODELS}, indent=1) + "\n")
