"""Arena planning: nothing that lives together overlaps, and the arena stays close to the lower bound."""

from __future__ import annotations

import random

import pytest

from litegpu.gpu.memory import Allocation, plan


def overlaps(blocks: dict[int, Allocation], offsets: dict[int, int]) -> list[tuple[int, int]]:
    found = []
    for i, a in blocks.items():
        for j, b in blocks.items():
            together = a.first <= b.last and b.first <= a.last
            if i < j and together and offsets[i] < offsets[j] + b.size and offsets[j] < offsets[i] + a.size:
                found.append((i, j))
    return found


@pytest.mark.parametrize("seed", range(30))
def test_blocks_live_together_do_not_overlap(seed: int) -> None:
    rnd = random.Random(seed)
    blocks = {}
    for i in range(rnd.randint(1, 60)):
        first = rnd.randint(0, 40)
        blocks[i] = Allocation(
            rnd.choice([0, 1, 100, 4096, rnd.randint(1, 100_000)]), first, first + rnd.randint(0, 12)
        )
    offsets, report = plan(blocks, 256)
    assert overlaps(blocks, offsets) == []
    assert all(o % 256 == 0 for o in offsets.values())
    assert report.lower_bound <= report.arena <= report.unshared


def test_a_chain_shares_two_buffers() -> None:
    blocks = {i: Allocation(1024, i, i + 1) for i in range(50)}
    _, report = plan(blocks, 256)
    assert report.arena == report.lower_bound == 2048


def test_nothing_to_place() -> None:
    offsets, report = plan({}, 256)
    assert offsets == {} and report.arena == 0
