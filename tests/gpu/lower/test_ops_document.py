"""docs/ops.md says what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest
from agreement import official

from litegpu.gpu.lower.document import document
from litegpu.model import schema
from litegpu.model.ops import BUILTIN
from litegpu.model.writer import ModelBuilder

DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_operator_table_is_up_to_date() -> None:
    advice = "run `python -m litegpu.gpu.lower.document > docs/ops.md`"
    assert (DOCS / "ops.md").read_text() == document(), advice


#: Codes of the schema that stand for no operator, and one that no runtime ever had a kernel for.
NONE = {"CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES", "CONCAT_EMBEDDINGS"}


def test_the_tables_have_every_operator_of_the_schema_once() -> None:
    cells = [line.split(" | ") for line in document().splitlines() if line.startswith("| ")]
    rows = [line[0].removeprefix("| ") for line in cells]
    assert sorted(name for name in rows if name.isupper()) == sorted(set(schema.enum_values("BuiltinOperator")) - NONE)
    assert all(line[1].removesuffix(" |").strip() for line in cells)


WITHOUT_KERNEL = sorted(op.name for op in BUILTIN.values() if op.stays.startswith("the official runtime"))


@pytest.mark.parametrize("name", WITHOUT_KERNEL)
def test_the_official_runtime_has_no_kernel_where_it_is_said_so(name: str) -> None:
    b = ModelBuilder()
    x = b.input("x", (2,))
    b.output(b.op(name, [x, x], (2,), {}))
    with pytest.raises(ValueError, match="Didn't find op"):
        official(b.build())
