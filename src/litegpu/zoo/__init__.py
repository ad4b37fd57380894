"""The example models: architectures with seeded weights, built offline in seconds.

The weights are random, so labels, masks and boxes mean nothing; shapes, ops, sizes and speed are those of the trained
models, and results differ from picture to picture.
"""

from __future__ import annotations

from litegpu.zoo.catalogue import CATALOGUE, CatalogueEntry, build_model
from litegpu.zoo.scene import draw_scene

__all__ = ["CATALOGUE", "CatalogueEntry", "build_model", "draw_scene"]
