"""Which kernels of a program overlap."""

from __future__ import annotations

import dataclasses

import numpy as np

from litegpu.gpu.backends.cuda.overlap import ALONE, MANY_GROUPS, SHARED_MEMORY_PERCENT, overlap_of
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import Conv2D, DType, Graph, GraphBuilder
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import Program

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132, max_buffers=64, max_buffer_bytes=1 << 34)


def layers(batch: int) -> Program:
    builder = GraphBuilder()
    x = first = builder.value((batch, 32, 32, 64), DType.FLOAT32)
    for _ in range(3):
        weights = builder.constant(np.ones((64, 1, 1, 64), np.float32))
        x = builder.node(Conv2D(), [x, weights], builder.value((batch, 32, 32, 64), DType.FLOAT32))
    graph: Graph = builder.graph([first], [x])
    return build_program(graph, CUDA, "cuda", half=True)


def test_programs_of_little_work_divide_the_fast_memory_alike() -> None:
    found = overlap_of(layers(1))
    assert found.waits and found.latency and found.least == 0 and found.percent == SHARED_MEMORY_PERCENT


def test_kernels_of_much_work_overlap_as_well() -> None:
    found = overlap_of(layers(64))
    assert found.waits and not found.latency and found.least == MANY_GROUPS and found.percent == -1


def test_loops_do_not_overlap() -> None:
    program = layers(64)
    looping = dataclasses.replace(program, regions=(object(),))  # type: ignore[arg-type] # whatever it is
    assert overlap_of(looping) == ALONE
