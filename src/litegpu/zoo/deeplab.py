"""DeepLab v3 (Chen et al. 2017) on MobileNet v2: semantic segmentation, as deployed on phones."""

from __future__ import annotations

from litegpu.zoo.mobilenet import scaled, v2_dilated_features
from litegpu.zoo.network import Network


def deeplab_v3(
    *,
    seed: int = 0,
    precision: str = "float32",
    batch: int = 1,
    width: float = 0.5,
    resolution: int = 257,
    classes: int = 21,
) -> bytes:
    """[batch, resolution, resolution, 3] in -1..1 to scores [batch, resolution, resolution, classes]; 70 ops.

    The pyramid has two branches, the pooled picture and a 1x1 convolution: the form without atrous branches.
    """
    net = Network(f"DeepLab v3 {width} {resolution}, seeded weights", seed=seed, precision=precision, batch=batch)
    features = v2_dilated_features(net, net.image("input", resolution, resolution), width)
    height, wide = features.sample.shape[1:3]
    depth = scaled(512, width)
    pooled = net.convolution(net.average_pool(features), depth, activation="RELU")
    branches = [net.resize(pooled, height, wide), net.convolution(features, depth, activation="RELU")]
    merged = net.convolution(net.op("CONCATENATION", branches, dict(axis=3)), depth, activation="RELU")
    scores = net.head(merged, classes, deviation=3.0)
    scores = net.resize(scores, height, wide)
    net.output("scores", net.resize(scores, resolution, resolution).tensor)
    return net.build()
