"""`python -m litegpu` is the `litegpu` command; this is also its entry point."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

_INTERRUPTED, _TERMINATED = 130, 143


def main() -> NoReturn:
    """See litegpu.cli.main(). After Ctrl-C, and SIGTERM where it is heeded, the process ends at once: what the threads
    that it leaves are at, such as compiling a kernel, is not waited for, as Python would."""
    try:
        from litegpu.cli import main as command

        command()
    except KeyboardInterrupt:  # before or after the command
        print("litegpu: interrupted", file=sys.stderr)
    except SystemExit as leaving:
        if leaving.code not in (_INTERRUPTED, _TERMINATED):
            raise
        _end(leaving.code)
    _end(_INTERRUPTED)


def _end(status: int) -> NoReturn:
    from litegpu.background import settle_all

    atexit.unregister(settle_all)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
