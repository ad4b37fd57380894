"""Child process of the fuzz tests: runs those of a list of models that the verifier lets pass.

Usage: run_mutations.py PICKLE START, where the pickle holds a list of models' bytes. From the START-th on it prints
"number start" before the official runtime sees the model, then "number verdict"; a crash leaves the last line without
its verdict.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
import traceback

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from litegpu.errors import ModelError
from litegpu.model.reader import read_model

MEMORY = 6 << 30  # bytes of address space: far more than these models need
SECONDS = 10  # a case that takes longer counts as a hang: SIGALRM ends the process


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with open(sys.argv[1], "rb") as file:
        cases: list[bytes] = pickle.load(file)
    for number in range(int(sys.argv[2]), len(cases)):
        signal.alarm(SECONDS)
        print(number, "start", flush=True)
        print(number, verdict(cases[number]), flush=True)


def verdict(content: bytes) -> str:
    """What became of a model: refused by the verifier, an error of the official runtime, or run."""
    try:
        read_model(content)
    except ModelError as error:
        return "refused " + " ".join(str(error).split())
    except Exception:
        return "untyped " + " ".join(traceback.format_exc().split())
    try:
        interpreter = Interpreter(model_content=content, num_threads=1)
        interpreter.allocate_tensors()
        for details in interpreter.get_input_details():
            if details["dtype"] not in (np.object_, np.bytes_, np.str_):
                value = np.random.default_rng(0).uniform(0, 3, details["shape"]).astype(details["dtype"])
                interpreter.set_tensor(details["index"], value)
        interpreter.invoke()
        for details in interpreter.get_output_details():
            interpreter.get_tensor(details["index"])
    except Exception as error:
        return f"error {type(error).__name__} " + " ".join(str(error).split())
    return "ran"


if __name__ == "__main__":
    main()
