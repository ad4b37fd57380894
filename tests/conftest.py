"""Fixtures shared by all tests."""

from __future__ import annotations

import importlib.util
import locale
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if os.environ.get("LITEGPU_CUDA_EMULATOR"):
    from cuda_emulator import emulator

    emulator.install()


#: Cases of a test from which on it is a sweep, of which --part runs a sample; with the marker `sweep`, of any test.
MANY = 6


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        metavar="K/N",
        help=f"of each test with {MANY} cases and more, or marked as a sweep, run one N-th of the cases: the K-th",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(7200))
    part = config.getoption("--part")
    if part is None:
        return
    k, n = map(int, part.split("/"))
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    sweeps = [those for those in cases.values() if len(those) >= MANY or those[0].get_closest_marker("sweep")]
    gone = {item for those in sweeps for item in _others(those, k, n)}
    config.hook.pytest_deselected(items=[item for item in items if item in gone])
    items[:] = [item for item in items if item not in gone]


def _others(cases: list[pytest.Item], k: int, n: int) -> list[pytest.Item]:
    """All but the K-th of N equal parts, in an order that has nothing to do with the parameters'."""
    mixed = sorted(cases, key=lambda item: (zlib.crc32(item.nodeid.encode()), item.nodeid))
    return [item for place, item in enumerate(mixed) if place % n != k % n]


@pytest.fixture(autouse=True)
def _the_same_encoding() -> Iterator[None]:
    """A library may leave the thread, or the process, in another locale, and with it another encoding of files: the
    test fails in which that happens, not those that come later."""
    before = locale.getencoding()
    yield
    assert locale.getencoding() == before, "a library that this test uses has changed the locale"


def _folder(variable: str, name: str) -> Path:
    default = Path(__file__).resolve().parents[2] / "shared" / name
    path = Path(os.environ.get(variable, default))
    if not path.is_dir():
        pytest.skip(f"{path} is absent: set {variable} to a folder of {name} to run this test")
    return path


@pytest.fixture(scope="session")
def models_dir() -> Path:
    """The folder of real models, or a skip."""
    return _folder("LITEGPU_MODELS", "models")


@pytest.fixture(scope="session")
def images_dir() -> Path:
    """The folder of photographs, or a skip."""
    return _folder("LITEGPU_IMAGES", "images")


@pytest.fixture(scope="session")
def numpy_delegate() -> Any:
    """The class of the example delegate, tests/delegates/numpy_delegate.py."""
    path = Path(__file__).parent / "delegates" / "numpy_delegate.py"
    spec = importlib.util.spec_from_file_location("numpy_delegate", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.NumpyDelegate
