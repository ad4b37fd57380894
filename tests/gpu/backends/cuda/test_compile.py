"""NVRTC: every kernel of the models compiles for every architecture, equal texts once, errors with their log."""

from __future__ import annotations

import dataclasses
import functools
import threading
from pathlib import Path
from typing import Any

import cuda12
import numpy as np
import pytest
from byte_network import whole_network

from litegpu.errors import DeviceError
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import RESULT, Conv2D, DType, Graph, GraphBuilder, IntegerConv2D, IntegerDepthwiseConv2D, apply
from litegpu.gpu.lang.features import Features
from litegpu.gpu.lower import lower_partition
from litegpu.gpu.program import KernelCode
from litegpu.model import with_batch
from litegpu.model.reader import read_model
from litegpu.zoo import build_model

CUDA = Features(
    float16=True, subgroups=True, subgroup_size=32, timestamps=True, max_threads=1024, max_shared_bytes=48 << 10,
    max_buffers=64, max_binding_bytes=8 << 30, compute_units=132,
)  # fmt: skip
CAPABILITIES = (75, 80, 86, 89, 90, 100)
MODELS = ("ad01_fp32", "ad01_int8", "face_landmark", "kws_ref_model", "mobilenet_v1_1.0_224_random", "vww_96_float")
MORE_MODELS = (
    "deeplabv3_257_mv_gpu", "kws_ref_model_float32", "mobilenet_v2_1.0_224_quant", "mobilenet_v1_1.0_224_random_f16",
    "pose_detection", "pretrainedResnet", "style_transfer_f16_384",
)  # fmt: skip

#: Architectures with native kernels, and of the first of each generation models (with their batch) that use these, and
#: the kernels.
NATIVE_CAPABILITIES = (75, 80, 86, 89, 90, 100, 120)
ZOO = (("mobilenet_v1", 1), ("mobilenet_v1", 16), ("deeplab_v3", 1), ("posenet", 1))
EVERYWHERE = {"tensor_convolution", "tiled_convolution", "blocked_depthwise", "vector_convolution", "stem_convolution"}
GENERATIONS: dict[int, tuple[tuple[tuple[str, int], ...], set[str]]] = {
    75: (ZOO, {*EVERYWHERE, "byte_convolution", "byte_depthwise"}),
    80: (
        (*ZOO, ("mobilenet_v2", 16), ("vit_tiny", 4), ("resnext50", 4)),
        {
            *EVERYWHERE, "byte_convolution", "window_convolution", "separable_convolution", "inverted_convolution",
            "flash_attention", "grouped_convolution", "byte_depthwise",
        },
    ),
    90: (
        (("mobilenet_v1", 1), ("mobilenet_v2", 16), ("vit_tiny", 64), ("resnext50", 4), ("densenet121", 4)),
        {
            *EVERYWHERE, "specialized_convolution", "halo_convolution", "patch_convolution", "warpgroup_attention",
            "inverted_convolution", "byte_inverted_convolution", "grouped_convolution", "byte_depthwise", "wide_stem",
        },
    ),
}  # fmt: skip
#: Texts of each that are compiled for an architecture, by the major version of NVRTC; other ones for the next.
PER_KERNEL = {13: 2, 12: 1}

GOOD = 'extern "C" __global__ void good(float* x) { x[threadIdx.x] = NUMBER; }'


def kernel(source: str, name: str = "good", **changes: Any) -> KernelCode:
    return KernelCode(name, source, (32, 1, 1), ("read_write",), **changes)


@pytest.fixture(scope="module")
def nvrtc() -> Any:
    """The module of the compiler, or a skip."""
    try:
        from litegpu.gpu.backends.cuda import compile as cuda_compile

        cuda_compile.nvrtc_version()
    except Exception as error:  # of the loader of NVIDIA's libraries, or ImportError
        pytest.skip(f"no NVRTC (pip install litegpu[cuda]): {error}")
    return cuda_compile


