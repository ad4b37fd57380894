"""What both sides are run on: values from a normal distribution, or the user's own files."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from litegpu.errors import OptionError
from litegpu.model.types import Subgraph
from litegpu.tools.arrays import read_archive, read_array
from litegpu.tools.inputs import index_limit

Feed = list[np.ndarray]

_MEAN, _DEVIATION = 0.5, 1 / 3
_TEXT = b"a sentence of made-up text"


def gaussian_feeds(details: Sequence[Mapping[str, Any]], main: Subgraph, runs: int, seed: int) -> Iterator[Feed]:
    """`runs` times one array for each input, drawn anew each time.

    r is drawn from the normal distribution of mean 1/2 and standard deviation 1/3, again and again until it lies in
    [0, 1), as the official tool does. Floats are 2r - 1; 8-bit and 16-bit integers floor(low + r (high - low + 1)) over
    all of their type's range; other integers the same over 0..99, or over what they select from in a GATHER or an
    EMBEDDING_LOOKUP; bool is r >= 1/2. The same seed gives the same values.
    """
    random = np.random.default_rng(seed)
    limits = [index_limit(main, int(d["index"])) for d in details]
    for _ in range(runs):
        yield [_drawn(random, d, limit) for d, limit in zip(details, limits, strict=True)]


def file_feeds(details: Sequence[Mapping[str, Any]], files: Sequence[str]) -> list[Feed]:
    """The samples in files: .npz with an array for each input's name; .npy, or anything else as raw bytes, given as
    `FILE` in the order of the inputs or as `NAME=FILE`. An array holds one sample of the input's shape, or several,
    along a further first axis or along the first axis where the input's is 1.

    Raises OptionError, which names the file, for what cannot be read or does not fit.
    """
    names = [str(d["name"]) for d in details]
    found: dict[int, list[np.ndarray]] = {}
    for given in files:
        name, equals, path = given.partition("=")
        if not (equals and name in names):
            name, path = "", given
        if Path(path).suffix.lower() == ".npz":
            for key, array in read_archive(path, "the input values").items():
                if key not in names:
                    raise OptionError(f"{path} has an array '{key}'; the inputs are {', '.join(names)}")
                _put(found, names.index(key), _samples(array, details[names.index(key)], path), names)
            continue
        position = names.index(name) if name else next((i for i in range(len(names)) if i not in found), None)
        if position is None:
            raise OptionError(f"{path} is one file too many: the inputs are {', '.join(names)}")
        detail = details[position]
        array = read_array(path, "the input values") if Path(path).suffix.lower() == ".npy" else _read_raw(path, detail)
        _put(found, position, _samples(array, detail, path), names)
    missing = [name for i, name in enumerate(names) if i not in found]
    if missing:
        raise OptionError(f"No values were given for input '{missing[0]}': the inputs are {', '.join(names)}")
    counts = {names[i]: len(samples) for i, samples in sorted(found.items())}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} for '{name}'" for name, count in counts.items())
        raise OptionError(f"The inputs have different numbers of samples: {told}")
    return [[found[i][k] for i in range(len(names))] for k in range(len(found[0]))]


def _drawn(random: np.random.Generator, detail: Mapping[str, Any], limit: int) -> np.ndarray:
    dtype, shape = np.dtype(detail["dtype"]), tuple(int(n) for n in detail["shape"])
    if dtype.kind in "SO":
        return np.full(shape, _TEXT, dtype=object)
    r = _fractions(random, math.prod(shape)).reshape(shape)
    if dtype.kind == "b":
        return np.asarray(r >= 0.5)
    if dtype.kind == "f":
        return np.asarray(2 * r - 1).astype(dtype)
    if dtype.kind not in "iu":
        raise OptionError(f"No values can be made up for input '{detail['name']}' of type {dtype}: give --input")
    low, high = (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) if dtype.itemsize <= 2 else (0, limit - 1)
    return np.asarray(np.floor(low + r * (high - low + 1))).astype(dtype)


def _fractions(random: np.random.Generator, count: int) -> np.ndarray:
    """Normal, in [0, 1)."""
    parts: list[np.ndarray] = []
    missing = count
    while missing > 0:
        drawn = random.normal(_MEAN, _DEVIATION, int(missing * 1.2) + 8)
        parts.append(drawn[(drawn >= 0) & (drawn < 1)])
        missing -= len(parts[-1])
    return np.concatenate(parts)[:count] if parts else np.empty(0)


def _put(found: dict[int, list[np.ndarray]], position: int, samples: list[np.ndarray], names: Sequence[str]) -> None:
    if position in found:
        raise OptionError(f"Input '{names[position]}' was given twice")
    found[position] = samples


def _read_raw(path: str, detail: Mapping[str, Any]) -> np.ndarray:
    dtype, shape = np.dtype(detail["dtype"]), [int(n) for n in detail["shape"]]
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise OptionError(f"Cannot read the input values {path}: {_cause(error)}") from None
    wanted = math.prod(shape) * dtype.itemsize
    if dtype.kind in "SO" or not content or len(content) % wanted:
        raise OptionError(
            f"{path} has {len(content)} bytes; input '{detail['name']}', {dtype} {shape}, takes {wanted} or a multiple"
        )
    return np.frombuffer(content, dtype).reshape(-1, *shape)


def _samples(array: np.ndarray, detail: Mapping[str, Any], path: str | os.PathLike[str]) -> list[np.ndarray]:
    dtype, shape = np.dtype(detail["dtype"]), tuple(int(n) for n in detail["shape"])
    if array.dtype != dtype:
        with np.errstate(invalid="ignore", over="ignore"):  # what does not fit is refused below
            converted = array.astype(dtype) if array.dtype.kind in "fiub" and dtype.kind in "fiub" else None
        floats = array.dtype.kind == dtype.kind == "f"
        if converted is None or not (floats or np.array_equal(converted, array)):
            raise OptionError(f"{path} holds {array.dtype}, but input '{detail['name']}' takes {dtype}")
        array = converted
    if array.shape == shape:
        return [array]
    if array.shape[1:] == shape and len(array):
        return list(array)
    if shape and shape[0] == 1 and array.shape[1:] == shape[1:] and array.ndim == len(shape) and len(array):
        return [array[i : i + 1] for i in range(len(array))]
    raise OptionError(
        f"{path} has shape {list(array.shape)}, but input '{detail['name']}' takes {list(shape)}, or "
        f"[{', '.join(map(str, ('n', *shape)))}] for n runs"
    )


def _cause(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
