"""What an op makes of its inputs in exact arithmetic, as far as float64 is: says which of two results is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from litegpu.delegates.protocol import Partition
from litegpu.gpu.delegate.missing_ops import ReferenceKernel
from litegpu.gpu.lower import Unsupported, lower_partition
from litegpu.model.reader import DTYPES
from litegpu.model.types import Model, Operator, Subgraph, Tensor, TensorType
from litegpu.tools.inference_diff.surgery import widens_constant

Values = Mapping[int, np.ndarray]


def exact_results(model: Model, operator: Operator, values: Values) -> tuple[dict[int, np.ndarray], bool] | None:
    """Output -> its value, given those of what the operator reads; None for an operator of which litegpu has no
    definition in NumPy. Sums are taken in float64, and results rounded once to what the tensors hold. And whether the
    definition is independent: others share with the GPU how operators and constants are read, so that they can convict
    it, but not speak for it."""
    main = model.main
    if operator.name in _DIRECT and not operator.options.get("fused_activation_function"):
        found = _direct(main, operator, values)
        if found is not None:
            return {operator.outputs[0]: found}, True
    made = {t: o for o in main.operators if widens_constant(main, o) for t in o.outputs}
    nodes = [*dict.fromkeys(made[t] for t in operator.inputs if t in made), operator]
    read = [t for t in dict.fromkeys(operator.inputs) if t in values and t not in made and not _is_constant(main, t)]
    outputs = [t for t in operator.outputs if t >= 0]
    try:
        lowered = lower_partition(main, nodes, read, outputs, in_numpy=True)
        kernel = ReferenceKernel(lowered, Partition(model, main, tuple(nodes), tuple(read), tuple(outputs)))
        arrays = kernel.invoke([values[t] for t in read])
    except (Unsupported, NotImplementedError, KeyError):
        return None
    return dict(zip(outputs, arrays, strict=True)), False


def _direct(main: Subgraph, operator: Operator, values: Values) -> np.ndarray | None:
    """Without any of the code that makes kernels."""
    operands = [_real(main.tensors[t], values.get(t)) for t in operator.inputs]
    output = main.tensors[operator.outputs[0]]
    known = [a for a in operands if a is not None]
    if len(known) != len(operands) or (output.quantization is not None and len(output.quantization.scales) > 1):
        return None
    with np.errstate(all="ignore"):
        return _stored(_DIRECT[operator.name](operator, *known), output)


def _batch_matmul(operator: Operator, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a = np.swapaxes(a, -1, -2) if operator.options.get("adj_x") else a
    b = np.swapaxes(b, -1, -2) if operator.options.get("adj_y") else b
    return np.asarray(np.matmul(a, b))


_DIRECT: dict[str, Callable[..., np.ndarray]] = {
    "BATCH_MATMUL": _batch_matmul,
    "ADD": lambda _, a, b: np.add(a, b),
    "SUB": lambda _, a, b: np.subtract(a, b),
    "MUL": lambda _, a, b: np.multiply(a, b),
}


def _real(tensor: Tensor, value: np.ndarray | None) -> np.ndarray | None:
    """The real numbers of a float or quantized tensor; None for others."""
    stored = tensor.data if value is None else value
    if stored is None or tensor.type not in DTYPES or stored.dtype.kind not in "fiu":
        return None
    if stored.dtype.kind == "f":
        return stored.astype(np.float64).reshape(tensor.shape)
    q = tensor.quantization
    if q is None or not len(q.scales):
        return None
    along = [1] * len(tensor.shape)
    if len(q.scales) > 1:
        along[q.dimension] = len(q.scales)
    scales, zero_points = (np.asarray(a, np.float64).reshape(along) for a in (q.scales, q.zero_points))
    return np.asarray((stored.astype(np.float64).reshape(tensor.shape) - zero_points) * scales)


def _stored(real: np.ndarray, tensor: Tensor) -> np.ndarray | None:
    """As the tensor holds it, halves rounded to even."""
    dtype = DTYPES[tensor.type]
    q = tensor.quantization
    if tensor.type in (TensorType.FLOAT32, TensorType.FLOAT16):
        return real.astype(dtype)
    if q is None or not len(q.scales):
        return None
    limits = np.iinfo(dtype)
    quanta = np.rint(real / float(q.scales[0])) + float(q.zero_points[0])
    return np.clip(quanta, limits.min, limits.max).astype(dtype)


def _is_constant(main: Subgraph, tensor: int) -> bool:
    return tensor < 0 or main.tensors[tensor].is_constant
