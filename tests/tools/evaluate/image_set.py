"""Small data sets for the tests of evaluations, and what the official runtime makes of their images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ai_edge_litert.interpreter import Interpreter as OfficialInterpreter
from ai_edge_litert.interpreter import OpResolverType
from PIL import Image

from litegpu.model.builder import ModelBuilder
from litegpu.tools.evaluate.imagenet import ImagenetTask
from litegpu.zoo import build_model, draw_scene

SIDE, CLASSES = 32, 12
# Two outputs of one name, as ImageNet has them.
LABELS = ("crane", *(f"thing {i}" for i in range(1, CLASSES - 1)), "crane")


@dataclass(frozen=True)
class ImageSet:
    """A folder of images of different sizes, and the files of an ILSVRC evaluation beside it."""

    folder: Path
    names: tuple[str, ...]
    truths: tuple[str, ...]

    @property
    def images(self) -> Path:
        return self.folder / "images"

    def task(self, **changes: object) -> ImagenetTask:
        files = {
            "model_file": str(self.folder / "model.tflite"),
            "ground_truth_images_path": str(self.images),
            "ground_truth_labels": str(self.folder / "truth.txt"),
            "model_output_labels": str(self.folder / "labels.txt"),
        }
        return ImagenetTask(**(files | changes))  # type: ignore[arg-type]


def make_image_set(folder: Path, count: int) -> ImageSet:
    """JPEGs of drawn scenes with random labels, and a classifier of seeded weights."""
    rng = np.random.default_rng(count)
    (folder / "images").mkdir(parents=True)
    names = []
    for i in range(count):
        height, width = rng.integers(24, 80, 2)
        names.append(f"image_{i:04}.{'JPEG' if i % 3 else 'jpg'}")
        Image.fromarray(draw_scene(int(height), int(width), i)).save(folder / "images" / names[-1], "JPEG", quality=90)
    truths = [str(t) for t in rng.choice(LABELS, count)]
    content = build_model("mobilenet_v1", width=0.25, resolution=SIDE, classes=CLASSES)
    (folder / "model.tflite").write_bytes(content)
    (folder / "labels.txt").write_text("\n".join(LABELS) + "\n")
    (folder / "truth.txt").write_bytes("\r\n".join(truths).encode() + b"\r\n")  # as a Windows editor saves it
    return ImageSet(folder, tuple(names), tuple(truths))


def resized_officially(pixels: np.ndarray, height: int, width: int, half_pixel: bool = False) -> np.ndarray:
    """By the official runtime's reference kernel of RESIZE_BILINEAR, float32 [height, width, 3]."""
    builder = ModelBuilder()
    image = builder.input("image", (1, *pixels.shape))
    size = builder.constant(np.array([height, width], np.int32))
    options = {"half_pixel_centers": half_pixel}
    builder.output(builder.op("RESIZE_BILINEAR", [image, size], (1, height, width, 3), options))
    kernels = OpResolverType.BUILTIN_REF
    return run_officially(builder.build(), pixels[None].astype(np.float32), kernels=kernels)[0][0]


def run_officially(
    content: bytes, *arrays: np.ndarray, kernels: OpResolverType = OpResolverType.BUILTIN
) -> list[np.ndarray]:
    interpreter = OfficialInterpreter(model_content=content, experimental_op_resolver_type=kernels)
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), arrays, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(d["index"]) for d in interpreter.get_output_details()]


def scores_by_hand(image_set: ImageSet, names: Sequence[str]) -> np.ndarray:
    """The classifier's scores of each image: decoded, cropped, resized and normalised apart from litegpu."""
    content = (image_set.folder / "model.tflite").read_bytes()
    rows = []
    for name in names:
        pixels = np.array(Image.open(image_set.images / name).convert("RGB"))
        height, width = pixels.shape[:2]
        side = int(min(height, width) * 0.875 + 0.5)
        top, left = int((height - side) / 2 + 0.5), int((width - side) / 2 + 0.5)
        resized = resized_officially(pixels[top : top + side, left : left + side], SIDE, SIDE)
        rows.append(run_officially(content, ((resized - 127.5) / 127.5)[None].astype(np.float32))[0][0])
    return np.array(rows)


def top_k_by_hand(scores: np.ndarray, truths: Sequence[str]) -> list[float]:
    """Accuracies for k = 1 to 10, by NumPy alone."""
    names = np.array(LABELS)[np.argsort(-scores, axis=1, kind="stable")[:, :10]]
    hits = names == np.array(truths)[:, None]
    return [float(hits[:, : k + 1].any(axis=1).mean()) for k in range(10)]
