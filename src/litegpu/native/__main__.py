"""`python -m litegpu.native`: compiles the library, if it is not there, and says where it is."""

from __future__ import annotations

import sys

from litegpu import native

if __name__ == "__main__":
    found = native.build()
    if found is None:
        sys.exit(f"no native library: {native.problem()}")
    print(found.path)
