"""Which of a model's signatures a tool is about."""

from __future__ import annotations

import os

from litegpu.model.entry import signature_of, with_entry
from litegpu.model.reader import read_model


def entered(model: str | os.PathLike[str], signature: str | None) -> str | os.PathLike[str] | bytes:
    """The model whose first graph is that of the signature; None: as the file has it. Raises TensorError if there is no
    such signature."""
    if signature is None:
        return model
    whole = read_model(model)
    subgraph = signature_of(whole, signature).subgraph
    return with_entry(whole, subgraph) if subgraph else model


def others_line(model: str | os.PathLike[str] | bytes, signature: str | None = None, flag: str = "") -> str:
    """Which of several signatures this is, that there are others, and the `flag` that chooses; empty for a model that
    has no others."""
    whole = read_model(model)
    keys = [one.key for one in whole.signatures]
    if len({one.subgraph for one in whole.signatures}) < 2:
        return ""
    shown = signature if signature is not None else next((s.key for s in whole.signatures if s.subgraph == 0), None)
    others = ", ".join(key for key in keys if key != shown)
    what = (
        f"This is the signature {shown}" if shown is not None else "This is the first graph, which no signature names"
    )
    return f"{what}; the model also has {others}" + (f" ({flag} chooses)" if flag else "")
