"""Another batch size: each row equals what the original gives for it; what mixes rows is refused by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from batch_networks import NETWORKS

import litegpu
from litegpu.errors import LiteGpuError, ModelError, OptionError, TensorError
from litegpu.model import ModelBuilder, TensorType, read_model, with_batch, write_model
from litegpu.model.types import Model
from litegpu.zoo import build_model

BATCH = 3
F = TensorType.FLOAT32


def official(content: bytes, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, num_threads=1)
    interpreter.allocate_tensors()
    for detail, value in zip(interpreter.get_input_details(), values, strict=True):
        interpreter.set_tensor(detail["index"], value)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def assert_rows_agree(content: bytes, batch: int = BATCH, inputs: list[int] | None = None) -> Model:
    """Runs the model for a batch and the original for each piece of it."""
    original = read_model(content)
    model = with_batch(original, batch, inputs=inputs)
    graph, random = original.main, np.random.default_rng(0)
    carriers = graph.inputs if inputs is None else inputs
    old = graph.tensors[carriers[0]].shape[0]
    whole: list[np.ndarray] = []
    pieces: list[list[np.ndarray]] = [[] for _ in range(batch // old)]
    for i in graph.inputs:
        shape = graph.tensors[i].shape
        if i in carriers:
            value = random.uniform(0, 1, (batch, *shape[1:])).astype(np.float32)
            parts = np.split(value, batch // old)
        else:
            value = random.uniform(0, 1, shape).astype(np.float32)
            parts = [value] * (batch // old)
        whole.append(value)
        for piece, part in zip(pieces, parts, strict=True):
            piece.append(np.ascontiguousarray(part))
    expected = [np.concatenate(rows) for rows in zip(*(official(content, piece) for piece in pieces), strict=True)]
    for got, want in zip(official(write_model(model), whole), expected, strict=True):
        assert got.shape == want.shape and np.isfinite(got).all()
        for row, wanted in zip(got.astype(np.float64), want.astype(np.float64), strict=True):
            assert np.linalg.norm(row - wanted) <= 1e-5 * np.linalg.norm(wanted)
    return model


@pytest.mark.parametrize(
    "name, options",
    [
        ("mobilenet_v1", dict(width=0.25, resolution=64, classes=11)),
        ("deeplab_v3", dict(width=0.25, resolution=33, classes=3)),
        ("posenet", dict()),
    ],
)
def test_example_models(name: str, options: dict[str, object]) -> None:
    assert_rows_agree(build_model(name, **options))


def test_a_loaded_model_takes_any_batch() -> None:
    content = NETWORKS["vision transformer, class token broadcast and reshaped"](1)
    images = np.random.default_rng(2).uniform(0, 1, (64, 8, 8, 3)).astype(np.float32)
    with litegpu.load(content, device="cpu") as model:
        rows = np.concatenate([model(image[None]) for image in images])
        np.testing.assert_allclose(model(images), rows, rtol=1e-4, atol=1e-5)


def test_every_real_model_but_those_with_boxes_takes_a_batch(models_dir: Path) -> None:
    refused = {}
    for path in sorted(models_dir.glob("*.tflite")):
        try:
            main = with_batch(path.read_bytes(), 64).main
        except (TensorError, ModelError) as error:
            refused[path.stem] = str(error)
            continue
        assert all(main.tensors[i].shape[0] == 64 for i in (*main.inputs, *main.outputs))
    assert set(refused) <= {"malformed", "ssd_mobilenet_v1_coco_quant", "style_transfer_quantized_dynamic"}


@pytest.mark.parametrize("name", ["mobilenet_v1_1.0_224_random", "pose_detection", "face_landmark"])
def test_real_models(name: str, models_dir: Path) -> None:
    assert_rows_agree((models_dir / f"{name}.tflite").read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deeplabv3_257_mv_gpu", "style_transfer_f16_384", "pretrainedResnet"])
def test_large_real_models(name: str, models_dir: Path) -> None:
    assert_rows_agree((models_dir / f"{name}.tflite").read_bytes())


def test_one_input_may_carry_the_batch_alone() -> None:
    b = ModelBuilder()
    image, style = b.input("image", (1, 4, 4, 3)), b.input("style", (1, 1, 1, 3))
    y = b.op("MUL", [image, b.op("EXP", [style], (1, 1, 1, 3))], (1, 4, 4, 3))
    b.output(b.op("MEAN", [y, b.constant([1, 2])], (1, 3)))
    for inputs in ([image], [image, style], None):
        model = assert_rows_agree(b.build(), inputs=inputs)
        assert model.main.tensors[style].shape[0] == (1 if inputs == [image] else BATCH)


def test_a_batch_of_several_becomes_another() -> None:
    content = build_model("mobilenet_v1", width=0.25, resolution=32, classes=5, batch=2)
    assert_rows_agree(content, 6)
    one = with_batch(content, 1).main
    assert one.tensors[one.outputs[0]].shape == (1, 5)
    back = with_batch(with_batch(content, 7), 2)
    assert [t.shape for t in back.main.tensors] == [t.shape for t in read_model(content).main.tensors]


def test_the_same_batch_changes_nothing() -> None:
    model = read_model(build_model("mobilenet_v1", width=0.25, resolution=32))
    assert with_batch(model, 1) is model


# Each adds an op to x [1,4,6,8] that ought to keep rows apart, and gives its outputs.
Ops = Callable[[ModelBuilder, int], Sequence[int]]
GOOD: dict[str, Ops] = {
    "slice": lambda b, x: [
        b.op("SLICE", [x, b.constant([0, 1, 0, 0]), b.constant([size, 2, -1, 4])], (1, 2, 6, 4)) for size in (1, -1)
    ],
    "strided_slice": lambda b, x: [
        b.op(
            "STRIDED_SLICE",
            [x, b.constant([0, 1, 0, 0]), b.constant([end, 3, 6, 4]), b.constant([1, 1, 2, 1])],
            (1, 2, 3, 4),
            dict(end_mask=mask),
        )
        for end, mask in ((1, 0), (0, 1), (99, 0))
    ],
    "strided_slice_ellipsis": lambda b, x: [
        b.op(
            "STRIDED_SLICE",
            [x, b.constant([0, 2]), b.constant([0, 4]), b.constant([1, 1])],
            (1, 4, 6, 2),
            dict(ellipsis_mask=1),
        )
    ],
    "transpose_conv": lambda b, x: [
        b.op(
            "TRANSPOSE_CONV",
            [b.constant([1, 8, 12, 2]), b.constant(_normal(2, 2, 2, 8)), x],
            (1, 8, 12, 2),
            dict(stride_h=2, stride_w=2, padding="SAME"),
        )
    ],
    "broadcast_to": lambda b, x: [
        b.op(
            "BROADCAST_TO",
            [b.op("MEAN", [x, b.constant([1, 2])], (1, 1, 1, 8), dict(keep_dims=True)), b.constant([1, 4, 6, 8])],
            (1, 4, 6, 8),
        )
    ],
    "squeeze": lambda b, x: [
        b.op("SQUEEZE", [b.op("MEAN", [x, b.constant([1, 2])], (1, 1, 1, 8), dict(keep_dims=True))], (1, 8),
             dict(squeeze_dims=[1, -2]))
    ],
    "space_to_batch_and_back": lambda b, x: [
        b.op(
            "BATCH_TO_SPACE_ND",
            [
                b.op(
                    "AVERAGE_POOL_2D",
                    [
                        b.op(
                            "SPACE_TO_BATCH_ND",
                            [x, b.constant([2, 3]), b.constant([[0, 0], [0, 0]])],
                            (6, 2, 2, 8),
                        )
                    ],
                    (6, 2, 2, 8),
                    dict(stride_h=1, stride_w=1, filter_width=2, filter_height=2, padding="SAME"),
                ),
                b.constant([2, 3]),
                b.constant([[0, 0], [0, 0]]),
            ],
            (1, 4, 6, 8),
        )
    ],
    "joining": lambda b, x: [
        b.op("CONCATENATION", [x, x], (1, 8, 6, 8), dict(axis=1)),
        b.op("PACK", [x, x], (1, 4, 6, 8, 2), dict(axis=-1, values_count=2)),
        *b.op_multi("SPLIT", [b.constant(-1), x], [((1, 4, 6, 4), F)] * 2, dict(num_splits=2)),
        *b.op_multi("UNPACK", [x], [((1, 6, 8), F)] * 4, dict(axis=1, num=4)),
    ],
    "matmul": lambda b, x: [
        b.op("BATCH_MATMUL", [x, b.constant(_normal(1, 1, 8, 3))], (1, 4, 6, 3)),
        b.op("BATCH_MATMUL", [x, x], (1, 4, 6, 6), dict(adj_y=True)),
        b.op("FULLY_CONNECTED", [x, b.constant(_normal(5, 192)), None], (1, 5)),
    ],
    "repeated": lambda b, x: [
        b.op("CONCATENATION", [x, b.constant(_normal(1, 4, 6, 1))], (1, 4, 6, 9), dict(axis=3)),
        b.op("PACK", [x, b.op("NEG", [b.constant(_normal(1, 4, 6, 8))], (1, 4, 6, 8))], (1, 2, 4, 6, 8),
             dict(axis=1, values_count=2)),
    ],
    "away_and_back": lambda b, x: [
        b.op("TRANSPOSE", [b.op("TRANSPOSE", [x, b.constant([3, 1, 0, 2])], (8, 4, 1, 6)), b.constant([2, 1, 3, 0])],
             (1, 4, 6, 8)),
        b.op("RESHAPE", [b.op("EXP", [b.op("RESHAPE", [x, b.constant([24, 8])], (24, 8))], (24, 8)),
                         b.constant([1, 4, 6, 8])], (1, 4, 6, 8)),
        b.op("MEAN", [b.op("PACK", [x, x], (2, 1, 4, 6, 8), dict(axis=0, values_count=2)), b.constant([0, 2])],
             (1, 6, 8)),
        b.op("BATCH_MATMUL", [b.op("RESHAPE", [x, b.constant([24, 8])], (24, 8)), b.constant(_normal(8, 4))], (24, 4)),
    ][:3],
    "moving": lambda b, x: [
        b.op("TRANSPOSE", [x, b.constant([0, 3, 1, 2])], (1, 8, 4, 6)),
        b.op("PAD", [x, b.constant([[0, 0], [1, 1], [2, 0], [0, 0]])], (1, 6, 8, 8)),
        b.op("TILE", [x, b.constant([1, 2, 1, 1])], (1, 8, 6, 8)),
        b.op("GATHER", [x, b.constant([0, 2])], (1, 2, 6, 8), dict(axis=1)),
        b.op("EXPAND_DIMS", [x, b.constant(1)], (1, 1, 4, 6, 8)),
        b.op("RESHAPE", [x], (1, 24, 8), dict(new_shape=[1, -1, 8])),
        b.op("RESHAPE", [x, b.constant([-1, 24, 8])], (1, 24, 8)),
        b.op("RESHAPE", [x, b.constant([1, 192])], (1, 192), dict(new_shape=[1, 192])),
    ],
}  # fmt: skip

BAD: dict[str, tuple[Ops, str]] = {
    "reshape": (lambda b, x: [b.op("RESHAPE", [x, b.constant([24, 8])], (24, 8))], "RESHAPE (node 1): from [1, 4, 6"),
    "squeeze": (lambda b, x: [b.op("SQUEEZE", [x], (4, 6, 8))], "SQUEEZE (node 1): it removes the batch"),
    "mean": (lambda b, x: [b.op("MEAN", [x, b.constant([0, 1])], (6, 8))], "MEAN (node 1): it reduces the batch axis"),
    "transpose": (
        lambda b, x: [b.op("TRANSPOSE", [x, b.constant([1, 0, 2, 3])], (4, 1, 6, 8))],
        "TRANSPOSE (node 1): it moves the batch axis",
    ),
    "concatenation": (
        lambda b, x: [b.op("CONCATENATION", [x, x], (2, 4, 6, 8), dict(axis=0))],
        "CONCATENATION (node 1): it joins along the batch axis",
    ),
    "rows": (
        lambda b, x: [b.op("ADD", [x, b.op("NEG", [b.constant(_normal(4, 4, 6, 8))], (4, 4, 6, 8))], (4, 4, 6, 8))],
        "ADD (node 2): its input 1 [4, 4, 6, 8] has rows of its own",
    ),
    "heads": (
        lambda b, x: [b.op("UNPACK", [b.op("TRANSPOSE", [x, b.constant([1, 0, 2, 3])], (4, 1, 6, 8))], (1, 6, 8),
                           dict(num=1, axis=1))],
        "UNPACK (node 2): it takes apart the batch axis",
    ),
    "other_rank": (
        lambda b, x: [b.op("ADD", [x, b.op("MEAN", [x, b.constant([1, 2])], (1, 8))], (1, 4, 6, 8))],
        "ADD (node 2): the batch of its input 1 [1, 8] meets another axis",
    ),
    "row": (
        lambda b, x: [
            b.op("STRIDED_SLICE", [x, b.constant([0]), b.constant([1]), b.constant([1])], (4, 6, 8),
                 dict(shrink_axis_mask=1))
        ],
        "STRIDED_SLICE (node 1): it takes one row of the batch",
    ),
    "reversed_slice": (
        lambda b, x: [
            b.op("STRIDED_SLICE", [x, b.constant([0]), b.constant([-2]), b.constant([-1])], (1, 4, 6, 8),
                 dict(begin_mask=1))
        ],
        "STRIDED_SLICE (node 1): it cuts the batch",
    ),
    "pieces": (
        lambda b, x: [b.op("SPACE_TO_BATCH_ND", [x, b.constant([2, 2]), b.constant([[0, 0], [0, 0]])], (4, 2, 3, 8))],
        "has 4 rows for each of the batch",
    ),
    "computed": (
        lambda b, x: [
            b.op("RESHAPE", [x, b.op("CAST", [b.constant(np.ones(4, np.float32))], (4,), type=TensorType.INT32)],
                 (1, 4, 6, 8))
        ],
        "RESHAPE (node 2): its input 1 is computed",
    ),
}  # fmt: skip


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


def _model(ops: Ops) -> bytes:
    b = ModelBuilder()
    b.output(*ops(b, b.op("NEG", [b.input("x", (1, 4, 6, 8))], (1, 4, 6, 8))))
    return b.build()


@pytest.mark.parametrize("name", GOOD)
def test_ops_that_keep_rows_apart(name: str) -> None:
    assert_rows_agree(_model(GOOD[name]))


@pytest.mark.parametrize("name", BAD)
def test_ops_that_mix_rows_are_named(name: str) -> None:
    ops, text = BAD[name]
    with pytest.raises(TensorError) as caught:
        with_batch(_model(ops), BATCH)
    assert text in str(caught.value)


@pytest.mark.parametrize("old, new", [(1, 2), (1, 3), (1, 64), (2, 6)])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, old: int, new: int) -> None:
    """Class tokens, heads and windows joined to the batch, recurrent layers, gates, detection heads."""
    assert_rows_agree(NETWORKS[name](old), new)


@pytest.mark.parametrize(
    "name, shape", [("vision transformer, class token constant", (2, 1, 8)), ("windowed transformer", (8, 1, 1, 16))]
)
def test_rows_of_its_own_are_refused(name: str, shape: tuple[int, ...]) -> None:
    """A file for a batch of two whose constants differ from row to row has no meaning for another batch."""
    model = read_model(NETWORKS[name](2))
    main = model.main
    tensors = list(main.tensors)
    marked = next(t for t in tensors if t.is_constant and t.shape == shape)
    data = np.array(marked.data)
    data[-1] += 1
    tensors[marked.index] = dataclasses.replace(marked, data=data)
    changed = dataclasses.replace(model, subgraphs=(dataclasses.replace(main, tensors=tuple(tensors)),))
    with pytest.raises(TensorError, match="has rows of its own for the batch"):
        with_batch(changed, 4)


def test_shared_constants_change_for_the_batch_alone() -> None:
    """One shape is that of two reshapes of the batch and of a constant."""
    b = ModelBuilder()
    x = b.input("x", (1, 2, 3))
    shape = b.constant([1, 6])
    y = b.op("ADD", [b.op("RESHAPE", [x, shape], (1, 6)), b.op("RESHAPE", [b.constant(_normal(6)), shape], (1, 6))],
             (1, 6))  # fmt: skip
    b.output(y, b.op("RESHAPE", [b.op("NEG", [x], (1, 2, 3)), shape], (1, 6)))
    model = assert_rows_agree(b.build())
    shapes = [model.main.operators[n].inputs[1] for n in (0, 1, 4)]
    assert shapes[0] == shapes[2] != shapes[1] == shape
    stored = [model.main.tensors[i].data for i in shapes]
    assert [None if a is None else a.tolist() for a in stored] == [[BATCH, 6], [1, 6], [BATCH, 6]]


def test_open_dimensions_stay_open() -> None:
    b = ModelBuilder()
    b.output(b.op("NEG", [b.input("x", (-1, 3))], (-1, 3)))
    tensors = with_batch(b.build(), 4).main.tensors
    assert [(t.shape, t.shape_signature) for t in tensors] == [((4, 3), (-1, 3))] * 2


def test_wrong_arguments() -> None:
    b = ModelBuilder()
    x, y, z = b.input("x", (1, 3)), b.input("y", (2, 3)), b.input("z", ())
    b.output(b.op("ADD", [x, y], (2, 3)), b.op("NEG", [z], ()))
    content = b.build()
    cases: list[tuple[type[LiteGpuError], str, dict]] = [
        (OptionError, "positive", dict(batch=0)),
        (OptionError, "positive", dict(batch=True)),
        (TensorError, "different leading", dict(batch=4, inputs=[x, y])),
        (TensorError, "no input", dict(batch=4, inputs=[z])),
        (TensorError, "rows of its own", dict(batch=4, inputs=[x])),
    ]
    for error, text, arguments in cases:
        with pytest.raises(error, match=text):
            with_batch(content, **arguments)
    with pytest.raises(ModelError):
        with_batch(b"no model", 2)
