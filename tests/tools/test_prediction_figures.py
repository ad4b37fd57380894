"""What `litegpu run` says and draws from: outputs, pictures and timings whose meaning is known."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import litegpu
from litegpu.errors import OptionError
from litegpu.model.builder import ModelBuilder
from litegpu.tools import model_run
from litegpu.tools.agreement import Agreement
from litegpu.tools.images import Normalization, image_to_tensor, load_image
from litegpu.tools.labels import require_fit
from litegpu.tools.predictions import interpret

IMAGE = (1, 64, 32, 3)


def details(arrays: list[np.ndarray], quantization: tuple[float, int] = (0.0, 0)) -> list[dict[str, Any]]:
    return [{"name": str(i), "dtype": a.dtype.type, "quantization": quantization} for i, a in enumerate(arrays)]


def meaning(*arrays: np.ndarray, labels: tuple[str, ...] = (), quantization: tuple[float, int] = (0.0, 0)) -> Any:
    return interpret(arrays, details(list(arrays), quantization), IMAGE, labels)


def test_the_five_highest_classes() -> None:
    scores = np.array([[10, 90, 30, 200, 90, 50, 60]], np.uint8)
    found = meaning(scores, quantization=(0.5, 10))
    assert [(e.index, e.score) for e in found.top] == [(3, 95), (1, 40), (4, 40), (6, 25), (5, 20)]


def test_shares_of_a_segmentation() -> None:
    mask = np.zeros((20, 20), int)
    mask[:5], mask[5:7] = 2, 1
    found = meaning(np.eye(4, dtype=np.float32)[mask][None], labels=("a", "b", "c"))
    assert [(e.label, e.score) for e in found.shares] == [("a", 0.65), ("c", 0.25), ("b", 0.1)]
    np.testing.assert_array_equal(found.mask, mask)


def test_detections_are_counted_sorted_and_shown_from_0_3() -> None:
    boxes = np.arange(20, dtype=np.float32).reshape(1, 5, 4)
    scores = np.array([[0.29, 0.9, 0.3001, 0.95, 0.99]], np.float32)
    found = meaning(boxes, np.array([[1, 2, 3, 4, 5]], np.float32), scores, np.array([4], np.float32))
    assert [b.found.index for b in found.boxes] == [4, 2, 3]
    best = found.best
    assert (best.top, best.left, best.bottom, best.right) == (12, 13, 14, 15) and best.found.score == np.float32(0.95)


def test_keypoints_of_heatmaps() -> None:
    heat = np.full((1, 5, 3, 17), -4, np.float32)
    offsets = np.zeros((1, 5, 3, 34), np.float32)
    heat[0, 2, 1, 0] = 1.5
    offsets[0, 2, 1, 0], offsets[0, 2, 1, 17] = 3.0, -2.0
    rest = np.zeros((1, 5, 3, 32), np.float32)
    nose = meaning(heat, offsets, rest, rest).keypoints[0]
    assert nose.name == "nose" and nose.score == pytest.approx(1 / (1 + math.exp(-1.5)))
    assert nose.y == pytest.approx((2 * 63 / 4 + 3) / 64) and nose.x == pytest.approx((1 * 31 / 2 - 2) / 32)


@pytest.mark.parametrize(
    ("low", "high", "wanted"), [(-1.0, 1.0, (0, 128, 255)), (0.0, 1.0, (0, 128, 255)), (0.0, 200.0, (0, 100, 200))]
)
def test_the_range_of_a_picture(low: float, high: float, wanted: tuple[int, int, int]) -> None:
    picture = np.full((1, 20, 20, 3), low, np.float32)
    picture[0, 0, 0], picture[0, 0, 1] = (low + high) / 2, high
    found = meaning(picture).pixels
    assert (found[5, 5, 0], found[0, 0, 0], found[0, 1, 0]) == wanted


# Pictures


def tensor_of(pixels: np.ndarray, dtype: type, channels: int, quantization: Any, normalization: Any = None) -> Any:
    shape = np.array([1, *pixels.shape[:2], channels])
    detail = {"name": "x", "shape": shape, "dtype": dtype, "quantization": quantization}
    return image_to_tensor(pixels, detail, normalization)[0][0]


def test_channels_and_types() -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[0, :3] = [[255, 0, 0], [0, 255, 0], [0, 0, 255]]
    assert tensor_of(pixels, np.uint8, 1, (0.0, 0))[0, :4, 0].tolist() == [76, 150, 29, 0]  # ITU-R 601
    assert tensor_of(pixels, np.int8, 3, (0.5, 7))[0, :2].tolist() == [[127, -128, -128], [-128, 127, -128]]
    assert tensor_of(pixels, np.int8, 4, (0.5, 7))[0, 0].tolist() == [127, -128, -128, 7], "the real number zero"
    assert tensor_of(pixels, np.float32, 4, (0.0, 0))[0, 0].tolist() == [1, -1, -1, 0]
    normalized = tensor_of(pixels, np.int8, 3, (2.0, 5), Normalization(55.0, 4.0))
    assert normalized[0, 0].tolist() == [30, -2, -2]  # 50 / 2 + 5, and -13.75 / 2 + 5 rounded


def test_pictures_are_turned_upright(tmp_path: Path) -> None:
    pixels = np.zeros((4, 6, 3), np.uint8)
    pixels[0] = 200
    exif = Image.Exif()
    exif[0x0112] = 6  # shown a quarter turn clockwise
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    found = load_image(tmp_path / "a.png")
    assert found.shape == (6, 4, 3) and (found[:, -1] == 200).all() and (found[:, 0] == 0).all()


def test_labels_of_one_class_more_or_less() -> None:
    for count in (9, 10, 11):
        require_fit(["x"] * count, 10, "l")
    for count in (8, 12):
        with pytest.raises(OptionError, match="names"):
            require_fit(["x"] * count, 10, "l")


# Runs


def timed(seconds: list[float], monkeypatch: pytest.MonkeyPatch) -> model_run.RunTiming:
    """Of a model whose inferences take so long, the last again and again."""
    calls = iter([*seconds, *seconds[-1:] * 100])
    monkeypatch.setattr(model_run, "_timed", lambda _: next(calls))
    interpreter = SimpleNamespace(get_input_details=list, get_output_details=list, invoke=None)
    opened = SimpleNamespace(loaded=SimpleNamespace(interpreter=interpreter), prepare=0.75)
    return model_run._Opened.infer(opened, [[], []])[1]  # type: ignore[arg-type]


def test_timings_are_of_the_runs_after_the_first_of_each_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [0.5, 0.25, 0.01, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.1]
    found = timed(quick, monkeypatch)
    assert found == model_run.RunTiming(prepare=0.75, first=0.5, median=0.02, fastest=0.01, runs=10)
    assert timed([2.0, 2.0, 1.25], monkeypatch).runs == 3  # until 3 s are over


def test_options_reach_the_models_which_are_closed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    b = ModelBuilder()
    b.output(b.op("TANH", [b.input("x", (1, 4))], (1, 4)))
    (tmp_path / "m.tflite").write_bytes(b.build())
    given: list[dict[str, Any]] = []
    models: list[Any] = []
    real = litegpu.load

    def load(model: Any, **options: Any) -> Any:
        given.append(options)
        models.append(real(model, **options))
        return models[-1]

    monkeypatch.setattr(model_run, "load", load)
    report = model_run.run_model(tmp_path / "m.tflite", device="cpu", num_threads=3)
    assert given == [{"device": "cpu", "precision": "float32", "num_threads": 3}] and report.cpu is None
    with pytest.raises(litegpu.InvokeError, match="closed"):
        models[0](np.zeros((1, 4), np.float32))
    assert Counter(i.source for i in report.inferences) == {"made-up input": 1}


def test_the_worst_of_all_outputs_counts() -> None:
    inferences = [
        SimpleNamespace(agreement=tuple(Agreement("y", e, 0, False, True) for e in errors), hybrid=())
        for errors in ((1e-7, 3e-6), (2e-3, 1e-8))
    ]
    timing = model_run.RunTiming(0, 0, 0, 0, 1)
    report = model_run.RunReport("m", "", "", False, "float32", None, timing, timing, tuple(inferences))  # type: ignore[arg-type]
    assert report.worst == 2e-3 and not report.agrees
