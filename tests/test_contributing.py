"""CONTRIBUTING.md names what there is; the hooks for commits run what `make lint` runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
FOLDERS = (ROOT, ROOT / "src" / "litegpu", ROOT / "src" / "litegpu" / "gpu")


def test_the_files_that_it_names_are_there() -> None:
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    quoted = re.findall(r"`((?!\.venv)(?:[\w.]+/)+[\w.]*)[` ]", TEXT)
    assert len(links) > 5 and len(quoted) > 20
    missing = [name for name in links + quoted if not any((folder / name).exists() for folder in FOLDERS)]
    assert not missing


def test_the_commands_that_it_names_are_there() -> None:
    targets = set(re.findall(r"\bmake ([a-z][a-z-]+)\b", TEXT)) - {"an", "printed"}
    assert {"setup", "test", "lint", "wheel", "bench"} <= targets
    assert targets <= set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    for name, flags in re.findall(r"^    \S*?(scripts/[\w.]+)(.*?) *#", TEXT, re.MULTILINE):
        script = (ROOT / name).read_text()
        for flag in re.findall(r"--[a-z-]+", flags):
            assert f'"{flag}"' in script, f"{name} {flag}"


def test_hooks_run_what_make_lint_runs() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (.*)", text) == ["local"], "nothing is fetched"
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert lint is not None

    def tools(pattern: str, source: str) -> list[str]:
        return [" ".join(re.findall(r"(?<!\S)[a-z]+", words)) for words in re.findall(pattern, source)]

    assert tools(r"entry: \.venv/bin/(.*)", text) == tools(r"\t\$\(BIN\)/(.*)", lint[1])


@pytest.mark.parametrize("name", ["COMMANDS", "_BUILD", "RUNNERS"])
def test_the_tables_that_it_names_are_there(name: str) -> None:
    places = {
        "COMMANDS": "tests/test_command_conventions.py",
        "_BUILD": "src/litegpu/gpu/kernels/builders.py",
        "RUNNERS": "tests/gpu/lang/runners.py",
    }
    assert f"`{name}`" in TEXT
    assert re.search(rf"^{name}\b.* = ", (ROOT / places[name]).read_text(), re.MULTILINE)


def test_parts_of_sweeps_are_all_of_them() -> None:
    """Each case is in one part, those of tests with few are in all."""

    def collected(*options: str) -> set[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options]
        found = subprocess.run(
            [*command, "tests/gpu/test_view.py"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return {line for line in found.stdout.splitlines() if "::" in line}

    every, first, second = collected(), collected("--part=0/2"), collected("--part=1/2")
    few = {name for name in every if "[" not in name}
    assert few and first | second == every and few <= first & second
    for part in (first, second):
        assert len(every) / 3 < len(part) < len(every) * 2 / 3
