"""The API reference holds every public name, and no page of the project has a dead link."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import litegpu

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("docs", str(ROOT / "scripts" / "docs"))
    spec = importlib.util.spec_from_loader("docs", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_reference(docs: ModuleType, tmp_path: Path) -> None:
    docs.build(tmp_path)
    assert list(docs.dead_links_of_pages(tmp_path)) == []
    for module in docs.MODULES:
        assert (tmp_path / f"{module.replace('.', '/')}.html").is_file()
    found = docs._Page((tmp_path / "litegpu.html").read_text()).anchors
    assert found >= {*litegpu.__all__, "Interpreter.invoke", "GpuDelegate.bind_buffer_to_tensor", "LoadedModel.stream"}
    page = tmp_path / "litegpu.html"
    page.write_text(page.read_text() + '<a href="#Interpreter.nothing">x</a><a href="nowhere.html">y</a>')
    assert len(list(docs.dead_links_of_pages(tmp_path))) == 2


def test_arguments_are_lists(docs: ModuleType) -> None:
    text = "Does it.\n\npath: a file,\n    or bytes.\ndevice: one. Note: this\n    too.\n\nRaises nothing: never."
    assert docs.listed(text) == (
        "Does it.\n\n- `path`: a file,\n    or bytes.\n- `device`: one. Note: this\n    too.\n\nRaises nothing: never."
    )


def test_every_public_name_has_a_docstring(docs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(docs.undocumented()) == []
    monkeypatch.setattr(litegpu.Interpreter.invoke, "__doc__", None)
    monkeypatch.setattr(litegpu.load, "__doc__", "")
    assert sorted(docs.undocumented()) == ["litegpu.Interpreter.invoke", "litegpu.load"]


def test_pages_lead_somewhere(docs: ModuleType, tmp_path: Path) -> None:
    assert list(docs.dead_links_of_texts(ROOT)) == []
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "b.md").write_text("# One `two`, three\n\n# One two three\n\n## Übrig & mehr\n")
    (tmp_path / "README.md").write_text(
        "# A\n[b](docs/b.md) [c](docs/b.md#one-two-three) [d](docs/b.md#one-two-three-1) [e](#a)\n"
        "[f](docs/b.md#übrig--mehr) [g](https://example.org/x)\n```\n[not a link](nowhere)\n```\n"
        "[h](docs/c.md) [i](#b) [j](docs/b.md#one-two-three-2) ![k](picture.png)\n"
    )
    assert [line.split()[1] for line in docs.dead_links_of_texts(tmp_path)] == [
        "docs/c.md", "#b", "docs/b.md#one-two-three-2", "picture.png",
    ]  # fmt: skip


@pytest.mark.parametrize("page", ["architecture.md", "decisions.md"])
def test_these_pages_name_what_there_is(page: str) -> None:
    """Paths in backticks, from the package, from gpu/ or from the project's root; other files where they are meant."""
    text = (ROOT / "docs" / page).read_text()
    package = ROOT / "src" / "litegpu"
    roots = (ROOT, package, package / "gpu", package / "gpu" / "backends", package / "gpu" / "backends" / "cuda")
    named = set(re.findall(r"`((?:[a-z_*]+/)+(?:[a-z_*]+\.(?:py|cu))?|[a-z_]+\.(?:py|cu))`", text))
    assert len(named) > 30
    missing = [name for name in sorted(named) if not any(list(root.glob(name)) for root in roots)]
    assert [name for name in missing if "/" in name or not list(package.rglob(name))] == []
