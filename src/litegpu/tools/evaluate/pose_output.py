"""The report of a pose evaluation: text, files, drawings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from litegpu.report import bars
from litegpu.tools.console import print_table
from litegpu.tools.drawing import draw
from litegpu.tools.evaluate.collecting import REPORT, write_bytes, write_table
from litegpu.tools.evaluate.imagenet_output import print_collected
from litegpu.tools.evaluate.pages import begin_page, end_page, key_figures
from litegpu.tools.evaluate.pose import PoseReport
from litegpu.tools.evaluate.preprocessing import UnreadableImage, read_pixels
from litegpu.tools.images import save_image
from litegpu.tools.statistics import number
from litegpu.tools.tasks import KEYPOINTS, Keypoint, Pose

_LISTED = 100

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def print_report(report: PoseReport) -> None:
    """For people."""
    print_collected(report.task.model_file, report.result.collected)
    print(f"Mean OKS: {number(report.result.mean_oks)}")
    if report.left_out:
        print(f"{report.left_out} images without people, or with several, were left out (--every-image takes them).")
    print()
    if report.comparison:
        other = report.comparison
        print(f"compared with {other.collected.choice}: {other.collected.placement.delegation.summary()}")
        print(f"Mean OKS: {number(other.mean_oks)} ({other.mean_oks - report.result.mean_oks:+.6f})")
        print()
    print_table(*_statistics(report))
    print()
    print_table(*_keypoints(report))


def write_report(report: PoseReport, output: str | None, drawings: int = 10) -> list[Path]:
    """The files of an evaluation, in the folder `output` if there is one; gives their paths."""
    if output is None:
        return []
    folder, result = Path(output), report.result
    files = [write_bytes(folder / REPORT, json.dumps(report.as_dict(), indent=2).encode())]
    files.append(write_bytes(folder / "poses.json", json.dumps(list(result.poses)).encode()))
    rows = [(i.name, i.oks) for i in result.images]
    files.append(write_table(folder / "images.csv", ("image", "oks"), rows))
    drawn = []
    for place, entry in enumerate(result.images[:drawings], 1):
        path = folder / "worst" / f"{place:02}-{Path(entry.name).stem}.jpg"
        if _draw(report, entry.name, path):
            drawn.append(path)
    page = begin_page("Pose evaluation", report.task.model_file, result.collected)
    figures = [("mean OKS", f"{result.mean_oks:.4f}"), ("AP", _share(result.precisions.statistics["AP"]))]
    page.figures([*figures, *key_figures(result.collected)])
    sides = [result, *([report.comparison] if report.comparison else [])]
    series = {str(s.collected.choice): [k.similarity or 0.0 for k in s.keypoints] for s in sides}
    page.plot(bars("Mean similarity by keypoint", KEYPOINTS, series))
    columns, table = _statistics(report)
    page.table(columns, table)
    images = [(i.name, f"{i.oks:.4f}") for i in result.images[:_LISTED]]
    page.section("Images").table(("image", "OKS"), images, caption="Those with the lowest OKS", folded=True)
    for path in drawn:
        page.image(path.read_bytes(), alt=path.stem, caption=path.stem)
    return [*files, *drawn, end_page(page, report.preprocessing, result.collected, folder)]


def _statistics(report: PoseReport) -> Table:
    sides = [report.result, *([report.comparison] if report.comparison else [])]
    rows = [
        (name, *(_share(side.precisions.statistics[name]) for side in sides))
        for name in report.result.precisions.statistics
    ]
    return ("COCO metric", *(str(side.collected.choice) for side in sides)), rows


def _keypoints(report: PoseReport) -> Table:
    sides = [report.result, *([report.comparison] if report.comparison else [])]
    rows = [
        (own[0].name, str(own[0].labelled), *("-" if k.similarity is None else f"{k.similarity:.4f}" for k in own))
        for own in zip(*(side.keypoints for side in sides), strict=True)
    ]
    return ("similarity of", "labelled", *(str(side.collected.choice) for side in sides)), rows


def _draw(report: PoseReport, name: str, path: Path) -> bool:
    """The image with what was found; False if it cannot be read any more."""
    image = next(i for i in report.truth.images if i.item.name == name)
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


def _share(value: float) -> str:
    return f"{value:.4f}" if value >= 0 else "-"
