"""Pictures in and out of tensors: reading, resizing and normalising for a model's input."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from litegpu.errors import OptionError
from litegpu.whole_file import write_whole

#: Formats whose pictures of one channel with 16 bits Pillow opens as 32.
_SIXTEEN_BITS = frozenset({"PNG", "PPM"})


@dataclass(frozen=True)
class Normalization:
    """(pixel - mean) / deviation, for pixels in 0..255."""

    mean: float = 127.5
    deviation: float = 127.5

    def __post_init__(self) -> None:
        if not 0 < self.deviation < math.inf:
            raise OptionError(f"--std is {self.deviation}; it must be above 0, and finite")
        if not math.isfinite(self.mean):
            raise OptionError(f"--mean is {self.mean}; it must be finite")

    def __str__(self) -> str:
        return f"(pixel - {self.mean:g}) / {self.deviation:g}"


def load_image(path: str | os.PathLike[str]) -> np.ndarray:
    """An image file as uint8 RGB [height, width, 3], turned upright as its EXIF data say."""
    return _pixels(path, os.fspath(path))


def decode_image(content: bytes) -> np.ndarray:
    """The bytes of an image file, as load_image() gives it."""
    return _pixels(io.BytesIO(content), "the value")


def save_image(path: str | os.PathLike[str], pixels: np.ndarray) -> None:
    """Write uint8 RGB [height, width, 3]; the format follows from the file's name."""
    suffix, content = os.path.splitext(path)[1].lower(), io.BytesIO()
    kind = Image.registered_extensions().get(suffix)
    try:
        Image.fromarray(pixels).save(content, kind or suffix)
    except (KeyError, OSError, ValueError) as error:
        why = error if kind else f"Pillow writes no files that end in {suffix!r}"
        raise OptionError(f"Cannot write the picture {os.fspath(path)}: {why}") from None
    write_whole(path, content.getvalue())


def resize(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear, with averaging where the picture shrinks; the aspect ratio is not kept. uint8 [height, width, 3]."""
    if pixels.shape[:2] == (height, width):
        return pixels
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BILINEAR))


def takes_image(detail: Mapping[str, Any]) -> bool:
    """Whether an input tensor can be a picture: [batch, height, width, 1, 3 or 4], floating point or 8 bits."""
    shape = detail["shape"]
    kinds = (np.float32, np.float16, np.uint8, np.int8)
    return len(shape) == 4 and shape[3] in (1, 3, 4) and min(shape[1:3]) >= 8 and np.dtype(detail["dtype"]) in kinds


def image_to_tensor(
    pixels: np.ndarray, detail: Mapping[str, Any], normalization: Normalization | None = None
) -> tuple[np.ndarray, str]:
    """The picture for an input tensor (its `get_input_details` dictionary), and how it was made, in words.

    float: (pixel - 127.5) / 127.5 unless a normalization is given. 8 bits: with a normalization, its result quantized
    with the tensor's scale and zero point; without, the range of pixels becomes the range of the type. One channel is
    the luma (ITU-R 601), the fourth of four is zero; a batch repeats the picture.
    """
    shape = [int(n) for n in detail["shape"]]
    if not takes_image(detail):
        kind = np.dtype(detail["dtype"]).name
        raise OptionError(f"Input '{detail['name']}', {kind} of shape {shape}, does not look like a picture")
    batch, height, width, channels = shape
    resized = _with_channels(resize(pixels, height, width), channels)
    dtype = np.dtype(detail["dtype"])
    size = f"{pixels.shape[1]}x{pixels.shape[0]} resized to {width}x{height}"
    if dtype.kind == "f":
        normalization = normalization or Normalization()
        values = ((resized.astype(np.float32) - normalization.mean) / normalization.deviation).astype(dtype)
        how = f"{size}, {normalization}"
    elif normalization is not None:
        scale, zero_point = detail["quantization"]
        if not scale:
            raise OptionError(f"Input '{detail['name']}' has no quantization, so --mean and --std do not apply to it")
        real = (resized.astype(np.float32) - normalization.mean) / normalization.deviation
        limits = np.iinfo(dtype)
        values = np.clip(np.rint(real / scale) + zero_point, limits.min, limits.max).astype(dtype)
        how = f"{size}, {normalization}, quantized by {scale:g} and {zero_point}"
    else:
        values = resized if dtype == np.uint8 else (resized.astype(np.int16) - 128).astype(np.int8)
        how = f"{size}, {'pixels as they are' if dtype == np.uint8 else 'pixel - 128'}"
    if channels == 4:
        values[..., 3] = 0 if dtype.kind == "f" else detail["quantization"][1]
    return np.repeat(values[None], batch, axis=0), how


def to_rgb(image: Image.Image) -> np.ndarray:
    """A picture of Pillow's as uint8 RGB [height, width, 3]: of 16 bits the upper 8, as Pillow takes them of
    three channels. Raises ValueError where nothing says which numbers are black and white."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in _SIXTEEN_BITS):
        upper = (np.asarray(image).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        return np.repeat(upper[..., None], 3, axis=-1)
    if image.mode in ("I", "F"):
        kind = "whole" if image.mode == "I" else "real"
        raise ValueError(f"its pixels are {kind} numbers of 32 bits; save it with 8 or 16 bits for each channel")
    return np.asarray(image.convert("RGB"))


def undecodable(error: Exception) -> str:
    """What Pillow raises for a file that it cannot decode, in one line. It raises errors of many types: those of its
    own, and whatever its readers of each format stumble over."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image that Pillow can read"
    cause = error.strerror if isinstance(error, OSError) else None
    return " ".join((cause or str(error) or type(error).__name__).split())


def _pixels(file: str | os.PathLike[str] | io.BytesIO, name: str) -> np.ndarray:
    from PIL import ImageOps

    try:
        with Image.open(file) as image:
            image_format = image.format
            upright = ImageOps.exif_transpose(image)
            upright.format = image_format  # which a turned copy forgets
            return to_rgb(upright)
    except UnidentifiedImageError as error:
        raise OptionError(f"{name} is {undecodable(error)}") from None
    except Exception as error:
        raise OptionError(f"Cannot read the image {name}: {undecodable(error)}") from None


def _with_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    if channels == 1:
        return np.asarray(Image.fromarray(pixels).convert("L"))[..., None].copy()
    if channels == 4:
        return np.concatenate([pixels, np.zeros_like(pixels[..., :1])], axis=-1)
    return pixels.copy()
