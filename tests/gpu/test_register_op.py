"""Kernels for a user's own ops: what the guide shows, every form of kernel, CUDA text, fallback, and misuse."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import FLOAT16, FLOAT32, assert_agrees, on_gpu, require_gpu, run

import litegpu
from litegpu.gpu import custom
from litegpu.gpu.build import build_program
from litegpu.gpu.lang import Features, f32x4, i32, i32x4
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder, quantized

F32, I32, BOOL = TensorType.FLOAT32, TensorType.INT32, TensorType.BOOL
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "custom_ops.md"


@pytest.fixture(autouse=True)
def nothing_stays_registered() -> Iterator[None]:
    before = dict(custom.registration._REGISTERED)
    yield
    custom.registration._REGISTERED.clear()
    custom.registration._REGISTERED.update(before)


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def guide() -> dict[str, Any]:
    """The functions that the guide shows beside its example."""
    names: dict[str, Any] = {}
    for block in blocks()[1:]:
        exec(compile(block, "custom_ops.md", "exec"), names)
    return names


def model(
    name: str, shapes: list[Any], outputs: list[Any], options: bytes = b"", version: int = 1, tail: bool = False
) -> bytes:
    """One custom op of float32 tensors unless (shape, type) says otherwise; `tail`: RELU of its first output."""
    b = ModelBuilder()
    inputs = [
        b.constant(s) if isinstance(s, np.ndarray) else b.input(f"x{i}", *(s if isinstance(s[0], tuple) else (s,)))
        for i, s in enumerate(shapes)
    ]
    results = b.custom(
        name, inputs, [o if isinstance(o[0], tuple) else (o, F32) for o in outputs], options, version=version
    )
    b.output(*(results if not tail else [b.op("RELU", [results[0]], outputs[0]), *results[1:]]))
    return b.build()


def reason(content: bytes) -> str | None:
    main = litegpu.read_model(content).main
    return check_operator(main, main.operators[0])


def test_the_example_of_the_guide(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    require_gpu()
    delegate = litegpu.GpuDelegate
    monkeypatch.setattr(litegpu, "GpuDelegate", lambda: delegate(backend="webgpu"), raising=False)
    exec(compile(blocks()[0], "custom_ops.md", "exec"), {"__name__": "guide"})
    assert capsys.readouterr().out == "2/2 ops on GPU in 1 partition\n"


@pytest.mark.parametrize("half", [False, True])
def test_neighbours(half: bool) -> None:
    require_gpu()
    litegpu.register_op("Blur", guide()["box_blur"])
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 5)).astype(np.float32)
    wide = np.pad(x, [(0, 0), (0, 0), (1, 1), (0, 0)])
    wanted = np.maximum((wide[:, :, :-2] + wide[:, :, 1:-1] + wide[:, :, 2:]) / 3, 0)
    gpu = on_gpu(model("Blur", [x.shape], [x.shape], tail=True), precision_loss_allowed=half)
    assert gpu.delegation_report().fully_delegated
    assert_agrees(run(gpu, [x])[0], wanted, FLOAT16 if half else FLOAT32)


@pytest.mark.parametrize("channels", [3, 8, 1030])
def test_workgroups(channels: int) -> None:
    require_gpu()
    names = guide()
    litegpu.register_op("Sum", names["channel_sum"], grid=names["one_group_per_pixel"])
    x = np.random.default_rng(1).standard_normal((2, 3, 2, channels)).astype(np.float32)
    wanted = np.broadcast_to(x.astype(np.float64).sum(3, keepdims=True), x.shape)
    gpu = on_gpu(model("Sum", [x.shape], [x.shape], tail=True))
    assert_agrees(run(gpu, [x])[0], np.maximum(wanted, 0).astype(np.float32), FLOAT32)


def divide(op: custom.Operation, t: custom.Thread) -> Any:
    return t.k.floor(t.here(0) / t.here(1))


def sign(op: custom.Operation, t: custom.Thread) -> Any:
    return i32x4(t.k.sign(t.here(0)))


def large(op: custom.Operation, t: custom.Thread) -> Any:
    return t.here(0) > float(op.inputs[1].data.max())  # type: ignore[union-attr]


def test_several_outputs_types_and_ranks() -> None:
    require_gpu()
    litegpu.register_op("Several", [divide, sign, large])
    x, y = np.random.default_rng(2).standard_normal((7, 5)).astype(np.float32), np.array([1, 2, 3, 4, 0.5], np.float32)
    content = model("Several", [x.shape, y], [((7, 5), F32), ((7, 5), I32), ((7, 5), BOOL)])
    got = run(on_gpu(content), [x])
    for one, want in zip(got, [np.floor(x / y), np.sign(x).astype(np.int32), x > 4], strict=True):
        assert_agrees(one, want, FLOAT32)


def test_integers_and_bools_are_read() -> None:
    require_gpu()

    def pick(op: custom.Operation, t: custom.Thread) -> Any:
        return t.k.select(t.here(1), t.here(0) * 2, i32x4(f32x4(t.here(0)) * -1.0))

    litegpu.register_op("Pick", pick)
    n, c = np.arange(-6, 6, dtype=np.int32).reshape(2, 6), np.arange(12).reshape(2, 6) % 3 == 0
    content = model("Pick", [((2, 6), I32), ((2, 6), BOOL)], [((2, 6), I32)])
    assert_agrees(run(on_gpu(content), [n, c])[0], np.where(c, n * 2, -n).astype(np.int32), 0)


def doubled(op: custom.Operation, t: custom.Thread) -> Any:
    return t.here(0) * 2.0


def test_kernels_compile_for_cuda() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from litegpu.gpu.backends.cuda.compile import compile_kernels

    names = guide()
    litegpu.register_op("Double", doubled)
    litegpu.register_op("Sum", names["channel_sum"], grid=names["one_group_per_pixel"])
    for content in (model("Double", [(2, 3)], [(2, 3)]), model("Sum", [(1, 2, 2, 70)], [(1, 2, 2, 70)])):
        main = litegpu.read_model(content).main
        lowered = lower_partition(main, main.operators, main.inputs, main.outputs)
        program = build_program(lowered.graph, Features(float16=True, max_buffers=32), "cuda")
        assert all(compile_kernels(program.kernels, 80))


def test_the_reference_runs_where_the_gpu_does_not() -> None:
    require_gpu()
    litegpu.register_op(
        "Double", doubled, check=lambda op: None if op.options else "it has no options",
        reference=lambda op, x: x * np.float32(2),
    )  # fmt: skip
    x = np.array([[-1, 2, 3]], np.float32)
    for options in (b"", b"something"):
        content = model("Double", [x.shape], [x.shape], options, tail=True)
        gpu = on_gpu(content, max_delegated_partitions=0)
        assert gpu.delegation_report().fully_delegated == bool(options)
        np.testing.assert_array_equal(run(gpu, [x])[0], [[0, 4, 6]])
    assert reason(model("Double", [x.shape], [x.shape])) == "it has no options"
    whole = litegpu.Interpreter(model_content=content)  # without any delegate
    whole.allocate_tensors()
    np.testing.assert_array_equal(run(whole, [x])[0], [[0, 4, 6]])


def test_quantized_tensors_are_real_numbers_for_a_kernel() -> None:
    require_gpu()
    litegpu.register_op("Double", doubled, reference=lambda op, x: x * np.float32(2))
    b = ModelBuilder()
    x = b.input("x", (1, 5), TensorType.INT8, quantization=quantized(0.5, 3))
    (y,) = b.custom("Double", [b.op("RELU", [x], (1, 5), quantization=quantized(0.5, 3))], [((1, 5), F32)])
    b.output(y)
    data = np.array([[1, 2, 3, 4, 100]], np.int8)
    for interpreter in (on_gpu(b.build()), litegpu.Interpreter(model_content=b.build())):
        interpreter.allocate_tensors()
        np.testing.assert_array_equal(run(interpreter, [data])[0], [[0, 0, 0, 1, 97]])


def test_constants_are_folded_with_the_reference_only() -> None:
    require_gpu()
    x = np.array([[1, 2]], np.float32)
    for reference in (None, lambda op, a: a * 2):
        litegpu.register_op("Double", doubled, reference=reference, replace=True)
        b = ModelBuilder()
        (y,) = b.custom("Double", [b.constant(x)], [((1, 2), F32)])
        b.output(b.op("ADD", [b.input("x", (1, 2)), y], (1, 2)))
        np.testing.assert_array_equal(run(on_gpu(b.build()), [x])[0], [[3, 6]])


def test_without_kernel_or_reference_the_op_is_named() -> None:
    with pytest.raises(litegpu.InvokeError, match=r"Double \(op number 0\)"):
        litegpu.Interpreter(model_content=model("Double", [(2,)], [(2,)])).allocate_tensors()


def test_misuse_when_registering() -> None:
    def refused(text: str, *arguments: Any, **options: Any) -> None:
        with pytest.raises(litegpu.OptionError, match=text):
            litegpu.register_op(*arguments, **options)

    refused("builtin operator", "CONV_2D", doubled)
    refused("cannot be the custom code", "", doubled)
    refused("must be a function, or one for each output", "Double", "kernel")
    refused("must be a function, or one for each output", "Double", [])
    refused("check of Double must be a function", "Double", doubled, check=True)
    refused("max_version of Double is 0", "Double", doubled, max_version=0)
    litegpu.register_op("Double", doubled)
    refused("registered already", "Double", doubled)
    litegpu.unregister_op("Double")
    with pytest.raises(litegpu.OptionError, match="'Double' is not registered"):
        litegpu.unregister_op("Double")


def test_refusals() -> None:
    litegpu.register_op("Double", doubled)
    assert reason(model("Double", [(2,)], [(2,)])) is None
    assert "version 2" in reason(model("Double", [(2,)], [(2,)], version=2))  # type: ignore[operator]
    assert "2 outputs, and 1 kernels" in reason(model("Double", [(2,)], [(2,), (2,)]))  # type: ignore[operator]
    assert "STRING" in reason(model("Double", [((2,), TensorType.STRING)], [(2,)]))  # type: ignore[operator]
    litegpu.register_op("Double", doubled, check=lambda op: False, replace=True)  # type: ignore[arg-type,return-value]
    interpreter = litegpu.Interpreter(
        model_content=model("Double", [(2,)], [(2,)]), experimental_delegates=[litegpu.GpuDelegate()], fallback="silent"
    )
    (node,) = interpreter.delegation_report().nodes
    assert "must give None, or the reason" in str(node.reason)


@pytest.mark.parametrize(("kernel", "text"), [
    (lambda op, t: t.here(0)[0], "gave f32: the output needs f32x4"),
    (lambda op, t: 1.0, "gave 1.0: it must return a value of type f32x4"),
    (lambda op, t: t.here(0) + t.k.const(1, i32), "test_register_op.py"),
])  # fmt: skip
def test_mistakes_in_kernels(kernel: Any, text: str) -> None:
    require_gpu()
    litegpu.register_op("Wrong", kernel)
    interpreter = litegpu.Interpreter(
        model_content=model("Wrong", [(2, 3)], [(2, 3)]), fallback="strict",
        experimental_delegates=[litegpu.GpuDelegate(backend="webgpu")],
    )  # fmt: skip
    with pytest.raises(litegpu.DelegateError, match="kernel custom_wrong") as error:
        interpreter.allocate_tensors()
    assert text in str(error.value)


@pytest.mark.parametrize(("result", "text"), [
    (np.zeros(3, np.float32), r"gave float32 \[3\] for output 0"),
    ((np.zeros((1, 2)), np.zeros((1, 2))), "gave 2 arrays"),
    (np.zeros((1, 2), np.int32), "gave int32"),
])  # fmt: skip
def test_mistakes_in_references(result: Any, text: str) -> None:
    litegpu.register_op("Wrong", doubled, reference=lambda op, x: result)
    interpreter = litegpu.Interpreter(model_content=model("Wrong", [(1, 2)], [(1, 2)]))
    interpreter.allocate_tensors()
    with pytest.raises(litegpu.OptionError, match=text):
        run(interpreter, [np.zeros((1, 2), np.float32)])


def test_bad_options_are_a_model_error() -> None:
    op = custom.Operation("Any", 1, b"\xff\xff\xff\x07", (), ())
    with pytest.raises(litegpu.ModelError, match="options of operator Any are not FlexBuffers"):
        op.flexbuffer()
