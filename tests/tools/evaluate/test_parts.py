"""The parts of an evaluation: preprocessing, decoding by workers, top-K, McNemar's test, records."""

from __future__ import annotations

import math
import os
import signal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tools.evaluate.image_set import resized_officially

from litegpu.errors import InvokeError, OptionError
from litegpu.tools.evaluate.confusion import confusion_matrix, confusion_picture
from litegpu.tools.evaluate.decoding import Decoder, decoded_batches
from litegpu.tools.evaluate.image_list import Item
from litegpu.tools.evaluate.paired import mcnemar_exact, paired
from litegpu.tools.evaluate.preprocessing import Preprocessing, UnreadableImage, bilinear, central_square
from litegpu.tools.evaluate.topk import by_class, highest, rank, top_k

RNG = np.random.default_rng(0)


def saved(folder: Path, pixels: np.ndarray, name: str = "image.png") -> str:
    Image.fromarray(pixels).save(folder / name)
    return str(folder / name)


def prepared(preprocessing: Preprocessing, path: str) -> np.ndarray:
    out = np.zeros(preprocessing.shape, preprocessing.dtype)
    preprocessing(path, out)
    return out


# ------------------------------------------------------------------------------------------------- preprocessing


@pytest.mark.parametrize("size", [(20, 33), (64, 64), (97, 50), (40, 40), (1, 1)])
@pytest.mark.parametrize("half_pixel", [False, True])
def test_bilinear_is_the_official_kernel(size: tuple[int, int], half_pixel: bool) -> None:
    pixels = RNG.integers(0, 256, (*size, 3), np.uint8)
    want = resized_officially(pixels, 40, 48, half_pixel)
    np.testing.assert_array_equal(bilinear(pixels, 40, 48, half_pixel), want)


@pytest.mark.parametrize(("height", "width"), [(100, 60), (61, 99), (37, 37), (5, 300)])
def test_crop_is_the_square_in_the_middle(height: int, width: int) -> None:
    places = np.moveaxis(np.mgrid[0:height, 0:width], 0, -1)
    square = central_square(places, 0.875)
    side = int(min(height, width) * 0.875 + 0.5)
    assert square.shape == (side, side, 2)
    assert tuple(square[0, 0]) == (int((height - side) / 2 + 0.5), int((width - side) / 2 + 0.5))


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8", "int8"])
def test_normalization_follows_the_type(dtype: str, tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (24, 30, 3), np.uint8)
    path = saved(tmp_path, pixels)
    resized = bilinear(pixels, 16, 16)
    got = prepared(Preprocessing(16, 16, dtype, crop=0), path)
    if dtype == "uint8":
        np.testing.assert_array_equal(got, np.trunc(resized).astype(np.uint8))
    elif dtype == "int8":
        np.testing.assert_array_equal(got, np.trunc(resized - 128).astype(np.int8))
    else:
        np.testing.assert_allclose(got, ((resized - 127.5) / 127.5).astype(dtype), atol=1e-3 if "16" in dtype else 1e-7)


def test_mean_and_deviation(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (16, 16, 3), np.uint8)
    path = saved(tmp_path, pixels)
    mean, deviation = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
    real = (pixels - np.array(mean)) / np.array(deviation)
    np.testing.assert_allclose(
        prepared(Preprocessing(16, 16, crop=0, mean=mean, deviation=deviation), path), real, atol=1e-5
    )
    options: dict[str, Any] = {"crop": 0, "mean": mean, "deviation": deviation, "scale": 0.02, "zero_point": 7}
    got = prepared(Preprocessing(16, 16, "int8", **options), path)
    assert np.abs(got - np.clip(np.rint(real / 0.02) + 7, -128, 127)).max() <= 1
    with pytest.raises(OptionError, match="no quantization"):
        Preprocessing(16, 16, "int8", mean=mean, deviation=deviation)
    with pytest.raises(OptionError, match="go together"):
        Preprocessing(16, 16, mean=mean)
    with pytest.raises(OptionError, match="above 0"):
        Preprocessing(16, 16, mean=(0.0,), deviation=(0.0,))


