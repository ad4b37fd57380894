"""Files that are none, and files that change while they are open."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from litegpu import Interpreter, list_models
from litegpu.errors import InvokeError, LiteGpuError, ModelError
from litegpu.model import ModelBuilder, read_model

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files, and keeps open ones whole")


def network() -> bytes:
    model = ModelBuilder()
    x = model.input("x", (1, 1024))
    weights = model.constant(np.ones((64, 1024), np.float32))
    model.output(model.op("FULLY_CONNECTED", [x, weights, None], (1, 64)))
    return model.build()


@pytest.mark.parametrize("kind, message", [
    ("pipe", "is no file"), ("socket", "No such device"), ("device", "is no file"), ("folder", "Is a directory"),
    ("circle", "symbolic links"),
])  # fmt: skip
@pytest.mark.timeout(60)
def test_what_is_no_file(tmp_path: Path, kind: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe that nobody writes to was waited for without end."""
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    path = Path("m.tflite")
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        case "device":
            path = Path("/dev/zero")
        case "folder":
            path.mkdir()
        case "circle":
            path.symlink_to(path)
    for read in (read_model, list_models, lambda path: Interpreter(model_path=str(path))):
        with pytest.raises(ModelError, match=message):
            read(path)


@pytest.mark.parametrize("length", [0, 100, -100])
@pytest.mark.parametrize("allocated", [False, True])
def test_a_file_that_was_cut_is_refused_instead_of_read(tmp_path: Path, length: int, allocated: bool) -> None:
    """The process ended by SIGBUS."""
    path = tmp_path / "m.tflite"
    path.write_bytes(network())
    interpreter = Interpreter(model_path=str(path))
    if allocated:
        interpreter.allocate_tensors()
        interpreter.resize_tensor_input(0, [2, 1024])
    os.truncate(path, length % len(network()))
    with pytest.raises(InvokeError, match=r"has been cut from \d+ to \d+ bytes since it was opened.*os\.replace"):
        interpreter.allocate_tensors()


def test_a_bundle_that_was_cut(tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "m.task"
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("m.tflite", network())
    interpreter = Interpreter(model_path=str(path))
    os.truncate(path, 100)
    with pytest.raises(InvokeError, match="has been cut"):
        interpreter.allocate_tensors()


def test_a_file_that_is_written_into_is_checked_again(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(network())
    interpreter = Interpreter(model_path=str(path))
    with path.open("r+b") as file:
        file.write(bytes(64))
    os.utime(path, ns=(1, 1))
    with pytest.raises(LiteGpuError, match="not a readable"):
        interpreter._setup.source.create(interpreter._setup.options)
    path.write_bytes(network())
    os.utime(path, ns=(2, 2))  # as touch does: the same model
    interpreter = Interpreter(model_path=str(path))
    os.utime(path, ns=(3, 3))
    interpreter.allocate_tensors()
    interpreter.invoke()
