"""How an ILSVRC evaluation is presented."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from litegpu.report import Page, bars
from litegpu.tools.console import print_table, print_warning
from litegpu.tools.evaluate.confusion import confusion_matrix, confusion_picture
from litegpu.tools.evaluate.imagenet import ComparedAccuracy, DelegateAccuracy, ImagenetReport
from litegpu.tools.evaluate.paired import Paired
from litegpu.tools.evaluate.presentation import Presentation, print_second, write_table
from litegpu.tools.evaluate.stage_metrics import classification_metrics
from litegpu.tools.evaluate.topk import ClassAccuracy
from litegpu.tools.images import save_image
from litegpu.tools.statistics import number

_LISTED = 10  # classes in the text
_ROWS = 200  # classes on the page; the CSV file has all
_CONFUSIONS = 50
_SIGNIFICANT = 0.05


class ImagenetPresentation(Presentation[ImagenetReport]):
    """Accuracies, classes, the confusion matrix; of two delegates, where they differ and whether that is chance."""

    title = "ImageNet evaluation"

    def print_figures(self, report: ImagenetReport) -> None:
        for k, accuracy in enumerate(report.result.accuracy.accuracies, 1):
            print(f"Top-{k} Accuracy: {number(accuracy)}")
        _print_classes(report.result)
        if isinstance(report.comparison, ComparedAccuracy):
            print()
            _print_comparison(report.names, report.comparison)

    def message(self, report: ImagenetReport) -> bytes:
        collected = report.result.collected
        return classification_metrics(collected.preprocessing, collected.inference, report.result.accuracy.accuracies)

    def write_figures(self, report: ImagenetReport, folder: Path) -> list[Path]:
        rows = [
            (c.label, c.images, c.top1, c.top5, "; ".join(f"{label} ({n})" for label, n in c.mistaken_for))
            for c in report.result.classes
        ]
        files = [write_table(folder / "classes.csv", ("label", "images", "top1", "top5", "mistaken_for"), rows)]
        pairs = [(truth, predicted, n) for (truth, predicted), n in report.result.confusions.items()]
        files.append(write_table(folder / "confusion.csv", ("label", "put_first", "images"), pairs))
        labels = shown_labels(report)
        save_image(
            folder / "confusion.png", confusion_picture(confusion_matrix(report.result.confusions, labels), labels)
        )
        return [*files, folder / "confusion.png"]

    def key_figures(self, report: ImagenetReport) -> list[tuple[str, str]]:
        shares = report.result.accuracy.accuracies
        return [(f"top-{k}", f"{shares[k - 1]:.2%}") for k in (1, 5) if k <= len(shares)]

    def fill_page(self, page: Page, report: ImagenetReport, files: Sequence[Path]) -> None:
        sides = dict(zip(report.names, (side.accuracy.accuracies for side in report.sides), strict=True))
        percent = {name: [100 * s for s in values] for name, values in sides.items()}
        count = len(report.result.accuracy.accuracies)
        page.plot(bars("Accuracy", [f"top-{k}" for k in range(1, count + 1)], percent, unit="%"))
        if isinstance(report.comparison, ComparedAccuracy):
            page.section("Two delegates on the same images")
            columns = ("", *(f"only {n} is right" for n in sides), "both", "neither", "difference", "p (McNemar)")
            pairs = {"top-1": report.comparison.top1, "top-5": report.comparison.top5}
            page.table(columns, [_paired_row(name, pair) for name, pair in pairs.items()])
            page.text(f"{report.comparison.same_label:.3%} of the images have the same label put first.")
        page.section("Confusions")
        (picture,) = (path for path in files if path.suffix == ".png")
        page.image(
            picture.read_bytes(), alt="Confusion matrix", caption="Rows: true labels; columns: the label put first."
        )
        wrong = [(t, p, str(n)) for (t, p), n in report.result.confusions.items() if t != p][:_CONFUSIONS]
        page.table(("label", "put first", "images"), wrong, caption="The most frequent mistakes", folded=True)
        page.section("Classes")
        rows = [_class_row(c) for c in _worst_first(report.result)[:_ROWS]]
        page.table(
            ("label", "images", "top-1", "top-5", "mistaken for"),
            rows,
            caption=f"The {len(rows)} of {len(report.result.classes)} with the lowest top-1",
        )


def shown_labels(report: ImagenetReport) -> tuple[str, ...]:
    """Those that occur on either delegate, in the model's order."""
    shown = {label for side in report.sides for pair in side.confusions for label in pair}
    return tuple(dict.fromkeys(label for label in report.data.labels if label in shown))


def _worst_first(result: DelegateAccuracy) -> list[ClassAccuracy]:
    return sorted(result.classes, key=lambda c: (c.top1, -c.images, c.label))


def _class_row(found: ClassAccuracy) -> tuple[str, ...]:
    mistaken = ", ".join(f"{m} ({n})" for m, n in found.mistaken_for)
    return found.label, str(found.images), f"{found.top1:.4f}", f"{found.top5:.4f}", mistaken


def _print_classes(result: DelegateAccuracy) -> None:
    if len(result.classes) > 1:
        print()
        rows = [_class_row(c) for c in _worst_first(result)[:_LISTED]]
        print_table(("lowest top-1 of all labels", "images", "top-1", "top-5", "mistaken for"), rows)


def _print_comparison(names: Sequence[str], second: ComparedAccuracy) -> None:
    print_second(second)
    print(f"same label put first: {second.same_label:.4%} of {second.top1.images} images")
    columns = ("", names[0], names[1], "difference", f"only {names[0]}", f"only {names[1]}", "p (McNemar)")
    pairs: Mapping[int, Paired] = {1: second.top1, 5: second.top5}
    rows = []
    for k, pair in pairs.items():
        shares = ((pair.both + only) / max(pair.images, 1) for only in (pair.only_first, pair.only_second))
        counts = (str(pair.only_first), str(pair.only_second))
        rows.append(
            (f"top-{k}", *(f"{s:.4f}" for s in shares), f"{pair.difference:+.4f}", *counts, f"{pair.p_value:.3g}")
        )
    print_table(columns, rows)
    if second.top1.p_value < _SIGNIFICANT:
        print_warning("The two differ in top-1 accuracy by more than chance explains.")
    else:
        print("The difference in top-1 accuracy is no larger than chance explains.")


def _paired_row(name: str, pair: Paired) -> tuple[str, ...]:
    counts = (pair.only_first, pair.only_second, pair.both, pair.neither)
    return name, *(str(n) for n in counts), f"{pair.difference:+.4f}", f"{pair.p_value:.3g}"
