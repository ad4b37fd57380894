"""The passes over the GPU graph, in the order in which they run."""

from __future__ import annotations

from litegpu.gpu.graph import Graph
from litegpu.gpu.kernels import native
from litegpu.gpu.lang.features import Features
from litegpu.gpu.passes.attention import join_attention
from litegpu.gpu.passes.channels import keep_channels_last
from litegpu.gpu.passes.dividing import divide_layers
from litegpu.gpu.passes.fold import drop_unused, fold_constants
from litegpu.gpu.passes.fuse import fuse_elementwise
from litegpu.gpu.passes.instance_norm import join_instance_norm
from litegpu.gpu.passes.layer_norm import join_layer_norm
from litegpu.gpu.passes.leading import part_leads
from litegpu.gpu.passes.lookups import join_lookups
from litegpu.gpu.passes.movement import absorb_border, absorb_padding, join_copies
from litegpu.gpu.passes.neighbours import join_neighbours
from litegpu.gpu.passes.parting import read_parts
from litegpu.gpu.passes.pooling import average_first, join_averages
from litegpu.gpu.passes.products import simplify_products
from litegpu.gpu.passes.raising import raise_elementwise
from litegpu.gpu.passes.repeats import drop_repeats
from litegpu.gpu.passes.rereading import reread
from litegpu.gpu.passes.rolling import join_slices
from litegpu.gpu.passes.rotary import turn_halves
from litegpu.gpu.passes.row_chains import join_rows
from litegpu.gpu.passes.separable import join_waiting
from litegpu.gpu.passes.siblings import join_siblings
from litegpu.gpu.passes.softmax import join_softmax, reduce_softmax
from litegpu.gpu.passes.split import split_reductions
from litegpu.gpu.passes.spreading import spread_pixels
from litegpu.gpu.passes.squeezing import squeeze_first
from litegpu.gpu.passes.tables import fold_tables, join_tables
from litegpu.gpu.passes.windows import split_windows


def optimise(graph: Graph, features: Features, half: bool = False) -> Graph:
    """The same function in less work: constants folded, copies joined, elementwise work fused, long sums split.
    `half`: intermediates will be float16."""
    graph = drop_repeats(fold_constants(drop_unused(graph)))
    graph = join_lookups(join_copies(graph), features.max_buffers)
    graph = join_neighbours(turn_halves(join_slices(keep_channels_last(read_parts(graph)))))
    graph = absorb_border(split_windows(absorb_padding(graph)))
    graph = part_leads(simplify_products(reduce_softmax(join_softmax(graph))))
    graph = join_instance_norm(squeeze_first(divide_layers(graph)), features)
    for _ in range(2):  # what became one function may pass what its parts, of which one was read twice, could not
        graph = fuse_elementwise(fold_constants(raise_elementwise(graph)), features.max_buffers)
    graph = reread(join_layer_norm(fold_tables(graph)), features.max_buffers)
    graph = spread_pixels(join_siblings(join_averages(average_first(graph), features.max_buffers)))
    own = native.of(features)
    graph = graph if own is None else own.join_first(graph, features, half)
    graph = join_attention(graph, features, half)
    graph = graph if own is None else own.join_last(graph, features, half)
    return split_reductions(join_waiting(graph, features), features.compute_units)


def optimise_late(graph: Graph, features: Features) -> Graph:
    """The same function once more, behind the choice of what is float16, in fewer kernels: what no other pass has to
    know. Tables in epilogues, where all others take operands for values of the output's shape; rows that are read
    once; and what native kernels compute of bytes."""
    graph, own = join_rows(join_tables(graph, features.max_buffers), features.max_buffers), native.of(features)
    graph = graph if own is None else own.join_bytes(graph, features)
    return split_reductions(graph, features.compute_units, narrow=True)
