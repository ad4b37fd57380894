"""`litegpu map`: a model over many inputs, one row of Parquet for each."""

from __future__ import annotations

from litegpu.tools.mapping.map_run import Failure, MapReport, map_model, print_report

__all__ = ["Failure", "MapReport", "map_model", "print_report"]
