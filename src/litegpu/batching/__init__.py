"""Calls of many callers put together into batches: the parts of LoadedModel.batcher()."""

from __future__ import annotations

from litegpu.batching.batcher import Batcher
from litegpu.batching.statistics import BatcherStatistics

__all__ = ["Batcher", "BatcherStatistics"]
