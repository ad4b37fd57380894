"""Says what a camera sees, frame by frame; while the GPU works on some frames, the next are cut out and scaled.

    python examples/classify_stream.py mobilenet_v1.tflite photograph.jpg --labels labels.txt

The camera is a window that pans over the photograph. `model.stream` draws the frames and gives their results in order,
with several inferences in flight. The model takes pictures as float32 in -1..1, or as uint8. `litegpu zoo build
mobilenet_v1 -o mobilenet_v1.tflite` makes one, with random weights.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

import litegpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("image")
    parser.add_argument("--labels", help="a file with the name of a class in each line")
    parser.add_argument("--frames", type=int, default=30)
    parser.add_argument("--device", default="auto", help="auto, cpu, webgpu or cuda")
    options = parser.parse_args()
    labels = Path(options.labels).read_text().splitlines() if options.labels else []

    with litegpu.load(options.model, options.device) as model:
        (wanted,) = model.inputs.values()
        frames = (prepared(frame, wanted) for frame in pan(options.image, options.frames))
        for number, scores in enumerate(model.stream(frames)):
            best = int(scores.argmax())
            print(f"frame {number:3}: {labels[best] if labels else f'class {best}'}")


def pan(path: str, frames: int) -> Iterator[Image.Image]:
    """Square windows of three quarters of the photograph's shorter side, from its top left to its bottom right."""
    photograph = Image.open(path).convert("RGB")
    side = max(1, 3 * min(photograph.size) // 4)
    for position in np.linspace(0, 1, frames):
        left, top = (round(position * (length - side)) for length in photograph.size)
        yield photograph.crop((left, top, left + side, top + side))


def prepared(frame: Image.Image, wanted: dict) -> np.ndarray:
    """The frame as the model's input, whose details are `wanted`."""
    _, height, width, _ = wanted["shape"]
    pixels = np.asarray(frame.resize((width, height), Image.Resampling.BILINEAR))[None]
    return pixels if wanted["dtype"] == np.uint8 else pixels.astype(np.float32) / 127.5 - 1


if __name__ == "__main__":
    main()
