"""How a segmentation evaluation is presented."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from litegpu.report import Page, bars
from litegpu.tools.console import print_table
from litegpu.tools.evaluate.presentation import Presentation, Table, print_second, share, write_table
from litegpu.tools.evaluate.segmentation import SegmentationReport
from litegpu.tools.statistics import number

_WORST = 10


class SegmentationPresentation(Presentation[SegmentationReport]):
    """Mean IoU, that of each class, and the images with the lowest."""

    title = "Segmentation evaluation"

    def print_figures(self, report: SegmentationReport) -> None:
        result, other = report.result, report.comparison
        print(f"Mean IoU: {number(result.mean_iou)}")
        print(f"Pixel accuracy: {number(result.pixel_accuracy)}")
        print()
        if other:
            print_second(other)
            print(f"Mean IoU: {number(other.mean_iou)} ({other.mean_iou - result.mean_iou:+.6f})")
            accuracy, difference = other.pixel_accuracy, other.pixel_accuracy - result.pixel_accuracy
            print(f"Pixel accuracy: {number(accuracy)} ({difference:+.6f})")
            print()
        print_table(*_classes(report))
        if len(result.images) > 1:
            print()
            print_table(("lowest IoU of all images", "IoU"), [(i.name, f"{i.iou:.4f}") for i in result.images[:_WORST]])

    def write_figures(self, report: SegmentationReport, folder: Path) -> list[Path]:
        rows = [(c.index, c.label, c.pixels, "" if c.iou is None else c.iou) for c in report.result.classes]
        return [write_table(folder / "classes.csv", ("class", "label", "pixels", "iou"), rows)]

    def key_figures(self, report: SegmentationReport) -> list[tuple[str, str]]:
        result = report.result
        return [("mean IoU", f"{result.mean_iou:.4f}"), ("pixel accuracy", f"{result.pixel_accuracy:.2%}")]

    def fill_page(self, page: Page, report: SegmentationReport, files: Sequence[Path]) -> None:
        result = report.result
        present = [i for i, c in enumerate(result.classes) if c.iou is not None]
        values = [[side.classes[i].iou or 0.0 for i in present] for side in report.sides]
        labels = [result.classes[i].label for i in present]
        page.plot(bars("IoU by class", labels, dict(zip(report.names, values, strict=True))))
        columns, table = _classes(report)
        page.table(columns, table, caption="All classes", folded=True)
        images = [(i.name, f"{i.iou:.4f}") for i in result.images]
        page.section("Images").table(("image", "IoU"), images[: 10 * _WORST], caption="Those with the lowest IoU")


def _classes(report: SegmentationReport) -> Table:
    """Those that occur, in either delegate's results."""
    names = report.names if report.comparison else ["IoU"]
    rows = [
        (own[0].label, str(own[0].pixels), *(share(c.iou) for c in own))
        for own in zip(*(side.classes for side in report.sides), strict=True)
        if any(c.iou is not None for c in own)
    ]
    return ("class", "pixels", *names), rows
