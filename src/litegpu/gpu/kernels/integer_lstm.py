"""The recurrence of an LSTM in whole numbers: 8 bits for what comes and goes, 16 for gates and the state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.gpu.evaluate.expressions import fixed_product
from litegpu.gpu.graph import Shape
from litegpu.gpu.kernels.access import Operands, declare_table, open_sink, open_source
from litegpu.gpu.kernels.context import KernelContext, Launch
from litegpu.gpu.kernels.expression import constant
from litegpu.gpu.kernels.fixed_point import fixed_mul
from litegpu.gpu.kernels.integer_layer_norm import moments, moments_in_numpy, normalized, normalized_in_numpy
from litegpu.gpu.kernels.lstm import CANDIDATE, FORGET, GATES, INPUT, OUTPUT, packed_weights, sequences
from litegpu.gpu.lang import Features, Kernel, TracedValue, i8x4, i32, i32x4, u32

Array = np.ndarray[Any, np.dtype[Any]]

#: A multiplier and an exponent: x * m * 2**(s - 31), as gpu/graph has it for fixed_mul.
Factor = tuple[int, int]
#: Numbers of 16 bits, for each of which a table has one.
NUMBERS = 1 << 16
_HALF = NUMBERS // 2
_THREADS = 256
_SHARED_BYTES = Features().max_shared_bytes


@dataclass(frozen=True)
class IntegerLstm:
    """The steps of an LSTM layer as the integer kernel of TFLite computes them (CalculateLstmGateInteger8x8_16 and what
    is around it in lstm_eval.cc). Satisfies custom.definition.Definition.

    inputs, all int32, in the order of gates input, candidate, forget, output:
        gates [1,T,B,4N] (`time_major`) or [1,B,T,4N]: weights times input, scaled, within 16 bits;
        recurrent weights [1,1,4N,M], the first output [1,1,B,M] less the zero point, and the first state [1,1,B,N];
        tables [1,1,3,65536] of the logistic function, of tanh of a gate and of tanh of a state;
        peepholes [1,3,B,N] from the state to the gates input, forget, output, zeros if there are none;
        norms [1,1,8,N], of four gates the coefficients and the biases, zeros if there are none;
        projection [1,1,M,N] and bias [1,1,1,M], of which there are none unless `projected`.
    output: [1,T,B,M+N] or [1,B,T,M+N], int32: of each step the output less the zero point, then the state.

    `recurrent`, `peephole` and `norms` are factors of four gates, `guards` what stands for variances less than 1. A
    state counts 2**`state`. `hidden` is the factor of what a unit gives, which has the zero point `hidden_zero`; the
    output has `zero`. Clips of 0 are none; that of the output holds for stored numbers.
    """

    units: int
    outputs: int
    time_major: bool
    coupled: bool
    state: int
    recurrent: tuple[Factor, ...]
    hidden: Factor
    hidden_zero: int
    zero: int
    peephole: tuple[Factor, ...] = ()
    norms: tuple[Factor, ...] = ()
    guards: tuple[int, ...] = ()
    projection: Factor | None = None
    state_clip: int = 0
    output_clip: int = 0
    has_reference = True

    def evaluate(self, inputs: Sequence[Array], shape: Shape) -> Array:
        gates, weights, h, c, tables, peepholes, norms, *more = (x.astype(np.int64) for x in inputs)
        gates = gates[0] if self.time_major else gates[0].swapaxes(0, 1)
        weights, h, c, tables, peepholes, norms = (
            weights[0, 0],
            h[0, 0],
            c[0, 0],
            tables[0, 0],
            peepholes[0],
            norms[0, 0],
        )
        n = self.units

        def kept(x: Array) -> Array:
            return np.clip(x, -_HALF, _HALF - 1)

        def look(table: int, x: Array) -> Array:
            return np.asarray(tables[table][x + _HALF])

        def gate(sums: Array, which: int, state: Array) -> Array:
            v = kept(sums[:, which * n : (which + 1) * n])
            if self.peephole and which != CANDIDATE:
                row = {INPUT: 0, FORGET: 1, OUTPUT: 2}[which]
                v = kept(v + fixed_product(peepholes[row] * state, *self.peephole[which]))
            if self.norms:
                found = moments_in_numpy(v, self.guards[which])
                v = normalized_in_numpy(v, found, norms[which], norms[GATES + which], self.norms[which])
            return look(1 if which == CANDIDATE else 0, v)

        steps = []
        for step in gates:
            products = h @ weights.T
            scaled = [fixed_product(products[:, i * n : (i + 1) * n], *self.recurrent[i]) for i in range(GATES)]
            sums = step + np.concatenate(scaled, 1)
            forget = gate(sums, FORGET, c)
            into = _HALF - 1 - forget if self.coupled else gate(sums, INPUT, c)
            candidate = gate(sums, CANDIDATE, c)
            c = kept(_divided(forget * c, 15) + _divided(into * candidate, 30 + self.state))
            c = np.clip(c, -self.state_clip, self.state_clip) if self.state_clip > 0 else c
            product = gate(sums, OUTPUT, c) * look(2, c)
            h = np.clip(fixed_product(product, *self.hidden) + self.hidden_zero, -128, 127) - self.hidden_zero
            if self.projection is not None:
                h = fixed_product(h @ more[0][0, 0].T + more[1][0, 0, 0], *self.projection) + self.zero
                h = np.clip(h, -128, 127)
                h = np.clip(h, -self.output_clip, self.output_clip) if self.output_clip > 0 else h
            else:
                h = h + self.hidden_zero
            h = h - self.zero
            steps.append(np.concatenate([h, c], 1))
        result = np.stack(steps)
        return (result if self.time_major else result.swapaxes(0, 1)).reshape(shape).astype(np.int32)

    def build(self, ctx: KernelContext) -> list[Launch]:
        threads = min(_THREADS, ctx.features.max_threads, max(32, -(-max(self.units, self.outputs) // 32) * 32))
        return [sequences(ctx, self, "integer_lstm", threads, _recurrence)]


def fits(op: IntegerLstm) -> bool:
    """Whether every device can run the layer."""
    words = op.units + op.outputs + -(-op.units // 4) * 4 + (op.units * 5 if op.norms else 0)
    return words * 4 <= _SHARED_BYTES


@dataclass(frozen=True)
class _Constants:
    """What the kernel reads: bytes in fours, words of two numbers of 16 bits, and other numbers in one piece, in which
    the peepholes [3, sequences, N], the norms [8, N] and the bias of the projection begin at places."""

    weights: Array
    tables: Array
    numbers: Array
    peepholes: int
    sequences: int
    norms: int
    bias: int
    projection: Array


def _constants(op: IntegerLstm, inputs: Sequence[Array | None]) -> _Constants:
    given = [np.asarray(a) for a in inputs if a is not None]
    weights, tables, peepholes, norms, *more = given
    n, m = op.units, op.outputs
    pairs = tables.reshape(-1, 2).astype(np.int16).view(np.uint32)
    pieces = [peepholes.reshape(-1), norms.reshape(-1), *(a.reshape(-1) for a in more[1:])]
    starts = np.cumsum([0, *(p.size for p in pieces)])
    matrix = np.zeros((-(-n // 4) * 4, m), np.int8)
    if more:
        matrix[:n] = more[0].reshape(m, n).T
    fours = matrix.reshape(-1, 4, m).transpose(0, 2, 1)
    return _Constants(
        weights=packed_weights(weights.astype(np.int8), n, m),
        tables=np.ascontiguousarray(pairs.reshape(-1)),
        numbers=np.concatenate(pieces).astype(np.int32),
        peepholes=0,
        sequences=peepholes.shape[2],
        norms=int(starts[1]),
        bias=int(starts[2]),
        projection=np.ascontiguousarray(fours),
    )


def _divided(x: Array, bits: int) -> Array:
    """RoundingDivideByPOT."""
    mask = (1 << bits) - 1
    return np.asarray((x >> bits) + ((x & mask) > (mask >> 1) + (x < 0)))


def _recurrence(k: Kernel, ctx: KernelContext, op: IntegerLstm, operands: Operands) -> None:
    """A workgroup has a sequence, and each thread some of the units: it multiplies the last outputs, in shared memory,
    with the unit's four rows of the weights, which neighbouring threads read side by side."""
    n, m = op.units, op.outputs
    gates, _, first_output, first_state = (open_source(ctx, k, v, operands) for v in ctx.node.inputs[:4])
    _, rows, columns, _ = ctx.output.shape
    steps = rows if op.time_major else columns
    b, me, threads = k.group_id(), k.local_id(), k.threads
    constants = _constants(op, [ctx.value(v).data for v in ctx.node.inputs])
    weights = declare_table(k, "weights", constants.weights, i8x4, operands)
    tables = declare_table(k, "tables", constants.tables, u32, operands)
    numbers = declare_table(k, "numbers", constants.numbers, i32, operands)
    outputs = k.shared(i32, m)
    state = k.shared(i32, n)
    given = k.shared(i32, -(-n // 4) * 4)  # what units give, less the zero point
    raw = k.shared(i32x4, n) if op.norms else None
    raw_output = k.shared(i32, n) if op.norms else None

    def kept(x: TracedValue) -> TracedValue:
        return k.clamp(x, constant(k, -_HALF, x.type), constant(k, _HALF - 1, x.type))

    def look(table: int, x: TracedValue) -> TracedValue:
        place = k.bitcast(x + _HALF, u32)
        word = tables[(place >> 1) + table * _HALF] >> ((place & 1) << 4)
        return k.bitcast(word << 16, i32) >> 16

    def divided(x: TracedValue, bits: int) -> TracedValue:
        magnitude = (k.abs(x) + (1 << (bits - 1))) >> bits
        return k.select(x < 0, -magnitude, magnitude)

    def number(first: int, unit: TracedValue) -> TracedValue:
        return numbers[unit + first]

    def with_peephole(v: TracedValue, which: int, unit: TracedValue, cell: TracedValue) -> TracedValue:
        if not op.peephole:
            return v
        row = constants.peepholes + {INPUT: 0, FORGET: 1, OUTPUT: 2}[which] * constants.sequences * n
        place = unit if constants.sequences == 1 else b * n + unit
        return kept(v + fixed_mul(k, numbers[place + row] * cell, *op.peephole[which]))

    def scaled(sums: TracedValue) -> TracedValue:
        multipliers, shifts = (k.vec(*(k.const(f[j], i32) for f in op.recurrent)) for j in range(2))
        return fixed_mul(k, sums, multipliers, shifts)

    def sums_of(unit: TracedValue, t: TracedValue) -> TracedValue:
        """Of the four gates, without peepholes."""
        total = k.var(k.const(0, i32x4))
        with k.loop(m) as i:
            total.set(total.value + weights[i * n + unit] * k.splat(outputs[i], GATES))
        row, column = (t, b) if op.time_major else (b, t)
        return kept(scaled(total.value) + k.vec(*(gates.at(0, row, column, unit + i * n) for i in range(GATES))))

    def new_state(unit: TracedValue, values: TracedValue) -> TracedValue:
        forget = look(0, values[FORGET])
        into = _HALF - 1 - forget if op.coupled else look(0, values[INPUT])
        candidate = look(1, values[CANDIDATE])
        cell = kept(divided(forget * state[unit], 15) + divided(into * candidate, 30 + op.state))
        if op.state_clip > 0:
            cell = k.clamp(cell, -op.state_clip, op.state_clip)
        state[unit] = cell
        return cell

    def finish(unit: TracedValue, value: TracedValue, cell: TracedValue) -> None:
        product = look(0, value) * look(2, cell)
        found = fixed_mul(k, product, *op.hidden) + op.hidden_zero
        given[unit] = k.clamp(found, -128, 127) - op.hidden_zero

    def for_units(act: Any) -> None:
        with k.loop(n, start=me, step=threads) as unit:
            act(unit)

    with k.loop(m, start=me, step=threads) as i:
        outputs[i] = first_output.at(0, 0, b, i)
    with k.loop(n, start=me, step=threads) as i:
        state[i] = first_state.at(0, 0, b, i)
    with k.If(me == 0):
        for past in range(n, -(-n // 4) * 4):
            given[past] = k.const(0, i32)
    k.barrier()
    with k.loop(steps) as t:
        with k.loop(n, start=me, step=threads) as unit:
            sums = sums_of(unit, t)
            cell = state[unit]
            parts = [sums[i] for i in range(GATES)]
            for which in (INPUT, FORGET):
                parts[which] = with_peephole(parts[which], which, unit, cell)
            if raw is not None:
                raw[unit] = k.vec(*parts)
            else:
                after = new_state(unit, k.vec(*parts))
                finish(unit, with_peephole(parts[OUTPUT], OUTPUT, unit, after), after)
        if raw is not None and raw_output is not None:
            k.barrier()
            found = moments(k, raw, n, k.vec(*(k.const(g, i32) for g in op.guards)))
            factors = [k.vec(*(k.const(f[j], i32) for f in op.norms)) for j in range(2)]

            def after_normalizing(unit: TracedValue) -> None:
                values = raw[unit]
                norms = [
                    k.vec(*(number(constants.norms + (4 * j + i) * n, unit) for i in range(GATES))) for j in range(2)
                ]
                after = new_state(unit, normalized(k, values, found, norms[0], norms[1], (factors[0], factors[1])))
                raw_output[unit] = with_peephole(values[OUTPUT], OUTPUT, unit, after)

            for_units(after_normalizing)
            k.barrier()
            last = moments(k, raw_output, n, k.const(op.guards[OUTPUT], i32))

            def end(unit: TracedValue) -> None:
                norms = [number(constants.norms + (4 * j + OUTPUT) * n, unit) for j in range(2)]
                value = normalized(k, raw_output[unit], last, norms[0], norms[1], op.norms[OUTPUT])
                finish(unit, value, state[unit])

            for_units(end)
        k.barrier()
        with k.loop(m, start=me, step=threads) as i:
            if op.projection is None:
                outputs[i] = given[i] + (op.hidden_zero - op.zero)
            else:
                projection = declare_table(k, "projection", constants.projection, i8x4, operands)
                total = k.var(number(constants.bias, i))
                with k.loop(-(-n // 4)) as u:
                    four = projection[u * m + i]
                    for j in range(4):
                        total.set(total.value + four[j] * given[u * 4 + j])
                value = k.clamp(fixed_mul(k, total.value, *op.projection) + op.zero, -128, 127)
                if op.output_clip > 0:
                    value = k.clamp(value, -op.output_clip, op.output_clip)
                outputs[i] = value - op.zero
        k.barrier()
        channels = m + n
        with k.loop(-(-channels // 4), start=me, step=threads) as q:
            row, column = (t, b) if op.time_major else (b, t)
            lanes = []
            for j in range(4):
                i = q * 4 + j
                mine = outputs[k.min(i, m - 1)]
                lanes.append(k.select(i < m, mine, state[k.min(k.max(i, m) - m, n - 1)]))
            open_sink(ctx, k, operands).store(0, row, column, q, k.vec(*lanes))
        k.barrier()
