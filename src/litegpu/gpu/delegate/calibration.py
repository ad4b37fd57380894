"""The ranges that a model's tensors have on inputs that the user gives."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from litegpu.chatter import quiet
from litegpu.errors import OptionError
from litegpu.model.types import Model


def tensor_ranges(model: Model, samples: Sequence[Sequence[np.ndarray]]) -> dict[int, tuple[float, float]]:
    """Tensor -> its least and largest finite element over all samples, on the official CPU runtime. A sample has one
    array for each input of the model, in order. Raises OptionError for one that does not fit."""
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")  # that preserving all tensors takes memory: it is not kept
        interpreter: Any = Interpreter(  # type: ignore[no-untyped-call]
            model_content=bytes(model.content),
            experimental_preserve_all_tensors=True,
            experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        )
    inputs = interpreter.get_input_details()
    ranges: dict[int, tuple[float, float]] = {}
    for number, sample in enumerate(samples):
        if len(sample) != len(inputs):
            raise OptionError(
                f"calibration sample {number} has {len(sample)} arrays; the model has {len(inputs)} inputs"
            )
        try:
            for detail, array in zip(inputs, sample, strict=True):
                interpreter.resize_tensor_input(detail["index"], np.shape(array))
            with quiet():
                interpreter.allocate_tensors()
            for detail, array in zip(inputs, sample, strict=True):
                interpreter.set_tensor(detail["index"], np.asarray(array))
        except (ValueError, RuntimeError) as error:
            raise OptionError(f"calibration sample {number} does not fit the model: {error}") from None
        interpreter.invoke()
        for tensor in model.main.tensors:
            if tensor.is_constant:
                continue
            try:
                value = np.asarray(interpreter.get_tensor(tensor.index))
            except ValueError:  # no memory: never computed
                continue
            if value.dtype.kind != "f" or not value.size:
                continue
            finite = value[np.isfinite(value)]
            if finite.size:
                low, high = ranges.get(tensor.index, (np.inf, -np.inf))
                ranges[tensor.index] = min(low, float(finite.min())), max(high, float(finite.max()))
    return ranges
