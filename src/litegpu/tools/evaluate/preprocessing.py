"""An image file -> the numbers that a model's input takes, as the official evaluation tools make them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image

from litegpu.errors import OptionError
from litegpu.model.types import Model
from litegpu.tools.evaluate.image_list import RAW
from litegpu.tools.images import to_rgb, undecodable

RESIZING = ("bilinear", "half-pixel", "antialias", "none")
_INPUTS = ("float32", "float16", "uint8", "int8")


class UnreadableImage(Exception):
    """A file is missing, no image, damaged, or of a size that does not fit."""


@dataclass(frozen=True)
class Preprocessing:
    """How images become a model's input; can be sent to other processes.

    height, width, dtype: of the model's input [n, height, width, 3].
    crop: side of the central square over the shorter side of the image (0.875); 0 takes the whole image.
    resize: "bilinear" as the official tools do (two neighbours, no averaging, corners of pixels as coordinates),
        "half-pixel" (the same with centres of pixels), "antialias" (Pillow's, which averages when it shrinks and rounds
        to whole numbers), or "none" (the images must have the model's size).
    mean, deviation: (pixel - mean) / deviation, per channel; None: by the type of the input, float (pixel - 127.5) /
        127.5, uint8 the pixel, int8 the pixel - 128.
    scale, zero_point: of a quantized input; used if mean and deviation are given.
    """

    height: int
    width: int
    dtype: str = "float32"
    crop: float = 0.875
    resize: str = "bilinear"
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None
    scale: float = 0.0
    zero_point: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.crop <= 1:
            raise OptionError(f"The crop is {self.crop}; it must be from 0 (the whole image) to 1")
        if self.resize not in RESIZING:
            raise OptionError(f"The resizing {self.resize!r} is unknown: use {', '.join(RESIZING)}")
        if (self.mean is None) != (self.deviation is None):
            raise OptionError("mean and deviation go together: give both, or none")
        for values, name in ((self.mean, "mean"), (self.deviation, "deviation")):
            if values is not None and len(values) not in (1, 3):
                raise OptionError(f"The {name} has {len(values)} numbers; it must be one, or one for each of R, G, B")
        if self.deviation is not None and min(self.deviation) <= 0:
            raise OptionError(f"The deviation is {self.deviation}; it must be above 0")
        if self.mean is not None and self.dtype in ("uint8", "int8") and not self.scale:
            raise OptionError("The model's input has no quantization, so a mean and a deviation do not apply to it")

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, 3

    def __call__(self, path: str, out: np.ndarray) -> dict[str, Any]:
        """Write the image into `out`; gives its own size. Raises UnreadableImage."""
        raw = path.lower().endswith(RAW)
        pixels = self._raw(path) if raw else read_pixels(path)
        size = {"height": pixels.shape[0], "width": pixels.shape[1]}
        if not raw:
            if self.crop:
                pixels = central_square(pixels, self.crop)
            pixels = self._resized(pixels)
        self._normalize(pixels, out)
        return size

    def _raw(self, path: str) -> np.ndarray:
        try:
            content = np.fromfile(path, np.uint8)
        except OSError as error:
            raise UnreadableImage(error.strerror or str(error)) from None
        if content.size != math.prod(self.shape):
            raise UnreadableImage(f"{content.size} bytes, but the model takes {self.width}x{self.height}x3")
        return content.reshape(self.shape)

    def _resized(self, pixels: np.ndarray) -> np.ndarray:
        if pixels.shape == self.shape:
            return pixels
        if self.resize == "none":
            raise UnreadableImage(
                f"{pixels.shape[1]}x{pixels.shape[0]} after the crop, but the model takes {self.width}x{self.height}, "
                "and resizing is off"
            )
        if self.resize == "antialias":
            image = Image.fromarray(pixels).resize((self.width, self.height), Image.Resampling.BILINEAR)
            return np.asarray(image)
        return bilinear(pixels, self.height, self.width, centred=self.resize == "half-pixel")

    def _normalize(self, pixels: np.ndarray, out: np.ndarray) -> None:
        """From the pixels' range 0..255, whole numbers or not. Integers are truncated, as C++ converts."""
        if self.mean is not None and self.deviation is not None:
            real = (pixels - np.asarray(self.mean, np.float32)) / np.asarray(self.deviation, np.float32)
            if out.dtype.kind == "f":
                out[...] = real
            else:
                limits = np.iinfo(out.dtype)
                quanta = np.rint(real / np.float32(self.scale)) + self.zero_point
                out[...] = np.clip(quanta, limits.min, limits.max)
        elif out.dtype == np.uint8:
            out[...] = pixels
        elif out.dtype == np.int8:
            out[...] = pixels - np.float32(128)
        elif out.dtype == np.float32:
            np.subtract(pixels, np.float32(127.5), out=out)
            np.multiply(out, np.float32(1 / 127.5), out=out)
        else:
            out[...] = (pixels - np.float32(127.5)) * np.float32(1 / 127.5)


def for_input(model: Model, **options: Any) -> Preprocessing:
    """The preprocessing for a model's only input. Raises OptionError if that takes no RGB image of a fixed size."""
    if len(model.main.inputs) != 1:
        names = ", ".join(repr(model.main.tensors[i].name) for i in model.main.inputs)
        raise OptionError(f"The model has {len(model.main.inputs)} inputs ({names}); one image is all it can be given")
    tensor = model.main.tensors[model.main.inputs[0]]
    shape, dtype = tensor.shape, tensor.type.name.lower()
    if len(shape) != 4 or shape[3] != 3 or dtype not in _INPUTS:
        raise OptionError(
            f"The model's input '{tensor.name}' is {dtype} {list(shape)}; an RGB image [1, height, width, 3] of type "
            f"{', '.join(_INPUTS)} is needed"
        )
    if -1 in tensor.shape_signature[1:]:
        raise OptionError(f"The model leaves the size of its input '{tensor.name}' open, so images have no size")
    quantization = tensor.quantization
    scale, zero_point = 0.0, 0
    if quantization is not None and quantization.scales.size == 1:
        scale, zero_point = float(quantization.scales[0]), int(quantization.zero_points[0])
    return Preprocessing(shape[1], shape[2], dtype, scale=scale, zero_point=zero_point, **options)


def read_pixels(path: str) -> np.ndarray:
    """An image file as uint8 RGB [height, width, 3]; a rotation noted in it (EXIF) is left out, as officially."""
    try:
        with Image.open(path) as image:
            return to_rgb(image)
    except FileNotFoundError:
        raise UnreadableImage("no such file") from None
    except Exception as error:
        raise UnreadableImage(undecodable(error)) from None


def central_square(pixels: np.ndarray, fraction: float) -> np.ndarray:
    """The square in the middle, `fraction` of the shorter side; halves are rounded away from zero."""
    height, width = pixels.shape[:2]
    side = max(min(_rounded(fraction * height), _rounded(fraction * width)), 1)
    top, left = _rounded((height - side) / 2), _rounded((width - side) / 2)
    return pixels[top : top + side, left : left + side]


def bilinear(pixels: np.ndarray, height: int, width: int, centred: bool = False) -> np.ndarray:
    """RESIZE_BILINEAR of TFLite's reference kernels, to the bit: float32 [height, width, channels], of uint8 [height,
    width, channels]. `centred` is half_pixel_centers."""
    channels = pixels.shape[2]
    top, bottom, down = _neighbours(pixels.shape[0], height, centred)
    left, right, across = _neighbours(pixels.shape[1], width, centred)
    # Columns are picked while pixels are bytes, and rows after them: whole rows are copied fast.
    columns = [np.take(pixels, places, axis=1).reshape(len(pixels), -1) for places in (left, right)]
    of_column = [np.repeat(weights, channels)[None] for weights in (1 - across, across)]
    result = np.zeros((height, width * channels), np.float32)
    term = np.empty_like(result)
    for source, weight in zip(columns, of_column, strict=True):
        for rows, of_row in ((top, 1 - down), (bottom, down)):
            np.multiply(source[rows], of_row[:, None], out=term)
            np.multiply(term, weight, out=term)
            np.add(result, term, out=result)
    return result.reshape(height, width, channels)


@lru_cache(maxsize=256)
def _neighbours(size: int, out: int, centred: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each of `out` places, the two of `size` that it lies between, and how far from the first, in float32."""
    scale = np.float32(size) / np.float32(out)
    places = np.arange(out, dtype=np.float32)
    at = (places + np.float32(0.5)) * scale - np.float32(0.5) if centred else places * scale
    first = np.maximum(np.floor(at), 0).astype(np.int64)
    second = np.minimum(np.ceil(at), size - 1).astype(np.int64)
    return first, np.maximum(second, 0), (at - first).astype(np.float32)


def _rounded(value: float) -> int:
    return math.floor(value + 0.5)
