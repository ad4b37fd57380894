"""`litegpu zoo list` and `litegpu zoo build`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from litegpu.cli.application import Json, app, print_json


class _Stored(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"


zoo_app = typer.Typer(help="Build example models offline.", no_args_is_help=True)
app.add_typer(zoo_app, name="zoo")


@zoo_app.command("list")
def zoo_list(as_json: Json = False) -> None:
    """List the models that can be built, and their options."""
    from litegpu.tools.console import print_table
    from litegpu.zoo import CATALOGUE

    if as_json:
        print_json({name: {"task": entry.task, "options": entry.options} for name, entry in CATALOGUE.items()})
        return
    rows = [
        (name, entry.task, " ".join(_option(option, value) for option, value in entry.options.items()))
        for name, entry in CATALOGUE.items()
    ]
    print_table(("model", "task", "options and their defaults"), rows)


@zoo_app.command("build")
def zoo_build(
    name: Annotated[str, typer.Argument(help="One of those that [bold]litegpu zoo list[/] shows.", show_default=False)],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="NAME.tflite by default.")] = None,
    seed: Annotated[int | None, typer.Option(help="Other weights.")] = None,
    precision: Annotated[_Stored | None, typer.Option(help="Of the weights in the file.")] = None,
    quantized: Annotated[bool, typer.Option("--quantized", help="int8 weights, activations, inputs.")] = False,
    batch: Annotated[int | None, typer.Option(help="Pictures at once.")] = None,
    width: Annotated[float | None, typer.Option(help="Width multiplier of the backbone.")] = None,
    resolution: Annotated[int | None, typer.Option(help="Pixels a side.")] = None,
    classes: Annotated[int | None, typer.Option(help="Classes told apart.")] = None,
    max_detections: Annotated[int | None, typer.Option(help="Boxes returned.")] = None,
    depth: Annotated[int | None, typer.Option(help="Blocks of a transformer.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens of a text.")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Tokens that there are.")] = None,
) -> None:
    """Build a model with seeded random weights, offline.

    litegpu zoo build mobilenet_v1 -o m.tflite

    litegpu zoo build deeplab_v3 --precision float16 --resolution 513

    litegpu zoo build resnet50 --quantized
    """
    from litegpu.tools.outputs import require_writable
    from litegpu.whole_file import write_whole
    from litegpu.zoo import build_model

    path = output or Path(f"{name}.tflite")
    require_writable(path)
    content = build_model(
        name,
        seed=seed,
        precision=precision.value if precision else None,
        quantized=quantized or None,
        batch=batch,
        width=width,
        resolution=resolution,
        classes=classes,
        max_detections=max_detections,
        depth=depth,
        length=length,
        vocabulary=vocabulary,
    )
    write_whole(path, content)
    print(f"{path}: {len(content) / 1e6:.1f} MB")


def _option(name: str, default: object) -> str:
    flag = f"--{name.replace('_', '-')}"
    return f"({flag})" if default is False else f"{flag} {default}"
