"""Models of one operator for the OpenVINO delegate: those of the sweeps, and what these leave out."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from agreement import official, run
from op_cases import CASES, OpCase
from quantized_cases import KINDS as TYPES
from quantized_cases import operators as quantized_operators
from quantized_cases import quantized_case

import litegpu
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import Quantization, TensorType
from litegpu.openvino.runtime import is_installed

#: What disagreement() says of a model that is taken and then not compiled, so that the CPU runs it.
LEFT = "refused when it is compiled"
OTHERS = ("QUANTIZE", "DEQUANTIZE", "SHAPE")


class _Everything(Mapping[str, str]):
    """A table with all operators for all kinds: what is refused then is refused by a rule."""

    def __getitem__(self, name: str) -> str:
        return " ".join(("float", *TYPES))

    def __iter__(self) -> Any:
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError


EVERYTHING = _Everything()


def require_openvino() -> None:
    """Skip the test where the package is not installed."""
    if not is_installed():
        pytest.skip("the package openvino is not installed: pip install litegpu[openvino]")


def operators(kind: str) -> list[str]:
    """Those that there are cases of."""
    own = list(CASES) if kind == "float" else quantized_operators(kind)
    own = [operator for operator in own if operator not in OTHERS]
    return [*own, *(OTHERS[:2] if kind != "float" else OTHERS[1:])]


def case_of(operator: str, kind: str, seed: int, rng: random.Random) -> OpCase | None:
    """None if there is none for the seed."""
    if operator in OTHERS:
        return _other(operator, kind, rng)
    return CASES[operator](rng) if kind == "float" else quantized_case(operator, kind, seed)


def disagreement(case: OpCase, **options: Any) -> str | None:
    """What differs between OpenVINO and the CPU, "" if nothing; None if the delegate refuses the operator, LEFT if
    that shows when it is compiled."""
    delegate = litegpu.load_delegate("openvino", options)
    with litegpu.Interpreter(
        model_content=case.content, experimental_delegates=[delegate], fallback="silent"
    ) as interpreter:
        interpreter.allocate_tensors()
        report = interpreter.delegation_report()
        if not report.delegated:
            return LEFT if any("does not compile" in str(n.reason) for n in report.nodes) else None
        got = run(interpreter, case.inputs)
    found = []
    quantized = any(d["quantization"][0] for d in official(case.content).get_tensor_details())
    for i, (mine, want) in enumerate(zip(got, run(official(case.content), case.inputs), strict=True)):
        problem = _difference(mine, want, quantized)
        found += [f"output {i}: {problem}"] if problem else []
    return "; ".join(found)


def _difference(got: np.ndarray, want: np.ndarray, quantized: bool) -> str:
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype} {got.shape} in place of {want.dtype} {want.shape}"
    a, b = np.asarray(got).astype(np.float64), np.asarray(want).astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return "what is not finite differs"
    if want.dtype.kind == "f":
        error = float(np.linalg.norm(a[finite] - b[finite])) / max(float(np.linalg.norm(b[finite])), 1e-9)
        return f"relative L2 {error:.1e}" if not error < 1e-5 else ""
    apart = np.abs(a - b)
    if quantized and want.dtype.kind in "iu":
        return f"{(apart > 1).mean():.0%} differ by up to {apart.max()}" if (apart > 1).mean() > 0.01 else ""
    return f"differs by up to {apart.max()}" if apart.any() else ""


def _other(operator: str, kind: str, rng: random.Random) -> OpCase:
    arrays = np.random.default_rng(rng.getrandbits(32))
    shape = tuple(rng.randint(1, 6) for _ in range(rng.randint(1, 4)))
    b = ModelBuilder()
    if operator == "SHAPE":
        x = b.input("x", shape)
        b.output(b.op("SHAPE", [b.op("TANH", [x], shape)], (len(shape),), {"out_type": "INT32"}, type=TensorType.INT32))
        return OpCase(operator, b.build(), [arrays.normal(size=shape).astype(np.float32)])
    if kind == "float":  # weights of 16 bits, widened
        weights = b.constant(arrays.normal(size=shape).astype(np.float16))
        x = b.input("x", shape)
        b.output(b.op("ADD", [x, b.op("DEQUANTIZE", [weights], shape)], shape))
        return OpCase("DEQUANTIZE of a constant", b.build(), [arrays.normal(size=shape).astype(np.float32)])
    type_ = TYPES[kind]
    mine = _quantization(type_, arrays)
    if operator == "DEQUANTIZE":
        b.output(b.op("DEQUANTIZE", [b.input("x", shape, type_, quantization=mine)], shape))
        return OpCase(operator, b.build(), [_stored(arrays, shape, type_)])
    if rng.random() < 0.5:
        x = b.input("x", shape)
        b.output(b.op("QUANTIZE", [x], shape, type=type_, quantization=mine))
        return OpCase(operator, b.build(), [arrays.normal(0, 2, shape).astype(np.float32)])
    x = b.input("x", shape, type_, quantization=_quantization(type_, arrays))
    b.output(b.op("QUANTIZE", [x], shape, type=type_, quantization=mine))
    return OpCase(f"{operator} of {kind}", b.build(), [_stored(arrays, shape, type_)])


def _quantization(type_: TensorType, arrays: np.random.Generator) -> Quantization:
    zero = {TensorType.INT8: arrays.integers(-20, 20), TensorType.UINT8: arrays.integers(100, 150)}.get(type_, 0)
    scale = 4 / 2**15 if type_ is TensorType.INT16 else 0.03
    return Quantization(np.array([scale * arrays.uniform(0.7, 1.4)], np.float32), np.array([zero], np.int64))


def _stored(arrays: np.random.Generator, shape: tuple[int, ...], type_: TensorType) -> np.ndarray:
    dtype: Any = np.dtype({TensorType.INT8: "int8", TensorType.UINT8: "uint8", TensorType.INT16: "int16"}[type_])
    limits = np.iinfo(dtype)
    return arrays.integers(limits.min, limits.max + 1, shape).astype(dtype)
