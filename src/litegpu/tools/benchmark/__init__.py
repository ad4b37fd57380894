"""`litegpu benchmark`: times a model with the flags, rules and closing lines of the official benchmark tool.

`benchmark()` and `compare_benchmarks()` are the Python interface, and `main()` is the command.
"""

from __future__ import annotations

from litegpu.tools.benchmark.command import main
from litegpu.tools.benchmark.comparison import Comparison, Speedup, compare_benchmarks
from litegpu.tools.benchmark.configuration_run import benchmark
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.tools.benchmark.result import BenchmarkResult

__all__ = [
    "BenchmarkFlags",
    "BenchmarkResult",
    "Comparison",
    "Speedup",
    "benchmark",
    "compare_benchmarks",
    "main",
]
