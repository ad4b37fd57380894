"""The version stands in one place, and whatever shows it follows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import litegpu
from litegpu import cli, version
from litegpu.tools import doctor
from litegpu.zoo import build_model

ROOT = Path(__file__).resolve().parents[1]


def test_packages_read_it_from_the_source() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"] and "version" in project["project"]["dynamic"]
    source = (ROOT / project["tool"]["hatch"]["version"]["path"]).read_text()
    assert re.findall(r'^__version__ = "(.*)"$', source, re.MULTILINE) == [litegpu.__version__]


def test_no_other_file_has_it() -> None:
    files = [path for path in (ROOT / "src").rglob("*.py") if f'"{litegpu.__version__}"' in path.read_text()]
    assert files == [ROOT / "src" / "litegpu" / "version.py"]


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["litegpu", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert not exit_.value.code
    return capsys.readouterr().out


def test_what_shows_it_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands, doctor and pages. tests/gpu/delegate/test_cache_key.py has caches."""
    monkeypatch.setattr(version, "__version__", "9.8.7")
    assert printed(monkeypatch, capsys, "--version") == "litegpu 9.8.7\n"
    assert printed(monkeypatch, capsys, "version").splitlines()[0] == "litegpu 9.8.7"
    assert json.loads(printed(monkeypatch, capsys, "version", "--json"))["litegpu"] == "9.8.7"
    assert doctor.diagnose().versions["litegpu"] == "9.8.7"

    model, page = tmp_path / "m.tflite", tmp_path / "page.html"
    model.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=10))
    flags = [f"--model_file={model}", "--delegate=cpu", "--num_runs=1", f"--html={page}"]
    printed(monkeypatch, capsys, "inference-diff", *flags)
    assert "litegpu 9.8.7" in page.read_text()


def test_version_does_not_need_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "litegpu", "--version"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"litegpu {litegpu.__version__}\n", "")
