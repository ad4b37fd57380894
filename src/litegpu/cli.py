"""The `litegpu` command: reads the command line and calls the tools."""

from __future__ import annotations

import json
import logging
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from litegpu.errors import LiteGpuError, OptionError

app = typer.Typer(
    help="Run .tflite models on any GPU, with the CPU for the rest, and see whether it was worth it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Start with [bold]litegpu doctor[/], then [bold]litegpu demo[/]. LITEGPU_DEBUG=1..4 shows what goes on.",
)
zoo_app = typer.Typer(help="Build example models offline.", no_args_is_help=True)
app.add_typer(zoo_app, name="zoo")


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    WEBGPU = "webgpu"
    CUDA = "cuda"


class Precision(StrEnum):
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    AUTO = "auto"


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def main() -> NoReturn:
    """Entry point: exit status 0 for success, 1 for an error (one line on stderr), 2 for a wrong command line."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, stream=sys.stderr)
    try:
        app()
    except LiteGpuError as error:
        if os.environ.get("LITEGPU_DEBUG"):
            raise
        print(f"litegpu: {error}", file=sys.stderr)
        sys.exit(1)
    sys.exit(0)


@app.command()
def run(
    model: Annotated[Path, typer.Argument(help="A .tflite file.", show_default=False)],
    image: Annotated[list[Path] | None, typer.Option(help="A picture to run it on; may be repeated.")] = None,
    labels: Annotated[Path | None, typer.Option(help="A file with one class name a line.")] = None,
    device: Annotated[Device, typer.Option(help="Where to run; auto is a GPU if one works.")] = Device.AUTO,
    precision: Annotated[Precision, typer.Option(help="float16 is faster, auto a safe mixture.")] = Precision.FLOAT32,
    compare: Annotated[bool, typer.Option(help="Also run on the CPU and say how far apart the results are.")] = True,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The drawing, or a folder for several.")] = None,
    num_threads: Annotated[int | None, typer.Option("--num-threads", "--num_threads", help="For the CPU.")] = None,
    mean: Annotated[float | None, typer.Option(help="Subtracted from pixels (0..255); 127.5 for float models.")] = None,
    std: Annotated[float | None, typer.Option(help="Then divided by; 127.5 for float models.")] = None,
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
    from litegpu.tools.run import print_report, run_model

    normalization = None
    if mean is not None or std is not None:
        normalization = Normalization(127.5 if mean is None else mean, 127.5 if std is None else std)
    report = run_model(
        model,
        image or (),
        labels=labels,
        device=device.value,
        precision=precision.value,
        compare_with_cpu=compare,
        output=output,
        num_threads=num_threads,
        normalization=normalization,
    )
    if as_json:
        _print_json(report.as_dict())
    else:
        print_report(report)


@app.command()
def models(
    bundle: Annotated[Path, typer.Argument(help="A .task bundle or a .litertlm container.", show_default=False)],
    as_json: Json = False,
) -> None:
    """List the models in a bundle. Each runs by the path that is printed.

    litegpu models hands.task

    litegpu run hands.task/hand_detector.tflite
    """
    from litegpu.model.bundle import list_models

    found = list_models(bundle)
    if not found:
        raise OptionError(f"{bundle} is no bundle of models")
    if as_json:
        _print_json({"models": [{"path": f"{bundle}/{m.name}", "bytes": m.size} for m in found]})
    else:
        width = max(len(f"{bundle}/{m.name}") for m in found)
        print("\n".join(f"{f'{bundle}/{m.name}':<{width}}  {m.size / 1e6:8.2f} MB" for m in found))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say which devices, drivers and features there are, which would be picked, and what to install if none works.

    The exit status is 0 if a GPU can be used, else 1.
    """
    from litegpu.tools.doctor import diagnose, render_text

    diagnosis = diagnose()
    if as_json:
        _print_json(diagnosis.as_dict())
    else:
        print(render_text(diagnosis))
    raise typer.Exit(0 if diagnosis.ok else 1)


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    short_help="Time a model with the flags of the official benchmark tool (--help lists them).",
)
def benchmark(context: typer.Context) -> None:
    from litegpu.tools.benchmark import main as benchmark_main

    raise typer.Exit(benchmark_main(context.args))


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


@app.command()
def version(as_json: Json = False) -> None:
    """Print the versions of litegpu and of what it stands on."""
    from importlib.metadata import version as installed

    from litegpu import __version__

    versions = {"litegpu": __version__} | {name: installed(name) for name in ("ai-edge-litert", "wgpu", "numpy")}
    if as_json:
        _print_json(versions)
    else:
        for name, number in versions.items():
            print(f"{name} {number}")


@zoo_app.command("list")
def zoo_list(as_json: Json = False) -> None:
    """List the models that can be built, and their options."""
    from litegpu.tools.console import print_table
    from litegpu.zoo import CATALOGUE

    if as_json:
        _print_json({name: {"task": entry.task, "options": entry.options} for name, entry in CATALOGUE.items()})
        return
    rows = [
        (name, entry.task, " ".join(f"--{option.replace('_', '-')} {value}" for option, value in entry.options.items()))
        for name, entry in CATALOGUE.items()
    ]
    print_table(("model", "task", "options and their defaults"), rows)


@zoo_app.command("build")
def zoo_build(
    name: Annotated[str, typer.Argument(help="One of those that [bold]litegpu zoo list[/] shows.", show_default=False)],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="NAME.tflite by default.")] = None,
    seed: Annotated[int | None, typer.Option(help="Other weights.")] = None,
    precision: Annotated[Precision | None, typer.Option(help="Of the weights in the file.")] = None,
    batch: Annotated[int | None, typer.Option(help="Pictures at once.")] = None,
    width: Annotated[float | None, typer.Option(help="Width multiplier of the backbone.")] = None,
    resolution: Annotated[int | None, typer.Option(help="Pixels a side.")] = None,
    classes: Annotated[int | None, typer.Option(help="Classes told apart.")] = None,
    max_detections: Annotated[int | None, typer.Option(help="Boxes returned.")] = None,
) -> None:
    """Build a model with seeded random weights, offline.

    litegpu zoo build mobilenet_v1 -o m.tflite

    litegpu zoo build deeplab_v3 --precision float16 --resolution 513
    """
    from litegpu.zoo import build_model

    content = build_model(
        name,
        seed=seed,
        precision=precision.value if precision else None,
        batch=batch,
        width=width,
        resolution=resolution,
        classes=classes,
        max_detections=max_detections,
    )
    path = output or Path(f"{name}.tflite")
    try:
        path.write_bytes(content)
    except OSError as error:
        raise OptionError(f"Cannot write {path}: {error.strerror}") from None
    print(f"{path}: {len(content) / 1e6:.1f} MB")


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, default=str))
