"""Checks of constants whose bytes are no plain array: strings, and sparse encodings."""

from __future__ import annotations

import math

import numpy as np

from litegpu.model.ops.checks import require
from litegpu.model.types import Tensor, TensorType


def check_constant(tensor: Tensor) -> None:
    """Checks what the bytes of a constant say of themselves.

    Raises:
        ModelError: says what is wrong with them.
    """
    if tensor.sparsity is not None:
        check_sparsity(tensor)
    if tensor.type is TensorType.STRING and tensor.is_constant:
        check_strings(tensor)


def check_strings(tensor: Tensor) -> None:
    """Checks that a constant of strings holds as many as its shape says, within its bytes: their count, where each
    begins and the last one ends, then the characters.

    Raises:
        ModelError: says that it does not.
    """
    assert tensor.data is not None
    content = tensor.data.tobytes()
    count = math.prod(tensor.shape)
    fits = len(content) >= 4 * (count + 2) and int.from_bytes(content[:4], "little") == count
    if fits:
        places = np.frombuffer(content, "<i4", count + 1, 4)
        ordered = bool((places[1:] >= places[:-1]).all())
        fits = ordered and int(places[0]) >= 4 * (count + 2) and int(places[-1]) <= len(content)
    require(fits, f"tensor {tensor.index} '{tensor.name}' of {count} strings has bytes that hold others")


def check_sparsity(tensor: Tensor) -> None:
    """Checks that a sparse constant's encoding stays within its shape and its values.

    Raises:
        ModelError: says what is wrong with it.
    """
    sparsity, rank = tensor.sparsity, len(tensor.shape)
    assert sparsity is not None
    levels = len(sparsity.dimensions)
    require(
        levels == rank + len(sparsity.block_map)
        and sorted(sparsity.traversal_order) == list(range(levels))
        and all(0 <= dimension < rank for dimension in sparsity.block_map),
        f"tensor {tensor.index} '{tensor.name}' has a sparse encoding whose dimensions do not fit its shape",
    )
    limits = _level_limits(tensor)
    entries = 1
    for level, (form, *arrays) in enumerate(sparsity.dimensions):
        limit = limits[sparsity.traversal_order[level]]
        if form == "dense":
            require(
                arrays[0] == limit,
                f"tensor {tensor.index} '{tensor.name}' has sparse levels of {arrays[0]} where its shape has {limit}",
            )
            require(arrays[0] > 0, f"tensor {tensor.index} '{tensor.name}' has a sparse encoding with an empty level")
            entries *= arrays[0]
            continue
        segments, indices = arrays
        require(
            len(segments) == entries + 1
            and segments[0] == 0
            and segments[-1] == len(indices)
            and bool((segments[1:] >= segments[:-1]).all())
            and bool((indices >= 0).all())
            and (len(indices) == 0 or int(indices.max()) < limit),
            f"tensor {tensor.index} '{tensor.name}' has a sparse encoding with indices beyond its shape",
        )
        entries = len(indices)


def _level_limits(tensor: Tensor) -> list[int]:
    """How far indices go along each dimension of a sparse tensor, and then along each of those of its blocks."""
    sparsity, rank = tensor.sparsity, len(tensor.shape)
    assert sparsity is not None
    sizes = dict(zip(sparsity.traversal_order, sparsity.dimensions, strict=True))
    blocks = [sizes[rank + number] for number in range(len(sparsity.block_map))]
    require(
        all(form == "dense" and arrays[0] > 0 for form, *arrays in blocks),
        f"tensor {tensor.index} '{tensor.name}' has a sparse encoding whose blocks have no size",
    )
    limits = list(tensor.shape)
    for axis, (_, size) in zip(sparsity.block_map, blocks, strict=True):
        require(
            limits[axis] % size == 0, f"tensor {tensor.index} '{tensor.name}' is no whole number of sparse blocks long"
        )
        limits[axis] //= size
    return [*limits, *(size for _, size in blocks)]
