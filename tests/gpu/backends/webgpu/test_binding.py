"""The user's own wgpu buffers and textures as inputs and outputs; images prepared on the GPU against NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import wgpu
from ai_edge_litert.interpreter import Interpreter as OfficialInterpreter

from litegpu import DelegateError, DeviceError, GpuDelegate, Interpreter, TensorError
from litegpu.gpu.delegate.images import ImageInput, image_reading
from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import Quantization, TensorType
from litegpu.model.writer import write_model

SHAPE = (1, 5, 7, 3)
USAGE = wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST


@pytest.fixture
def opened() -> Iterator[Any]:
    made: list[Interpreter] = []

    def open_(content: bytes, **options: Any) -> tuple[Interpreter, GpuDelegate, int, int]:
        delegate = GpuDelegate(backend="webgpu", **options)
        interpreter = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="strict")
        made.append(interpreter)
        interpreter.allocate_tensors()
        x, y = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
        return interpreter, delegate, x, y

    yield open_
    for interpreter in made:
        interpreter.close()


def model(type_: TensorType = TensorType.FLOAT32, q: Quantization | None = None, channels: int = 3) -> bytes:
    shape = (*SHAPE[:3], channels)
    b = ModelBuilder()
    b.output(b.op("RELU", [b.input("x", shape, type_, quantization=q)], shape, quantization=q, name="y"))
    return b.build()


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)


def buffer(device: Any, array: np.ndarray, usage: int = USAGE) -> Any:
    made = device.create_buffer(size=-(-array.nbytes // 4) * 4, usage=usage | wgpu.BufferUsage.COPY_DST)
    put(device, made, array)
    return made


def put(device: Any, target: Any, array: np.ndarray) -> None:
    device.queue.write_buffer(target, 0, array.tobytes().ljust(target.size, b"\0"))


def content(device: Any, source: Any, like: np.ndarray) -> np.ndarray:
    return np.frombuffer(device.queue.read_buffer(source), np.uint8)[: like.nbytes].view(like.dtype).reshape(like.shape)


def texture(device: Any, rgba: np.ndarray, format_: str = "rgba8unorm") -> Any:
    height, width, _ = rgba.shape
    usage = wgpu.TextureUsage.COPY_SRC | wgpu.TextureUsage.COPY_DST
    made = device.create_texture(size=(width, height, 1), format=format_, usage=usage)
    device.queue.write_texture({"texture": made}, rgba.tobytes(), {"bytes_per_row": 4 * width}, (width, height, 1))
    return made


@pytest.mark.parametrize("wait", ["passive", "do_not_wait"])
@pytest.mark.parametrize("validation", [False, True])
def test_both_sides(opened: Any, wait: str, validation: bool) -> None:
    interpreter, delegate, x, y = opened(model(), wait_type=wait, validation=validation)
    device = delegate.wgpu_device
    source, target = buffer(device, numbers(0)), buffer(device, numbers(1))
    delegate.bind_buffer_to_tensor(source, x)
    delegate.bind_buffer_to_tensor(target, y)
    for allow in (False, True):
        interpreter.set_allow_buffer_handle_output(allow)
        for seed in range(2):
            put(device, source, numbers(seed))
            interpreter.invoke()
            expected = np.maximum(numbers(seed), 0)
            np.testing.assert_array_equal(content(device, target, expected), expected)
            np.testing.assert_array_equal(interpreter.get_tensor(y), expected)
    assert interpreter.get_output_buffer(y) is target
    interpreter.set_allow_buffer_handle_output(False)
    for index, seed in ((x, 8), (y, 9)):
        delegate.bind_buffer_to_tensor(None, index)
        interpreter.set_tensor(x, numbers(seed))
        interpreter.invoke()
        np.testing.assert_array_equal(interpreter.get_tensor(y), np.maximum(numbers(seed), 0))
    np.testing.assert_array_equal(content(device, target, numbers(8)), np.maximum(numbers(8), 0))


def test_an_output_buffer_of_our_own(opened: Any) -> None:
    interpreter, delegate, x, y = opened(model())
    interpreter.set_tensor(x, numbers(0))
    interpreter.invoke()
    own = interpreter.get_output_buffer(y)
    np.testing.assert_array_equal(content(delegate.wgpu_device, own, numbers(0)), np.maximum(numbers(0), 0))
    interpreter.set_tensor(x, numbers(1))
    interpreter.invoke()
    np.testing.assert_array_equal(content(delegate.wgpu_device, own, numbers(1)), np.maximum(numbers(1), 0))


@pytest.mark.parametrize("type_", ["INT8", "UINT8"])
def test_quantized_tensors_take_their_own_type_and_float32(opened: Any, type_: str) -> None:
    interpreter, delegate, x, y = opened(model(TensorType[type_], quantized(0.5, 3)))
    stored = np.random.default_rng(0).integers(0, 40, SHAPE).astype(type_.lower())
    interpreter.set_tensor(x, stored)
    interpreter.invoke()
    expected = interpreter.get_tensor(y)

    def real(array: np.ndarray) -> np.ndarray:
        return ((array.astype(np.float32) - 3) * 0.5).astype(np.float32)

    device = delegate.wgpu_device
    for given in (stored, real(stored)):
        for wanted in (expected, real(expected)):
            target = buffer(device, np.zeros_like(wanted))
            delegate.bind_buffer_to_tensor(buffer(device, given), x)
            delegate.bind_buffer_to_tensor(target, y)
            interpreter.invoke()
            np.testing.assert_array_equal(content(device, target, wanted), wanted)
            np.testing.assert_array_equal(interpreter.get_tensor(y), expected)


def prepared(rgba: np.ndarray, image: ImageInput, shape: tuple[int, ...]) -> np.ndarray:
    """The same in NumPy: crop, bilinear resize with pixel centers at halves, mean and scale."""
    left, top, w, h = image.crop or (0, 0, rgba.shape[1], rgba.shape[0])
    x = rgba[top : top + h, left : left + w].astype(np.float32)
    order = {"rgb": [0, 1, 2, 3], "bgr": [2, 1, 0, 3]}[image.order]
    x = x[..., order][..., : shape[3]]

    def weights(n: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        at = np.clip((np.arange(n, dtype=np.float32) + 0.5) * np.float32(size / n) - 0.5, 0, size - 1)
        low = np.floor(at).astype(int)
        return low, np.minimum(low + 1, size - 1), (at - low).astype(np.float32)

    low, high, t = weights(shape[1], h)
    x = x[low] * (1 - t)[:, None, None] + x[high] * t[:, None, None]
    low, high, t = weights(shape[2], w)
    x = x[:, low] * (1 - t)[:, None] + x[:, high] * t[:, None]
    return ((x - np.asarray(image.mean, np.float32)) * np.asarray(image.scale, np.float32))[None]


IMAGES = (
    ImageInput(),
    ImageInput(crop=(1, 2, 8, 6), mean=(1, 2, 3), scale=(0.25, 0.5, 0.125)),
    ImageInput(crop=(3, 1, 7, 5), order="bgr", mean=0, scale=1),
)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("image", IMAGES, ids=["whole", "crop", "bgr"])
def test_images_equal_numpy(opened: Any, image: ImageInput, channels: int) -> None:
    if np.size(image.mean) > 1 and channels != 3:
        pytest.skip("three means")
    interpreter, delegate, x, _ = opened(model(channels=channels))
    device = delegate.wgpu_device
    rgba = np.random.default_rng(0).integers(0, 256, (11, 70, 4), np.uint8)  # rows that are no multiple of 256 bytes
    y = interpreter.get_output_details()[0]["index"]
    expected = np.maximum(prepared(rgba, image, (*SHAPE[:3], channels)), 0)
    swapped = np.ascontiguousarray(rgba[..., [2, 1, 0, 3]])
    sized = ImageInput((70, 11), image.crop, image.mean, image.scale, image.order)
    for source, how in (
        (texture(device, rgba), image),
        (texture(device, swapped, "bgra8unorm"), image),
        (buffer(device, rgba), sized),
    ):
        delegate.bind_buffer_to_tensor(source, x, image=how)
        interpreter.invoke()
        np.testing.assert_allclose(interpreter.get_tensor(y), expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())


def test_images_equal_the_official_runtime_for_quantized_models(opened: Any) -> None:
    interpreter, delegate, x, y = opened(model(TensorType.UINT8, quantized(0.0078125, 128)))
    image, rgba = IMAGES[0], np.random.default_rng(0).integers(0, 256, (9, 12, 4), np.uint8)
    delegate.bind_buffer_to_tensor(texture(delegate.wgpu_device, rgba), x, image=image)
    interpreter.invoke()
    tensor = delegate.prepared[0].partition.subgraph.tensors[x]
    official = OfficialInterpreter(model_content=bytes(write_model(image_reading(tensor, 12, 9, image))))
    official.allocate_tensors()
    official.set_tensor(official.get_input_details()[0]["index"], rgba[None])
    official.invoke()
    expected = official.get_tensor(official.get_output_details()[0]["index"])
    difference = interpreter.get_tensor(y).astype(int) - np.maximum(expected, 128)
    assert np.abs(difference).max() <= 1, "a rounding apart at most"


def test_wrong_bindings_name_the_tensor(opened: Any) -> None:
    delegate = GpuDelegate(backend="webgpu")
    device = delegate.wgpu_device
    with pytest.raises(DelegateError, match="tensor 0 cannot be bound before"):
        delegate.bind_buffer_to_tensor(buffer(device, numbers(0)), 0)
    interpreter, delegate, x, y = opened(model())

    def refused(kind: type[Exception], match: str, resource: Any, index: int = x, **how: Any) -> None:
        with pytest.raises(kind, match=match):
            delegate.bind_buffer_to_tensor(resource, index, **how)

    name = r"tensor 0 \('x'\).*"
    refused(TensorError, name + "ndarray object", numbers(0))
    refused(TensorError, name + "420 bytes.*the buffer has 280", buffer(device, numbers(0)[..., :2]))
    refused(TensorError, name + "COPY_SRC", buffer(device, numbers(0), wgpu.BufferUsage.STORAGE))
    storage = device.create_buffer(size=420, usage=wgpu.BufferUsage.COPY_SRC)
    refused(TensorError, r"tensor 1 \('y'\).*COPY_DST", storage, y)
    refused(DeviceError, name + "stream", buffer(device, numbers(0)), stream=1)
    refused(TensorError, name + "size", buffer(device, numbers(0)), image=ImageInput())
    rgba = np.zeros((9, 12, 4), np.uint8)
    refused(TensorError, name + "crop", texture(device, rgba), image=ImageInput(crop=(8, 0, 5, 5)))
    refused(TensorError, r"tensor 1 \('y'\).*GPUTexture", texture(device, rgba), y)
    usage = wgpu.TextureUsage.COPY_SRC
    floats = device.create_texture(size=(4, 4, 1), format="r32float", usage=usage)
    refused(TensorError, name + "r32float", floats)
    other = wgpu.gpu.request_adapter_sync().request_device_sync()
    refused(DeviceError, name + "another wgpu device.*wgpu_device", buffer(other, numbers(0)))
    destroyed = buffer(device, numbers(0))
    delegate.bind_buffer_to_tensor(destroyed, x)
    destroyed.destroy()
    with pytest.raises(TensorError, match=name + "destroyed"):
        interpreter.invoke()
    delegate.bind_buffer_to_tensor(buffer(device, numbers(1)), x)
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(y), np.maximum(numbers(1), 0))
