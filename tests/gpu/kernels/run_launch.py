"""Run the kernels of one node on a WebGPU device, and compare with the definition in NumPy."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from litegpu.gpu.backends.webgpu.printer import print_wgsl
from litegpu.gpu.evaluate import evaluate_node
from litegpu.gpu.graph import DType, Graph, GraphBuilder
from litegpu.gpu.kernels.builders import build
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.lang import Kernel
from litegpu.gpu.lang import interpret as interpreter
from litegpu.gpu.lang.features import Features
from litegpu.gpu.view import View, packed, padded

STORED = {
    **{DType.FLOAT32: np.float32, DType.FLOAT16: np.float16, DType.INT32: np.int32, DType.BOOL: np.int32},
    **{DType.INT8: np.int8, DType.UINT8: np.uint8},
}
UNWRITTEN = 77  # what memory holds before the kernels run


def check_node(
    builder: GraphBuilder,
    inputs: Mapping[int, np.ndarray],
    *,
    half: bool = False,
    packed_values: tuple[int, ...] = (),
    views: Mapping[int, View] | None = None,
    features: Features | None = None,
    tolerance: float | None = None,
    interpret: bool = False,
    device: bool = True,
) -> np.ndarray:
    """Run the only node of `builder` on `inputs` (by value id), compare with NumPy, and return what it wrote.

    Values are padded to whole quads unless they are among `packed_values` or have a view in `views`; `half` stores
    padded float values as float16. Relative L2 must be within `tolerance` (1e-6, or 2e-3 with `half`), NaN and
    infinities must be in the same places, and padding must hold zeros. `interpret`: also run the kernels in the
    language's interpreter, which checks bounds and races; without `device`, only there (for `features` that the device
    has not).
    """
    (node,) = builder.nodes
    graph = builder.graph(list(inputs), [node.output])
    views = lay_out(graph, half, packed_values) | dict(views or {})
    arrays = {v: _as_stored(a, views[v]) for v, a in inputs.items()}
    known = {i: v.data for i, v in graph.values.items() if v.data is not None} | arrays
    expected = evaluate_node(node, known, graph)
    tolerance = tolerance or (2e-3 if half else 1e-6)
    if interpret or not device:
        result = run_node(graph, views, arrays, features, interpret=True)
        assert_close(result, expected, tolerance)
        if not device:
            return result
    result = run_node(graph, views, arrays, features)
    assert_close(result, expected, tolerance)
    return result


def lay_out(graph: Graph, half: bool = False, packed_values: tuple[int, ...] = ()) -> dict[int, View]:
    """A view for every runtime value, each with a root of its own."""
    views: dict[int, View] = {}
    for value in graph.values.values():
        if not value.is_constant:
            if value.id in packed_values:
                views[value.id] = packed(len(views), value.shape, value.dtype)
            else:
                dtype = DType.FLOAT16 if half and value.dtype is DType.FLOAT32 else value.dtype
                views[value.id] = padded(len(views), value.shape, dtype)
    return views


def run_node(
    graph: Graph,
    views: Mapping[int, View],
    arrays: Mapping[int, np.ndarray],
    features: Features | None = None,
    *,
    interpret: bool = False,
    half: bool = False,
) -> np.ndarray:
    """Run the only node of `graph` and return its output; asserts that padding channels were written as zeros, and
    nothing else but the output was. `interpret`: not on a device but in the language's interpreter."""
    (node,) = graph.nodes
    features = features or Features(float16=any(v.dtype is DType.FLOAT16 for v in views.values()))
    launches = build(KernelContext(graph, node, views, features, half))
    memory = {view.root: np.full(view.size, UNWRITTEN, STORED[view.dtype]) for view in views.values()}
    for v, a in arrays.items():
        view = views[v]
        if view.zero_padded:
            _window(memory[view.root], view, view.quads * 4)[...] = 0
        _window(memory[view.root], view)[...] = a
    view = views[node.output]
    before = memory[view.root].copy()
    if interpret:
        interpret_launches(launches, memory)
    else:
        run_launches(launches, memory, features)
    owned = np.zeros(view.size, np.bool_)
    _window(owned, view, view.quads * 4 if view.zero_padded else None)[...] = True
    same = (memory[view.root] == before) | owned
    assert same.all(), f"elements outside of the output were written: {np.flatnonzero(~same)[:8]}"
    if view.zero_padded:
        assert not _window(memory[view.root], view, view.quads * 4)[..., view.shape[3] :].any(), "padding is not zero"
    result = _window(memory[view.root], view).copy()
    return result != 0 if view.dtype is DType.BOOL else result


