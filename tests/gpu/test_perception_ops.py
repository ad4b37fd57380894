"""The custom operators of MediaPipe's models against plain loops over their definitions, on the GPU and in NumPy."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import FLOAT32, assert_agrees, official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType
from flatbuffers import flexbuffers

import litegpu
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

F32 = TensorType.FLOAT32
SAME, VALID = 1, 2  # of the C struct
ACTIVATIONS = {0: lambda x: x, 1: lambda x: max(x, 0), 2: lambda x: min(max(x, -1), 1), 3: lambda x: min(max(x, 0), 6)}


def model(
    name: str, inputs: list[Any], outputs: list[tuple[int, ...]], options: bytes, version: int = 1
) -> ModelBuilder:
    """One operator; inputs that are shapes are runtime tensors, arrays are constants."""
    b = ModelBuilder()
    tensors = [b.constant(x) if isinstance(x, np.ndarray) else b.input(f"x{i}", x) for i, x in enumerate(inputs)]
    b.output(*b.custom(name, tensors, [(s, F32) for s in outputs], options, version=version))
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


REFUSED: dict[str, tuple[str, list[Any], list[tuple[int, ...]], bytes, str]] = {
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
    main = litegpu.read_model(model(operator, inputs, outputs, options).build(), verify=False).main
    given = check_operator(main, main.operators[0])
    assert given is not None and reason in given


@pytest.mark.parametrize("half", [False, True])
def test_kernels_compile_for_cuda(half: bool) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from litegpu.gpu.backends.cuda.compile import compile_kernels
    from litegpu.gpu.build import build_program
    from litegpu.gpu.lang import Features

    pool = pool_options(SAME, (2, 2), (3, 3))
    crop = dict(subset_idxs=[0, 1], left_rotation_idx=0, right_rotation_idx=1, output_height=4, output_width=4,
                target_rotation_radians=0.0, scale_x=1.0, scale_y=1.0)  # fmt: skip
    models = [
        model("MaxPoolingWithArgmax2D", [(1, 8, 8, 6)], [(1, 4, 4, 6)] * 2, pool),
        model("MaxUnpooling2D", [(1, 4, 4, 6)] * 2, [(1, 12, 12, 6)], pool),
        model("Resampler", [(1, 4, 4, 6), (1, 3, 3, 2)], [(1, 3, 3, 6)], b""),
        model("TransformTensorBilinear", [(1, 4, 4, 6), (1, 1, 4, 4)], [(1, 3, 3, 6)],
              bytes(flexbuffers.Dumps(dict(output_height=3, output_width=3)))),
        model("Landmarks2TransformMatrixV2", [(1, 2, 3)], [(1, 4, 4)], bytes(flexbuffers.Dumps(crop))),
    ]  # fmt: skip
    for b in models:
        main = b.graph()
        lowered = lower_partition(main, main.operators, main.inputs, main.outputs)
        program = build_program(lowered.graph, Features(float16=True, max_buffers=32), "cuda", half=half)
        assert all(compile_kernels(program.kernels, 80))


def test_hair_segmentation(models_dir: Path, images_dir: Path) -> None:
    """The whole network runs on the GPU, as XNNPACK and the evaluator in NumPy compute it, and marks one dark patch of
    the head: the band of the cap, which the network takes for hair."""
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
    assert_agrees(logits, run(official(path, OpResolverType.BUILTIN), [x])[0], FLOAT32, "logits of XNNPACK")
    mask = logits[0, ..., 1] > logits[0, ..., 0]
    assert 0.02 < mask.mean() < 0.06
    rows, columns = np.nonzero(mask)
    assert (rows > 50).all() and (rows < 250).all() and (columns > 140).all() and (columns < 390).all()
    assert mask[85:105, 200:320].mean() > 0.9


def sampled(image: np.ndarray, x: float, y: float) -> np.ndarray:
    """Bilinear with zeros around an image [H,W,C]."""
    total = np.zeros(image.shape[2])
    left, top = int(np.floor(x)), int(np.floor(y))
    for iy, ix in itertools.product((top, top + 1), (left, left + 1)):
        if 0 <= iy < image.shape[0] and 0 <= ix < image.shape[1]:
            total += image[iy, ix].astype(np.float64) * (1 - abs(x - ix)) * (1 - abs(y - iy))
    return total


@pytest.mark.parametrize("channels", [1, 4, 7])
def test_resampler(channels: int) -> None:
    require_gpu()
    rng = np.random.default_rng(3)
    image = rng.standard_normal((2, 5, 7, channels)).astype(np.float32)
    warp = (rng.random((2, 4, 6, 2)) * (9, 7) - 1.5).astype(np.float32)
    warp[0, 0, :3] = (-1, 0), (6, 4), (7, 5)
    warp[1, 0, :3] = (np.nan, 1), (1, np.inf), (-3e38, 2)
    wanted = np.zeros((2, 4, 6, channels), np.float32)
    for at in np.ndindex(2, 4, 6):
        if np.isfinite(warp[at]).all() and abs(warp[at]).max() < 1e6:
            wanted[at] = sampled(image[at[0]], *map(float, warp[at]))
    b = model("Resampler", [image.shape, warp.shape], [wanted.shape], b"")
    check(b, [image, warp], [wanted], "resampler")


MATRIX = np.array([[0.71, -0.37, 9, 1.63], [0.29, 0.83, -7, -0.77], [0, 0, 1, 0], [0, 0, 0, 1]], np.float32)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("name", ["TransformTensor", "TransformTensorBilinear"])
def test_transform_tensor(name: str, constant: bool) -> None:
    require_gpu()
    image = np.random.default_rng(4).standard_normal((1, 6, 9, 3)).astype(np.float32)
    m, size = MATRIX.astype(np.float64), (8, 5)
    if name == "TransformTensorBilinear":
        half = np.eye(4)
        half[:2, 3] = 0.5
        m = np.linalg.inv(half) @ m @ half
    wanted = np.zeros((1, *size, 3), np.float32)
    for y, x in np.ndindex(size):
        sx, sy = (m @ (x, y, 0, 1))[:2]
        if 0 <= sx <= 8 and 0 <= sy <= 5:
            wanted[0, y, x] = sampled(image[0], sx, sy)
    assert 0.3 < np.count_nonzero(wanted) / wanted.size < 0.9
    options = dict(output_height=8, output_width=5) if name[15:] else dict(mode="bilinear", output_size=[8, 5])
    matrix = MATRIX.reshape(1, 1, 4, 4)
    operands: list[Any] = [image.shape, matrix if constant else matrix.shape]
    b = model(name, operands, [wanted.shape], bytes(flexbuffers.Dumps(options)))
    check(b, [image] if constant else [image, matrix], [wanted], name)


@pytest.mark.parametrize(("shape", "dimensions", "version"), [
    ((1, 1, 1, 12), 3, 1), ((1, 1, 1, 12), 2, 1), ((1, 2, 3, 6), 3, 1), ((1, 5, 3), 3, 2), ((1, 7, 2), 2, 2),
])  # fmt: skip
def test_transform_landmarks(shape: tuple[int, ...], dimensions: int, version: int) -> None:
    require_gpu()
    points = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    scale = 2.5 if version == 1 else 1.0
    each = points.reshape(-1, dimensions).astype(np.float64)
    wanted = each.copy()
    for i, (x, y) in enumerate(each[:, :2]):
        wanted[i, :2] = MATRIX[:2, 0] * x + MATRIX[:2, 1] * y + MATRIX[:2, 3] * scale
    options = bytes(flexbuffers.Dumps(dict(dimensions=dimensions, scale=scale))) if version == 1 else b""
    b = ModelBuilder()
    x, m = b.input("landmarks", shape), b.input("matrix", (1, 1, 4, 4))
    b.output(*b.custom("TransformLandmarks", [x, m], [(shape, F32)], options, version=version))
    check(b, [points, MATRIX.reshape(1, 1, 4, 4)], [wanted.reshape(shape).astype(np.float32)], f"{shape}")


def rotation(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])


def shift(x: float, y: float) -> np.ndarray:
    return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]])


def as_4x4(m: np.ndarray) -> np.ndarray:
    wanted = np.zeros((4, 4))
    wanted[:2, :2], wanted[:2, 3], wanted[2, 2], wanted[3, 3] = m[:2, :2], m[:2, 2], 1, 1
    return wanted.astype(np.float32)[None]


@pytest.mark.parametrize("seed", range(4))
def test_landmarks_to_transform_matrix(seed: int) -> None:
    """Against products of matrices, as the definition has them, in float64."""
    require_gpu()
    points = (np.random.default_rng(seed).random((11, 3)) * 200).astype(np.float32)
    left, right, subset = 3, 8, [0, 2, 4, 5, 10]
    (lx, ly), (rx, ry) = points[left, :2].astype(np.float64), points[right, :2].astype(np.float64)

    def box(angle: float) -> tuple[np.ndarray, np.ndarray]:
        turned = (rotation(angle)[:2, :2] @ points[subset, :2].astype(np.float64).T).T
        return turned.min(0), turned.max(0)

    angle = -np.arctan((ry - ly) / (rx - lx))
    low, high = box(angle)
    centre = rotation(-angle)[:2, :2] @ (low + high) / 2 / 192 * 2 - 1
    scale = np.diag([*(1.5 * (high - low) / 192), 1])
    relative = np.diag([2 / (64 - 1), 2 / (32 - 1), 1]) + shift(-1, -1) - np.eye(3)
    absolute = np.diag([(256 - 1) / 2, (128 - 1) / 2, 1]) + shift((256 - 1) / 2, (128 - 1) / 2) - np.eye(3)
    first = absolute @ (rotation(-angle) + shift(*centre) - np.eye(3)) @ scale @ relative
    options = dict(input_hw=[128, 256], output_hw=[32, 64], dimensions=3, landmarks_range=192, subset=subset,
                   bbox_size_multiplier=1.5, left_rotation_idx=left, right_rotation_idx=right)  # fmt: skip
    b = model("Landmarks2TransformMatrix", [(1, 1, 1, 33)], [(1, 4, 4)], bytes(flexbuffers.Dumps(options)))
    check(b, [points.reshape(1, 1, 1, 33)], [as_4x4(first)], "version 1")

    angle = 0.4 - np.arctan2(ry - ly, rx - lx)
    low, high = box(angle)
    size = (high - low) * (1.2, 1.4) / (64, 32)
    centre = rotation(-angle)[:2, :2] @ (low + high) / 2
    second = shift(*centre) @ rotation(-angle) @ np.diag([*size, 1]) @ shift(-32, -16)
    options = dict(subset_idxs=subset, left_rotation_idx=left, right_rotation_idx=right, output_height=32,
                   target_rotation_radians=0.4, output_width=64, scale_x=1.2, scale_y=1.4)  # fmt: skip
    for name in ("Landmarks2TransformMatrixV2", "Landmarks2TransformMatrix"):  # MediaPipe's files have the latter
        b = model(name, [(1, 11, 3)], [(1, 4, 4)], bytes(flexbuffers.Dumps(options)), version=2)
        check(b, [points[None]], [as_4x4(second)], "version 2")
