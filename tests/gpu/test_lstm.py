"""Recurrent ops against the official CPU runtime: every option, both majors, batches, and what is kept between runs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from agreement import FLOAT16, FLOAT32, assert_agrees, assert_keeps_alike, official, on_gpu, require_gpu, run

import litegpu
from litegpu.gpu.evaluate import evaluate_graph
from litegpu.gpu.lower import check_operator, lower_partition
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder, quantized

F32 = TensorType.FLOAT32


@dataclass(frozen=True)
class Layer:
    """An LSTM layer with all its options."""

    steps: int = 5
    batch: int = 2
    depth: int = 6
    units: int = 8
    outputs: int = 0  # 0: the units, without a projection
    time_major: bool = True
    activation: str = "TANH"
    coupled: bool = False
    peephole: bool = False
    normalized: bool = False
    projection_bias: bool = True
    cell_clip: float = 0.0
    proj_clip: float = 0.0
    op: str = "UNIDIRECTIONAL_SEQUENCE_LSTM"
    hybrid: bool = False  # 8-bit weights

    @property
    def shape(self) -> tuple[int, ...]:
        if self.op == "LSTM":
            return self.batch, self.depth
        return (self.steps, self.batch, self.depth) if self.time_major else (self.batch, self.steps, self.depth)

    def add(self, b: ModelBuilder, x: int, seed: int = 0) -> int:
        rng = np.random.default_rng(seed)
        n, m = self.units, self.outputs or self.units

        def constant(*shape: int, wanted: bool = True, around: float = 0.0) -> int | None:
            values = (rng.standard_normal(shape) * 0.5 + around).astype(np.float32)
            if self.hybrid and len(shape) == 2 and wanted:
                scale = np.abs(values).max() / 127
                return b.constant(np.round(values / scale).astype(np.int8), quantization=quantized(scale))
            return b.constant(values) if wanted else None

        own = not self.coupled
        inputs: list[Any] = [x]
        inputs += [constant(n, self.depth, wanted=own), *(constant(n, self.depth) for _ in range(3))]
        inputs += [constant(n, m, wanted=own), *(constant(n, m) for _ in range(3))]
        inputs += [constant(n, wanted=self.peephole and own), *(constant(n, wanted=self.peephole) for _ in range(2))]
        inputs += [constant(n, wanted=own), *(constant(n) for _ in range(3))]
        projected = self.outputs > 0
        inputs += [constant(m, n, wanted=projected), constant(m, wanted=projected and self.projection_bias)]
        inputs += [b.variable(f"output{seed}", (self.batch, m)), b.variable(f"cell{seed}", (self.batch, n))]
        if self.normalized:
            inputs += [constant(n, wanted=own, around=1), *(constant(n, around=1) for _ in range(3))]
        options: dict[str, Any] = dict(
            fused_activation_function=self.activation, cell_clip=self.cell_clip, proj_clip=self.proj_clip
        )
        if self.op != "LSTM":
            options["time_major"] = self.time_major
        return b.op(self.op, inputs, (*self.shape[:-1], m), options)

    def model(self) -> bytes:
        b = ModelBuilder()
        x = b.input("x", self.shape)
        b.output(b.op("NEG", [self.add(b, x)], (*self.shape[:-1], self.outputs or self.units)))
        return b.build()

    def data(self, seed: int) -> np.ndarray:
        return np.random.default_rng(seed).standard_normal(self.shape).astype(np.float32)


LAYERS = {
    "plain": Layer(),
    "batch major": Layer(time_major=False),
    "one sequence": Layer(batch=1, units=5, depth=3),
    "odd sizes": Layer(batch=3, units=7, depth=5, steps=4, time_major=False),
    "many units": Layer(units=300, depth=20, batch=1, steps=3),
    "relu": Layer(activation="RELU", cell_clip=2.0),
    "relu6": Layer(activation="RELU6"),
    "relu from -1 to 1": Layer(activation="RELU_N1_TO_1"),
    "coupled": Layer(coupled=True),
    "peephole": Layer(peephole=True),
    "coupled peephole": Layer(coupled=True, peephole=True, units=9),
    "cell clip": Layer(cell_clip=0.3),
    "projection": Layer(outputs=3),
    "wide projection": Layer(outputs=20, time_major=False, projection_bias=False),
    "projection clip": Layer(outputs=6, proj_clip=0.2, cell_clip=0.5),
    "normalized": Layer(normalized=True),
    "everything": Layer(normalized=True, peephole=True, outputs=5, cell_clip=0.8, proj_clip=0.7, time_major=False),
    "coupled and normalized": Layer(normalized=True, coupled=True, peephole=True, units=33, batch=1),
    "one step": Layer(op="LSTM"),
    "one step of everything": Layer(op="LSTM", peephole=True, normalized=True, outputs=3, coupled=True),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    require_gpu()
    layer = LAYERS[name]
    assert_keeps_alike(layer.model(), [[layer.data(seed)] for seed in range(3)])


@pytest.mark.parametrize("name", ["plain", "odd sizes", "everything", "one step"])
def test_float16(name: str) -> None:
    require_gpu()
    layer = LAYERS[name]
    assert_keeps_alike(layer.model(), [[layer.data(seed)] for seed in range(2)], FLOAT16, precision_loss_allowed=True)


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["plain", "batch major", "odd sizes", "cell clip", "coupled peephole", "projection"])
def test_on_cuda(name: str) -> None:
    """Some by the native kernel, some by that of the language; what is kept stays on the device as well."""
    from litegpu.gpu.backends.cuda.opening import available

    if (why := available()) is not None:
        pytest.skip(f"no CUDA device: {why}")
    layer = LAYERS[name]
    assert_keeps_alike(layer.model(), [[layer.data(seed)] for seed in range(3)], backend="cuda")


@pytest.mark.parametrize("outputs", [0, 5])
def test_hybrid_layers(outputs: int) -> None:
    """8-bit weights and float activations: the CPU quantizes what it multiplies with them, the GPU does not."""
    require_gpu()
    layer = Layer(hybrid=True, units=16, outputs=outputs)
    assert_keeps_alike(layer.model(), [[layer.data(seed)] for seed in range(2)], 3e-2)


def test_two_layers_and_what_is_around_them() -> None:
    require_gpu()
    b = ModelBuilder()
    first, second = Layer(depth=4, units=8, time_major=False), Layer(depth=8, units=6, time_major=False)
    x = b.input("x", first.shape)
    hidden = first.add(b, b.op("TANH", [x], first.shape))
    b.output(b.op("ABS", [second.add(b, hidden, seed=7)], (2, 5, 6)), hidden)
    assert_keeps_alike(b.build(), [[first.data(seed)] for seed in range(2)])


def basic(batch: int, depth: int, units: int, variables: bool, used: bool = True) -> bytes:
    """The basic kernel; its scratch outputs are outputs of the graph if `used`."""
    rng = np.random.default_rng(1)
    b = ModelBuilder()
    x = b.input("x", (batch, depth))
    states = [
        b.variable(name, (batch, units)) if variables else b.input(name, (batch, units)) for name in ("output", "state")
    ]
    weights = b.constant(rng.standard_normal((4 * units, depth + units)).astype(np.float32) * 0.4)
    bias = b.constant(rng.standard_normal(4 * units).astype(np.float32))
    shapes = [(batch, units), (batch, units), (batch, depth + units), (batch, 4 * units)]
    results = b.op_multi(
        "LSTM", [x, states[0], weights, bias, states[1]], [(s, F32) for s in shapes],
        dict(kernel_type="BASIC", fused_activation_function="TANH"), version=2,
    )  # fmt: skip
    b.output(*(results if used else results[:1]))
    return b.build()


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("variables", [False, True])
@pytest.mark.parametrize(("batch", "depth", "units"), [(1, 4, 8), (3, 5, 7)])
def test_the_basic_kernel(batch: int, depth: int, units: int, variables: bool, used: bool) -> None:
    require_gpu()
    rng = np.random.default_rng(2)
    shapes = [(batch, depth)] if variables else [(batch, depth), (batch, units), (batch, units)]
    inputs = [[rng.standard_normal(s).astype(np.float32) for s in shapes] for _ in range(3)]
    assert_keeps_alike(basic(batch, depth, units, variables, used), inputs)


@pytest.mark.parametrize("name", LAYERS)
def test_the_definition_in_numpy(name: str) -> None:
    layer = LAYERS[name]
    content = layer.model()
    main = litegpu.read_model(content).main
    lowered = lower_partition(main, main.operators, main.inputs, main.outputs)
    states = [np.zeros(main.tensors[t].shape, np.float32) for t in lowered.variables]
    cpu = official(content)
    for seed in range(2):
        result, *states = evaluate_graph(lowered.graph, [layer.data(seed), *states])
        want = run(cpu, [layer.data(seed)])[0]
        assert_agrees(result.reshape(want.shape), want, FLOAT32, name)


def test_few_launches() -> None:
    """The input of all steps is multiplied at once, and one launch does the steps."""
    from litegpu.gpu.build import build_program
    from litegpu.gpu.lang.features import Features

    main = litegpu.read_model(Layer(steps=50, units=16).model()).main
    lowered = lower_partition(main, main.operators, main.inputs, main.outputs)
    program = build_program(lowered.graph, Features(), variables=2)
    assert [d.label for d in program.dispatches].count("lstm") == 1 and len(program.dispatches) <= 7


def test_state_belongs_to_the_interpreter() -> None:
    require_gpu()
    layer = LAYERS["plain"]
    one, other = on_gpu(layer.model()), on_gpu(layer.model())
    first = run(one, [layer.data(0)])[0]
    run(one, [layer.data(0)])
    np.testing.assert_array_equal(run(other, [layer.data(0)])[0], first)


def test_profiling_keeps_the_state() -> None:
    require_gpu()
    layer = LAYERS["plain"]
    gpu, cpu = on_gpu(layer.model()), official(layer.model())
    assert gpu.plan is not None
    kernel = gpu.plan.kernels[0]
    for i in range(3):
        assert_agrees(run(gpu, [layer.data(i)])[0], run(cpu, [layer.data(i)])[0], FLOAT32)
        if kernel.device.features.timestamps:
            kernel.profile()


def test_refused() -> None:
    def reason(layer: Layer, change: Any = None) -> str:
        main = litegpu.read_model(layer.model()).main
        operator = main.operators[0]
        return check_operator(main, change(operator) if change else operator) or ""

    def without(index: int) -> Any:
        return lambda o: replace(o, inputs=tuple(-1 if i == index else t for i, t in enumerate(o.inputs)))

    assert "do not fit in the shared memory" in reason(Layer(units=2000, depth=1))
    assert "need a projection" in reason(Layer(outputs=3), without(16))
    assert "weights of the forget gate are missing" in reason(Layer(), without(2))
    assert "activation NONE is not taken" in reason(Layer(activation="NONE"))
    main = litegpu.read_model(LAYERS["plain"].model()).main
    swapped = replace(main.operators[0], inputs=(*main.operators[0].inputs[:3], 0, *main.operators[0].inputs[4:]))
    assert "is computed by the model" in (check_operator(main, swapped) or "")


def test_on_the_cpu_beside_a_delegate(numpy_delegate: Any) -> None:
    """A partition on the CPU keeps its variables too."""
    layer = LAYERS["plain"]
    ours = litegpu.Interpreter(
        model_content=layer.model(), experimental_delegates=[litegpu.GpuDelegate(first_delegate_node_index=1)],
        fallback="silent",
    )  # fmt: skip
    require_gpu()
    ours.allocate_tensors()
    assert ours.delegation_report().delegated == 1
    cpu = official(layer.model())
    for i in range(3):
        np.testing.assert_allclose(run(ours, [layer.data(i)])[0], run(cpu, [layer.data(i)])[0], rtol=1e-5, atol=1e-6)
    ours.reset_all_variables()
    cpu.reset_all_variables()
    np.testing.assert_allclose(run(ours, [layer.data(0)])[0], run(cpu, [layer.data(0)])[0], rtol=1e-5, atol=1e-6)


def integer(
    layer: Layer, quantum: float = 1 / 100, seed: int = 0, hidden: tuple[float, int] = (1 / 120, 2), cell: int = -11
) -> bytes:
    """An 8-bit layer with 16 bits for the state, as the official converter makes it. `hidden`: scale and zero point of
    what is projected; the state has a quantum of 2**cell."""
    rng = np.random.default_rng(seed)
    b = ModelBuilder()
    n, m = layer.units, layer.outputs or layer.units
    i8, i16 = TensorType.INT8, TensorType.INT16
    x_scale, hidden_scale, weight_scale = 0.03, hidden[0], 0.5 / 127

    def weights(*shape: int, wanted: bool = True) -> int | None:
        values = rng.integers(-127, 128, shape).astype(np.int8)
        return b.constant(values, quantization=quantized(weight_scale)) if wanted else None

    def bias(size: int, scale: float, wanted: bool = True) -> int | None:
        values = np.round(rng.standard_normal(size) * 0.3 / scale).astype(np.int32)
        return b.constant(values, quantization=quantized(scale)) if wanted else None

    def peephole(wanted: bool) -> int | None:
        values = rng.integers(-9000, 9000, n).astype(np.int16)
        return b.constant(values, quantization=quantized(1 / 32768)) if wanted else None

    def coefficients(wanted: bool = True) -> int | None:
        values = rng.integers(-9000, 32768, n).astype(np.int16)
        return b.constant(values, quantization=quantized(norm_scale)) if wanted else None

    own, projected = not layer.coupled, layer.outputs > 0
    inputs: list[Any] = [b.input("x", layer.shape, i8, quantization=quantized(x_scale, 4))]
    inputs += [weights(n, layer.depth, wanted=own), *(weights(n, layer.depth) for _ in range(3))]
    inputs += [weights(n, m, wanted=own), *(weights(n, m) for _ in range(3))]
    inputs += [peephole(layer.peephole and own), peephole(layer.peephole), peephole(layer.peephole)]
    norm_scale = 1.5 / 32767
    bias_scale = norm_scale * 2.0**-10 if layer.normalized else x_scale * weight_scale
    inputs += [bias(n, bias_scale, own), *(bias(n, bias_scale) for _ in range(3))]
    inputs += [weights(m, n, wanted=projected), bias(m, hidden_scale * weight_scale, projected)]
    kept = quantized(quantum, -6)
    inputs.append(b.variable("output", (layer.batch, m), i8, quantization=kept))
    inputs.append(b.variable("cell", (layer.batch, n), i16, quantization=quantized(2.0**cell)))
    if layer.normalized:
        inputs += [coefficients(own), *(coefficients() for _ in range(3))]
    inner = [b.tensor((1,), i8, f"intermediate{i}", quantization=quantized((3 + i) * 2.0**-14)) for i in range(4)]
    inner.append(b.tensor((1,), i8, "hidden", quantization=quantized(*hidden) if projected else kept))
    options = dict(
        fused_activation_function="TANH", time_major=layer.time_major, cell_clip=layer.cell_clip,
        proj_clip=layer.proj_clip,
    )  # fmt: skip
    b.output(b.op(layer.op, inputs, (*layer.shape[:-1], m), options, type=i8, quantization=kept, intermediates=inner))
    return b.build()


INTEGERS = {
    "plain": Layer(steps=12),
    "batch major": Layer(time_major=False, units=7, depth=9, batch=3),
    "coupled peephole": Layer(coupled=True, peephole=True),
    "peephole of few outputs": Layer(peephole=True, outputs=5, batch=3),
    "peephole of few outputs, batch major": Layer(peephole=True, outputs=5, batch=3, time_major=False),
    "cell clip": Layer(cell_clip=0.4),
    "projection": Layer(outputs=5, time_major=False),
    "wide projection": Layer(outputs=12, proj_clip=0.5, projection_bias=False),
    "normalized": Layer(normalized=True, steps=9),
    "normalized, many units": Layer(normalized=True, units=300, depth=520, batch=1, steps=3),
    "normalized, of one unit": Layer(normalized=True, units=1, depth=1),
    "everything": Layer(normalized=True, peephole=True, outputs=6, units=33, cell_clip=0.8, proj_clip=0.7),
    "coupled and normalized": Layer(normalized=True, coupled=True, outputs=3, time_major=False),
}
#: Scale and zero point of what is projected, where much of it is cut off; the exponent of the state.
SCALES: dict[str, dict[str, Any]] = {
    "as converted": {}, "cut off": dict(hidden=(1 / 300, -60), cell=-12, quantum=1 / 60), "wide": dict(cell=-9),
    "narrow": dict(cell=-15),
}  # fmt: skip


def compare_integers(layer: Layer, scales: str, runs: int = 3, most: int = 0, **options: Any) -> None:
    content = integer(layer, **SCALES[scales])
    gpu, cpu = on_gpu(content, max_delegated_partitions=0, **options), official(content)
    assert gpu.delegation_report().fully_delegated, gpu.delegation_report().summary()
    rng = np.random.default_rng(3)
    x = [rng.integers(-128, 128, layer.shape).astype(np.int8) for _ in range(runs)]
    for i, data in enumerate((*x, x[0])):
        if i == runs:
            gpu.reset_all_variables()
            cpu.reset_all_variables()
        got, want = run(gpu, [data])[0], run(cpu, [data])[0]
        assert got.dtype == np.int8 and (want.std() > 2 or layer.units == 1)
        assert np.abs(got.astype(int) - want).max() <= most


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("name", INTEGERS)
def test_integer_layers(name: str, scales: str) -> None:
    """Equal in every element, although what differs would be fed back."""
    require_gpu()
    compare_integers(INTEGERS[name], scales)


@pytest.mark.parametrize("name", ["plain", "everything"])
def test_integer_layers_of_bytes(name: str) -> None:
    require_gpu()
    compare_integers(INTEGERS[name], "as converted", arithmetic="integer")


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["plain", "peephole of few outputs", "everything", "normalized, of one unit"])
def test_integer_layers_on_cuda(name: str) -> None:
    from litegpu.gpu.backends.cuda.opening import available

    if (why := available()) is not None:
        pytest.skip(f"no CUDA device: {why}")
    compare_integers(INTEGERS[name], "as converted", backend="cuda")


@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("name", INTEGERS)
def test_integer_layers_in_numpy(name: str, scales: str) -> None:
    content, layer = integer(INTEGERS[name], **SCALES[scales]), INTEGERS[name]
    main = litegpu.read_model(content).main
    lowered = lower_partition(main, main.operators, main.inputs, main.outputs)
    states = [np.zeros(main.tensors[t].shape, np.float32) for t in lowered.variables]
    cpu, rng = official(content), np.random.default_rng(4)
    for _ in range(2):
        x = rng.integers(-128, 128, layer.shape).astype(np.int8)
        result, *states = evaluate_graph(lowered.graph, [x, *states])
        np.testing.assert_array_equal(result.reshape(*layer.shape[:-1], -1), run(cpu, [x])[0])


def test_integer_layers_that_are_refused() -> None:
    def reason(layer: Layer, **kwargs: Any) -> str:
        main = litegpu.read_model(integer(layer, **kwargs)).main
        return check_operator(main, main.operators[0]) or ""

    assert "do not fit" in reason(Layer(units=600, depth=4, normalized=True))
    assert not reason(Layer(units=600, depth=4))
    assert "more outputs than units" in reason(Layer(peephole=True, outputs=9))
    assert "the state's scale" in reason(Layer(), cell=-16)
