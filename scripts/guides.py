#!/usr/bin/env python3
"""Runs the commands of the guides and pastes what they print, or checks that the pages still show what they print.

    python scripts/guides.py                   paste into every page of docs/guide
    python scripts/guides.py map.md cache.md   into these pages
    python scripts/guides.py --check           change nothing; exit status 1 and a diff if a page is out of date
    python scripts/guides.py --check --quick   the same without the slow blocks

A comment before a fenced block of a page says what the block is:

    <!-- run -->            commands, each after "$ ", with what they print; a command goes on after a backslash
    <!-- file NAME.py -->   a file for the commands that follow

Words after `run`:

    slow          left out with --quick
    exact         the check compares every character but the device's name; else numbers count as equal
    headings      the check compares the lines at the left margin that have no digits
    keep=1-9,-3   of the output only lines 1 to 9 and the last three; "..." stands for the others
    status=1      the exit status of the last command; 0 if it is not given

The commands of a page run one after another in a temporary folder, in which `models`, `images` and `scripts` are links:
to LITEGPU_MODELS, to LITEGPU_IMAGES, and to this folder. Blocks that need an absent one are left as they are.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GUIDES = ROOT / "docs" / "guide"
_BLOCK = re.compile(
    r"^<!-- (?P<kind>run|file)(?P<words>( [^ \n]+)*) -->\n(?P<fence>```\w*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_PASTED_ON = re.compile(r"\n<!-- pasted on: (.*) -->\n$")
_NUMBER = re.compile(r"[-+]?\d[\d.]*(e[-+]?\d+)?", re.IGNORECASE)
_HASH = re.compile(r"\b[0-9a-f]{12}…")
_SECONDS = 600


class GuideError(Exception):
    """A page that cannot be read, or a command that did not end as the page says."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: where its text lies, what is to be done with it, and the commands in it."""

    start: int
    end: int
    kind: str
    words: tuple[str, ...]
    body: str

    @property
    def commands(self) -> list[str]:
        """The commands, each with the lines that it goes on in."""
        found: list[str] = []
        goes_on = False
        for line in self.body.splitlines():
            if goes_on:
                found[-1] += "\n" + line
            elif line.startswith("$ "):
                found.append(line[2:])
            else:
                continue
            goes_on = line.endswith("\\")
        return found

    def option(self, name: str) -> str | None:
        return next((word.partition("=")[2] for word in self.words if word.startswith(f"{name}=")), None)


@dataclass(frozen=True)
class Outcome:
    """What became of a page. `differences`: a diff for each block whose output is no longer what is pasted."""

    text: str
    differences: tuple[str, ...]
    skipped: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, 1 if a page is out of date or a command fails, 2 for a wrong command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="file names in docs/guide; all by default")
    parser.add_argument("--check", action="store_true", help="change nothing, compare")
    parser.add_argument("--quick", action="store_true", help="leave the slow blocks out")
    options = parser.parse_args(arguments)
    paths = [GUIDES / Path(name).name for name in options.pages] or sorted(GUIDES.glob("*.md"))
    for path in paths:
        if not path.is_file():
            parser.error(f"there is no page {path.name} in docs/guide")
    device = current_device()
    status = 0
    for path in paths:
        text = path.read_text()
        if not any(True for _ in blocks(text)):
            continue
        try:
            outcome = work_through(text, device, quick=options.quick)
        except GuideError as error:
            print(f"{path.name}: {error}", file=sys.stderr)
            status = 1
            continue
        left = f", {outcome.skipped} blocks skipped" if outcome.skipped else ""
        if not options.check:
            path.write_text(outcome.text)
            print(f"{path.name}: pasted{left}")
            continue
        print(f"{path.name}: {'differs' if outcome.differences else 'up to date'}{left}")
        for difference in outcome.differences:
            print(difference)
            status = 1
    return status


def blocks(text: str) -> Iterator[Block]:
    """The marked blocks of a page, in order."""
    for match in _BLOCK.finditer(text):
        words = tuple(match["words"].split())
        yield Block(match.start("body"), match.end("body"), match["kind"], words, match["body"])


def work_through(text: str, device: str, quick: bool = False) -> Outcome:
    """Run a page's commands in a folder of their own. `device` is what the GPU is called here."""
    recorded = _PASTED_ON.search(text)
    names = {device} | ({recorded[1]} if recorded else set())
    pieces, differences, skipped, done = [], [], 0, 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        environment = _prepare(work)
        for block in blocks(text):
            pieces.append(text[done : block.start])
            done = block.end
            new = block.body
            if block.kind == "file":
                (work / block.words[0]).write_text(block.body)
            elif (quick and "slow" in block.words) or not _can_run(block, work):
                skipped += 1
            else:
                new = _run(block, work, environment)
                differences += _difference(block, new, names)
            pieces.append(new)
    pieces.append(text[done:])
    pasted = _PASTED_ON.sub("", "".join(pieces))
    if skipped and recorded:
        return Outcome(pasted + recorded[0], tuple(differences), skipped)
    return Outcome(f"{pasted}\n<!-- pasted on: {device} -->\n", tuple(differences), skipped)


