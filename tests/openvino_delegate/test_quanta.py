"""8-bit convolutions in whole numbers: which are changed, and that their results are the official runtime's."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import official, run
from ai_edge_litert.interpreter import OpResolverType
from openvino_cases import require_openvino

import litegpu
from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import TensorType
from litegpu.openvino import conversion, runtime
from litegpu.openvino.delegate import OpenVinoDelegate
from litegpu.openvino.quanta import in_quanta

SHAPE = (1, 24, 24, 8)


@pytest.fixture(autouse=True)
def _needs_openvino() -> None:
    require_openvino()


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many convolutions were changed, of each partition that is compiled."""
    found: list[int] = []
    monkeypatch.setattr(conversion, "in_quanta", lambda model: found.append(in_quanta(model)))
    return found


class Quantized(ModelBuilder):
    """Layers with the scales that a calibration may have found."""

    def __init__(self, type: TensorType = TensorType.INT8) -> None:
        super().__init__()
        self.random = np.random.default_rng(3)
        self.type = type
        self.zero = 128 if type == TensorType.UINT8 else 0

    def read(self) -> int:
        return self.input("x", SHAPE, self.type, quantization=quantized(0.031, self.zero - 3))

    def convolution(
        self, x: int, scale: float, out: tuple[float, int], *, depthwise: bool = False, activation: str = "NONE"
    ) -> int:
        """`scale`: of x."""
        shape = (1, 3, 3, 8) if depthwise else (8, 3, 3, 8)
        axis = 3 if depthwise else 0
        if self.type == TensorType.UINT8:
            scales = np.array([0.011], np.float32)
            stored = self.constant(
                self.random.integers(0, 256, shape).astype(np.uint8), quantization=quantized(0.011, 120)
            )
        else:
            scales = self.random.uniform(0.002, 0.02, 8).astype(np.float32)
            stored = self.constant(
                self.random.integers(-127, 128, shape).astype(np.int8), quantization=quantized(scales, 0, axis)
            )
        bias = self.random.integers(-9000, 9000, 8).astype(np.int32)
        b = self.constant(bias, quantization=quantized(scale * scales))
        options = {"stride_h": 1, "stride_w": 1, "padding": "SAME", "fused_activation_function": activation}
        options |= {"depth_multiplier": 1} if depthwise else {}
        name = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
        quantization = quantized(out[0], out[1] + self.zero)
        return self.op(name, [x, stored, b], SHAPE, options, type=self.type, quantization=quantization)


def both(content: bytes, seeds: int = 3) -> list[tuple[np.ndarray, np.ndarray]]:
    """(OpenVINO's, the official runtime's) outputs, of all stored numbers."""
    cpu = official(content, OpResolverType.BUILTIN)
    delegate = litegpu.load_delegate("openvino")
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    with litegpu.Interpreter(
        model_content=content, experimental_delegates=[delegate], fallback="strict"
    ) as interpreter:
        interpreter.allocate_tensors()
        for seed in range(seeds):
            random = np.random.default_rng(seed)
            detail = cpu.get_input_details()[0]
            limits = np.iinfo(detail["dtype"])
            x = random.integers(limits.min, limits.max + 1, detail["shape"]).astype(detail["dtype"])
            pairs += zip(run(interpreter, [x]), run(cpu, [x]), strict=True)
    return pairs


@pytest.mark.parametrize("activation", ["RELU6", "RELU"])
def test_a_chain_equals_the_official_runtime(activation: str, changed: list[int]) -> None:
    """On every element, however deep, but for what rounds to a number of another zero point at the end."""
    b = Quantized()
    x, scale, six = b.read(), 0.031, 6 / 255
    for i in range(7):
        x = b.convolution(x, scale, (six, -128), depthwise=i % 2 == 1, activation=activation)
        scale = six
    b.output(b.convolution(x, scale, (six, -128), activation=activation), b.convolution(x, scale, (0.9, 17)))
    pairs = both(b.build())
    assert changed == [9]
    for place, (got, want) in enumerate(pairs):
        assert np.unique(want).size > 20
        if place % 2 == 0:
            np.testing.assert_array_equal(got, want)
        else:
            assert np.abs(got.astype(int) - want.astype(int)).max() <= 1


