"""The report of a segmentation evaluation: text, files, drawings."""

from __future__ import annotations

import json
from pathlib import Path

from litegpu.report import bars
from litegpu.tools.console import print_table
from litegpu.tools.evaluate.collecting import REPORT, write_bytes, write_table
from litegpu.tools.evaluate.imagenet_output import print_collected
from litegpu.tools.evaluate.pages import begin_page, end_page, key_figures
from litegpu.tools.evaluate.segmentation import ClassIou, SegmentationReport
from litegpu.tools.statistics import number

_WORST = 10


def print_report(report: SegmentationReport) -> None:
    """For people."""
    result = report.result
    print_collected(report.task.model_file, result.collected)
    print(f"Mean IoU: {number(result.mean_iou)}")
    print(f"Pixel accuracy: {number(result.pixel_accuracy)}")
    other = report.comparison
    print()
    if other:
        print(f"compared with {other.collected.choice}: {other.collected.placement.delegation.summary()}")
        print(f"Mean IoU: {number(other.mean_iou)} ({other.mean_iou - result.mean_iou:+.6f})")
        print(f"Pixel accuracy: {number(other.pixel_accuracy)} ({other.pixel_accuracy - result.pixel_accuracy:+.6f})")
        print()
    print_table(*_classes(report))
    if len(result.images) > 1:
        print()
        print_table(("lowest IoU of all images", "IoU"), [(i.name, f"{i.iou:.4f}") for i in result.images[:_WORST]])


def write_report(report: SegmentationReport, output: str | None) -> list[Path]:
    """The files of an evaluation, in the folder `output` if there is one; gives their paths."""
    if output is None:
        return []
    folder, result = Path(output), report.result
    files = [write_bytes(folder / REPORT, json.dumps(report.as_dict(), indent=2).encode())]
    rows = [(c.index, c.label, c.pixels, "" if c.iou is None else c.iou) for c in result.classes]
    files.append(write_table(folder / "classes.csv", ("class", "label", "pixels", "iou"), rows))
    page = begin_page("Segmentation evaluation", report.task.model_file, result.collected)
    figures = [("mean IoU", f"{result.mean_iou:.4f}"), ("pixel accuracy", f"{result.pixel_accuracy:.2%}")]
    page.figures([*figures, *key_figures(result.collected)])
    columns, table = _classes(report)
    sides = [result, *([report.comparison] if report.comparison else [])]
    present = [i for i, c in enumerate(result.classes) if c.iou is not None]
    series = {str(side.collected.choice): [side.classes[i].iou or 0.0 for i in present] for side in sides}
    page.plot(bars("IoU by class", [result.classes[i].label for i in present], series))
    page.table(columns, table, caption="All classes", folded=True)
    images = [(i.name, f"{i.iou:.4f}") for i in result.images]
    page.section("Images").table(("image", "IoU"), images[: 10 * _WORST], caption="Those with the lowest IoU")
    files.append(end_page(page, report.preprocessing, result.collected, folder))
    return files


def _classes(report: SegmentationReport) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Those that occur, in either delegate's results."""
    sides = [report.result, *([report.comparison] if report.comparison else [])]
    names = [str(side.collected.choice) for side in sides] if report.comparison else ["IoU"]
    rows = [
        (own[0].label, str(own[0].pixels), *(_share(c) for c in own))
        for own in zip(*(side.classes for side in sides), strict=True)
        if any(c.iou is not None for c in own)
    ]
    return ("class", "pixels", *names), rows


def _share(found: ClassIou) -> str:
    return "-" if found.iou is None else f"{found.iou:.4f}"
