from __future__ import annotations

import pytest

from litegpu import native
from litegpu.native import compiling


@pytest.fixture(scope="session")
def library() -> native.NativeLibrary:
    """The library, compiled by the first test that asks, or a skip."""
    found = native.build()
    if found is None:
        try:
            compiling.compiler()
        except compiling.CompilerError as error:
            pytest.skip(str(error))
        assert not native.loading.usable(), native.problem()
        pytest.skip(native.problem())
    return found
