"""The official interpreter with the delegate of litegpu.external_delegate_path()."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ai_edge_litert.interpreter import Interpreter, load_delegate

import litegpu
from litegpu.native import compiling


@pytest.fixture(scope="session")
def path() -> str:
    """The library, compiled by the first test that asks, or a skip."""
    try:
        return litegpu.external_delegate_path()
    except litegpu.DelegateError as error:
        try:
            compiling.compiler()
        except compiling.CompilerError:
            pytest.skip(str(error))
        raise


@pytest.fixture
def delegate(path: str) -> Callable[..., Any]:
    """delegate(option="text", ...); the reference backend by default."""

    def make(**options: object) -> Any:
        return load_delegate(path, {"backend": "reference", **options})

    return make


@pytest.fixture
def opened(delegate: Callable[..., Any]) -> Callable[..., Any]:
    """opened(bytes or path, option="text", ...) is an allocated official interpreter with the delegate."""

    def make(model: bytes | Path | str, **options: object) -> Any:
        source = {"model_content": model} if isinstance(model, bytes) else {"model_path": str(model)}
        interpreter = Interpreter(**source, experimental_delegates=[delegate(**options)])
        interpreter.allocate_tensors()
        return interpreter

    return make
