"""Finding CUDA devices, and the reasons why there are none; the whole of it on an emulated driver."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import litegpu
from litegpu.errors import DeviceError, OptionError
from litegpu.gpu.backends.cuda import opening as cuda
from litegpu.gpu.backends.cuda.doctor import DOCTOR
from litegpu.gpu.backends.cuda.opening import CudaDeviceInfo
from litegpu.model.builder import ModelBuilder

TESTS = Path(__file__).resolve().parents[3]
needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None or not sys.platform.startswith("linux"), reason="the emulator needs g++ on Linux"
)

A = CudaDeviceInfo(0, "NVIDIA H200", "GPU-0a1b2c3d-0000-1111-2222-333333333333", 90, 140 << 30)
B = CudaDeviceInfo(1, "NVIDIA L4", "GPU-ffb2c3d4-0000-1111-2222-333333333333", 89, 24 << 30)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (None, A), ("", A), (0, A), (1, B), ("1", B), ("cuda", A), ("cuda:1", B), ("l4", B), ("H200", A),
        (B.uuid, B), ("GPU-ffb2", B),
    ],
)  # fmt: skip
def test_devices_are_chosen_by_index_uuid_or_name(wanted: int | str | None, found: CudaDeviceInfo) -> None:
    assert cuda._choose([A, B], wanted) is found


@pytest.mark.parametrize("wanted", [2, "cuda:7", "GPU-99", "A100"])
def test_what_is_not_there_is_refused_with_what_is(wanted: int | str) -> None:
    with pytest.raises(DeviceError, match=r"NVIDIA H200 \(cuda:0, compute capability 9\.0\); NVIDIA L4"):
        cuda._choose([A, B], wanted)


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    assert "pip install litegpu[cuda]" in str(cuda.available())
    with pytest.raises(DeviceError, match="bindings for Python are missing"):
        cuda.open_device()


def test_without_cuda_auto_takes_what_is_left_and_says_why_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setattr(cuda, "_warned", False)
    monkeypatch.setattr(cuda, "driver_is_installed", lambda: False)
    caplog.set_level(logging.WARNING, logger="litegpu")
    with pytest.raises(DeviceError, match="CUDA bindings"):
        litegpu.GpuDelegate(backend="cuda").open_device()
    monkeypatch.setattr("litegpu.gpu.backends.webgpu.device.open_device", lambda backend, name: (backend, name))
    asked: Any = litegpu.GpuDelegate().open_device()
    assert asked == ("auto", None)
    assert not caplog.records
    monkeypatch.setattr(cuda, "driver_is_installed", lambda: True)
    for _ in range(2):
        asked = litegpu.GpuDelegate(device="H200").open_device()
        assert asked == ("auto", "H200")
    (record,) = caplog.records
    assert "CUDA is not used" in record.getMessage() and "litegpu[cuda]" in record.getMessage()


@pytest.mark.parametrize("cause, told", [
    ("the NVIDIA driver is too old: it supports CUDA 11.4", "too old"), ("NVRTC, CUDA's compiler, is missing", "NVRTC"),
    ("the NVIDIA driver shows no GPU", "shows no GPU"),
])  # fmt: skip
@pytest.mark.parametrize("webgpu", [True, False])
def test_models_run_where_cuda_cannot(
    cause: str, told: str, webgpu: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On WebGPU, or on the CPU where that cannot be had either; a warning names each cause once; doctor repeats it."""

    def unusable() -> list[CudaDeviceInfo]:
        raise DeviceError(cause)

    def without_webgpu(backend: str, name: str | None) -> None:
        raise DeviceError("no WebGPU device was found")

    monkeypatch.setattr(cuda, "list_devices", unusable)
    monkeypatch.setattr(cuda, "_warned", False)
    monkeypatch.setattr(cuda, "driver_is_installed", lambda: True)
    if not webgpu:
        monkeypatch.setattr("litegpu.gpu.backends.webgpu.device.open_device", without_webgpu)
    builder = ModelBuilder()
    x = builder.input("x", (1, 5))
    builder.output(builder.op("ABS", [x], (1, 5)))
    values = np.linspace(-2, 2, 5, dtype=np.float32).reshape(1, 5)
    caplog.set_level(logging.WARNING, logger="litegpu")
    for _ in range(2):
        with litegpu.Interpreter(model_content=builder.build(), experimental_delegates=[litegpu.GpuDelegate()]) as one:
            one.allocate_tensors()
            one.set_tensor(one.get_input_details()[0]["index"], values)
            one.invoke()
            np.testing.assert_array_equal(one.get_tensor(one.get_output_details()[0]["index"]), np.abs(values))
    messages = [record.getMessage() for record in caplog.records]
    assert sum("CUDA is not used" in m and told in m for m in messages) == 1, messages
    if not webgpu:
        assert any("no WebGPU device was found" in m and "CPU" in m for m in messages), messages
    listing = DOCTOR.list_devices()
    assert listing.note == f"CUDA: not used: {cause}" and not listing.devices and listing.problem == cause


