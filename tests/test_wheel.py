"""scripts/wheel holds the wheel against the sources, and against the oldest dependencies that pyproject.toml allows."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
import sys
import tomllib
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest

from litegpu.native import compiling

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


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """hatch_build.py's, as hatchling makes it, which is not installed where the package is tested."""
    interface = types.ModuleType("interface")
    interface.BuildHookInterface = object  # type: ignore[attr-defined]
    for name in ("hatchling", "hatchling.builders", "hatchling.builders.hooks", "hatchling.builders.hooks.plugin"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "hatchling.builders.hooks.plugin.interface", interface)
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.Libraries()
    made.target_name, made.warnings = "wheel", []
    made.app = types.SimpleNamespace(display_warning=made.warnings.append)
    return made


def data() -> dict[str, Any]:
    return {"force_include": {}, "pure_python": True}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="wheels of other systems are plain")
def test_the_wheel_holds_the_libraries(hook: Any) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    found = data()
    hook.initialize("standard", found)
    libraries = found["force_include"]
    assert list(libraries.values()) == [
        f"litegpu/external/{compiling.EXTERNAL.file_name()}", f"litegpu/native/{compiling.NATIVE.file_name()}"
    ]  # fmt: skip
    assert all(Path(library).exists() for library in libraries)
    assert not found["pure_python"] and found["tag"].startswith("py3-none-linux_")
    hook.finalize("standard", found, "")
    assert not any(Path(library).exists() for library in libraries) and not hook.warnings


def test_a_wheel_without_a_compiler(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "none")
    for version in ("standard", "editable"):
        found = data()
        hook.initialize(version, found)
        assert found == data()
        hook.finalize(version, found, "")
    assert [str(text) for text in hook.warnings] == (
        [
            "The wheel has no libraries in C: no C compiler: CC names 'none', which is not there. "
            "Install one (Debian: gcc, macOS: xcode-select --install)"
        ]
        if sys.platform.startswith("linux")
        else []
    )
