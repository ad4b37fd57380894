"""Runs the 1x1 convolutions of a network on an accelerator of one's own, and the rest on the CPU.

    python examples/product_delegate.py mobilenet_v1.tflite photograph.jpg

The accelerator can multiply matrices; here it is NumPy. A delegate says which operators it takes, and why not the
others, and makes something that runs them; dividing the graph, the CPU and the report are litegpu's. The model takes
pictures as float32 in -1..1. docs/guide/delegates.md has the protocol; `litegpu zoo build mobilenet_v1 -o
mobilenet_v1.tflite` makes a model, with random weights.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from PIL import Image

import litegpu
from litegpu.model.types import TensorType

#: Fused activations by their number in the schema: none, ReLU, ReLU6.
ACTIVATIONS = {0: (-np.inf, np.inf), 1: (0, np.inf), 3: (0, 6)}


class ProductDelegate:
    """Takes CONV_2D that is the product of pixels and weights. Has what litegpu.DelegateProtocol asks for."""

    name = "products"
    max_delegated_partitions = 0  # all: each 1x1 convolution stands between others that the CPU runs
    min_nodes_per_partition = 0
    first_delegate_node_index = 0
    last_delegate_node_index = sys.maxsize

    def check(self, model, subgraph, operator):
        """None if the operator runs here, else the reason why not."""
        if operator.name != "CONV_2D":
            return "Only CONV_2D is a product of matrices."
        weights, options = subgraph.tensors[operator.inputs[1]], operator.options
        if any(subgraph.tensors[t].type != TensorType.FLOAT32 for t in operator.inputs if t >= 0):
            return "Only float32 tensors can be multiplied."
        if weights.data is None or weights.shape[1:3] != (1, 1):
            return "Only constant windows of 1x1 can be multiplied."
        if (options.get("stride_w"), options.get("stride_h")) != (1, 1):
            return "Pixels cannot be left out."
        if options.get("fused_activation_function", 0) not in ACTIVATIONS:
            return "Only ReLU and ReLU6 can be fused."
        return None

    def prepare(self, partition):
        """What runs the partition: here weights would be copied to the accelerator."""
        return Products(partition)


class Products:
    """The operators of one partition, with their weights as matrices [inputs, outputs]."""

    def __init__(self, partition):
        self.partition = partition
        constants = {t.index: t.data for t in partition.subgraph.tensors if t.data is not None}
        self.steps = []
        for operator in partition.nodes:
            x, weights, *bias = operator.inputs
            matrix = np.ascontiguousarray(constants[weights].reshape(len(constants[weights]), -1).T)
            offset = constants[bias[0]] if bias and bias[0] >= 0 else np.float32(0)
            limits = ACTIVATIONS[operator.options.get("fused_activation_function", 0)]
            self.steps.append((x, operator.outputs[0], matrix, offset, limits))

    def invoke(self, inputs):
        """One inference: arrays for partition.inputs; gives arrays for partition.outputs, in that order."""
        values = dict(zip(self.partition.inputs, inputs, strict=True))
        for source, result, matrix, offset, limits in self.steps:
            values[result] = np.clip(values[source] @ matrix + offset, *limits, dtype=np.float32)
        return [values[t] for t in self.partition.outputs]

    def close(self):
        """Free what the accelerator holds; may be called twice."""
        self.steps.clear()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("image")
    options = parser.parse_args()

    results = []
    for delegates in ([ProductDelegate()], None):
        interpreter = litegpu.Interpreter(options.model, experimental_delegates=delegates, fallback="silent")
        interpreter.allocate_tensors()
        if delegates:
            print(interpreter.delegation_report())
        (x, *_), (y, *_) = interpreter.get_input_details(), interpreter.get_output_details()
        _, height, width, _ = x["shape"]
        picture = Image.open(options.image).convert("RGB").resize((width, height), Image.Resampling.BILINEAR)
        interpreter.set_tensor(x["index"], np.asarray(picture, np.float32)[None] / 127.5 - 1)
        interpreter.invoke()
        results.append(interpreter.get_tensor(y["index"]))
    print(f"largest difference from the CPU alone: {np.abs(results[0] - results[1]).max():.1e}")


if __name__ == "__main__":
    main()
