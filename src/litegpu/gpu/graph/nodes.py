"""Values, the nodes that compute them, and the graph that they make."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

import numpy as np

from litegpu.gpu.graph.expression import RESULT, DType, Expr, Shape
from litegpu.gpu.graph.ops import Copy, Op


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of a fixed B,H,W,C shape (lower ranks are padded with 1 on the left; B of higher ones is the product of
    all leading axes).

    Constants carry `data`, an array of exactly that shape: float32 (widened if need be), int32 or bool, or bytes.
    `tensor` is the index of the .tflite tensor that it stands for, if any.
    """

    id: int
    shape: Shape
    dtype: DType
    data: np.ndarray | None = None
    name: str = ""
    tensor: int | None = None

    @property
    def is_constant(self) -> bool:
        return self.data is not None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)
class Node:
    """One op, the values it reads and the one it writes, and the expression applied to each element of its result.

    In `epilogue`, Arg(0) is the op's result and Arg(i) is operands[i-1], broadcast to the output's shape. For
    Elementwise, `inputs` is empty and Arg(i) is operands[i].
    `sources` are the .tflite node numbers this node does the work of.
    """

    op: Op
    inputs: tuple[int, ...]
    output: int
    epilogue: Expr = RESULT
    operands: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()

    @property
    def reads(self) -> tuple[int, ...]:
        return self.inputs + self.operands


def is_reshaping(node: Node) -> bool:
    """Whether the node gives its input in another shape and does nothing else."""
    return isinstance(node.op, Copy) and node.epilogue == RESULT and node.op.keeps_order


def sources_of(*nodes: Node) -> tuple[int, ...]:
    """The .tflite node numbers of all of them, each once, ascending."""
    return tuple(sorted({source for node in nodes for source in node.sources}))


def fits_half(numbers: np.ndarray) -> bool:
    """Whether float16 has a finite number for each."""
    return bool(np.all(np.abs(numbers) <= np.finfo(np.float16).max))


@dataclass(frozen=True, eq=False)
class Graph:
    """Values by id, and nodes in an order in which they can run."""

    values: dict[int, Value]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def producer(self) -> dict[int, Node]:
        return {n.output: n for n in self.nodes}

    def consumers(self) -> dict[int, list[Node]]:
        """value id -> the nodes that read it (a node that reads it twice stands there once)."""
        found: dict[int, list[Node]] = {v: [] for v in self.values}
        for n in self.nodes:
            for v in dict.fromkeys(n.reads):
                found[v].append(n)
        return found


@dataclass
class GraphBuilder:
    """Collects values and nodes; lowering and passes make graphs with it."""

    values: dict[int, Value] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)

    @classmethod
    def of(cls, graph: Graph) -> GraphBuilder:
        return cls(dict(graph.values), list(graph.nodes))

    def value(self, shape: Iterable[int], dtype: DType, *, name: str = "", tensor: int | None = None) -> int:
        return self._add(tuple(int(n) for n in shape), dtype, None, name, tensor)

    def constant(self, data: np.ndarray, *, name: str = "", narrow: bool = False) -> int:
        """A constant; `data` becomes B,H,W,C as `bhwc` says; floats become float32, ints int32 unless they stay
        `narrow`."""
        a = np.asarray(data)
        if narrow:
            dtype = DType(a.dtype.name)
        elif a.dtype.kind == "f":
            a, dtype = a.astype(np.float32, copy=False), DType.FLOAT32
        elif a.dtype.kind == "b":
            dtype = DType.BOOL
        else:
            a, dtype = a.astype(np.int32, copy=False), DType.INT32
        a = a.reshape(bhwc(a.shape))
        return self._add(a.shape, dtype, a, name, None)

    def node(self, op: Op, inputs: Iterable[int], output: int, epilogue: Expr = RESULT, operands: Iterable[int] = (),
             sources: Iterable[int] = ()) -> int:  # fmt: skip
        self.nodes.append(Node(op, tuple(inputs), output, epilogue, tuple(operands), tuple(sources)))
        return output

    def graph(self, inputs: Iterable[int], outputs: Iterable[int]) -> Graph:
        inputs, outputs = tuple(inputs), tuple(outputs)
        used = {*inputs, *outputs, *(v for n in self.nodes for v in (*n.reads, n.output))}
        return Graph({i: v for i, v in self.values.items() if i in used}, tuple(self.nodes), inputs, outputs)

    def _add(self, shape: Shape, dtype: DType, data: np.ndarray | None, name: str, tensor: int | None) -> int:
        i = len(self.values) if len(self.values) not in self.values else max(self.values) + 1
        self.values[i] = Value(i, shape, dtype, data, name, tensor)
        return i


def replaced(graph: Graph, found: Container[int], put: Callable[[GraphBuilder, Node], None]) -> Graph:
    """The graph with what `put` adds to the builder in place of each node whose output was found."""
    builder = GraphBuilder(dict(graph.values), [])
    for node in graph.nodes:
        if node.output in found:
            put(builder, node)
        else:
            builder.nodes.append(node)
    return builder.graph(graph.inputs, graph.outputs)


def bhwc(shape: Iterable[int]) -> Shape:
    """`shape` as four axes in row-major order: padded on the left with 1, or its leading axes joined into the first."""
    s = tuple(int(n) for n in shape)
    return (1,) * (4 - len(s)) + s if len(s) <= 4 else (math.prod(s[:-3]), *s[-3:])
