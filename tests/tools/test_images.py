"""Pictures become tensors as models expect them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from litegpu.errors import OptionError
from litegpu.tools.evaluate.preprocessing import UnreadableImage, read_pixels
from litegpu.tools.evaluate.segmentation import read_mask
from litegpu.tools.images import Normalization, image_to_tensor, load_image, save_image, takes_image


def detail(shape: tuple[int, ...], dtype: type, quantization: tuple[float, int] = (0.0, 0)) -> dict[str, Any]:
    return {"name": "image", "shape": np.array(shape, np.int32), "dtype": dtype, "quantization": quantization}


PIXELS = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)


def test_float_inputs_are_in_minus_one_to_one_unless_told() -> None:
    tensor, how = image_to_tensor(PIXELS, detail((1, 8, 8, 3), np.float32))
    np.testing.assert_allclose(tensor[0], PIXELS / 127.5 - 1, atol=1e-6)
    assert tensor.dtype == np.float32 and "127.5" in how
    tensor, _ = image_to_tensor(PIXELS, detail((1, 8, 8, 3), np.float32), Normalization(0, 255))
    np.testing.assert_allclose(tensor[0], PIXELS / 255, atol=1e-6)


def test_eight_bit_inputs_take_pixels_or_the_quantized_normalization() -> None:
    unsigned, _ = image_to_tensor(PIXELS, detail((1, 8, 8, 3), np.uint8, (0.0078125, 128)))
    np.testing.assert_array_equal(unsigned[0], PIXELS)
    signed, _ = image_to_tensor(PIXELS, detail((1, 8, 8, 3), np.int8, (1 / 255, -128)))
    np.testing.assert_array_equal(signed[0], PIXELS.astype(int) - 128)
    # 0..1 with scale 1/255 and zero point -128 is pixel - 128 too.
    explicit, _ = image_to_tensor(PIXELS, detail((1, 8, 8, 3), np.int8, (1 / 255, -128)), Normalization(0, 255))
    np.testing.assert_array_equal(explicit, signed)


def test_resizing_batches_and_channels() -> None:
    tensor, how = image_to_tensor(PIXELS, detail((2, 16, 12, 3), np.float32))
    assert tensor.shape == (2, 16, 12, 3) and "8x8 resized to 12x16" in how
    np.testing.assert_array_equal(tensor[0], tensor[1])
    grey, _ = image_to_tensor(PIXELS, detail((1, 8, 8, 1), np.uint8))
    red, green, blue = (PIXELS[..., c].astype(float) for c in range(3))
    np.testing.assert_allclose(grey[0, ..., 0], 0.299 * red + 0.587 * green + 0.114 * blue, atol=1)
    four, _ = image_to_tensor(PIXELS, detail((1, 8, 8, 4), np.float32))
    assert four.shape == (1, 8, 8, 4) and (four[..., 3] == 0).all()


@pytest.mark.parametrize("shape", [(1, 640), (1, 49, 10, 64), (1, 1, 1, 3)])
def test_other_tensors_are_not_pictures(shape: tuple[int, ...]) -> None:
    assert not takes_image(detail(shape, np.float32))
    if len(shape) == 4:
        with pytest.raises(OptionError, match="does not look like a picture"):
            image_to_tensor(PIXELS, detail(shape, np.float32))


def test_files_round_trip_and_mistakes_are_named(tmp_path: Path) -> None:
    save_image(tmp_path / "a.png", PIXELS)
    np.testing.assert_array_equal(load_image(tmp_path / "a.png"), PIXELS)
    (tmp_path / "b.png").write_text("no image")
    with pytest.raises(OptionError, match="not an image"):
        load_image(tmp_path / "b.png")
    with pytest.raises(OptionError, match="No such file"):
        load_image(tmp_path / "c.png")
    with pytest.raises(OptionError, match="Cannot write"):
        save_image(tmp_path / "a.png" / "b.png", PIXELS)
    with pytest.raises(OptionError, match="--std is 0"):
        Normalization(0, 0)


def png(width: int, height: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG file of RGB pixels with the given chunks behind its header."""
    header = (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    framed = (
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in (header, *chunks, (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)


@pytest.mark.parametrize("depth", ["png", "tiff", "pgm"])
def test_pictures_of_sixteen_bits_keep_their_upper_eight(tmp_path: Path, depth: str) -> None:
    grey = np.arange(0, 65536, 512, dtype=np.uint16).reshape(8, 16)
    path = tmp_path / f"deep.{depth}"
    if depth == "pgm":
        path.write_bytes(b"P5 16 8 65535\n" + grey.astype(">u2").tobytes())
    else:
        Image.fromarray(grey).save(path)
    expected = np.repeat((grey >> 8).astype(np.uint8)[..., None], 3, axis=-1)
    np.testing.assert_array_equal(load_image(path), expected)
    np.testing.assert_array_equal(read_pixels(str(path)), expected)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        pytest.param(png(60000, 60000, (b"IDAT", zlib.compress(b"\0"))), "decompression bomb", id="huge"),
        pytest.param(png(8, 8, (b"zTXt", b"k\0\0" + zlib.compress(bytes(8 << 20)))), "too large", id="text"),
        pytest.param(np.ones((8, 8), np.float32), "real numbers of 32 bits", id="float"),
        pytest.param(np.full((8, 8), 1 << 20, np.int32), "whole numbers of 32 bits", id="int32"),
        pytest.param(png(8, 8, (b"IDAT", b"x")), "image file", id="damaged"),
        pytest.param(b"", "not an image", id="empty"),
    ],
)
def test_pictures_that_cannot_be_decoded_are_one_line(tmp_path: Path, content: bytes | np.ndarray, says: str) -> None:
    path = tmp_path / "hostile.tiff"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        Image.fromarray(content).save(path)
    with pytest.raises(OptionError, match=says) as failed:
        load_image(path)
    assert str(path) in str(failed.value) and "\n" not in str(failed.value)
    with pytest.raises(UnreadableImage, match=says):
        read_pixels(str(path))
    with pytest.raises(UnreadableImage, match="mask"):
        read_mask(path if isinstance(content, bytes) else tmp_path / "missing.png")
