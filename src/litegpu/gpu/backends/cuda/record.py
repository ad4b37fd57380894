"""What an inference puts on a CUDA stream, and the graphs that repeat it: copies of ports around the kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cuda.bindings import driver

from litegpu.gpu.backends.cuda.base import LoadedKernel
from litegpu.gpu.backends.cuda.binding import Ways
from litegpu.gpu.backends.cuda.conditional import ConditionalGraph, parts
from litegpu.gpu.backends.cuda.copy import MOST_BYTES, Helpers, copy_launch, widen_launch
from litegpu.gpu.backends.cuda.driver import checked
from litegpu.gpu.backends.cuda.graph import CudaGraph, GraphLaunch, make_launch
from litegpu.gpu.backends.cuda.memory import SessionMemory
from litegpu.gpu.backends.cuda.overlap import Overlap, Work, work_of
from litegpu.gpu.program import Dispatch, Program, blocks

#: What kernels read at once: arrays of the user's that they read in place begin and end at multiples of it.
_BLOCK = 16
#: Graphs kept for different bound arrays.
_BOUND_GRAPHS = 4
_NOTHING_BOUND: Ways = {}


class Recorder:
    """Of one session. The device's context must be current in every method."""

    def __init__(
        self,
        program: Program,
        memory: SessionMemory,
        kernels: Sequence[LoadedKernel],
        helpers: Helpers,
        stream: Any,
        overlap: Overlap,
        streamed: Mapping[int, tuple[int, int]],
        setter: LoadedKernel | None = None,
    ) -> None:
        """`kernels` of the program in order. `overlap`: which start before those in front of them have ended.
        `streamed`: what the second-level cache lets go of first (access_policy.py). `setter`: what sets
        conditions, None if there are none or graphs cannot have them."""
        self._program = program
        self._memory = memory
        self._helpers = helpers
        self._stream = stream
        self._overlap = overlap
        self._after_kernel = False  # whether what was enqueued last is a kernel
        self._copies: dict[tuple[int, int], GraphLaunch] = {}
        self._kernel_graph: CudaGraph | None = None
        self._timed_graph: CudaGraph | None = None
        self._widening_graphs: list[CudaGraph] = []
        self._bound_graphs: list[tuple[Ways, CudaGraph]] = []  # latest last
        self.launches = [self._launch(kernels, dispatch) for dispatch in program.dispatches]
        for i, what in streamed.items():
            self.launches[i] = replace(self.launches[i], streamed=what)
        self._setter = setter
        #: Whether graphs are of whole inferences; else they are empty, as the driver has no conditional nodes.
        self.has_whole_graph = setter is not None or not program.regions
        self.order = blocks(program)
        self.graph = self._graph(_NOTHING_BOUND)

    @property
    def kernel_graph(self) -> CudaGraph:
        """A graph of the kernels without the copies."""
        if self._kernel_graph is None:
            self._kernel_graph = CudaGraph(self._stream, lambda: self._enqueue_kernels(self.launches))
        return self._kernel_graph

    @property
    def timed_graph(self) -> CudaGraph:
        """The same for measurements (timed_kernels())."""
        if self._timed_graph is None:
            self._timed_graph = self.timed_kernels(len(self.launches))
        return self._timed_graph

    def widening_graph(self, rounded: Mapping[int, int]) -> CudaGraph:
        """A new graph of the kernels without the copies, for inputs that come as halves from these addresses."""
        widened = [self._widened(index, source) for index, source in sorted(rounded.items())]
        graph = CudaGraph(self._stream, lambda: self._enqueue_kernels([*widened, *self.launches]))
        graph.launches = widened
        self._widening_graphs.append(graph)
        return graph

    def timed_kernels(self, count: int) -> CudaGraph:
        """A new graph of so many kernels, without copies, which finds the same inputs whenever it is launched: those
        that it may are read from memory of their own. (Else kernels would be timed with what later ones have written
        there, which is no input, and some kernels take longer for some numbers.)"""
        launches: Sequence[GraphLaunch] = self.launches
        for index, port in enumerate(self._program.inputs):
            if port.uses and (numbers := self._memory.stand_in(index)):
                launches = _moved(launches, port.uses, numbers)
        graph = CudaGraph(self._stream, lambda: self._enqueue_kernels(launches[:count]))
        graph.launches = launches
        return graph

    def has_graph(self, ways: Ways) -> bool:
        return any(ways == known for known, _ in self._bound_graphs)

    def known_graph(self, ways: Ways) -> CudaGraph | None:
        """That for what is bound, if it has been made."""
        return next((graph for known, graph in self._bound_graphs if known == ways), None)

    def bound_graph(self, ways: Ways, finish: Callable[[], None]) -> CudaGraph:
        """The graph for what is bound, made if there is none yet; `finish` waits for the device if need be."""
        graphs = self._bound_graphs
        for known, graph in graphs:
            if known is ways or known == ways:
                return graph
        if len(graphs) == _BOUND_GRAPHS:
            finish()
            old, graph = graphs.pop(0)
            graph.close()
            addresses = {address for address in old.values() if address is not None}
            self._copies = {pair: launch for pair, launch in self._copies.items() if addresses.isdisjoint(pair)}
        graph = self._graph(ways)
        graphs.append((ways, graph))
        return graph

    def graph_of(self, in_place: Collection[int], rounded: Mapping[int, int], widened: Mapping[int, int]) -> CudaGraph:
        """A new graph of an inference, for who asks to close: without copies of the inputs `in_place`; those that are
        `rounded` come as halves from these addresses, those that are `widened` lie on the device as halves there."""
        halves = {("halves", index): address for index, address in rounded.items()}
        there = {("widened", index): address for index, address in widened.items()}
        return self._graph({**halves, **there, **{("input", index): None for index in in_place}})

    def enqueue_widened(self, index: int, source: int) -> None:
        """Put on the stream that input `index` is made of the halves at `source`."""
        self._widened(index, source).enqueue(self._stream)

    def _widened(self, index: int, source: int) -> GraphLaunch:
        port, kernel = self._program.inputs[index], self._helpers.widen
        assert kernel is not None
        place = self._memory.place(port)
        launch = self._copies.get((place, source))
        if launch is None:
            label = f"widening of input {port.name!r}"
            launch = self._copying(widen_launch(kernel, place, source, port.nbytes // 4, label), port.nbytes)
            self._copies[place, source] = launch
        return launch

    def _graph(self, ways: Ways) -> CudaGraph:
        """A new graph of an inference."""
        if self._setter is not None:
            inside = parts(self.order, self._memory.bases["arena"], lambda i: self._enqueue(self.launches[i]))
            ends = [lambda: self.enqueue_inputs(ways), *inside, lambda: self.enqueue_outputs(ways)]
            return ConditionalGraph(self._stream, self._setter, ends)
        if not self.has_whole_graph:
            return CudaGraph(self._stream, lambda: None)
        launches: list[GraphLaunch] = []
        there = self._written_there(ways)
        graph = CudaGraph(self._stream, lambda: launches.extend(self._enqueue_inference(ways, there)))
        graph.launches, graph.elsewhere = launches, there
        return graph

    def _enqueue_inference(self, ways: Ways, there: Mapping[int, int]) -> Sequence[GraphLaunch]:
        """Put everything on the stream, where outputs are written `there`; the launches of the kernels as they were put
        there."""
        launches = self.enqueue_inputs(ways)
        for index, address in there.items():
            launches = _moved(launches, self._program.outputs[index].uses or (), address)
        for launch in launches:
            self._enqueue(launch)
        self.enqueue_outputs(ways, there)
        return launches

    def _written_there(self, ways: Ways) -> Mapping[int, int]:
        """The outputs that kernels can write where the user's arrays are, which have nothing in common with what else
        is bound, and their addresses."""
        ports = {("input", i): port for i, port in enumerate(self._program.inputs)}
        ports |= {("output", i): port for i, port in enumerate(self._program.outputs)}
        bound = {place: at for place, at in ways.items() if at is not None and place in ports}
        ranges = {place: (at, at + ports[place].nbytes) for place, at in bound.items()}
        found = {}
        for (kind, index), (first, end) in ranges.items():
            port = ports[kind, index]
            alone = all(first >= e or end <= f for place, (f, e) in ranges.items() if place != (kind, index))
            if kind == "output" and port.uses and alone and (first | port.nbytes) % _BLOCK == 0:
                found[index] = first
        return found

    def enqueue_inputs(self, ways: Ways) -> Sequence[GraphLaunch]:
        """Begin an inference with the copies of inputs; the launches of the kernels, of which those that can read
        arrays of the user's where they are do so."""
        self._after_kernel = False
        launches: Sequence[GraphLaunch] = self.launches
        for index, (port, memory) in enumerate(zip(self._program.inputs, self._memory.inputs, strict=True)):
            halves = ways.get(("halves", index))
            if halves is not None and ("input", index) not in ways:
                self._enqueue_halves(index, halves)
                continue
            there = ways.get(("widened", index))
            if there is not None:
                self._enqueue(self._widened(index, there))
                continue
            bound = ways.get(("input", index), memory.ctypes.data)
            places = None
            if ("input", index) in ways and bound is not None and (bound | port.nbytes) % _BLOCK == 0:
                places = port.uses
            if places is not None and bound is not None:
                launches = _moved(launches, places, bound)
            elif bound is not None:
                copy = driver.cuMemcpyDtoDAsync if ("input", index) in ways else driver.cuMemcpyHtoDAsync
                place, what = self._memory.place(port), f"copy of input {port.name!r}"
                self._enqueue_copy(place, bound, port.nbytes, copy, what)
        return launches

    def _enqueue_halves(self, index: int, source: int) -> None:
        """Put on the stream that input `index` is made of the halves on the host, which a kernel reads there if these
        are few."""
        port = self._program.inputs[index]
        size, what = port.nbytes // 2, f"copy of input {port.name!r}"
        if size > MOST_BYTES:
            room = self._memory.room_for_halves(index)
            self._enqueue_copy(room, source, size, driver.cuMemcpyHtoDAsync, what)
            source = room
        self._enqueue(self._widened(index, source))

    def enqueue_outputs(self, ways: Ways, there: Collection[int] = ()) -> None:
        """Copies of all outputs but those that are `there` already."""
        for index, port in enumerate(self._program.outputs):
            if index in there:
                continue
            own = None if index in self._memory.results else self._memory.output(index).ctypes.data
            bound = ways.get(("output", index), own)
            if bound is not None:
                copy = driver.cuMemcpyDtoDAsync if ("output", index) in ways else driver.cuMemcpyDtoHAsync
                place, what = self._memory.place(port), f"copy of output {port.name!r}"
                self._enqueue_copy(bound, place, port.nbytes, copy, what)

    def close(self) -> None:
        bound = [graph for _, graph in self._bound_graphs]
        for graph in (self.graph, self._kernel_graph, self._timed_graph, *self._widening_graphs, *bound):
            if graph is not None:
                graph.close()
        self._widening_graphs.clear()
        self._bound_graphs.clear()
        self._copies.clear()

    def _launch(self, kernels: Sequence[LoadedKernel], dispatch: Dispatch) -> GraphLaunch:
        code, loaded = self._program.kernels[dispatch.kernel], kernels[dispatch.kernel]
        addresses = [self._memory.address(b) for b in dispatch.bindings]
        launch = make_launch(loaded, dispatch.groups, code.workgroup, code.shared_bytes, dispatch.label, addresses)
        return self._timed(launch, work_of(dispatch))

    def _timed(self, launch: GraphLaunch, work: Work) -> GraphLaunch:
        """The launch, started early if it should be."""
        kernel, units = launch.kernel, launch.kernel.device.features.compute_units
        if self._overlap.starts_early(work, kernel.resident, units):
            return replace(launch, early=True)
        share = self._overlap.held_to(work, units)
        held = kernel.shared_bytes_for(share) if share else 0
        return replace(launch, early=held > 0, shared_bytes=held or launch.shared_bytes)

    def _copying(self, launch: GraphLaunch, size: int) -> GraphLaunch:
        """_timed() of a copy that touches so many bytes."""
        return self._timed(launch, Work(math.prod(launch.groups), size, size))

    def _enqueue_kernels(self, launches: Sequence[GraphLaunch]) -> None:
        self._after_kernel = False
        for launch in launches:
            self._enqueue(launch)

    def _enqueue_copy(self, target: int, source: int, nbytes: int, copy: Callable[..., Any], what: str) -> None:
        """Put a copy of a port on the stream, as a kernel where that can be."""
        ours = copy is not driver.cuMemcpyDtoDAsync  # with room behind the last byte
        fits = ours or (nbytes % 4 == 0 and target % _BLOCK == 0 and source % _BLOCK == 0)
        by_kernel = fits and (nbytes <= MOST_BYTES or not ours)  # on the device a kernel is quicker at any size
        self._after_kernel &= by_kernel
        if not by_kernel:
            checked(copy(target, source, nbytes, self._stream), what)
            return
        launch = self._copies.get((target, source))
        if launch is None:
            launch = self._copying(copy_launch(self._helpers.copy, target, source, nbytes, what), 2 * nbytes)
            self._copies[target, source] = launch
        self._enqueue(launch)

    def _enqueue(self, launch: GraphLaunch) -> None:
        """Put a kernel on the stream: it overlaps with what is in front if that is a kernel as well."""
        launch.enqueue(self._stream, overlap=self._overlap.waits and self._after_kernel)
        self._after_kernel = True


def _moved(launches: Sequence[GraphLaunch], places: Sequence[tuple[int, int]], address: int) -> list[GraphLaunch]:
    """The launches with another address at some of (launch, argument)."""
    found = list(launches)
    for i, argument in places:
        found[i] = found[i].moved(argument, address)
    return found
