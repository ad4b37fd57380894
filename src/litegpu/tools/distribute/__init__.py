"""Work in shards on several workers, in this process or on Ray: one outcome per shard, in order, whatever dies."""

from __future__ import annotations

from litegpu.tools.distribute.crew import WorkerContext, WorkerDied
from litegpu.tools.distribute.scheduler import Outcome, map_shards, plan_workers

__all__ = ["Outcome", "WorkerContext", "WorkerDied", "map_shards", "plan_workers"]
