#!/usr/bin/env python3
"""Takes the screenshots of tools' pages that the guides show: docs/pictures/*.png, in a headless Chromium.

    python scripts/pictures.py                 all
    python scripts/pictures.py advise_page     these

The model is one of LITEGPU_MODELS (or ../shared/models). Nothing is run and no device is opened; times are estimates
for the H200. A page whose console complains ends it with status 1."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "scripts")]

from browser import Browser  # noqa: E402

from examples import AnyGpu  # noqa: E402
from litegpu.tools import advise as advising  # noqa: E402
from litegpu.tools import analyze as analysing  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
MODEL = "ssd_mobilenet_v1_coco_quant"
NODE = 30


def analyze_graph(model: Path, page: Path, browser: Browser) -> None:
    """The graph around a node, which is chosen, and its figures below."""
    analysing.write_graph_page(analysing.analyze(model, rates="H200"), model, page)
    browser.open(page)
    browser.run("document.querySelector('canvas').focus()")
    browser.press("Home", "/", *str(NODE), "Enter", "Escape")
    browser.run("document.querySelector('canvas').focus()")
    browser.press("-", "-")
    browser.run(
        "document.querySelector('canvas').scrollIntoView(), scrollBy(0, -72), "
        "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def advise_page(model: Path, page: Path, browser: Browser) -> None:
    """The top of the page: what is recommended, and what the delegate leaves and why."""
    advice = advising.advise(model, delegates=[AnyGpu()])
    advising.write_page(advice, model, page)
    browser.open(page)


SHOTS: dict[str, Callable[[Path, Path, Browser], None]] = {"analyze_graph": analyze_graph, "advise_page": advise_page}


def main(names: Sequence[str]) -> int:
    models = Path(os.environ.get("LITEGPU_MODELS", ROOT.parent / "shared" / "models"))
    status = 0
    for name in names or SHOTS:
        with tempfile.TemporaryDirectory() as folder:
            with Browser(Path(folder) / "profile", 1000, 1100) as browser:
                SHOTS[name](models / f"{MODEL}.tflite", Path(folder) / f"{name}.html", browser)
                browser.shot(PICTURES / f"{name}.png")
            if browser.complaints:
                print(f"{name}: {browser.complaints}", file=sys.stderr)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
