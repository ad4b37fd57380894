"""`litegpu evaluate segmentation` and `litegpu evaluate pose`: networks whose outputs are maps of the image."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from litegpu.cli.application import LARGEST, Json, Patience, Precision, Ray
from litegpu.cli.evaluate import evaluate_app
from litegpu.cli.evaluate_flags import (
    Actors,
    Batch,
    Compare,
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
    Partitions,
    Resize,
    ResizeOption,
    Restart,
    Std,
    Threads,
    Upsampling,
    UseGpu,
    Workers,
    preprocessing,
    running,
    show_and_write,
    threshold,
)
from litegpu.cli.official_flags import OfficialCommand


@evaluate_app.command(cls=OfficialCommand)
def segmentation(
    model_file: ModelFile,
    ground_truth_images_path: Images,
    ground_truth_masks_path: Annotated[
        Path, typer.Option(help="The folder of masks: NAME.png for NAME.jpg, numbers of classes.", show_default=False)
    ],
    model_output_labels: Annotated[Path | None, typer.Option(help="Line i names class i.")] = None,
    ignore_label: Annotated[int, typer.Option(help="The number in masks that does not count.")] = 255,
    upsampling: Annotated[
        Upsampling, typer.Option(help="To the mask's size: bilinear of the scores, or nearest of the classes.")
    ] = Upsampling.BILINEAR,
    num_images: NumImages = 0,
    min_iou: Annotated[
        float, typer.Option("--min-iou", help="The exit status is 1 if the mean IoU is below this.")
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
    ray: Ray = None,
    actors: Actors = None,
    patience: Patience = 60.0,
    on_error: OnErrorOption = OnError.FAIL,
    resize: ResizeOption = Resize.BILINEAR,
    mean: Mean = None,
    std: Std = None,
    as_json: Json = False,
) -> None:
    """Mean intersection over union of a segmentation network (as PASCAL VOC defines it).

    litegpu evaluate segmentation --model_file=deeplab.tflite --ground_truth_images_path=JPEGImages
    --ground_truth_masks_path=SegmentationClass --model_output_labels=voc.txt --delegate=gpu -o result

    The exit status is 1 for an error or a mean IoU below --min-iou, and 130 if it was interrupted.
    """
    from litegpu.tools.evaluate.segmentation import SegmentationTask, evaluate_segmentation
    from litegpu.tools.evaluate.segmentation_output import print_report, write_report

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
    task = SegmentationTask(
        str(model_file),
        str(ground_truth_images_path),
        str(ground_truth_masks_path),
        str(model_output_labels or ""),
        ignore_label,
        upsampling.value,
        num_images,
        preprocessing(0.0, resize, mean, std),
    )
    with Interruptible(output):
        report = evaluate_segmentation(task, how)
    show_and_write(report, as_json, lambda: print_report(report), lambda: write_report(report, how.output))
    threshold("mean IoU", report.result.mean_iou, min_iou)


@evaluate_app.command(cls=OfficialCommand)
def pose(
    model_file: ModelFile,
    ground_truth_images_path: Images,
    annotations: Annotated[Path, typer.Option(help="COCO's person_keypoints_*.json.", show_default=False)],
    every_image: Annotated[
        bool, typer.Option("--every-image", help="Not only images with exactly one person.")
    ] = False,
    allowlist_file: Annotated[Path | None, typer.Option(help="Ids of the images to evaluate, one a line.")] = None,
    num_images: NumImages = 0,
    drawings: Annotated[
        int, typer.Option(help="Images with the lowest OKS to draw, in --output.", min=0, max=LARGEST)
    ] = 10,
    min_oks: Annotated[
        float, typer.Option("--min-oks", help="The exit status is 1 if the mean OKS is below this.")
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
    ray: Ray = None,
    actors: Actors = None,
    patience: Patience = 60.0,
    on_error: OnErrorOption = OnError.FAIL,
    resize: ResizeOption = Resize.BILINEAR,
    mean: Mean = None,
    std: Std = None,
    as_json: Json = False,
) -> None:
    """Object keypoint similarity and average precision of a network that finds one person's keypoints (COCO).

    litegpu evaluate pose --model_file=posenet.tflite --ground_truth_images_path=val2017
    --annotations=person_keypoints_val2017.json --delegate=gpu -o result

    The outputs are PoseNet's four maps, or a list of keypoints as MoveNet gives it. The exit status is 1 for an error
    or a mean OKS below --min-oks, and 130 if it was interrupted.
    """
    from litegpu.tools.evaluate.pose import PoseTask, evaluate_pose
    from litegpu.tools.evaluate.pose_output import print_report, write_report

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
    task = PoseTask(
        str(model_file),
        str(ground_truth_images_path),
        str(annotations),
        every_image,
        str(allowlist_file or ""),
        num_images,
        preprocessing(0.0, resize, mean, std),
    )
    with Interruptible(output):
        report = evaluate_pose(task, how)
    show_and_write(report, as_json, lambda: print_report(report), lambda: write_report(report, how.output, drawings))
    threshold("mean OKS", report.result.mean_oks, min_oks)
