"""How a pose evaluation is presented."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from litegpu.report import Page, bars
from litegpu.tools.console import print_table
from litegpu.tools.drawing import draw
from litegpu.tools.evaluate.pose import PoseReport
from litegpu.tools.evaluate.preprocessing import UnreadableImage, read_pixels
from litegpu.tools.evaluate.presentation import (
    Presentation,
    Table,
    add_drawings,
    drawing_path,
    print_second,
    share,
    write_bytes,
    write_table,
)
from litegpu.tools.images import save_image
from litegpu.tools.predictions import KEYPOINTS, Keypoint, Pose
from litegpu.tools.statistics import number

_LISTED = 100


class PosePresentation(Presentation[PoseReport]):
    """Mean OKS, COCO's statistics, the likeness of each keypoint; `drawings`: how many of the worst images to draw."""

    title = "Pose evaluation"

    def __init__(self, drawings: int = 10) -> None:
        self.drawings = drawings

    def print_figures(self, report: PoseReport) -> None:
        print(f"Mean OKS: {number(report.result.mean_oks)}")
        if report.data.left_out:
            print(
                f"{report.data.left_out} images without people, or with several, were left out "
                "(--every-image takes them)."
            )
        print()
        other = report.comparison
        if other:
            print_second(other)
            print(f"Mean OKS: {number(other.mean_oks)} ({other.mean_oks - report.result.mean_oks:+.6f})")
            print()
        print_table(*_statistics(report))
        print()
        print_table(*_keypoints(report))

    def write_figures(self, report: PoseReport, folder: Path) -> list[Path]:
        result = report.result
        files = [write_bytes(folder / "poses.json", json.dumps(list(result.poses)).encode())]
        files.append(write_table(folder / "images.csv", ("image", "oks"), [(i.name, i.oks) for i in result.images]))
        for place, entry in enumerate(result.images[: self.drawings], 1):
            path = drawing_path(folder, place, entry.name)
            if _draw(report, entry.name, path):
                files.append(path)
        return files

    def key_figures(self, report: PoseReport) -> list[tuple[str, str]]:
        result = report.result
        return [("mean OKS", f"{result.mean_oks:.4f}"), ("AP", share(result.precisions.statistics["AP"]))]

    def fill_page(self, page: Page, report: PoseReport, files: Sequence[Path]) -> None:
        similarities = ([k.similarity or 0.0 for k in side.keypoints] for side in report.sides)
        series = dict(zip(report.names, similarities, strict=True))
        page.plot(bars("Mean similarity by keypoint", KEYPOINTS, series))
        page.table(*_statistics(report))
        images = [(i.name, f"{i.oks:.4f}") for i in report.result.images[:_LISTED]]
        page.section("Images").table(("image", "OKS"), images, caption="Those with the lowest OKS", folded=True)
        add_drawings(page, files)


def _statistics(report: PoseReport) -> Table:
    rows = [
        (name, *(share(side.precisions.statistics[name]) for side in report.sides))
        for name in report.result.precisions.statistics
    ]
    return ("COCO metric", *report.names), rows


def _keypoints(report: PoseReport) -> Table:
    rows = [
        (own[0].name, str(own[0].labelled), *(share(k.similarity) for k in own))
        for own in zip(*(side.keypoints for side in report.sides), strict=True)
    ]
    return ("similarity of", "labelled", *report.names), rows


def _draw(report: PoseReport, name: str, path: Path) -> bool:
    """The image with what was found; False if it cannot be read any more."""
    image = next(i for i in report.data.truth.images if i.item.name == name)
    record = next(r for r in report.result.collected.good if r.name == name)
    points = zip(KEYPOINTS, record.result["keypoints"], strict=True)
    try:
        pixels = read_pixels(image.item.path)
    except UnreadableImage:
        return False
    drawing = draw(pixels, Pose(tuple(Keypoint(key, y, x, score) for key, (y, x, score) in points)))
    path.parent.mkdir(exist_ok=True)
    save_image(path, np.asarray(drawing))
    return True
