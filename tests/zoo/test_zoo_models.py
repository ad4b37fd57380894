"""The zoo's models in the official runtime: expected ops, results that are healthy and depend on the picture."""

from __future__ import annotations

import numpy as np
import pytest
from agreement import official, run

from litegpu.errors import OptionError
from litegpu.model import read_model
from litegpu.zoo import build_model, draw_scene
from litegpu.zoo.mobilenet import scaled
from litegpu.zoo.network import Network, _rounded
from litegpu.zoo.ssd import ssd_feature_maps

# Small variants, so that the tests are quick; (options, number of ops, output shapes).
SMALL = {
    "mobilenet_v1": (dict(width=0.25, resolution=96, classes=50), 31, [(1, 50)]),
    "deeplab_v3": (dict(width=0.25, resolution=97), 70, [(1, 97, 97, 21)]),
    "ssd_mobilenet_v1": (dict(width=0.25, resolution=160), 64, [(1, 10, 4), (1, 10), (1, 10), (1,)]),
    "posenet": (dict(width=0.25, resolution=129), 31, [(1, 5, 5, 17), (1, 5, 5, 34), (1, 5, 5, 32), (1, 5, 5, 32)]),
}
# Weights and biases of one network, each with a DEQUANTIZE.
FLOAT16_DEQUANTIZES = {"mobilenet_v1": 56, "deeplab_v3": 110}


def infer(content: bytes, seed: int) -> list[np.ndarray]:
    interpreter = official(content)
    batch, height, width, _ = interpreter.get_input_details()[0]["shape"]
    picture = draw_scene(int(height), int(width), seed).astype(np.float32) / 127.5 - 1
    return run(interpreter, [np.repeat(picture[None], batch, axis=0)])


@pytest.mark.parametrize("name", SMALL)
def test_outputs_are_healthy_and_depend_on_the_picture(name: str) -> None:
    options, ops, shapes = SMALL[name]
    content = build_model(name, **options)
    assert len(read_model(content).main.operators) == ops
    first, second = infer(content, 100), infer(content, 101)
    assert [a.shape for a in first] == shapes
    for a, b in zip(first, second, strict=True):
        assert np.isfinite(a).all() and np.isfinite(b).all()
        if a.size > 1:
            assert a.std() > 1e-3, "constant output"
            # Scores of detections are sorted, so those of two pictures resemble each other.
            assert np.linalg.norm(a - b) > 0.01 * np.linalg.norm(a), "the output hardly depends on the picture"


def test_classifier_is_neither_uniform_nor_certain() -> None:
    options, _, _ = SMALL["mobilenet_v1"]
    (probabilities,) = infer(build_model("mobilenet_v1", **options), 100)
    assert probabilities.sum() == pytest.approx(1, abs=1e-4)
    assert 2 / 50 < probabilities.max() < 0.99


def test_segmentation_has_several_regions() -> None:
    options, _, _ = SMALL["deeplab_v3"]
    (scores,) = infer(build_model("deeplab_v3", **options), 100)
    classes, counts = np.unique(scores.argmax(axis=-1), return_counts=True)
    assert len(classes) >= 3 and counts.max() < 0.95 * counts.sum()


def test_detections_are_sorted_boxes() -> None:
    options, _, _ = SMALL["ssd_mobilenet_v1"]
    boxes, classes, scores, count = infer(build_model("ssd_mobilenet_v1", **options), 100)
    assert count[0] == 10
    assert (np.diff(scores[0]) <= 0).all() and 0.02 < scores.max() < 0.999
    assert (boxes[0, :, :2] <= boxes[0, :, 2:]).all()
    assert set(classes[0]) <= set(range(90))


def test_full_size_ssd_has_the_1917_anchors_of_the_trained_model() -> None:
    graph = read_model(build_model("ssd_mobilenet_v1")).main
    anchors = graph.tensors[graph.operators[-1].inputs[2]].data
    assert anchors is not None and anchors.shape == (1917, 4)
    # The first cells of the two finest maps, as in the published SSD MobileNet v1.
    np.testing.assert_allclose(anchors[0], [1 / 38, 1 / 38, 0.1, 0.1], atol=1e-6)
    np.testing.assert_allclose(anchors[1], [1 / 38, 1 / 38, 0.2 / 2**0.5, 0.2 * 2**0.5], atol=1e-6)
    np.testing.assert_allclose(anchors[1083 + 5], [0.05, 0.05, (0.35 * 0.5) ** 0.5, (0.35 * 0.5) ** 0.5], atol=1e-6)


