"""`litegpu run` and `litegpu demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from litegpu.cli.application import (
    MOST_THREADS,
    Arithmetic,
    ArithmeticKind,
    Device,
    InputShapes,
    Json,
    Precision,
    app,
    print_json,
)
from litegpu.errors import OptionError


@app.command()
def run(
    model: Annotated[Path, typer.Argument(help="A .tflite file.", show_default=False)],
    image: Annotated[list[Path] | None, typer.Option(help="A picture to run it on; may be repeated.")] = None,
    labels: Annotated[Path | None, typer.Option(help="A file with one class name a line.")] = None,
    device: Device = "auto",
    precision: Annotated[Precision, typer.Option(help="float16 is faster, auto a safe mixture.")] = Precision.FLOAT32,
    arithmetic: Arithmetic = ArithmeticKind.AUTO,
    compare: Annotated[bool, typer.Option(help="Also run on the CPU and say how far apart the results are.")] = True,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The drawing, or a folder for several.")] = None,
    num_threads: Annotated[
        int | None, typer.Option("--num-threads", "--num_threads", help="For the CPU.", min=-1, max=MOST_THREADS)
    ] = None,
    mean: Annotated[float | None, typer.Option(help="Subtracted from pixels (0..255); 127.5 for float models.")] = None,
    std: Annotated[float | None, typer.Option(help="Then divided by; 127.5 for float models.")] = None,
    signature: Annotated[
        str | None, typer.Option(help="Of a model with several: the key of the one to run.", show_default="the first")
    ] = None,
    input_shape: InputShapes = None,
    html: Annotated[Path | None, typer.Option(help="Also write a page with all of it, the pictures too.")] = None,
    as_json: Json = False,
) -> None:
    """Run a model on pictures, or on made-up input, and show what ran where, how fast, and what came out.

    By its outputs the model is taken for a classifier, a segmentation, a detector or a PoseNet, and the result is drawn
    on the picture and saved as PNG.

    litegpu run model.tflite

    litegpu run deeplab.tflite --image cat.jpg --labels voc.txt -o cat.png

    litegpu run model.tflite --image a.jpg --image b.jpg --precision float16 -o folder --json
    """
    from litegpu.tools.images import Normalization
    from litegpu.tools.model_run import run_model
    from litegpu.tools.outputs import all_of, require_writable
    from litegpu.tools.run_page import write_page
    from litegpu.tools.run_text import print_report

    normalization = None
    if mean is not None or std is not None:
        normalization = Normalization(127.5 if mean is None else mean, 127.5 if std is None else std)
    if html is not None:
        require_writable(html, read=[model, *(image or ())])
    report = run_model(
        model,
        image or (),
        labels=labels,
        device=device,
        precision=precision.value,
        arithmetic=arithmetic.value,
        compare_with_cpu=compare,
        output=output,
        num_threads=None if num_threads == -1 else num_threads,
        normalization=normalization,
        signature=signature,
        shapes=input_shape or (),
    )

    def tell_problems() -> None:
        if report.problems:
            raise OptionError("; ".join(report.problems))

    all_of(
        lambda: print_json(report.as_dict()) if as_json else print_report(report),
        tell_problems,
        lambda: write_page(report, html) if html is not None else None,
    )


@app.command()
def demo(
    model: Annotated[Path | None, typer.Argument(help="A .tflite file; the zoo's networks by default.")] = None,
    image: Annotated[Path | None, typer.Option(help="A picture; one is drawn by default.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for everything written.")] = Path(
        "demo-output"
    ),
) -> None:
    """Run networks on the GPU and on the CPU: what went where, how fast, how far apart. Needs no files.

    The exit status is 1 if the results do not agree.
    """
    from litegpu.tools.demo import demonstrate

    raise typer.Exit(0 if demonstrate(model, image, output) else 1)
