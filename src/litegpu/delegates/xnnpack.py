"""What the official runtime's default delegate, XNNPACK, takes of a model on the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from litegpu.chatter import quiet
from litegpu.delegates.aborts import refuse_aborting
from litegpu.delegates.cpu import OfficialOptions
from litegpu.errors import InvokeError
from litegpu.model.reader import read_model

_DELEGATE = "DELEGATE"  # the name under which the runtime lists a delegate's kernels


def xnnpack_partitions(
    model: str | os.PathLike[str] | bytes, options: OfficialOptions | None = None
) -> tuple[tuple[int, ...], ...]:
    """The node numbers in each of XNNPACK's kernels, for the shapes in the file.

    The runtime appends its delegates' kernels to the list of nodes, with the tensors that they read and give; what each
    replaced is therefore what leads from the ones to the others. Raises InvokeError with the runtime's text if the
    model cannot be allocated, and what the official constructor raises.
    """
    options = options or OfficialOptions()
    for subgraph in read_model(model).subgraphs:
        refuse_aborting(subgraph.operators, subgraph.tensors, subgraph.outputs, options.op_resolver_type)
    content = model if isinstance(model, bytes) else None
    interpreter: Any = options.create(None if content else os.fspath(model), content)
    try:
        with quiet():
            interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        raise InvokeError(f"the official runtime does not allocate the model: {error}") from None
    return partitions_of(interpreter)


def partitions_of(interpreter: Any) -> tuple[tuple[int, ...], ...]:
    """The node numbers in each kernel of the delegates of an allocated official interpreter."""
    listed = interpreter._get_ops_details()
    nodes = [o for o in listed if o["op_name"] != _DELEGATE]
    producers = {int(t): o for o in nodes for t in o["outputs"]}
    kernels = [o for o in listed if o["op_name"] == _DELEGATE]
    return tuple(_between(producers, k["inputs"], k["outputs"]) for k in kernels)


def _between(producers: Mapping[int, Any], inputs: Iterable[int], outputs: Sequence[int]) -> tuple[int, ...]:
    """The nodes that `outputs` are computed by, from `inputs` on."""
    given = {int(t) for t in inputs}
    wanted, found = [int(t) for t in outputs], set()
    while wanted:
        tensor = wanted.pop()
        node = producers.get(tensor)
        if tensor in given or node is None or int(node["index"]) in found:
            continue
        found.add(int(node["index"]))
        wanted += [int(t) for t in node["inputs"] if t >= 0]
    return tuple(sorted(found))
