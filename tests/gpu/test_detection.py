"""TFLite_Detection_PostProcess: the boxes of the official runtime, in its order."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest
from agreement import official, on_gpu, require_gpu, run
from ai_edge_litert.interpreter import OpResolverType
from flatbuffers import flexbuffers

from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model.reader import read_model
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder, quantized

OPERATOR = "TFLite_Detection_PostProcess"
F32 = TensorType.FLOAT32


@dataclasses.dataclass(frozen=True)
class Detections:
    """A model of the operator alone, and what it is given."""

    content: bytes
    inputs: list[np.ndarray]
    classes: int = 1  # of each detection


def detections(seed: int, **changes: Any) -> Detections:
    rng, arrays = random.Random(seed), np.random.default_rng(seed)
    count, classes, most = rng.choice((1, 5, 40, 700)), rng.randint(1, 6), rng.randint(1, 12)
    background = rng.choice((0, 1))
    options = dict(
        max_detections=most, max_classes_per_detection=1, num_classes=classes, y_scale=10.0, x_scale=10.0, h_scale=5.0,
        w_scale=5.0, nms_score_threshold=rng.choice((0.0, 0.6)), nms_iou_threshold=rng.choice((0.3, 0.6)),
    )  # fmt: skip
    options |= changes
    classes = int(options["num_classes"])
    sizes = arrays.uniform(0.05, 0.5, (count, 2)).astype(np.float32)
    anchors = np.concatenate([arrays.uniform(0.2, 0.8, (count, 2)).astype(np.float32), sizes], 1)
    scores = np.round(arrays.uniform(0, 1, (1, count, classes + background)) * 50).astype(np.float32) / np.float32(50)
    if options.get("use_regular_nms") or int(options["max_classes_per_detection"]) > 1:  # equals in the CPU's own order
        scores = (arrays.permutation(scores.size) / scores.size).astype(np.float32).reshape(scores.shape)
    b = ModelBuilder()
    tensors = [b.input("boxes", (1, count, 4)), b.input("scores", scores.shape), b.constant(anchors)]
    given = int(options["max_detections"]) * int(options["max_classes_per_detection"])
    shapes = [(1, given, 4), (1, given), (1, given), (1,)]
    content = bytes(flexbuffers.Dumps(options))
    b.output(*b.custom(OPERATOR, tensors, [(s, F32) for s in shapes], content))
    boxes = arrays.standard_normal((1, count, 4)).astype(np.float32)
    return Detections(b.build(), [boxes, scores], int(options["max_classes_per_detection"]))  # scores with equals


def check(got: list[np.ndarray], case: Detections, half: bool = False) -> None:
    """Equal boxes in the same order; what lies behind them the official runtime leaves as it was."""
    boxes, classes, scores, number = run(official(case.content), case.inputs)
    assert got[3].reshape(1) == number
    n = int(number[0]) * case.classes
    np.testing.assert_array_equal(got[1].reshape(classes.shape)[0, :n], classes[0, :n])
    of_several = 1e-3 if half and case.classes > 1 else 0  # others are compared, and in float32 for that
    np.testing.assert_allclose(got[2].reshape(scores.shape)[0, :n], scores[0, :n], rtol=of_several)
    np.testing.assert_allclose(got[0].reshape(boxes.shape)[0, :n], boxes[0, :n], rtol=1e-5, atol=1e-6)
    assert not got[2].reshape(-1)[n:].any()


def any_kind(seed: int) -> Detections:
    """Also class by class, and several classes of each detection."""
    rng = random.Random(seed)
    match seed % 4:
        case 0:
            return detections(seed)
        case 1:
            classes = rng.randint(2, 6)
            return detections(seed, num_classes=classes, max_classes_per_detection=rng.randint(2, classes))
        case 2:
            return detections(seed, use_regular_nms=True)
        case _:
            return detections(seed, use_regular_nms=True, detections_per_class=rng.randint(1, 5), max_detections=9)


@pytest.mark.parametrize("seed", range(48))
def test_in_numpy(seed: int) -> None:
    case = any_kind(seed)
    graph = read_model(case.content).main
    assert check_operator(graph, graph.operators[0]) is None
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
    check(evaluate_graph(lowered.graph, case.inputs), case)


def test_of_equal_scores_the_first_class_comes_first() -> None:
    """The CPU's order is that of a heap."""
    for changes in (dict(use_regular_nms=True, nms_iou_threshold=1.0), dict(max_classes_per_detection=3)):
        case = detections(4, num_classes=3, max_detections=6, nms_score_threshold=0.0, **changes)
        scores = np.full_like(case.inputs[1], 0.5)
        graph = read_model(case.content).main
        lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs)
        _, classes, values, _ = evaluate_graph(lowered.graph, [case.inputs[0], scores])
        classes = classes.reshape(-1)[values.reshape(-1) > 0]
        wanted = np.sort(classes) if "use_regular_nms" in changes else np.arange(classes.size) % 3
        assert classes.size >= 6
        np.testing.assert_array_equal(classes, wanted)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("seed", range(16))
