"""The migration guide names every call of the official Python classes, and what it names of litegpu exists."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import litegpu
import litegpu.cli
from litegpu.cli.application import app
from litegpu.delegate_registry import others

GUIDES = Path(__file__).resolve().parents[1] / "docs" / "guide"
PAGES = sorted(GUIDES.glob("migration*.md"))
#: What the variables in the tables stand for.
OBJECTS: dict[str, Any] = {
    "litegpu": litegpu,
    "interpreter": litegpu.Interpreter,
    "model": litegpu.LoadedModel,
    "delegate": litegpu.GpuDelegate,
    "runner": litegpu.SignatureRunner,
    "report": litegpu.DelegationReport,
}
#: Arguments of load() and Interpreter that tables of options name, which are none of the delegate.
ARGUMENTS = {"num_threads", "fallback", "experimental_op_resolver_type", "experimental_delegates"}
#: Of the original's structure: facts of another language, which cannot be looked up here.
V2_FIELDS = [
    "is_precision_loss_allowed",
    "inference_preference",
    "inference_priority1",
    "inference_priority2",
    "inference_priority3",
    "experimental_flags",
    "max_delegated_partitions",
    "serialization_dir",
    "model_token",
    "first_delegate_node_index",
    "last_delegate_node_index",
    "gpu_invoke_loop_times",
]
_SPAN = re.compile(r"`([^`]+)`")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@cache
def text(page: str) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", (GUIDES / page).read_text())


@cache
def words(page: str, section: str = "") -> frozenset[str]:
    """The identifiers in the code spans of a page, or of its section whose heading begins so."""
    whole = text(page)
    if section:
        parts = re.split(r"^(?=#+ )", whole, flags=re.MULTILINE)
        (whole,) = (part for part in parts if re.match(rf"#+ {section}\b", part))
    return frozenset(word for span in _SPAN.findall(whole) for word in re.findall(r"\w+", span))


def cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def counterparts(page: str) -> Iterator[str]:
    """The cells of the columns "litegpu" of a page's tables."""
    column, width = None, 0
    for line in text(page).splitlines():
        if not line.startswith("|"):
            column, width = None, 0
            continue
        row = cells(line)
        if width == 0:
            width = len(row)
            named = [i for i, cell in enumerate(row) if cell.startswith("litegpu")]
            assert len(named) <= 1, line
            column = named[0] if named else None
        assert len(row) == width, f"{page}: {line}"
        if column is not None and not set(row[column]) <= set("- ") and not row[column].startswith("litegpu:"):
            yield row[column]
        assert column is None or row[column], f"{page}: no counterpart, nor why there is none: {line}"


def members(kind: type) -> list[str]:
    """The methods, properties and fields of a class, but no special methods; of an enumeration its members."""
    if issubclass(kind, enum.Enum):
        return sorted(kind.__members__)
    fields = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    return sorted({*fields, *(name for name in vars(kind) if not name.startswith("__"))})


@pytest.mark.parametrize(
    ("module", "kind", "section"),
    [
        ("interpreter", "Interpreter", "Interpreter"),
        ("interpreter", "InterpreterWithCustomOps", "Interpreter"),
        ("interpreter", "SignatureRunner", "SignatureRunner"),
        ("interpreter", "Delegate", "Delegates"),
        ("interpreter", "OpResolverType", "Delegates"),
        ("compiled_model", "CompiledModel", "CompiledModel"),
        ("compiled_model", "HardwareAccelerator", "CompiledModel"),
        ("compiled_model", "TensorBuffer", "TensorBuffer"),
        ("compiled_model", "Environment", "Environment"),
        ("compiled_model", "EnvironmentOptions", "Environment"),
        ("compiled_model", "Options", "Environment"),
    ],
)
def test_every_call_of_the_official_classes_is_named(module: str, kind: str, section: str) -> None:
    found = getattr(importlib.import_module(f"ai_edge_litert.{module}"), kind)
    internal = {name for name in members(found) if name.startswith("_")} if module == "compiled_model" else set()
    missing = {kind, *members(found)} - internal - words("migration_python.md", section)
    assert not missing, f"name them in docs/guide/migration_python.md, {section}: {sorted(missing)}"


