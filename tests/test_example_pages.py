"""What docs/examples shows is what the tools say: scripts/examples.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 400_000


@pytest.fixture(scope="module")
def examples() -> Any:
    spec = importlib.util.spec_from_file_location("examples", ROOT / "scripts" / "examples.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(sys.platform != "linux", reason="the platform's name is in them")
def test_a_small_model_of_the_zoo(examples: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status = examples.main(["--check", "zoo"])
    assert status == 0, f"write them again with scripts/examples.py:\n{capsys.readouterr().out}"


@pytest.mark.skipif(sys.platform != "linux", reason="the platform's name is in them")
def test_a_real_model(examples: Any, models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITEGPU_MODELS", str(models_dir))
    assert examples.main(["--check", "kws_ref_model", "malformed"]) == 0


def test_a_page_that_is_out_of_date_is_told(
    examples: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(examples, "EXAMPLES", tmp_path)
    assert examples.main(["--check", "zoo"]) == 1
    assert "+" in capsys.readouterr().out and not list(tmp_path.iterdir())
    assert examples.main(["zoo"]) == 0 and examples.main(["--check", "zoo"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"zoo.advise.txt", "zoo.analyze.txt"}


def test_every_page_is_linked_and_they_are_small() -> None:
    pages = [path for path in examples_folder().iterdir() if path.name != "README.md"]
    index = (examples_folder() / "README.md").read_text()
    assert len(pages) > 40 and all(f"({path.name})" in index for path in pages)
    assert sum(path.stat().st_size for path in examples_folder().iterdir()) < MOST_BYTES


def examples_folder() -> Path:
    return ROOT / "docs" / "examples"
