"""Models on which the official runtime crashes, or reads and writes beyond its tensors: each kind refused, by name.

Each was found by running damaged models (scripts/fuzz). Beside each stands the same model as it should be, which runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import OpResolverType
from mutation.seeds import seed_model

from litegpu import Interpreter, InvokeError, LiteGpuError, ModelError, TensorError
from litegpu.model import ModelBuilder, TensorType, quantized, read_model, write_model
from litegpu.model.types import Model

T = TensorType
Change = Callable[[Model], Model]


def operator(**values: Any) -> Change:
    """Changes the model's first operator."""

    def change(model: Model) -> Model:
        first, *rest = model.main.operators
        options = {**first.options, **values.pop("options", {})}
        changed = dataclasses.replace(first, options=options, **values)
        main = dataclasses.replace(model.main, operators=(changed, *rest))
        return dataclasses.replace(model, subgraphs=(main, *model.subgraphs[1:]))

    return change


def operand(position: int, **values: Any) -> Change:
    """Changes an input of the first operator; outputs are counted from -1 backwards."""

    def change(model: Model) -> Model:
        first = model.main.operators[0]
        index = first.inputs[position] if position >= 0 else first.outputs[-1 - position]
        tensors = list(model.main.tensors)
        if "shape" in values:
            values.setdefault("shape_signature", values["shape"])
        tensors[index] = dataclasses.replace(tensors[index], **values)
        main = dataclasses.replace(model.main, tensors=tuple(tensors))
        return dataclasses.replace(model, subgraphs=(main, *model.subgraphs[1:]))

    return change


def ints(*values: int) -> dict[str, Any]:
    return dict(data=np.array(values, np.int32), shape=(len(values),))