def test_every_argument_of_the_official_interpreter_is_named() -> None:
    official = importlib.import_module("ai_edge_litert.interpreter").Interpreter
    arguments = official.__init__.__code__.co_varnames[1 : official.__init__.__code__.co_argcount]
    assert len(arguments) > 5 and set(arguments) <= words("migration_python.md")


@pytest.mark.parametrize("kind", ["GpuOptions", "CpuOptions", "CpuKernelMode", "IntelOpenVinoOptions"])
def test_every_option_of_the_official_model_is_named(kind: str) -> None:
    found = getattr(importlib.import_module("ai_edge_litert.compiled_model"), kind)
    missing = {n for n in members(found) if (n.islower() and n[0] != "_") or issubclass(found, enum.Enum)}
    missing -= words("migration_options.md")
    assert not missing, f"name them in docs/guide/migration_options.md: {sorted(missing)}"


def test_every_option_of_the_original_delegate_and_of_ours_is_named() -> None:
    ours = {field.name for field in dataclasses.fields(litegpu.GpuDelegateOptions)}
    assert not {*V2_FIELDS, *ours} - words("migration_options.md")
    for kind in (litegpu.InferencePreference, litegpu.InferencePriority, litegpu.ExperimentalFlags, litegpu.WaitType):
        here = {word.upper() for word in words("migration_options.md")}
        assert {member.name for member in kind} <= here


def test_private_calls_that_are_used_all_the_same_are_here() -> None:
    official = importlib.import_module("ai_edge_litert.interpreter")
    for kind in (official.Interpreter, official.SignatureRunner):
        assert all(hasattr(getattr(litegpu, kind.__name__), name) for name in members(kind))


@pytest.mark.parametrize("page", [page.name for page in PAGES])
def test_what_is_named_of_litegpu_exists(page: str) -> None:
    found = list(counterparts(page))
    assert found, "no table has a column named litegpu"
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    for cell in found:
        for span in _SPAN.findall(cell):
            for owner, name in re.findall(r"\b(\w+)\.(\w+)", span):
                if owner in OBJECTS:
                    assert hasattr(OBJECTS[owner], name), f"{page}: {span}"
            if span.startswith("litegpu "):
                assert span.split()[1] in commands, f"{page}: {span}"
            option, equals, value = span.partition("=")
            if re.fullmatch(r"\w+", option) and equals and option not in ARGUMENTS:
                litegpu.GpuDelegateOptions(**{option: ast.literal_eval(value)})


def test_options_in_the_tables_of_options_exist() -> None:
    """Bare names as well: in these tables what stands in the column is an option, unless it has a dot or a space."""
    ours = {field.name for field in dataclasses.fields(litegpu.GpuDelegateOptions)} | ARGUMENTS
    others = {"OptionError", "BUILTIN", "BUILTIN_REF", "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "litegpu"}
    named = {span.partition("=")[0] for cell in counterparts("migration_options.md") for span in _SPAN.findall(cell)}
    wrong = {name for name in named if re.fullmatch(r"\w+", name)} - ours - others
    assert not wrong
    assert len(named & ours) > 15


def test_every_delegate_of_litegpu_is_beside_an_original_one() -> None:
    named = " ".join(counterparts("migration_options.md"))
    for name in others():
        assert f'litegpu.load_delegate("{name}"' in named, (
            f"docs/guide/migration_options.md: {name} beside the original's"
        )


@pytest.mark.parametrize("page", [page.name for page in PAGES])
def test_every_snippet_is_run(page: str) -> None:
    """By scripts/guides.py: it is a file, and a block that runs it follows."""
    whole = (GUIDES / page).read_text()
    files = re.findall(r"^<!-- file (\S+) -->\n```python\n", whole, re.MULTILINE)
    assert files and len(files) == whole.count("```python")
    for name in files:
        assert re.search(rf"^<!-- run.*-->\n```\n\$ python {re.escape(name)}\b", whole, re.MULTILINE)


def test_the_index_leads_to_every_page() -> None:
    links = re.findall(r"\]\((migration\w*\.md)\)", (GUIDES / "migration.md").read_text())
    assert {page.name for page in PAGES} - {"migration.md"} <= set(links)
