"""The planted defects fit the code as it stands, and scripts/plant tells what the tests notice of them."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def plant() -> Any:
    loader = importlib.machinery.SourceFileLoader("plant", str(ROOT / "scripts" / "plant"))
    spec = importlib.util.spec_from_loader("plant", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["plant"] = module  # dataclasses look there
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A function, a test that looks at two of its three lines, and a defect in each."""
    (tmp_path / "src").mkdir()
    (tmp_path / "tests" / "defects").mkdir(parents=True)
    (tmp_path / "src" / "half.py").write_text(
        "def half(x):\n    if x < 0:\n        return -1\n    if x > 100:\n        return 100\n    return x // 2\n"
    )
    (tmp_path / "tests" / "test_half.py").write_text(
        "from half import half\n\n\ndef test_half():\n    assert half(7) == 3 and half(-5) == -1\n"
    )
    (tmp_path / "tests" / "defects" / "numbers.txt").write_text(
        "# All of them.\ntests: tests/test_half.py\n\n"
        "[wrong-half] quick\nOdd numbers are rounded up.\nfile: src/half.py\n- x // 2\n+ -(-x // 2)\n\n"
        "[hang]\nNever ends.\nfile: src/half.py\n-     if x < 0:\n+     while x < 0:\n+         pass\n"
        "+     if x < 0:\n\n"
        "[unseen]\nThe limit is another.\nfile: src/half.py\n-         return 100\n+         return 200\n"
    )
    return tmp_path


def test_no_defect_is_stale(plant: Any) -> None:
    """Whoever changes a line that a defect changes has to say what it would be now: tests/defects."""
    defects = plant.read_all(ROOT)
    assert len(defects) >= 120
    stale = [f"{d.area}.txt: {d.id}: {d.old!r} must occur once in {d.file}" for d in defects if d.is_stale(ROOT)]
    assert not stale, "\n".join(stale)
    assert not [d.id for d in defects if d.old == d.new]


def test_every_defect_names_tests_that_are_there(plant: Any) -> None:
    for defect in plant.read_all(ROOT):
        paths = [argument for argument in defect.tests.arguments if argument.startswith("tests/")]
        assert paths and all((ROOT / path.split("::")[0]).exists() for path in paths), defect.id


def test_tells_what_the_tests_notice(plant: Any, project: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(plant, "LEAST_SECONDS", 3)
    before = (project / "src" / "half.py").read_text()
    assert plant.main(["--root", str(project)]) == 1  # two of three are too few
    said = capsys.readouterr().out
    assert "caught" in said.split("wrong-half")[0].splitlines()[-1] and "hang: the tests hang" in said
    assert "unseen: The limit is another." in said and "2 caught, 1 NOT CAUGHT, 0 stale, 0 UNTESTED" in said
    assert (project / "src" / "half.py").read_text() == before
    assert plant.main(["--root", str(project), "--quick"]) == 0
    assert "1 caught, 0 NOT CAUGHT" in capsys.readouterr().out


def test_a_line_that_is_not_there_is_an_error(plant: Any, project: Path, capsys) -> None:
    (project / "src" / "half.py").write_text("def half(x):\n    return -1 if x < 0 else int(x / 2)\n")
    assert plant.main(["--root", str(project), "--id", "wrong-half"]) == 1
    assert "stale" in capsys.readouterr().out


def test_tests_that_fail_unplanted_prove_nothing(plant: Any, project: Path, capsys) -> None:
    (project / "tests" / "test_half.py").write_text("def test_half():\n    assert False\n")
    assert plant.main(["--root", str(project), "--id", "wrong-half"]) == 2
    (project / "tests" / "test_half.py").write_text("import pytest\n\n\ndef test_half():\n    pytest.skip('no GPU')\n")
    assert plant.main(["--root", str(project), "--id", "wrong-half"]) == 2
    said = capsys.readouterr()
    assert "must pass unplanted" in said.err and "1 UNTESTED" in said.out


def test_the_lists_are_read_strictly(plant: Any, project: Path, capsys) -> None:
    path = project / "tests" / "defects" / "numbers.txt"
    good = path.read_text()
    for wrong in (
        good + "files: src/half.py\n",
        good.replace("tests: tests/test_half.py\n", ""),
        good.replace("Never ends.\n", "").replace("[hang]\nfile: src/half.py\n", "[hang]\n"),
        good.replace("[unseen]", "[hang]"),
    ):
        path.write_text(wrong)
        assert plant.main(["--root", str(project), "--list"]) == 2
    path.write_text(good)
    assert plant.main(["--root", str(project), "--list"]) == 0
    assert plant.main(["--root", str(project), "--area", "letters"]) == 2
    assert "there is no area letters" in capsys.readouterr().err
