"""The outputs of a detector -> boxes: of TFLite_Detection_PostProcess, or raw heads of an SSD with known anchors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.errors import OptionError
from litegpu.gpu.custom.operation import decode_flexbuffer
from litegpu.model.builder import ModelBuilder
from litegpu.model.cut import cut
from litegpu.model.types import Model, Operator, Tensor, TensorType
from litegpu.session import load
from litegpu.tools.arrays import read_array
from litegpu.tools.evaluate.shard import Read
from litegpu.zoo.ssd import ssd_anchors, ssd_feature_maps, ssd_post_process

if TYPE_CHECKING:
    from litegpu.interpreter import Interpreter

_OP = "TFLite_Detection_PostProcess"
_PARTS = ("boxes", "classes", "scores", "count")  # the op's outputs, in its order
_PROBABILITIES = ("LOGISTIC", "SOFTMAX")
_UNCHANGED = ("RESHAPE", "SQUEEZE", "CONCATENATION", "DEQUANTIZE", "QUANTIZE", "EXPAND_DIMS")

#: (scale, zero point) of each output, scale 0 for those that are not quantized.
Quantizations = tuple[tuple[float, int], ...]


@dataclass(frozen=True, eq=False)
class Detector:
    """What runs in place of a detector's file, and how its outputs are read. `model`: the file, or the part of it in
    front of the post-processing, so that several images can be taken at once."""

    model: str | bytes
    read: Read
    classes: int | None  # that the model tells apart, if it says so
    how: str


@dataclass(frozen=True)
class ReadDetections:
    """The four outputs of one image; `order`: places of boxes, classes, scores and count among them. `per_anchor`: rows
    for each that the count counts. Rows with NaN or infinity, which overflow gives, are no detections."""

    order: tuple[int, ...]
    quantizations: Quantizations
    per_anchor: int = 1

    def __call__(self, outputs: Sequence[np.ndarray], facts: Mapping[str, Any]) -> dict[str, Any]:
        real = [_real(array, q) for array, q in zip(outputs, self.quantizations, strict=True)]
        boxes, classes, scores, count = (real[i] for i in self.order)
        counted = np.clip(np.nan_to_num(count.reshape(-1)[0]), 0, classes.size)
        rows = min(int(counted) * self.per_anchor, classes.size)
        boxes, classes, scores = boxes.reshape(-1, 4)[:rows], classes.reshape(-1)[:rows], scores.reshape(-1)[:rows]
        sound = np.isfinite(boxes).all(axis=1) & np.isfinite(classes) & np.isfinite(scores)
        return {
            "height": facts["height"],
            "width": facts["width"],
            "boxes": boxes[sound].tolist(),
            "classes": [int(c) for c in classes[sound]],
            "scores": scores[sound].tolist(),
        }


@dataclass(frozen=True)
class ReadHeads:
    """Box encodings and class scores of one image, put through a model that holds the post-processing alone.

    `order`: places of the encodings and the scores among the outputs. `logits`: the scores are no probabilities yet.
    `quantizations`: None hands them on as they are.
    """

    post_process: bytes
    order: tuple[int, int]
    detections: ReadDetections
    logits: bool = False
    quantizations: Quantizations | None = None

    def __call__(self, outputs: Sequence[np.ndarray], facts: Mapping[str, Any]) -> dict[str, Any]:
        feeds = [outputs[i] for i in self.order]
        if self.quantizations is not None:
            feeds = [_real(outputs[i], self.quantizations[i]).astype(np.float32) for i in self.order]
        if self.logits:
            feeds[1] = (1 / (1 + np.exp(-feeds[1].astype(np.float64)))).astype(np.float32)
        interpreter = _post_processor(self.post_process)
        for detail, feed in zip(interpreter.get_input_details(), feeds, strict=True):
            interpreter.set_tensor(detail["index"], feed.reshape(detail["shape"]))
        interpreter.invoke()
        found = [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]
        return self.detections(found, facts)


def read_detector(
    model: Model,
    path: str,
    *,
    whole: bool = True,
    output_order: str = "",
    anchors: str = "",
    max_detections: int = 100,
) -> Detector:
    """How a model's outputs become boxes.

    whole: run the model as it is, if it ends in TFLite_Detection_PostProcess; else that op runs apart, an image at a
        time, and the rest of the model can take batches.
    output_order: of four outputs that no such op makes; by default "boxes,classes,scores,count".
    anchors: a .npy file, float [n, 4] of centre y, centre x, height, width, for raw heads; by default those of SSD.
    max_detections: of raw heads, for an image.

    Raises OptionError for a model that is no detector, or one whose anchors are not known.
    """
    graph = model.main
    last = graph.operators[-1] if graph.operators else None
    ends = last is not None and last.name == _OP and set(graph.outputs) == set(last.outputs)
    outputs = [graph.tensors[i] for i in graph.outputs]
    if anchors and (ends or len(outputs) != 2):
        raise OptionError(f"--anchors is for raw heads, but {path} {f'ends in {_OP}' if ends else 'has others'}")
    if output_order and (ends or len(outputs) != 4):
        raise OptionError(f"--output_order is for four outputs that {_OP} does not make; {path} has others")
    if ends:
        assert last is not None
        return _with_op(model, path, last, whole)
    if len(outputs) == 4:
        order = _named_order(output_order or ",".join(_PARTS))
        return Detector(
            path,
            ReadDetections(order, tuple(map(_quantization, outputs))),
            None,
            f"gives {output_order or ','.join(_PARTS)}",
        )
    if len(outputs) == 2:
        return _raw_heads(model, path, outputs, anchors, max_detections)
    shapes = ", ".join(f"'{t.name}' {list(t.shape)}" for t in outputs)
    raise OptionError(
        f"{path} is no detector that is known: it has to end in {_OP}, or to give boxes, classes, scores and their "
        f"count, or box encodings and class scores of an SSD. Its outputs: {shapes}"
    )


def _with_op(model: Model, path: str, op: Operator, whole: bool) -> Detector:
    options = decode_flexbuffer(op.custom_options, op.name)
    regular = bool(options.get("use_regular_nms", False))
    per_anchor = 1 if regular else max(int(options.get("max_classes_per_detection", 1)), 1)
    classes = int(options["num_classes"]) if "num_classes" in options else None
    order = tuple(model.main.outputs.index(i) for i in op.outputs)
    plain: Quantizations = ((0.0, 0),) * 4
    if whole:
        return Detector(path, ReadDetections(order, plain, per_anchor), classes, f"ends in {_OP}")
    graph = model.main
    front = cut(model, 0, [o.index for o in graph.operators[:-1]], graph.inputs, op.inputs[:2])
    alone = cut(model, 0, [op.index], op.inputs[:2], op.outputs)
    detections = ReadDetections((0, 1, 2, 3), plain, per_anchor)
    return Detector(front, ReadHeads(alone, (0, 1), detections), classes, f"ends in {_OP}, which runs apart")


def _raw_heads(model: Model, path: str, outputs: Sequence[Tensor], anchors: str, max_detections: int) -> Detector:
    squeezed = [tuple(n for i, n in enumerate(t.shape) if i != 2 or len(t.shape) == 3) for t in outputs]
    boxes = [i for i, shape in enumerate(squeezed) if len(shape) == 3 and shape[2] == 4]
    if len(boxes) != 1 or len(squeezed[1 - boxes[0]]) != 3 or squeezed[0][1] != squeezed[1][1]:
        shapes = " and ".join(f"'{t.name}' {list(t.shape)}" for t in outputs)
        raise OptionError(
            f"{path} has two outputs, {shapes}, which are no box encodings [1, n, 4] and class scores [1, n, classes]"
        )
    order = (boxes[0], 1 - boxes[0])
    count, columns = squeezed[order[1]][1:]
    if columns < 2:
        raise OptionError(f"{path} has scores of {columns} classes; there must be the background (first) and others")
    table, how = _anchors(model, path, count, anchors)
    builder = ModelBuilder("TFLite_Detection_PostProcess")
    encodings = builder.input("encodings", (1, count, 4))
    scores = builder.input("scores", (1, count, columns))
    builder.output(*ssd_post_process(builder, encodings, scores, table, columns - 1, max_detections))
    logits = not _is_probability(model, model.main.outputs[order[1]])
    read = ReadHeads(
        builder.build(),
        order,
        ReadDetections((0, 1, 2, 3), ((0.0, 0),) * 4),
        logits,
        tuple(map(_quantization, outputs)),
    )
    kind = "logits" if logits else "probabilities"
    return Detector(path, read, columns - 1, f"has raw heads: {count} boxes with {kind} of {columns} classes, {how}")


def _anchors(model: Model, path: str, count: int, file: str) -> tuple[np.ndarray, str]:
    if file:
        table = read_array(file, "the anchors")
        if table.shape != (count, 4) or table.dtype.kind != "f":
            raise OptionError(f"{file} holds {table.dtype} {list(table.shape)}; {path} needs float [{count}, 4]")
        if not np.isfinite(table).all():
            raise OptionError(f"{file} holds numbers that are not finite")
        return table.astype(np.float32), f"anchors of {Path(file).name}"
    height, width = model.main.tensors[model.main.inputs[0]].shape[1:3]
    table = ssd_anchors(ssd_feature_maps(height, width))
    if len(table) != count:
        raise OptionError(
            f"{path} has raw heads with {count} boxes. Their anchors are in no output and are not those of an SSD for "
            f"{width}x{height} (which has {len(table)}): give them with --anchors=FILE.npy, float [{count}, 4] of "
            "centre y, centre x, height, width"
        )
    return table, "anchors of SSD"


def _is_probability(model: Model, tensor: int) -> bool:
    """Whether a tensor is made by a sigmoid or a softmax, perhaps joined or reshaped since."""
    producers = {o: operator for operator in model.main.operators for o in operator.outputs}
    while tensor in producers:
        operator = producers[tensor]
        if operator.name in _PROBABILITIES:
            return True
        if operator.name not in _UNCHANGED:
            return False
        tensor = operator.inputs[0]
    return False


def _named_order(text: str) -> tuple[int, ...]:
    names = [name.strip() for name in text.split(",")]
    if sorted(names) != sorted(_PARTS):
        raise OptionError(f"--output_order is {text!r}; it must name {', '.join(_PARTS)}, each once")
    return tuple(names.index(part) for part in _PARTS)


def _quantization(tensor: Tensor) -> tuple[float, int]:
    q = tensor.quantization
    if q is None or q.scales.size != 1 or tensor.type is TensorType.FLOAT32:
        return 0.0, 0
    return float(q.scales[0]), int(q.zero_points[0])


def _real(array: np.ndarray, quantization: tuple[float, int]) -> np.ndarray:
    scale, zero_point = quantization
    if not scale:
        return array
    real: np.ndarray = (array.astype(np.float32) - zero_point) * np.float32(scale)
    return real


@lru_cache(maxsize=4)
def _post_processor(content: bytes) -> Interpreter:
    """With one thread: regular NMS of the official op skips a class with more."""
    return load(content, "cpu", num_threads=1).interpreter
