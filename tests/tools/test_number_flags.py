"""Numbers on the command line that are too small, too large or none: an answer or one line, never a traceback."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from litegpu import cli
from litegpu.cli.application import app
from litegpu.tools.benchmark.flags import BenchmarkFlags
from litegpu.zoo import build_model

VALUES = ("1000000000000000000000", "nan", "-1", "0", "inf", "-inf", "text", "")
#: What is given besides. Commands without numbers are missing; so are evaluations that share their flags with this one.
GIVEN: dict[str, tuple[str, ...]] = {
    "run": ("m.tflite", "--device=cpu"),
    "inference-diff": ("m.tflite", "--delegate=xnnpack", "--num_runs=1"),
    "map": ("m.tflite", "images", "--out=OUT.parquet", "--device=cpu", "--overwrite"),
    "evaluate imagenet": (
        *("--model_file=m.tflite", "--ground_truth_images_path=images", "--ground_truth_labels=truth.txt"),
        *("--model_output_labels=labels.txt", "--workers=0"),
    ),
    "zoo build": ("mobilenet_v1", "-o=z.tflite", "--width=0.25", "--resolution=32"),
}
BENCHMARK = ("--graph=m.tflite", "--num_runs=1", "--min_secs=0", "--warmup_min_secs=0", "--max_secs=1")
#: Numbers of these are a time to wait, which they then do.
WAITS = ("run_delay", "min_secs", "max_secs", "warmup_min_secs", "num_runs", "warmup_runs", "run_frequency")


def numeric() -> Iterator[tuple[str, str]]:
    """Commands and their options that take numbers."""
    commands = [
        (c.name or str(c.callback.__name__).rstrip("_"), c.callback) for c in app.registered_commands if c.callback
    ]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        for c in group.typer_instance.registered_commands:
            assert c.callback is not None
            name = c.name or c.callback.__name__.removeprefix(f"{group.name}_")
            commands.append((f"{group.name} {name}", c.callback))
    for name, callback in commands:
        for parameter, hint in typing.get_type_hints(inspect.unwrap(callback), include_extras=True).items():
            base, *extra = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
            if {base, *typing.get_args(base)} & {int, float} and name in GIVEN:
                long = [d for e in extra for d in getattr(e, "param_decls", None) or () if d.startswith("--")]
                yield name, (long or [f"--{parameter.replace('_', '-')}"])[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    (folder / "m.tflite").write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=10))
    (folder / "images").mkdir()
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(folder / "images" / "0.png")
    (folder / "truth.txt").write_text("a\n")
    (folder / "labels.txt").write_text("\n".join("abcdefghij"))
    return folder


def check(monkeypatch: pytest.MonkeyPatch, capsys: Any, folder: Path, *arguments: str) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["litegpu", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    captured = capsys.readouterr()
    assert ended.value.code in (None, 0, 1, 2) and "Traceback" not in captured.err
    assert ended.value.code in (None, 0) or (captured.err + captured.out).strip(), arguments


@pytest.mark.parametrize(("name", "option"), list(numeric()), ids=lambda text: text)
@pytest.mark.parametrize("value", [VALUES[0], *(pytest.param(v, marks=pytest.mark.slow) for v in VALUES[1:])])
def test_numbers_of_commands(
    name: str, option: str, value: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if name == "map":
        pytest.importorskip("pyarrow")
    if name == "inference-diff" and option == "--num_runs" and value == "inf":
        pytest.skip("runs that long")
    check(monkeypatch, capsys, folder, *name.split(), *GIVEN[name], f"{option}={value}")


@pytest.mark.parametrize("flag", [f.name for f in fields(BenchmarkFlags) if f.type in ("int", "float")])
@pytest.mark.parametrize("value", [VALUES[0], *(pytest.param(v, marks=pytest.mark.slow) for v in VALUES[1:])])
def test_numbers_of_the_benchmark(
    flag: str, value: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if any(w in flag for w in WAITS) and value in ("1000000000000000000000", "inf"):
        pytest.skip("waits as long as it is told")
    check(monkeypatch, capsys, folder, "benchmark", *BENCHMARK, f"--{flag}={value}")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("coco", "--annotations=a.json", "--drawings=-1"), "drawings"),
        (("coco", "--annotations=a.json", "--max_detections=0"), "max-detections"),
        (("pose", "--annotations=a.json", "--drawings=-1"), "drawings"),
        (("segmentation", "--ground_truth_masks_path=images", "--mean="), "--mean is ''"),
        (("segmentation", "--ground_truth_masks_path=images", "--std="), "--std is ''"),
    ],
)
def test_numbers_of_evaluations_that_mean_nothing(
    arguments: tuple[str, ...], says: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    task, *given = arguments
    monkeypatch.chdir(folder)
    files = ("--model_file=m.tflite", "--ground_truth_images_path=images")
    monkeypatch.setattr(sys, "argv", ["litegpu", "evaluate", task, *files, *given])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code in (1, 2) and says in capsys.readouterr().err


def test_minus_one_thread_is_one_as_officially(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    given = ("evaluate imagenet", "--num_interpreter_threads=-1", "--json")
    monkeypatch.setattr(sys, "argv", ["litegpu", *given[0].split(), *GIVEN[given[0]], *given[1:]])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0, capsys.readouterr().err
