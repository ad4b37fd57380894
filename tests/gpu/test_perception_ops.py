"""The custom operators of MediaPipe's models against plain loops over their definitions, on the GPU and in NumPy."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import FLOAT32, assert_agrees, on_gpu, require_gpu, run

import litegpu
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

F32 = TensorType.FLOAT32
SAME, VALID = 1, 2  # of the C struct
ACTIVATIONS = {0: lambda x: x, 1: lambda x: max(x, 0), 2: lambda x: min(max(x, -1), 1), 3: lambda x: min(max(x, 0), 6)}


def model(name: str, inputs: list[Any], outputs: list[tuple[int, ...]], options: bytes) -> ModelBuilder:
    """One operator; inputs that are shapes are runtime tensors, arrays are constants."""
    b = ModelBuilder()
    tensors = [b.constant(x) if isinstance(x, np.ndarray) else b.input(f"x{i}", x) for i, x in enumerate(inputs)]
    b.output(*b.custom(name, tensors, [(s, F32) for s in outputs], options))
    return b


def check(b: ModelBuilder, inputs: list[np.ndarray], wanted: list[np.ndarray], what: str) -> None:
    """The GPU and the NumPy evaluator both give `wanted`."""
    gpu = on_gpu(b.build())
    assert gpu.delegation_report().fully_delegated, gpu.delegation_report().summary()
    main = litegpu.read_model(b.build()).main
    lowered = lower_partition(main, main.operators, main.inputs, main.outputs)
    in_numpy = evaluate_graph(lowered.graph, inputs)
    for i, (got, known, want) in enumerate(zip(run(gpu, inputs), in_numpy, wanted, strict=True)):
        assert_agrees(got, want, FLOAT32, f"{what} output {i}")
        assert_agrees(known.reshape(want.shape), want, FLOAT32, f"{what} in NumPy, output {i}")


def pool_options(padding: int, stride: tuple[int, int], window: tuple[int, int], activation: int = 0) -> bytes:
    """A TfLitePoolParams: padding, stride and filter as (width, height), activation, computed padding."""
    return struct.pack("<6i4i", padding, stride[1], stride[0], window[1], window[0], activation, -1, -1, -1, -1)


def placed(n: int, k: int, s: int, padding: int) -> tuple[int, int]:
    """(output size, padding in front) of one axis."""
    out = -(-n // s) if padding == SAME else (n - k) // s + 1
    return out, max(0, (out - 1) * s + k - n) // 2 if padding == SAME else 0


def pooled(
    x: np.ndarray, window: tuple[int, int], stride: tuple[int, int], padding: int, activation: int
) -> list[np.ndarray]:
    b, h, w, c = x.shape
    (oh, top), (ow, left) = (placed(n, k, s, padding) for n, k, s in zip((h, w), window, stride, strict=True))
    values, places = np.zeros((b, oh, ow, c), np.float32), np.zeros((b, oh, ow, c), np.float32)
    for at in np.ndindex(values.shape):
        n, oy, ox, channel = at
        best, place = float(np.finfo(np.float32).min), 0
        for ky, kx in itertools.product(range(window[0]), range(window[1])):
            iy, ix = oy * stride[0] - top + ky, ox * stride[1] - left + kx
            if 0 <= iy < h and 0 <= ix < w and x[n, iy, ix, channel] > best:
                best, place = float(x[n, iy, ix, channel]), ky * window[1] + kx
        values[at], places[at] = ACTIVATIONS[activation](best), place + 0.1
    return [values, places]


POOLS = [  # shape, window, stride, activation
    ((1, 6, 8, 8), (2, 2), (2, 2), 0),
    ((2, 7, 5, 3), (2, 2), (2, 2), 1),
    ((1, 9, 11, 5), (3, 2), (2, 3), 2),
    ((3, 5, 5, 1), (3, 3), (1, 1), 3),
    ((1, 11, 7, 6), (5, 4), (3, 2), 0),
]


@pytest.mark.parametrize("padding", [SAME, VALID])
@pytest.mark.parametrize(("shape", "window", "stride", "activation"), POOLS)
def test_max_pooling_with_argmax(
    shape: tuple[int, ...], window: tuple[int, int], stride: tuple[int, int], activation: int, padding: int
) -> None:
    require_gpu()
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, shape).astype(np.float32)  # whole numbers: many are equal
    wanted = pooled(x, window, stride, padding, activation)
    b = model("MaxPoolingWithArgmax2D", [shape], [w.shape for w in wanted],
              pool_options(padding, stride, window, activation))  # fmt: skip
    check(b, [x], wanted, f"{shape} {window} {stride} {padding}")


def test_pooling_of_nan_and_infinity() -> None:
    require_gpu()
    x = np.ones((1, 4, 4, 3), np.float32)
    x[0, 0, 0], x[0, 0, 3, 1], x[0, 2:, 2:, 0], x[0, 3, 1, 2] = np.nan, -np.inf, -np.inf, np.inf
    wanted = pooled(x, (2, 2), (2, 2), VALID, 0)
    b = model("MaxPoolingWithArgmax2D", [x.shape], [(1, 2, 2, 3)] * 2, pool_options(VALID, (2, 2), (2, 2)))
    check(b, [x], wanted, "not finite")


def unpooled(
    values: np.ndarray, places: np.ndarray, out: tuple[int, ...], window: tuple[int, int], stride: tuple[int, int]
) -> np.ndarray:
    result = np.zeros(out, np.float32)
    front = [max(0, (values.shape[1 + i] - 1) * stride[i] + window[i] - out[1 + i]) // 2 for i in (0, 1)]
    for n, y, x, c in np.ndindex(values.shape):
        ky, kx = divmod(int(places[n, y, x, c]), window[1])
        oy, ox = y * stride[0] - front[0] + ky, x * stride[1] - front[1] + kx
        if 0 <= oy < out[1] and 0 <= ox < out[2]:
            result[n, oy, ox, c] = values[n, y, x, c]
    return result


UNPOOLS = [  # shape of the values, window, stride, height and width of the result
    ((1, 3, 4, 8), (2, 2), (2, 2), (6, 8)),
    ((2, 5, 3, 3), (3, 2), (3, 2), (15, 6)),
    ((1, 4, 5, 5), (3, 3), (2, 2), (8, 10)),  # windows overlap
    ((1, 3, 3, 1), (4, 5), (1, 2), (6, 9)),
    ((1, 3, 3, 6), (2, 2), (3, 3), (9, 8)),  # and leave gaps
]


@pytest.mark.parametrize(("shape", "window", "stride", "size"), UNPOOLS)
def test_max_unpooling(
    shape: tuple[int, ...], window: tuple[int, int], stride: tuple[int, int], size: tuple[int, int]
) -> None:
    require_gpu()
    rng = np.random.default_rng(1)
    values = rng.standard_normal(shape).astype(np.float32)
    places = rng.integers(0, window[0] * window[1], shape).astype(np.float32) + np.float32(0.1)
    out = (shape[0], *size, shape[3])
    b = model("MaxUnpooling2D", [shape, shape], [out], pool_options(SAME, stride, window))
    check(b, [values, places], [unpooled(values, places, out, window, stride)], f"{shape} {window} {stride}")


def transposed(
    x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, stride: tuple[int, int], padding: int
) -> np.ndarray:
    cut = [max(0, w.shape[1 + i] - (x.shape[1 + i] - 1) % stride[i] - 1) if padding == SAME else 0 for i in (0, 1)]
    full = [(x.shape[1 + i] - 1) * stride[i] + w.shape[1 + i] for i in (0, 1)]
    total = np.zeros((x.shape[0], *full, w.shape[0]))
    for n, y, xx in np.ndindex(x.shape[:3]):
        block = np.einsum("i,okji->kjo", x[n, y, xx].astype(np.float64), w.astype(np.float64))
        top, left = y * stride[0], xx * stride[1]
        total[n, top : top + w.shape[1], left : left + w.shape[2]] += block
    total += 0 if bias is None else bias
    (h, wd), (top, left) = ((full[i] - cut[i] for i in (0, 1)), (cut[i] // 2 for i in (0, 1)))
    return total[:, top : top + h, left : left + wd].astype(np.float32)


TRANSPOSED = [  # input, outputs, kernel, stride, bias
    ((1, 4, 5, 8), 2, (2, 2), (2, 2), True),
    ((2, 5, 3, 3), 5, (3, 3), (2, 2), True),
    ((1, 3, 7, 4), 1, (5, 2), (2, 3), False),
    ((1, 6, 2, 5), 9, (3, 4), (1, 1), True),
    ((1, 3, 3, 2), 3, (2, 1), (3, 2), True),
]


@pytest.mark.parametrize("padding", [0, SAME, VALID])
@pytest.mark.parametrize(("shape", "outputs", "kernel", "stride", "biased"), TRANSPOSED)
def test_convolution_transpose_bias(
    shape: tuple[int, ...], outputs: int, kernel: tuple[int, int], stride: tuple[int, int], biased: bool, padding: int
) -> None:
    require_gpu()
    rng = np.random.default_rng(2)
    x = rng.standard_normal(shape).astype(np.float32)
    weights = rng.standard_normal((outputs, *kernel, shape[3])).astype(np.float32)
    bias = rng.standard_normal(outputs).astype(np.float32) if biased else None
    wanted = transposed(x, weights, bias, stride, padding)
    options = struct.pack("<3i", padding, stride[1], stride[0])
    operands = [shape, weights] if bias is None else [shape, weights, bias]
    b = model("Convolution2DTransposeBias", operands, [wanted.shape], options)
    check(b, [x], [wanted], f"{shape} {kernel} {stride} {padding}")


REFUSED = {
    "options are missing": ("MaxPoolingWithArgmax2D", [(1, 4, 4, 1)], [(1, 2, 2, 1)] * 2, b"", "options of 0 bytes"),
    "stride": (
        "MaxUnpooling2D", [(1, 2, 2, 1)] * 2, [(1, 4, 4, 1)], pool_options(SAME, (0, 2), (2, 2)), "not positive"
    ),
    "padding": (
        "MaxPoolingWithArgmax2D", [(1, 4, 4, 1)], [(1, 2, 2, 1)] * 2, pool_options(0, (2, 2), (2, 2)), "neither SAME"
    ),
    "outputs": (
        "MaxPoolingWithArgmax2D", [(1, 4, 4, 1)], [(1, 2, 2, 1)], pool_options(SAME, (2, 2), (2, 2)), "1 outputs"
    ),
    "places": (
        "MaxUnpooling2D", [(1, 2, 2, 1), (1, 2, 3, 1)], [(1, 4, 4, 1)], pool_options(SAME, (2, 2), (2, 2)), "places"
    ),
    "size": (
        "Convolution2DTransposeBias", [(1, 2, 2, 1), np.ones((1, 2, 2, 1), np.float32)], [(1, 9, 4, 1)],
        struct.pack("<3i", SAME, 2, 2), "where the operator gives",
    ),
    "name": ("maxunpooling2d", [(1, 2, 2, 1)] * 2, [(1, 4, 4, 1)], b"", "custom operator maxunpooling2d is not among"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    operator, inputs, outputs, options, reason = REFUSED[name]
    main = litegpu.read_model(model(operator, inputs, outputs, options).build()).main
    given = check_operator(main, main.operators[0])
    assert given is not None and reason in given


def test_hair_segmentation(models_dir: Path, images_dir: Path) -> None:
    """The whole network runs on the GPU, as the evaluator in NumPy computes it, and marks one dark patch of the head:
    the band of the cap, which the network takes for hair."""
    require_gpu()
    from PIL import Image

    image = Image.open(images_dir / "grace_hopper.bmp").convert("RGB").resize((512, 512))
    x = np.zeros((1, 512, 512, 4), np.float32)  # the fourth channel is the mask of the last frame: none
    x[0, ..., :3] = np.asarray(image, np.float32) / 255
    path = models_dir / "hair_segmentation.tflite"
    gpu = on_gpu(path)
    assert gpu.delegation_report().fully_delegated
    (logits,) = run(gpu, [x])
    main = litegpu.read_model(path).main
    graph = lower_partition(main, main.operators, main.inputs, main.outputs).graph
    assert_agrees(logits, evaluate_graph(graph, [x])[0], FLOAT32, "logits")
    mask = logits[0, ..., 1] > logits[0, ..., 0]
    assert 0.02 < mask.mean() < 0.06
    rows, columns = np.nonzero(mask)
    assert (rows > 50).all() and (rows < 250).all() and (columns > 140).all() and (columns < 390).all()
    assert mask[85:105, 200:320].mean() > 0.9
