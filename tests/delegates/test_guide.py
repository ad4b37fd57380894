"""The guide on writing a delegate: its code runs, and what it says of the protocol is all there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from litegpu.delegates import protocol
from litegpu.delegates.protocol import Delegate

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "delegates.md"


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names: dict[str, object] = {"__name__": "guide"}
    exec(compile(code, "delegates.md", "exec"), names)
    out = capsys.readouterr().out
    assert "3/4 ops on NumPy in 1 partition" in out and "[[-0." in out
    assert isinstance(names["NumpyDelegate"](), Delegate)  # type: ignore[operator]


def test_the_whole_protocol_is_described() -> None:
    text = GUIDE.read_text()
    abilities = [kind for kind in vars(protocol).values() if isinstance(kind, protocol.Ability)]
    names = {name for kind in abilities if kind is not protocol.OfficialDelegate for name in protocol.members(kind)}
    assert {"check", "invoke", "finish", "input_memory", "reset_variables", "keeps_variables", "rehearse"} <= names
    for name in names:
        assert name in text, name