def test_raw_files_are_taken_as_they_are(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (8, 8, 3), np.uint8)
    (tmp_path / "a.rgb8").write_bytes(pixels.tobytes())
    np.testing.assert_array_equal(prepared(Preprocessing(8, 8, "uint8"), str(tmp_path / "a.rgb8")), pixels)
    with pytest.raises(UnreadableImage, match="192 bytes, but the model takes 9x9x3"):
        prepared(Preprocessing(9, 9, "uint8"), str(tmp_path / "a.rgb8"))


def test_other_ways_of_resizing(tmp_path: Path) -> None:
    path = saved(tmp_path, np.full((64, 64, 3), 200, np.uint8))
    for way in ("bilinear", "half-pixel", "antialias"):
        assert (prepared(Preprocessing(16, 16, "uint8", resize=way), path) == 200).all()
    with pytest.raises(UnreadableImage, match="56x56 after the crop"):
        prepared(Preprocessing(16, 16, "uint8", resize="none"), path)
    with pytest.raises(OptionError, match="'cubic' is unknown"):
        Preprocessing(16, 16, resize="cubic")


# ------------------------------------------------------------------------------------------------- decoding


class Numbers:
    """The number in a file's name, everywhere in a small array; 13 cannot be read, and 666 kills its process."""

    shape = (3,)
    dtype = "int64"

    def __call__(self, path: str, out: np.ndarray) -> dict[str, Any]:
        if path == "13":
            raise ValueError("bad luck")
        if path == "666":
            os._exit(3)
        out[...] = int(path)
        return {"half": int(path) / 2}


def numbers(count: int) -> list[Item]:
    return [Item(str(i), str(i), None) for i in range(count)]


@pytest.mark.parametrize(("count", "batch", "workers"), [(50, 8, 2), (9, 4, 3), (3, 8, 2), (20, 1, 0), (19, 6, 0)])
def test_batches_come_in_order(count: int, batch: int, workers: int) -> None:
    seen = 0
    for found in decoded_batches(numbers(count), Numbers(), batch, workers):
        assert found.array.shape == (batch, 3)
        assert len(found.rows) == min(batch, count - seen)
        for i, row in enumerate(found.rows):
            assert row.item.name == str(seen + i)
            if seen + i == 13:
                assert row.error == "bad luck"
            else:
                assert not row.error and row.facts == {"half": (seen + i) / 2}
                assert (found.array[i] == seen + i).all()
        seen += len(found.rows)
    assert seen == count


def test_nothing_to_decode() -> None:
    assert list(decoded_batches([], Numbers(), 4, 0)) == list(decoded_batches([], Numbers(), 4, 1)) == []


def test_a_dead_worker_is_an_error_and_no_hang() -> None:
    items = [*numbers(5), Item("666", "666", None), *numbers(5)]
    with pytest.raises(InvokeError, match="exit status 3"):
        list(decoded_batches(items, Numbers(), 2, 1))


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_a_decoder_that_stops_or_dies_is_replaced(how: signal.Signals) -> None:
    with Decoder(Numbers(), 4, 2, patience=1.0) as decoder:
        victim = None
        seen: list[int] = []
        for found in decoder.batches(numbers(400)):
            seen += [int(a[0]) for a, row in zip(found.array, found.rows, strict=False) if not row.error]
            assert not any(row.error for row in found.rows if row.item.path != "13")
            if victim is None:
                victim = decoder._team[0].process
                assert victim.pid is not None
                os.kill(victim.pid, how)
        assert seen == [n for n in range(400) if n != 13]
        assert victim is not None and victim is not decoder._team[0].process
        assert [row.item for found in decoder.batches(numbers(6)) for row in found.rows] == numbers(6)


