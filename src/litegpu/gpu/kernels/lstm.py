"""The recurrence of an LSTM: one launch for all steps, a workgroup for each sequence of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from litegpu.gpu.evaluate import evaluate_expr
from litegpu.gpu.graph import RESULT, Expr, Shape, apply, fits_half
from litegpu.gpu.kernels.access import Operands, open_sink, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import evaluate
from litegpu.gpu.lang import Features, Kernel, KernelError, Memory, TracedValue, f16x4, f32, f32x4, trace
from litegpu.gpu.lang.functions import Operand

Array = np.ndarray[Any, np.dtype[Any]]

#: The gates in order: input, candidate, forget, output.
GATES = 4
INPUT, CANDIDATE, FORGET, OUTPUT = range(GATES)
#: Added to the variance in layer normalisation, as in the TFLite reference kernel.
EPSILON = 1e-8
#: Threads of a workgroup, where the device allows as many.
_THREADS = 256
#: Shared memory that every device has.
_SHARED_BYTES = Features().max_shared_bytes


@dataclass(frozen=True)
class Lstm:
    """The steps of an LSTM layer (Hochreiter and Schmidhuber 1997, Gers et al. 2000; the names of lstm_eval.cc of
    TFLite). Satisfies custom.definition.Definition.

    inputs, in order, those in brackets where the layer has them:
        gates [1,T,B,4N] (`time_major`) or [1,B,T,4N]: weights times input, for the gates input, candidate, forget and
            output, with the biases unless there is `normalized`;
        recurrent weights [1,1,4N,M], the first output [1,1,B,M] and the first state [1,1,B,N];
        [`peephole`: weights [1,1,3,N] from the state to the gates input, forget, output];
        [`normalized`: coefficients and biases [1,1,8,N] of layer normalisation, of the four gates each];
        [`projected`: weights [1,1,M,N] and bias [1,1,1,M]].
    output: [1,T,B,M+N] or [1,B,T,M+N]: of each step the output, then the state. M is N unless `projected`.

    `coupled` (CIFG): the input gate is one minus the forget gate, its rows count for nothing. `activation` is of the
    candidate and of the state. Clips of 0 are none.
    """

    units: int
    outputs: int
    time_major: bool
    activation: Expr
    coupled: bool = False
    peephole: bool = False
    normalized: bool = False
    projected: bool = False
    cell_clip: float = 0.0
    projection_clip: float = 0.0
    has_reference = True

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        gates, weights, h, c, *more = (x.astype(np.float64) for x in inputs)
        gates = gates[0] if self.time_major else gates[0].swapaxes(0, 1)
        h, c, weights, n = h[0, 0], c[0, 0], weights[0, 0], self.units
        peephole = more.pop(0)[0, 0] if self.peephole else np.zeros((3, n))
        norm = more.pop(0)[0, 0] if self.normalized else None
        steps = []

        def gate(sums: Array, which: int, state: Array | float) -> Array:
            v = sums[:, which * n : (which + 1) * n] + state
            if norm is not None:
                centred = v - v.mean(1, keepdims=True)
                v = centred / np.sqrt((centred**2).mean(1, keepdims=True) + EPSILON) * norm[which] + norm[4 + which]
            return v

        def of(expr: Expr, x: Array) -> Array:
            return np.asarray(evaluate_expr(expr, [x]), np.float64)

        for step in gates:
            sums = step + h @ weights.T
            forget = _sigmoid(gate(sums, FORGET, c * peephole[1]))
            into = 1 - forget if self.coupled else _sigmoid(gate(sums, INPUT, c * peephole[0]))
            c = forget * c + into * of(self.activation, gate(sums, CANDIDATE, 0.0))
            c = np.clip(c, -self.cell_clip, self.cell_clip) if self.cell_clip > 0 else c
            h = _sigmoid(gate(sums, OUTPUT, c * peephole[2])) * of(self.activation, c)
            if self.projected:
                h = h @ more[0][0, 0].T + more[1][0, 0]
                h = np.clip(h, -self.projection_clip, self.projection_clip) if self.projection_clip > 0 else h
            steps.append(np.concatenate([h, c], 1))
        result = np.stack(steps)
        return (result if self.time_major else result.swapaxes(0, 1)).reshape(shape).astype(np.float32)

    def build(self, ctx: KernelContext) -> list[Launch]:
        return [sequences(ctx, self, "lstm", _division(self.units, ctx.features.max_threads)[2], _recurrence)]


class Recurrent(Protocol):
    """What the layers of LSTMs have in common."""

    @property
    def time_major(self) -> bool: ...

    @property
    def units(self) -> int: ...


def sequences(ctx: KernelContext, op: Recurrent, name: str, threads: int, recurrence: Callable[..., None]) -> Launch:
    """A launch of one workgroup for each sequence of the batch. `recurrence` is traced with `ctx`, `op` and the
    `operands` that it fills. Raises KernelError if the device has less shared memory than that asks for."""
    _, rows, columns, _ = ctx.output.shape
    batch = columns if op.time_major else rows
    operands: Operands = {}
    kernel = trace(recurrence, name, (threads, 1, 1), (batch, 1, 1), ctx=ctx, op=op, operands=operands)
    if kernel.shared_bytes > ctx.features.max_shared_bytes:
        raise KernelError(f"an LSTM of {op.units} units needs {kernel.shared_bytes} bytes of shared memory")
    return Launch(kernel, operands, "lstm")


def fits(op: Lstm) -> bool:
    """Whether every device can run the layer."""
    across = _division(op.units, _THREADS)
    partial = across[2] * 16 if across[1] > 1 else 0
    normalized = op.units * 20 if op.normalized else 0
    return (-(-(op.units + op.outputs) // 4) * 4 + op.units) * 4 + partial + normalized <= _SHARED_BYTES


def packed_weights(weights: Array, units: int, outputs: int) -> Array:
    """Recurrent weights [4N, M] as [M, N] groups of the four gates."""
    return np.ascontiguousarray(weights.reshape(GATES, units, outputs).transpose(2, 1, 0))


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-x)))


def _division(units: int, most: int) -> tuple[int, int, int]:
    """(units at once, threads that share one, threads)."""
    most = min(most, _THREADS)
    at_once = min(units, most)
    parts = most // at_once
    return at_once, parts, at_once * parts


def _recurrence(k: Kernel, ctx: KernelContext, op: Lstm, operands: Operands) -> None:
    """The thread of a unit multiplies the last outputs, in shared memory, with the unit's four rows of the weights,
    which neighbouring threads read side by side; with few units several threads share that. What all units have
    finished is read by all after a barrier."""
    n, m = op.units, op.outputs
    at_once, parts, threads = _division(n, ctx.features.max_threads)
    rounds = -(-n // at_once)
    gates, _, first_output, first_state, *more = (open_source(ctx, k, v, operands) for v in ctx.node.inputs)
    norms = more.pop(1 if op.peephole else 0) if op.normalized else None
    peepholes = more.pop(0) if op.peephole else None
    weights = _weights(ctx, k, operands, n, m)
    _, rows, columns, channels = ctx.output.shape
    steps = rows if op.time_major else columns
    b, me = k.group_id(), k.local_id()
    lane, part = (me, k.const(0, me.type)) if parts == 1 else (me % at_once, me // at_once)
    kept = k.shared(f32, -(-channels // 4) * 4)  # the outputs, then the states
    fresh = k.shared(f32, n)  # outputs before the projection
    partial = k.shared(f32x4, threads) if parts > 1 else None
    raw = k.shared(f32x4, n) if op.normalized else None
    raw_output = k.shared(f32, n) if op.normalized else None

    def gate(
        row: int, unit: Operand, value: TracedValue, moments: tuple[TracedValue, TracedValue] | None
    ) -> TracedValue:
        if norms is None or moments is None:
            return value
        mean, scale = moments
        return (value - mean) * scale * norms.at(0, 0, row, unit) + norms.at(0, 0, 4 + row, unit)  # type: ignore[arg-type]

    def activated(value: TracedValue) -> TracedValue:
        return evaluate(k, op.activation, [value])

    def clipped(value: TracedValue, limit: float) -> TracedValue:
        return k.clamp(value, -limit, limit) if limit > 0 else value

    def peephole(row: int, unit: TracedValue, state: TracedValue) -> TracedValue | float:
        return 0.0 if peepholes is None else peepholes.at(0, 0, row, unit) * state

    def new_state(
        unit: TracedValue, sums: TracedValue, statistics: list[tuple[TracedValue, TracedValue]] | None
    ) -> TracedValue:
        """The state after this step, which is kept; `sums` have the peepholes' part, except for the output gate."""
        values = [gate(i, unit, sums[i], statistics[i] if statistics else None) for i in range(GATES - 1)]
        forget = _sigmoid_of(k, values[FORGET])
        into = 1.0 - forget if op.coupled else _sigmoid_of(k, values[INPUT])
        state = forget * kept[unit + m] + into * activated(values[CANDIDATE])
        state = clipped(state, op.cell_clip)
        kept[unit + m] = state
        return state

    def sums_of(unit: TracedValue, t: TracedValue) -> TracedValue:
        """Weights times outputs, plus what came from the input; right in the threads of part 0."""
        total = k.var(k.const(0.0, f32x4))
        with k.loop(m // 4, start=part, step=parts) as q:
            for j in range(4):
                i = q * 4 + j
                total.set(k.fma(weights[i * n + unit], k.splat(kept[i], 4), total.value))
        if m % 4:
            with k.If(part == parts - 1):
                for last in range(m // 4 * 4, m):
                    total.set(k.fma(weights[unit + last * n], k.splat(kept[last], 4), total.value))
        if partial is not None:
            partial[me] = total.value
            k.barrier()
            with k.If(part == 0):
                for other in range(1, parts):
                    total.set(total.value + partial[me + other * at_once])
        row, column = (t, b) if op.time_major else (b, t)
        return total.value + k.vec(*(gates.at(0, row, column, unit + i * n) for i in range(GATES)))

    def with_peepholes(unit: TracedValue, sums: TracedValue) -> TracedValue:
        if peepholes is None:
            return sums
        state = kept[unit + m]
        added = [peephole(0, unit, state), 0.0, peephole(1, unit, state), 0.0]
        return sums + k.vec(*(a if isinstance(a, TracedValue) else k.const(a, f32) for a in added))

    def finish(unit: TracedValue, output_gate: TracedValue, state: TracedValue) -> None:
        hidden = _sigmoid_of(k, output_gate) * activated(state)
        fresh[unit] = hidden

    def for_units(act: Any) -> None:
        """`act` of each of the thread's units, in part 0."""
        with k.loop(rounds) as r:
            unit = r * at_once + lane
            with k.If((part == 0) & (unit < n)):
                act(unit)

    with k.loop(channels, start=me, step=threads) as i:  # every index of `kept` but the padding
        with k.If(i < m):
            kept[i] = first_output.at(0, 0, b, k.min(i, m - 1))
        with k.Else():
            kept[i] = first_state.at(0, 0, b, k.min(i - m, n - 1))
    with k.If(me == 0):
        for past in range(channels, -(-channels // 4) * 4):
            kept[past] = k.const(0.0, f32)
    k.barrier()

    with k.loop(steps) as t:
        with k.loop(rounds) as r:
            unit = r * at_once + lane
            real = k.min(unit, n - 1)
            sums = sums_of(real, t)
            with k.If((part == 0) & (unit < n)):
                sums = with_peepholes(unit, sums)
                if raw is not None:
                    raw[unit] = sums
                else:
                    state = new_state(unit, sums, None)
                    finish(unit, sums[OUTPUT] + peephole(2, unit, state), state)
        if raw is not None and raw_output is not None:
            k.barrier()
            mean, scale = _moments(k, raw, n, f32x4)
            inner = [(mean[i], scale[i]) for i in range(GATES)]

            def after_normalising(unit: TracedValue) -> None:
                sums = raw[unit]
                state = new_state(unit, sums, inner)
                raw_output[unit] = sums[OUTPUT] + peephole(2, unit, state)

            for_units(after_normalising)
            k.barrier()
            outer = _moments(k, raw_output, n, f32)
            for_units(lambda unit: finish(unit, gate(OUTPUT, unit, raw_output[unit], outer), kept[unit + m]))
        k.barrier()
        with k.loop(m, start=me, step=threads) as i:
            if op.projected:
                value = k.var(more[1].at(0, 0, 0, i))
                with k.loop(n) as u:
                    value.set(k.fma(more[0].at(0, 0, i, u), fresh[u], value.value))
                kept[i] = clipped(value.value, op.projection_clip)
            else:
                kept[i] = fresh[i]
        k.barrier()
        with k.loop(-(-channels // 4), start=me, step=threads) as q:
            row, column = (t, b) if op.time_major else (b, t)
            open_sink(ctx, k, operands).store(0, row, column, q, k.vec(*(kept[q * 4 + j] for j in range(4))))
        k.barrier()


def _moments(k: Kernel, values: Memory, count: int, kind: Any) -> tuple[TracedValue, TracedValue]:
    """Mean, and one over the standard deviation, of `values` in shared memory; each thread computes them."""
    total = k.var(k.const(0.0, kind))
    with k.loop(count) as i:
        total.set(total.value + values[i])
    mean = total.value * (1.0 / count)
    squares = k.var(k.const(0.0, kind))
    with k.loop(count) as i:
        distance = values[i] - mean
        squares.set(k.fma(distance, distance, squares.value))
    return mean, 1.0 / k.sqrt(squares.value * (1.0 / count) + EPSILON)


def _sigmoid_of(k: Kernel, x: TracedValue) -> TracedValue:
    return evaluate(k, apply("sigmoid", RESULT), [x])


def _weights(ctx: KernelContext, k: Kernel, operands: Operands, n: int, m: int) -> Memory:
    data = ctx.value(ctx.node.inputs[1]).data
    assert data is not None
    half = ctx.half and fits_half(data)
    packed = packed_weights(data, n, m).astype(np.float16 if half else np.float32)
    operands["weights"] = packed
    return k.buffer("weights", f16x4 if half else f32x4, n * m, compute=f32x4, access="read")
