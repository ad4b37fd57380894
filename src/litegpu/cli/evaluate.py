"""`litegpu evaluate`: accuracy on a data set, a command for each kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from litegpu.cli.application import LARGEST, MOST_ITEMS, Json, app
from litegpu.cli.evaluate_flags import (
    PIXEL_FLAGS,
    RUN_FLAGS,
    Crop,
    Images,
    ModelFile,
    NumImages,
    OutputFile,
    Upsampling,
    boolean,
    run_evaluation,
)
from litegpu.cli.flag_groups import with_flag_groups
from litegpu.cli.official_flags import OfficialCommand

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


@evaluate_app.command(cls=OfficialCommand)
@with_flag_groups
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
        float,
        typer.Option("--min-top1", help="The exit status is 1 if the top-1 accuracy is below this.", min=0, max=1),
    ] = 0.0,
    how: Running = RUN_FLAGS,
    crop: Crop = 0.875,
    image: dict[str, Any] = PIXEL_FLAGS,
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
    from litegpu.tools.evaluate.imagenet_presentation import ImagenetPresentation

    task = ImagenetTask(
        str(model_file),
        str(ground_truth_images_path),
        str(ground_truth_labels),
        str(model_output_labels),
        str(denylist_file_path or ""),
        num_images,
        {"crop": crop, **image},
        str(output_file_path or ""),
    )
    run_evaluation(lambda: evaluate_imagenet(task, how), ImagenetPresentation(), how.output, as_json, min_top1)


@evaluate_app.command(cls=OfficialCommand)
@with_flag_groups
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
        Path | None, typer.Option(help="Of raw heads: .npy, float \\[n, 4] of centre y, x, height, width.")
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
    min_map: Annotated[
        float, typer.Option("--min-map", help="The exit status is 1 if the mAP is below this.", min=0, max=1)
    ] = 0.0,
    how: Running = RUN_FLAGS,
    image: dict[str, Any] = PIXEL_FLAGS,
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
    from litegpu.tools.evaluate.coco_presentation import CocoPresentation

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
        {"crop": 0.0, **image},
        str(output_file_path or ""),
    )
    run_evaluation(lambda: evaluate_coco(task, how), CocoPresentation(drawings, debug), how.output, as_json, min_map)


@evaluate_app.command(cls=OfficialCommand)
@with_flag_groups
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
        float, typer.Option("--min-iou", help="The exit status is 1 if the mean IoU is below this.", min=0, max=1)
    ] = 0.0,
    how: Running = RUN_FLAGS,
    image: dict[str, Any] = PIXEL_FLAGS,
    as_json: Json = False,
) -> None:
    """Mean intersection over union of a segmentation network (as PASCAL VOC defines it).

    litegpu evaluate segmentation --model_file=deeplab.tflite --ground_truth_images_path=JPEGImages
    --ground_truth_masks_path=SegmentationClass --model_output_labels=voc.txt --delegate=gpu -o result

    The exit status is 1 for an error or a mean IoU below --min-iou, and 130 if it was interrupted.
    """
    from litegpu.tools.evaluate.segmentation import SegmentationTask, evaluate_segmentation
    from litegpu.tools.evaluate.segmentation_presentation import SegmentationPresentation

    task = SegmentationTask(
        str(model_file),
        str(ground_truth_images_path),
        str(ground_truth_masks_path),
        str(model_output_labels or ""),
        ignore_label,
        upsampling.value,
        num_images,
        {"crop": 0.0, **image},
    )
    run_evaluation(lambda: evaluate_segmentation(task, how), SegmentationPresentation(), how.output, as_json, min_iou)


@evaluate_app.command(cls=OfficialCommand)
@with_flag_groups
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
        float, typer.Option("--min-oks", help="The exit status is 1 if the mean OKS is below this.", min=0, max=1)
    ] = 0.0,
    how: Running = RUN_FLAGS,
    image: dict[str, Any] = PIXEL_FLAGS,
    as_json: Json = False,
) -> None:
    """Object keypoint similarity and average precision of a network that finds one person's keypoints (COCO).

    litegpu evaluate pose --model_file=posenet.tflite --ground_truth_images_path=val2017
    --annotations=person_keypoints_val2017.json --delegate=gpu -o result

    The outputs are PoseNet's four maps, or a list of keypoints as MoveNet gives it. The exit status is 1 for an error
    or a mean OKS below --min-oks, and 130 if it was interrupted.
    """
    from litegpu.tools.evaluate.pose import PoseTask, evaluate_pose
    from litegpu.tools.evaluate.pose_presentation import PosePresentation

    task = PoseTask(
        str(model_file),
        str(ground_truth_images_path),
        str(annotations),
        every_image,
        str(allowlist_file or ""),
        num_images,
        {"crop": 0.0, **image},
    )
    run_evaluation(lambda: evaluate_pose(task, how), PosePresentation(drawings), how.output, as_json, min_oks)
