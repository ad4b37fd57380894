"""The program in docs/guide/official_interpreter.md runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from litegpu.zoo import build_model

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "official_interpreter.md"


def test_the_program(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mobilenet_v1.tflite").write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=7))
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(program, names)
    assert "interpreter" in names
