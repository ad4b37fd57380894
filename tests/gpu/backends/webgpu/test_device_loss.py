"""Devices that are lost, and buffers that the application takes away: errors, never the end of the process.

In processes of their own, since wgpu-native ends them where litegpu does not look first."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import litegpu

HEAD = """
    import itertools
    import logging
    import threading
    import numpy as np
    import pytest
    import wgpu
    import litegpu
    from litegpu import DeviceError, GpuDelegate, Interpreter, TensorError
    from litegpu.gpu.backends.webgpu.device import open_device
    from test_interrupts import SHAPE, X, content, right

    logging.disable(logging.CRITICAL)  # nothing may depend on wgpu's log

    def model():
        found = litegpu.load(content(), "webgpu")
        assert (found(X) == right(X)).all()
        return found

    def interpreter(**options):
        delegate = GpuDelegate(backend="webgpu", **options)
        one = Interpreter(model_content=content(), experimental_delegates=[delegate], fallback="strict")
        one.allocate_tensors()
        return one, delegate, one.get_input_details()[0]["index"], one.get_output_details()[0]["index"]
"""

CASES = {
    "stream": """
        for destroy in (lambda device: device.destroy(), lambda device: type(device).destroy(device)):
            one = model()
            with pytest.raises(DeviceError, match="load the model again"):
                for i, _ in enumerate(one.stream(itertools.repeat(X))):
                    if i == 5:
                        destroy(open_device().handle)
            with pytest.raises(DeviceError, match="load the model again"):
                one(X)
            one.close()
            model()
    """,
    "idle": """
        one, other = model(), interpreter()[0]
        open_device().handle.destroy()
        fresh = model()
        for call in (lambda: one(X), other.invoke, lambda: next(one.stream([X]))):
            with pytest.raises(DeviceError, match="load the model again"):
                call()
        one.close()
        other.close()
        assert (fresh(X) == right(X)).all()
        assert interpreter()[0].delegation_report().delegated == 2
    """,
    "another thread": """
        for i in range(8):
            one = model()
            threading.Timer(0.004 * (i + 1), open_device().handle.destroy).start()
            with pytest.raises(DeviceError, match="lost"):
                while i % 2:
                    one(X)
                for _ in one.stream(itertools.repeat(X)):
                    pass
        model()
    """,
    "waits": """
        for wait in ("aggressive", "active", "passive", "do_not_wait"):
            one, delegate, x, y = interpreter(wait_type=wait)
            one.invoke()
            one.invoke()
            delegate.wgpu_device.destroy()
            with pytest.raises(DeviceError, match="lost"):
                one.invoke()
                one.get_tensor(y)
            one.close()
        model()
    """,
    "bound": """
        one, delegate, x, y = interpreter()
        device, usage = delegate.wgpu_device, wgpu.BufferUsage
        target = device.create_buffer(size=X.nbytes, usage=usage.COPY_DST | usage.MAP_READ)
        source = device.create_buffer(size=X.nbytes, usage=usage.COPY_SRC | usage.MAP_WRITE)
        one.set_tensor(x, X)
        delegate.bind_buffer_to_tensor(target, y)
        one.invoke()
        target.map_sync(wgpu.MapMode.READ)
        with pytest.raises(TensorError, match="is mapped"):
            one.invoke()
        target.unmap()
        one.invoke()
        promise = target.map_async(wgpu.MapMode.READ)
        with pytest.raises(TensorError, match="is mapped"):
            one.invoke()
        promise.sync_wait()
        assert (np.frombuffer(target.read_mapped(), np.float32).reshape(SHAPE) == right(X)).all()
        target.unmap()
        source.map_sync(wgpu.MapMode.WRITE)
        delegate.bind_buffer_to_tensor(source, x)
        with pytest.raises(TensorError, match="is mapped"):
            one.invoke()
        source.write_mapped(-X)
        source.unmap()
        one.invoke()
        assert (one.get_tensor(y) == right(X)).all()
        gone = device.create_buffer(size=X.nbytes, usage=usage.COPY_SRC)
        picture = device.create_texture(size=(5, 6, 1), format="rgba8unorm", usage=wgpu.TextureUsage.COPY_SRC)
        for resource in (gone, picture):
            resource.destroy()
            with pytest.raises(TensorError, match="destroyed"):
                delegate.bind_buffer_to_tensor(resource, x)
        source.destroy()
        with pytest.raises(TensorError, match="destroyed"):
            one.invoke()
        delegate.bind_buffer_to_tensor(None, x)
        delegate.bind_buffer_to_tensor(None, y)
        one.set_tensor(x, 2 * X)
        one.invoke()
        assert (one.get_tensor(y) == right(2 * X)).all()
        device.destroy()
        for call in (lambda: delegate.bind_buffer_to_tensor(target, y), one.invoke, lambda: one.get_output_buffer(y)):
            with pytest.raises(DeviceError):
                call()
        one.close()
        model()
    """,
}


@pytest.mark.parametrize("case", CASES)
def test_losses_are_errors(case: str) -> None:
    try:
        litegpu.GpuDelegate(backend="webgpu").open_device()
    except litegpu.DeviceError as error:
        pytest.skip(str(error))
    path = os.pathsep.join([str(Path(litegpu.__file__).parents[1]), str(Path(__file__).parents[3])])
    code = textwrap.dedent(HEAD) + textwrap.dedent(CASES[case])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.cuda
def test_a_lost_cuda_device_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from litegpu.gpu.backends.cuda import opening as cuda

    reason = cuda.available()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setattr(cuda.open_device(), "lost", True)
    with pytest.raises(litegpu.DeviceError, match="start the process anew"):
        cuda.open_device()
    with pytest.raises(litegpu.DeviceError, match="start the process anew"):
        litegpu.GpuDelegate(backend="cuda").open_device()
