"""How all evaluations are presented: lines on stdout as the official tools print them, files, a page."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from litegpu.report import Page
from litegpu.tools.console import print_warning
from litegpu.tools.evaluate.collecting import Collected
from litegpu.tools.evaluate.data_set import DelegateResult, EvaluationReport
from litegpu.tools.evaluate.preprocessing import Preprocessing
from litegpu.tools.json_text import json_text
from litegpu.tools.statistics import number
from litegpu.visible import visible
from litegpu.whole_file import write_whole

REPORT, PAGE = "report.json", "report.html"
_LISTED = 10  # images that failed
_ROWS = 200  # of a table that may have thousands; the CSV files have all

Report = TypeVar("Report", bound=EvaluationReport[Any, Any])
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


class Presentation(ABC, Generic[Report]):
    """The frame of all reports; what a data set has to say of its figures, is in its own class."""

    title: ClassVar[str]

    def print(self, report: Report) -> None:
        """For people, and for scripts that read the official tools' lines."""
        print_collected(report.data.task.model_file, report.result.collected)
        self.print_figures(report)

    def write(self, report: Report, output: str | None) -> list[Path]:
        """The files of an evaluation; gives their paths. `output`: the folder, None for the message of metrics alone.

        Raises OptionError where one cannot be written.
        """
        files: list[Path] = []
        if report.data.output_file:
            files.append(write_bytes(Path(report.data.output_file), self.message(report)))
        if output is None:
            return files
        folder = Path(output)
        files.append(write_bytes(folder / REPORT, json_text(report.as_dict()).encode()))
        own = self.write_figures(report, folder)
        collected = report.result.collected
        page = begin_page(self.title, report.data.task.model_file, collected)
        page.figures([*self.key_figures(report), *_key_figures(collected)])
        self.fill_page(page, report, own)
        return [*files, *own, end_page(page, report.data.preprocessing, collected, folder)]

    @abstractmethod
    def print_figures(self, report: Report) -> None:
        """What was measured."""

    def message(self, report: Report) -> bytes:
        """The official tool's message of metrics, for data sets with an `output_file`."""
        raise NotImplementedError

    @abstractmethod
    def write_figures(self, report: Report, folder: Path) -> list[Path]:
        """Tables and pictures of what was measured."""

    @abstractmethod
    def key_figures(self, report: Report) -> list[tuple[str, str]]:
        """The numbers on top of the page."""

    @abstractmethod
    def fill_page(self, page: Page, report: Report, files: Sequence[Path]) -> None:
        """What was measured, on the page. files: those of write_figures()."""


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


def print_second(second: DelegateResult) -> None:
    """Which delegate the result is compared with."""
    print(f"compared with {second.collected.choice}: {second.collected.placement.delegation.summary()}")


def share(value: float | None) -> str:
    """A precision or the like; those that are not defined are None, or negative as pycocotools has it."""
    return f"{value:.4f}" if value is not None and value >= 0 else "-"


def write_bytes(path: Path, content: bytes) -> Path:
    """A file of the report. Raises OptionError."""
    write_whole(path, content)
    return path


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    """A CSV file of the report. Raises OptionError."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[visible(cell) if isinstance(cell, str) else cell for cell in row] for row in rows])
    return write_bytes(path, text.getvalue().encode())


def begin_page(title: str, model: str, collected: Collected) -> Page:
    """A page that says what was evaluated where."""
    where = f"{collected.choice} on {collected.placement.device}" if collected.choice.delegated else "CPU"
    return Page(f"{title}: {Path(model).name}", subtitle=where)


def end_page(page: Page, preprocessing: Preprocessing, collected: Collected, folder: Path) -> Path:
    """How images were prepared, what was skipped, and the graph; then the page is written."""
    page.section("How")
    options: Mapping[str, Any] = asdict(preprocessing)
    page.table(("preprocessing", "value"), [(name, str(value)) for name, value in options.items() if value is not None])
    place = collected.placement
    page.text(f"Images at once: {place.batch}. {place.delegation.summary()}.")
    if collected.failed:
        rows = [(r.name, r.error) for r in collected.failed[:_ROWS]]
        page.table(("skipped image", "why"), rows, caption=f"{len(rows)} of {len(collected.failed)}")
    page.graph(place.graph, folded=True)
    page.write(folder / PAGE)
    return folder / PAGE


def add_drawings(page: Page, files: Sequence[Path]) -> None:
    """The drawings among the files."""
    for path in drawings_of(files):
        page.image(path.read_bytes(), alt=path.stem, caption=path.stem)


def drawings_of(files: Sequence[Path]) -> list[Path]:
    """Those of single images, which are named by their place and the image."""
    return [path for path in files if path.suffix == ".jpg"]


def drawing_path(folder: Path, place: int, image: str) -> Path:
    """Where the drawing of an image is kept that is the worst but `place` - 1."""
    return folder / "worst" / f"{place:02}-{Path(image).stem}.jpg"


def _key_figures(collected: Collected) -> list[tuple[str, str]]:
    """How many images, and how fast."""
    figures = [("images", str(len(collected.good)))]
    if collected.failed:
        figures.append(("skipped", str(len(collected.failed))))
    if collected.rate:
        figures.append(("throughput", f"{collected.rate:.0f} /s"))
    return [*figures, ("inference", f"{collected.inference.average / 1e3:.2f} ms")]
