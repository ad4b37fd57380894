"""Files that are said to hold arrays: one that does is read, any other is one error."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from litegpu.errors import OptionError
from litegpu.tools.arrays import read_archive, read_array

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=True, **arrays)
    return file.getvalue()


PICKLED = np.array([{"a": 1}], object)
HUGE = npy(VALUES).replace(b"(2, 3), }" + b" " * 10, b"(2000000000000000000,)"[:19].ljust(19, b"0"))
HOSTILE = {
    "empty": b"",
    "text": b"no array",
    "cut": npy(VALUES)[:-5],
    "cut header": npy(VALUES)[:20],
    "header": npy(VALUES).replace(b"'descr'", b"((((((("),
    "huge": HUGE,
    "pickled": npy(PICKLED),
    "cut archive": npz(x=VALUES)[:-30],
    "zip": b"PK\x03\x04" + bytes(40),
    "damaged archive": npz(x=VALUES).replace(b"x.npy", b"y.npy", 1),
    "pickled archive": npz(x=PICKLED),
}


@pytest.mark.parametrize("read", [read_array, lambda p, w: read_array(p, w, mapped=True), read_archive])
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_array_is_one_line(read: Callable[[Path, str], object], content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    with pytest.raises(OptionError, match=r"Cannot read the values .*x\.npy: .") as failed:
        read(path, "the values")
    assert "\n" not in str(failed.value)
    with pytest.raises(OptionError, match="No such file"):
        read(tmp_path / "absent.npy", "the values")


def test_arrays_and_archives_are_not_mistaken_for_one_another(tmp_path: Path) -> None:
    (tmp_path / "one.npy").write_bytes(npy(VALUES))
    (tmp_path / "many.npz").write_bytes(npz(x=VALUES, y=-VALUES))
    np.testing.assert_array_equal(read_array(tmp_path / "one.npy", "it", mapped=True), VALUES)
    found = read_archive(tmp_path / "many.npz", "them")
    assert list(found) == ["x", "y"]
    np.testing.assert_array_equal(found["y"], -VALUES)
    with pytest.raises(OptionError, match="magic string"):
        read_array(tmp_path / "many.npz", "it")
    with pytest.raises(OptionError, match="one array, not an archive"):
        read_archive(tmp_path / "one.npy", "them")