def test_names_of_devices() -> None:
    for device in ("cuda:x", "cuda:", "cuda1", "reference:0"):
        with pytest.raises(OptionError, match="cuda:<index>"):
            litegpu.load(b"", device)


def test_importing_litegpu_does_not_import_cuda() -> None:
    script = "import sys, litegpu; litegpu.GpuDelegate(); print([m for m in sys.modules if m.startswith('cuda')])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=_environment()
    )
    assert done.stdout.strip() == "[]"


@needs_compiler
def test_reasons_that_a_driver_gives() -> None:
    """No device, and a driver older than the compiler, as an emulated driver has them."""
    pytest.importorskip("cuda.bindings")
    script = """
        from cuda_emulator import emulator
        emulator.install()
        from litegpu.gpu.backends.cuda.opening import available, list_devices
        print(available() or list_devices()[1])
    """
    cases = {
        "Emulated GPU B (cuda:1, compute capability 9.0)": {},
        "the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES='')": {"CUDA_VISIBLE_DEVICES": ""},
        "the NVIDIA driver is too old for the installed cuda-bindings": {"EMULATED_DRIVER": "12040"},
        "the NVIDIA driver is too old: it supports CUDA 11.4; update the driver, to 525": {"EMULATED_DRIVER": "11040"},
    }
    for expected, variables in cases.items():
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            capture_output=True,
            text=True,
            check=True,
            env=_environment() | variables,
        )
        assert done.stdout.startswith(expected), done.stdout


#: Of the tests that need a kernel compiled for each case, those that together touch every line of the kernels.
QUICK = {
    "gpu/backends/cuda/test_binding.py": "",
    "gpu/backends/cuda/test_copies.py": "",
    "gpu/backends/cuda/test_session.py": "",
    "gpu/backends/test_locks.py": "",
    "tools/test_doctor.py": "",
    "gpu/backends/cuda/kernels/test_attention.py": "not 1000",
    "gpu/backends/cuda/kernels/test_convolution.py": "test_some or test_weights or (strided and op0)"
    " or (test_channels and taps1-12) or (test_windows and op2 and float16) or whole_numbers or infinities",
    "gpu/backends/cuda/kernels/test_depthwise.py": "(test_channels and (5-float or 17-float)) or finite or inputs"
    " or (test_windows and block1 and op1) or (test_taps and taps2 and float32)",
    "gpu/backends/cuda/kernels/test_lstm.py": "layouts or sequences or (divisions and (4-2 or 1-1))",
    "gpu/backends/cuda/kernels/test_matmul.py": "leading or infinities"
    " or (layouts and (True-False-float16 or False-True-float32))",
    "gpu/backends/cuda/kernels/test_matvec.py": "views or beside or test_some or (rows and 3-float)"
    " or (windows and (op2 or op4) and float16)",
    "gpu/backends/cuda/kernels/test_separable.py": "5-taps1 or 17-taps0 or 12-taps2 or (windows and op1) or nan",
    "gpu/backends/cuda/kernels/test_tensor_lstm.py": "layouts or (divisions and (0 or 2 or 4))",
    "gpu/backends/cuda/kernels/test_transpose.py": "(case1 and float16) or (case3 and float32) or (case5 and float16)",
}


@needs_compiler
@pytest.mark.skipif(bool(os.environ.get("LITEGPU_CUDA_EMULATOR")), reason="is running in it")
@pytest.mark.parametrize(
    "folder, chosen",
    [
        *QUICK.items(),
        pytest.param("gpu/lang", "", marks=pytest.mark.slow),
        pytest.param("gpu", "", marks=pytest.mark.slow),
    ],
)
def test_the_cuda_tests_pass_on_the_emulator(folder: str, chosen: str) -> None:
    """What needs no real GPU of the tests marked `cuda`."""
    pytest.importorskip("cuda.bindings")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "cuda and not slow", "-k", chosen, str(TESTS / folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=TESTS.parent, env=_environment() | {"LITEGPU_CUDA_EMULATOR": "1"}
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4000:] + done.stderr


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in [str(TESTS), *sys.path] if p)}
