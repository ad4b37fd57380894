"""How the OpenVINO delegate works: its options, named as the GPU delegate's are, and what they are to OpenVINO."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from litegpu.boundary import typed
from litegpu.errors import OptionError
from litegpu.gpu.delegate.options import InferencePreference

PRECISIONS = ("float32", "float16", "auto")
_HINTS = {"float32": "f32", "float16": "f16"}
_PERFORMANCE = {
    InferencePreference.FAST_SINGLE_ANSWER: "LATENCY",
    InferencePreference.SUSTAINED_SPEED: "THROUGHPUT",
    InferencePreference.BALANCED: "LATENCY",
}


@dataclass(frozen=True)
class OpenVinoOptions:
    """How the OpenVINO delegate works.

    device: "CPU", "GPU", "NPU", one of several ("GPU.1"), or "AUTO", by which OpenVINO chooses.
    precision: "float32" computes in it, whatever the device would rather do; "float16"; "auto" leaves the choice to
        OpenVINO, which on CPUs with AMX takes bfloat16. 8-bit models compute in integers in any case. NPUs have no
        float32.
    num_threads: of the CPU; None leaves it to OpenVINO, which takes every core.
    quantization_enabled: take 8-bit and 16-bit nodes too; without it they stay on the official runtime.
    inference_preference: FAST_SINGLE_ANSWER and BALANCED are OpenVINO's LATENCY, SUSTAINED_SPEED is its THROUGHPUT.
    serialization_dir: a folder for what was compiled, "auto" the user's own, as for the GPU delegate. OpenVINO's files
        have names of its own in it.
    max_delegated_partitions: the largest so many partitions are taken; 0 means all.
    min_nodes_per_partition: partitions with fewer nodes stay on the official runtime.
    first_delegate_node_index, last_delegate_node_index: nodes outside stay there too (to bisect a wrong op).

    Raises OptionError for values that are not allowed.
    """

    device: str = "CPU"
    precision: str = "float32"
    num_threads: int | None = None
    quantization_enabled: bool = True
    inference_preference: InferencePreference | str | int = InferencePreference.FAST_SINGLE_ANSWER
    serialization_dir: str | os.PathLike[str] | None = None
    max_delegated_partitions: int = 0
    min_nodes_per_partition: int = 0
    first_delegate_node_index: int = 0
    last_delegate_node_index: int = sys.maxsize

    @typed
    def __post_init__(self) -> None:
        object.__setattr__(self, "inference_preference", _preference(self.inference_preference))
        if not isinstance(self.device, str) or not self.device:
            raise OptionError(f"device is {self.device!r}; it must be CPU, GPU, NPU, AUTO or another of OpenVINO's")
        object.__setattr__(self, "device", self.device.upper())
        if self.precision not in PRECISIONS:
            raise OptionError(f"precision {self.precision!r} is unknown: use one of {', '.join(PRECISIONS)}")
        if self.num_threads is not None and self.num_threads < 1:
            raise OptionError(f"num_threads is {self.num_threads}; it must be 1 or more")
        for name in ("max_delegated_partitions", "min_nodes_per_partition", "first_delegate_node_index"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} is {getattr(self, name)}; it must be 0 or more")

    def properties(self, known: Collection[str], cache: str | None) -> dict[str, Any]:
        """OpenVINO's properties, of those that the device knows. `cache`: the folder that files are kept in."""
        preference = self.inference_preference
        assert isinstance(preference, InferencePreference)
        wanted: dict[str, Any] = {"PERFORMANCE_HINT": _PERFORMANCE[preference]}
        if self.precision != "auto":
            wanted["INFERENCE_PRECISION_HINT"] = _HINTS[self.precision]
        if self.precision == "float32":
            wanted["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0  # else activations would be rounded to 8 bits
        if self.num_threads is not None:
            wanted["INFERENCE_NUM_THREADS"] = self.num_threads
        if cache is not None:
            wanted["CACHE_DIR"] = cache
        # of the Core rather than a device; and what would be another result, so that not to know it is an error
        must = {"CACHE_DIR", "INFERENCE_PRECISION_HINT"}
        return {name: value for name, value in wanted.items() if name in known or name in must}


def _preference(value: object) -> InferencePreference:
    """Given as such, by its number or by its name."""
    for member in InferencePreference:
        if value in (member, member.value) or (isinstance(value, str) and value.upper() == member.name):
            return member
    raise OptionError(
        f"inference_preference is {value!r}; it must be one of {', '.join(m.name for m in InferencePreference)}"
    )
