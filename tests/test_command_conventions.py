"""What all commands have in common: plain text when piped, JSON alone on standard output, exit statuses, help."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from agreement import require_gpu
from PIL import Image

from litegpu import cli
from litegpu.zoo import build_model

Call = Callable[..., tuple[int, str, str]]

#: Words of a command that works, after which --json may stand. {model}, {picture}, {arrays}, {folder}: files.
COMMANDS: dict[str, list[str]] = {
    "run": ["run", "{model}", "--device", "cpu"],
    "run on a picture": ["run", "{model}", "--device", "cpu", "--image", "{picture}", "-o", "{folder}/drawn.png"],
    "doctor": ["doctor"],
    "version": ["version"],
    "zoo": ["zoo", "list"],
    "models": ["models", "{bundle}"],
    "cache list": ["cache", "list", "{cache}"],
    "cache verify": ["cache", "verify", "{cache}"],
    "cache clear": ["cache", "clear", "{cache}"],
    "advise": ["advise", "{model}"],
    "analyze": ["analyze", "{model}"],
    "benchmark": ["benchmark", "--graph={model}", "--num_runs=2", "--min_secs=0", "--warmup_min_secs=0"],
    "inference-diff": ["inference-diff", "--model_file={model}", "--delegate=cpu", "--num_runs=2"],
    "map": ["map", "{model}", "{arrays}", "--out", "{folder}/{run}.parquet", "--device", "cpu"],
    "evaluate imagenet": [
        "evaluate", "imagenet", "--model_file={model}", "--ground_truth_images_path={pictures}",
        "--ground_truth_labels={truth}", "--model_output_labels={labels}", "--workers=0",
    ],
}  # fmt: skip
#: The same with a file that is not there.
MISSING = {
    "run": ["run", "nothing.tflite"],
    "models": ["models", "nothing.task"],
    "cache list": ["cache", "list", "nothing"],
    "advise": ["advise", "nothing.tflite"],
    "analyze": ["analyze", "nothing.tflite"],
    "benchmark": ["benchmark", "--graph=nothing.tflite"],
    "inference-diff": ["inference-diff", "--model_file=nothing.tflite", "--delegate=cpu"],
    "map": ["map", "nothing.tflite", "{arrays}", "--out", "{folder}/n.parquet"],
    "evaluate imagenet": [
        "evaluate", "imagenet", "--model_file=nothing.tflite", "--ground_truth_images_path={pictures}",
        "--ground_truth_labels={truth}", "--model_output_labels={labels}",
    ],
    "evaluate coco": [
        "evaluate", "coco", "--model_file={model}", "--ground_truth_images_path={pictures}",
        "--annotations=nothing.json",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    import zipfile

    folder = tmp_path_factory.mktemp("conventions")
    names = {
        "folder": folder, "model": folder / "tiny.tflite", "picture": folder / "picture.png",
        "bundle": folder / "b.task", "arrays": folder / "arrays.npy", "cache": folder / "cache",
        "pictures": folder / "pictures", "truth": folder / "truth.txt", "labels": folder / "labels.txt",
    }  # fmt: skip
    names["model"].write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=10))
    names["cache"].mkdir(mode=0o700)
    names["pictures"].mkdir()
    np.save(names["arrays"], np.zeros((3, 32, 32, 3), np.float32))
    for path in (names["picture"], names["pictures"] / "a.png", names["pictures"] / "b.png"):
        Image.fromarray(np.arange(40 * 40 * 3).reshape(40, 40, 3).astype(np.uint8)).save(path)
    names["labels"].write_text("".join(f"thing {i}\n" for i in range(10)))
    names["truth"].write_text("thing 1\nthing 2\n")
    with zipfile.ZipFile(names["bundle"], "w") as bundle:
        bundle.write(names["model"], "tiny.tflite")
    return {name: str(path) for name, path in names.items()}


@pytest.fixture
def call(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Call:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        filled = [word.format(**files, run=tmp_path.name) for word in words]
        monkeypatch.setattr(sys, "argv", ["litegpu", *filled])
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        streams = capfd.readouterr()
        return int(exit_.value.code or 0), streams.out, streams.err

    return call


def _needs(name: str) -> None:
    if name in ("doctor", "advise"):
        require_gpu()  # whose exit status says whether there is one
    if name == "map":
        pytest.importorskip("pyarrow")
    if name == "evaluate coco":
        pytest.importorskip("pycocotools")


@pytest.mark.parametrize("name", COMMANDS)
def test_piped_output_is_plain(name: str, call: Call) -> None:
    _needs(name)
    status, out, error = call(*COMMANDS[name])
    assert status == 0, error
    assert out.strip() and "\x1b" not in out + error
    assert "\r" not in error and "━" not in error, "a progress bar, and nobody looks"


@pytest.mark.parametrize("name", COMMANDS)
def test_json_is_alone_on_standard_output(name: str, call: Call) -> None:
    _needs(name)
    status, out, error = call(*COMMANDS[name], "--json")
    assert status == 0, error
    assert isinstance(json.loads(out), (dict, list))


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_one_line_and_status_1(name: str, call: Call) -> None:
    _needs(name)
    status, _, error = call(*MISSING[name])
    assert status == 1 and error.count("\n") == 1, error
    assert error.startswith("litegpu: ") and "nothing" in error


@pytest.mark.parametrize("name", [name for name, words in MISSING.items() if "nothing.tflite" in " ".join(words)])
@pytest.mark.parametrize("file", ["picture", "folder"])
def test_what_is_no_model_is_one_line_and_status_1(name: str, file: str, call: Call, files: dict[str, str]) -> None:
    _needs(name)
    status, _, error = call(*(word.replace("nothing.tflite", files[file]) for word in MISSING[name]))
    assert status == 1 and error.count("\n") == 1, error
    assert error.startswith("litegpu: ") and files[file] in error


def test_a_misspelt_flag_of_the_benchmark_is_named(call: Call) -> None:
    status, out, error = call("benchmark", "--grap={model}")
    assert (status, out) == (1, "") and error.count("\n") == 1 and "did you mean --graph?" in error


@pytest.mark.parametrize("name", [n for n in COMMANDS if n not in ("benchmark",)])
def test_an_unknown_option_is_status_2(name: str, call: Call) -> None:
    status, out, error = call(*COMMANDS[name], "--no-such-option")
    assert status == 2 and "no-such-option" in error and not out


@pytest.mark.parametrize("name", [*COMMANDS, "evaluate coco", "evaluate segmentation", "evaluate pose", "demo"])
def test_help(name: str, call: Call) -> None:
    words = [word for word in name.removesuffix(" on a picture").split()]
    status, out, _ = call(*words, "--help")
    assert status == 0 and "sage" in out and len(out) > 200
    if name not in ("doctor", "version", "demo", "zoo", "cache verify", "cache clear"):
        assert f"litegpu {words[0]}" in out, "an example that can be pasted"
