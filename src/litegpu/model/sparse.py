"""The schema's sparse encoding of constants, read into dense arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from litegpu.errors import ModelError
from litegpu.model.reader import DTYPES
from litegpu.model.types import Tensor

Array = np.ndarray[Any, np.dtype[Any]]


def densified(tensor: Tensor) -> Array:
    """The elements of a sparse constant in its own type and shape, zeros where nothing is stored.

    The encoding is a tree whose levels are the tensor's dimensions and then those of its blocks, in the traversal
    order. A dense level has all its indices, a compressed (CSR) one those that it lists; leaves are stored in order.
    Raises ModelError if the number of values is not that of the leaves, or the type has no array of its own.
    """
    sparsity, data, shape = tensor.sparsity, tensor.data, tensor.shape
    if sparsity is None or data is None:
        raise ValueError(f"tensor {tensor.index} '{tensor.name}' is no sparse constant")
    if tensor.type not in DTYPES:
        raise ModelError(f"tensor {tensor.index} '{tensor.name}' is sparse and of type {tensor.type.name}")
    values = data.view(DTYPES[tensor.type])
    place = np.zeros(1, np.int64)  # of each node of the level among all of its level
    found: list[Array] = []  # for each level so far, the index of the node's ancestor there
    for form, *arrays in sparsity.dimensions:
        if form == "dense":
            size = int(arrays[0])
            parents = np.repeat(np.arange(place.size), size)
            index = np.tile(np.arange(size), place.size)
            place = place[parents] * size + index
        else:
            segments, indices = (np.asarray(a, np.int64) for a in arrays)
            counts = segments[place + 1] - segments[place]
            parents = np.repeat(np.arange(place.size), counts)
            first = np.repeat(np.cumsum(counts) - counts, counts)
            place = segments[place][parents] + np.arange(parents.size) - first
            index = indices[place]
        found = [level[parents] for level in found] + [index]
    if values.size != place.size:
        raise ModelError(
            f"tensor {tensor.index} '{tensor.name}' has {values.size} values for the {place.size} places of its sparse "
            "encoding; convert the model again"
        )
    coordinates: list[Array] = [np.zeros(0, np.int64)] * len(shape)
    levels = dict(zip(sparsity.traversal_order, range(len(found)), strict=True))
    for axis in range(len(shape)):
        coordinates[axis] = found[levels[axis]]
    for block, axis in enumerate(sparsity.block_map):
        level = levels[len(shape) + block]
        coordinates[axis] = coordinates[axis] * int(sparsity.dimensions[level][1]) + found[level]
    result = np.zeros(shape, values.dtype)
    inside = np.all([c < n for c, n in zip(coordinates, shape, strict=True)], axis=0)
    result[tuple(c[inside] for c in coordinates)] = values[place][inside]
    return result
