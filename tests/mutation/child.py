"""Child process that tries damaged models one after another: child.py SEED FIRST LAST STEP GPU [NAME...].

It prints "number start" before each, then "number verdict". A crash leaves the last line without its verdict; a case
that takes too long ends the process by SIGPROF, one that takes too much memory by an error or a crash.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import OpResolverType

from litegpu import GpuDelegate, Interpreter
from litegpu.errors import LiteGpuError

MEMORY = 2560 << 20  # bytes of address space beyond what the process has at first
SECONDS = 10  # of processor time for one case
_RESOLVERS = (
    *(OpResolverType.AUTO,) * 4, OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, OpResolverType.BUILTIN_REF,
)  # fmt: skip


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from mutation.mutate import mutated
    from mutation.seeds import seed_model, seed_names

    seed, first, last, step, gpu = sys.argv[1], *(int(a) for a in sys.argv[2:6])
    names = [n for n in seed_names() if not sys.argv[6:] or any(part in n for part in sys.argv[6:])]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    if gpu:  # opens the device, so that what it takes is not counted
        verdict(seed_model("op ADD 0"), 1)
    limited()
    for number in range(first, last, step):
        rng = random.Random(f"{seed} {number}")
        content = b""
        while not content:
            name = rng.choice(names)
            content = seed_model(name)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        print(number, "start", name, flush=True)
        case = mutated(content, f"{seed} {number}")
        print(number, verdict(case, number if not gpu or number % 40 else -number), flush=True)


def limited() -> None:
    """Limits this process to MEMORY beyond what it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if sys.platform == "linux" else 0
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def verdict(content: bytes, number: int) -> str:
    """What became of a model: "refused", "error" (both typed), "ran", or "untyped" with the trace. Every fourth number
    has the GPU delegate look at it, a negative number has it run there."""
    opened = False
    try:
        delegates = [GpuDelegate()] if number < 0 or number % 4 == 1 else None
        with Interpreter(
            model_content=content, experimental_delegates=delegates, num_threads=1, fallback="silent",
            experimental_op_resolver_type=_RESOLVERS[abs(number) % len(_RESOLVERS)],
        ) as interpreter:  # fmt: skip
            opened = True
            if number >= 0 and delegates:
                interpreter.preview_delegation()
                return "previewed"
            interpreter.allocate_tensors()
            for details in interpreter.get_input_details():
                value = _value(details, 2**30 if number % 3 == 2 else 3)
                if number % 7 or value.dtype != np.object_:  # what happens if it is forgotten
                    interpreter.set_tensor(details["index"], value)
            interpreter.invoke()
            for details in interpreter.get_output_details():
                interpreter.get_tensor(details["index"])
    except np._core._exceptions._ArrayMemoryError:  # type: ignore[attr-defined]
        return "unfilled: its inputs are larger than this process may be"
    except LiteGpuError as error:
        text = " ".join(str(error).split())
        return f"{'error' if opened else 'refused'} {type(error).__name__} {text}"
    except Exception:
        return "untyped " + " ".join(traceback.format_exc().split())
    return "ran"


def _value(details: dict[str, Any], high: int) -> np.ndarray:
    dtype, shape = np.dtype(details["dtype"]), details["shape"]
    rng = np.random.default_rng(0)
    match dtype.kind:
        case "i" | "u":
            info = np.iinfo(dtype)
            low, high = (0, high) if high < 100 else (-high, high)
            return np.asarray(rng.integers(max(low, info.min), min(high, info.max), shape, np.int64)).astype(dtype)
        case "f" | "c" | "b":
            return np.asarray(rng.uniform(0, 3, shape)).astype(dtype)
        case _:
            if np.prod(shape) > 10**6:
                raise LiteGpuError("too many strings for this test")
            return np.full(shape, b"string", dtype=np.object_)


if __name__ == "__main__":
    main()
