"""`python -m litegpu` is the `litegpu` command; this is also its entry point."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """See litegpu.cli.main(). After Ctrl-C the process ends at once: what the threads that it leaves are at, such as
    compiling a kernel, is not waited for, as Python would."""
    try:
        from litegpu.cli import main as command

        command()
    except KeyboardInterrupt:  # before or after the command
        print("litegpu: interrupted", file=sys.stderr)
    except SystemExit as leaving:
        if leaving.code != _INTERRUPTED:
            raise
    _end()


def _end() -> NoReturn:
    from litegpu.background import settle_all

    atexit.unregister(settle_all)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
