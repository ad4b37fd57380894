"""`litegpu analyze`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from litegpu.cli.application import InputShapes, Json, app, print_json


@app.command()
def analyze(
    model: Annotated[Path, typer.Argument(help="A .tflite file, or a model in a bundle.", show_default=False)],
    measure: Annotated[bool, typer.Option(help="Run it on the GPU, and give each op its measured time.")] = False,
    rates: Annotated[
        str | None,
        typer.Option(help="The device to estimate for, such as H200; else the one here, if its figures are known."),
    ] = None,
    precision: Annotated[str, typer.Option(help="float32, float16 or auto.")] = "float32",
    device: Annotated[
        str, typer.Option(help="The GPU to ask, and to measure on: auto, cuda, cuda:1, webgpu ...")
    ] = "auto",
    delegate: Annotated[
        list[str] | None,
        typer.Option(
            help="Ask this delegate too what it would take, by its name: openvino, coreml, one of a package. May be "
            "repeated.",
            show_default=False,
        ),
    ] = None,
    input_shape: InputShapes = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with the graph to walk through.")] = None,
    model_explorer: Annotated[Path | None, typer.Option(help="Write node data for Google's Model Explorer.")] = None,
    annotated: Annotated[
        Path | None, typer.Option(help="Write a copy of the model whose tensors' names tell place and time.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say of each op who runs it and why, what it computes and moves, how long that takes, and what costs too much.

    Without --measure nothing is run and no GPU is needed: times are estimates. The exit status is 0, or 1 for an error.

    litegpu analyze model.tflite

    litegpu analyze model.tflite --measure --html graph.html

    litegpu analyze model.tflite --rates L4 --json | jq '.findings[] | {pattern, gain}'

    litegpu analyze model.tflite --delegate openvino --delegate coreml

    litegpu analyze model.tflite --annotated told.tflite --model-explorer times.json
    """
    from litegpu.delegate_registry import load_delegate
    from litegpu.device_choice import backend_options
    from litegpu.gpu.delegate.delegate import GpuDelegate
    from litegpu.model.inline import inline_composites
    from litegpu.model.reader import read_model
    from litegpu.tools import analyze as tool
    from litegpu.tools.entered import entered, others_line
    from litegpu.tools.outputs import all_of, require_writable
    from litegpu.whole_file import write_whole

    for path in (html, model_explorer, annotated):
        if path is not None:
            require_writable(path, read=[model])
    gpu = GpuDelegate(precision=precision, **backend_options(device))
    others = [load_delegate(name) for name in delegate or ()]
    source = entered(model, shapes=input_shape or ())
    found = replace(tool.analyze(source, delegate=gpu, rates=rates, measure=measure, others=others), model=str(model))
    signature = others_line(model)

    def show() -> None:
        if as_json:
            print_json(found.as_dict() | {"signature": signature})
            return
        if signature:
            print(f"{signature}, which are not looked at here")
        tool.print_analysis(found)

    all_of(
        show,
        lambda: tool.write_graph_page(found, model, html) if html is not None else None,
        lambda: (
            write_whole(model_explorer, tool.node_data(found, inline_composites(read_model(model)).main))
            if model_explorer is not None
            else None
        ),
        lambda: write_whole(annotated, tool.annotated(found, model)) if annotated is not None else None,
    )
