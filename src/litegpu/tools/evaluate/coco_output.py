"""The report of a COCO evaluation: lines on stdout as the official tool prints them, files, drawings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from litegpu.tools.console import print_table, print_warning
from litegpu.tools.drawing import draw_boxes
from litegpu.tools.evaluate.coco import CocoReport
from litegpu.tools.evaluate.coco_truth import TrueImage
from litegpu.tools.evaluate.collecting import REPORT, write_bytes, write_table
from litegpu.tools.evaluate.imagenet_output import print_collected
from litegpu.tools.evaluate.pages import write_coco_page
from litegpu.tools.evaluate.preprocessing import UnreadableImage, read_pixels
from litegpu.tools.evaluate.stage_metrics import detection_metrics
from litegpu.tools.images import save_image
from litegpu.tools.statistics import number
from litegpu.tools.tasks import Box, Labelled

_DRAWN_SCORE = 0.3
_RULE = "=" * 54


def print_report(report: CocoReport, debug: bool = False) -> None:
    """For people and for scripts that read the official tool's lines. `debug`: each detection, before all else."""
    if debug:
        _print_detections(report)
    result = report.result
    print_collected(report.task.model_file, result.collected)
    for threshold, precision in result.precisions.by_threshold.items():
        print(f"Average Precision [IOU Threshold={number(threshold)}]: {number(max(precision, 0.0))}")
    print(f"Overall mAP: {number(max(result.precisions.overall, 0.0))}")
    if all(value < 0 for value in result.precisions.by_threshold.values()):
        print_warning("There is no object in the ground truth, so there is no precision.")
    print(f"The model {report.how}.")
    if result.strange:
        print_warning(f"{result.strange} detections are of no category of the ground truth and do not count.")
    if report.truth.unlisted:
        print(f"{len(report.truth.unlisted)} images of the folder are not in the ground truth and were left out.")
    print()
    _print_statistics(report)
    print()
    rows = [
        (r.name, str(r.objects), str(r.detections), *(_share(v) for v in (r.ap, r.ap50, r.recall)))
        for r in result.precisions.categories
        if r.objects or r.detections
    ]
    print_table(("category", "objects", "detections", "AP", "AP50", "AR 100"), rows)


def write_report(report: CocoReport, output: str | None, drawings: int = 10) -> list[Path]:
    """The files of an evaluation; gives their paths. `output`: the folder, None for the message of metrics alone."""
    files: list[Path] = []
    result = report.result
    precisions = result.precisions
    if report.task.output_file_path:
        rows = [(t, max(ap, 0.0)) for t, ap in precisions.by_threshold.items()]
        collected = result.collected
        message = detection_metrics(collected.preprocessing, collected.inference, rows, max(precisions.overall, 0.0))
        files.append(write_bytes(Path(report.task.output_file_path), message))
    if output is None:
        return files
    folder = Path(output)
    files.append(write_bytes(folder / REPORT, json.dumps(report.as_dict(), indent=2).encode()))
    files.append(write_bytes(folder / "detections.json", json.dumps(list(result.detections)).encode()))
    columns = ("category", "objects", "detections", "ap", "ap50", "recall")
    table = [(r.name, r.objects, r.detections, r.ap, r.ap50, r.recall) for r in precisions.categories]
    files.append(write_table(folder / "categories.csv", columns, table))
    images = {image.id: image for image in report.truth.images}
    drawn = []
    for place, entry in enumerate(precisions.mistakes[:drawings], 1):
        image = images[entry.image]
        path = folder / "worst" / f"{place:02}-{Path(image.item.name).stem}.jpg"
        if _draw(report, image, path):
            drawn.append(path)
    return [*files, *drawn, write_coco_page(report, folder, drawn)]


def _print_statistics(report: CocoReport) -> None:
    sides = [report.result, report.comparison] if report.comparison else [report.result]
    names = [str(side.collected.choice) for side in sides]
    if report.comparison:
        print(f"compared with {names[1]}: {report.comparison.collected.placement.delegation.summary()}")
    rows = []
    for name in report.result.precisions.statistics:
        values = [side.precisions.statistics[name] for side in sides]
        difference = [f"{values[1] - values[0]:+.4f}" if min(values) >= 0 else "-"] if len(values) > 1 else []
        rows.append((name, *(_share(v) for v in values), *difference))
    print_table(("COCO metric", *names, *(["difference"] if report.comparison else [])), rows)


def _print_detections(report: CocoReport) -> None:
    """As the official tool's debug mode logs them, with normalised boxes and category ids."""
    for record in report.result.collected.good:
        print(f"Image: {record.name}")
        found = record.result
        for i, (box, class_, score) in enumerate(zip(found["boxes"], found["classes"], found["scores"], strict=True)):
            print(f"Object [{i}]\n  Score: {number(score)}\n  Class-ID: {class_ + report.task.class_offset}")
            print("  Bounding Box:")
            top, left, bottom, right = box
            for name, edge in (("Top", top), ("Bottom", bottom), ("Left", left), ("Right", right)):
                print(f"    Normalized {name}: {number(edge)}")
        print(_RULE)


def _draw(report: CocoReport, image: TrueImage, path: Path) -> bool:
    """The image with what was found and what should have been; False if it cannot be read any more."""
    try:
        pixels = read_pixels(image.item.path)
    except UnreadableImage:
        return False
    height, width = pixels.shape[:2]
    names = report.truth.categories

    def box(pixels: Sequence[float], category: int, score: float = 1.0) -> Box:
        x, y, w, h = pixels
        labelled = Labelled(category, names[category], score)
        return Box(y / height, x / width, (y + h) / height, (x + w) / width, labelled)

    found = [
        box(d["bbox"], d["category_id"], d["score"])
        for d in report.result.detections
        if d["image_id"] == image.id and d["score"] >= _DRAWN_SCORE
    ]
    scale = (width, height, width, height)
    wanted = [
        box([n * s if t.normalized else n for n, s in zip(t.box, scale, strict=True)], t.category)
        for t in image.objects
    ]
    path.parent.mkdir(exist_ok=True)
    save_image(path, draw_boxes(pixels, sorted(found, key=lambda b: -b.found.score), wanted))
    return True


def _share(value: float) -> str:
    return f"{value:.4f}" if value >= 0 else "-"
