"""Writing models: op by op, from a Model, or a partition of one."""

from __future__ import annotations

from litegpu.model.builder import ModelBuilder, SubgraphBuilder, quantized
from litegpu.model.cut import cut
from litegpu.model.serialize import write_model

__all__ = ["ModelBuilder", "SubgraphBuilder", "cut", "quantized", "write_model"]
