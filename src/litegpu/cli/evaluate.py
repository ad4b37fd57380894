"""`litegpu evaluate`: accuracy on a data set; the commands for ImageNet and COCO."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from litegpu.cli.application import LARGEST, MOST_ITEMS, Json, Patience, Precision, Ray, app
from litegpu.cli.evaluate_flags import (
    Actors,
    Batch,
    Compare,
    Crop,
    Delegate,
    GpuBackend,
    GpuPrecision,
    Images,
    Interruptible,
    LossAllowed,
    Mean,
    ModelFile,
    NumImages,
    OnError,
    OnErrorOption,
    Output,
    OutputFile,
    Partitions,
    Resize,
    ResizeOption,
    Restart,
    Std,
    Threads,
    UseGpu,
    Workers,
    boolean,
    preprocessing,
    running,
    show_and_write,
    threshold,
)
from litegpu.cli.official_flags import OfficialCommand

# The official tools write their flags with underscores: --model_file and --model-file are the same here.
evaluate_app = typer.Typer(
    help="Measure the accuracy of a model on a data set, on any delegate.",
    no_args_is_help=True,
    context_settings={"token_normalize_func": lambda token: token.replace("_", "-")},
    epilog="The flags of the official evaluation tools work as they are: --model_file=..., --delegate=gpu.",
)
app.add_typer(evaluate_app, name="evaluate")


@evaluate_app.command(cls=OfficialCommand)
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
    patience: Patience = 60.0,
    crop: Crop = 0.875,
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

    how = running(
        delegate,
        compare,
        precision,
        use_gpu,
        gpu_precision_loss_allowed,
        gpu_backend,
        max_delegated_partitions,
        num_interpreter_threads,
        output,
        restart,
        batch,
        workers,
        on_error,
        ray,
        actors,
        patience,
    )
    task = ImagenetTask(
        str(model_file),
        str(ground_truth_images_path),
        str(ground_truth_labels),
        str(model_output_labels),
        str(denylist_file_path or ""),
        num_images,
        preprocessing(crop, resize, mean, std),
        str(output_file_path or ""),
    )
    with Interruptible(output):
        report = evaluate_imagenet(task, how)
    show_and_write(report, as_json, lambda: print_report(report), lambda: write_report(report, how.output))
    threshold("top-1 accuracy", report.result.accuracy.accuracies[0], min_top1)


@evaluate_app.command(cls=OfficialCommand)
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
    max_detections: Annotated[int, typer.Option(help="Of raw heads, for an image.", min=1, max=MOST_ITEMS)] = 100,
    output_order: Annotated[
        str, typer.Option(help="Of four outputs without the official op: boxes,classes,scores,count.")
    ] = "",
    output_file_path: OutputFile = None,
    debug_mode: Annotated[str, typer.Option(metavar="BOOL", help="true: print each detection.")] = "false",
    drawings: Annotated[
        int, typer.Option(help="Images with the most mistakes to draw, in --output.", min=0, max=LARGEST)
    ] = 10,
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
    patience: Patience = 60.0,
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

    how = running(
        delegate,
        compare,
        precision,
        use_gpu,
        gpu_precision_loss_allowed,
        gpu_backend,
        max_delegated_partitions,
        num_interpreter_threads,
        output,
        restart,
        batch,
        workers,
        on_error,
        ray,
        actors,
        patience,
    )
    debug = boolean("debug_mode", debug_mode)
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
        preprocessing(0.0, resize, mean, std),
        str(output_file_path or ""),
    )
    with Interruptible(output):
        report = evaluate_coco(task, how)
    show_and_write(
        report, as_json, lambda: print_report(report, debug), lambda: write_report(report, how.output, drawings)
    )
    threshold("mAP", report.result.precisions.overall, min_map)
