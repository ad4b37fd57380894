"""The reference backend: what the CPU computes, mistakes of kernels by name, on any machine."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import FLOAT16, FLOAT32, assert_agrees, official, on_gpu, run
from op_cases import CASES, OpCase
from quantized_cases import ALL, compare, quantized_case

import litegpu
from litegpu import GpuDelegate
from litegpu.device_choice import is_device
from litegpu.errors import DeviceError, InvokeError, OptionError
from litegpu.gpu.backends import registry
from litegpu.gpu.backends.reference import effort
from litegpu.gpu.backends.reference.device import ReferenceDevice
from litegpu.gpu.backends.reference.session import ReferenceSession
from litegpu.gpu.backends.reference.text import print_tree, read_tree
from litegpu.gpu.graph import DType
from litegpu.gpu.lang import Kernel, KernelError, f32, interpret, trace, u32
from litegpu.gpu.program import Binding, Dispatch, KernelCode, MemoryReport, Port, Program
from litegpu.model.builder import ModelBuilder

COUNT = 64
Body = Callable[[Kernel], None]


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("op", CASES)
def test_ops(op: str, half: bool) -> None:
    for seed in range(2):
        case = CASES[op](random.Random(f"{op} {seed}"))
        _check(case, half)


@pytest.mark.parametrize(("kind", "op"), ALL)
def test_quantized_ops(kind: str, op: str) -> None:
    case = quantized_case(op, kind, 0)
    if case is not None:
        with on_gpu(case.content, backend="reference") as found:
            assert found.delegation_report().fully_delegated
            compare(kind, op, case, run(found, case.inputs), 0)


def _check(case: OpCase, half: bool) -> None:
    with on_gpu(case.content, backend="reference", precision_loss_allowed=half, max_delegated_partitions=0) as found:
        assert found.delegation_report().fully_delegated, f"{case.name}: {found.delegation_report().summary()}"
        wanted = run(official(case.content), case.inputs)
        for got, want in zip(run(found, case.inputs), wanted, strict=True):
            assert_agrees(got, want, FLOAT16 if half else FLOAT32, case.name)


@pytest.mark.parametrize("name", ["pretrainedResnet", "kws_ref_model", "vww_96_float", "vww_96_int8"])
def test_small_models(name: str, models_dir: Path) -> None:
    path = models_dir / f"{name}.tflite"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    with litegpu.load(path, device="reference") as model, litegpu.load(path, device="cpu") as cpu:
        assert model.report.fully_delegated
        rng = np.random.default_rng(0)
        (detail,) = model.inputs.values()
        x = rng.integers(-100, 100, detail["shape"]).astype(detail["dtype"])
        if x.dtype.kind == "f":
            x /= 100
        got, want = model(x), cpu(x)
        if want.dtype.kind == "f":
            assert_agrees(got, want, FLOAT32)
        else:
            np.testing.assert_array_equal(got, want)


# ----------------------------------------------------------------------------------- where it is found


def negation(elements: int = 3, twice: bool = False) -> bytes:
    b = ModelBuilder()
    x = b.input("x", (1, elements))
    for op in ("NEG", "EXP") if twice else ("NEG",):
        x = b.op(op, [x], (1, elements))
    b.output(x)
    return b.build()


X = np.array([[1, -2, 3]], np.float32)


def test_it_is_a_device_by_name_and_never_chosen_otherwise() -> None:
    assert is_device("reference") and not is_device("reference:0") and "reference" in registry.words()
    assert not registry.ENTRIES["reference"].automatic
    with litegpu.load(negation(), device="reference") as model:
        assert model.device == "reference"
        np.testing.assert_array_equal(model(X), -X)
    with pytest.raises(DeviceError, match="none named 'other'"):
        GpuDelegate(backend="reference", device="other").open_device()
    assert GpuDelegate(backend="reference", device="num").open_device() is registry.open_device("reference")


@pytest.mark.parametrize("wait", ["PASSIVE", "ACTIVE", "DO_NOT_WAIT", "AGGRESSIVE"])
def test_waits(wait: str) -> None:
    with on_gpu(negation(), backend="reference", wait_type=wait) as found:
        for scale in (1, 2):
            (got,) = run(found, [X * scale])
            np.testing.assert_array_equal(got, -X * scale)


def test_streams_batches_and_threads() -> None:
    with litegpu.load(negation(), device="reference") as model:
        found = list(model.stream(X * i for i in range(6)))
        np.testing.assert_array_equal(found, [-X * i for i in range(6)])
        np.testing.assert_array_equal(model(np.repeat(X, 4, axis=0)), np.repeat(-X, 4, axis=0))
        results: dict[int, Any] = {}
        threads = [threading.Thread(target=lambda i=i: results.update({i: model(X * i)})) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all((results[i] == -X * i).all() for i in range(4))


def test_programs_are_kept_in_the_cache(tmp_path: Path) -> None:
    for _ in range(2):
        with on_gpu(negation(), backend="reference", serialization_dir=tmp_path / "cache") as found:
            np.testing.assert_array_equal(run(found, [X])[0], -X)
    assert any((tmp_path / "cache").iterdir())


# ----------------------------------------------------------------------------------- mistakes of kernels


def program(body: Body, variables: bool = False) -> Program:
    """One kernel of two workgroups on buffers x (input) and y (output)."""
    kernel = trace(body, "checked", (COUNT // 2, 1, 1), (2, 1, 1))
    nbytes, room = 4 * COUNT, 4 * COUNT
    ports = [Port(name, i, (1, 1, 1, COUNT), DType.FLOAT32, room * i, nbytes) for i, name in enumerate("xyv")]
    return Program(
        kernels=(KernelCode("checked", print_tree(kernel), kernel.workgroup, ("read_write",) * len(kernel.buffers)),),
        dispatches=(
            Dispatch(
                0,
                kernel.dispatch,
                tuple(Binding("arena", room * i, nbytes) for i in range(len(kernel.buffers))),
                "custom [7]",
                (7,),
            ),
        ),
        constants=np.zeros(0, np.uint8),
        arena_size=3 * room,
        inputs=(ports[0],),
        outputs=(ports[1],),
        memory=MemoryReport(3 * room, 3 * room, 3 * room),
        variables=(ports[2],) if variables else (),
    )


def doubled(k: Kernel) -> None:
    x, y = k.buffer("x", f32, COUNT), k.buffer("y", f32, COUNT)
    i = k.group_id() * (COUNT // 2) + k.local_id()
    y[i] = x[i] * 2


def outside(k: Kernel) -> None:
    x, y = k.buffer("x", f32, COUNT), k.buffer("y", f32, COUNT)
    i = k.group_id() * (COUNT // 2) + k.local_id()
    y[i] = x[i + 1]


def racing(k: Kernel) -> None:
    k.buffer("x", f32, COUNT)
    k.buffer("y", f32, COUNT)[0] = f32(k.local_id())


@pytest.mark.parametrize("body, what", [(outside, r"x\[64\] is outside its 64"), (racing, "race")])
def test_mistakes_of_kernels_name_them(body: Body, what: str) -> None:
    session = ReferenceDevice().session(program(body))
    for _ in range(2):
        with pytest.raises(
            DeviceError, match=rf"kernel 'checked' \(custom \[7\]\) failed.*test_reference.py.*{what}"
        ) as raised:
            session.run()
        assert raised.value.__dict__["nodes"] == (7,)
    with pytest.raises(DeviceError, match="before the first run"):
        session.read(0, np.empty(COUNT, np.float32))
    session.close()


def test_mistakes_in_a_model_s_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_gpu(negation(), backend="reference") as found:
        monkeypatch.setattr(
            "litegpu.gpu.backends.reference.session.interpret.run",
            lambda kernel, *_: (_ for _ in ()).throw(KernelError(f"kernel {kernel.name}: f.py:1: race: at once")),
        )
        with pytest.raises((DeviceError, InvokeError), match=r"kernel '\w+' \(.*\) failed on NumPy.*f.py:1: race"):
            run(found, [X])
        monkeypatch.undo()
        np.testing.assert_array_equal(run(found, [X])[0], -X)


def test_programs_that_do_not_fit() -> None:
    right, device = program(doubled), ReferenceDevice()
    (dispatch,) = right.dispatches
    small = tuple(dataclasses.replace(b, size=16) for b in dispatch.bindings)
    for changed, message in (
        (dataclasses.replace(dispatch, bindings=small), "has 256 bytes, and 16 are bound"),
        (dataclasses.replace(dispatch, groups=(3, 1, 1)), "workgroups, not"),
        (dataclasses.replace(dispatch, bindings=dispatch.bindings[:1]), "bindings for 2 buffers"),
    ):
        with pytest.raises(DeviceError, match=rf"kernel 'checked' \(custom \[7\]\) does not fit NumPy.*{message}"):
            device.session(dataclasses.replace(right, dispatches=(changed,)))
    with pytest.raises(OptionError, match="unknown wait 'sometimes'"):
        device.session(right, "sometimes")


def test_text_of_a_kernel() -> None:
    def everything(k: Kernel) -> None:
        y, shared, local = k.buffer("y", f32, COUNT), k.shared(u32, 32), k.local_id()
        shared[local] = local
        k.barrier()
        total, pair = k.var(k.const(0, u32)), k.array(2, k.const(-0.0, f32))
        with k.loop(shared[31 - local]) as i:
            total.set(total.value + i)
        with k.While(lambda: total.value > 100):
            total.set(total.value - 7)
        with k.If(total.value > 50):
            pair[1] = k.inf()
        with k.Else():
            pair[0] = f32(total.value)
        y[k.group_id() * 32 + local] = k.vec(pair[0], pair[1])[0] + k.subgroup_max(pair[0])

    kernel = trace(everything, "everything", (32, 1, 1), (2, 1, 1))
    again = read_tree(print_tree(kernel))
    assert print_tree(again) == print_tree(kernel) and again.verified
    from litegpu.gpu.lang.interpret import run as interpret

    first, second = np.zeros(COUNT, np.float32), np.zeros(COUNT, np.float32)
    interpret(kernel, {"y": first})
    interpret(again, {"y": second})
    np.testing.assert_array_equal(first, second)
    assert first.any()


def test_damaged_text_is_refused() -> None:
    text = print_tree(trace(doubled, "checked", (32, 1, 1), (2, 1, 1)))
    content = json.loads(text)
    for damaged in (
        "",
        "[]",
        "{}",
        text[:-5],
        json.dumps({**content, "body": content["body"][::-1]}),
        json.dumps({**content, "buffers": []}),
        json.dumps({**content, "body": [["Jump", "here"]]}),
        text.replace('"mul"', '"launch"'),
    ):
        with pytest.raises(KernelError):
            read_tree(damaged)
        code = KernelCode("checked", damaged, (32, 1, 1), ("read_write",) * 2)
        with pytest.raises(DeviceError, match="kernel 'checked' did not compile on NumPy"):
            ReferenceDevice().kernels([code])


# ----------------------------------------------------------------------------------- interruptions, slowness


def counting(k: Kernel) -> None:
    """Adds x to the variable v, which is also the result."""
    x, y, v = (k.buffer(name, f32, COUNT) for name in "xyv")
    i = k.group_id() * (COUNT // 2) + k.local_id()
    v[i] = v[i] + x[i]
    y[i] = v[i]


def test_an_interrupted_inference_did_not_happen(monkeypatch: pytest.MonkeyPatch) -> None:

    session = ReferenceDevice().session(program(counting, variables=True))
    one, out = np.ones(COUNT, np.float32), np.empty(COUNT, np.float32)
    session.write(0, one)
    session.run()
    given = interpret.run

    def interrupted(*arguments: Any) -> None:
        given(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(interpret, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.run()
    monkeypatch.undo()
    session.run()
    session.read(0, out)
    assert (out == 2).all()
    session.profile()
    session.read(0, out)
    assert (out == 2).all()
    session.run()
    session.read(0, out)
    assert (out == 3).all()


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise")
def test_ctrl_c() -> None:
    b = ModelBuilder()
    x = b.input("x", (1, 64, 64, 64))
    weights = b.constant(np.ones((64, 3, 3, 64), np.float32))
    for _ in range(8):
        x = b.op("CONV_2D", [x, weights, b.constant(np.zeros(64, np.float32))], (1, 64, 64, 64),
                 {"stride_h": 1, "stride_w": 1})  # fmt: skip
    b.output(x)
    with litegpu.load(b.build(), device="reference") as model:
        main = threading.main_thread().ident
        assert main is not None
        timer = threading.Timer(0.5, signal.pthread_kill, (main, signal.SIGINT))
        timer.start()
        started = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            while True:
                model(np.zeros((1, 64, 64, 64), np.float32))
        assert time.perf_counter() - started < 60
        timer.join()


def test_close_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:

    one = program(doubled)
    session = ReferenceDevice().session(dataclasses.replace(one, dispatches=one.dispatches * 3))
    inside, go, found, launched = threading.Event(), threading.Event(), [], []

    def slow(*_: Any) -> None:
        launched.append(1)
        inside.set()
        go.wait(60)

    def infer() -> None:
        try:
            session.run()
        except DeviceError as error:
            found.append(str(error))

    monkeypatch.setattr(interpret, "run", slow)
    thread = threading.Thread(target=infer)
    thread.start()
    inside.wait(60)
    session.close(wait=False)
    go.set()
    thread.join(60)
    assert found == ["the session was closed: build a new one"] and not session._inputs
    assert len(launched) == 1


def test_slow_models_are_announced_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    with litegpu.load(negation(), device="reference"):
        pass
    assert not caplog.records
    monkeypatch.setattr(effort, "STATEMENTS_PER_SECOND", 0.1)
    with caplog.at_level(logging.WARNING), litegpu.load(negation(), device="reference") as model:
        model(X)
        model(X)
    (record,) = caplog.records
    assert "an inference may take" in record.getMessage()


def test_estimates_follow_loops() -> None:
    def looping(k: Kernel, rounds: int) -> None:
        y = k.buffer("y", f32, COUNT)
        total = k.var(0.0)
        with k.loop(rounds) as i:
            total.set(total.value + f32(i))
        y[k.group_id() * 32 + k.local_id()] = total.value

    short, long = (effort.seconds(trace(looping, "l", (32, 1, 1), (2, 1, 1), rounds=n)) for n in (10, 10_000))
    assert 500 < long / short < 1000


def test_sessions_share_kernels() -> None:
    device = ReferenceDevice()
    one, two = device.session(program(doubled)), device.session(program(doubled))
    assert isinstance(one, ReferenceSession) and one._steps[0].kernel is two._steps[0].kernel


def test_buffers_of_the_user_s_are_refused() -> None:
    delegate = GpuDelegate(backend="reference")
    found = litegpu.Interpreter(model_content=negation(), experimental_delegates=[delegate])
    found.allocate_tensors()
    with pytest.raises(DeviceError, match=r"NumPy \(reference\) takes no buffers"):
        delegate.bind_buffer_to_tensor(X.copy(), found.get_input_details()[0]["index"])
    np.testing.assert_array_equal(run(found, [X])[0], -X)
    found.close()
