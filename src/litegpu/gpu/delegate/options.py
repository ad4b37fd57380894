"""How the GPU delegate works: its options, those of the original's two option structures under Python's names."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from litegpu.boundary import typed
from litegpu.errors import OptionError
from litegpu.gpu.backends import registry

BACKENDS = registry.words()
TUNING = ("off", "fast", "full")
PRECISIONS = ("float32", "float16", "auto")
ARITHMETIC = ("auto", "float", "integer")


class WaitType(enum.Enum):
    """What invoke() does until the GPU is done.

    PASSIVE sleeps, except where inferences take less than 2 ms: to be woken would take a good part of that.
    ACTIVE asks again and again: the earliest answer, and one core busy meanwhile.
    DO_NOT_WAIT returns at once; get_tensor(), or what else needs the results, waits instead.
    AGGRESSIVE waits as ACTIVE does, and keeps the GPU awake between inferences with tiny ones of its own.
    """

    PASSIVE = "passive"
    ACTIVE = "active"
    DO_NOT_WAIT = "do_not_wait"
    AGGRESSIVE = "aggressive"


class InferencePreference(enum.Enum):
    """FAST_SINGLE_ANSWER and BALANCED start soon; SUSTAINED_SPEED measures kernels first (tuning="fast")."""

    FAST_SINGLE_ANSWER = 0
    SUSTAINED_SPEED = 1
    BALANCED = 2


class InferencePriority(enum.Enum):
    """What matters first, second and third. Float16 is used unless MAX_PRECISION comes first."""

    AUTO = 0
    MAX_PRECISION = 1
    MIN_LATENCY = 2
    MIN_MEMORY_USAGE = 3


class ExperimentalFlags(enum.IntFlag):
    """ENABLE_QUANT: as quantization_enabled, both must be set. GL_ONLY: as backend="gl". CL_ONLY is refused: there is
    no OpenCL backend. ENABLE_SERIALIZATION needs a serialization_dir, which alone turns serialization on."""

    NONE = 0
    ENABLE_QUANT = 1
    CL_ONLY = 2
    GL_ONLY = 4
    ENABLE_SERIALIZATION = 8


@dataclass(frozen=True)
class GpuDelegateOptions:
    """How the GPU delegate works.

    precision_loss_allowed: store activations and weights as float16 (sums stay in float32); needs a device with 16-bit
        floats, else float32 is used with one warning.
    precision: "float32", "float16", or "auto": float16, but float32 for what that would spoil, by the model's structure
        and weights, and by `calibration`. A result that overflows all the same is computed again in float32, which the
        model then stays in (docs/guide/gpu_memory.md says where not); in "float16" there is one warning. By default
        precision_loss_allowed and the priorities decide.
    calibration: for "auto", inputs like those to come: a sequence of samples, each a sequence of one array per input.
    wait_type: what invoke() does until the GPU is done, a WaitType or its name ("passive").
    quantization_enabled: take 8-bit and 16-bit nodes too, computing with the real numbers that they stand for; without
        it they stay on the CPU (constants may be quantized in any case).
    arithmetic: of tensors of 8 bits. "integer": they stay bytes in memory, and are computed with in whole numbers, sums
        of 32 bits among them, as the official runtime does it on the CPU: results are equal to the last bit (so are
        those of 16 bits, or they are left to the CPU); floats between bytes stay in float32. "float": as real
        numbers, within a quantum or so of an operator's result. "auto" takes the faster, by an estimate, or with
        `tuning` on CUDA by timing both; the report says which and why.
    inference_preference, inference_priority1, inference_priority2, inference_priority3, experimental_flags: as in the
        original's second structure; see the classes. Priority 1 must not be AUTO, priority 3 must be if priority 2 is,
        and none may come twice.
    backend: "auto" (CUDA where an NVIDIA GPU and litegpu[cuda] or [cuda12] are, else WebGPU), "cuda", "webgpu" (the
        best device of any of its APIs), or one of these: "vulkan", "metal", "d3d12", "gl". "reference" interprets every
        kernel in NumPy and checks it, on any machine: for small models, as it takes some 10 s for a mobile network.
    device: a part of the device's name, to choose among several; with CUDA also its index ("1", "cuda:1") or UUID.
    max_delegated_partitions: the largest so many partitions are taken; 0 means all.
    min_nodes_per_partition: partitions with fewer nodes stay on the CPU.
    tuning: "off" (kernels are chosen by estimates), "fast" or "full" (a few or many candidates are compiled and timed
        on the device when a model is prepared: seconds, or minutes; only with CUDA does it make a difference). Changes
        what is computed by the order of sums, and with arithmetic="auto" by the arithmetic that is taken, alone.
    validation: check every call to the GPU, to find mistakes of litegpu or of drivers: with CUDA kernels are launched
        one by one and awaited, so that an error names its kernel; with WebGPU the commands of every inference are
        recorded anew through the checked API. CUDA is then two to four times slower, WebGPU hardly.
    serialization_dir: a folder for what was compiled, from which the next start is ten times as fast: made, private to
        the user, if it is missing; "auto" is LITEGPU_CACHE_DIR or litegpu in the user's cache folder, and does without
        where there can be none. Refused if others can write to it. `litegpu cache` shows, checks and clears it.
    model_token: names the model in the cache, in place of a fingerprint of its bytes; must then change when the model
        does.
    first_delegate_node_index, last_delegate_node_index: nodes outside stay on the CPU (to bisect a wrong op).

    Raises OptionError for values and combinations that are not allowed.
    """

    precision_loss_allowed: bool = False
    precision: str | None = None
    calibration: Sequence[Sequence[np.ndarray]] | None = field(default=None, compare=False)
    wait_type: WaitType = WaitType.PASSIVE
    quantization_enabled: bool = True
    arithmetic: str = "auto"
    inference_preference: InferencePreference = InferencePreference.FAST_SINGLE_ANSWER
    inference_priority1: InferencePriority = InferencePriority.MAX_PRECISION
    inference_priority2: InferencePriority = InferencePriority.AUTO
    inference_priority3: InferencePriority = InferencePriority.AUTO
    experimental_flags: ExperimentalFlags = ExperimentalFlags.ENABLE_QUANT
    backend: str = "auto"
    device: str | None = None
    tuning: str = "off"
    validation: bool = False
    max_delegated_partitions: int = 1
    min_nodes_per_partition: int = 0
    serialization_dir: str | os.PathLike[str] | None = None
    model_token: str | None = None
    first_delegate_node_index: int = 0
    last_delegate_node_index: int = sys.maxsize

    @typed
    def __post_init__(self) -> None:
        put = object.__setattr__  # the dataclass is frozen
        put(self, "wait_type", _member(WaitType, "wait_type", self.wait_type))
        put(self, "inference_preference",
            _member(InferencePreference, "inference_preference", self.inference_preference))  # fmt: skip
        for i in (1, 2, 3):
            name = f"inference_priority{i}"
            put(self, name, _member(InferencePriority, name, getattr(self, name)))
        put(self, "experimental_flags", ExperimentalFlags(self.experimental_flags))
        _check_priorities(self.priorities)
        if self.backend not in BACKENDS:
            raise OptionError(f"backend {self.backend!r} is unknown: use one of {', '.join(BACKENDS)}")
        if self.precision not in (None, *PRECISIONS):
            raise OptionError(f"precision {self.precision!r} is unknown: use one of {', '.join(PRECISIONS)}")
        if self.arithmetic not in ARITHMETIC:
            raise OptionError(f"arithmetic {self.arithmetic!r} is unknown: use one of {', '.join(ARITHMETIC)}")
        if self.precision == "float32" and self.precision_loss_allowed:
            raise OptionError("precision is 'float32', but precision_loss_allowed is True")
        if self.calibration is not None and self.precision != "auto":
            raise OptionError("calibration is for precision='auto'")
        if self.tuning not in TUNING:
            raise OptionError(f"tuning {self.tuning!r} is unknown: use one of {', '.join(TUNING)}")
        if self.experimental_flags & ExperimentalFlags.CL_ONLY:
            raise OptionError("experimental_flags has CL_ONLY, but there is no OpenCL backend: use backend=...")
        if self.experimental_flags & ExperimentalFlags.GL_ONLY and self.backend not in registry.words_for("gl"):
            raise OptionError(f"experimental_flags has GL_ONLY, but backend is {self.backend!r}")
        if self.model_token is not None and self.serialization_dir is None:
            raise OptionError("model_token names a model in a cache: give serialization_dir too")
        if self.model_token is not None and not (isinstance(self.model_token, str) and self.model_token):
            raise OptionError(f"model_token is {self.model_token!r}; it must be a text that is not empty")
        if not isinstance(self.serialization_dir, str | os.PathLike | None) or "\0" in str(self.serialization_dir):
            raise OptionError(f"serialization_dir is {self.serialization_dir!r}; it must be the path of a folder")
        if self.experimental_flags & ExperimentalFlags.ENABLE_SERIALIZATION and self.serialization_dir is None:
            raise OptionError("experimental_flags has ENABLE_SERIALIZATION, but there is no serialization_dir")
        for name in ("max_delegated_partitions", "min_nodes_per_partition", "first_delegate_node_index"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} is {getattr(self, name)}; it must be 0 or more")

    @property
    def priorities(self) -> tuple[InferencePriority, InferencePriority, InferencePriority]:
        """The three in their order, the most important first."""
        return self.inference_priority1, self.inference_priority2, self.inference_priority3

    @property
    def half(self) -> bool:
        """Whether float16 may be used."""
        if self.precision is not None:
            return self.precision != "float32"
        return self.precision_loss_allowed or self.inference_priority1 is not InferencePriority.MAX_PRECISION

    @property
    def quantization(self) -> bool:
        """Whether quantized nodes are taken."""
        return self.quantization_enabled and bool(self.experimental_flags & ExperimentalFlags.ENABLE_QUANT)

    @property
    def tuning_level(self) -> str:
        """What the device's tuner is asked for."""
        sustained = self.inference_preference is InferencePreference.SUSTAINED_SPEED
        return "fast" if sustained and self.tuning == "off" else self.tuning

    @property
    def chosen_backend(self) -> str:
        """The backend that is asked for, by `backend` or by a flag of the original."""
        return "gl" if self.experimental_flags & ExperimentalFlags.GL_ONLY else self.backend


def _member(kind: type[enum.Enum], name: str, value: object) -> enum.Enum:
    """A member of an enumeration, given as such, by its value or by its name."""
    if isinstance(value, kind):
        return value
    for member in kind:
        if value == member.value or (isinstance(value, str) and value.upper() == member.name):
            return member
    raise OptionError(f"{name} is {value!r}; it must be one of {', '.join(m.name for m in kind)}")


def _check_priorities(priorities: Sequence[InferencePriority]) -> None:
    first, second, third = priorities
    auto = InferencePriority.AUTO
    set_ones = [p for p in priorities if p is not auto]
    wrong = (
        "inference_priority1 is AUTO" if first is auto
        else "inference_priority2 is AUTO and inference_priority3 is not" if second is auto and third is not auto
        else "one priority comes twice" if len(set(set_ones)) < len(set_ones)
        else ""
    )  # fmt: skip
    if wrong:
        raise OptionError(f"The inference priorities {', '.join(p.name for p in priorities)} are invalid: {wrong}")
