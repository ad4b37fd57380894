"""Folders of data with links in a circle, and with what is no file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from PIL import Image

from litegpu.errors import OptionError
from litegpu.tools.evaluate.image_list import list_images
from litegpu.tools.mapping.sources import _FolderPart

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="such links and pipes are not on Windows")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "images"
    (made / "more").mkdir(parents=True)
    for path in (made / "a.png", made / "more" / "b.png"):
        Image.new("RGB", (2, 2)).save(path)
    return made


def paths(folder: Path) -> list[str]:
    return [os.path.relpath(path, folder) for path in _FolderPart(str(folder)).paths()]


def test_folders_that_lead_back_are_gone_through_once(folder: Path) -> None:
    """Two such links made 2^40 ways."""
    (folder / "x").symlink_to(folder)
    (folder / "more" / "y").symlink_to(folder)
    assert paths(folder) == ["a.png", "more/b.png"]
    (folder / "z").symlink_to(folder / "more")  # the same folder twice, but not in itself
    assert paths(folder) == ["a.png", "more/b.png", "z/b.png"]


def test_links_that_lead_nowhere_are_listed_as_files_that_cannot_be_read(folder: Path) -> None:
    """One of them ended the whole run."""
    (folder / "c.png").symlink_to(folder / "c.png")
    (folder / "d.png").symlink_to(folder / "missing")
    assert paths(folder) == ["a.png", "c.png", "d.png", "more/b.png"]
    assert [item.name for item in list_images(folder)] == ["a.png", "c.png", "d.png"]
    assert list_images(folder)[1].stamp is None


def test_pipes_are_no_images(folder: Path) -> None:
    """Who opened one waited without end."""
    os.mkfifo(folder / "p.png")
    assert paths(folder) == ["a.png", "more/b.png"]
    with pytest.raises(OptionError, match=r"1 files that are no images, such as 'p\.png'"):
        list_images(folder)
