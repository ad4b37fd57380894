"""The guides show what their commands print, by scripts/guides.py, which is tested as well."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from agreement import require_gpu

ROOT = Path(__file__).resolve().parents[1]
PAGE = """# A page

<!-- file a.txt -->
```
one
two
```

<!-- run -->
```
$ cat a.txt; \\
    echo 3 things
one
two
4 things
```

<!-- run slow status=3 -->
```
$ exit 3
```

<!-- run exact keep=1,-1 -->
```
$ seq 5
1
...
5
```
"""


@pytest.fixture(scope="module")
def guides() -> ModuleType:
    spec = importlib.util.spec_from_file_location("guides", ROOT / "scripts" / "guides.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["guides"] = module  # where its dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


def test_blocks(guides: ModuleType) -> None:
    found = list(guides.blocks(PAGE))
    assert [block.kind for block in found] == ["file", "run", "run", "run"]
    assert [block.words for block in found] == [("a.txt",), (), ("slow", "status=3"), ("exact", "keep=1,-1")]
    assert found[1].commands == ["cat a.txt; \\\n    echo 3 things"] and found[2].option("status") == "3"


def test_a_page_is_checked_and_pasted(guides: ModuleType) -> None:
    outcome = guides.work_through(PAGE, "a GPU")
    assert not outcome.differences and not outcome.skipped, "only a number differs"
    assert "3 things\n```" in outcome.text and outcome.text.endswith("<!-- pasted on: a GPU -->\n")
    again = guides.work_through(outcome.text, "another GPU", quick=True)
    assert not again.differences and again.skipped == 1


@pytest.mark.parametrize(
    ("was", "becomes"), [("\ntwo\n4", "\nthree\n4"), ("$ seq 5", "$ seq 6"), ("things\none", "things\n\none")]
)
def test_what_differs_is_told(guides: ModuleType, was: str, becomes: str) -> None:
    changed = PAGE.replace(was, becomes)
    assert changed != PAGE and len(guides.work_through(changed, "a GPU").differences) == 1


def test_a_command_that_fails_ends_it(guides: ModuleType) -> None:
    with pytest.raises(guides.GuideError, match="ended with 4, not 3"):
        guides.work_through(PAGE.replace("$ exit 3", "$ exit 4"), "a GPU")


def _as_where_they_were_pasted(guides: ModuleType) -> None:
    require_gpu()
    if "llvmpipe" not in guides.current_device():
        pytest.skip("the guides show Mesa's software driver; a GPU prints more, such as energy")


@pytest.mark.parametrize(
    "page",
    [
        "run.md", "cache.md", "advise.md", "inference_diff.md", "map.md", "benchmark.md", "migration.md",
        "migration_python.md", "migration_mobile.md", "migration_native.md", "migration_options.md",
    ],
)  # fmt: skip
def test_the_guides_show_what_is_printed(guides: ModuleType, page: str) -> None:
    _as_where_they_were_pasted(guides)
    command = [sys.executable, str(ROOT / "scripts" / "guides.py"), "--check", "--quick", page]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\nIf that is meant: python scripts/guides.py"


@pytest.mark.slow
def test_all_guides(guides: ModuleType) -> None:
    _as_where_they_were_pasted(guides)
    command = [sys.executable, str(ROOT / "scripts" / "guides.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
