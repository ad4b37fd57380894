"""How tests compare an inference of litegpu with one of the official CPU runtime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as OfficialInterpreter
from ai_edge_litert.interpreter import OpResolverType

import litegpu

PLAIN = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
FLOAT32, FLOAT16 = 1e-5, 1e-2  # relative L2 error allowed


def require_gpu() -> None:
    """Skip the calling test where WebGPU finds no device at all."""
    from litegpu.gpu.backends.webgpu.device import open_device

    try:
        open_device("auto", None)
    except litegpu.DeviceError as error:
        if os.environ.get("LITEGPU_REQUIRE_GPU"):
            raise
        pytest.skip(f"no WebGPU device: {error}")


def require_cuda() -> None:
    """Skip the calling test where there is no CUDA device."""
    from litegpu.gpu.backends.cuda.opening import available

    reason = available()
    if reason is not None:
        pytest.skip(f"no CUDA device: {reason}")


def require_device(word: str) -> None:
    """Skip the calling test where that device, "cpu", "reference", "webgpu" or "cuda", is not there."""
    if word == "webgpu":
        require_gpu()
    if word == "cuda":
        require_cuda()


def relative_l2(got: np.ndarray, want: np.ndarray) -> float:
    """||got - want|| / ||want|| in float64; infinite as soon as one side alone has a NaN or an infinity somewhere."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    finite = np.isfinite(want)
    if not np.array_equal(got[~finite], want[~finite], equal_nan=True) or not np.isfinite(got[finite]).all():
        return float("inf")
    error, norm = np.linalg.norm(got[finite] - want[finite]), np.linalg.norm(want[finite])
    return float(error) if norm == 0 else float(error / norm)


def assert_agrees(got: np.ndarray, want: np.ndarray, tolerance: float, what: str = "") -> float:
    """Same shape and dtype; floats within the relative L2 tolerance, everything else equal. Returns the error."""
    assert got.shape == want.shape and got.dtype == want.dtype, f"{what}: {got.shape} {got.dtype}, not {want.shape}"
    if want.dtype.kind == "c":
        return assert_agrees(got.view(got.real.dtype), want.view(want.real.dtype), tolerance, what)
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want, err_msg=what)
        return 0.0
    error = relative_l2(got, want)
    assert error <= tolerance, f"{what}: relative L2 error {error:.2e} is above {tolerance:.0e}"
    return error


def random_inputs(interpreter: OfficialInterpreter, seed: int = 0) -> list[np.ndarray]:
    """Seeded inputs with the shapes and types of a model's inputs: floats from a normal distribution."""
    rng = np.random.default_rng(seed)
    arrays = []
    for detail in interpreter.get_input_details():
        shape, dtype = detail["shape"], np.dtype(detail["dtype"])
        values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        arrays.append(np.asarray(values).astype(dtype))
    return arrays


def official(content: bytes | Path, kind: OpResolverType = PLAIN) -> OfficialInterpreter:
    """The official runtime with the model allocated; without XNNPACK unless `kind` says so."""
    source = {"model_path": str(content)} if isinstance(content, Path) else {"model_content": content}
    interpreter = OfficialInterpreter(**source, experimental_op_resolver_type=kind)
    interpreter.allocate_tensors()
    return interpreter


def run(interpreter: OfficialInterpreter | litegpu.Interpreter, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """One inference; outputs in order."""
    for detail, array in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return [np.asarray(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()]


def on_gpu(content: bytes | Path, **options: Any) -> litegpu.Interpreter:
    """The model on litegpu with a GPU delegate (of WebGPU unless `options` name another backend; `resolver`
    is the CPU's), allocated."""
    options.setdefault("backend", "webgpu")
    resolver = options.pop("resolver", OpResolverType.AUTO)
    source: dict[str, Any] = {"model_path": str(content)} if isinstance(content, Path) else {"model_content": content}
    interpreter = litegpu.Interpreter(
        **source, experimental_delegates=[litegpu.GpuDelegate(**options)], experimental_op_resolver_type=resolver
    )
    interpreter.allocate_tensors()
    return interpreter


def assert_keeps_alike(
    content: bytes, inputs: list[list[np.ndarray]], tolerance: float = FLOAT32, **options: Any
) -> None:
    """Several inferences, a reset, and the first again, on the GPU and the CPU."""
    gpu, cpu = on_gpu(content, **options), official(content)
    assert gpu.delegation_report().fully_delegated, gpu.delegation_report().summary()
    for i, arrays in enumerate([*inputs, inputs[0], inputs[0]]):
        if i == len(inputs):
            gpu.reset_all_variables()
            cpu.reset_all_variables()
        for got, want in zip(run(gpu, arrays), run(cpu, arrays), strict=True):
            assert_agrees(got, want, tolerance, f"inference {i}")
