"""The operators of StableHLO, few of which the official runtime can run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from litegpu.model.ops.checks import Tensors, require
from litegpu.model.ops.record import ANY, BOOL, INT32, NUMBER, SIGNED, UNSIGNED, WHOLE, Gpu, Op
from litegpu.model.ops.rules import EACH, alike_hazard, rows_alike, same_shape
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.ops.spans import added, among, any_word, multiplied
from litegpu.model.types import Operator


def _gather_hazard(operator: Operator, tensors: Tensors) -> None:
    """STABLEHLO_GATHER, whose attributes are those of the StableHLO specification."""
    operand, indices = (tensors[index].shape for index in operator.inputs)
    result = tensors[operator.outputs[0]].shape
    options = operator.options
    require(len(indices) > 0, "its indices have no axis")
    vector = options.get("index_vector_dim", 0)
    require(0 <= vector <= len(indices), f"its option index_vector_dim is {vector}")
    batch_rank = len(indices) - (vector < len(indices))
    offsets, collapsed = options.get("offset_dims", ()), options.get("collapsed_slice_dims", ())
    require(
        _distinct_below(offsets, len(result))
        and _distinct_below(collapsed, len(operand))
        and _distinct_below(options.get("start_index_map", ()), len(operand))
        and len(options.get("slice_sizes", ())) == len(operand)
        and len(offsets) + len(collapsed) == len(operand)
        and len(offsets) + batch_rank == len(result),
        "its dimension numbers do not fit the shapes",
    )
    places = [extent for axis, extent in enumerate(indices) if axis != vector]
    sizes = [size for axis, size in enumerate(options["slice_sizes"]) if axis not in collapsed]
    require(
        [extent for axis, extent in enumerate(result) if axis not in offsets] == places
        and [result[axis] for axis in sorted(offsets)] == sizes
        and len(options["start_index_map"]) == (indices[vector] if vector < len(indices) else 1)
        and all(0 < size <= extent for size, extent in zip(options["slice_sizes"], operand, strict=True)),
        f"its slices of {list(options['slice_sizes'])} at {list(indices)} do not make shape {list(result)}",
    )


def _scatter_hazard(operator: Operator, tensors: Tensors) -> None:
    """The kernel reads the axis of the indices that has the places, which the specification lets them lack."""
    operand, indices, updates = (tensors[index].shape for index in operator.inputs)
    options = operator.options
    vector, order = options.get("index_vector_dim", 0), options.get("scatter_dims_to_operand_dims", ())
    windows, inserted = options.get("update_window_dims", ()), options.get("inserted_window_dims", ())
    require(
        0 <= vector < len(indices)
        and _distinct_below(windows, len(updates))
        and _distinct_below(inserted, len(operand))
        and _distinct_below(order, len(operand))
        and len(windows) + len(inserted) == len(operand)
        and len(order) == indices[vector]
        and [n for d, n in enumerate(updates) if d not in windows] == [n for d, n in enumerate(indices) if d != vector],
        "its dimension numbers do not fit the shapes",
    )


def _distinct_below(numbers: Sequence[int], limit: int) -> bool:
    return len(set(numbers)) == len(numbers) and all(0 <= number < limit for number in numbers)


def _declared_shape(node: ShapeNode) -> list[Shape]:
    return [node.declared]


def _pad_shape(node: ShapeNode) -> list[Shape]:
    x = node.shape(0)
    paddings = [node.option(name, ()) for name in ("edge_padding_low", "edge_padding_high", "interior_padding")]
    node.require(all(len(p) == len(x) for p in paddings))
    sizes = zip(x, *paddings, strict=True)
    result = tuple(int(low + n + max(0, n - 1) * inner + high) for n, low, high, inner in sizes)
    node.require(min(result, default=0) >= 0)
    return [result]


_ATTRIBUTES = "its attributes hold the sizes of one batch"
_BINARY = Gpu(
    1, inputs=(NUMBER | BOOL, NUMBER | BOOL), counts=2, quantized=False, widens=True, small=WHOLE | UNSIGNED, span=among
)
_SUM = dataclasses.replace(_BINARY, span=added)
_PRODUCT = dataclasses.replace(_SUM, span=multiplied)

_CASE = "as IF, of any number of branches, of which one is run"
_FLOW = "control flow: the operators around it, and in what it calls, are divided among delegates by themselves"
_NO_KERNEL = "the official runtime has no kernel for it, so that converters write it for other compilers only"

# fmt: off
OPS = (
    Op("STABLEHLO_ABS", "x -> =x", stays=_NO_KERNEL),
    Op(
        "STABLEHLO_ADD", "a b -> =a", shape=same_shape, batch=rows_alike, repeating=EACH, shape_hazard=alike_hazard,
        gpu=_SUM,
    ),
    Op(
        "STABLEHLO_AND", "a b -> =a", shape=same_shape, batch=rows_alike, repeating=EACH, shape_hazard=alike_hazard,
        gpu=Gpu(1, inputs=(INT32 | BOOL, INT32 | BOOL), counts=2, quantized=False, small=WHOLE | UNSIGNED,
            span=any_word),
    ),
    Op("STABLEHLO_BROADCAST_IN_DIM", "x -> .", moves="elements", stays=_NO_KERNEL),
    Op("STABLEHLO_CASE", "i:int32 x*:object -> .*:object", calls="branch", moves="elements", linked=_CASE),
    Op("STABLEHLO_CBRT", "x -> =x", stays=_NO_KERNEL),
    Op("STABLEHLO_CLAMP", "a x b -> .", stays=_NO_KERNEL),
    Op("STABLEHLO_COMPARE", "a b -> .", stays=_NO_KERNEL),
    Op(
        "STABLEHLO_COMPOSITE", "x*:object -> .*:object", calls="all", moves="elements",
        stays="what it stands for is put in its place when the model is opened",
    ),
    Op("STABLEHLO_CONCATENATE", "x+ -> .", moves="elements", stays=_NO_KERNEL),
    Op("STABLEHLO_CONVERT", "x -> .", stays=_NO_KERNEL),
    Op("STABLEHLO_CONVOLUTION", "a b -> .", stays=_NO_KERNEL),
    Op("STABLEHLO_COSINE", "x -> =x", stays=_NO_KERNEL),
    Op("STABLEHLO_CUSTOM_CALL", "x*:object -> .*:object", stays="it names a function of another program"),
    Op("STABLEHLO_DIVIDE", "a b -> =a", stays=_NO_KERNEL),
    Op("STABLEHLO_DOT_GENERAL", "a b -> .", stays=_NO_KERNEL),
    Op("STABLEHLO_DYNAMIC_SLICE", "x at* -> .", moves="elements", stays=_NO_KERNEL),
    Op("STABLEHLO_DYNAMIC_UPDATE_SLICE", "x u at* -> .", moves="elements", stays=_NO_KERNEL),
    Op("STABLEHLO_EXPONENTIAL", "x -> =x", stays=_NO_KERNEL),
    Op("STABLEHLO_FLOOR", "x -> =x", stays=_NO_KERNEL),
    Op(
        "STABLEHLO_GATHER", "x at -> .", shape=_declared_shape, hazard=_gather_hazard, moves="elements",
        without=_ATTRIBUTES, gpu=Gpu(1, inputs=(ANY, INT32), counts=2, quantized=False,
            notes="constant or runtime indices"),
    ),
    Op("STABLEHLO_IOTA", "-> .", moves="elements", stays=_NO_KERNEL),
    Op("STABLEHLO_LOG", "x -> =x", stays=_NO_KERNEL),
    Op("STABLEHLO_LOGISTIC", "x -> =x", stays=_NO_KERNEL),
    Op(
        "STABLEHLO_MAXIMUM", "a b -> =a", shape=same_shape, batch=rows_alike, repeating=EACH,
        shape_hazard=alike_hazard, gpu=_BINARY,
    ),
    Op(
        "STABLEHLO_MINIMUM", "a b -> =a", shape=same_shape, batch=rows_alike, repeating=EACH,
        shape_hazard=alike_hazard, gpu=_BINARY,
    ),
    Op(
        "STABLEHLO_MULTIPLY", "a b -> =a", shape=same_shape, batch=rows_alike, repeating=EACH,
        shape_hazard=alike_hazard, gpu=_PRODUCT,
    ),
    Op("STABLEHLO_NEGATE", "x -> =x", stays=_NO_KERNEL),
    Op("STABLEHLO_OR", "a b -> =a", stays=_NO_KERNEL),
    Op(
        "STABLEHLO_PAD", "x v -> .", shape=_pad_shape, moves="elements", without=_ATTRIBUTES,
        gpu=Gpu(1, inputs=(ANY, ANY), counts=2, quantized=False, notes="constant padding value"),
    ),
    Op("STABLEHLO_POWER", "a b -> =a", stays=_NO_KERNEL),
    Op("STABLEHLO_REDUCE", "x* -> .*", stays=_NO_KERNEL),
    Op(
        "STABLEHLO_REDUCE_WINDOW", "x* -> .*", shape=_declared_shape, without=_ATTRIBUTES,
        gpu=Gpu(1, inputs=(NUMBER | BOOL, NUMBER | BOOL), counts=2, quantized=False, small=WHOLE,
            notes="one input; ADD, MULTIPLY, MAXIMUM, MINIMUM or AND as the body; begins with a constant"),
    ),
    Op("STABLEHLO_REMAINDER", "a b -> =a", stays=_NO_KERNEL),
    Op("STABLEHLO_RESHAPE", "x -> .", moves="shape", stays=_NO_KERNEL),
    Op("STABLEHLO_RNG_BIT_GENERATOR", "x -> . .", stays="numbers of 64 bits without a sign, of which WGSL has none"),
    Op("STABLEHLO_RSQRT", "x -> =x", stays=_NO_KERNEL),
    Op(
        "STABLEHLO_SCATTER", "x at u -> .", shape=same_shape, hazard=_scatter_hazard, without=_ATTRIBUTES,
        gpu=Gpu(1, inputs=(NUMBER | BOOL, INT32, NUMBER | BOOL), counts=3, quantized=False, small=WHOLE,
            notes="constant or runtime indices; the body assigns, or is ADD, MULTIPLY, MAXIMUM or MINIMUM"),
    ),
    Op("STABLEHLO_SELECT", "p a b -> .", moves="elements", stays=_NO_KERNEL),
    Op(
        "STABLEHLO_SHIFT_LEFT", "a b -> =a", shape=same_shape, batch=rows_alike, repeating=EACH,
        shape_hazard=alike_hazard, gpu=Gpu(1, inputs=(INT32, INT32), counts=2, quantized=False, small=SIGNED),
    ),
    Op("STABLEHLO_SLICE", "x -> .", moves="elements", stays=_NO_KERNEL),
    Op("STABLEHLO_SORT", "x* -> .*", stays=_NO_KERNEL),
    Op("STABLEHLO_SUBTRACT", "a b -> =a", stays=_NO_KERNEL),
    Op("STABLEHLO_TANH", "x -> =x", stays=_NO_KERNEL),
    Op("STABLEHLO_TRANSPOSE", "x -> .", moves="elements", stays=_NO_KERNEL),
    Op("STABLEHLO_WHILE", "x*:object -> .*:object", calls="loop", moves="elements", stays=_FLOW),
)
# fmt: on
