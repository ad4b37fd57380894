"""The inputs of a benchmark: random as the official tool's, of other shapes, in given ranges, or from files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from litegpu.errors import OptionError
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.inputs import random_inputs

Details = Sequence[Mapping[str, Any]]


def resizes(flags: BenchmarkFlags, details: Details) -> list[tuple[int, list[int]]]:
    """(tensor, new shape) for the inputs whose shape the flags change. Raises OptionError for what does not fit."""
    if not flags.input_layer_shape:
        _names(flags, details)
        return []
    names = _names(flags, details)
    if not names:
        raise OptionError("--input_layer_shape needs --input_layer with the inputs' names")
    shapes = [_shape(text) for text in flags.input_layer_shape.split(":")]
    if len(shapes) != len(names):
        raise OptionError(f"--input_layer_shape has {len(shapes)} shapes for {len(names)} inputs")
    found = []
    for detail, shape in zip(details, shapes, strict=True):
        present = [int(n) for n in detail["shape"]]
        if len(shape) != len(present) or min(shape) < 1:
            raise OptionError(f"Input '{detail['name']}' has shape {present}; it cannot become {shape}")
        if shape != present:
            found.append((int(detail["index"]), shape))
    return found


def arrays(flags: BenchmarkFlags, details: Details) -> list[np.ndarray]:
    """One array per input. Raises OptionError for flags and files that do not fit the model."""
    names = _names(flags, details)
    ranges, files = _ranges(flags), _files(flags)
    for name in (*ranges, *files):
        if name not in names:
            raise OptionError(f"'{name}' has a range or a file, but is not among --input_layer={flags.input_layer}")
    # Names on the command line may differ from the tensors': their order counts.
    by_tensor = {d["name"]: ranges[n] for d, n in zip(details, names, strict=False) if n in ranges}
    found = random_inputs(details, by_tensor)
    for i, name in enumerate(names):
        if name in files:
            found[i] = _from_file(files[name], details[i])
    return found


def _names(flags: BenchmarkFlags, details: Details) -> list[str]:
    names = flags.input_layer.split(",") if flags.input_layer else []
    if names and len(names) != len(details):
        raise OptionError(f"--input_layer names {len(names)} inputs, but the model has {len(details)}")
    return names


def _shape(text: str) -> list[int]:
    try:
        return [int(n) for n in text.split(",")]
    except ValueError:
        raise OptionError(f"{text!r} is not a shape such as 1,224,224,3") from None


def _ranges(flags: BenchmarkFlags) -> dict[str, tuple[int, int]]:
    ranges = {}
    for item in filter(None, flags.input_layer_value_range.split(":")):
        try:
            name, low, high = item.rsplit(",", 2)
            ranges[name] = (int(low), int(high))
        except ValueError:
            raise OptionError(f"{item!r} in --input_layer_value_range is not name,low,high") from None
        if ranges[name][0] > ranges[name][1]:
            raise OptionError(f"{item!r} in --input_layer_value_range: the low end is above the high end")
    return ranges


def _files(flags: BenchmarkFlags) -> dict[str, str]:
    files = {}
    for item in filter(None, flags.input_layer_value_files.split(",")):
        name, colon, path = item.replace("::", "\0").partition(":")  # "::" stands for a colon in a name or path
        if not colon:
            raise OptionError(f"{item!r} in --input_layer_value_files is not name:path")
        files[name.replace("\0", ":")] = path.replace("\0", ":")
    return files


def _from_file(path: str, detail: Mapping[str, Any]) -> np.ndarray:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise OptionError(f"Cannot read the input values {path}: {error.strerror}") from None
    shape, dtype = [int(n) for n in detail["shape"]], np.dtype(detail["dtype"])
    wanted = int(np.prod(shape)) * dtype.itemsize
    if dtype.kind in "SO":
        return _strings(path, content, shape)
    if len(content) != wanted:
        raise OptionError(f"{path} has {len(content)} bytes, but input '{detail['name']}' takes {wanted}")
    return np.frombuffer(content, dtype).reshape(shape).copy()


def _strings(path: str, content: bytes, shape: Sequence[int]) -> np.ndarray:
    """Strings with a NUL between."""
    pieces = [content] if path.endswith(".pb") else content.removesuffix(b"\0").split(b"\0")
    if len(pieces) != int(np.prod(shape)):
        raise OptionError(f"{path} has {len(pieces)} strings, but the input takes {int(np.prod(shape))}")
    found = np.empty(len(pieces), object)
    found[:] = pieces
    return found.reshape(shape)
