"""What CUDA adds to the kernels of the language; satisfies kernels.native.Native."""

from __future__ import annotations

from collections.abc import Callable

from litegpu.gpu import graph
from litegpu.gpu.backends.cuda.kernels import (
    attention,
    byte_attention,
    byte_excite,
    byte_inverted,
    byte_squeeze,
    convolution,
    depthwise,
    excite,
    group_norm,
    integer,
    lookup,
    matmul,
    mean,
    moments,
    pair,
    pointwise,
    pool,
    pooled,
    recurrent,
    separable,
    softmax,
    squeeze,
    transpose,
    widening,
)
from litegpu.gpu.backends.cuda.kernels.tile import LEAST_CAPABILITY, device_shared_bytes
from litegpu.gpu.backends.cuda.passes.affine import fold_affine
from litegpu.gpu.backends.cuda.passes.borders import copy_borders
from litegpu.gpu.backends.cuda.passes.byte_attention import join_byte_attention
from litegpu.gpu.backends.cuda.passes.byte_excite import join_byte_excitations
from litegpu.gpu.backends.cuda.passes.enlarged import transpose_enlarged
from litegpu.gpu.backends.cuda.passes.entry import join_entry
from litegpu.gpu.backends.cuda.passes.excite import join_excitations
from litegpu.gpu.backends.cuda.passes.few_outputs import split_few_outputs
from litegpu.gpu.backends.cuda.passes.grouped import split_groups
from litegpu.gpu.backends.cuda.passes.inverted import join_inverted
from litegpu.gpu.backends.cuda.passes.mean import join_means
from litegpu.gpu.backends.cuda.passes.mixing import join_mixing
from litegpu.gpu.backends.cuda.passes.moved import join_moves
from litegpu.gpu.backends.cuda.passes.normed import join_normed
from litegpu.gpu.backends.cuda.passes.pair import join_pairs
from litegpu.gpu.backends.cuda.passes.phases import join_phases
from litegpu.gpu.backends.cuda.passes.places import join_places
from litegpu.gpu.backends.cuda.passes.pooled import join_pooled
from litegpu.gpu.backends.cuda.passes.prologue import join_prologues
from litegpu.gpu.backends.cuda.passes.row_moments import tell_moments
from litegpu.gpu.backends.cuda.passes.row_norm import join_row_norms
from litegpu.gpu.backends.cuda.passes.scaled import join_scaled
from litegpu.gpu.backends.cuda.passes.separable import join_separable
from litegpu.gpu.backends.cuda.passes.shuffles import join_shuffles
from litegpu.gpu.backends.cuda.passes.strips import join_strips
from litegpu.gpu.backends.cuda.passes.windows import join_windows
from litegpu.gpu.backends.cuda.passes.zero_points import part_zero_points
from litegpu.gpu.kernels.context import KernelContext, Launch, NativeKernel
from litegpu.gpu.kernels.native import ByteWork
from litegpu.gpu.lang.features import Features

#: Elements that an operator computes, on average, from which on kernels take longer than to be launched: of networks of
#: so many multiplications for each element, or of many for one image, and of others; and multiplications for each
#: element from which on whole numbers are faster than float16 there.
MANY, LARGE, LARGE_OF_FEW, MANY_EACH_OF_LARGE = 60, 1e5, 2e5, 15
#: The same where weights have zero points, which take longer in whole numbers: many multiplications twice as long.
LARGE_OF_ZERO_POINTS, LARGE_OF_FEW_ZERO_POINTS = 3e6, 3.7e5
#: The latter below, where float16 has fewer kernels: for networks of so many multiplications for one image that look up
#: few elements, and for others. (Measured on an H100: tests/gpu/delegate/measured_arithmetic.py.)
MANY_EACH_OF_SOME, SOME_PRODUCTS, FEW_TABLES, MANY_EACH = 25, 1e8, 0.02, 120

#: Keys up to which one kernel of the language takes no longer than native products.
FEW_KEYS = 32

