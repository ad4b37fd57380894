"""The same model with another of its signatures in front, so that it is what an interpreter runs."""

from __future__ import annotations

import dataclasses

from litegpu.errors import TensorError
from litegpu.model.cut import recalled
from litegpu.model.mapping import check_mapped
from litegpu.model.serialize import write_model
from litegpu.model.types import Model, Signature


def signature_of(model: Model, key: str) -> Signature:
    """The signature of this name. Raises TensorError, with the names that there are."""
    for signature in model.signatures:
        if signature.key == key:
            return signature
    keys = ", ".join(repr(one.key) for one in model.signatures) or "none"
    raise TensorError(f"The model has no signature {key!r}; it has {keys}")


def with_entry(model: Model, subgraph: int) -> bytes:
    """The model with this subgraph and the first one exchanged; calls and signatures follow."""
    check_mapped(model.content)
    numbers = {index: index for index in range(len(model.subgraphs))}
    numbers[0], numbers[subgraph] = subgraph, 0
    moved = tuple(
        dataclasses.replace(
            model.subgraphs[numbers[new]],
            index=new,
            operators=tuple(recalled(operator, numbers) for operator in model.subgraphs[numbers[new]].operators),
        )
        for new in range(len(model.subgraphs))
    )
    signatures = tuple(dataclasses.replace(one, subgraph=numbers[one.subgraph]) for one in model.signatures)
    return bytes(write_model(dataclasses.replace(model, subgraphs=moved, signatures=signatures, entry=0)))
