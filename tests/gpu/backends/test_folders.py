"""A backend is one folder: nothing but the registry and texts for people names one from outside."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import litegpu
from litegpu.gpu.backends import registry

ROOT = Path(litegpu.__file__).parent
FOLDERS = ROOT / "gpu" / "backends"
NAMES = re.compile("cuda|webgpu|wgpu|vulkan|wgsl", re.IGNORECASE)
#: What users call.
PUBLIC = {"wgpu_device"}


def words(tree: ast.AST) -> Iterator[str]:
    """Names, modules, and strings of one word; texts have several."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.keyword(arg=str(word)):
                yield word
            case ast.FunctionDef(name=word) | ast.ClassDef(name=word) | ast.alias(name=word):
                yield word
            case ast.ImportFrom(module=str(word)):
                yield word
            case ast.Constant(value=str(word)) if not re.search(r"\s", word.strip()):
                yield word


def named(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # a one-word piece of a formatted text is text
    pieces = {id(piece) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for piece in node.values}
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                setattr(
                    node, field, [one for one in value if id(one) not in pieces or not isinstance(one, ast.Constant)]
                )
    return [word for word in words(tree) if NAMES.search(word) and word not in PUBLIC]


def outside() -> list[Path]:
    return [
        path
        for path in sorted(ROOT.rglob("*.py"))
        if path != FOLDERS / "registry.py" and not any(path.is_relative_to(FOLDERS / name) for name in registry.ENTRIES)
    ]


def test_nothing_outside_a_backend_s_folder_names_it() -> None:
    assert len(outside()) > 200
    assert {str(path.relative_to(ROOT)): named(path) for path in outside() if named(path)} == {}


@pytest.mark.parametrize("name", registry.ENTRIES)
def test_no_backend_names_another(name: str) -> None:
    others = re.compile("|".join(f"litegpu.gpu.backends.{other}\\b" for other in registry.ENTRIES if other != name))
    texts = {path.name: path.read_text(encoding="utf-8") for path in (FOLDERS / name).rglob("*.py")}
    assert texts and [file for file, text in texts.items() if others.search(text)] == []


def test_the_search_finds_what_it_looks_for(tmp_path: Path) -> None:
    for number, code in enumerate(
        ["import cuda", "x.cuda_device", "from a.wgpu import b", 'y = "webgpu"', "def vulkan(): 0"]
    ):
        path = tmp_path / f"{number}.py"
        path.write_text(code)
        assert named(path), code
    (tmp_path / "text.py").write_text('"""Through CUDA."""\nraise E(f"not {x} cuda: give \\"cuda\\"")')
    assert named(tmp_path / "text.py") == []