@pytest.mark.parametrize("name", FLOAT16_DEQUANTIZES)
def test_float16_weights_stay_near_float32(name: str) -> None:
    options, ops, _ = SMALL[name]
    half = build_model(name, precision="float16", **options)
    single = build_model(name, **options)
    kinds = [operator.name for operator in read_model(half).main.operators]
    assert kinds.count("DEQUANTIZE") == len(kinds) - ops == FLOAT16_DEQUANTIZES[name]
    assert len(half) < 0.75 * len(single)
    for a, b in zip(infer(half, 100), infer(single, 100), strict=True):
        error = np.linalg.norm(a - b) / np.linalg.norm(b)
        assert 0 < error < 0.02, "rounding the weights must not change the result much"


def test_seeds_and_batches() -> None:
    options, _, _ = SMALL["mobilenet_v1"]
    assert build_model("mobilenet_v1", **options) == build_model("mobilenet_v1", **options)
    assert build_model("mobilenet_v1", seed=1, **options) != build_model("mobilenet_v1", **options)
    (three,) = infer(build_model("mobilenet_v1", batch=3, **options), 100)
    (one,) = infer(build_model("mobilenet_v1", **options), 100)
    assert three.shape == (3, 50)
    np.testing.assert_allclose(three, np.repeat(one, 3, axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mobilenet_v4", {}, "did you mean 'mobilenet_v3'"),
        ("posenet", {"classes": 3}, "no option 'classes'"),
        ("posenet", {"precision": "int8"}, "precision 'int8' is unknown"),
        ("posenet", {"batch": 0}, "batch is 0"),
        ("ssd_mobilenet_v1", {"max_detections": 0}, "max_detections is 0"),
    ],
)
def test_mistakes_are_named(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        build_model(name, **options)


def test_scenes_differ_by_seed() -> None:
    first, again, other = draw_scene(48, 64, 0), draw_scene(48, 64, 0), draw_scene(48, 64, 1)
    assert first.shape == (48, 64, 3) and first.dtype == np.uint8
    np.testing.assert_array_equal(first, again)
    assert np.abs(first.astype(int) - other).mean() > 10
    assert first.std() > 20


def test_ranges_are_closed_on_both_sides() -> None:
    for option, least, most in (("resolution", 32, 4096), ("classes", 2, 100_000), ("width", 0.05, 8)):
        for wrong in (least / 2, most * 2):
            with pytest.raises(OptionError, match=f"{option} is {wrong}; it must be from {least:g} to {most:g}"):
                build_model("mobilenet_v1", **{option: wrong})


def test_options_that_are_none_are_the_model_s_own() -> None:
    options, _, _ = SMALL["mobilenet_v1"]
    assert build_model("mobilenet_v1", seed=None, precision=None, **options) == build_model("mobilenet_v1", **options)


def test_feature_maps_are_halved_upward() -> None:
    assert ssd_feature_maps(300, 300) == [(19, 19), (10, 10), (5, 5), (3, 3), (2, 2), (1, 1)]
    assert ssd_feature_maps(160, 481) == [(10, 31), (5, 16), (3, 8), (2, 4), (1, 2), (1, 1)]


def test_channels_are_eight_at_least() -> None:
    assert [scaled(64, width) for width in (0.05, 0.125, 0.15, 0.5, 2)] == [8, 8, 9, 32, 128]


def test_what_is_measured_is_rounded_before_it_reaches_the_file() -> None:
    """Last bits differ between CPUs."""
    values = np.random.default_rng(0).normal(0, 100, 1000)
    rounded = _rounded(values)
    np.testing.assert_allclose(rounded, values, rtol=2**-10)
    fraction = np.frexp(rounded)[0] * 1024
    np.testing.assert_array_equal(fraction, np.round(fraction))
    np.testing.assert_array_equal(rounded, _rounded(rounded * np.float32(1 + 1e-6)))


def test_a_head_s_results_are_around_their_mean() -> None:
    """Without spread every channel has the mean that was asked for, whatever comes in."""
    net = Network("a head", seed=3)
    x = net.convolution(net.image("input", 32, 32), 16, 3, 2)
    y = net.head(x, 5, mean=-2.0, deviation=3.0, spread=0.0)
    np.testing.assert_allclose(y.sample.mean((0, 1, 2)), -2, atol=0.05)
    net.output("y", y.tensor)
    scores = np.concatenate([infer(net.build(), seed)[0] for seed in range(4)])  # the pictures that it was measured on
    np.testing.assert_allclose(scores, y.sample, rtol=1e-3, atol=1e-3)
    assert 1 < y.sample.std() < 3.5