def current_device() -> str:
    """What `litegpu doctor` calls the GPU that it picks, or "none"."""
    done = subprocess.run(
        [sys.executable, "-m", "litegpu", "doctor", "--json"], capture_output=True, text=True, check=False
    )
    found = json.loads(done.stdout)
    return "none" if found["chosen"] is None else str(found["devices"][found["chosen"]]["name"])


def comparable(body: str, words: Sequence[str], devices: set[str]) -> list[str]:
    """The lines of a block as the check compares them."""
    for name in devices:
        body = body.replace(name, "DEVICE")
    lines = body.splitlines()
    if "exact" in words:
        return lines
    if "headings" in words:
        return [line for line in lines if line.startswith("$ ") or re.fullmatch(r"[^\s\d][^\d]*", line)]
    return [_masked(line) for line in lines]


# ----------------------------------------------------------------------------------------------


def _prepare(work: Path) -> dict[str, str]:
    """Links and commands in a new folder; the environment for what runs there."""
    targets = {
        "models": Path(os.environ.get("LITEGPU_MODELS", ROOT.parent / "shared" / "models")),
        "images": Path(os.environ.get("LITEGPU_IMAGES", ROOT.parent / "shared" / "images")),
        "scripts": ROOT / "scripts",
    }
    for name, target in targets.items():
        if target.is_dir():
            (work / name).symlink_to(target.resolve(), target_is_directory=True)
    commands = work / ".bin"
    commands.mkdir()
    for name, arguments in (("litegpu", "-m litegpu"), ("python", "")):
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (commands / name).chmod(0o755)
    # stdout and stderr come in the order in which they are written; nothing depends on the width of a terminal.
    changes = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "PYTHONUNBUFFERED": "1", "COLUMNS": "100"}
    changes |= {"LITEGPU_CACHE_DIR": str(work / ".cache"), "LC_ALL": "C.UTF-8", "TZ": "UTC"}
    dropped = ("LITEGPU_DEBUG", "LITEGPU_MODELS", "LITEGPU_IMAGES", "FORCE_COLOR", "PYTEST_CURRENT_TEST")
    return {name: value for name, value in os.environ.items() if name not in dropped} | changes


def _can_run(block: Block, work: Path) -> bool:
    needed = {name for name in ("models", "images") if re.search(rf"\b{name}/|\b{name}\b(?=\s|$)", block.body)}
    return all((work / name).is_dir() for name in needed)


def _run(block: Block, work: Path, environment: dict[str, str]) -> str:
    """The block's text with what its commands print now."""
    wanted = int(block.option("status") or 0)
    lines = []
    for i, command in enumerate(block.commands):
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {command}"],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        expected = wanted if i == len(block.commands) - 1 else 0
        if done.returncode != expected:
            raise GuideError(f"{command!r} ended with {done.returncode}, not {expected}:\n{done.stdout}")
        output = [line.rstrip() for line in done.stdout.splitlines()]
        lines += [f"$ {command}", *_kept(output, block.option("keep"))]
    return "\n".join(lines) + "\n"


def _kept(lines: Sequence[str], ranges: str | None) -> list[str]:
    """The lines that `ranges` ("1-9,-3") names, with "..." for each gap."""
    if ranges is None:
        return list(lines)
    kept: set[int] = set()
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        if first:
            kept |= set(range(int(first), int(last or first) + 1))
        else:
            kept |= set(range(len(lines) - int(last) + 1, len(lines) + 1))
    found: list[str] = []
    for number, line in enumerate(lines, 1):
        if number in kept:
            found.append(line)
        elif not found or found[-1] != "...":
            found.append("...")
    return found


def _difference(block: Block, new: str, devices: set[str]) -> list[str]:
    """A diff of what is pasted and what would be, if the check tells them apart."""
    old_lines = comparable(block.body, block.words, devices)
    new_lines = comparable(new, block.words, devices)
    if old_lines == new_lines:
        return []
    return ["\n".join(difflib.unified_diff(old_lines, new_lines, "in the page", "printed now", lineterm=""))]


def _masked(line: str) -> str:
    """The line with # for every number, and without regard to the width of columns."""
    return " ".join(_NUMBER.sub("#", _HASH.sub("HASH", line)).split())


if __name__ == "__main__":
    sys.exit(main())