def _compile_model(nvrtc: Any, path: Path, half: bool, capabilities: tuple[int, ...], batch: int = 1) -> None:
    graph = with_batch(read_model(path.read_bytes()), batch).main
    for capability in capabilities:
        if capability not in nvrtc.supported_capabilities():
            continue
        lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
        features = dataclasses.replace(CUDA, native="cuda", capability=capability)
        program = build_program(lowered.graph, features, "cuda", half=half)
        images = nvrtc.compile_kernels(program.kernels, capability, programmatic=True)
        assert len(images) == len(program.kernels) and all(image.startswith(b"\x7fELF") for image in images)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_every_kernel_of_a_model_compiles(nvrtc: Any, name: str, half: bool, models_dir: Path) -> None:
    _compile_model(nvrtc, models_dir / f"{name}.tflite", half, (75, 90))


def test_kernels_for_large_batches_compile(nvrtc: Any, models_dir: Path) -> None:
    _compile_model(nvrtc, models_dir / "mobilenet_v1_1.0_224_random.tflite", True, (80,), batch=8)


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("name", [*MODELS, *MORE_MODELS])
def test_every_kernel_compiles_for_every_architecture(nvrtc: Any, name: str, half: bool, models_dir: Path) -> None:
    _compile_model(nvrtc, models_dir / f"{name}.tflite", half, CAPABILITIES)


