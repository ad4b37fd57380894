"""What rules that refuse a file share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from litegpu.errors import ModelError
from litegpu.model import flexbuffer
from litegpu.model.types import Operator, Tensor, TensorType

Tensors = Sequence[Tensor]

CONVERT = "the file is damaged or its converter is wrong: fetch or convert it again"
EIGHT_BIT = frozenset({TensorType.INT8, TensorType.UINT8})
QUANTIZED = EIGHT_BIT | {TensorType.INT16}

#: The official kernels' limit; some index beyond it without asking.
MAX_RANK = 8


def require(condition: bool, problem: str) -> None:
    """Raises ModelError."""
    if not condition:
        raise ModelError(f"{problem}; {CONVERT}")


def values_of(tensor: Tensor) -> Any:
    """The first values of a constant, for a message."""
    assert tensor.data is not None
    return tensor.data.reshape(-1)[:8].tolist()


def scale_of(tensor: Tensor) -> float:
    """The one scale of a tensor, 0 if it has none or several."""
    quantization = tensor.quantization
    return float(quantization.scales[0]) if quantization is not None and len(quantization.scales) == 1 else 0.0


def flexbuffer_options(operator: Operator) -> Mapping[str, Any]:
    """The options of a custom operator that are a map of FlexBuffers."""
    try:
        return flexbuffer.numbers(operator.custom_options)
    except ValueError as error:
        raise ModelError(f"its options are no FlexBuffers map: {error}; {CONVERT}") from None
