"""Draws boxes around what a detector of the SSD kind finds in a photograph.

    python examples/detect_boxes.py ssd_mobilenet_v1.tflite photograph.jpg boxes.png --labels labels.txt

The model ends in TFLite_Detection_PostProcess, which the official CPU runtime runs, behind the convolutions on the GPU:
its outputs are boxes (top, left, bottom, right in 0..1), classes, scores and a count. It takes pictures as float32 in
-1..1, or as uint8. `litegpu zoo build ssd_mobilenet_v1 -o ssd_mobilenet_v1.tflite` makes one, with random weights.
"""

from __future__ import annotations

import argparse
import colorsys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import litegpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("image")
    parser.add_argument("result", help="the picture to write")
    parser.add_argument("--labels", help="a file with the name of a class in each line; ??? on top is not counted")
    parser.add_argument("--threshold", type=float, default=0.5, help="the least score of a box that is drawn")
    parser.add_argument("--device", default="auto", help="auto, cpu, webgpu or cuda")
    options = parser.parse_args()
    labels = Path(options.labels).read_text().splitlines() if options.labels else []
    labels = labels[1:] if labels[:1] == ["???"] else labels

    photograph = Image.open(options.image).convert("RGB")
    with litegpu.load(options.model, options.device) as model:
        print(model.report.summary())
        (wanted,) = model.inputs.values()
        _, height, width, _ = wanted["shape"]
        pixels = np.asarray(photograph.resize((width, height), Image.Resampling.BILINEAR))[None]
        found = model(pixels if wanted["dtype"] == np.uint8 else pixels.astype(np.float32) / 127.5 - 1)
    boxes, classes, scores, (count,) = (array[0] if array.ndim > 1 else array for array in found.values())

    for box, class_, score in list(zip(boxes, classes.astype(int), scores, strict=True))[: int(count)]:
        if score >= options.threshold:
            name = labels[class_] if labels else f"class {class_}"
            print(f"{name}: {score:.2f}")
            draw(photograph, box, f"{name} {score:.0%}", colour(class_))
    photograph.save(options.result)


def draw(picture: Image.Image, box: np.ndarray, caption: str, colour: tuple[int, int, int]) -> None:
    """A frame with a caption; the box is top, left, bottom and right in 0..1, and may reach beyond the picture."""
    top, left, bottom, right = np.clip(box, 0, 1) * np.tile((picture.height - 1, picture.width - 1), 2)
    pen = ImageDraw.Draw(picture)
    pen.rectangle((left, top, max(left, right), max(top, bottom)), outline=colour, width=3)
    pen.rectangle(pen.textbbox((left + 5, top + 5), caption), fill=(0, 0, 0))
    pen.text((left + 5, top + 5), caption, fill=colour)


def colour(class_: int) -> tuple[int, int, int]:
    """Neighbours differ: each class is 0.62 of the circle of hues on."""
    red, green, blue = colorsys.hsv_to_rgb(class_ * 0.62 % 1, 0.7, 1)
    return round(255 * red), round(255 * green), round(255 * blue)


if __name__ == "__main__":
    main()
