"""The flags that the `litegpu evaluate` commands share, and what they come to."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from litegpu.cli.application import (
    INTERRUPTED,
    LARGEST,
    MOST_ITEMS,
    MOST_THREADS,
    MOST_WORKERS,
    ArithmeticKind,
    OnError,
    Patience,
    Precision,
    Ray,
    print_json,
)
from litegpu.cli.flag_groups import FlagGroup
from litegpu.errors import OptionError
from litegpu.gpu.backends import registry

if TYPE_CHECKING:
    from litegpu.tools.evaluate.collecting import Running
    from litegpu.tools.evaluate.data_set import EvaluationReport
    from litegpu.tools.evaluate.presentation import Presentation


class Resize(StrEnum):
    BILINEAR = "bilinear"
    HALF_PIXEL = "half-pixel"
    ANTIALIAS = "antialias"
    NONE = "none"


class Upsampling(StrEnum):
    BILINEAR = "bilinear"
    NEAREST = "nearest"


_DELEGATES, _RUN, _PIXELS = "Where it runs", "How it runs", "Images"

ModelFile = Annotated[Path, typer.Option("--model-file", help="The .tflite file.", show_default=False)]
Images = Annotated[Path, typer.Option("--ground-truth-images-path", help="The folder of images.", show_default=False)]
NumImages = Annotated[int, typer.Option(help="The first so many images; 0: all.", min=0, max=LARGEST)]
OutputFile = Annotated[
    Path | None, typer.Option("--output-file-path", help="Write the official EvaluationStageMetrics message here.")
]
Delegate = Annotated[
    str,
    typer.Option(
        help=f"cpu, gpu (the best), {registry.listed()}; gpu/float32 sets the precision, cuda:1 the device. Or the "
        "name of another delegate: openvino, openvino:GPU/float32.",
        rich_help_panel=_DELEGATES,
    ),
]
Compare = Annotated[
    str | None,
    typer.Option(help="Also evaluate on this delegate: cpu, gpu/float32 ...", rich_help_panel=_DELEGATES),
]
GpuPrecision = Annotated[Precision, typer.Option(help="Of the GPU.", rich_help_panel=_DELEGATES)]
UseGpu = Annotated[str | None, typer.Option(metavar="BOOL", help="true: --delegate=gpu.", rich_help_panel=_DELEGATES)]
LossAllowed = Annotated[
    str | None,
    typer.Option(
        "--gpu-precision-loss-allowed",
        metavar="BOOL",
        help="false: --precision=float32.",
        rich_help_panel=_DELEGATES,
    ),
]
GpuArithmetic = Annotated[
    ArithmeticKind,
    typer.Option(help="Of 8-bit tensors: integer is equal to the CPU, auto the faster.", rich_help_panel=_DELEGATES),
]
GpuBackend = Annotated[
    str | None, typer.Option(help=f"{registry.listed()}, for --use_gpu.", rich_help_panel=_DELEGATES)
]
Partitions = Annotated[
    int,
    typer.Option(
        "--max-delegated-partitions", help="0 means 1, as officially.", min=0, max=LARGEST, rich_help_panel=_DELEGATES
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        "--num-interpreter-threads",
        help="Threads of the CPU; -1: one.",
        min=-1,
        max=MOST_THREADS,
        rich_help_panel=_DELEGATES,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="The folder for reports and records; an interrupted evaluation goes on from the records there.",
        rich_help_panel=_RUN,
    ),
]
Restart = Annotated[bool, typer.Option("--restart", help="Forget the records.", rich_help_panel=_RUN)]
Batch = Annotated[
    int, typer.Option(help="Images at once; 0: 32 on a GPU, 1 on the CPU.", max=MOST_ITEMS, rich_help_panel=_RUN)
]
Workers = Annotated[
    int,
    typer.Option(help="Processes that decode; 0: none, -1: one for each core.", max=MOST_WORKERS, rich_help_panel=_RUN),
]
Actors = Annotated[
    int | None,
    typer.Option(
        help="Workers on Ray, by default one for each GPU; --workers are the processes of each that decode.",
        max=MOST_WORKERS,
        rich_help_panel=_RUN,
        show_default=False,
    ),
]
OnErrorOption = Annotated[
    OnError, typer.Option("--on-error", help="What an image that cannot be read does.", rich_help_panel=_RUN)
]
Crop = Annotated[
    float,
    typer.Option(help="Side of the central square, over the shorter side; 0: no crop.", rich_help_panel=_PIXELS),
]
ResizeOption = Annotated[
    Resize, typer.Option(help="bilinear is the official tools'; antialias averages.", rich_help_panel=_PIXELS)
]
Mean = Annotated[
    str | None,
    typer.Option(help="Subtracted from pixels (0..255): one number, or R,G,B.", rich_help_panel=_PIXELS),
]
Std = Annotated[str | None, typer.Option(help="Then divided by: one number, or R,G,B.", rich_help_panel=_PIXELS)]


def running(
    delegate: Delegate = "cpu",
    compare: Compare = None,
    precision: GpuPrecision = Precision.FLOAT16,
    use_gpu: UseGpu = None,
    gpu_precision_loss_allowed: LossAllowed = None,
    gpu_arithmetic: GpuArithmetic = ArithmeticKind.AUTO,
    gpu_backend: GpuBackend = None,
    max_delegated_partitions: Partitions = 0,
    num_interpreter_threads: Threads = 1,
    output: Output = None,
    restart: Restart = False,
    batch: Batch = 0,
    workers: Workers = -1,
    on_error: OnErrorOption = OnError.FAIL,
    ray: Ray = None,
    actors: Actors = None,
    patience: Patience = 60.0,
) -> Running:
    """How an evaluation runs, by the flags."""
    from litegpu.tools.evaluate.choice import DelegateChoice, parse_choice
    from litegpu.tools.evaluate.collecting import Running

    if use_gpu is not None and boolean("use_gpu", use_gpu) and delegate == "cpu":
        delegate = gpu_backend or "gpu"
    elif gpu_backend and delegate == "gpu":
        delegate = gpu_backend
    elif gpu_backend:
        raise OptionError("--gpu_backend is for --use_gpu=true or --delegate=gpu")
    lossless = gpu_precision_loss_allowed is not None and not boolean(
        "gpu_precision_loss_allowed", gpu_precision_loss_allowed
    )
    kind = "float32" if lossless else precision.value
    threads = 1 if num_interpreter_threads == -1 else num_interpreter_threads
    like = DelegateChoice("cpu", kind, threads, max(max_delegated_partitions, 1), gpu_arithmetic.value)
    return Running(
        parse_choice(delegate, like),
        parse_choice(compare, like) if compare is not None else None,
        batch,
        workers,
        str(output) if output is not None else None,
        restart,
        on_error is OnError.SKIP,
        ray,
        actors,
        patience,
    )


def pixels(resize: ResizeOption = Resize.BILINEAR, mean: Mean = None, std: Std = None) -> dict[str, Any]:
    """Options of `Preprocessing`, but for the crop."""
    options: dict[str, Any] = {"resize": resize.value}
    by_default = "127.5"
    if mean is not None or std is not None:
        options["mean"] = _numbers("mean", by_default if mean is None else mean)
        options["deviation"] = _numbers("std", by_default if std is None else std)
    return options


#: As the defaults of a command's parameters: the flags of running() and of pixels().
RUN_FLAGS: Any = FlagGroup(running)
PIXEL_FLAGS: Any = FlagGroup(pixels)


def _numbers(flag: str, text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(map(math.isfinite, found)):
        raise OptionError(f"--{flag} is {text!r}; it must be one number, or three with commas between")
    return found


def boolean(flag: str, text: str) -> bool:
    """As the official tools read them."""
    if text not in ("true", "false", "1", "0"):
        raise OptionError(f"--{flag} is {text!r}; it must be true, false, 1 or 0")
    return text in ("true", "1")


def run_evaluation(
    evaluate: Callable[[], EvaluationReport[Any, Any]],
    presentation: Presentation[Any],
    output: str | None,
    as_json: bool,
    least: float,
) -> None:
    """Evaluate, print, write the files, and end with exit status 1 where the headline is below `least`, with 130 after
    Ctrl-C, saying how to go on."""
    try:
        report = evaluate()
    except KeyboardInterrupt:
        how = "the same command goes on from here" if output is not None else "with --output it could go on from here"
        print(f"litegpu: interrupted; {how}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    _show_and_write(report, presentation, output, as_json)
    what, value = report.result.headline
    if not value >= least:  # nor is anything as good as NaN
        print(f"litegpu: the {what} {value:g} is below {least:g}", file=sys.stderr)
        raise typer.Exit(1)


def _show_and_write(
    report: EvaluationReport[Any, Any], presentation: Presentation[Any], output: str | None, as_json: bool
) -> None:
    """Print an evaluation, write its files, and say what was written; raises OptionError for what could not be, which
    loses nothing else."""
    from litegpu.tools.outputs import all_of

    files: list[Path] = []

    def tell_problems() -> None:
        problems = [side.collected.problem for side in report.sides if side.collected.problem]
        if problems:
            raise OptionError("; ".join(problems))

    try:
        all_of(
            lambda: print_json(report.as_dict()) if as_json else presentation.print(report),
            lambda: files.extend(presentation.write(report, output)),
            tell_problems,
        )
    finally:
        if files and not as_json:
            print()
            print("written: " + ", ".join(str(file) for file in files))
