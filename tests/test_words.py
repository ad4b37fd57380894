"""One word for one thing: the terms of docs/architecture.md are in the code, and no two classes have one name."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "litegpu"
#: Each backend has one, for the same thing.
OF_EACH_BACKEND = {"Bindings", "Bound", "BoundSession"}
_ROW = re.compile(
    r"^\| (?P<word>[^|`]+) \| `(?P<name>\w+)`, `(?P<file>[\w/.]+)` \| (?P<meaning>[^|]+) \|$", re.MULTILINE
)


@cache
def defined(file: Path) -> dict[str, ast.stmt]:
    """The classes and functions at the top of a module."""
    kinds = ast.ClassDef | ast.FunctionDef
    return {node.name: node for node in ast.parse(file.read_text()).body if isinstance(node, kinds)}


def glossary() -> list[tuple[str, str, str, str]]:
    text = (ROOT / "docs" / "architecture.md").read_text()
    section = text.split("## Words\n", 1)[1].split("\n## ", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][2:]
    found = [_ROW.fullmatch(row) for row in rows]
    assert all(found), [row for row, match in zip(rows, found, strict=True) if not match]
    return [(match["word"], match["name"], match["file"], match["meaning"]) for match in found if match]


def test_the_words_of_the_glossary_are_in_the_code() -> None:
    rows = glossary()
    assert len(rows) >= 30
    words = [part for word, *_ in rows for part in word.split(", ")]
    assert len(words) == len(set(words)), "a word is explained twice"
    for word, name, file, meaning in rows:
        assert (PACKAGE / file).is_file(), f"{word}: there is no {file}"
        assert name in defined(PACKAGE / file), f"{word}: {file} has no {name}"
        assert not meaning.endswith("."), word


def test_no_two_classes_have_one_name() -> None:
    places = defaultdict(list)
    for file in PACKAGE.rglob("*.py"):
        for name, node in defined(file).items():
            if isinstance(node, ast.ClassDef) and not name.startswith("_"):
                places[name].append(str(file.relative_to(PACKAGE)))
    shared = {name: files for name, files in places.items() if len(files) > 1 and name not in OF_EACH_BACKEND}
    assert not shared
    for name in OF_EACH_BACKEND:
        assert all(file.startswith("gpu/backends/") for file in places[name]) and len(places[name]) > 1, name


def test_modules_of_the_tools_have_names_of_their_own() -> None:
    """An editor's tab or a traceback shows the last part alone."""
    places = defaultdict(list)
    for file in [*(PACKAGE / "tools").rglob("*.py"), *(PACKAGE / "report").glob("*.py")]:
        if file.name != "__init__.py":
            places[file.name].append(str(file.relative_to(PACKAGE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
