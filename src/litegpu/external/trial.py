"""Tries host.c with the installed runtime: run by layout.py in a process of its own, which may crash."""

from __future__ import annotations

import ctypes
import dataclasses
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import interpreter as official

from litegpu.external.graph import IN_ARENA, READ_ONLY, HostedGraph, NodeFacts, Subset
from litegpu.external.layout import DIFFERS, require_known
from litegpu.external.shared_library import Creation, Library, Preparation, memory_at, numbers
from litegpu.model import schema
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType

_CUSTOM = "LitegpuTrial"
_CONSTANT = np.array([1, 2, 3, 4], np.float32)


def main(path: str) -> None:
    """Try the library. Ends the process with a text on stderr if something is not as it should be."""
    library = Library(Path(path))
    trial = _Trial(library)
    library.start(trial.create)
    delegate: Any = official.load_delegate(path, {"key": "value"})
    interpreter: Any = official.Interpreter(  # type: ignore[no-untyped-call]
        model_content=_model(), experimental_delegates=[delegate], num_threads=3
    )
    for rows in (2, 3):
        interpreter.resize_tensor_input(0, [rows, 4])
        interpreter.allocate_tensors()
        given = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        for _ in range(2):
            interpreter.set_tensor(0, given)
            interpreter.invoke()
            _same("result", interpreter.get_tensor(4).tolist(), (-2 * (given + _CONSTANT)).tolist())
            given = given + 1
    del interpreter
    del delegate
    _same("calls", trial.calls, {"create", "graph", "prepare", "bind", "invoke", "close"})


def _model() -> bytes:
    """An operator of the runtime's, one that only the trial has, and another of the runtime's."""
    builder = ModelBuilder()
    x = builder.input("the input", [1, 4], shape_signature=[-1, 4])
    total = builder.op("ADD", [x, builder.constant(_CONSTANT, "a constant")], [1, 4], name="a sum")
    (doubled,) = builder.custom(_CUSTOM, [total], [((1, 4), TensorType.FLOAT32)])
    builder.output(builder.op("NEG", [doubled], [1, 4], name="the output"))
    return builder.build()


class _Trial:
    """Looks at what the runtime tells, and doubles what the custom operator is given."""

    def __init__(self, library: Library) -> None:
        self._library, self._kernel = library, 0
        self.calls: set[str] = set()
        self._rows = 0
        self._given = self._result = np.empty(0, np.float32)

    def create(self, address: int) -> Callable[[int], str | None]:
        given = Creation.from_address(address)
        _same("options", (given.count, given.keys[0], given.values[0]), (1, b"key", b"value"))
        self.calls.add("create")
        return self._delegate

    def _delegate(self, address: int) -> None:
        given = Preparation.from_address(address)
        graph = HostedGraph(self._library, given.context)
        require_known(self._library.runtime(given.context))
        _same("threads", graph.threads, 3)
        _same("tensors", graph.tensors_count >= 5, True)
        names = [b"the input", b"a constant", b"a sum", b"tensor_3", b"the output"]
        for i, name in enumerate(names):
            tensor = graph.tensor(i)
            kind, shape = (READ_ONLY, (4,)) if i == 1 else (IN_ARENA, tensor.shape)
            _same("tensor", ctypes.string_at(tensor.name), name)
            _same(
                str(name), (tensor.type, tensor.shape, tensor.allocation, tensor.variable, tensor.bytes),
                (TensorType.FLOAT32, shape, kind, False, 4 * math.prod(shape)),
            )  # fmt: skip
        _same("constant", ctypes.string_at(graph.tensor(1).data, 16), _CONSTANT.tobytes())
        codes = [schema.enum_values("BuiltinOperator")[name] for name in ("ADD", "CUSTOM", "NEG")]
        borders = [((0, 1), (2,)), ((2,), (3,)), ((3,), (4,))]
        known = [NodeFacts(i, codes[i], None, *borders[i], delegated=False) for i in range(3)]
        nodes = graph.nodes()
        _same("nodes", [dataclasses.replace(node, custom=None) for node in nodes], known)
        _same("custom operator", nodes[1].custom, _CUSTOM)
        _same("partitions", graph.preview([1]), (Subset((1,), (2,), (3,)),))
        called = self._prepare, self._bind, self._invoke, self._close  # the runtime keeps them later
        self._kernel = self._library.kernel_new(1, 2, 1, numbers([2, 3]), *called)
        graph.replace(given.delegate, [1], [self._kernel])
        _same("taken", self._library.taken(self._kernel), 1)
        plan = graph.nodes()
        _same("plan", [(n.index, n.delegated) for n in plan], [(0, False), (3, True), (2, False)])
        self.calls.add("graph")

    def _prepare(self, context: int) -> None:
        graph = HostedGraph(self._library, context)
        self._rows = graph.tensor(2).shape[0]
        graph.resize(3, (self._rows, 4))
        _same("resized", graph.tensor(3).shape, (self._rows, 4))
        self._result = np.zeros((self._rows, 4), np.float32)
        self._library.reclaim(self._kernel)
        self.calls.add("prepare")

    def _bind(self) -> None:
        address = self._library.memory(self._kernel)[0]
        self._given = memory_at(address, np.dtype(np.float32), (self._rows, 4))
        self._library.lent(self._kernel)[1] = self._result.__array_interface__["data"][0]
        self.calls.add("bind")

    def _invoke(self) -> None:
        self._result[...] = 2 * self._given
        self.calls.add("invoke")

    def _close(self) -> None:
        self.calls.add("close")


def _same(what: str, found: object, known: object) -> None:
    """Ends the process, from wherever in a callback this is."""
    if found != known:
        print(f"{DIFFERS}{what}: {found} instead of {known}", file=sys.stderr, flush=True)
        os._exit(1)