@pytest.mark.parametrize("device", ["CPU", "AUTO"])
@pytest.mark.parametrize("exact", [False, True])
def test_processors_that_add_bytes_in_few_bits(monkeypatch: pytest.MonkeyPatch, exact: bool, device: str) -> None:
    """OpenVINO's kernels of 8 bits are not used there: its own property says so, and results are as near."""
    import openvino

    if exact and not runtime.adds_bytes_exactly():
        pytest.skip("this processor is one")
    seen: list[dict[str, Any]] = []

    class Core(openvino.Core):
        def set_property(self, name: str, properties: dict[str, Any]) -> None:
            seen.append(properties)
            super().set_property(name, properties)

    monkeypatch.setattr(openvino, "Core", Core)
    monkeypatch.setattr(runtime, "adds_bytes_exactly", lambda: exact)
    core = runtime._core.__wrapped__()
    monkeypatch.setattr(runtime, "core", lambda: core)
    b = Quantized()
    b.output(b.convolution(b.read(), 0.031, (0.05, -10)))
    content = b.build()
    x = np.random.default_rng(1).integers(-128, 128, SHAPE).astype(np.int8)
    with litegpu.load(content, delegate=OpenVinoDelegate(device=device)) as model:
        assert model.report.fully_delegated
        got = model(x).astype(int)
    with litegpu.load(content, "cpu") as model:
        want = model(x).astype(int)
    assert any("LP_TRANSFORMS_MODE" in one for one in seen) is not exact
    assert np.abs(got - want).max() <= 1


@pytest.mark.parametrize(
    ("machine", "text", "exact"),
    [
        ("x86_64", "processor: 0\nflags\t\t: fpu avx2 avx_vnni\n", True),
        ("x86_64", "flags : avx512f avx512_vnni", True),
        ("x86_64", "flags : avx2 avx512f", False),
        ("AMD64", None, False),
        ("aarch64", "Features : asimd", True),
    ],
)
def test_which_processors_add_bytes_exactly(
    monkeypatch: pytest.MonkeyPatch, machine: str, text: str | None, exact: bool
) -> None:
    def read(path: Path, **_: Any) -> str:
        if text is None:
            raise FileNotFoundError(path)
        return text

    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(Path, "read_text", read)
    assert runtime.adds_bytes_exactly.__wrapped__() is exact


def test_what_others_read_too_stays_in_real_numbers(changed: list[int]) -> None:
    b = Quantized()
    x = b.convolution(b.read(), 0.031, (0.05, -10))
    x = b.convolution(x, 0.05, (0.05, 3))
    y = b.convolution(x, 0.05, (0.05, 4))
    b.output(b.op("ADD", [x, y], SHAPE, type=TensorType.INT8, quantization=quantized(0.1, 0)))
    pairs = both(b.build())
    assert changed == [1], "the first; the second's result is read by the sum, and the third's input"
    assert all(np.abs(got.astype(int) - want.astype(int)).max() <= 1 for got, want in pairs)


def test_an_activation_narrower_than_the_range_stays(changed: list[int]) -> None:
    b = Quantized()
    x = b.convolution(b.read(), 0.031, (0.05, 0), activation="RELU6")  # -6.4 to 6.35
    b.output(x)
    pairs = both(b.build())
    assert changed == [0]
    assert all(np.abs(got.astype(int) - want.astype(int)).max() <= 1 for got, want in pairs)


def test_weights_with_a_zero_point_stay(changed: list[int]) -> None:
    b = Quantized(TensorType.UINT8)
    b.output(b.convolution(b.read(), 0.031, (0.3, 5)))
    pairs = both(b.build())
    assert changed == [0]
    assert all(np.abs(got.astype(int) - want.astype(int)).max() <= 1 for got, want in pairs)


@pytest.mark.parametrize("multiplier", [1, 2])
def test_groups_of_several_channels_stay(multiplier: int, changed: list[int]) -> None:
    b = Quantized()
    x = b.read()
    channels = 8 * multiplier
    scales = b.random.uniform(0.002, 0.02, channels).astype(np.float32)
    stored = b.random.integers(-127, 128, (1, 3, 3, channels)).astype(np.int8)
    inputs = [x, b.constant(stored, quantization=quantized(scales, 0, 3))]
    bias = b.random.integers(-900, 900, channels).astype(np.int32)
    inputs.append(b.constant(bias, quantization=quantized(0.031 * scales)))
    options = {"stride_h": 1, "stride_w": 1, "padding": "SAME", "depth_multiplier": multiplier}
    shape = (*SHAPE[:3], channels)
    quantization = quantized(0.1, 5)
    b.output(b.op("DEPTHWISE_CONV_2D", inputs, shape, options, type=TensorType.INT8, quantization=quantization))
    pairs = both(b.build())
    assert changed == [multiplier == 1]
    assert all(np.abs(got.astype(int) - want.astype(int)).max() <= 1 for got, want in pairs)


def test_models_of_floats_are_left(changed: list[int]) -> None:
    b = ModelBuilder()
    inputs = [b.input("x", SHAPE), b.constant(np.ones((4, 1, 1, 8), np.float32)), b.constant(np.ones(4, np.float32))]
    b.output(b.op("CONV_2D", inputs, (*SHAPE[:3], 4), {"stride_h": 1, "stride_w": 1}))
    with litegpu.load(b.build(), "openvino") as model:
        assert model(np.ones(SHAPE, np.float32)).max() == 9 and changed == [0]