def test_on_the_gpu(seed: int, half: bool) -> None:
    require_gpu()
    case = any_kind(seed)
    gpu = on_gpu(case.content, max_delegated_partitions=0, precision_loss_allowed=half)
    assert gpu.delegation_report().fully_delegated, gpu.delegation_report().summary()
    check(run(gpu, case.inputs), case, half)


def of_bytes(seed: int, kind: TensorType) -> Detections:
    """Of UINT8 as they are, of INT8 behind a DEQUANTIZE."""
    case, n = detections(seed, num_classes=4), np.random.default_rng(seed)
    graph, b = read_model(case.content).main, ModelBuilder()
    low = 0 if kind is TensorType.UINT8 else -128
    operands, inputs = [], []
    for name, array, scale, zero in zip(("boxes", "scores"), case.inputs, (0.043, 1 / 256), (117, 0), strict=True):
        q = quantized(scale, low + zero)
        operands.append(b.input(name, array.shape, kind, quantization=q))
        inputs.append(n.integers(low, low + 256, array.shape).astype(np.uint8 if low == 0 else np.int8))
        if low:
            operands[-1] = b.op("DEQUANTIZE", [operands[-1]], array.shape, type=F32)
    anchors = graph.tensors[graph.operators[0].inputs[2]].data
    assert anchors is not None
    if low == 0:
        stored = np.clip(np.rint(anchors / np.float32(0.004)) + 5, 0, 255).astype(np.uint8)
        operands.append(b.constant(stored, "anchors", quantization=quantized(0.004, 5)))
    else:
        operands.append(b.constant(anchors))
    outputs = [(graph.tensors[t].shape, F32) for t in graph.outputs]
    b.output(*b.custom(OPERATOR, operands, outputs, graph.operators[0].custom_options))
    return Detections(b.build(), inputs)


@pytest.mark.parametrize("kind", [TensorType.UINT8, TensorType.INT8])
@pytest.mark.parametrize("seed", range(12))
def test_bytes_are_decoded_to_the_last_bit(seed: int, kind: TensorType) -> None:
    case = of_bytes(seed, kind)
    graph = read_model(case.content).main
    lowered = lower_partition(graph, graph.operators, graph.inputs, graph.outputs, integer=True)
    assert not any("exp" in str(node.epilogue) for node in lowered.graph.nodes)
    want = run(official(case.content, OpResolverType.BUILTIN), case.inputs)
    n = int(want[3][0])
    got = evaluate_graph(lowered.graph, case.inputs)
    assert got[3].reshape(1) == want[3]
    for i in range(3):
        np.testing.assert_array_equal(got[i].reshape(want[i].shape)[0, :n], want[i][0, :n])


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("kind", [TensorType.UINT8, TensorType.INT8])
def test_bytes_on_the_gpu(kind: TensorType, half: bool) -> None:
    require_gpu()
    case = of_bytes(3, kind)
    got = run(on_gpu(case.content, arithmetic="integer", precision_loss_allowed=half), case.inputs)
    want = run(official(case.content, OpResolverType.BUILTIN), case.inputs)
    n = int(want[3][0])
    np.testing.assert_array_equal(got[3], want[3])
    for i in range(3):
        np.testing.assert_array_equal(got[i][0, :n], want[i][0, :n])


