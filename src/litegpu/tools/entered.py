"""Which of a model's signatures a tool is about, and how large its inputs are."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from litegpu.errors import OptionError
from litegpu.model.entry import signature_of, with_entry
from litegpu.model.inputs import with_input_shapes
from litegpu.model.reader import read_model
from litegpu.model.types import Model


def entered(
    model: str | os.PathLike[str] | bytes, signature: str | None = None, shapes: Sequence[str] = ()
) -> str | os.PathLike[str] | bytes:
    """The model whose first graph is that of the signature; None: as the file has it. `shapes`: of inputs, each as
    `1,224,224,3`, in their order, or with `NAME=` in front. Raises TensorError if there is no such signature, or an
    input cannot have the shape, and OptionError for what is no shape or no input."""
    content: str | os.PathLike[str] | bytes = model
    if signature is not None:
        whole = read_model(model)
        subgraph = signature_of(whole, signature).subgraph
        content = with_entry(whole, subgraph) if subgraph else model
    if shapes:
        read = read_model(content)
        content = with_input_shapes(read, _by_place(read, shapes))
    return content


def _by_place(model: Model, shapes: Sequence[str]) -> Mapping[int, tuple[int, ...]]:
    """Which input has which shape."""
    names = [model.main.tensors[i].name for i in model.main.inputs]
    found: dict[int, tuple[int, ...]] = {}
    for text in shapes:
        name, equals, numbers = text.rpartition("=")
        if equals and name not in names:
            raise OptionError(f"There is no input {name!r}; the model has {', '.join(names)}")
        place = names.index(name) if equals else next((i for i in range(len(names)) if i not in found), None)
        if place is None:
            raise OptionError(f"{text} is one shape too many: the inputs are {', '.join(names)}")
        if place in found:
            raise OptionError(f"Input '{names[place]}' was given two shapes")
        try:
            found[place] = tuple(int(n) for n in numbers.split(","))
        except ValueError:
            raise OptionError(f"{numbers!r} is not a shape such as 1,224,224,3") from None
    return found


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
