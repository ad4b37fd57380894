"""What invoke() costs by the official interpreter with litegpu's external delegate, beside litegpu.Interpreter.

Each round times a block of inferences with the one and with the other, in alternating order; inputs are set and outputs
read between the blocks. Prints the ratio of the times (official / litegpu) with a 95% bootstrap interval of the median
over the rounds. The first line is a delegate that does nothing: what is left is the way to it.

    python benchmarks/official_host.py [MODEL.tflite ...] [--backend cuda]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from ai_edge_litert import interpreter as official
from cpu_overhead import DEFAULT, FOLDER, interval, seconds

import litegpu
from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.model.builder import ModelBuilder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, default=[FOLDER / name for name in DEFAULT])
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--block-ms", type=float, default=20.0, help="about how long one timed block takes")
    arguments = parser.parse_args()
    print(f"{'model':44} {'official us':>11} {'litegpu us':>11} {'ratio':>7}  95% interval")
    with nothing_is_done():
        report("(nothing)", trivial(), "reference", arguments.rounds, arguments.block_ms * 1e-3)
    for model in arguments.models:
        report(model.name, model.read_bytes(), arguments.backend, arguments.rounds, arguments.block_ms * 1e-3)


def report(name: str, content: bytes, backend: str, rounds: int, block: float) -> None:
    """One line of the table."""
    delegate = official.load_delegate(litegpu.external_delegate_path(), {"backend": backend})
    both: list[Any] = [
        official.Interpreter(model_content=content, experimental_delegates=[delegate]),
        litegpu.Interpreter(model_content=content, experimental_delegates=[litegpu.GpuDelegate(backend=backend)]),
    ]
    for interpreter in both:
        interpreter.allocate_tensors()
        refresh(interpreter, 0)
        seconds(interpreter.invoke, 5)
    count = max(1, round(block / seconds(both[1].invoke, 5)))
    took: list[list[float]] = [[], []]
    for turn in range(rounds):
        for place in (0, 1) if turn % 2 else (1, 0):
            refresh(both[place], turn)
            took[place].append(seconds(both[place].invoke, count))
    theirs, ours = map(np.array, took)
    low, high = interval(theirs / ours)
    print(
        f"{name:44} {np.median(theirs) * 1e6:11.2f} {np.median(ours) * 1e6:11.2f} "
        f"{np.median(theirs / ours):7.4f}  {low:.4f} to {high:.4f}",
        flush=True,
    )


def refresh(interpreter: Any, seed: int) -> None:
    """Other inputs, and the outputs read."""
    generator = np.random.default_rng(seed)
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], (generator.random(detail["shape"]) * 50).astype(detail["dtype"]))
    for detail in interpreter.get_output_details():
        interpreter.get_tensor(detail["index"])


def trivial() -> bytes:
    builder = ModelBuilder()
    builder.output(builder.op("NEG", [builder.input("x", (1, 4))], (1, 4)))
    return builder.build()


class Nothing:
    """A kernel whose results are there already."""

    uses_gpu = False

    def __init__(self) -> None:
        self._results = [np.zeros((1, 4), np.float32)]

    def invoke(self, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return self._results

    def close(self) -> None: ...


@contextmanager
def nothing_is_done() -> Iterator[None]:
    """Within it the GPU delegate prepares nothing."""
    with mock.patch.object(GpuDelegate, "prepare", lambda *_: Nothing()):
        yield


if __name__ == "__main__":
    main()
