"""`python -m litegpu` is the `litegpu` command."""

from __future__ import annotations

from litegpu.cli import main

if __name__ == "__main__":
    main()
