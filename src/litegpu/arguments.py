"""The arguments of a LoadedModel: which value is for which input, and values in the inputs' types."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.errors import OptionError, TensorError


def by_name(
    names: Sequence[str], ranks: Sequence[int], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Input name -> value, all of them, of a call with these arguments. `names` and `ranks` are the inputs'.

    The only argument may be a dictionary by name, or a list or tuple with one value for each input. A list for a single
    input may also be its value: its depth tells, as the value has the input's rank and a list around it one more.
    Raises TensorError."""

    def expected() -> str:
        return f"the model has {len(names)}: {', '.join(names)}"

    if len(args) == 1 and not kwargs:
        (only,) = args
        if type(only) is np.ndarray:  # as nearly always: what follows takes a microsecond
            pass
        elif isinstance(only, Mapping):
            args, kwargs = (), only
        elif isinstance(only, (list, tuple)):
            args = _listed(only, ranks, expected())
    if len(args) > len(names):
        raise TensorError(f"{len(args)} inputs were given, but {expected()}")
    values = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            raise TensorError(f"There is no input {name!r}; {expected()}")
        if name in values:
            raise TensorError(f"Input '{name}' was given twice, by position and by name")
        values[name] = value
    if len(values) < len(names):
        missing = next(name for name in names if name not in values)
        raise TensorError(f"Input '{missing}' was not given; {expected()}")
    return values


def count(name: str, value: object, least: int = 1) -> int:
    """An option that is a number, `least` or more, of Python's or of NumPy's; raises OptionError."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise OptionError(f"{name} is {value!r}; it must be a whole number, {least} or more")
    return int(value)


def chosen_outputs(outputs: str | Iterable[str] | None, known: Collection[str]) -> tuple[str, ...]:
    """The names of the outputs that a call asks for: one name, several, or None for all. Raises TensorError."""
    if outputs is None:
        return tuple(known)
    if isinstance(outputs, bytes) or not isinstance(outputs, Iterable):
        raise TensorError(f"outputs is {outputs!r}; it must be a name or a list of names, of {', '.join(known)}")
    names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise TensorError(f"There is no output {name!r}; the model has {', '.join(known)}")
    return names


def converted(name: str, value: Any, detail: Mapping[str, Any]) -> np.ndarray:
    """`value` in the input's type, of a shape that the input has or can be resized to; raises TensorError."""
    dtype = np.dtype(detail["dtype"])
    try:
        given = _array(value)
    except Exception as error:  # lists of unequal lengths, and what objects raise that cannot be arrays
        raise TensorError(f"Input '{name}' cannot be made an array: {type(error).__name__}: {error}") from error
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise TensorError(f"Input '{name}' has masked values, which the model cannot leave out: give .filled(...)")
    if given.dtype != dtype and _is_a_librarys(given.dtype):  # bfloat16 and smaller ones of ml_dtypes, as JAX has them
        given = given.astype(np.float32)
    array = given
    if given.dtype != dtype and dtype.kind not in "SO":
        if given.dtype.kind not in ("biufc" if dtype.kind == "c" else "biuf"):
            raise TensorError(f"Input '{name}' is {dtype}, but the value is {given.dtype}")
        with np.errstate(all="ignore"):
            array = given.astype(dtype)
        rounds = not hasattr(value, "dtype") and given.dtype.kind in "iuf" and dtype.kind == "f"
        if not rounds and not np.array_equal(array, given, equal_nan=given.dtype.kind in "fc"):
            scale = detail["quantization"]
            quantized = f", or with the input's quantization {scale}" if scale[0] else ""
            raise TensorError(
                f"Input '{name}' is {dtype}; converting the {given.dtype} value would change it. Convert it yourself, "
                f"with .astype({dtype}){quantized}"
            )
    shape, signature = tuple(detail["shape"]), tuple(detail["shape_signature"])
    fits = len(array.shape) == len(shape) and all(
        got == now or axis == 0 or open_ == -1
        for axis, (got, now, open_) in enumerate(zip(array.shape, shape, signature, strict=True))
    )
    if not fits:
        raise TensorError(
            f"Input '{name}' has shape {[int(n) for n in shape]}, but the value has {list(array.shape)}. Only the "
            "first dimension (the batch) and those that are -1 in its shape_signature can differ"
        )
    return array


def _array(value: Any) -> np.ndarray:
    """What NumPy makes of a value; of one that has nothing but DLPack (in host memory), its array."""
    if hasattr(value, "__dlpack__") and not any(hasattr(value, name) for name in ("__array__", "__array_interface__")):
        return np.from_dlpack(value)
    return np.asarray(value)


def _is_a_librarys(dtype: np.dtype[Any]) -> bool:
    """Whether it is a type that a library has registered with NumPy, of numbers that float32 holds."""
    return dtype.isbuiltin == 2 and np.can_cast(dtype, np.float32)


def _listed(values: Sequence[Any], ranks: Sequence[int], expected: str) -> Sequence[Any]:
    """The arguments that one list or tuple stands for."""
    if len(ranks) == 1 and (not values or _rank(values) <= ranks[0]):
        return (values,)
    if len(values) != len(ranks):
        raise TensorError(f"A {type(values).__name__} of {len(values)} inputs was given, but {expected}")
    return values


def _rank(value: Any) -> int:
    """The rank of a value as an array, as far as its first elements tell."""
    depth = 0
    while isinstance(value, (list, tuple)) and value:
        value, depth = value[0], depth + 1
    return depth + len(getattr(value, "shape", ()))
