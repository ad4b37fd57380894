"""Random programs give the same on the interpreter and on a device."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu.lang.runners import Interpreter, OnDevice

from litegpu.gpu.lang import Kernel, TracedValue, f32, i32, trace, u32, vec

THREADS, GROUPS = 32, 2
COUNT = THREADS * GROUPS
RESULTS = {"f": f32, "i": i32, "u": u32}


class Program:
    """A random kernel: values of each kind from which statements are made, in nested control flow."""

    def __init__(self, seed: int, lanes: int) -> None:
        self.random = random.Random(seed)
        self.lanes = lanes

    def __call__(self, k: Kernel) -> None:
        self.k = k
        kinds = {kind: vec(type, self.lanes) for kind, type in RESULTS.items()}
        i = k.group_id() * THREADS + k.local_id()
        inputs = {c: k.buffer(f"x{c}", t, COUNT, access="read") for c, t in kinds.items()}
        outputs = {c: k.buffer(f"y{c}", t, COUNT) for c, t in kinds.items()}
        shared = {c: k.shared(t, THREADS) for c, t in kinds.items()}
        pool = {c: [m[i], k.const(3, kinds[c]), m[COUNT - 1 - i]] for c, m in inputs.items()}
        pool["b"] = [pool["u"][0] < pool["u"][2]]
        self.locals = {c: k.var(pool[c][0]) for c in kinds}
        self.arrays = {c: k.array(2, pool[c][2]) for c in kinds}
        for _ in range(3):
            self.statements(pool, 2)
            for c, memory in shared.items():
                memory[k.local_id()] = self.locals[c].value
            k.barrier()
            offset = self.random.randrange(THREADS)
            pool = {
                c: [*v, shared[c][(k.local_id() + offset) % THREADS]] if c in shared else v for c, v in pool.items()
            }
            k.barrier()
        for c, memory in outputs.items():
            memory[i] = self.locals[c].value

    def statements(self, pool: dict[str, list[TracedValue]], depth: int) -> None:
        pool = {c: list(v) for c, v in pool.items()}
        k, rnd = self.k, self.random
        for _ in range(rnd.randint(2, 6)):
            for _ in range(rnd.randint(1, 4)):
                c, value = self.expression(pool)
                pool[c].append(value)
            choice = rnd.random()
            c = rnd.choice("fiu")
            if choice < 0.4 or depth == 0:
                self.locals[c].set(rnd.choice(pool[c]))
                pool[c].append(self.arrays[c][rnd.randrange(2)])
                self.arrays[c][rnd.randrange(2)] = rnd.choice(pool[c])
            elif choice < 0.6:
                with k.If(self.scalar(rnd.choice(pool["b"]))):
                    self.statements(pool, depth - 1)
                if rnd.random() < 0.5:
                    with k.Else():
                        self.statements(pool, depth - 1)
            elif choice < 0.8:
                stop = self.scalar(rnd.choice(pool["u"])) % 4 if rnd.random() < 0.5 else rnd.randint(0, 3)
                with k.loop(stop, start=rnd.randint(0, 1), step=rnd.randint(1, 2)) as index:
                    inner = {**pool, "u": [*pool["u"], k.splat(index, self.lanes)]}
                    self.statements(inner, depth - 1)
            else:
                rounds = k.var(0)
                limit = self.scalar(rnd.choice(pool["u"])) % 3

                def more(rounds: Any = rounds, limit: Any = limit) -> TracedValue:
                    left: TracedValue = rounds.value < limit
                    return left

                with k.While(more):
                    rounds.set(rounds.value + 1)
                    self.statements(pool, depth - 1)
            pool[c].append(self.locals[c].value)

    def scalar(self, value: TracedValue) -> TracedValue:
        return value[self.random.randrange(value.type.lanes)]

    def expression(self, pool: dict[str, list[TracedValue]]) -> tuple[str, TracedValue]:
        k, rnd = self.k, self.random

        def pick(c: str) -> TracedValue:
            return rnd.choice(pool[c][-5:] if rnd.random() < 0.7 else pool[c])

        choice = rnd.random()
        if choice < 0.3:
            return "f", self.float_expression(pick)
        if choice < 0.75:
            c = rnd.choice("iu")
            return c, self.integer_expression(c, pick)
        if choice < 0.85:
            c = rnd.choice("fiu")
            op = rnd.choice(("lt", "le", "gt", "ge") if c == "f" else ("lt", "le", "gt", "ge", "eq", "ne"))
            return "b", k.call(op, pick(c), pick(c))
        if choice < 0.9:
            return "b", rnd.choice((lambda a, b: a & b, lambda a, b: a | b, lambda a, b: a ^ ~b))(pick("b"), pick("b"))
        c = rnd.choice("fiu")
        return c, k.select(pick("b"), pick(c), pick(c))

    def float_expression(self, pick: Callable[[str], TracedValue]) -> TracedValue:
        """Values stay multiples of 1/4 between -1024 and 1024, so that every device computes them exactly."""
        k = self.k
        op = self.random.choice(("add", "sub", "mul", "fma", "min", "max", "floor", "round", "abs", "neg", "from"))
        if op == "from":
            return k.convert(k.clamp(pick("i"), -99, 99), vec(f32, self.lanes))
        args = [pick("f") for _ in range({"fma": 3}.get(op, 1 if op in ("floor", "round", "abs", "neg") else 2))]
        result = k.call(op, *args)
        if op in ("mul", "fma", "add", "sub"):
            result = k.floor(k.clamp(result, -1000.0, 1000.0) * 4.0) * 0.25
            if op in ("mul", "fma"):
                result = k.round(result)
        return result

    def integer_expression(self, c: str, pick: Callable[[str], TracedValue]) -> TracedValue:
        k, rnd = self.k, self.random
        type = vec(RESULTS[c], self.lanes)
        op = rnd.choice(("add", "sub", "mul", "and", "or", "xor", "shl", "shr", "min", "max", "divide", "not", "from"))
        if op == "divide":
            by = rnd.choice((1, 2, 3, 7, 64, 1000))
            if c == "u":
                return rnd.choice((lambda v: v // by, lambda v: v % by))(pick("u"))
            return rnd.choice((k.idiv_trunc, k.irem))(pick("i"), rnd.choice((by, -by)))
        if op == "from":
            source = rnd.choice("fiu" if c == "i" else "iu")
            return k.convert(pick(source), type) if source != c else k.bitcast(pick("u" if c == "i" else "i"), type)
        if op in ("shl", "shr") and rnd.random() < 0.5:
            return k.call(op, pick(c), rnd.randint(0, 31))
        return k.call(op, *(pick(c) for _ in range(1 if op == "not" else 2)))


def inputs(seed: int, lanes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    n = COUNT * (4 if lanes == 3 else lanes)  # three lanes take the room of four
    arrays: dict[str, Any] = {
        "xf": (rng.integers(-400, 400, n) / 4).astype(np.float32),
        "xi": rng.integers(-(2**31), 2**31, n).astype(np.int32),
        "xu": rng.integers(0, 2**32, n).astype(np.uint32),
    }
    return arrays | {"yf": np.zeros(n, np.float32), "yi": np.zeros(n, np.int32), "yu": np.zeros(n, np.uint32)}


def check(seed: int, device: OnDevice) -> None:
    lanes = 1 + seed % 4
    kernel = trace(Program(seed, lanes), f"fuzz{seed}", (THREADS, 1, 1), (GROUPS, 1, 1))
    results = []
    for runner in (Interpreter(), device):
        arrays = inputs(seed, lanes)
        runner.run(kernel, arrays)
        results.append(arrays)
    for name in ("yf", "yi", "yu"):
        np.testing.assert_array_equal(results[0][name], results[1][name], err_msg=f"seed {seed}, {name}\n{kernel}")


@pytest.mark.parametrize("seed", range(24))
def test_random_program(seed: int, device: OnDevice) -> None:
    check(seed, device)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 2000))
def test_many_random_programs(seed: int, device: OnDevice) -> None:
    check(seed, device)


def test_programs_reach_every_statement() -> None:
    """The fuzzer is of no use if it only makes straight lines."""
    listings = "".join(str(trace(Program(seed, 1), "fuzz", (THREADS, 1, 1), (GROUPS, 1, 1))) for seed in range(10))
    for word in ("for ", "while", "if ", "else", "barrier", "irem", "select", "fma", "bitcast"):
        assert word in listings