_LAUNCHES: dict[type[graph.Op], Callable[[KernelContext], list[Launch] | None]] = {
    graph.Attention: attention.build,
    graph.Conv2D: convolution.build,
    graph.Custom: recurrent.build,
    graph.DepthwiseConv2D: squeeze.build_depthwise,
    graph.Excite: excite.build,
    graph.GroupNorm: group_norm.build,
    graph.IntegerAttention: byte_attention.build,
    graph.IntegerConv2D: integer.build,
    graph.IntegerDepthwiseConv2D: depthwise.build,
    graph.IntegerExcite: byte_excite.build,
    graph.IntegerInvertedConv2D: widening.build_bytes,
    graph.IntegerSeparableConv2D: byte_inverted.build,
    graph.IntegerSoftmax: softmax.build,
    graph.IntegerSqueeze: byte_squeeze.build,
    graph.InvertedConv2D: widening.build,
    graph.JoinedMoments: moments.build,
    graph.Lookup: lookup.build,
    graph.MatMul: matmul.build,
    graph.MeanConv2D: mean.build,
    graph.MomentsConv2D: pointwise.build_with_moments,
    graph.PairConv2D: pair.build,
    graph.PointwiseConv2D: pointwise.build,
    graph.Pool2D: pool.build,
    graph.PooledConv2D: pooled.build,
    graph.RowMoments: pointwise.nothing,
    graph.SeparableConv2D: separable.build,
    graph.Squeeze: squeeze.build,
    graph.TransposeConv2D: transpose.build,
}


class CudaNative:
    """The native kernels and their fusions, on devices that have the instructions."""

    def launches(self, ctx: KernelContext) -> list[Launch] | None:
        capability = ctx.features.capability
        if capability < LEAST_CAPABILITY or type(ctx.node.op) not in _LAUNCHES:
            return None
        found = _LAUNCHES[type(ctx.node.op)](ctx)
        fit = all(_shared(launch) <= device_shared_bytes(capability) for launch in found or ())
        return found if fit else None

    def join_first(self, graph: graph.Graph, features: Features, half: bool) -> graph.Graph:
        if features.capability < LEAST_CAPABILITY:
            return graph
        graph = join_phases(graph)
        return join_entry(split_groups(graph, features) if half else graph)

    def join_last(self, graph: graph.Graph, features: Features, half: bool) -> graph.Graph:
        if features.capability < LEAST_CAPABILITY:
            return graph
        if half:
            graph = transpose_enlarged(split_few_outputs(graph, features), features)
            graph = copy_borders(graph, features)
            graph = join_shuffles(join_windows(join_scaled(graph, features), features), features)
        graph = part_zero_points(join_inverted(graph, features, half), features)
        if not half:
            return graph
        graph = join_means(
            join_excitations(fold_affine(join_places(join_mixing(graph, features), features)), features), features
        )
        graph = join_prologues(join_separable(graph))
        graph = tell_moments(graph, features)
        graph = join_normed(join_pairs(join_row_norms(graph, features), features), features)
        return join_pooled(join_moves(graph), features)

    def join_bytes(self, graph: graph.Graph, features: Features) -> graph.Graph:
        if features.capability < LEAST_CAPABILITY:
            return graph
        return join_strips(join_byte_attention(join_byte_excitations(graph, features), features))

    def keys_of_bytes(self, features: Features) -> int:
        return byte_attention.MOST_KEYS if features.capability >= LEAST_CAPABILITY else 0

    def joins_moments(self, features: Features) -> bool:
        return features.capability >= LEAST_CAPABILITY

    def norms_groups(self, shape: graph.Shape, groups: int, features: Features) -> bool:
        capability, units = features.capability, features.compute_units
        return capability >= LEAST_CAPABILITY and group_norm.pays(shape, groups, capability, units)

    def multiplies_bytes(self, features: Features, work: ByteWork) -> bool:
        if features.capability < LEAST_CAPABILITY:
            return False
        if work.attentions:  # whose kernels, and those of the norms beside them, save the more launches
            return True
        some = work.products >= SOME_PRODUCTS * max(work.batch, 1) and work.tables <= FEW_TABLES * work.elements
        many = work.products >= MANY * work.elements
        if work.zero_points:
            large = LARGE_OF_ZERO_POINTS if many else LARGE_OF_FEW_ZERO_POINTS
        else:
            large = LARGE if many or some else LARGE_OF_FEW
        if work.elements >= large * work.operators:
            return work.products >= MANY_EACH_OF_LARGE * work.elements
        least = MANY_EACH_OF_SOME if some else MANY_EACH
        return not work.zero_points and work.products >= least * work.elements

    def attention_pays(self, depth: int, columns: int, keys: int, features: Features, half: bool) -> bool | None:
        if features.capability < LEAST_CAPABILITY:
            return None
        return keys <= FEW_KEYS or attention.fits(depth, columns, features, half)


def _shared(launch: Launch) -> int:
    """Bytes of shared memory of a workgroup."""
    return launch.kernel.shared_bytes if isinstance(launch.kernel, NativeKernel) else 0
