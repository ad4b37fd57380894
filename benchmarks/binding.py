"""A PyTorch tensor in, a PyTorch tensor out: what that costs beyond the GPU's time, and whether order is kept.

    python benchmarks/binding.py [--model mobilenet_v1_1.0_224_random] [--precision float16] [--rounds 2000]

Needs an NVIDIA GPU and PyTorch. Prints microseconds, medians over the rounds, of one inference at batch 1:

    GPU time      all kernels, from graphs launched back to back
    bound         interpreter.invoke() with tensors bound to input and output, until the GPU is done
    bound, queued the same with WaitType.DO_NOT_WAIT, per inference of many in turn
    model(tensor) LoadedModel, from the call to the end of torch.cuda.synchronize()
    host          set_tensor, invoke, get_tensor, for comparison

and how many copies between host and device an inference makes, as counted by PyTorch's profiler. Then a producer on a
stream of its own, which is kept busy in front of it, writes the input, and a consumer on that stream reads the output,
neither waiting for anything: every result must be that of its own input. Exit status 1 if one is not, or there are host
copies.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from cuda_measure import find_models

import litegpu
from litegpu import GpuDelegate, Interpreter
from litegpu.gpu.backends.cuda.copy import COPY

ORDER_ROUNDS = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mobilenet_v1_1.0_224_random")
    parser.add_argument("--precision", default="float16", choices=("float16", "float32"))
    parser.add_argument("--rounds", type=int, default=2000)
    args = parser.parse_args()
    path = str(find_models([args.model])[0])
    half = args.precision == "float16"

    interpreter, kernel, source, _ = opened(path, half, "active")
    gpu = 1e6 * kernel.session.time_graph(1000)
    bound = microseconds(interpreter.invoke, args.rounds)
    interpreter.close()
    print(f"{path}, {args.precision}, batch 1, {torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    print(f"GPU time       {gpu:8.1f} us")
    print(f"bound          {bound:8.1f} us, {bound - gpu:+.1f}")

    interpreter, *_ = opened(path, half, "do_not_wait")
    queued = many(interpreter.invoke, args.rounds)
    print(f"bound, queued  {queued:8.1f} us, {queued - gpu:+.1f}")
    interpreter.close()

    with litegpu.load(path, "cuda", args.precision, wait_type="active") as model:

        def call() -> None:
            model(source)
            torch.cuda.synchronize()

        called = microseconds(call, args.rounds)
        print(f"model(tensor)  {called:8.1f} us, {called - gpu:+.1f}")
        array = source.cpu().numpy()
        hosted = microseconds(lambda: model(array), args.rounds)
        print(f"host           {hosted:8.1f} us, {hosted - gpu:+.1f}")

    wrong = wrong_orders(path, half)
    for name, count in wrong.items():
        print(f"order, {name}: {count} of {ORDER_ROUNDS} results are wrong")
    copies = copies_of(path, half)
    print(f"copies of an inference: {copies['host']:g} between host and device, {copies['device']:g} on the device")
    return 1 if any(wrong.values()) or copies["host"] else 0


def opened(path: str, half: bool, wait: str) -> tuple[Any, ...]:
    """(interpreter, its GPU kernel, the tensors that are bound to its input and its output)."""
    delegate = GpuDelegate(backend="cuda", precision_loss_allowed=half, wait_type=wait)
    interpreter = Interpreter(path, experimental_delegates=[delegate], fallback="strict")
    interpreter.allocate_tensors()
    interpreter.set_allow_buffer_handle_output(True)
    (x, *_), (y, *_) = interpreter.get_input_details(), interpreter.get_output_details()
    source = torch.rand(tuple(x["shape"]), device="cuda") * 2 - 1
    target = torch.zeros(tuple(y["shape"]), device="cuda")
    delegate.bind_buffer_to_tensor(source, x["index"])
    delegate.bind_buffer_to_tensor(target, y["index"])
    return interpreter, delegate.prepared[0].kernel(), source, target


def copies_of(path: str, half: bool) -> dict[str, float]:
    """Copies of an inference on bound tensors. Comes last: when PyTorch's profiler has run once, each launch of a graph
    takes 10 us longer in that process."""
    interpreter, kernel, *_ = opened(path, half, "active")
    copies = counted_copies(interpreter.invoke)
    copies["host"] += kernel.session.copies["host"]  # by kernels that reach into pinned memory
    interpreter.close()
    return copies


def counted_copies(call: Callable[[], Any], rounds: int = 20) -> dict[str, float]:
    """Copies per call that CUPTI sees, whoever makes them: between host and device, and others. (Bound arrays are
    copied on the device by a kernel, or not at all.)"""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(rounds):
            call()
        torch.cuda.synchronize()
    names = [event.name for event in profile.events()]
    host = sum("HtoD" in n or "DtoH" in n for n in names)
    device = sum("DtoD" in n or COPY.name in n for n in names)
    if not host + device:
        raise SystemExit(f"the profiler saw no copy at all, only {sorted(set(names))}")
    return {"host": host / rounds, "device": device / rounds}


def microseconds(call: Callable[[], Any], rounds: int) -> float:
    """The median of single calls."""
    for _ in range(100):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return 1e6 * statistics.median(times)


def many(call: Callable[[], Any], rounds: int) -> float:
    """Per call, until all are done."""
    for _ in range(100):
        call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(rounds):
        call()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - started) / rounds


def wrong_orders(path: str, half: bool) -> dict[str, int]:
    """How many results do not belong to their inputs when nobody waits, by way of binding."""
    interpreter, _, source, target = opened(path, half, "active")
    inputs = [torch.rand_like(source) * 2 - 1 for _ in range(4)]
    expected = []
    for one in inputs:
        source.copy_(one)
        torch.cuda.synchronize()
        interpreter.invoke()
        torch.cuda.synchronize()
        expected.append(target.clone())
    assert len({float(e.flatten()[0]) for e in expected}) > 1, "the inputs cannot be told apart"
    interpreter.close()

    stream = torch.cuda.Stream()
    busy = torch.rand(2048, 2048, device="cuda")
    torch.cuda.synchronize()

    def hold() -> None:
        for _ in range(4):
            torch.mm(busy, busy)

    found: dict[str, int] = {}
    interpreter, _, source, target = opened(path, half, "do_not_wait")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        results = []
        for i in range(ORDER_ROUNDS):
            hold()
            source.copy_(inputs[i % 4])
            interpreter.invoke()
            results.append(target.clone())
    torch.cuda.synchronize()
    found["bound"] = mistakes(results, expected)
    interpreter.close()
    with litegpu.load(path, "cuda", "float16" if half else "float32") as model, torch.cuda.stream(stream):
        results = []
        for i in range(ORDER_ROUNDS):
            hold()
            results.append(model(inputs[i % 4] * 1).clone())
        torch.cuda.synchronize()
    found["model(tensor)"] = mistakes(results, expected)
    return found


def mistakes(results: list[Any], expected: list[Any]) -> int:
    pairs = [(r.cpu().numpy(), expected[i % 4].cpu().numpy()) for i, r in enumerate(results)]
    return sum(not np.array_equal(a, b) for a, b in pairs)


if __name__ == "__main__":
    sys.exit(main())
