"""The reports of evaluations as HTML pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from litegpu.report import Page, bars
from litegpu.tools.evaluate.coco import CocoReport, DelegatePrecision
from litegpu.tools.evaluate.collecting import Collected
from litegpu.tools.evaluate.imagenet import ImagenetReport
from litegpu.tools.evaluate.paired import Paired
from litegpu.tools.evaluate.preprocessing import Preprocessing

PAGE = "report.html"
_MOST_BARS = 40
_LISTED = 200  # rows of a table that may have thousands; the CSV files have all
_CONFUSIONS = 50


def write_imagenet_page(report: ImagenetReport, folder: Path, confusion_png: bytes) -> Path:
    """With the accuracies, the classes and the confusion matrix. Raises OptionError where it cannot be written."""
    result = report.result
    page = begin_page("ImageNet evaluation", report.task.model_file, result.collected)
    shares = result.accuracy.accuracies
    figures = [(f"top-{k}", f"{shares[k - 1]:.2%}") for k in (1, 5) if k <= len(shares)]
    page.figures([*figures, *key_figures(result.collected)])
    sides = {str(result.collected.choice): shares}
    if report.comparison:
        sides[str(report.comparison.other.collected.choice)] = report.comparison.other.accuracy.accuracies
    percent = {name: [100 * s for s in values] for name, values in sides.items()}
    page.plot(bars("Accuracy", [f"top-{k}" for k in range(1, len(shares) + 1)], percent, unit="%"))
    if report.comparison:
        page.section("Two delegates on the same images")
        names = tuple(sides)
        columns = ("", *(f"only {n} is right" for n in names), "both", "neither", "difference", "p (McNemar)")
        pairs = {"top-1": report.comparison.top1, "top-5": report.comparison.top5}
        page.table(columns, [_paired_row(name, pair) for name, pair in pairs.items()])
        page.text(f"{report.comparison.same_label:.3%} of the images have the same label put first.")
    page.section("Confusions")
    page.image(confusion_png, alt="Confusion matrix", caption="Rows: true labels; columns: the label put first.")
    wrong = [(t, p, str(n)) for (t, p), n in result.confusions.items() if t != p][:_CONFUSIONS]
    page.table(("label", "put first", "images"), wrong, caption="The most frequent mistakes", folded=True)
    page.section("Classes")
    worst = sorted(result.classes, key=lambda c: (c.top1, -c.images, c.label))
    rows = [
        (c.label, str(c.images), f"{c.top1:.4f}", f"{c.top5:.4f}", ", ".join(f"{m} ({n})" for m, n in c.mistaken_for))
        for c in worst[:_LISTED]
    ]
    page.table(
        ("label", "images", "top-1", "top-5", "mistaken for"),
        rows,
        caption=f"The {len(rows)} of {len(worst)} with the lowest top-1",
    )
    return end_page(page, report.preprocessing, result.collected, folder)


def write_coco_page(report: CocoReport, folder: Path, drawings: Sequence[Path]) -> Path:
    """With the precisions, the categories and the worst images. Raises OptionError where it cannot be written."""
    result = report.result
    page = begin_page("COCO evaluation", report.task.model_file, result.collected)
    figures = [(name, _share(result.precisions.statistics[name])) for name in ("AP", "AP50", "AP75")]
    page.figures([*figures, *key_figures(result.collected)])
    sides = [result, *([report.comparison] if report.comparison else [])]
    names = [str(side.collected.choice) for side in sides]
    thresholds = list(result.precisions.by_threshold)
    precisions = [[max(side.precisions.by_threshold[t], 0.0) for t in thresholds] for side in sides]
    labels = [f"IoU {t:.2f}" for t in thresholds]
    page.plot(bars("Average precision", labels, dict(zip(names, precisions, strict=True))))
    statistics = [(n, *(_share(s.precisions.statistics[n]) for s in sides)) for n in result.precisions.statistics]
    page.table(("COCO metric", *names), statistics)
    page.section("Categories")
    _add_categories(page, result)
    if drawings:
        page.section("The images with the most mistakes")
        page.text("White: what should be found. In colours: what was found, with scores from 0.3 on.")
        for path in drawings:
            page.image(path.read_bytes(), alt=path.stem, caption=path.stem)
    return end_page(page, report.preprocessing, result.collected, folder)


def _add_categories(page: Page, result: DelegatePrecision) -> None:
    counted = sorted((r for r in result.precisions.categories if r.ap >= 0), key=lambda r: (-r.ap, r.name))
    if 0 < len(counted) <= _MOST_BARS:
        page.plot(bars("AP by category", [r.name for r in counted], {"AP": [r.ap for r in counted]}))
    rows = [
        (r.name, str(r.objects), str(r.detections), *(_share(v) for v in (r.ap, r.ap50, r.recall)))
        for r in result.precisions.categories
        if r.objects or r.detections
    ]
    page.table(("category", "objects", "detections", "AP", "AP50", "AR 100"), rows, caption="All of them", folded=True)


def begin_page(title: str, model: str, collected: Collected) -> Page:
    """A page that says what was evaluated where."""
    where = f"{collected.choice} on {collected.placement.device}" if collected.choice.on_gpu else "CPU"
    return Page(f"{title}: {Path(model).name}", subtitle=where)


def key_figures(collected: Collected) -> list[tuple[str, str]]:
    """How many images, and how fast."""
    figures = [("images", str(len(collected.good)))]
    if collected.failed:
        figures.append(("skipped", str(len(collected.failed))))
    if collected.rate:
        figures.append(("throughput", f"{collected.rate:.0f} /s"))
    return [*figures, ("inference", f"{collected.inference.average / 1e3:.2f} ms")]


def end_page(page: Page, preprocessing: Preprocessing, collected: Collected, folder: Path) -> Path:
    """How images were prepared, what was skipped, and the graph; then the page is written."""
    page.section("How")
    options: Mapping[str, Any] = asdict(preprocessing)
    page.table(("preprocessing", "value"), [(name, str(value)) for name, value in options.items() if value is not None])
    place = collected.placement
    page.text(f"{place.batch} images at once. {place.delegation.summary()}.")
    if collected.failed:
        rows = [(r.name, r.error) for r in collected.failed[:_LISTED]]
        page.table(("skipped image", "why"), rows, caption=f"{len(rows)} of {len(collected.failed)}")
    page.graph(place.graph, folded=True)
    page.write(folder / PAGE)
    return folder / PAGE


def _paired_row(name: str, pair: Paired) -> tuple[str, ...]:
    counts = (pair.only_first, pair.only_second, pair.both, pair.neither)
    return name, *(str(n) for n in counts), f"{pair.difference:+.4f}", f"{pair.p_value:.3g}"


def _share(value: float) -> str:
    return f"{value:.4f}" if value >= 0 else "-"
