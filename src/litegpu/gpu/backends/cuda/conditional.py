"""Programs with regions as CUDA graphs: conditional nodes, whose conditions kernels set, so that the host waits for
nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cuda.bindings import driver

from litegpu.gpu.backends.cuda.base import LoadedKernel
from litegpu.gpu.backends.cuda.driver import add_node, checked
from litegpu.gpu.backends.cuda.graph import CudaGraph, GraphLaunch, captured, make_launch
from litegpu.gpu.program import KernelCode, Program, RegionBlock

SET_CONDITION = KernelCode(
    "set_condition",
    """
extern "C" __device__ __cudart_builtin__ void CUDARTAPI
cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned int value);

extern "C" __global__ void __launch_bounds__(1)
set_condition(unsigned long long handle, const int* flag) {
  cudaGraphSetConditional((cudaGraphConditionalHandle)handle, *flag != 0);
}
""",
    (1, 1, 1),
    ("read_write", "read_write"),
)


def needed(program: Program) -> tuple[KernelCode, ...]:
    """What a session of the program loads for its regions."""
    return (SET_CONDITION,) if program.regions else ()


#: Puts something on the stream that is being captured.
Enqueue = Callable[[], object]


@dataclass(frozen=True)
class Conditional:
    """What runs while, or if, the int32 at an address is not 0."""

    kind: str
    flag: int
    inside: Sequence[Enqueue | Conditional]


def parts(
    order: Sequence[int | RegionBlock], arena: int, enqueue: Callable[[int], object]
) -> list[Enqueue | Conditional]:
    """The dispatches of a program and its regions, whose flags lie in the `arena`; `enqueue` puts one on the stream."""
    found: list[Enqueue | Conditional] = []
    for one in order:
        if isinstance(one, RegionBlock):
            inside = parts(one.inside, arena, enqueue)
            found.append(Conditional(one.region.kind, arena + one.region.flag, inside))
        else:
            found.append(lambda one=one: enqueue(one))  # type: ignore[misc]
    return found


class ConditionalGraph(CudaGraph):
    """A graph of parts, one after the other. The device's context must be current in every method."""

    def __init__(self, stream: Any, setter: LoadedKernel, all_parts: Sequence[Enqueue | Conditional]) -> None:
        self._stream, self._setter = stream, setter
        self._context = checked(driver.cuCtxGetCurrent(), "cuCtxGetCurrent")
        self._kept: list[GraphLaunch] = []
        self.launches = self._kept
        graph = checked(driver.cuGraphCreate(0), "cuGraphCreate")
        try:
            self._fill(graph, all_parts, None)
            self.executable = checked(driver.cuGraphInstantiate(graph, 0), "cuGraphInstantiate")
        finally:
            driver.cuGraphDestroy(graph)
        checked(driver.cuGraphUpload(self.executable, stream), "cuGraphUpload")

    def _fill(self, graph: Any, inside: Sequence[Enqueue | Conditional], last: Any) -> Any:
        """Add nodes to a graph, one behind the other; the last one, None if there is none."""
        for one in _joined(inside):
            if isinstance(one, Conditional):
                last = self._add_conditional(graph, one, last)
            else:
                last = self._add_captured(graph, one, last)
        return last

    def _add_captured(self, graph: Any, enqueue: Enqueue, last: Any) -> Any:
        child = captured(self._stream, enqueue)
        try:
            before = None if last is None else [last]
            answer = driver.cuGraphAddChildGraphNode(graph, before, len(before or ()), child)
            return checked(answer, "cuGraphAddChildGraphNode")
        finally:
            driver.cuGraphDestroy(child)

    def _add_conditional(self, graph: Any, one: Conditional, last: Any) -> Any:
        answer = driver.cuGraphConditionalHandleCreate(graph, self._context, 0, 0)
        handle = checked(answer, "cuGraphConditionalHandleCreate")
        launch = make_launch(
            self._setter, (1, 1, 1), SET_CONDITION.workgroup, 0, "set_condition", [int(handle), one.flag]
        )
        self._kept.append(launch)

        def test() -> None:
            launch.enqueue(self._stream)

        last = self._add_captured(graph, test, last)
        kinds = driver.CUgraphConditionalNodeType
        params = driver.CUgraphNodeParams()
        params.type = driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_CONDITIONAL
        params.conditional.handle = handle
        loops = one.kind == "while"
        params.conditional.type = kinds.CU_GRAPH_COND_TYPE_WHILE if loops else kinds.CU_GRAPH_COND_TYPE_IF
        params.conditional.size = 1
        params.conditional.ctx = self._context
        node = add_node(graph, [] if last is None else [last], params)
        body = params.conditional.phGraph_out[0]
        self._fill(body, [*one.inside, test] if loops else one.inside, None)
        return node


def _joined(inside: Sequence[Enqueue | Conditional]) -> Iterator[Enqueue | Conditional]:
    """With neighbours that are captured together as one."""
    run: list[Enqueue] = []

    def together(members: Sequence[Enqueue]) -> Enqueue:
        def enqueue() -> None:
            for one in members:
                one()

        return enqueue

    for part in inside:
        if isinstance(part, Conditional):
            if run:
                yield together(run)
                run = []
            yield part
        else:
            run.append(part)
    if run:
        yield together(run)
