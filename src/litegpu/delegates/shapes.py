"""The shapes that a model's tensors have for given inputs, as the official runtime and folding tell them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from litegpu.chatter import quiet
from litegpu.delegates import cpu, folding
from litegpu.delegates.cpu import OfficialOptions
from litegpu.errors import InvokeError
from litegpu.model.types import Model, Subgraph
from litegpu.model.writer import write_model

InputShapes = Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Inferred:
    """`subgraph`: with its true shapes; what follows from them alone is constant in it. `refused`: nodes whose shapes
    only a run decides, and why. `unresolved`: whether kernels of custom ops may be missing."""

    subgraph: Subgraph
    refused: dict[int, str]
    unresolved: bool


def infer(model: Model, official: Any, content: tuple[str | None, bytes | None], options: OfficialOptions,
          inputs: InputShapes) -> Inferred:  # fmt: skip
    """`official`: an interpreter of the model, resized and not allocated; `content`: the path or the bytes to open it
    once more from. Raises RuntimeError or ValueError as the official runtime does, or InvokeError."""
    try:
        with quiet():
            official.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        if not cpu.is_unresolved(str(error)):
            raise
        return Inferred(_with_custom_ops(model, content, options, inputs), {}, True)
    shapes, refused = cpu.infer_shapes(model, official, options)
    subgraph = cpu.reshaped(model.main, shapes)
    while folding.may_fold(subgraph):  # what follows from shapes may decide further ones
        unknown = frozenset(t for node in refused for t in subgraph.operators[node].outputs)
        folded = folding.fold(model, subgraph, unknown, options)
        if folded is None:
            break
        changed = replace(model, subgraphs=(folded, *model.subgraphs[1:]))
        interpreter = _opened(options.plain(), (None, bytes(write_model(changed))), inputs)
        with quiet():
            interpreter.allocate_tensors()
        shapes, refused = cpu.infer_shapes(changed, interpreter, options)
        subgraph = cpu.reshaped(folded, shapes)
    return Inferred(subgraph, refused, False)


def _with_custom_ops(
    model: Model, content: tuple[str | None, bytes | None], options: OfficialOptions, inputs: InputShapes
) -> Subgraph:
    """Where only the default delegate has the custom ops, or nothing has them: the shapes in the file hold then, unless
    an input was resized."""
    main = model.main
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that preserving all tensors takes memory: it is not kept
        interpreter = _opened(options.preserving(), content, inputs)
    try:
        with quiet():
            interpreter.allocate_tensors()
    except (RuntimeError, ValueError) as error:
        changed = [i for i, shape in inputs.items() if shape != main.tensors[i].shape]
        if changed or not cpu.is_unresolved(str(error)):
            names = ", ".join(f"'{main.tensors[i].name}'" for i in changed)
            what = f"After {names} was resized the" if changed else "The"
            raise InvokeError(f"{what} shapes of the model cannot be computed: {error}") from None
        return main
    return cpu.reshaped(main, cpu.shapes_of(interpreter, main))


def _opened(options: OfficialOptions, content: tuple[str | None, bytes | None], inputs: InputShapes) -> Any:
    interpreter: Any = options.create(*content)
    for index, shape in inputs.items():
        interpreter.resize_tensor_input(index, shape)
    return interpreter
