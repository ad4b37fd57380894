"""One custom operator of a model, as the functions that a user registers for it see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.errors import ModelError


@dataclass(frozen=True, eq=False)
class TensorInfo:
    """A tensor of the operator. `shape` is the model's, of rank 0 to 4. `dtype` is float32, int32 or bool.
    `is_constant`: the model holds the tensor's value, which then is in `data` (zeros while an operator is only being
    checked, if the constant is of floats)."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    data: np.ndarray | None = None

    @property
    def is_constant(self) -> bool:
        return self.data is not None


@dataclass(frozen=True, eq=False)
class Operation:
    """`name` is the custom code, `options` the operator's custom options as they stand in the file; an optional input
    that is absent is None."""

    name: str
    version: int
    options: bytes
    inputs: tuple[TensorInfo | None, ...]
    outputs: tuple[TensorInfo, ...]
    index: int = 0  # the operator's number in the model

    def flexbuffer(self) -> Any:
        """The options as FlexBuffers, which most converters write: usually a dictionary. Raises ModelError if they are
        something else."""
        return decode_flexbuffer(self.options, self.name)


def decode_flexbuffer(options: bytes, name: str) -> Any:
    """FlexBuffers `options` of the operator `name` as Python values; raises ModelError."""
    from flatbuffers import flexbuffers

    if not options:
        return {}
    try:
        return flexbuffers.Loads(options)  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever a decoder of untrusted bytes stumbles over
        raise ModelError(
            f"the options of operator {name} are not FlexBuffers: {type(error).__name__}: {error}"
        ) from None
