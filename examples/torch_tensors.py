"""Gives a model PyTorch tensors and gets PyTorch tensors; nothing leaves the GPU, and nothing waits for it.

    python examples/torch_tensors.py mobilenet_v1.tflite photograph.jpg

Needs PyTorch with CUDA, and `pip install "litegpu[cuda]"`. PyTorch scales the photograph, the model takes the tensor
from where it is, and PyTorch sorts the scores, all of it in the order of PyTorch's stream. The model takes pictures as
float32 in -1..1. `litegpu zoo build mobilenet_v1 -o mobilenet_v1.tflite` makes one, with random weights.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from PIL import Image

import litegpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("image")
    parser.add_argument("--top", type=int, default=5, help="so many classes are printed")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        sys.exit("PyTorch is not installed: https://pytorch.org/get-started/locally")
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU with CUDA here")

    pixels = torch.from_numpy(np.array(Image.open(options.image).convert("RGB"))).cuda()
    with litegpu.load(options.model, "cuda") as model:
        (wanted,) = model.inputs.values()
        _, height, width, _ = (int(n) for n in wanted["shape"])
        planes = pixels.permute(2, 0, 1)[None].float() / 127.5 - 1
        scaled = torch.nn.functional.interpolate(planes, (height, width), mode="bilinear", antialias=True)
        scores = model(scaled.permute(0, 2, 3, 1).contiguous())  # a tensor on the GPU; the inference may still run
        best = scores.flatten().topk(options.top)
    for class_, score in zip(best.indices.tolist(), best.values.tolist(), strict=True):  # tolist() waits
        print(f"class {class_}: {score:.4f}")


if __name__ == "__main__":
    main()