WRONG: dict[str, tuple[str, Change, str]] = {
    **{
        f"{name} without options": (f"further {name}", operator(custom_options=b""), "options")
        for name in ("AudioSpectrogram", "Mfcc", "TFLite_Detection_PostProcess", "MaxUnpooling2D",
                     "MaxPoolingWithArgmax2D", "Convolution2DTransposeBias")
    },
    "options that are no map": ("further Mfcc", operator(custom_options=b"\x01\x02\x03"), "FlexBuffers|dct"),
    "options that lead outside": ("further Mfcc", operator(custom_options=b"\xff\xff\xff\x26\x01"), "FlexBuffers"),
    "too few anchors": ("further TFLite_Detection_PostProcess", operand(2, shape=(2, 4), data=np.ones((2, 4), "f4")),
                        "anchors"),
    "scores of other classes": ("further TFLite_Detection_PostProcess", operand(1, shape=(1, 6, 9)), "scores"),
    **{
        f"{name} with states of {type_.name}": (f"further {name}", operand(position, type=type_), "its state")
        for name, position in (("svdf", 4), ("lstm", 18), ("sequence_lstm", 19), ("basic_lstm", 4),
                               ("bidirectional_lstm", 38))
        for type_ in (T.BOOL, T.INT8)
    },
    "an operand less": ("further MaxUnpooling2D", operator(inputs=(0, -1)), "not optional"),
    **{
        f"{name} into another type": (seed, operand(-1, type=T.FLOAT16), "type")
        for name, seed in (("SOFTMAX", "op SOFTMAX 0"), ("REDUCE_MIN", "op REDUCE_MIN 0"), ("MEAN", "op MEAN 0"),
                           ("MUL", "op MUL 0"), ("RESIZE_BILINEAR", "op RESIZE_BILINEAR 0"),
                           ("SEGMENT_SUM", "further SEGMENT_SUM"), ("UNSORTED", "further UNSORTED_SEGMENT_MAX"),
                           ("BATCH_MATMUL", "op BATCH_MATMUL 0"), ("EMBEDDING_LOOKUP", "further EMBEDDING_LOOKUP"),
                           ("LSH_PROJECTION", "further LSH_PROJECTION"), ("RESHAPE", "op RESHAPE 0"))
    },
    "integers that become floats": ("op EMBEDDING_LOOKUP 0", operand(1, type=T.INT32), "rows are of type INT32"),
    "an empty SOFTMAX": ("op SOFTMAX 0", operand(0, shape=(1, 0)), "empty|no elements"),
    "a variable as a result": ("int8 SOFTMAX", operand(-1, is_variable=True), "variable"),
    "weights of another type": ("op CONV_2D 0", operand(1, type=T.INT64), "type|bytes"),
    "a longer vector of sizes": ("further dynamic", operand(1, **ints(*[1] * 64)), "64 elements where 8"),
    "crops of another type": ("op BATCH_TO_SPACE_ND 0", operand(2, type=T.FLOAT32), "type"),
    "masks beyond the indices": ("op STRIDED_SLICE 1", operator(options=dict(new_axis_mask=127)), "new_axis_mask"),
    "an offset beside masks": ("op STRIDED_SLICE 0", operator(options=dict(offset=True, end_mask=1)), "offset"),
    "a constant that grows": ("further half_weights", operand(-1, shape=(4, 300, 3, 12)), "cannot become"),
    "a diagonal of another shape": ("further MATRIX_SET_DIAG", operand(1, shape=(0, 3)), "diagonal"),
    "a state that is no variable": ("further bidirectional_rnn", operand(4, is_variable=False), "before|variable"),
    "a part of a gate": ("further bidirectional_lstm", lambda m: operator(
        inputs=tuple(-1 if k == 29 else i for k, i in enumerate(m.main.operators[0].inputs)))(m), "input gate"),
    "sixteen bits without a scale": ("int16 SQRT", operand(0, quantization=None), "no scale"),
    "steps of no size": ("further REDUCE_WINDOW", operand(3, data=np.zeros(2, np.int64)), "strides"),
    "an image of no size": ("op RESIZE_NEAREST_NEIGHBOR 0", operand(1, **ints(0, 4)), "resizes to"),
    "places of other slices": ("further STABLEHLO_GATHER", operand(1, shape=(3, 0)), "slices"),
    "indices beyond the result": ("further EMBEDDING_LOOKUP_SPARSE",
                                  operand(1, data=np.array([[0, 0], [2**20, 0]], np.int32)), "indices"),
    "STABLEHLO into another type": ("further STABLEHLO_MAXIMUM", operand(-1, type=T.BOOL), "type"),
    "an empty assignment": ("op ABS 0", operand(0, shape=(2**31 - 1, 0)), "elements"),
    "weights that are computed": ("further quantized_lstm", lambda m: operator(
        inputs=(*m.main.operators[0].inputs[:2], 0, *m.main.operators[0].inputs[3:]))(m), "no constants"),
    "strings that become numbers": ("further GATHER_ND_strings", operand(-1, type=T.FLOAT32), "strings"),
    "inputs of other shapes": ("op ATAN2 0", operand(0, shape=(16777217,)), "shapes"),
    "a shift by nothing": ("further STABLEHLO_SHIFT_LEFT", operand(1, shape=(0,)), "shapes"),
    "lengths beyond the extent": ("further REVERSE_SEQUENCE", operand(1, **ints(1, 2, 300)), "lengths"),
    "a sparse encoding of another shape": ("further sparse_weights", operand(1, shape=(3, 16)), "sparse"),
    "an empty tensor with a huge extent": ("op ABS 0", operand(0, shape=(0, 2**31 - 1, 2**20)), "elements"),
    "a stride beyond memory": ("op TRANSPOSE_CONV 0", operator(options=dict(stride_h=2097153)), "stride_h"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_refused(name: str) -> None:
    seed, change, message = WRONG[name]
    model = read_model(seed_model(seed))
    with pytest.raises((ModelError, InvokeError), match=message):  # the latter if a delegate could have run it
        Interpreter(model_content=write_model(change(model))).allocate_tensors()


@pytest.mark.parametrize("seed", sorted({seed for seed, _, _ in WRONG.values()}))
def test_the_same_as_it_should_be(seed: str) -> None:
    interpreter = Interpreter(model_content=seed_model(seed))
    interpreter.allocate_tensors()
    for details in interpreter.get_input_details():
        interpreter.set_tensor(details["index"], np.ones(details["shape"], details["dtype"]))
    if seed not in ("further dynamic", "further TFLite_Detection_PostProcess"):  # which want other values
        interpreter.invoke()


@pytest.mark.parametrize("content", [b"\xff" * 20, b"\x02\0\0\0", b"\x01\0\0\0\x0c\0\0\0\xff\xff\xff\x7f", b""])
def test_strings_lie_within_their_constant(content: bytes) -> None:
    model = ModelBuilder()
    strings = model.constant([b"ab", b"c"], type=T.STRING)
    model.output(model.op("GATHER", [strings, model.constant([1])], (1,)))
    whole = model.model()
    read_model(write_model(whole))
    if content:
        with pytest.raises(ModelError, match="strings"):
            read_model(write_model(operand(0, data=np.frombuffer(content, np.uint8))(whole)))


def test_strings_are_there_before_they_are_read() -> None:
    interpreter = Interpreter(model_content=seed_model("further SQUEEZE_strings"))
    interpreter.allocate_tensors()
    with pytest.raises(InvokeError, match="strings"):
        interpreter.invoke()
    for index in (0, 1):
        with pytest.raises(TensorError, match="no strings yet"):
            interpreter.get_tensor(index)
        with pytest.raises(TensorError, match="no view"):
            interpreter.tensor(index)()
    interpreter.set_tensor(0, np.array([[b"ab", b"c"]], dtype=np.object_))
    interpreter.invoke()
    assert interpreter.get_tensor(1).tolist() == [b"ab", b"c"]


def test_variables_are_assigned_before_they_are_read() -> None:
    model = read_model(seed_model("further call_once"))
    read_model(write_model(model))
    start = model.subgraphs[1]
    other = dataclasses.replace(start.operators[0], options={**start.operators[0].options, "shared_name": "w"})
    changed = dataclasses.replace(start, operators=(other, *start.operators[1:]))
    with pytest.raises(ModelError, match="reads the variable 'v'"):
        read_model(write_model(dataclasses.replace(model, subgraphs=(model.main, changed))))


def test_there_are_no_details_of_subgraphs_that_do_not_exist() -> None:
    interpreter = Interpreter(model_content=seed_model("op ADD 0"))
    for subgraph in (1, -1, 7):
        with pytest.raises(TensorError, match="subgraph"):
            interpreter._get_tensor_details(0, subgraph)


@pytest.mark.parametrize("name", ["RANDOM_STANDARD_NORMAL", "FILL_run", "dynamic"])
def test_sizes_that_the_caller_gives_are_checked(name: str) -> None:
    interpreter = Interpreter(model_content=seed_model(f"further {name}"))
    interpreter.allocate_tensors()
    for details in interpreter.get_input_details():
        wanted = 2**29 if details["dtype"] is np.int32 else 1
        interpreter.set_tensor(details["index"], np.full(details["shape"], wanted, details["dtype"]))
    with pytest.raises(InvokeError, match="cannot be used"):
        interpreter.invoke()


def test_what_kernels_abort_on() -> None:
    def run(model: ModelBuilder, resolver: OpResolverType) -> None:
        interpreter = Interpreter(model_content=model.build(), experimental_op_resolver_type=resolver)
        interpreter.allocate_tensors()
        interpreter.invoke()

    model = ModelBuilder()
    a, b = model.input("a", (4,), T.INT16, quantization=quantized(0.5, 0)), model.input("b", (4,), T.INT16)
    model.output(model.op("EQUAL", [a, b], (4,), type=T.BOOL))
    with pytest.raises(InvokeError, match="scale"):
        run(model, OpResolverType.AUTO)
    model = ModelBuilder()
    x = model.input("x", (2, 4), T.UINT8, quantization=quantized(0.5, 0))
    model.output(model.op("SOFTMAX", [x], (2, 4), dict(beta=0.0), quantization=quantized(1 / 256, 0)))
    run(model, OpResolverType.AUTO)
    with pytest.raises(InvokeError, match="beta"):
        run(model, OpResolverType.BUILTIN_REF)
    model = ModelBuilder()
    a, b = (model.input(n, (4,), T.UINT8, quantization=quantized(0.5, 0)) for n in "ab")
    model.output(model.op("ADD", [a, b], (4,), type=T.BOOL))  # the kernel makes bytes of it, whose scale is missing
    with pytest.raises(InvokeError, match="scale"):
        run(model, OpResolverType.AUTO)
    pooling = read_model(seed_model("further MaxPoolingWithArgmax2D"))
    main = dataclasses.replace(pooling.main, outputs=pooling.main.outputs[:1])
    interpreter = Interpreter(model_content=write_model(dataclasses.replace(pooling, subgraphs=(main,))))
    with pytest.raises(InvokeError, match="nothing reads one of its results"):
        interpreter.allocate_tensors()


def test_names_that_are_no_text() -> None:
    content = seed_model("op ADD 0").replace(b"input_0", b"inp\x91t_0")
    assert content != seed_model("op ADD 0")
    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    with pytest.raises(LiteGpuError, match="Unicode"):
        interpreter.get_input_details()


def test_vectors_that_tables_share_do_not_make_a_large_model() -> None:
    """A thousand tensors with one shape vector of fifty thousand extents."""
    model = ModelBuilder()
    for _ in range(1000):
        model.tensor((2,))
    model.output(model.op("ABS", [model.input("x", (2,))], (2,)))
    content = bytearray(model.build())
    vector = b"\x01\0\0\0\x02\0\0\0"
    long = len(content) + (-len(content)) % 4
    content += bytes(long - len(content)) + (50_000).to_bytes(4, "little") + bytes(4 * 50_000)
    places = [i for i in range(0, long, 4) if content[i : i + 8] == vector]
    shared = 0
    for i in range(0, long, 4):  # every offset that leads to a shape leads to the long one
        target = i + int.from_bytes(content[i : i + 4], "little")
        if target in places:
            content[i : i + 4] = (long - i).to_bytes(4, "little")
            shared += 1
    assert shared > 500
    with pytest.raises(ModelError, match="share"):
        read_model(bytes(content))


@pytest.mark.parametrize("path", ["a\0b", "\0", ".", "a\ud800b", "x" * 5000])
def test_paths_that_are_none(path: str) -> None:
    with pytest.raises(ModelError):
        read_model(path)
    with pytest.raises(ModelError):
        Interpreter(model_path=path)


@pytest.mark.parametrize("name", ["RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL"])
@pytest.mark.parametrize("shape, fits", [([2, 3], True), ([0, 3], True), ([2, -1], False), ([-1, -1], False)])
def test_random_numbers_have_a_shape_without_negative_extents(name: str, shape: list[int], fits: bool) -> None:
    """The kernel writes past its memory otherwise."""
    model = ModelBuilder()
    model.input("x", (1,))
    model.output(model.op(name, [model.constant(shape)], tuple(max(n, 1) for n in shape), dict(seed=1, seed2=2)))
    if fits:
        read_model(model.build())
        return
    with pytest.raises(ModelError, match=rf"{name}: its shape is"):
        read_model(model.build())


def test_a_variable_of_integers_is_no_operand() -> None:
    """Nothing sets it, and as the shape of another it made the official kernel abort."""
    model = ModelBuilder()
    x = model.input("x", (2,), type=TensorType.INT32)
    state = model.variable("state", (1,), type=TensorType.INT32)
    model.output(model.op("BROADCAST_ARGS", [x, state], (2,), type=TensorType.INT32))
    with pytest.raises(ModelError, match="a variable of integers, which no operator ever sets"):
        Interpreter(model_content=model.build())


def loop(step: list[int] | int, state: tuple[int, ...] = (), *, whole: bool = True) -> bytes:
    """Adds `step` to its state until that is 5 or more; the condition is one of the state, or of a number."""
    model = ModelBuilder()
    x = model.input("x", state, type=TensorType.INT32)
    condition, body = model.subgraph("condition"), model.subgraph("body")
    a = condition.input("a", state, type=TensorType.INT32)
    number = a if whole else condition.op("RANK", [a], ())
    condition.output(condition.op("LESS", [number, condition.constant(5)], state if whole else ()))
    b = body.input("b", state, type=TensorType.INT32)
    body.output(body.op("ADD", [b, body.constant(np.array(step, np.int32))], state))
    options = dict(cond_subgraph_index=1, body_subgraph_index=2)
    model.output(model.op("WHILE", [x], state, options, type=TensorType.INT32))
    return model.build()


def test_a_loops_condition_stays_a_value() -> None:
    """The kernel reads the first element of it, there or not."""
    interpreter = Interpreter(model_content=loop(2))
    interpreter.allocate_tensors()
    interpreter.set_tensor(0, np.int32(0))
    interpreter.invoke()
    assert interpreter.get_tensor(interpreter.get_output_details()[0]["index"]) == 6
    with pytest.raises(ModelError, match=r"WHILE: the shapes \[\[0\]\], .* give its condition the shape \[0\]"):
        Interpreter(model_content=loop([]))
    Interpreter(model_content=loop([], whole=False))


@pytest.mark.parametrize("kind", [T.INT8, T.UINT8, T.INT16])
def test_weights_of_quantized_inputs_are_no_floats(kind: TensorType) -> None:
    model = ModelBuilder()
    x = model.input("x", (1, 4, 4, 2), kind, quantization=quantized(0.5, 0))
    weights = model.constant(np.zeros((3, 1, 1, 2), np.float32))
    options = dict(padding=1, stride_w=1, stride_h=1, dilation_w_factor=1, dilation_h_factor=1)
    model.output(model.op("CONV_2D", [x, weights], (1, 4, 4, 3), options, type=kind, quantization=quantized(0.5, 0)))
    with pytest.raises(ModelError, match=f"its input is of type {kind.name}, its weights of FLOAT32"):
        Interpreter(model_content=model.build())
