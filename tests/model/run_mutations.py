"""Child process of the fuzz tests: runs those of a list of models that litegpu lets pass.

Usage: run_mutations.py PICKLE START, where the pickle holds a list of models' bytes. From the START-th on it prints
"number start" before a model is opened, then "number verdict"; a crash leaves the last line without its verdict.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys

from mutation.child import SECONDS, limited, verdict


def main() -> None:
    limited()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with open(sys.argv[1], "rb") as file:
        cases: list[bytes] = pickle.load(file)
    for number in range(int(sys.argv[2]), len(cases)):
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        print(number, "start", flush=True)
        print(number, verdict(cases[number], 0), flush=True)


if __name__ == "__main__":
    main()
