"""What the documentation of the official delegates tabulates: the platforms of each, and the model types it takes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from litegpu.model.model_type import ModelKind

GPU, NNAPI, HEXAGON, CORE_ML, CPU = "GPU", "NNAPI", "Hexagon", "Core ML", "CPU"
DELEGATES = (GPU, NNAPI, HEXAGON, CORE_ML, CPU)


@dataclass(frozen=True)
class Platforms:
    """Where a delegate exists, as documented. `note`: what litegpu's users have of it, or in its place; `systems`: by
    sys.platform, where they do, None for everywhere."""

    delegate: str
    platforms: str
    note: str
    systems: tuple[str, ...] | None = ()

    @property
    def here(self) -> bool:
        """Whether litegpu's users on this platform have it."""
        return self.systems is None or sys.platform in self.systems


@dataclass(frozen=True)
class TypeRow:
    """A row of the table of model types: delegate -> whether the documentation says that it takes them."""

    model_type: str
    kind: ModelKind
    takes: Mapping[str, bool]


PLATFORMS = (
    Platforms(
        GPU,
        "Android, iOS; on desktops special builds only",
        "litegpu's own delegate: Linux, Windows and macOS, by CUDA, Vulkan, Direct3D 12, Metal or OpenGL",
        None,
    ),
    Platforms(
        NNAPI, "Android 8.1 and later", 'deprecated; on desktops of Intel "openvino", litegpu\'s own, stands in for it'
    ),
    Platforms(HEXAGON, "Android with an older Qualcomm DSP", "deprecated; not on desktops"),
    Platforms(
        CORE_ML,
        "iOS with an Apple A12 or later",
        'litegpu\'s own delegate "coreml": macOS, with coremltools',
        ("darwin",),
    ),
    Platforms(CPU, "all", "XNNPACK, applied by default, and plain kernels for the rest", None),
)


def _row(model_type: str, kind: ModelKind, *, nnapi: bool, hexagon: bool, core_ml: bool) -> TypeRow:
    """The GPU and the CPU take every documented type."""
    takes = {GPU: True, NNAPI: nnapi, HEXAGON: hexagon, CORE_ML: core_ml, CPU: True}
    return TypeRow(model_type, kind, takes)


MODEL_TYPES = (
    _row("float32", ModelKind.FLOAT32, nnapi=True, hexagon=False, core_ml=True),
    _row("post-training float16", ModelKind.FLOAT16_WEIGHTS, nnapi=False, hexagon=False, core_ml=True),
    _row("post-training dynamic range", ModelKind.DYNAMIC_RANGE, nnapi=True, hexagon=False, core_ml=False),
    _row("post-training integer", ModelKind.FULL_INTEGER, nnapi=True, hexagon=True, core_ml=False),
    _row("quantization-aware training", ModelKind.QUANTIZATION_AWARE, nnapi=True, hexagon=True, core_ml=False),
)


def row_of(kind: ModelKind) -> TypeRow | None:
    """The row for a kind of model; None for kinds that the documentation does not mention."""
    return next((row for row in MODEL_TYPES if row.kind is kind), None)


def this_platform() -> str:
    """The name of the system that this runs on."""
    names = {"linux": "Linux", "darwin": "macOS", "win32": "Windows", "android": "Android", "ios": "iOS"}
    return names.get(sys.platform, sys.platform)