def test_an_item_that_kills_its_decoder_is_an_error_and_those_beside_it_are_not() -> None:
    items = [*numbers(40), Item("666", "666", None), *numbers(60)[40:]]
    rows = [row for found in decoded_batches(items, Numbers(), 4, 2) for row in found.rows]
    assert [row.item for row in rows] == items
    assert [row.item.path for row in rows if row.error and row.item.path != "13"] == ["666"]
    assert "exit status" in next(row.error for row in rows if row.item.path == "666")


def test_leaving_early_ends_the_workers() -> None:
    batches = decoded_batches(numbers(100), Numbers(), 2, 2)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    import multiprocessing

    assert not multiprocessing.active_children()


# ------------------------------------------------------------------------------------------------- metrics


def test_highest_prefers_the_lower_index() -> None:
    assert highest(np.array([0.5, 0.9, 0.5, 0.9, np.nan, 0.1]), 5) == [1, 3, 0, 2, 5]
    assert highest(np.array([3, 250, 3], np.uint8), 2) == [1, 0]  # negated as numbers, not as bytes
    for seed in range(50):
        rng = np.random.default_rng(seed)
        scores = rng.integers(0, 20, 60).astype(np.float32)
        scores[rng.integers(0, 60, seed)] = np.nan
        assert highest(scores, 10) == np.argsort(-scores, kind="stable")[:10].tolist()


def test_rank_counts_labels_not_indices() -> None:
    labels = ["a", "b", "a", "c"]
    assert rank([1, 2, 0], "a", labels) == 1
    assert rank([1, 2, 0], "c", labels) == 3
    found = top_k([0, 1, 1, 3], 3)
    assert found.correct == (1, 3, 3) and found.accuracies == (0.25, 0.75, 0.75)
    assert top_k([], 2).accuracies == (0, 0)


def test_mistakes_of_a_class() -> None:
    found = by_class([0, 2, 2, 9], ["x", "x", "x", "y"], ["x", "y", "y", "z"])
    assert (found[0].label, found[0].images, found[0].top5) == ("x", 3, 1.0)
    assert found[0].top1 == pytest.approx(1 / 3) and found[0].mistaken_for == (("y", 2),)
    assert found[1].top5 == 0 and found[1].mistaken_for == (("z", 1),)


@pytest.mark.parametrize(("b", "c"), [(0, 0), (1, 0), (5, 0), (3, 9), (10, 10), (7, 8), (40, 61)])
def test_mcnemar_is_the_binomial_test(b: int, c: int) -> None:
    n = b + c
    tail = sum(Fraction(math.comb(n, k), 2**n) for k in range(min(b, c) + 1))
    assert mcnemar_exact(b, c) == pytest.approx(float(min(Fraction(1), 2 * tail)), rel=1e-9)
    assert mcnemar_exact(b, c) == mcnemar_exact(c, b)


def test_mcnemar_of_many_images() -> None:
    assert mcnemar_exact(20_000, 20_400) == pytest.approx(math.erfc(399 / math.sqrt(2 * 40_400)), rel=0.01)
    found = paired([True, True, False, False, True], [True, False, True, False, False])
    assert (found.both, found.only_first, found.only_second, found.neither) == (1, 2, 1, 1)
    assert found.difference == pytest.approx(-0.2)


def test_confusions_are_drawn() -> None:
    counts = {("a", "a"): 3, ("a", "b"): 1, ("b", "b"): 2}
    matrix = confusion_matrix(counts, ["a", "b"])
    assert matrix.tolist() == [[3, 1], [0, 2]]
    few = confusion_picture(matrix, ["a", "b"])
    many = confusion_picture(np.eye(1000, dtype=np.int64), [str(i) for i in range(1000)])
    assert few.dtype == many.dtype == np.uint8 and few.shape[2] == 3 and min(many.shape[:2]) >= 1000
