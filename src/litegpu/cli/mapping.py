"""`litegpu map`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from litegpu.cli.application import (
    INTERRUPTED,
    MOST_ITEMS,
    MOST_THREADS,
    MOST_WORKERS,
    TERMINATED,
    Arithmetic,
    ArithmeticKind,
    Device,
    Json,
    OnError,
    Patience,
    Precision,
    Ray,
    Terminated,
    app,
    heeding_sigterm,
    print_json,
)


@app.command("map")
def map_(
    model: Annotated[Path, typer.Argument(help="A .tflite file.", show_default=False)],
    inputs: Annotated[
        list[Path],
        typer.Argument(
            help="Folders of images or .npy files, images, .npy files (an item, or rows of items), Parquet files, .txt "
            "files with the name of a file in each line.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="NAME.parquet, or a folder of Parquet files.", show_default=False)
    ],
    device: Device = "auto",
    precision: Annotated[Precision, typer.Option(help="float16 is faster, auto a safe mixture.")] = Precision.FLOAT32,
    arithmetic: Arithmetic = ArithmeticKind.AUTO,
    batch: Annotated[
        int | None, typer.Option(help="Inputs computed at a time; by default up to 64.", max=MOST_ITEMS)
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="By default one per GPU with --ray or --device cuda:all, else one.",
            max=MOST_WORKERS,
            show_default=False,
        ),
    ] = None,
    ray: Ray = None,
    patience: Patience = 60.0,
    on_error: Annotated[
        OnError, typer.Option("--on-error", "--on_error", help="What an unreadable input does: end it all, or its row.")
    ] = OnError.FAIL,
    resume: Annotated[bool, typer.Option("--resume", help="Compute what an interrupted run has not.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove an earlier output.")] = False,
    column: Annotated[
        list[str] | None,
        typer.Option(help="Column of Parquet, or INPUT=COLUMN for each of several inputs; may be repeated."),
    ] = None,
    dequantize: Annotated[bool, typer.Option("--dequantize", help="Store real numbers, not quantized ones.")] = False,
    mean: Annotated[float | None, typer.Option(help="Subtracted from pixels (0..255); 127.5 for float models.")] = None,
    std: Annotated[float | None, typer.Option(help="Then divided by; 127.5 for float models.")] = None,
    num_threads: Annotated[
        int | None, typer.Option("--num-threads", "--num_threads", help="For the CPU.", min=-1, max=MOST_THREADS)
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Also write the report as a page.")] = None,
    as_json: Json = False,
) -> None:
    """Run a model on many inputs: one row of Parquet for each, in order, whatever is interrupted or dies.

    The rows have the input's number and name, its error if it has one, and the outputs. The exit status is 1 if an
    input cannot be used, unless --on-error=skip says that its row records that.

    litegpu map classifier.tflite photos/ --out scores.parquet

    litegpu map detector.tflite frames/ extra.jpg --out found --on-error=skip --precision float16

    litegpu map model.tflite features.npy --out result.parquet --resume

    litegpu map model.tflite shard-*.parquet --column image --out result --ray --workers 4
    """
    from litegpu.tools.images import Normalization
    from litegpu.tools.mapping import map_model, print_report
    from litegpu.tools.mapping.map_page import write_page
    from litegpu.tools.outputs import all_of, require_writable

    normalization = None
    if mean is not None or std is not None:
        normalization = Normalization(127.5 if mean is None else mean, 127.5 if std is None else std)
    if html is not None:
        require_writable(html, read=[model, *inputs])
    columns = dict(_pair(text) for text in column or ())
    try:
        with heeding_sigterm():
            report = map_model(
                model,
                inputs,
                out,
                device=device,
                precision=precision.value,
                arithmetic=arithmetic.value,
                batch=batch,
                workers=workers,
                ray=ray,
                patience=patience,
                on_error=on_error.value,
                resume=resume,
                overwrite=overwrite,
                normalization=normalization,
                dequantize=dequantize,
                columns=columns,
                num_threads=None if num_threads == -1 else num_threads,
            )
    except KeyboardInterrupt as interrupt:
        print("litegpu: interrupted. The finished rows are kept: --resume goes on with the others.", file=sys.stderr)
        raise typer.Exit(TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED) from None
    all_of(
        lambda: print_json(report.as_dict()) if as_json else print_report(report),
        lambda: write_page(report, html) if html is not None else None,
    )


def _pair(text: str) -> tuple[str, str]:
    """INPUT=COLUMN, or COLUMN of the only input."""
    name, equals, column = text.partition("=")
    return (name, column) if equals else ("", name)
