"""Operators that keep a state from step to step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from litegpu.model.ops.batch_node import BatchNode, Place
from litegpu.model.ops.checks import QUANTIZED, Tensors, require
from litegpu.model.ops.record import BIAS, FLOAT, Gpu, Op
from litegpu.model.ops.shape_node import Shape, ShapeNode
from litegpu.model.types import Operator, TensorType

#: Input weights, recurrent weights, peepholes, biases, projection and its bias.
_LAYER = "i~ i i i r~ r r r p~ p~ p~ b~ b b b m~ n~"
_RNN = "w:float32|float16|int8|uint8|int4|int2 r:=w b:float32 h:float32"
#: How many inputs the basic kernel has: data, the state, weights, bias, cells.
_BASIC = 5
_INPUTS = (*[FLOAT] * 12, *[BIAS] * 4, FLOAT, BIAS, FLOAT)


def _lstm_shape(node: ShapeNode) -> list[Shape]:
    node.require(node.count >= 20 and len(node.operator.outputs) == 1)
    x, cells, recurrent = node.shape(0), node.shape(2), node.shape(8)
    node.require(len(x) == (2 if node.operator.name == "LSTM" else 3) and len(recurrent) == len(cells) == 2)
    batch = x[1] if len(x) == 3 and node.option("time_major", False) else x[0]
    kept = math.prod(node.shape(18)), math.prod(node.shape(19))
    node.require(kept == (batch * recurrent[1], batch * cells[0]) and x[-1] == cells[1])
    return [(*x[:-1], recurrent[1])]


def _lstm_batch(node: BatchNode) -> Place:
    """What it keeps from one inference to the next has a row for each sequence, which no other node reads."""
    place = node.only(0)
    sequences = 1 if node.rank(0) == 3 and node.option("time_major", False) else 0
    node.require(place.axis == sequences and place == Place(sequences), "its sequences are not the rows of the batch")
    for i in (18, 19):
        node.require(node.has(i) and node.tensor(i).is_variable, "it has no variables of its own for what it keeps")
        shape, index = node.shape(i), node.operator.inputs[i]
        node.require(
            shape[0] == node.owner.old and node.owner.users[index] == 1, "its variables have no row for each sequence"
        )
        node.owner.put(index, Place())
    return place


def _lstm_hazard(operator: Operator, tensors: Tensors) -> None:
    if len(operator.inputs) < 20:
        require(-1 not in operator.inputs, "the basic kernel has no optional inputs")
        _check_state_types(operator, tensors, 1, 4)
        return
    _check_layer(operator.inputs, 0)
    _check_state_types(operator, tensors, 18, 19)
    quantized = tensors[operator.inputs[0]].type is TensorType.INT8
    computed = [i for i in operator.inputs[1:18] if i >= 0 and not tensors[i].is_constant]
    require(not (quantized and computed), f"its weights {computed} are no constants, which the integer kernel sums up")
    rank = 2 if operator.name == "LSTM" else 3
    shape = tensors[operator.inputs[0]].shape
    require(len(shape) == rank, f"its input has shape {list(shape)} where rank {rank} is needed")


def _bidirectional_hazard(operator: Operator, tensors: Tensors) -> None:
    _check_layer(operator.inputs, 0)
    _check_layer(operator.inputs, 17)
    _check_state_types(operator, tensors, 35, 36, 37, 38)
    shape = tensors[operator.inputs[0]].shape
    require(len(shape) == 3, f"its input has shape {list(shape)} where rank 3 is needed")
    auxiliary = [index for index in operator.inputs[40:] if index >= 0]
    require(
        operator.inputs[39] >= 0 or not auxiliary, "it has weights of an auxiliary input (40 to 47), but not that (39)"
    )


def _svdf_hazard(operator: Operator, tensors: Tensors) -> None:
    _check_state_types(operator, tensors, 4)


def _states_hazard(operator: Operator, tensors: Tensors) -> None:
    """The kernel writes to the hidden states without asking whether it may."""
    for position in (4, 8):
        tensor = tensors[operator.inputs[position]]
        require(tensor.is_variable, f"its state, tensor {tensor.index} '{tensor.name}', is no variable")


def _check_state_types(operator: Operator, tensors: Tensors, *positions: int) -> None:
    """States are of the type that the kernel for the input writes, which does not ask."""
    source = tensors[operator.inputs[0]]
    types = {TensorType.FLOAT32} if source.type is TensorType.FLOAT32 else QUANTIZED
    for index in (operator.inputs[position] for position in positions):
        require(
            index < 0 or tensors[index].type in types,
            f"its input is of type {source.type.name}, its state, tensor {index} "
            f"'{tensors[index].name}', of {tensors[index].type.name}",
        )


def _check_layer(inputs: Sequence[int], first: int) -> None:
    """The input gate is there as a whole, or left out as a whole; all other gates are there."""
    names = (*range(2, 5), *range(6, 9), *range(13, 16))
    missing = [first + position for position in names if inputs[first + position] < 0]
    require(not missing, f"it lacks its inputs {missing}")
    gate = [inputs[first + position] < 0 for position in (1, 5, 12)]
    require(all(gate) or not any(gate), f"it has only a part of its input gate (1, 5 and 12 from input {first} on)")
    peephole = [inputs[first + position] < 0 for position in (10, 11)]
    require(all(peephole) or not any(peephole), f"it has only a part of its peepholes (10 and 11 from {first} on)")


def _lstm_work(options: Mapping[str, Any], given: Sequence[Shape], results: int) -> int | None:
    """Each step multiplies with all matrices; of those that stand behind the input the last two are the states, in the
    basic kernel the first and the last."""
    matrices = [shape for shape in given[1:] if len(shape) == 2]
    return _steps_work(given, matrices[1:2] if len(given) == _BASIC else matrices[:-2])


def _pair_work(options: Mapping[str, Any], given: Sequence[Shape], results: int) -> int | None:
    """Both matrices stand behind the input."""
    return _steps_work(given, given[1:3])


def _steps_work(given: Sequence[Shape], matrices: Sequence[Shape]) -> int | None:
    """The products of each row of the input, of each step, with all matrices."""
    return math.prod(given[0][:-1]) * sum(math.prod(shape) for shape in matrices) if matrices else None


def _lstm_version(given: Sequence[Shape | None], options: Mapping[str, Any]) -> int:
    return 2 if options["kernel_type"] else 1


def _rnn_shape(node: ShapeNode) -> list[Shape]:
    x, weights = node.shape(0), node.shape(1)
    node.require(len(x) == (2 if node.operator.name == "RNN" else 3) and len(weights) == 2 and x[-1] == weights[1])
    return [(*x[:-1], weights[0])]


def _svdf_shape(node: ShapeNode) -> list[Shape]:
    x, weights, rank = node.shape(0), node.shape(1), int(node.option("rank"))
    node.require(len(x) == len(weights) == 2 and rank > 0 and weights[0] % rank == 0)
    return [(x[0], weights[0] // rank)]


def _both_shape(node: ShapeNode) -> list[Shape]:
    """Of two layers, which say by their states how much they give."""
    x, states = node.shape(0), (35, 37) if node.operator.name == "BIDIRECTIONAL_SEQUENCE_LSTM" else (4, 8)
    node.require(len(x) == 3)
    forward, backward = (node.shape(i)[-1] for i in states)
    if node.option("merge_outputs", False):
        return [(*x[:-1], forward + backward)]
    return [(*x[:-1], forward), (*x[:-1], backward)]


_STATES = "its states have a row for each sequence"

# fmt: off
OPS = (
    Op(
        "BIDIRECTIONAL_SEQUENCE_LSTM", f"x {_LAYER} {_LAYER} fh fc bh bc a~ w~ w~ w~ w~ w~ w~ w~ w~ -> =x =x^",
        hazard=_bidirectional_hazard, has_weights=True,
        shape=_both_shape, without=_STATES,
        gpu=Gpu(3, inputs=(FLOAT,), counts=(39, 48), ranks=(3, 3), quantized=False,
            notes="as the layer of one direction; without an auxiliary input"),
    ),
    Op(
        "BIDIRECTIONAL_SEQUENCE_RNN", f"x:float32 {_RNN} w2:=w r2:=w b2:float32 h2:float32 a~ aw~ aw2~ -> =x =x^",
        hazard=_states_hazard, has_weights=True,
        shape=_both_shape, without=_STATES,
        gpu=Gpu(3, inputs=(FLOAT,), counts=(9, 12), ranks=(3, 3), quantized=False,
            notes="up to 256 steps; without an auxiliary input"),
    ),
    Op(
        "LSTM", f"x {_LAYER} h c n1? n2? n3? n4? -> . .^ .^ .^", few=(20, "x h w b c -> . .^ .^ .^"), shape=_lstm_shape,
        batch=_lstm_batch, hazard=_lstm_hazard, work=_lstm_work, multiplies=True, has_weights=True,
        version=_lstm_version,
        gpu=Gpu(4, inputs=_INPUTS, counts=(5, 24), ranks=(2, 2),
            notes="one step: the full kernel as the sequence's, or the basic one (5 inputs), whose states may "
            "be variables"),
    ),
    Op(
        "RNN", f"x:float32 {_RNN} -> .:float32", work=_pair_work, multiplies=True, has_weights=True, table="RNNOptions",
        shape=_rnn_shape, without=_STATES,
        gpu=Gpu(3, inputs=(FLOAT,), counts=5, ranks=(2, 2), quantized=False, notes="constant weights"),
    ),
    Op(
        "SVDF", "x:float32|int8 w:float32|uint8|int8 t:float32|uint8|int8|int16 b~ s -> .", hazard=_svdf_hazard,
        work=_pair_work, multiplies=True, has_weights=True,
        shape=_svdf_shape, without=_STATES,
        gpu=Gpu(4, inputs=(FLOAT, FLOAT, FLOAT, BIAS, FLOAT), counts=5, ranks=(2, 2),
            notes="constant weights of filters; int8 in whole numbers, as on the CPU"),
    ),
    Op(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", f"x {_LAYER} h c n1? n2? n3? n4? -> .", shape=_lstm_shape, batch=_lstm_batch,
        hazard=_lstm_hazard, work=_lstm_work, multiplies=True, has_weights=True,
        gpu=Gpu(4, inputs=_INPUTS, counts=(20, 24), ranks=(3, 3),
            notes="constant weights; CIFG, peepholes, projection, layer normalisation, clips; either major; "
            "variable states; layers of 8 bits (16 for the state) as on the CPU, to the last bit"),
    ),
    Op(
        "UNIDIRECTIONAL_SEQUENCE_RNN", f"x:float32 {_RNN} -> .:float32", work=_pair_work, multiplies=True,
        has_weights=True, table="SequenceRNNOptions",
        shape=_rnn_shape, without=_STATES,
        gpu=Gpu(3, inputs=(FLOAT,), counts=5, ranks=(3, 3), quantized=False,
            notes="constant weights; up to 256 steps, either major"),
    ),
)
# fmt: on
