"""Runs an operator of one's own on the GPU: "Emboss", which a picture looks carved in grey stone after.

    python examples/custom_op.py photograph.jpg embossed.png

The kernel is one Python function, which is traced and printed as WGSL or CUDA C++; the same in NumPy is what runs
without a GPU, and what the GPU's result is compared with. The model would come from a converter; here it is made on the
spot, for the photograph's size. docs/guide/custom_ops.md says what kernels may do.
"""

from __future__ import annotations

import argparse

import numpy as np
from flatbuffers import flexbuffers
from PIL import Image

import litegpu
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType


def check(op):
    """The reason why the kernel cannot run the operator, or None."""
    depth = op.flexbuffer().get("depth")
    return None if isinstance(depth, float) else "the option 'depth' is missing"


def kernel(op, t):
    """Four channels of a pixel: grey, and brighter where the neighbour at the upper left is darker."""
    k = t.k
    # Coordinates are unsigned and must be inside: beside the upper left corner of the picture is the corner itself.
    up, left = k.select(t.y > 0, t.y - 1, 0), k.select(t.x > 0, t.x - 1, 0)
    return 0.5 + op.flexbuffer()["depth"] * (t.here(0) - t.inputs[0].quad(t.b, up, left, t.q))


def reference(op, x):
    """The same in NumPy."""
    neighbour = np.pad(x, ((0, 0), (1, 0), (1, 0), (0, 0)), mode="edge")[:, :-1, :-1]
    return np.float32(0.5) + np.float32(op.flexbuffer()["depth"]) * (x - neighbour)


def emboss_model(height: int, width: int, depth: float) -> bytes:
    """[1, height, width, 3] in 0..1 to the same: the operator, and a ReLU that is fused with it."""
    shape = (1, height, width, 3)
    builder = ModelBuilder()
    options = bytes(flexbuffers.Dumps({"depth": depth}))
    (carved,) = builder.custom("Emboss", [builder.input("picture", shape)], [(shape, TensorType.FLOAT32)], options)
    builder.output(builder.op("RELU", [carved], shape))
    return builder.build()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("image")
    parser.add_argument("result", help="the picture to write")
    parser.add_argument("--depth", type=float, default=2.0)
    parser.add_argument("--device", default="auto", help="auto, cpu, webgpu or cuda")
    options = parser.parse_args()
    picture = np.asarray(Image.open(options.image).convert("L").convert("RGB"), np.float32)[None] / 255

    litegpu.register_op("Emboss", kernel, check=check, reference=reference)
    _, height, width, _ = picture.shape
    content = emboss_model(height, width, options.depth)
    with litegpu.load(content, options.device) as model, litegpu.load(content, "cpu") as on_cpu:
        print(model.report.summary())
        result, expected = model(picture), on_cpu(picture)
    print(f"largest difference from the reference: {np.abs(result - expected).max():.1e}")
    Image.fromarray((np.clip(result[0], 0, 1) * 255 + 0.5).astype(np.uint8)).save(options.result)


if __name__ == "__main__":
    main()
