"""The list of example models by name."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

from litegpu.errors import OptionError
from litegpu.zoo.classic import squeezenet, vgg16
from litegpu.zoo.deeplab import deeplab_v3
from litegpu.zoo.densenet import densenet121
from litegpu.zoo.efficientnet import efficientnet_b0, efficientnet_v2_b0
from litegpu.zoo.mobile import mobilenet_v2, mobilenet_v3
from litegpu.zoo.mobilenet import mobilenet_v1
from litegpu.zoo.posenet import posenet
from litegpu.zoo.resnet import resnet50, resnext50
from litegpu.zoo.shufflenet import shufflenet_v2
from litegpu.zoo.ssd import ssd_mobilenet_v1
from litegpu.zoo.swin import swin_tiny
from litegpu.zoo.transformers import convnext_tiny, mixer_s16, text_encoder, vit_tiny


@dataclass(frozen=True)
class CatalogueEntry:
    """A model that can be built. `options` are the keyword arguments of `build` with their defaults."""

    name: str
    task: str
    build: Callable[..., bytes]

    @property
    def options(self) -> dict[str, object]:
        return {name: parameter.default for name, parameter in inspect.signature(self.build).parameters.items()}


#: What networks of this kind are built with, and a computer can hold.
_RANGES: dict[str, tuple[float, float]] = {
    "seed": (0, 2**63),
    "batch": (1, 4096),
    "width": (0.05, 8),
    "resolution": (32, 4096),
    "classes": (2, 100_000),
    "max_detections": (1, 10_000),
    "depth": (1, 128),
    "length": (1, 8192),
    "vocabulary": (2, 1_000_000),
}

CATALOGUE = {
    entry.name: entry
    for entry in (
        CatalogueEntry("mobilenet_v1", "image classification", mobilenet_v1),
        CatalogueEntry("deeplab_v3", "semantic segmentation", deeplab_v3),
        CatalogueEntry("ssd_mobilenet_v1", "object detection", ssd_mobilenet_v1),
        CatalogueEntry("posenet", "body keypoints", posenet),
        *(
            CatalogueEntry(build.__name__, "image classification", build)
            for build in (
                *(resnet50, resnext50, mobilenet_v2, mobilenet_v3, efficientnet_b0, efficientnet_v2_b0, densenet121),
                *(vgg16, squeezenet, shufflenet_v2, vit_tiny, swin_tiny, mixer_s16, convnext_tiny),
            )
        ),
        CatalogueEntry("text_encoder", "text embedding", text_encoder),
    )
}


def build_model(name: str, **options: object) -> bytes:
    """The bytes of a .tflite file. Options left out or None take the model's defaults.

    Raises OptionError for an unknown model or an option that the model does not have.
    """
    if name not in CATALOGUE:
        raise OptionError(f"the zoo has no model {name!r}{_nearest(name, list(CATALOGUE))}")
    known = CATALOGUE[name].options
    given = {option: value for option, value in options.items() if value is not None}
    for option, value in given.items():
        if option not in known:
            raise OptionError(f"{name} has no option {option!r}{_nearest(option, list(known))}")
        least, most = _RANGES.get(option, (-math.inf, math.inf))
        if isinstance(value, int | float) and not least <= value <= most:
            raise OptionError(f"{option} is {value}; it must be from {least:g} to {most:g}")
    return CATALOGUE[name].build(**given)


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; choose among {', '.join(known)}"
