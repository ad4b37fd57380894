"""Made-up inputs for a model, the same in every run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.errors import OptionError
from litegpu.model.types import Subgraph

# The default seed of the 32-bit Mersenne Twister, which the official benchmark tool draws from.
_SEED = 5489
_RANGES = {
    "int32": (0, 99),
    "uint32": (0, 99),
    "int64": (0, 99),
    "uint8": (0, 254),
    "int8": (-127, 127),
    "bool": (0, 1),
    # The official tool leaves these at zero, and every model gives the right answer to zeros.
    "int16": (-32767, 32767),
    "uint16": (0, 65534),
}
_WHOLE_NUMBERS = 100  # below which int32 and int64 inputs stay that select nothing
#: Operator -> (the input that selects, the input that it selects from, the axis or the option that names it).
_SELECTING: dict[str, tuple[int, int, int | str]] = {
    "GATHER": (1, 0, "axis"),
    "EMBEDDING_LOOKUP": (0, 1, 0),
    "ONE_HOT": (0, 1, "depth"),
}
_PASSING = frozenset({"CAST", "RESHAPE", "EXPAND_DIMS", "SQUEEZE", "IDENTITY"})
_SENTENCE = b"a sentence of made-up text"


def random_inputs(
    details: Sequence[Mapping[str, Any]], ranges: Mapping[str, tuple[int, int]] | None = None
) -> list[np.ndarray]:
    """One array per input detail dictionary, in the distributions of the official benchmark tool.

    float32 and float64: uniform in [-0.5, 0.5), or from low to high; float16: always [-0.5, 0.5); int32, uint32, int64:
    0..99; uint8: 0..254; int8: -127..127; bool: 0 or 1; int16: -32767..32767; uint16: 0..65534. float32 draws are those
    of the official tool bit for bit. `ranges` (tensor name -> lowest, highest, inclusive for integers) replaces the
    default range.
    """
    random = np.random.RandomState(_SEED)
    return [_random(random, detail, (ranges or {}).get(detail["name"])) for detail in details]


def made_up_inputs(details: Sequence[Mapping[str, Any]], main: Subgraph) -> list[np.ndarray]:
    """random_inputs() for a model whose main subgraph is known: whole numbers that select something stay within it."""
    limits = {str(d["name"]): index_limit(main, int(d["index"])) for d in details}
    whole = {str(d["name"]) for d in details if np.dtype(d["dtype"]).name in ("int32", "uint32", "int64")}
    return random_inputs(details, {name: (0, limits[name] - 1) for name in whole})


def index_limit(main: Subgraph, tensor: int) -> int:
    """One more than the largest whole number that an input may hold, by the operators that read it."""
    limits = []
    same = {tensor}
    for operator in main.operators:
        if operator.name in _PASSING and operator.inputs[0] in same:
            same.update(operator.outputs)
        if operator.name in _SELECTING:
            selects, source, axis = _SELECTING[operator.name]
            if operator.inputs[selects] in same:
                limits.append(_choices(main, operator.inputs[source], operator.options, axis))
    return max(1, min(limits, default=_WHOLE_NUMBERS))


def _choices(main: Subgraph, source: int, options: Mapping[str, Any], axis: int | str) -> int:
    tensor = main.tensors[source]
    if axis == "depth":
        return int(tensor.data.reshape(-1)[0]) if tensor.data is not None else _WHOLE_NUMBERS
    return int(tensor.shape[options.get(axis, 0) if isinstance(axis, str) else axis])


def _random(random: np.random.RandomState, detail: Mapping[str, Any], given: tuple[int, int] | None) -> np.ndarray:
    dtype, shape = np.dtype(detail["dtype"]), tuple(int(n) for n in detail["shape"])
    if dtype.kind in "SO":
        return np.full(shape, _SENTENCE, dtype=object)
    words: np.ndarray = random.randint(0, 2**32, size=shape, dtype=np.uint32)
    if dtype.kind in "fc":
        low, high = given if given and dtype != np.float16 else (-0.5, 0.5)
        fractions: np.ndarray = words.astype(np.float32) / np.float32(2**32)
        return np.asarray(fractions * np.float32(high - low) + np.float32(low)).astype(dtype)
    if dtype.name not in _RANGES:
        raise OptionError(f"No values can be made up for input '{detail['name']}' of type {dtype}")
    lowest, highest = given or _RANGES[dtype.name]
    scaled: np.ndarray = words.astype(np.int64) * (highest - lowest + 1)
    return np.asarray(lowest + (scaled >> 32)).astype(dtype)
