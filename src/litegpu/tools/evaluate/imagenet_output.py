"""The report of an ILSVRC evaluation: lines on stdout as the official tool prints them, and files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from litegpu.tools.console import print_table, print_warning
from litegpu.tools.evaluate.collecting import REPORT, Collected, write_bytes, write_table
from litegpu.tools.evaluate.confusion import confusion_matrix, confusion_picture
from litegpu.tools.evaluate.imagenet import Comparison, DelegateAccuracy, ImagenetReport
from litegpu.tools.evaluate.pages import write_imagenet_page
from litegpu.tools.evaluate.paired import Paired
from litegpu.tools.evaluate.stage_metrics import classification_metrics
from litegpu.tools.images import save_image
from litegpu.tools.statistics import number

_LISTED = 10  # classes, confusions, images that failed
_SIGNIFICANT = 0.05


def print_report(report: ImagenetReport) -> None:
    """For people and for scripts that read the official tool's lines."""
    print_collected(report.task.model_file, report.result.collected)
    for k, share in enumerate(report.result.accuracy.accuracies, 1):
        print(f"Top-{k} Accuracy: {number(share)}")
    _print_classes(report.result)
    if report.comparison:
        print()
        _print_comparison(report.result, report.comparison)


def write_report(report: ImagenetReport, output: str | None) -> list[Path]:
    """The files of an evaluation; gives their paths. `output`: the folder, None for the message of metrics alone."""
    files: list[Path] = []
    if report.task.output_file_path:
        collected = report.result.collected
        message = classification_metrics(
            collected.preprocessing, collected.inference, report.result.accuracy.accuracies
        )
        files.append(write_bytes(Path(report.task.output_file_path), message))
    if output is None:
        return files
    folder = Path(output)
    files.append(write_bytes(folder / REPORT, json.dumps(report.as_dict(), indent=2).encode()))
    rows = [
        (c.label, c.images, c.top1, c.top5, "; ".join(f"{label} ({n})" for label, n in c.mistaken_for))
        for c in report.result.classes
    ]
    files.append(write_table(folder / "classes.csv", ("label", "images", "top1", "top5", "mistaken_for"), rows))
    pairs = [(truth, predicted, n) for (truth, predicted), n in report.result.confusions.items()]
    files.append(write_table(folder / "confusion.csv", ("label", "put_first", "images"), pairs))
    matrix = confusion_matrix(report.result.confusions, report.labels)
    save_image(folder / "confusion.png", confusion_picture(matrix, report.labels))
    files.append(folder / "confusion.png")
    files.append(write_imagenet_page(report, folder, (folder / "confusion.png").read_bytes()))
    return files


def print_collected(model: str, collected: Collected) -> None:
    """What ran where and how long it took; the last three lines are the official tools'."""
    place = collected.placement
    print(f"{model} on {collected.choice}: {place.delegation.summary()}")
    print(f"device: {place.device}; images at once: {place.batch}" + (f" ({place.note})" if place.note else ""))
    if collected.reused:
        print(f"{collected.reused} of {len(collected.records)} images were evaluated before")
    if collected.rate:
        print(f"throughput: {collected.rate:.1f} images/s, decoding included")
    if collected.failed:
        print_warning(f"{len(collected.failed)} images were skipped:")
        for record in collected.failed[:_LISTED]:
            print(f"  {record.name}: {record.error}")
        if len(collected.failed) > _LISTED:
            print(f"  ... and {len(collected.failed) - _LISTED} more (--json lists all)")
    print()
    print(f"Num evaluation runs: {len(collected.good)}")
    for name, times in (("Preprocessing", collected.preprocessing), ("Inference", collected.inference)):
        print(f"{name} latency: avg={number(times.average)}(us), std_dev={times.deviation}(us)")


def _print_classes(result: DelegateAccuracy) -> None:
    if len(result.classes) > 1:
        print()
        worst = sorted(result.classes, key=lambda c: (c.top1, -c.images, c.label))[:_LISTED]
        rows = [
            (
                c.label,
                str(c.images),
                f"{c.top1:.4f}",
                f"{c.top5:.4f}",
                ", ".join(f"{m} ({n})" for m, n in c.mistaken_for),
            )
            for c in worst
        ]
        print_table(("lowest top-1 of all labels", "images", "top-1", "top-5", "mistaken for"), rows)


def _print_comparison(first: DelegateAccuracy, comparison: Comparison) -> None:
    second = comparison.other
    names = [str(side.collected.choice) for side in (first, second)]
    print(f"compared with {names[1]}: {second.collected.placement.delegation.summary()}")
    print(f"same label put first: {comparison.same_label:.4%} of {comparison.top1.images} images")
    columns = ("", names[0], names[1], "difference", f"only {names[0]}", f"only {names[1]}", "p (McNemar)")
    pairs: Mapping[int, Paired] = {1: comparison.top1, 5: comparison.top5}
    rows = []
    for k, pair in pairs.items():
        shares = ((pair.both + only) / max(pair.images, 1) for only in (pair.only_first, pair.only_second))
        counts = (str(pair.only_first), str(pair.only_second))
        rows.append(
            (f"top-{k}", *(f"{s:.4f}" for s in shares), f"{pair.difference:+.4f}", *counts, f"{pair.p_value:.3g}")
        )
    print_table(columns, rows)
    if comparison.top1.p_value < _SIGNIFICANT:
        print_warning("The two differ in top-1 accuracy by more than chance explains.")
    else:
        print("The difference in top-1 accuracy is no larger than chance explains.")
