"""A copy of a model that says in a viewer, such as Netron, who runs what and how long it takes."""

from __future__ import annotations

import json
import os
from dataclasses import replace

from litegpu.model.inline import inline_composites
from litegpu.model.reader import read_model
from litegpu.model.serialize import write_model
from litegpu.model.types import Subgraph, Tensor
from litegpu.tools.analyze.analysis import Analysis, OpAnalysis

#: The metadata that holds the whole analysis as JSON.
METADATA = "litegpu_analysis"


def annotated(analysis: Analysis, model: str | os.PathLike[str] | bytes) -> bytes:
    """The model's bytes with the place and time of each op behind the name of what it makes, and the analysis in the
    metadata. Inputs and outputs of the graph, and of signatures, keep their names; results stay what they are."""
    read = inline_composites(read_model(model))
    main = read.main
    content = json.dumps(analysis.as_dict()).encode()
    changed = replace(main, tensors=_renamed(main, analysis))
    metadata = {**read.metadata, METADATA: content}
    return write_model(replace(read.with_main(changed), metadata=metadata))


def _renamed(main: Subgraph, analysis: Analysis) -> tuple[Tensor, ...]:
    told = {t: _told(op) for op in analysis.ops for t in main.operators[op.index].outputs if t >= 0}
    kept = {*main.inputs, *main.outputs}
    return tuple(
        replace(tensor, name=f"{tensor.name} {told[tensor.index]}")
        if tensor.index in told and tensor.index not in kept
        else tensor
        for tensor in main.tensors
    )


def _told(op: OpAnalysis) -> str:
    taken = op.estimated if op.measured is None else op.measured
    return f"[{op.owner} {op.partition}, {taken * 1e6:.2f} us{', ' + op.bound if op.bound else ''}]"
