"""How long a call will take, from what its operators cost: a sum of few terms, with weights fitted to measurements.

The measurements: 29 models (twelve chains of one kind of operator, models of the zoo, models of public origin), batch 1
and 64, on a machine with an NVIDIA H200 and a Xeon (`python -m litegpu.tools.advise.trial` for each). The fits are
within a third for most of them, and within a factor of four for all; docs/performance.md has how many choices they get
right. On other machines the proportions hold less well: then `litegpu advise --measure` tells. The rates of a GPU are
its backend's.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from types import MappingProxyType

from litegpu.choosing.called import Called
from litegpu.choosing.candidate import Candidate
from litegpu.gpu.backends import registry
from litegpu.gpu.backends.abilities import CallRates, Predicts
from litegpu.model.costs import OpCost, op_costs
from litegpu.model.types import Operator, Subgraph

#: Operators whose work is products, which both kinds of machine are made for.
_PRODUCTS = frozenset({"CONV_2D", "CONV_3D", "FULLY_CONNECTED", "TRANSPOSE_CONV", "BATCH_MATMUL"})


_CPU = CallRates(13e-6, 0.5e-6, (1.1e-11, 1.5e-12), (2.4e-11, 1.0e-10), (2.4e-10, 4.5e-9), 1.7e-11, 0.0)
#: Of a call on the CPU, whatever it computes.
CPU_CALL = _CPU.call
#: Of each further thread, beside the first.
_THREAD_EFFICIENCY = 0.75
_THREADED_OPERATOR, _THREADED_CALL = 3e-6, 12e-6  # to start and await threads
BORDER = 40e-6  # of each further partition: to wait for the device, and to hand tensors over
_ASKED = 41e-6  # of a device, each time that the run decides whether a loop goes on, or which branch is taken
NOTHING_CALLED: Called = MappingProxyType({})


def predicted(
    graph: Subgraph,
    candidate: Candidate,
    delegated: Collection[int] = (),
    partitions: int = 1,
    called: Called = NOTHING_CALLED,
) -> float | None:
    """Seconds of one call; None for a device that nothing is known of.

    delegated: the numbers of the nodes that the device takes, in so many `partitions`; the CPU runs the others.
    called: what its operators call."""
    costs = op_costs(graph)
    if candidate.is_cpu:
        return _on_cpu(graph, costs, range(len(costs)), candidate.num_threads or 1, called)
    rates = rates_of(candidate.device)
    if rates is None:
        return None
    there = [i for i in range(len(costs)) if i in delegated]
    here = [i for i in range(len(costs)) if i not in delegated and costs[i].bytes]
    seconds = rates.call + BORDER * max(0, partitions - 1) + rates.port_byte * _port_bytes(graph)
    seconds += sum(seconds_on(rates, graph, i, costs[i], called) for i in there)
    return seconds + (_on_cpu(graph, costs, here, 1, called) if here else 0.0)


def rates_of(device: str) -> CallRates | None:
    """Of a device by its word for litegpu.load(); None where nothing is known."""
    backend = registry.backend(name) if (name := device.partition(":")[0]) in registry.ENTRIES else None
    return backend.rates if isinstance(backend, Predicts) else None


def on_one_core(graph: Subgraph, node: int, cost: OpCost, called: Called = NOTHING_CALLED) -> float:
    """Seconds of one operator on one thread of the CPU."""
    within = sum(one.times * _seconds(_CPU, one.subgraph, one.operator, one.cost) for one in called.get(node, ()))
    return within or _seconds(_CPU, graph, graph.operators[node], cost)


def _on_cpu(graph: Subgraph, costs: tuple[OpCost, ...], nodes: Collection[int], threads: int, called: Called) -> float:
    work = sum(on_one_core(graph, i, costs[i], called) for i in nodes)
    if threads == 1:
        return _CPU.call + work
    started = _THREADED_CALL + _THREADED_OPERATOR * len(nodes)
    return _CPU.call + started + float(work / threads**_THREAD_EFFICIENCY)


def seconds_on(rates: CallRates, graph: Subgraph, node: int, cost: OpCost, called: Called = NOTHING_CALLED) -> float:
    """Seconds of one operator on a device with these rates."""
    work = called.get(node, ())
    within = sum(one.times * _seconds(rates, one.subgraph, one.operator, one.cost) for one in work)
    within += _ASKED * sum(one.asked for one in work)
    return within or _seconds(rates, graph, graph.operators[node], cost)


def _seconds(rates: CallRates, graph: Subgraph, operator: Operator, cost: OpCost) -> float:
    if not cost.bytes:
        return 0.0  # a shape is changed, no element moved
    quantized = bool(operator.outputs) and graph.tensors[operator.outputs[0]].type.name in ("INT8", "UINT8", "INT16")
    kind = rates.other
    if operator.name in _PRODUCTS:
        kind = rates.product
    elif operator.name == "DEPTHWISE_CONV_2D":
        kind = rates.depthwise
    return rates.operator + cost.flops * kind[quantized] + cost.bytes * rates.byte


def _port_bytes(graph: Subgraph) -> int:
    tensors = (graph.tensors[i] for i in (*graph.inputs, *graph.outputs))
    return sum(math.prod(tensor.shape) * tensor.type.nbytes for tensor in tensors)