def test_more_boxes_than_a_thread_has_bits() -> None:
    """9,000 boxes are 36 for each of 256 threads."""
    require_gpu()
    arrays = np.random.default_rng(0)
    b, count = ModelBuilder(), 9000
    anchors = arrays.uniform(0.01, 0.9, (count, 4)).astype(np.float32)
    tensors = [b.input("boxes", (1, count, 4)), b.input("scores", (1, count, 2)), b.constant(anchors)]
    options = dict(
        max_detections=20, max_classes_per_detection=1, num_classes=2, nms_score_threshold=0.1, nms_iou_threshold=0.5,
        y_scale=10.0, x_scale=10.0, h_scale=5.0, w_scale=5.0,
    )  # fmt: skip
    shapes = [((1, 20, 4), F32), ((1, 20), F32), ((1, 20), F32), ((1,), F32)]
    b.output(*b.custom(OPERATOR, tensors, shapes, bytes(flexbuffers.Dumps(options))))
    scores = arrays.permutation(2 * count).reshape(1, count, 2).astype(np.float32) / (2 * count)
    boxes = arrays.standard_normal((1, count, 4)).astype(np.float32)
    case = Detections(b.build(), [boxes, scores])
    check(run(on_gpu(case.content, max_delegated_partitions=0), case.inputs), case)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (dict(use_regular_nms=True, max_classes_per_detection=2, num_classes=3), "2 classes"),
        (dict(max_classes_per_detection=4, num_classes=3), "4 classes"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], reason: str) -> None:
    graph = read_model(detections(2, **changes).content).main
    assert reason in str(check_operator(graph, graph.operators[0]))


def falling(seed: int) -> tuple[bytes, list[np.ndarray], int]:
    """NON_MAX_SUPPRESSION_V5 whose scores fall with the overlap, and how many boxes it chooses at most."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 300))
    most = int(rng.integers(1, min(count, 30) + 1))
    b = ModelBuilder()
    x, scores = b.input("x", (count, 4)), b.input("scores", (count,))
    numbers = (most, (0.5, 0.3, 1.0)[seed % 3], (0.0, 0.2, -1.0)[seed // 3 % 3], (0.5, 0.1, 2.0)[seed // 2 % 3])
    constants = [b.constant(np.array(n, np.int32 if i == 0 else np.float32)) for i, n in enumerate(numbers)]
    kinds = [((most,), TensorType.INT32), ((most,), TensorType.FLOAT32), ((), TensorType.INT32)]
    b.output(*b.op_multi("NON_MAX_SUPPRESSION_V5", [x, scores, *constants], kinds))
    centres, sizes = rng.uniform(0, 1, (count, 2)), rng.uniform(0.1, 0.5, (count, 2))
    boxes = np.concatenate([centres - sizes / 2, centres + sizes / 2], 1).astype(np.float32)
    return b.build(), [boxes, rng.uniform(0, 1, count).astype(np.float32)], most


def same_choice(got: list[np.ndarray], want: list[np.ndarray]) -> None:
    number = int(want[2])
    assert int(got[2].reshape(())) == number
    np.testing.assert_array_equal(got[0].reshape(-1)[:number], want[0][:number])
    np.testing.assert_allclose(got[1].reshape(-1)[:number], want[1][:number], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", range(18))
def test_scores_that_fall_with_the_overlap(seed: int) -> None:
    content, inputs, _ = falling(seed)
    want = run(official(content), inputs)
    main = read_model(content).main
    lowered = lower_partition(main, main.operators, main.inputs, main.outputs)
    same_choice(evaluate_graph(lowered.graph, inputs), want)
    if seed < 9:
        require_gpu()
        gpu = on_gpu(content, max_delegated_partitions=0)
        assert gpu.delegation_report().fully_delegated
        same_choice(run(gpu, inputs), want)
