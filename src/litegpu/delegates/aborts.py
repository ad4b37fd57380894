"""Refuses operators whose scales or options abort official CPU kernels, where those are about to get them.

Such files are legal: TensorFlow's converter writes scales far apart for x - x. What a delegate runs is not asked about.
Each limit was found by running the official kernels in processes of their own (tests/delegates/test_aborts.py does).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from ai_edge_litert.interpreter import OpResolverType

from litegpu.errors import InvokeError, ModelError
from litegpu.model.hazards import check_as_on_the_cpu, is_of_xnnpack
from litegpu.model.types import Operator, Tensor, TensorType

#: The resolvers that come with the default delegate.
WITH_XNNPACK = (OpResolverType.AUTO, OpResolverType.BUILTIN)

_EIGHT_BIT = frozenset({TensorType.INT8, TensorType.UINT8})
_QUANTIZED = _EIGHT_BIT | {TensorType.INT16}
_SMALLEST_NORMAL = float(np.finfo(np.float32).tiny)


def refuse_aborting(
    operators: Sequence[Operator], tensors: Sequence[Tensor], outputs: Iterable[int], resolver: OpResolverType
) -> None:
    """Raises InvokeError naming the first of `operators` that a kernel of the official runtime would abort on.
    `outputs`: what is read of theirs beside what they read themselves.
    `resolver`: some abort in XNNPACK or the reference kernels alone."""
    read = {*outputs, *(i for o in operators for i in o.inputs)}
    for operator in operators:
        if is_of_xnnpack(operator):
            try:
                check_as_on_the_cpu(operator, tensors)
            except ModelError as error:
                raise InvokeError(f"Node {operator.index} ({operator.name}) cannot run on the CPU: {error}") from None
        unread = not read.issuperset(operator.outputs)
        if is_of_xnnpack(operator) and resolver in WITH_XNNPACK and unread:
            raise InvokeError(
                f"Node {operator.index} ({operator.name}) cannot run on the CPU: nothing reads one of its results, "
                "which XNNPACK crashes on. Let a delegate run it (GpuDelegate does), or make all its results outputs."
            )
        check = None if operator.is_custom else _CHECKS.get(operator.name)
        if check is None or resolver not in _WHERE.get(operator.name, tuple(OpResolverType)):
            continue
        problem = check(operator, tensors)
        if problem is not None:
            raise InvokeError(
                f"Node {operator.index} ({operator.name}) cannot run on the CPU: {problem}, which the official kernel "
                "aborts on. Let a delegate run it (GpuDelegate does), or convert the model with other scales."
            )


def _addition(operator: Operator, tensors: Sequence[Tensor]) -> str | None:
    """The kernel rescales both inputs to twice the larger scale with some bits to spare, and back to the output's. What
    it multiplies scales by is of single precision, the factors are of double."""
    used = [tensors[index] for index in (*operator.inputs, *operator.outputs)]
    type_ = used[1].type  # which the kernel gives the result, whatever the file says
    if type_ not in (_QUANTIZED if operator.name != "SQUARED_DIFFERENCE" else {TensorType.INT8}):
        return None
    if type_ is TensorType.INT16 and not any(_scale(tensor) for tensor in used):
        return None  # plain integers
    first, second, result = (np.float32(_scale(tensor)) for tensor in used)
    with np.errstate(all="ignore"):
        doubled = np.float64(np.float32(2) * max(first, second))
        if operator.name == "SQUARED_DIFFERENCE":
            shared = doubled * doubled / np.float64(np.float32(2**14) * result)
        else:
            shared = doubled / np.float64(np.float32(2 ** _spare_bits(used[1])) * result)
        each = [float(first / doubled), float(second / doubled)]
    may_exceed_one = operator.name == "SUB"
    if all(_is_multiplier(f) for f in each) and _is_multiplier(float(shared), may_exceed_one=may_exceed_one):
        return None
    return f"its scales {first:g} and {second:g} do not go with the scale {result:g} of its output"


def _spare_bits(result: Tensor) -> int:
    return 15 if result.type is TensorType.INT16 else 20


def _is_multiplier(factor: float, *, may_exceed_one: bool = False) -> bool:
    """Whether the kernels can write the factor as 31 bits and a shift: to the right, or, beyond one, to the left. Not
    even then one itself, for which they have neither."""
    if factor > 1:
        return may_exceed_one and math.isfinite(factor)
    return 0 < factor < 1 and (factor < 0.5 or round(factor * 2**31) < 2**31)


def _comparison(operator: Operator, tensors: Sequence[Tensor]) -> str | None:
    first = tensors[operator.inputs[0]]
    equality = operator.name in ("EQUAL", "NOT_EQUAL")
    rescaled = _QUANTIZED if equality and first.quantization is not None else _EIGHT_BIT  # int16 may be plain numbers
    for index in operator.inputs:
        scale = _scale(tensors[index])
        if tensors[index].type in rescaled and not _is_multiplier(scale, may_exceed_one=True):
            return f"'{tensors[index].name}' has scale {scale:g}"
    return None


def _quantization(operator: Operator, tensors: Sequence[Tensor]) -> str | None:
    for index in (*operator.inputs, *operator.outputs):
        tensor = tensors[index]
        several = tensor.quantization is not None and len(tensor.quantization.scales) > 1
        if tensor.type in _EIGHT_BIT and not several and _scale(tensor) < _SMALLEST_NORMAL:
            return f"'{tensor.name}' has scale {_scale(tensor):g}"
    return None


def _product(operator: Operator, tensors: Sequence[Tensor]) -> str | None:
    for index in (*operator.inputs, *operator.outputs):
        tensor = tensors[index]
        if tensor.quantization is not None and (tensor.quantization.scales == 0).any():
            return f"'{tensor.name}' has scale 0"
    return None


def _softmax(operator: Operator, tensors: Sequence[Tensor]) -> str | None:
    """The reference kernel writes beta times the scale as a multiplier beyond one."""
    source = tensors[operator.inputs[0]]
    beta = float(operator.options.get("beta", 0.0)) if operator.name == "SOFTMAX" else 1.0
    if source.type in _EIGHT_BIT and not beta * _scale(source) * 2**26 > 1:
        return f"its beta is {beta:g} where '{source.name}' has scale {_scale(source):g}"
    return None


def _scale(tensor: Tensor) -> float:
    """The one scale of a tensor, 0 if it has none or several."""
    quantization = tensor.quantization
    return float(quantization.scales[0]) if quantization is not None and len(quantization.scales) == 1 else 0.0


# Where only some of the official kernels abort.
_WHERE = {
    "QUANTIZE": WITH_XNNPACK,
    "SOFTMAX": (OpResolverType.BUILTIN_REF,),
    "LOG_SOFTMAX": (OpResolverType.BUILTIN_REF,),
}
_CHECKS: Mapping[str, Callable[[Operator, Sequence[Tensor]], str | None]] = {
    **dict.fromkeys(("ADD", "SUB", "SQUARED_DIFFERENCE"), _addition),
    "BATCH_MATMUL": _product,
    **dict.fromkeys(("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"), _comparison),
    "QUANTIZE": _quantization,
    "SOFTMAX": _softmax,
    "LOG_SOFTMAX": _softmax,
}
