"""Files that cannot be written, pipes that are closed, names that are hostile: results are shown, and nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import litegpu
from litegpu import cli
from litegpu.errors import OptionError
from litegpu.model import ModelBuilder
from litegpu.model.types import TensorType
from litegpu.tools.evaluate.image_list import Item
from litegpu.tools.evaluate.records import RecordFile
from litegpu.tools.evaluate.shard import Record
from litegpu.tools.outputs import all_of
from litegpu.visible import in_line, visible
from litegpu.whole_file import write_whole
from litegpu.zoo import build_model

needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
HOSTILE = "a\x1b[31mb\x07\x9bc\u202ed\ne</script><b>\r\x00f\u2028g" + "long" * 100
HIDDEN = "\x1b\x07\x9b\u202e\x00\u2028\r"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, three images, and what an evaluation of it needs."""
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "m.tflite").write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=10))
    (folder / "images").mkdir()
    for i in range(3):
        pixels = np.random.default_rng(i).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{i}.png")
    (folder / "truth.txt").write_text("a\nb\nc\n")
    (folder / "labels.txt").write_text("\n".join("abcdefghij"))
    np.save(folder / "x.npy", np.zeros((4, 32, 32, 3), np.float32))
    np.save(folder / "four.npy", np.zeros((3, 4), np.float32))
    return folder


