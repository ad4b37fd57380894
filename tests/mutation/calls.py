"""Child process that calls an Interpreter's methods at random: calls.py SEED COUNT NUMBER GPU.

It prints each call before it is made, so that the last line of a crashed process says what it died of. Errors must be
litegpu's own, or TypeError and AttributeError for arguments that no signature allows.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from litegpu import GpuDelegate, Interpreter
from litegpu.errors import LiteGpuError

INDICES = (0, 1, 2, 3, 4, 5, -1, 10, 1000, 2**31 - 1, -(2**31), 2**40, "x", None, 1.5, True)
SHAPES: tuple[Any, ...] = (
    [], [1], [2, 3], [1, 2, 3, 4], [1] * 8, [1] * 9, [1] * 20, [0], [0, 3], [-1, 3], [-5], [2**31],
    [2**31 - 1], [2**16, 2**15], [2**20, 2**20, 2**20], [2**63], "ab", None, 5, [1.5], [[1, 2]],
    np.array([2, 3]), np.zeros((0,), int),
)  # fmt: skip
MODELS = (
    *("op ADD 0", "op RESHAPE 0", "op CONV_2D 0", "op STRIDED_SLICE 1", "op CONCATENATION 0", "op PAD 0", "int8 ADD"),
    *("further SQUEEZE_strings", "further STRIDED_SLICE_strings", "further hashtable", "further call_once"),
    *("further control_flow", "further sequence_lstm", "further svdf", "further variables", "further network"),
    *("further dynamic", "further FILL_run", "further RANGE_run", "further composite", "further sparse"),
    *("further TFLite_Detection_PostProcess", "further UNIQUE", "further bidirectional_rnn", "further basic_lstm"),
)


def main() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from mutation.child import limited
    from mutation.seeds import seed_model

    seed, count, gpu = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "1"
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    limited()
    for number in range(count):
        signal.setitimer(signal.ITIMER_PROF, 60)
        rng = random.Random(f"{seed} {number}")
        name = rng.choice(MODELS)
        delegates = [GpuDelegate()] if gpu and rng.random() < 0.5 else None
        print(number, name, flush=True)
        interpreter = Interpreter(model_content=seed_model(name), experimental_delegates=delegates, fallback="silent")
        kept: list[Any] = []
        for _ in range(rng.randrange(3, 25)):
            one(interpreter, rng, kept)
        kept.clear()
    print("done", flush=True)


def one(interpreter: Interpreter, rng: random.Random, kept: list[Any]) -> None:
    """One call."""
    index = rng.choice(INDICES) if rng.random() < 0.3 else rng.randrange(6)
    shape = rng.choice(SHAPES)
    call = rng.choice(CALLS)
    print("   ", call.__name__, repr(index), str(shape)[:60], flush=True)
    with contextlib.suppress(LiteGpuError, TypeError, AttributeError):
        kept.append(call(interpreter, index, shape, rng))
    if rng.random() < 0.7:
        kept.clear()


def allocate(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    i.allocate_tensors()


def invoke(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    i.invoke()


def fill_and_invoke(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    i.allocate_tensors()
    for details in i.get_input_details():
        i.set_tensor(details["index"], value(details["shape"], details["dtype"], rng))
    i.invoke()
    return [i.get_tensor(details["index"]) for details in i.get_output_details()]


def resize(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    i.resize_tensor_input(index, shape, strict=rng.random() < 0.2)


def set_own(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    details = rng.choice(i.get_tensor_details())
    i.set_tensor(details["index"], value(details["shape"], details["dtype"], rng))


def set_odd(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    i.set_tensor(index, rng.choice(ODD))


def get(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    return i.get_tensor(index, rng.choice((0, 0, 0, 1, -1, 7)))


def view(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    return i.tensor(index)()


def view_later(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    function = i.tensor(index)
    i.allocate_tensors()
    found = function()
    return found.sum() if found.dtype.kind in "fiu" else None


def write_view(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    found = i.tensor(index)()
    if found.flags.writeable and found.dtype.kind in "fiu":
        found[...] = 1


def details(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    return i.get_tensor_details(rng.choice((0, 0, 1, -1, 7))), i.get_input_details(), i.get_output_details()


def inner_details(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    return i._get_tensor_details(index, rng.choice((0, 1, -1, 7)))


def op_details(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    return i._get_op_details(index)


def signature(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    runner = i.get_signature_runner(rng.choice((None, "serving_default", "x", "")))
    given = {name: value(d["shape"], d["dtype"], rng) for name, d in runner.get_input_details().items()}
    if rng.random() < 0.3 and given:
        given[rng.choice(list(given))] = rng.choice(ODD)
    return runner(**given)


def reset(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    i.reset_all_variables()


def later(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    i.invoke_async().result()


def preview(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    return i.preview_delegation(), i.delegation_report().summary()


def readable(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    i.set_allow_buffer_handle_output(rng.random() < 0.5)
    i.ensure_tensor_data_is_readable(index)
    return i.get_output_buffer(index)


def close(i: Interpreter, index: Any, shape: Any, rng: random.Random) -> Any:
    if rng.random() < 0.1:
        i.close()


def value(shape: Any, dtype: Any, rng: random.Random) -> Any:
    shape, dtype = tuple(int(n) for n in shape), np.dtype(dtype)
    if dtype.kind in "SO":
        return np.full(shape, rng.choice((b"a", "", "ü" * 100, b"\x00")), dtype=np.object_)
    return np.asarray(np.random.default_rng(rng.randrange(99)).uniform(0, 4, shape)).astype(dtype)


ODD: tuple[Any, ...] = (
    None, 1, 1.5, "text", b"bytes", [], [1, 2], [[1], [2, 3]], {}, object(), np.zeros(3), np.zeros((0,)), np.array("a"),
    np.array([b"a", "b"], dtype=np.object_), np.array([None, 3], dtype=np.object_), np.array([[b"a"]]), np.array(["é"]),
    np.zeros((2, 3), ">f4"), np.zeros((2, 3), np.float16), np.zeros((2, 3), np.complex128), np.array([1], "M8[s]"),
    np.zeros((2, 3), [("a", "i4")]), np.ma.zeros((2, 3)), np.zeros((3, 2)).T,
)  # fmt: skip

CALLS = (
    allocate, allocate, invoke, fill_and_invoke, resize, resize, set_own, set_odd, get, view, view_later, write_view,
    details, inner_details, op_details, signature, reset, later, preview, readable, close,
)  # fmt: skip


if __name__ == "__main__":
    main()
