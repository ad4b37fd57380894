"""`litegpu evaluate`: accuracy on a data set."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from litegpu.cli.application import Json, Precision, Ray, app, print_json
from litegpu.errors import OptionError

if TYPE_CHECKING:
    from litegpu.tools.evaluate.collecting import Running

# The official tools write their flags with underscores: --model_file and --model-file are the same here.
evaluate_app = typer.Typer(
    help="Measure the accuracy of a model on a data set, on any delegate.",
    no_args_is_help=True,
    context_settings={"token_normalize_func": lambda token: token.replace("_", "-")},
    epilog="The flags of the official evaluation tools work as they are: --model_file=..., --delegate=gpu.",
)
app.add_typer(evaluate_app, name="evaluate")


class OnError(StrEnum):
    FAIL = "fail"
    SKIP = "skip"


class Resize(StrEnum):
    BILINEAR = "bilinear"
    HALF_PIXEL = "half-pixel"
    ANTIALIAS = "antialias"
    NONE = "none"


_DELEGATES, _RUN, _PIXELS = "Where it runs", "How it runs", "Images"

ModelFile = Annotated[Path, typer.Option("--model-file", help="The .tflite file.", show_default=False)]
Images = Annotated[Path, typer.Option("--ground-truth-images-path", help="The folder of images.", show_default=False)]
NumImages = Annotated[int, typer.Option(help="The first so many images; 0: all.")]
OutputFile = Annotated[
    Path | None, typer.Option("--output-file-path", help="Write the official EvaluationStageMetrics message here.")
]
Delegate = Annotated[
    str,
    typer.Option(
        help="cpu, gpu (the best), webgpu, cuda, cuda:1, vulkan, metal, d3d12 or gl; gpu/float32 sets the precision.",
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
GpuBackend = Annotated[
    str | None, typer.Option(help="cuda, vulkan, metal, d3d12 or gl, for --use_gpu.", rich_help_panel=_DELEGATES)
]
Partitions = Annotated[
    int,
    typer.Option("--max-delegated-partitions", help="0 means 1, as officially.", rich_help_panel=_DELEGATES),
]
Threads = Annotated[
    int, typer.Option("--num-interpreter-threads", help="Threads of the CPU.", rich_help_panel=_DELEGATES)
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
Batch = Annotated[int, typer.Option(help="Images at once; 0: 32 on a GPU, 1 on the CPU.", rich_help_panel=_RUN)]
Workers = Annotated[
    int,
    typer.Option(help="Processes that decode; 0: none, -1: one for each core.", rich_help_panel=_RUN),
]
Actors = Annotated[
    int | None,
    typer.Option(
        help="Workers on Ray, by default one for each GPU; --workers are the processes of each that decode.",
        rich_help_panel=_RUN,
        show_default=False,
    ),
]
OnErrorOption = Annotated[
    OnError, typer.Option("--on-error", help="What an image that cannot be read does.", rich_help_panel=_RUN)
]
ResizeOption = Annotated[
    Resize, typer.Option(help="bilinear is the official tools'; antialias averages.", rich_help_panel=_PIXELS)
]
Mean = Annotated[
    str | None,
    typer.Option(help="Subtracted from pixels (0..255): one number, or R,G,B.", rich_help_panel=_PIXELS),
]
Std = Annotated[str | None, typer.Option(help="Then divided by: one number, or R,G,B.", rich_help_panel=_PIXELS)]


@evaluate_app.command()
def imagenet(
    model_file: ModelFile,
    ground_truth_images_path: Images,
    ground_truth_labels: Annotated[
        Path, typer.Option(help="A label a line; line i is image i in sorted order.", show_default=False)
    ],
    model_output_labels: Annotated[Path, typer.Option(help="Line i names output i.", show_default=False)],
    denylist_file_path: Annotated[
        Path | None, typer.Option(help="Numbers (from 1) of images to leave out, one a line.")
    ] = None,
    num_images: NumImages = 0,
    output_file_path: OutputFile = None,
    min_top1: Annotated[
        float, typer.Option("--min-top1", help="The exit status is 1 if the top-1 accuracy is below this.")
    ] = 0.0,
    delegate: Delegate = "cpu",
    compare: Compare = None,
    precision: GpuPrecision = Precision.FLOAT16,
    use_gpu: UseGpu = None,
    gpu_precision_loss_allowed: LossAllowed = None,
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
    crop: Annotated[
        float,
        typer.Option(help="Side of the central square, over the shorter side; 0: no crop.", rich_help_panel=_PIXELS),
    ] = 0.875,
    resize: ResizeOption = Resize.BILINEAR,
    mean: Mean = None,
    std: Std = None,
    as_json: Json = False,
) -> None:
    """Top-1 to top-10 accuracy of a classifier (ILSVRC 2012), with a report for each class.

    litegpu evaluate imagenet --model_file=m.tflite --ground_truth_images_path=val --ground_truth_labels=truth.txt
    --model_output_labels=labels.txt --delegate=gpu -o result

    ... --delegate=gpu --compare=cpu      also on the CPU; McNemar's test says whether a difference is chance

    ... --num_images=500 --min-top1=0.7   for continuous integration: exit status 1 if it is worse

    ... --delegate=gpu --ray              on Ray: a worker on each GPU

    The exit status is 1 for an error or an accuracy below --min-top1, and 130 if it was interrupted.
    """
    from litegpu.tools.evaluate.imagenet import ImagenetTask, evaluate_imagenet
    from litegpu.tools.evaluate.imagenet_output import print_report, write_report

    running = _running(
        _Delegates(delegate, compare, precision, use_gpu, gpu_precision_loss_allowed, gpu_backend),
        max_delegated_partitions,
        num_interpreter_threads,
        output,
        restart,
        batch,
        workers,
        on_error,
        ray,
        actors,
    )
    task = ImagenetTask(
        str(model_file),
        str(ground_truth_images_path),
        str(ground_truth_labels),
        str(model_output_labels),
        str(denylist_file_path or ""),
        num_images,
        _preprocessing(crop, resize, mean, std),
        str(output_file_path or ""),
    )
    with _Interruptible(output):
        report = evaluate_imagenet(task, running)
    files = write_report(report, running.output)
    if as_json:
        print_json(report.as_dict())
    else:
        print_report(report)
        _print_files(files)
    _threshold("top-1 accuracy", report.result.accuracy.accuracies[0], min_top1)


@evaluate_app.command()
def coco(
    model_file: ModelFile,
    ground_truth_images_path: Images,
    annotations: Annotated[
        Path | None, typer.Option(help="COCO's instances_*.json; or --ground_truth_proto.", show_default=False)
    ] = None,
    ground_truth_proto: Annotated[
        Path | None, typer.Option(help="The official tool's binary ground truth.", show_default=False)
    ] = None,
    model_output_labels: Annotated[Path | None, typer.Option(help="A name a line, the background first.")] = None,
    match_labels: Annotated[
        bool, typer.Option("--match-labels", help="Classes are categories by name, not by id (models with 80 classes).")
    ] = False,
    class_offset: Annotated[int, typer.Option(help="Class i of the model is category (or line) i plus this.")] = 1,
    allowlist_file: Annotated[Path | None, typer.Option(help="Ids of the images to evaluate, one a line.")] = None,
    num_images: NumImages = 0,
    anchors: Annotated[
        Path | None, typer.Option(help="Of raw heads: .npy, float [n, 4] of centre y, x, height, width.")
    ] = None,
    max_detections: Annotated[int, typer.Option(help="Of raw heads, for an image.")] = 100,
    output_order: Annotated[
        str, typer.Option(help="Of four outputs without the official op: boxes,classes,scores,count.")
    ] = "",
    output_file_path: OutputFile = None,
    debug_mode: Annotated[str, typer.Option(metavar="BOOL", help="true: print each detection.")] = "false",
    drawings: Annotated[int, typer.Option(help="Images with the most mistakes to draw, in --output.")] = 10,
    min_map: Annotated[float, typer.Option("--min-map", help="The exit status is 1 if the mAP is below this.")] = 0.0,
    delegate: Delegate = "cpu",
    compare: Compare = None,
    precision: GpuPrecision = Precision.FLOAT16,
    use_gpu: UseGpu = None,
    gpu_precision_loss_allowed: LossAllowed = None,
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
    resize: ResizeOption = Resize.BILINEAR,
    mean: Mean = None,
    std: Std = None,
    as_json: Json = False,
) -> None:
    """Mean average precision of a detector (COCO, IoU 0.50:0.05:0.95), as pycocotools computes it.

    litegpu evaluate coco --model_file=ssd.tflite --ground_truth_images_path=val2017
    --annotations=instances_val2017.json --delegate=gpu -o result

    ... --model_output_labels=80.txt --match-labels --class_offset=0      a model with COCO's 80 classes in a row

    ... --delegate=gpu --compare=cpu      both beside one another

    The model ends in TFLite_Detection_PostProcess, or has the raw heads of an SSD. The exit status is 1 for an error or
    an mAP below --min-map, and 130 if it was interrupted.
    """
    from litegpu.tools.evaluate.coco import CocoTask, evaluate_coco
    from litegpu.tools.evaluate.coco_output import print_report, write_report

    running = _running(
        _Delegates(delegate, compare, precision, use_gpu, gpu_precision_loss_allowed, gpu_backend),
        max_delegated_partitions,
        num_interpreter_threads,
        output,
        restart,
        batch,
        workers,
        on_error,
        ray,
        actors,
    )
    debug = _boolean("debug_mode", debug_mode)
    task = CocoTask(
        str(model_file),
        str(ground_truth_images_path),
        str(annotations or ""),
        str(ground_truth_proto or ""),
        str(model_output_labels or ""),
        match_labels,
        class_offset,
        str(allowlist_file or ""),
        num_images,
        str(anchors or ""),
        output_order,
        max_detections,
        _preprocessing(0.0, resize, mean, std),
        str(output_file_path or ""),
    )
    with _Interruptible(output):
        report = evaluate_coco(task, running)
    files = write_report(report, running.output, drawings)
    if as_json:
        print_json(report.as_dict())
    else:
        print_report(report, debug)
        _print_files(files)
    _threshold("mAP", report.result.precisions.overall, min_map)


class _Delegates:
    """The flags that name delegates, taken together."""

    def __init__(
        self,
        delegate: str,
        compare: str | None,
        precision: Precision,
        use_gpu: str | None,
        loss_allowed: str | None,
        backend: str | None,
    ) -> None:
        self.delegate, self.compare = delegate, compare
        if use_gpu is not None and _boolean("use_gpu", use_gpu) and delegate == "cpu":
            self.delegate = backend or "gpu"
        elif backend and self.delegate == "gpu":
            self.delegate = backend
        elif backend:
            raise OptionError("--gpu_backend is for --use_gpu=true or --delegate=gpu")
        self.precision = precision.value
        if loss_allowed is not None and not _boolean("gpu_precision_loss_allowed", loss_allowed):
            self.precision = "float32"


def _running(
    delegates: _Delegates,
    partitions: int,
    threads: int,
    output: Path | None,
    restart: bool,
    batch: int,
    workers: int,
    on_error: OnError,
    ray: str | None,
    actors: int | None,
) -> Running:
    from litegpu.tools.evaluate.choice import DelegateChoice, parse_choice
    from litegpu.tools.evaluate.collecting import Running

    like = DelegateChoice("cpu", delegates.precision, threads, max(partitions, 1))
    return Running(
        parse_choice(delegates.delegate, like),
        parse_choice(delegates.compare, like) if delegates.compare is not None else None,
        batch,
        workers,
        str(output) if output is not None else None,
        restart,
        on_error is OnError.SKIP,
        ray,
        actors,
    )


def _preprocessing(crop: float, resize: Resize, mean: str | None, std: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {"crop": crop, "resize": resize.value}
    if mean is not None or std is not None:
        options |= {"mean": _numbers("mean", mean or "127.5"), "deviation": _numbers("std", std or "127.5")}
    return options


def _numbers(flag: str, text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"--{flag} is {text!r}; it must be one number, or three with commas between") from None


def _boolean(flag: str, text: str) -> bool:
    if text not in ("true", "false", "1", "0"):
        raise OptionError(f"--{flag} is {text!r}; it must be true, false, 1 or 0")
    return text in ("true", "1")


class _Interruptible:
    """Ends the command with exit status 130 on Ctrl-C, and says how to go on."""

    def __init__(self, output: Path | None) -> None:
        self.output = output

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is KeyboardInterrupt:
            how = "the same command goes on from here" if self.output else "with --output it could go on from here"
            print(f"litegpu: interrupted; {how}", file=sys.stderr)
            raise typer.Exit(130)


def _threshold(what: str, value: float, least: float) -> None:
    if value < least:
        print(f"litegpu: the {what} {value:g} is below {least:g}", file=sys.stderr)
        raise typer.Exit(1)


def _print_files(files: list[Path]) -> None:
    if files:
        print()
        print("written: " + ", ".join(str(file) for file in files))
