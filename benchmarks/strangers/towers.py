"""Transformers between pictures and what is asked of them: CLIP's picture tower, DETR's decoder, Perceiver."""

from __future__ import annotations

import numpy as np

from litegpu.zoo.network import NetworkTensor
from strangers.layers import StrangeLayers, of_frames, of_torch_pictures

Tensor = NetworkTensor


@of_torch_pictures("CLIP ViT-B/32")
def clip_image(net: StrangeLayers, x: Tensor, *, depth: int = 12, width: int = 768) -> None:
    """Radford et al. 2021: 49 patches of 32 and a class, x * sigmoid(1.702 x), the class's direction; 88 million
    parameters."""
    x = net.plain(x, width, 32, 32)
    x = net.reshape(x, x.sample[0, :, :, 0].size, width)
    token = net.constant(net.rng.normal(0, 1, (1, width)).astype(np.float32))
    x = net.join(token, x, axis=1)
    x = net.norm_of_torch(net.scale("ADD", x, net.rng.normal(0, 0.3, (1, *x.sample.shape[1:]))), 1e-5)
    for _ in range(depth):
        x = net.add(x, net.attention_of_torch(net.norm_of_torch(x, 1e-5), 12))
        x = net.add(x, net.dense(net.quick_gelu(net.dense(net.norm_of_torch(x, 1e-5), 4 * width)), width))
    y = net.dense(net.norm_of_torch(net.first(x), 1e-5), 512)
    axis = np.array([1], np.int32)
    total = net.apply("SUM", [net.op("MUL", [y, y])], [axis], dict(keep_dims=True))
    net.output("vector", net.op("DIV", [y, net.op("SQRT", [total])]).tensor)


@of_frames("DETR decoder", 850, 256)
def detr_decoder(net: StrangeLayers, x: Tensor, *, width: int = 256, depth: int = 6, queries: int = 100) -> None:
    """Carion et al. 2020: 100 questions that look at one another and at 25 x 34 places, six times; class and box."""
    n = x.sample.shape[1]
    places = net.rng.normal(0, 0.3, (1, n, x.channels))
    asked = net.rng.normal(0, 0.5, (1, queries, width))
    keys = net.scale("ADD", x, places)
    y = net.constant(np.zeros((queries, width), np.float32))
    for _ in range(depth):
        z = net.scale("ADD", y, asked)
        own = net.attend(net.dense(z, width), net.dense(z, width), net.dense(y, width), 8)
        y = net.norm_of_torch(net.add(y, net.dense(own, width)), 1e-5)
        query = net.dense(net.scale("ADD", y, asked), width)
        seen = net.attend(query, net.dense(keys, width), net.dense(x, width), 8)
        y = net.norm_of_torch(net.add(y, net.dense(seen, width)), 1e-5)
        y = net.norm_of_torch(net.add(y, net.dense(net.dense(y, 8 * width, "RELU"), width)), 1e-5)
    y = net.norm_of_torch(y, 1e-5)
    net.output("classes", net.dense(y, 92).tensor)
    boxes = net.dense(net.dense(net.dense(y, width, "RELU"), width, "RELU"), 4)
    net.output("boxes", net.op("LOGISTIC", [boxes]).tensor)


@of_frames("Perceiver", 3136, 64)
def perceiver(net: StrangeLayers, x: Tensor, *, width: int = 512, depth: int = 6, queries: int = 256) -> None:
    """Jaegle et al. 2021: 256 vectors look at 3136 places, one head, then at one another, six times."""
    y = net.constant(net.rng.normal(0, 1, (queries, width)).astype(np.float32))
    z = net.norm_of_torch(net.scale("ADD", x, net.rng.normal(0, 0.3, (1, *x.sample.shape[1:]))), 1e-5)

    def forward(y: Tensor) -> Tensor:
        return net.add(y, net.dense(net.dense(net.norm_of_torch(y, 1e-5), 2 * width, "GELU"), width))

    query = net.dense(net.norm_of_torch(y, 1e-5), x.channels)
    seen = net.attend(query, net.dense(z, x.channels), net.dense(z, x.channels), 1)
    y = forward(net.add(y, net.dense(seen, width)))
    for _ in range(depth):
        y = forward(net.add(y, net.attention_of_torch(net.norm_of_torch(y, 1e-5), 8)))
    net.classify(net.mean(y, np.array([1], np.int32)), 100)
