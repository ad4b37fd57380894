"""`litegpu advise`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from litegpu.cli.application import InputShapes, Json, app, print_json

if TYPE_CHECKING:
    from litegpu.tools.advise import MeasuredWays


@app.command()
def advise(
    model: Annotated[Path, typer.Argument(help="A .tflite file, or a model in a bundle.", show_default=False)],
    require_full_delegation: Annotated[
        bool,
        typer.Option(
            "--require-full-delegation",
            "--require_full_delegation",
            help="Exit with 1 unless one of the delegates would take every op.",
        ),
    ] = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Run the model in every way that this machine has, and recommend by that (some seconds for each).",
        ),
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="With --measure: the largest relative L2 distance from the CPU to recommend.", show_default="0.01"
        ),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="With --measure: rows of a batch for the throughput.", show_default="64")
    ] = None,
    delegate: Annotated[
        list[str] | None,
        typer.Option(
            help="Ask this delegate instead, by its name: gpu, openvino ... May be repeated.", show_default="gpu"
        ),
    ] = None,
    input_shape: InputShapes = None,
    html: Annotated[Path | None, typer.Option(help="Write a report as one HTML file, with the graph.")] = None,
    as_json: Json = False,
) -> None:
    """Say what type a model is, which delegates take it, and why not all of it.

    It needs no GPU, and runs nothing unless it is told to measure.

    The GPU delegate is asked by the same predicate that decides when the model is run. The exit status is 0, or 1
    for an error.

    litegpu advise model.tflite

    litegpu advise model.tflite --json | jq '.delegates[0].left'

    litegpu advise model.tflite --measure

    litegpu advise model.tflite --delegate gpu --delegate openvino

    litegpu advise model.tflite --html advice.html

    litegpu advise model.tflite --require-full-delegation > /dev/null || echo "parts of it need the CPU"
    """
    from litegpu.delegate_registry import load_delegate
    from litegpu.errors import OptionError
    from litegpu.tools.advise import advise as ask
    from litegpu.tools.advise import print_advice, write_page
    from litegpu.tools.entered import entered
    from litegpu.tools.outputs import all_of, require_writable

    if html is not None:
        require_writable(html, read=[model])
    if not measure and (tolerance is not None or batch is not None):
        raise OptionError("--tolerance and --batch say how to measure: give --measure as well")
    shapes = input_shape or ()
    advice = ask(
        entered(model, shapes=shapes),
        delegates=[load_delegate(name) for name in delegate] if delegate else None,
        measured=measured(model, tolerance, batch, shapes) if measure else None,
    )
    advice = replace(advice, model=str(model))
    all_of(
        lambda: print_json(advice.as_dict()) if as_json else print_advice(advice),
        lambda: write_page(advice, model, html) if html is not None else None,
    )
    if require_full_delegation and not advice.fully_delegated:
        raise typer.Exit(1)


def measured(model: Path, tolerance: float | None, batch: int | None, shapes: Sequence[str]) -> MeasuredWays:
    """What there is to measure, with a bar."""
    from litegpu.tools.advise.measuring import TOLERANCE, measure
    from litegpu.tools.advise.trial import BATCH
    from litegpu.tools.console import progress

    with progress() as bar:
        task = bar.add_task("measuring", total=None)
        return measure(
            model,
            tolerance=TOLERANCE if tolerance is None else tolerance,
            batch=BATCH if batch is None else batch,
            shapes=shapes,
            progress=lambda one, number, of: bar.update(task, description=str(one), completed=number, total=of),
        )
