"""What a kernel family is given (Context) and what it gives back (Launch)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.graph import Graph, Node, Value
from litegpu.gpu.lang import Kernel
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import View


@dataclass(frozen=True)
class Context:
    """One node to build kernels for. `views` says where every non-constant value of the graph lies."""

    graph: Graph
    node: Node
    views: Mapping[int, View]
    features: Features

    def value(self, i: int) -> Value:
        return self.graph.values[i]

    @property
    def output(self) -> Value:
        return self.graph.values[self.node.output]


@dataclass(frozen=True)
class Launch:
    """A traced kernel and, by the names of its buffers, what each is bound to.

    A View binds the whole memory of view.root; an array is a constant in its final layout.
    Kernel names must not depend on the layer, so that equal layers share one text.
    """

    kernel: Kernel
    operands: Mapping[str, View | np.ndarray]
    label: str