@pytest.fixture(params=sorted(PER_KERNEL, reverse=True))
def either(request: pytest.FixtureRequest, nvrtc: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """The major version of NVRTC that compiles from now on, or a skip."""
    major: int = request.param
    chosen: Any = nvrtc.nvrtc.chosen()
    if chosen.version[0] != major:
        chosen = cuda12.compiler()
    monkeypatch.setattr(nvrtc.nvrtc, "chosen", lambda: chosen)
    monkeypatch.setattr(nvrtc, "_images", {})
    return major


@functools.cache
def _native_kernels(capability: int) -> dict[str, list[KernelCode]]:
    """The different texts of every native kernel in the models of a generation, and in four graphs of their own."""
    models, _ = GENERATIONS[capability]
    block, _ = whole_network((64, 112, 112, 16), 96, IntegerDepthwiseConv2D((2, 2), (1, 1), (1, 1)), outputs=24)
    window, first = IntegerDepthwiseConv2D(padding=(1, 1)), ((3, 3), (2, 2), (0, 0))
    opening, _ = whole_network((64, 224, 224, 3), 32, window, outputs=16, first=first)
    graphs = [_wide_convolution(), _bytes(), block, opening]
    for name, batch in models:
        graph = read_model(build_model(name, batch=batch)).main
        graphs.append(lower_partition(graph, graph.operators, graph.inputs, graph.outputs).graph)
    features = dataclasses.replace(CUDA, native="cuda", capability=capability)
    found: dict[str, dict[str, KernelCode]] = {}
    for lowered in graphs:
        for half in (False, True):
            for code in build_program(lowered, features, "cuda", half=half).kernels:
                if "#define STORE(" in code.source or "#define FINISH(" in code.source:
                    found.setdefault(code.name, {})[code.source] = code
    return {name: list(codes.values()) for name, codes in found.items()}


def _wide_convolution() -> Graph:
    """A layer that is best done by blocks of pixels."""
    builder = GraphBuilder()
    x = builder.value((16, 128, 128, 64), DType.FLOAT32)
    weights = builder.constant(np.ones((64, 3, 3, 64), np.float32))
    out = builder.node(Conv2D(padding=(1, 1)), [x, weights], builder.value((16, 128, 128, 64), DType.FLOAT32))
    return builder.graph([x], [out])


def _bytes() -> Graph:
    """Layers of bytes: the first of a network, a window of zero point -3, points and a depthwise one."""
    builder, rng = GraphBuilder(), np.random.default_rng(0)
    first = x = builder.value((4, 64, 64, 3), DType.INT8)
    scaled = apply("nearest", apply("mul", apply("to_float32", RESULT), 0.01))
    for inputs, channels, taps in ((3, 32, 3), (32, 64, 3), (64, 128, 1)):
        weights = builder.constant(rng.integers(-9, 9, (channels, taps, taps, inputs)).astype(np.int8), narrow=True)
        out = builder.value((4, 64, 64, channels), DType.INT8)
        node = IntegerConv2D(padding=(taps // 2, taps // 2), zero_point=-3)
        x = builder.node(node, [x, weights], out, scaled)
    weights = builder.constant(rng.integers(-9, 9, (1, 3, 3, 128)).astype(np.int32))
    window = IntegerDepthwiseConv2D(padding=(1, 1), zero_point=-3)
    x = builder.node(window, [x, weights], builder.value((4, 64, 64, 128), DType.INT8), scaled)
    return builder.graph([first], [x])


@pytest.mark.sweep
@pytest.mark.parametrize("capability", GENERATIONS)
def test_every_native_kernel_is_in_the_sample(capability: int) -> None:
    assert set(_native_kernels(capability)) >= GENERATIONS[capability][1]


@pytest.mark.parametrize("capability", NATIVE_CAPABILITIES)
def test_native_kernels_compile(nvrtc: Any, either: int, capability: int) -> None:
    if capability not in nvrtc.supported_capabilities():
        pytest.skip(f"NVRTC {nvrtc.nvrtc_version()} has no code for {capability}")
    each = PER_KERNEL[either]
    turn = NATIVE_CAPABILITIES.index(capability) * each
    native = _native_kernels(capability if capability in GENERATIONS else 80)  # of others texts are the same
    sample = [codes[(turn + i) % len(codes)] for codes in native.values() for i in range(each)]
    images = nvrtc.compile_kernels(sample, capability, programmatic=True)
    assert all(image.startswith(b"\x7fELF") for image in images)


def test_equal_texts_are_compiled_once_also_by_threads_at_once(nvrtc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[Any, ...]] = []
    plain = nvrtc._compile

    def noted(*job: Any) -> Any:
        compiled.append(job)
        return plain(*job)

    monkeypatch.setattr(nvrtc, "_compile", noted)
    kernels = [kernel(GOOD.replace("NUMBER", str(n % 3))) for n in range(6)]
    results: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: results.append(nvrtc.compile_kernels(kernels, 80))) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(compiled) == 3
    assert all(r == results[0] for r in results) and len(set(results[0])) == 3


def test_errors_name_the_kernel_and_show_the_log(nvrtc: Any) -> None:
    bad = kernel('extern "C" __global__ void bad(float* x) { x[0] = nonsense; }', "bad")
    for _ in range(2):  # failures are not kept
        with pytest.raises(DeviceError, match=r"kernel 'bad' did not compile(.|\n)*bad.cu\(1\)(.|\n)*nonsense"):
            nvrtc.compile_kernels([kernel(GOOD.replace("NUMBER", "9")), bad], 80)


def test_options(nvrtc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LITEGPU_DEBUG", raising=False)
    assert "--gpu-architecture=sm_86" in nvrtc.compile_options(kernel(""), 86, True)
    assert "--define-macro=PROGRAMMATIC_LAUNCH" not in nvrtc.compile_options(kernel(""), 86, True)
    assert "--define-macro=PROGRAMMATIC_LAUNCH" in nvrtc.compile_options(kernel(""), 90, True)
    assert "--define-macro=PROGRAMMATIC_LAUNCH" not in nvrtc.compile_options(kernel(""), 90, False)
    own = dataclasses.replace(kernel(GOOD), options=("--gpu-architecture=sm_90a", "--define-macro=NUMBER=5"))
    assert [o for o in nvrtc.compile_options(own, 90) if "arch" in o] == ["--gpu-architecture=sm_90a"]
    (image,) = nvrtc.compile_kernels([own], 90)
    assert image
    monkeypatch.setenv("LITEGPU_DEBUG", "1")
    assert "--generate-line-info" in nvrtc.compile_options(kernel(""), 80)
    lines, plain = (nvrtc.compile_kernels([k], 80)[0] for k in (kernel(GOOD, options=("-DNUMBER=1",)),) * 2)
    monkeypatch.delenv("LITEGPU_DEBUG")
    assert lines == plain and b"debug_line" in lines
    assert b"debug_line" not in nvrtc.compile_kernels([kernel(GOOD, options=("-DNUMBER=1",))], 80)[0]


def test_devices_newer_and_older_than_the_compiler(nvrtc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    newest = nvrtc.supported_capabilities()[-1]
    assert nvrtc.architecture(newest + 40) == f"compute_{newest}"
    (image,) = nvrtc.compile_kernels([kernel(GOOD.replace("NUMBER", "2"))], newest + 40)
    assert b".target" in image and b".entry good" in image  # PTX, which a newer driver finishes
    with pytest.raises(DeviceError, match=r"compute capability 3\.5.*begins at"):
        nvrtc.architecture(35)
