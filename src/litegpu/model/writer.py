"""Writing models: op by op, from a Model, or a partition of one."""

from __future__ import annotations

from litegpu.model.builder import GraphBuilder, ModelBuilder, quantized
from litegpu.model.cut import cut
from litegpu.model.serialize import write_model

__all__ = ["GraphBuilder", "ModelBuilder", "cut", "quantized", "write_model"]
