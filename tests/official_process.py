"""What becomes of models in the official runtime, in processes that it may take down."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def outcomes(models: Sequence[bytes], resolver: str = "AUTO") -> list[str]:
    """Of each model, run once on ones: "ran", the text of the error, or the name of the signal that ended it."""
    child = subprocess.run(
        [sys.executable, str(Path(__file__)), resolver],
        input=pickle.dumps(list(models)),
        capture_output=True,
        check=True,
    )
    found: list[str] = pickle.loads(child.stdout)
    return found


def _run(content: bytes, resolver: str) -> str:
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(
        model_content=content, num_threads=1, experimental_op_resolver_type=OpResolverType[resolver]
    )
    try:
        interpreter.allocate_tensors()
        for d in interpreter.get_input_details():
            interpreter.tensor(d["index"])()[...] = 1
        interpreter.invoke()
    except (RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "ran"


def _forked(content: bytes, resolver: str) -> str:
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        text = _run(content, resolver)
        os.write(writing, text.encode()[:4096])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode()
    status = os.waitpid(process, 0)[1]
    return signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else text


if __name__ == "__main__":
    import ai_edge_litert.interpreter  # noqa: F401  (once, not in every process)

    cases = pickle.load(sys.stdin.buffer)
    sys.stdout.buffer.write(pickle.dumps([_forked(content, sys.argv[1]) for content in cases]))
