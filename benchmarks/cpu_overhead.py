"""What litegpu.Interpreter costs without delegates, beside the official interpreter, in one process.

Each round times a block of inferences (set_tensor, invoke, get_tensor) with the one and with the other, in alternating
order; several pairs of interpreters are used, since where their memory lies matters as well. Prints the ratio of the
median times per inference, with a 95% bootstrap interval over the rounds.

    python benchmarks/cpu_overhead.py [MODEL.tflite ...]
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter as Official

from litegpu.interpreter import Interpreter

FOLDER = Path(os.environ.get("LITEGPU_MODELS", Path(__file__).resolve().parents[2] / "shared" / "models"))
DEFAULT = ("mobilenet_v1_0.25_128_quant.tflite", "kws_ref_model.tflite", "kws_ref_model_float32.tflite")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, default=[FOLDER / name for name in DEFAULT])
    parser.add_argument("--pairs", type=int, default=4, help="pairs of interpreters")
    parser.add_argument("--rounds", type=int, default=150, help="rounds of each pair")
    parser.add_argument("--block-ms", type=float, default=3.0, help="about how long one timed block takes")
    arguments = parser.parse_args()
    print(f"{'model':44} {'official us':>11} {'litegpu us':>11} {'ratio':>7}  95% interval")
    for model in arguments.models:
        ours, theirs = measure(model, arguments.pairs, arguments.rounds, arguments.block_ms * 1e-3)
        low, high = interval(ours / theirs)
        ratio = float(np.median(ours / theirs))
        print(
            f"{model.name:44} {np.median(theirs) * 1e6:11.2f} {np.median(ours) * 1e6:11.2f} {ratio:7.4f}  "
            f"{low:.4f} to {high:.4f}",
            flush=True,
        )


def measure(model: Path, pairs: int, rounds: int, block: float) -> tuple[np.ndarray, np.ndarray]:
    """Seconds per inference of each round: (litegpu, official)."""
    ours, theirs = [], []
    for pair in range(pairs):
        makers = [Interpreter, Official] if pair % 2 else [Official, Interpreter]
        made: dict[Any, Any] = {make: make(str(model)) for make in makers}
        runs = {make: prepared(interpreter) for make, interpreter in made.items()}
        count = max(1, round(block / seconds(runs[Official], 20)))
        seconds(runs[Interpreter], count)
        for turn in range(rounds):
            order = (Interpreter, Official) if turn % 2 else (Official, Interpreter)
            took = {make: seconds(runs[make], count) for make in order}
            ours.append(took[Interpreter])
            theirs.append(took[Official])
    return np.array(ours), np.array(theirs)


def prepared(interpreter: Any) -> Any:
    """One inference as a function without arguments."""
    interpreter.allocate_tensors()
    given, result = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    rng = np.random.default_rng(0)
    value = (rng.standard_normal(given["shape"]) * 50).astype(given["dtype"])
    index, output = given["index"], result["index"]

    def run() -> None:
        interpreter.set_tensor(index, value)
        interpreter.invoke()
        interpreter.get_tensor(output)

    return run


def seconds(run: Any, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        run()
    return (time.perf_counter() - start) / count


def interval(ratios: np.ndarray, samples: int = 2000) -> tuple[float, float]:
    """95% bootstrap interval of the median."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(ratios, (samples, len(ratios))), axis=1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return float(low), float(high)


if __name__ == "__main__":
    main()
