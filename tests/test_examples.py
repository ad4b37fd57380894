"""The examples, against what the same steps give through the host."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_segmentation_overlay(
    models_dir: Path, images_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drawing is what the scores, read back by the test alone, say; the example reads nothing but the drawing."""
    Image = pytest.importorskip("PIL.Image")
    path = ROOT / "examples" / "segmentation_overlay.py"
    spec = importlib.util.spec_from_file_location("segmentation_overlay", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    seen: dict[str, Any] = {}
    draw = example.draw

    def spy(device: Any, photograph: Any, scores: Any, *shape: int) -> Any:
        seen.update(scores=np.frombuffer(device.queue.read_buffer(scores), np.float32).reshape(shape))
        with monkeypatch.context() as patch:
            patch.setattr(type(device.queue), "read_buffer", None)
            return draw(device, photograph, scores, *shape)

    example.draw = spy
    example.main(str(models_dir / "deeplabv3_257_mv_gpu.tflite"), str(images_dir / "cat.bmp"), str(tmp_path / "o.png"))
    photograph = np.asarray(Image.open(images_dir / "cat.bmp").convert("RGB"))
    drawn = np.asarray(Image.open(tmp_path / "o.png"))
    height, width, _ = photograph.shape
    mask = seen["scores"].argmax(-1)
    rows, columns = np.arange(height) * mask.shape[0] // height, np.arange(width) * mask.shape[1] // width
    tinted = mask[rows][:, columns] != 0
    assert 0.2 < tinted.mean() < 0.6, "the cat"
    np.testing.assert_array_equal(drawn[~tinted], photograph[~tinted])
    cat = np.array([64, 0, 0])  # class 8
    expected = 0.4 * photograph[tinted] + 0.6 * cat
    assert np.mean(np.abs(drawn[tinted] - expected).max(-1) <= 1) > 0.99
