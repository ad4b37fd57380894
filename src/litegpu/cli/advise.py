"""`litegpu advise`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from litegpu.cli.application import Json, app, print_json


@app.command()
def advise(
    model: Annotated[Path, typer.Argument(help="A .tflite file, or a model in a bundle.", show_default=False)],
    require_full_delegation: Annotated[
        bool,
        typer.Option(
            "--require-full-delegation",
            "--require_full_delegation",
            help="Exit with 1 unless the GPU delegate would take every op.",
        ),
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write a report as one HTML file, with the graph.")] = None,
    as_json: Json = False,
) -> None:
    """Say what type a model is, which delegates take it, and why not all of it. Runs nothing and needs no GPU.

    The GPU delegate is asked by the same predicate that decides when the model is run. The exit status is 0, or 1
    for an error.

    litegpu advise model.tflite

    litegpu advise model.tflite --json | jq '.delegates[0].left'

    litegpu advise model.tflite --html advice.html

    litegpu advise model.tflite --require-full-delegation > /dev/null || echo "parts of it need the CPU"
    """
    from litegpu.tools.advise import advise as ask
    from litegpu.tools.advise import print_advice, write_page
    from litegpu.tools.outputs import all_of, require_writable

    if html is not None:
        require_writable(html)
    advice = ask(model)
    all_of(
        lambda: print_json(advice.as_dict()) if as_json else print_advice(advice),
        lambda: write_page(advice, model, html) if html is not None else None,
    )
    if require_full_delegation and not advice.fully_delegated:
        raise typer.Exit(1)
