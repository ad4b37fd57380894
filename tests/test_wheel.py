"""scripts/wheel holds the wheel against the sources, and against the oldest dependencies that pyproject.toml allows."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    loader = importlib.machinery.SourceFileLoader("wheel_script", str(ROOT / "scripts" / "wheel"))
    spec = importlib.util.spec_from_loader("wheel_script", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(module)
    return module


def test_the_oldest_of_each_dependency(script: Any) -> None:
    found = script.oldest_dependencies('[project]\ndependencies = ["some-thing>=2.1", "other>=0.15.4"]\n')
    assert found == ["some-thing==2.1", "other==0.15.4"]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert len(script.oldest_dependencies()) == len(declared) > 5


@pytest.mark.parametrize("dependency", ["numpy", "numpy>=1.26,<3", "numpy~=1.26"])
def test_a_dependency_without_a_plain_lower_bound(script: Any, dependency: str) -> None:
    with pytest.raises(SystemExit, match="lower bound"):
        script.oldest_dependencies(f'[project]\ndependencies = ["{dependency}"]\n')


def test_a_wheel_that_lacks_a_file(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "run", lambda *_: "src/litegpu/__init__.py\nsrc/litegpu/device.cu\n")
    with zipfile.ZipFile(tmp_path / "litegpu-1.whl", "w") as wheel:
        wheel.writestr("litegpu/__init__.py", "")
    with pytest.raises(SystemExit, match=r"lacks litegpu/device\.cu$"):
        script.require_whole(tmp_path / "litegpu-1.whl")
    with zipfile.ZipFile(tmp_path / "litegpu-1.whl", "a") as wheel:
        wheel.writestr("litegpu/device.cu", "")
    script.require_whole(tmp_path / "litegpu-1.whl")
