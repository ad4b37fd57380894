"""docs/ops.md says what the code says."""

from __future__ import annotations

from pathlib import Path

from litegpu.gpu.lower.document import document

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_operator_table_is_up_to_date() -> None:
    advice = "run `python -m litegpu.gpu.lower.document > docs/ops.md`"
    assert (DOCS / "ops.md").read_text() == document(), advice