def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path, *arguments: str
) -> tuple[int, str, str]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["litegpu", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


DIFF = ("inference-diff", "m.tflite", "--delegate=xnnpack", "--num_runs=1")
IMAGENET = (
    *("evaluate", "imagenet", "--model_file=m.tflite", "--ground_truth_images_path=images"),
    *("--ground_truth_labels=truth.txt", "--model_output_labels=labels.txt", "--workers=0"),
)
BENCHMARK = ("benchmark", "--graph=m.tflite", "--num_runs=2", "--min_secs=0", "--warmup_min_secs=0")
RUN = ("run", "m.tflite", "--device=cpu")
#: command without its output -> what its result says, the flag of an output
WRITING: dict[str, tuple[tuple[str, ...], str, str]] = {
    "inference-diff page": (DIFF, "Num evaluation runs: 1", "--html={}"),
    "inference-diff message": (DIFF, "Num evaluation runs: 1", "--output_file_path={}"),
    "inference-diff json": ((*DIFF, "--json"), '"worst_relative_l2"', "--html={}"),
    "advise page": (("advise", "m.tflite"), "float32", "--html={}"),
    "run page": (RUN, "made-up input", "--html={}"),
    "map page": (("map", "m.tflite", "x.npy", "--device=cpu", "--out=OUT", "--overwrite"), "4 rows", "--html={}"),
    "evaluate message": (IMAGENET, "Top-1 Accuracy", "--output_file_path={}"),
    "benchmark page": (BENCHMARK, "Inference timings in us", "--html={}"),
    "benchmark trace": (BENCHMARK, "Inference timings in us", "--trace={}"),
    "benchmark result": (BENCHMARK, "Inference timings in us", "--result_file_path={}"),
    "benchmark outputs": (BENCHMARK, "Inference timings in us", "--output_filepath={}"),
    "benchmark json": ((*BENCHMARK, "--json"), '"inference', "--result_file_path={}"),
    "benchmark compare": ((*BENCHMARK, "--compare=cpu,cpu:threads=2"), "speed-up", "--html={}"),
    "zoo build": (("zoo", "build", "mobilenet_v1", "--width=0.25", "--resolution=32"), "", "--output={}"),
}


@needs_full
@pytest.mark.parametrize("case", WRITING)
def test_a_full_disk_is_one_line_and_no_result_is_lost(
    case: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if case.startswith("map"):
        pytest.importorskip("pyarrow")
    arguments, result, flag = WRITING[case]
    status, out, err = command(monkeypatch, capsys, folder, *arguments, flag.format("/dev/full"))
    errors = [line for line in err.splitlines() if line.startswith("litegpu: ")]
    assert status == 1 and len(errors) == 1 and "No space left on device" in errors[0], err
    assert result in out and "Traceback" not in err


@pytest.mark.parametrize("case", WRITING)
@pytest.mark.parametrize("place", ["images", "x.npy/below"])
def test_what_cannot_be_written_is_known_before_the_work(
    case: str, place: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder as a file, and a file as a folder."""
    if case.startswith("map"):
        pytest.importorskip("pyarrow")
    arguments, result, flag = WRITING[case]
    status, out, err = command(monkeypatch, capsys, folder, *arguments, flag.format(place))
    assert status == 1 and f"Cannot write {place}" in err and "Traceback" not in err
    assert not result or result not in out


@needs_full
def test_a_full_disk_under_standard_output_is_one_line() -> None:
    for flags in ([], ["--json"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "litegpu", "version", *flags], stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert done.returncode == 1
        assert re.fullmatch(r"litegpu: (Cannot write the results: )?No space left on device\n", done.stderr)


def test_a_reader_that_leaves_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "litegpu", "zoo", "list", "--json"], stdout=closed, stderr=subprocess.PIPE, text=True
        )
    assert done.stderr == ""


def test_all_of_does_all_and_tells_all(tmp_path: Path) -> None:
    done: list[str] = []

    def fail(what: str) -> None:
        raise OptionError(f"Cannot write {what}")

    with pytest.raises(OptionError, match=r"^Cannot write a; Cannot write b$"):
        all_of(lambda: done.append("shown"), lambda: fail("a"), lambda: done.append("c"), lambda: fail("b"))
    assert done == ["shown", "c"]

    def leave() -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        all_of(leave, lambda: done.append("written"))
    assert done[-1] == "written"
    write_whole(tmp_path / "new" / "file", "text")
    assert (tmp_path / "new" / "file").read_text() == "text"


@needs_full
def test_records_that_cannot_be_kept_are_known_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = [Record(str(i), (1, 2), {"n": i}) for i in range(4)]
    with RecordFile(tmp_path / "r.jsonl", {"task": "t"}) as file:
        file.append(records[:2])
        with open("/dev/full", "ab", buffering=0) as full:
            kept, file._file = file._file, full
            file.append(records[2:])
            file.append([replace(records[0], name="later")])
            file._file = kept
        assert "No space left on device" in file.problem and len(caplog.records) == 1
        assert file.known(Item("3", "3", (1, 2))) == records[3] and "later" in file.records
    with RecordFile(tmp_path / "r.jsonl", {"task": "t"}) as file:
        assert set(file.records) == {"0", "1"}


# --------------------------------------------------------------------------------------------------- hostile names


def hostile_model() -> bytes:
    """Every string in it is hostile."""
    b = ModelBuilder(description=HOSTILE, name=HOSTILE)
    x = b.input(HOSTILE, [1, 4])
    y = b.op("ADD", [x, b.constant(np.array([[1, 2, 3, 4]], np.float32), HOSTILE)], [1, 4], name=HOSTILE)
    (y,) = b.custom(HOSTILE, [y], [([1, 4], TensorType.FLOAT32)])
    b.output(y)
    b.signature(HOSTILE, {HOSTILE: x}, {HOSTILE: y})
    b.metadata(HOSTILE, HOSTILE.encode())
    return b.build()


def test_text_is_made_visible() -> None:
    assert visible("plain, grüß Gott, 日本語 🦉") == "plain, grüß Gott, 日本語 🦉"
    assert visible("a\x1b[31m\x07\x9b\u202e\u200f\ud800\n\t") == "a\\x1b[31m\\x07\\x9b\\u202e\\u200f\\ud800\n\t"
    shown = in_line(HOSTILE)
    assert len(shown) == 200 and shown.endswith("…") and "\\n" in shown and not set(shown) & set(HIDDEN + "\n")
    assert str(OptionError(HOSTILE)) == visible(HOSTILE)


@pytest.mark.parametrize(
    "arguments",
    [
        ("advise", "M"), ("advise", "M", "--json"), ("advise", "M", "--html=page.html"), ("run", "M", "--device=cpu"),
        ("run", "M", "--device=webgpu"), ("inference-diff", "M", "--num_runs=1"), ("benchmark", "--graph=M"),
        ("benchmark", "--graph=M", "--list_signatures=true"), ("benchmark", "--graph=M", "--verbose=true"),
        ("models", "B"), ("models", "B", "--json"), ("demo", "M", "-o", "demo"), ("map", "M", "four.npy", "--out=o"),
        ("run", "m.tflite", "--device=cpu", "--image=images/0.png", "--labels=L", "-o", "p.png", "--html=page.html"),
        ("run", "packed.tflite", "--device=cpu", "--image=images/0.png", "-o", "p.png"),
        ("evaluate", "imagenet", "--model_file=m.tflite", "--ground_truth_images_path=images", "--workers=0",
         "--ground_truth_labels=T", "--model_output_labels=L", "-o", "result"),
    ],
)  # fmt: skip
def test_names_in_files_cannot_command_a_terminal_or_a_page(
    arguments: tuple[str, ...],
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("m.tflite", "four.npy", "images"):
        (tmp_path / name).symlink_to(folder / name)
    line = HOSTILE.replace("\n", "").replace("\r", "").replace("\u2028", "")
    labels = "\n".join(f"{i}{line}" for i in range(10))
    (tmp_path / "M").write_bytes(hostile_model())
    (tmp_path / "L").write_text(labels)
    (tmp_path / "T").write_text("\n".join(labels.split("\n")[:3]))
    (tmp_path / "packed.tflite").write_bytes((folder / "m.tflite").read_bytes())
    with zipfile.ZipFile(tmp_path / "packed.tflite", "a") as archive:
        archive.writestr("labels.txt", labels)
    with zipfile.ZipFile(tmp_path / "B", "w") as archive:
        archive.writestr("x\x1b[31m\u202e\n.tflite", (folder / "m.tflite").read_bytes())
    status, out, err = command(monkeypatch, capsys, tmp_path, *arguments)
    if arguments[0] in ("advise", "models", "evaluate") or {"m.tflite", "packed.tflite"} & set(arguments):
        assert status == 0, err
    assert status in (0, 1) and ("\\x1b" in out + err or "\\u001b" in out or "--json" in arguments), out + err
    assert "Traceback" not in err and not set(out + err) & set(HIDDEN)
    if "--json" in arguments and status == 0:
        found: Any = json.loads(out)
        assert found
    for written in tmp_path.rglob("*"):
        if written.suffix in (".html", ".csv", ".svg") and not written.is_symlink():
            text = written.read_bytes().decode()
            assert not set(text) & set(HIDDEN)
            assert written.suffix != ".html" or ("</script>" not in text and "<b>" not in text)


def test_names_reach_the_caller_exactly() -> None:
    """What is shown is changed, what is read is not."""
    assert litegpu.read_model(hostile_model()).main.tensors[0].name == HOSTILE
