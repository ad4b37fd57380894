"""Neighbouring threads that share a row and tell one another what they found."""

from __future__ import annotations

import functools
from collections.abc import Callable

from litegpu.gpu.lang import Kernel, TracedValue
from litegpu.gpu.lang.features import Features

Combine = Callable[[TracedValue, TracedValue], TracedValue]


def number(k: Kernel, features: Features) -> TracedValue:
    """This thread's number in the workgroup, for which teams are runs of numbers. (Where nobody says which threads are
    a subgroup, a workgroup of just one may still exchange by shuffles: its threads know their places there.)"""
    return k.subgroup_lane() if _is_subgroup(k, features) else k.local_id()


def told(k: Kernel, features: Features, size: int, value: TracedValue, combine: Combine) -> TracedValue:
    """What `combine` makes of the `value`s of a team of `size` threads whose numbers follow one another, a power of two
    that divides the workgroup; each of them gets it. Reached by the whole workgroup. By shuffles where a device says
    which threads are a subgroup, and through shared memory beyond."""
    t = number(k, features)
    near = 1
    if features.linear_subgroups or _is_subgroup(k, features):
        near = min(size, features.subgroup_size)
        for half in _halves(near):
            value = combine(value, k.subgroup_shuffle_xor(value, half))
        if near == size:
            return value
    shared = k.shared(value.type, k.threads // near)
    with k.If(True if near == 1 else t % near == 0):
        shared[t // near if near > 1 else t] = value
    k.barrier()
    count = size // near
    if near > 1:  # few are left: each thread reads them all
        first = t // size * count
        return functools.reduce(combine, [shared[first + i] for i in range(count)])
    place = t % size
    for half in _halves(size):
        with k.If(place < half):
            shared[t] = combine(shared[t], shared[t + half])
        k.barrier()
    return shared[t - place]


def _is_subgroup(k: Kernel, features: Features) -> bool:
    """Whether the workgroup is one subgroup, of threads in an order that only they know."""
    return features.subgroups and not features.linear_subgroups and features.subgroup_size == k.threads


def _halves(n: int) -> list[int]:
    """n / 2, n / 4 ... 1."""
    return [n >> i for i in range(1, n.bit_length())]
