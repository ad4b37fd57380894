"""Reports: one self-contained HTML file for each run of a tool, and its plots as SVG or PNG.

    page = Page("Benchmark: mobilenet_v1.tflite", subtitle="WebGPU, float16")
    page.figures([("median", "1.24 ms"), ("relative L2", "3e-4", "good")])
    page.section("Inference time")
    page.text("50 timed runs after 5 warm-up runs.")
    page.table(("kernel", "ms"), [("conv_2d", "0.31"), ("softmax", "0.02")])
    page.plot(bars("Time by kernel", ["conv_2d", "softmax"], {"ms": [0.31, 0.02]}))
    page.plot(lines("Error by node", {"GPU": [1e-7, 2e-7, 5e-6]}, log=True))
    page.graph(graph_nodes(model.main, interpreter.delegation_report()))
    page.explorer(nodes, [Explored((("shape", "1x10"),), 1e-6) for node in nodes])  # of any size, with a script
    page.write("report.html")

`bars`, `lines` and `histogram` give a Plot: `plot.svg()`, and `plot.write("plot.png")` or ".svg". Everything is
standard library, and Pillow for PNG.
"""

from __future__ import annotations

from litegpu.report.charts import bars, histogram, lines
from litegpu.report.explorer import Explored
from litegpu.report.network import GraphNode, graph_nodes
from litegpu.report.page import Page
from litegpu.report.plot import Plot

__all__ = ["Explored", "GraphNode", "Page", "Plot", "bars", "graph_nodes", "histogram", "lines"]