def run_launches(launches: list[Launch], memory: dict[int, np.ndarray], features: Features, repeat: int = 0) -> float:
    """Run the kernels on `memory` (by root, changed in place). Gives the seconds of the fastest of `repeat` more."""
    import wgpu

    device = _device(features.float16)
    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC

    def upload(a: np.ndarray) -> Any:
        data = np.ascontiguousarray(a).tobytes()
        return device.create_buffer_with_data(data=data.ljust(-(-len(data) // 16) * 16, b"\0"), usage=usage)

    roots = {r: upload(a) for r, a in memory.items()}
    steps = []
    for launch in launches:
        kernel = launch.kernel
        assert isinstance(kernel, Kernel), "of the language"
        assert max(kernel.dispatch) <= features.max_groups and len(kernel.buffers) <= features.max_buffers
        module = device.create_shader_module(code=print_wgsl(kernel, features))
        types = {"read": "read-only-storage", "read_write": "storage"}
        layout = device.create_bind_group_layout(
            entries=[
                {"binding": i, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": types[m.access]}}
                for i, m in enumerate(kernel.buffers)
            ]
        )
        pipeline = device.create_compute_pipeline(
            layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
            compute={"module": module, "entry_point": kernel.name},
        )
        bound = [launch.operands[m.name] for m in kernel.buffers]
        buffers = [roots[o.root] if isinstance(o, View) else upload(o) for o in bound]
        group = device.create_bind_group(
            layout=layout, entries=[{"binding": i, "resource": {"buffer": b}} for i, b in enumerate(buffers)]
        )
        steps.append((pipeline, group, kernel.dispatch))

    def run() -> None:
        encoder = device.create_command_encoder()
        compute = encoder.begin_compute_pass()
        for pipeline, group, dispatch in steps:
            compute.set_pipeline(pipeline)
            compute.set_bind_group(0, group)
            compute.dispatch_workgroups(*dispatch)
        compute.end()
        device.queue.submit([encoder.finish()])

    run()
    for r, buffer in roots.items():
        found = np.frombuffer(device.queue.read_buffer(buffer), memory[r].dtype)
        memory[r][...] = found[: memory[r].size]
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        run()
        device.queue.read_buffer(next(iter(roots.values())), 0, 16)
        times.append(time.perf_counter() - start)
    return min(times, default=0.0)


def interpret_launches(launches: list[Launch], memory: dict[int, np.ndarray]) -> None:
    """Run the kernels on `memory` (by root, changed in place) in NumPy."""
    for launch in launches:
        arrays = {}
        kernel = launch.kernel
        assert isinstance(kernel, Kernel), "of the language"
        for m in kernel.buffers:
            bound = launch.operands[m.name]
            array = memory[bound.root] if isinstance(bound, View) else np.array(bound).reshape(-1)
            if array.itemsize == 1 and m.storage.kind == "u32":  # bytes that are read as words
                array = np.pad(array, (0, -array.size % 4)).view(np.uint32)
            arrays[m.name] = array[: m.size * m.storage.lanes]
        interpreter.run(kernel, arrays)


def assert_close(result: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Equal for whole numbers and bools; floats within `tolerance` (relative L2) with specials in the same places."""
    assert result.shape == expected.shape
    if expected.dtype.kind != "f":
        np.testing.assert_array_equal(result, expected)
        return
    a, b = result.astype(np.float64), expected.astype(np.float64)
    special = ~np.isfinite(b)
    np.testing.assert_array_equal(a[special], b[special])
    assert np.isfinite(a[~special]).all()
    scale = float(np.linalg.norm(b[~special])) or 1.0
    assert float(np.linalg.norm(a[~special] - b[~special])) <= tolerance * scale


def _as_stored(array: np.ndarray, view: View) -> np.ndarray:
    """`array` rounded as the memory will hold it, in the type that the graph computes with."""
    kept = np.bool_ if view.dtype is DType.BOOL else np.int32 if view.dtype is DType.INT32 else np.float32
    return np.asarray(array).astype(STORED[view.dtype]).astype(kept).reshape(view.shape)


def _window(memory: np.ndarray, view: View, channels: int | None = None) -> np.ndarray:
    b, y, x, c = view.shape
    strides = [s * memory.itemsize for s in view.strides]
    return np.lib.stride_tricks.as_strided(memory[view.offset :], (b, y, x, channels or c), strides)


@functools.cache
def _device(half: bool) -> Any:
    wgpu = pytest.importorskip("wgpu")
    adapters = wgpu.gpu.enumerate_adapters_sync()
    if not adapters:
        pytest.skip("no WebGPU device")
    adapter = adapters[0]
    wanted = ["shader-f16"] if half else []
    if not set(wanted) <= set(adapter.features):
        pytest.skip("the device has no float16")
    return adapter.request_device_sync(required_features=wanted)
