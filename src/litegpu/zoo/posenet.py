"""PoseNet (Papandreou et al. 2018) on MobileNet v1: body keypoints."""

from __future__ import annotations

from litegpu.zoo.mobilenet import v1_features
from litegpu.zoo.network import Network

KEYPOINTS = 17
EDGES = 16  # of the tree that connects them


def posenet(
    *,
    seed: int = 0,
    precision: str = "float32",
    batch: int = 1,
    width: float = 1.0,
    resolution: int = 257,
) -> bytes:
    """[batch, resolution, resolution, 3] in -1..1 to four maps [batch, h, w, n] at 1/32 of the resolution; 31 ops.

    heatmaps (n = 17, logits), offsets (34: all y, then all x, in pixels), displacements forward and backward along the
    skeleton (32 each, in pixels).
    """
    net = Network(f"PoseNet {width} {resolution}, seeded weights", seed=seed, precision=precision, batch=batch)
    features = v1_features(net, net.image("input", resolution, resolution), width)[-1]
    net.output("heatmaps", net.head(features, KEYPOINTS, mean=-2.0, deviation=2.0).tensor)
    net.output("offsets", net.head(features, 2 * KEYPOINTS, deviation=8.0).tensor)
    net.output("displacement_fwd", net.head(features, 2 * EDGES, deviation=20.0).tensor)
    net.output("displacement_bwd", net.head(features, 2 * EDGES, deviation=20.0).tensor)
    return net.build()
