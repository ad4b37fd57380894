"""How a COCO evaluation is presented."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from litegpu.report import Page, bars
from litegpu.tools.console import print_table, print_warning
from litegpu.tools.drawing import draw_boxes
from litegpu.tools.evaluate.coco import CocoReport, DelegatePrecision
from litegpu.tools.evaluate.coco_truth import TrueImage
from litegpu.tools.evaluate.preprocessing import UnreadableImage, read_pixels
from litegpu.tools.evaluate.presentation import (
    Presentation,
    Table,
    add_drawings,
    drawing_path,
    drawings_of,
    print_second,
    share,
    write_bytes,
    write_table,
)
from litegpu.tools.evaluate.stage_metrics import detection_metrics
from litegpu.tools.images import save_image
from litegpu.tools.predictions import Box, Labelled
from litegpu.tools.statistics import number

_DRAWN_SCORE = 0.3
_MOST_BARS = 40
_RULE = "=" * 54


class CocoPresentation(Presentation[CocoReport]):
    """Precisions, categories, and the images with the most mistakes, `drawings` of them drawn. `debug`: each detection
    is printed before all else."""

    title = "COCO evaluation"

    def __init__(self, drawings: int = 10, debug: bool = False) -> None:
        self.drawings, self.debug = drawings, debug

    def print(self, report: CocoReport) -> None:
        if self.debug:
            _print_detections(report)
        super().print(report)

    def print_figures(self, report: CocoReport) -> None:
        result = report.result
        for threshold, precision in result.precisions.by_threshold.items():
            print(f"Average Precision [IOU Threshold={number(threshold)}]: {number(max(precision, 0.0))}")
        print(f"Overall mAP: {number(max(result.precisions.overall, 0.0))}")
        if all(value < 0 for value in result.precisions.by_threshold.values()):
            print_warning("There is no object in the ground truth, so there is no precision.")
        print(f"The model {report.data.how}.")
        if result.strange:
            print_warning(f"{result.strange} detections are of no category of the ground truth and do not count.")
        unlisted = report.data.truth.unlisted
        if unlisted:
            print(f"{len(unlisted)} images of the folder are not in the ground truth and were left out.")
        print()
        _print_statistics(report)
        print()
        print_table(*_categories(result))

    def message(self, report: CocoReport) -> bytes:
        collected, precisions = report.result.collected, report.result.precisions
        rows = [(t, max(ap, 0.0)) for t, ap in precisions.by_threshold.items()]
        return detection_metrics(collected.preprocessing, collected.inference, rows, max(precisions.overall, 0.0))

    def write_figures(self, report: CocoReport, folder: Path) -> list[Path]:
        result = report.result
        files = [write_bytes(folder / "detections.json", json.dumps(list(result.detections)).encode())]
        columns = ("category", "objects", "detections", "ap", "ap50", "recall")
        table = [(r.name, r.objects, r.detections, r.ap, r.ap50, r.recall) for r in result.precisions.categories]
        files.append(write_table(folder / "categories.csv", columns, table))
        images = {image.id: image for image in report.data.truth.images}
        for place, entry in enumerate(result.precisions.mistakes[: self.drawings], 1):
            image = images[entry.image]
            path = drawing_path(folder, place, image.item.name)
            if _draw(report, image, path):
                files.append(path)
        return files

    def key_figures(self, report: CocoReport) -> list[tuple[str, str]]:
        return [(name, share(report.result.precisions.statistics[name])) for name in ("AP", "AP50", "AP75")]

    def fill_page(self, page: Page, report: CocoReport, files: Sequence[Path]) -> None:
        sides, result = report.sides, report.result
        thresholds = list(result.precisions.by_threshold)
        precisions = [[max(side.precisions.by_threshold[t], 0.0) for t in thresholds] for side in sides]
        labels = [f"IoU {t:.2f}" for t in thresholds]
        page.plot(bars("Average precision", labels, dict(zip(report.names, precisions, strict=True))))
        statistics = [(n, *(share(s.precisions.statistics[n]) for s in sides)) for n in result.precisions.statistics]
        page.table(("COCO metric", *report.names), statistics)
        page.section("Categories")
        counted = sorted((r for r in result.precisions.categories if r.ap >= 0), key=lambda r: (-r.ap, r.name))
        if 0 < len(counted) <= _MOST_BARS:
            page.plot(bars("AP by category", [r.name for r in counted], {"AP": [r.ap for r in counted]}))
        columns, rows = _categories(result)
        page.table(columns, rows, caption="All of them", folded=True)
        if drawings_of(files):
            page.section("The images with the most mistakes")
            page.text("White: what should be found. In colours: what was found, with scores from 0.3 on.")
            add_drawings(page, files)


def _categories(result: DelegatePrecision) -> Table:
    rows = [
        (r.name, str(r.objects), str(r.detections), *(share(v) for v in (r.ap, r.ap50, r.recall)))
        for r in result.precisions.categories
        if r.objects or r.detections
    ]
    return ("category", "objects", "detections", "AP", "AP50", "AR 100"), rows


def _print_statistics(report: CocoReport) -> None:
    if report.comparison:
        print_second(report.comparison)
    rows = []
    for name in report.result.precisions.statistics:
        values = [side.precisions.statistics[name] for side in report.sides]
        difference = [f"{values[1] - values[0]:+.4f}" if min(values) >= 0 else "-"] if len(values) > 1 else []
        rows.append((name, *(share(v) for v in values), *difference))
    print_table(("COCO metric", *report.names, *(["difference"] if report.comparison else [])), rows)


def _print_detections(report: CocoReport) -> None:
    """As the official tool's debug mode logs them, with normalised boxes and category ids."""
    for record in report.result.collected.good:
        print(f"Image: {record.name}")
        found = record.result
        for i, (box, class_, score) in enumerate(zip(found["boxes"], found["classes"], found["scores"], strict=True)):
            category = class_ + report.data.task.class_offset
            print(f"Object [{i}]\n  Score: {number(score)}\n  Class-ID: {category}")
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
    names = report.data.truth.categories

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
