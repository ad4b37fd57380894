"""Tables on terminals of every width: no number is cut."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from litegpu.tools import console
from litegpu.tools.inference_diff.difference_text import OUTPUT_COLUMNS

ROW = ("Identity/of/a/long/name", "float32 [1, 1001]", "1.36e-07", "1.19e-07", "-", "0.999999999", "138.8", "100.00%",
       "25.0%")  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("width", [200, 120, 100, 80, 78, 60, 20])
def test_no_number_is_cut(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal()
    monkeypatch.setattr(console, "terminal_of", lambda _: terminal)
    monkeypatch.setattr(console, "Console", lambda file: Console(file=file, width=width, force_terminal=False))
    console.print_table(OUTPUT_COLUMNS, [ROW])
    text = terminal.getvalue() + capsys.readouterr().out  # plain where no table fits
    for number in ROW[2:]:
        assert number in text, (number, text)
    assert "\u2026" not in text
    assert ("\u2502" in text) == (width >= 100)  # borders where there is room
    if width >= 80:
        assert all(len(line) <= width for line in text.splitlines())
