"""Pictures become tensors as models expect them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu.errors import OptionError
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
        save_image(tmp_path / "absent" / "a.png", PIXELS)
    with pytest.raises(OptionError, match="--std is 0"):
        Normalization(0, 0)
