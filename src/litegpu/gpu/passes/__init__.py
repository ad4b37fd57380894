"""The passes over the GPU graph, in the order in which they run."""

from __future__ import annotations

from litegpu.gpu.graph import Graph
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.fold import drop_unused, fold_constants
from litegpu.gpu.passes.fuse import fuse_elementwise
from litegpu.gpu.passes.movement import absorb_padding, join_copies


def optimise(graph: Graph, features: Features) -> Graph:
    """The same function with fewer nodes: constants folded, copies joined, elementwise work fused."""
    graph = fold_constants(drop_unused(graph))
    graph = absorb_padding(join_copies(graph))
    return fuse_elementwise(graph, features.max_buffers)
