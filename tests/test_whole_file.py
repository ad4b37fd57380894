"""Files are there whole, or as they were before."""

from __future__ import annotations

import os
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu.errors import OptionError
from litegpu.report import Page, bars
from litegpu.tools.images import save_image
from litegpu.whole_file import write_whole

needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX's links, modes and pipes")


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what is written arrives."""
    write = Path.write_bytes

    def failing(path: Path, content: Any) -> int:
        write(path, content[: len(content) // 2])
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", failing)


def test_files_are_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_whole(path, "größer")
    assert path.read_text(encoding="utf-8") == "größer"
    write_whole(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff" and [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_full_disk_changes_nothing(tmp_path: Path, full_disk: None) -> None:
    (tmp_path / "old.png").write_text("before")
    writers = {
        "a.html": lambda path: Page("title").write(path),
        "a.svg": lambda path: bars("title", ["a"], {"x": [1.0]}).write(path),
        "a.png": lambda path: bars("title", ["a"], {"x": [1.0]}).write(path),
        "old.png": lambda path: save_image(path, np.zeros((4, 4, 3), np.uint8)),
    }
    for name, write in writers.items():
        with pytest.raises(OptionError, match=rf"Cannot write .*{name}: No space left on device"):
            write(tmp_path / name)
    assert [p.name for p in tmp_path.iterdir()] == ["old.png"]
    assert (tmp_path / "old.png").read_text() == "before"


def test_pictures_of_no_known_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"Pillow writes no files that end in '.xyz'"):
        save_image(tmp_path / "a.xyz", np.zeros((4, 4, 3), np.uint8))
    save_image(tmp_path / "a.JPG", np.zeros((4, 4, 3), np.uint8))
    assert (tmp_path / "a.JPG").read_bytes().startswith(b"\xff\xd8")


@needs_posix
def test_links_modes_and_pipes_stay_what_they_are(tmp_path: Path) -> None:
    path, link, pipe = tmp_path / "file", tmp_path / "link", tmp_path / "pipe"
    path.write_text("before")
    path.chmod(0o640)
    link.symlink_to(path)
    write_whole(link, "after")
    assert link.is_symlink() and path.read_text() == "after" and stat.S_IMODE(path.stat().st_mode) == 0o640
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    write_whole(pipe, "through")
    reader.join(timeout=10)
    assert found == ["through"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="Cannot write"):
        write_whole(tmp_path, "text")
