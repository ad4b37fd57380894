#!/usr/bin/env python3
"""Writes what `litegpu advise` and `litegpu analyze` say of many models into docs/examples, or checks that it is there.

    python scripts/examples.py                    all models of LITEGPU_MODELS (or ../shared/models), and one of the zoo
    python scripts/examples.py ad01_int8 zoo      these
    python scripts/examples.py --check zoo        write nothing; exit status 1 and a diff where a page is out of date

Nothing is run and no device is opened, so that every machine writes the same: the GPU delegate is asked without saying
on what it would run, and times are estimated for the H200, by its data sheet.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from litegpu.errors import LiteGpuError
from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.tools.advise import advise, print_advice
from litegpu.tools.analyze import Analysis, analyze, print_analysis
from litegpu.zoo import build_model

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples"
ZOO = "zoo"
_RATES = "H200"
_HEAD = """\
# What the tools say of models

Written by `scripts/examples.py`: `litegpu advise` and `litegpu analyze` (estimates for an H200, float32) of the models
that litegpu is tested with. The [guide](../guide/analyze.md) says what the figures mean.

| model | advise | analyze | ops on the GPU | GFLOP | estimated us | patterns |
| --- | --- | --- | --- | --- | --- | --- |
"""


class AnyGpu:
    """The GPU delegate on a device that is not named."""

    def __init__(self) -> None:
        self._delegate = GpuDelegate()

    def __getattr__(self, name: str) -> Any:
        if name == "open_device":
            raise AttributeError(name)
        return getattr(self._delegate, name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 1 if a page is out of date."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("models", nargs="*", help=f"names of files without .tflite, or {ZOO}; all by default")
    parser.add_argument("--check", action="store_true", help="change nothing, compare")
    options = parser.parse_args(arguments)
    pages = {name: content for model in options.models or all_models() for name, content in examples(model).items()}
    if not options.models:
        pages["README.md"] = _HEAD + "".join(row(model) for model in all_models())
    if options.check:
        return 1 if any([_differs(name, content) for name, content in pages.items()]) else 0
    EXAMPLES.mkdir(exist_ok=True)
    for name, content in pages.items():
        (EXAMPLES / name).write_text(content)
    print(f"{len(pages)} pages in {EXAMPLES}")
    return 0


def all_models() -> list[str]:
    """Names of the models that are there."""
    return [*sorted(path.stem for path in folder().glob("*.tflite")), ZOO]


def folder() -> Path:
    """Where models are."""
    return Path(os.environ.get("LITEGPU_MODELS", ROOT.parent / "shared" / "models"))


def source(model: str) -> Path | bytes:
    """What the tools are given."""
    if model == ZOO:
        return build_model("mobilenet_v1", width=0.25, resolution=64, classes=10)
    return folder() / f"{model}.tflite"


def examples(model: str) -> dict[str, str]:
    """File name -> content, of one model."""
    return {f"{model}.advise.txt": said(model, _advise), f"{model}.analyze.txt": said(model, _analyze)}


def said(model: str, tool: Callable[[str], None]) -> str:
    """What a tool prints; of what is no model its error."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            tool(model)
        except LiteGpuError as error:
            print(f"litegpu: {str(error).replace(f'{folder()}{os.sep}', '')}")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def row(model: str) -> str:
    """A line of the table."""
    links = f"| {model} | [text]({model}.advise.txt) | [text]({model}.analyze.txt) |"
    try:
        found = _analysis(model)
    except LiteGpuError:
        return f"{links} no model |  |  |  |\n"
    gpu = sum(op.owner == "GPU" for op in found.ops)
    patterns = ", ".join(dict.fromkeys(finding.pattern for finding in found.findings)) or "none"
    flops = sum(op.flops for op in found.ops) / 1e9
    return f"{links} {gpu} of {len(found.ops)} | {flops:.3f} | {found.total * 1e6:.0f} | {patterns} |\n"


def _advise(model: str) -> None:
    print_advice(replace(advise(source(model), delegates=[AnyGpu()]), model=_title(model)))


def _analyze(model: str) -> None:
    print_analysis(_analysis(model))


def _analysis(model: str) -> Analysis:
    return replace(analyze(source(model), rates=_RATES), model=_title(model))


def _title(model: str) -> str:
    return "mobilenet_v1 of the zoo, width 0.25, 64x64" if model == ZOO else f"{model}.tflite"


def _differs(name: str, content: str) -> bool:
    path = EXAMPLES / name
    old = path.read_text() if path.is_file() else ""
    difference = list(difflib.unified_diff(old.splitlines(), content.splitlines(), name, "now", lineterm=""))
    if difference:
        print("\n".join(difference))
    return bool(difference)


if __name__ == "__main__":
    sys.exit(main())
