"""Which kernels of a program overlap."""

from __future__ import annotations

import dataclasses
import math
import statistics

import numpy as np

from litegpu.gpu.backends.cuda.overlap import (
    ALONE,
    LITTLE_BYTES,
    LITTLE_GROUP_BYTES,
    MOST_HELD_BYTES,
    MOST_MEAN_BYTES,
    SHARED_BYTES,
    Work,
    overlap_of,
    shared_memory_percent,
    touched,
    work_of,
)
from litegpu.gpu.build import build_program
from litegpu.gpu.graph import Conv2D, DType, Graph, GraphBuilder
from litegpu.gpu.lang.features import Features
from litegpu.gpu.program import Program

CUDA = Features(float16=True, native="cuda", capability=90, compute_units=132, max_buffers=64, max_buffer_bytes=1 << 34)


#: Two workgroups for each of 132 multiprocessors.
MUCH = Work(264, 40 << 20, 40 << 20)


def layers(batch: int, channels: int = 64) -> Program:
    builder = GraphBuilder()
    shape = (batch, 32, 32, channels) if channels == 64 else (batch, 2, 2, channels)
    x = first = builder.value(shape, DType.FLOAT32)
    for _ in range(3):
        weights = builder.constant(np.ones((channels, 1, 1, channels), np.float32))
        x = builder.node(Conv2D(), [x, weights], builder.value(shape, DType.FLOAT32))
    graph: Graph = builder.graph([first], [x])
    return build_program(graph, CUDA, "cuda", half=True)


def test_programs_of_little_work_divide_the_fast_memory_alike() -> None:
    found = overlap_of(layers(1))
    assert found.waits and found.latency
    assert found.starts_early(MUCH, 8, 132)  # whatever the launch is


def test_launches_of_much_work_start_early_where_they_are_spread_evenly_nevertheless() -> None:
    found = overlap_of(layers(64))
    assert found.waits and not found.latency
    assert found.starts_early(MUCH, 2, 132)
    assert not found.starts_early(MUCH, 3, 132)
    little = Work(264, LITTLE_BYTES, LITTLE_GROUP_BYTES * 264)
    assert found.starts_early(little, 8, 132)  # what it takes is to start
    assert not found.starts_early(dataclasses.replace(little, touched=LITTLE_BYTES + 1), 8, 132)
    # Constants of 2.5 MB for 252 workgroups: one multiprocessor fetches them for six.
    assert not found.starts_early(dataclasses.replace(little, all_bytes=LITTLE_GROUP_BYTES * 264 + 1), 8, 132)


def test_launches_that_would_be_spread_unevenly_are_held_to_their_share() -> None:
    found = overlap_of(layers(64))
    some = Work(200, MOST_HELD_BYTES, 40 << 20)
    assert not found.starts_early(some, 3, 132)
    assert found.held_to(some, 132) == 2
    assert found.held_to(dataclasses.replace(some, groups=64), 132) == 1
    assert found.held_to(dataclasses.replace(some, touched=MOST_HELD_BYTES + 1), 132) == 0  # takes long anyway
    assert ALONE.held_to(some, 132) == 0
    assert overlap_of(layers(1)).held_to(some, 132) == 0  # whose kernels divide the fast memory alike


def test_launches_of_more_work_do_not() -> None:
    """What an early start gains is the same for each, and nothing beside what these take."""
    program = layers(64)
    mean = statistics.mean(touched(dispatch) for dispatch in program.dispatches)
    many = layers(2 * math.ceil(64 * MOST_MEAN_BYTES / mean))
    assert mean < MOST_MEAN_BYTES and overlap_of(many) == ALONE


def test_work_counts_all_that_a_launch_touches() -> None:
    program = layers(1)
    works = [work_of(dispatch) for dispatch in program.dispatches]
    assert all(w.groups >= 1 and w.all_bytes > w.touched > 0 for w in works)
    assert [w.touched for w in works] == [touched(dispatch) for dispatch in program.dispatches]


def test_kernels_that_overlap_have_the_same_division_of_memory() -> None:
    """Hopper's is half; that of desktops' Blackwell has no more than some kernels need."""
    assert shared_memory_percent(228 << 10) * (228 << 10) // 100 <= SHARED_BYTES
    assert shared_memory_percent(100 << 10) == 100


def test_loops_do_not_overlap() -> None:
    program = layers(64)
    looping = dataclasses.replace(program, regions=(object(),))  # type: ignore[arg-type] # whatever it is
    assert overlap_of(looping) == ALONE
    assert not ALONE.starts_early(Work(1000, 0, 0), 1, 132)


def test_weights_do_not_count() -> None:
    """Kernels load them before they wait."""
    assert overlap_of(layers(1, 2048)).latency
