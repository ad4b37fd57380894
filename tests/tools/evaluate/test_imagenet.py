"""`litegpu evaluate imagenet`: accuracies against a calculation by hand, resuming, and everything that can be wrong."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from agreement import require_gpu
from pages import check_self_contained
from tools.evaluate.image_set import LABELS, ImageSet, make_image_set, scores_by_hand, top_k_by_hand
from typer.testing import CliRunner

from litegpu.cli.application import app
from litegpu.errors import ModelError, OptionError
from litegpu.tools.evaluate.choice import DelegateChoice, open_model, parse_choice
from litegpu.tools.evaluate.collecting import ImageError, Running
from litegpu.tools.evaluate.imagenet import ComparedAccuracy, evaluate_imagenet
from litegpu.tools.evaluate.imagenet_presentation import ImagenetPresentation, shown_labels

HERE = Running(workers=0)
COUNT = 60


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> ImageSet:
    return make_image_set(tmp_path_factory.mktemp("imagenet"), COUNT)


@pytest.fixture(scope="module")
def expected(images: ImageSet) -> list[float]:
    return top_k_by_hand(scores_by_hand(images, images.names), images.truths)


def test_top_k_is_that_of_a_numpy_script(images: ImageSet, expected: list[float]) -> None:
    report = evaluate_imagenet(images.task(), HERE)
    assert list(report.result.accuracy.accuracies) == expected
    assert 0 < expected[0] < expected[9] < 1  # else the test would see little
    assert report.result.accuracy.images == COUNT


def test_top_k_of_two_thousand_images(tmp_path: Path) -> None:
    images = make_image_set(tmp_path, 2000)
    wanted = top_k_by_hand(scores_by_hand(images, images.names), images.truths)
    assert list(evaluate_imagenet(images.task()).result.accuracy.accuracies) == wanted


def test_workers_and_batches_change_nothing(images: ImageSet, expected: list[float]) -> None:
    report = evaluate_imagenet(images.task(), Running(batch=7, workers=2))
    assert list(report.result.accuracy.accuracies) == expected
    assert report.result.collected.placement.batch == 7
    assert [r.name for r in report.result.collected.records] == list(images.names)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'litegpu[ray]'")
@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_changes_nothing(images: ImageSet, expected: list[float], tmp_path: Path) -> None:
    evaluate_imagenet(images.task(num_images=20), replace(HERE, output=str(tmp_path)))
    on_ray = Running(batch=4, workers=1, ray="local", actors=2, output=str(tmp_path))
    report = evaluate_imagenet(images.task(), on_ray)
    assert report.result.collected.placement.batch == 4
    assert list(report.result.accuracy.accuracies) == expected
    assert report.result.collected.reused == 20
    assert [r.name for r in report.result.collected.records] == list(images.names)


def test_classes_and_confusions_add_up(images: ImageSet) -> None:
    report = evaluate_imagenet(images.task(), HERE)
    classes = {c.label: c for c in report.result.classes}
    assert set(classes) == set(images.truths) and sum(c.images for c in classes.values()) == COUNT
    hits = sum(round(c.top1 * c.images) for c in classes.values())
    assert hits == report.result.accuracy.correct[0]
    assert sum(report.result.confusions.values()) == COUNT
    assert sum(n for (truth, put), n in report.result.confusions.items() if truth == put) == hits
    shown = shown_labels(report)
    assert "crane" in classes and len(shown) == len(set(shown)) and set(images.truths) <= set(shown) <= set(LABELS)


def test_denylist_and_number_of_images(images: ImageSet, tmp_path: Path) -> None:
    (tmp_path / "deny.txt").write_text("1\n3\n")
    task = images.task(denylist_file_path=str(tmp_path / "deny.txt"), num_images=10)
    report = evaluate_imagenet(task, HERE)
    kept = [0 + 1, *range(3, 12)]
    assert [r.name for r in report.result.collected.records] == [images.names[i] for i in kept]
    names = [images.names[i] for i in kept]
    wanted = top_k_by_hand(scores_by_hand(images, names), [images.truths[i] for i in kept])
    assert list(report.result.accuracy.accuracies) == wanted
    for text, words in (("0\n", "from 1 to 60"), ("61\n", "from 1 to 60"), ("2\n2\n", "there twice"), ("x\n", "'x'")):
        (tmp_path / "deny.txt").write_text(text)
        with pytest.raises(OptionError, match=words):
            evaluate_imagenet(task, HERE)


def test_two_delegates_are_compared_image_by_image(images: ImageSet, capsys: pytest.CaptureFixture[str]) -> None:
    require_gpu()
    running = Running(parse_choice("webgpu/float32"), parse_choice("cpu"), workers=0)
    report = evaluate_imagenet(images.task(num_images=20), running)
    comparison = report.comparison
    assert isinstance(comparison, ComparedAccuracy) and comparison.top1.images == 20
    assert report.result.collected.placement.batch == 20 and report.result.collected.placement.delegation.delegated
    assert comparison.same_label == 1 and comparison.differing == ()
    assert comparison.top1.only_first == comparison.top1.only_second == 0 and comparison.top1.p_value == 1
    ImagenetPresentation().print(report)
    assert "no larger than chance explains" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------- resuming


def test_resuming_gives_the_same(images: ImageSet, tmp_path: Path, expected: list[float]) -> None:
    running = replace(HERE, output=str(tmp_path / "out"))
    whole = evaluate_imagenet(images.task(), running)
    file = tmp_path / "out" / "records-cpu.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    assert len(lines) == COUNT + 1
    file.write_bytes(b"".join(lines[:24]) + lines[24][:10])  # as if the power had failed while line 25 was written
    again = evaluate_imagenet(images.task(), running)
    assert again.result.collected.reused == 23
    assert again.result.accuracy == whole.result.accuracy and again.result.classes == whole.result.classes
    assert list(again.result.accuracy.accuracies) == expected
    assert len(file.read_bytes().splitlines()) == COUNT + 1
    # Nothing is left to do, and another range of images needs only what is new.
    assert evaluate_imagenet(images.task(num_images=9), running).result.collected.reused == 9


def test_a_killed_evaluation_goes_on(images: ImageSet, tmp_path: Path, expected: list[float]) -> None:
    task = images.task()
    command = [
        *(sys.executable, "-m", "litegpu", "evaluate", "imagenet", "--workers=0", "-o", str(tmp_path)),
        *(f"--{name}={getattr(task, name)}" for name in ("model_file", "ground_truth_images_path")),
        *(f"--{name}={getattr(task, name)}" for name in ("ground_truth_labels", "model_output_labels")),
    ]
    records = tmp_path / "records-cpu.jsonl"
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None and (not records.exists() or records.read_bytes().count(b"\n") < 5):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    report = evaluate_imagenet(task, replace(HERE, output=str(tmp_path)))
    assert report.result.collected.reused >= 4
    assert list(report.result.accuracy.accuracies) == expected


def test_records_of_something_else_are_refused(images: ImageSet, tmp_path: Path) -> None:
    running = replace(HERE, output=str(tmp_path))
    task = images.task(num_images=5)
    evaluate_imagenet(task, running)
    with pytest.raises(OptionError, match=r"preprocessing was .* --restart"):
        evaluate_imagenet(replace(task, preprocessing={"crop": 0.5}), running)
    report = evaluate_imagenet(replace(task, preprocessing={"crop": 0.5}), replace(running, restart=True))
    assert report.result.collected.reused == 0
    (tmp_path / "records-cpu.jsonl").write_text("no JSON\n")
    with pytest.raises(OptionError, match="does not hold records"):
        evaluate_imagenet(task, running)


def test_changed_images_are_evaluated_again(tmp_path: Path) -> None:
    images = make_image_set(tmp_path / "set", 6)
    running = replace(HERE, output=str(tmp_path / "out"))
    evaluate_imagenet(images.task(), running)
    os.utime(images.images / images.names[2], ns=(1, 1))
    assert evaluate_imagenet(images.task(), running).result.collected.reused == 5


# ------------------------------------------------------------------------------------------------- what is wrong


def test_unreadable_images_stop_or_are_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = make_image_set(tmp_path / "set", 8)
    broken = images.images / images.names[3]
    broken.write_bytes(broken.read_bytes()[:300])
    (images.images / images.names[5]).write_text("no image")
    running = replace(HERE, output=str(tmp_path / "out"))
    with pytest.raises(ImageError, match=r"image_0003.*--on-error=skip"):
        evaluate_imagenet(images.task(), running)
    report = evaluate_imagenet(images.task(), replace(running, skip_errors=True))
    assert report.result.collected.reused == 3  # those before the first broken one
    assert [r.name for r in report.result.collected.failed] == [images.names[3], images.names[5]]
    kept = [i for i in range(8) if i not in (3, 5)]
    wanted = top_k_by_hand(scores_by_hand(images, [images.names[i] for i in kept]), [images.truths[i] for i in kept])
    assert list(report.result.accuracy.accuracies) == wanted
    ImagenetPresentation().print(report)
    assert "2 images were skipped" in capsys.readouterr().out
    # One that has been repaired since is not skipped for ever.
    broken.write_bytes((images.images / images.names[0]).read_bytes())
    again = evaluate_imagenet(images.task(), replace(running, skip_errors=True))
    assert len(again.result.collected.failed) == 1 and again.result.collected.reused == 6


def test_images_none_of_which_can_be_read_have_no_accuracy(tmp_path: Path) -> None:
    images = make_image_set(tmp_path / "set", 3)
    for name in images.names:
        (images.images / name).write_text("no image")
    with pytest.raises(ImageError, match=r"None of the 3 images can be read.*image_0000.*not an image"):
        evaluate_imagenet(images.task(), replace(HERE, skip_errors=True))


def test_missing_images_are_named_before_work_starts(tmp_path: Path) -> None:
    images = make_image_set(tmp_path / "set", 4)
    (images.images / images.names[1]).unlink()
    (images.images / images.names[1]).symlink_to(tmp_path / "nowhere.jpg")
    with pytest.raises(ImageError, match=r"1 images are missing: .*image_0001"):
        evaluate_imagenet(images.task(), HERE)
    report = evaluate_imagenet(images.task(), replace(HERE, skip_errors=True))
    assert report.result.collected.failed[0].error == "no such file"


def test_files_that_do_not_fit_are_named_before_work_starts(
    images: ImageSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_work(*_: object) -> None:
        raise AssertionError("work started")

    monkeypatch.setattr("litegpu.tools.evaluate.evaluation.collect", no_work)

    def file(text: str) -> str:
        (tmp_path / "file.txt").write_text(text)
        return str(tmp_path / "file.txt")

    lines = "\n".join(images.truths)
    mistakes = [
        ("model_output_labels", "\n".join(LABELS[:-1]), "11 labels, but .*model.tflite has 12 scores"),
        ("model_output_labels", "\n".join([*LABELS[:3], "", *LABELS[4:]]), "line 4 is empty"),
        ("model_output_labels", "", "is empty"),
        ("ground_truth_labels", lines + "\ncrane", "has 60 images, but .* has 61 labels"),
        ("ground_truth_labels", lines.replace("crane", "heron"), "not among those .* first is 'heron', line"),
    ]
    for name, text, words in mistakes:
        with pytest.raises(OptionError, match=words):
            evaluate_imagenet(images.task(**{name: file(text)}), HERE)
    for name in ("model_output_labels", "ground_truth_labels", "ground_truth_images_path"):
        with pytest.raises(OptionError, match="No such file"):
            evaluate_imagenet(images.task(**{name: str(tmp_path / "absent")}), HERE)
    with pytest.raises(ModelError):
        evaluate_imagenet(images.task(model_file=str(tmp_path / "absent.tflite")), HERE)
    (tmp_path / "empty").mkdir()
    with pytest.raises(OptionError, match="no images"):
        evaluate_imagenet(images.task(ground_truth_images_path=str(tmp_path / "empty")), HERE)
    (tmp_path / "empty" / "notes.md").write_text("")
    with pytest.raises(OptionError, match=r"1 files that are no images, such as 'notes.md'"):
        evaluate_imagenet(images.task(ground_truth_images_path=str(tmp_path / "empty")), HERE)
    with pytest.raises(OptionError, match="Cannot write"):
        evaluate_imagenet(images.task(output_file_path=str(tmp_path / "file.txt" / "metrics")), HERE)
    with pytest.raises(OptionError, match="Cannot write"):
        evaluate_imagenet(images.task(), replace(HERE, output=str(tmp_path / "file.txt" / "out")))


def test_choices_that_make_no_sense_are_explained() -> None:
    with pytest.raises(OptionError, match="Android"):
        parse_choice("nnapi")
    for text in ("gpus", "reference:1", "cuda:x", "cpu/int8"):
        with pytest.raises(OptionError, match="is unknown"):
            parse_choice(text)
    assert parse_choice("xnnpack") == parse_choice("") == DelegateChoice("cpu")
    assert str(parse_choice("cuda:1/float32")) == "cuda:1/float32"
    assert [parse_choice(text).kind for text in ("reference", "vulkan", "webgpu")] == ["reference", "vulkan", "webgpu"]
    with pytest.raises(OptionError, match="compared with itself"):
        Running(parse_choice("cpu"), parse_choice("cpu"))


def test_a_part_of_a_backend_is_asked_of_its_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, Any]] = []

    def load(source: object, device: str, precision: str, *, backend: str | None = None, **_: object) -> Any:
        asked.append((device, backend))
        return SimpleNamespace(interpreter=SimpleNamespace(invoke=lambda: None))

    monkeypatch.setattr("litegpu.tools.evaluate.choice.load", load)
    monkeypatch.setattr("litegpu.tools.evaluate.choice.best_gpu", lambda: "webgpu")
    for kind in ("vulkan", "gl", "webgpu", "cuda:1", "reference", "gpu"):
        open_model("model", parse_choice(kind))
    assert asked == [  # device, backend
        ("webgpu", "vulkan"),
        ("webgpu", "gl"),
        ("webgpu", None),
        ("cuda:1", None),
        ("reference", None),
        ("webgpu", None),
    ]


# ------------------------------------------------------------------------------------------------- the command


def arguments(images: ImageSet) -> list[str]:
    task = images.task()
    names = ("model_file", "ground_truth_images_path", "ground_truth_labels", "model_output_labels")
    return ["evaluate", "imagenet", "--workers=0", *(f"--{name}={getattr(task, name)}" for name in names)]


def test_command_prints_the_official_lines_and_writes_its_files(
    images: ImageSet, tmp_path: Path, expected: list[float]
) -> None:
    proto = tmp_path / "metrics.pb"
    flags = ["--num_interpreter_threads=2", f"--output_file_path={proto}", "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*arguments(images), *flags])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert f"Num evaluation runs: {COUNT}" in lines
    assert f"Top-1 Accuracy: {expected[0]:g}" in lines and f"Top-10 Accuracy: {expected[9]:g}" in lines
    assert any(line.startswith("Inference latency: avg=") for line in lines)
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["top_k"] == expected
    with open(tmp_path / "out" / "classes.csv") as file:
        assert sum(int(row["images"]) for row in csv.DictReader(file)) == COUNT
    assert (tmp_path / "out" / "confusion.png").stat().st_size > 1000
    text = "".join(check_self_contained((tmp_path / "out" / "report.html").read_text()).text)
    assert f"{expected[0]:.2%}" in text and "Classes" in text and "CONV_2D" in text
    assert accuracies_in(proto.read_bytes()) == pytest.approx(expected, abs=1e-7)


def test_command_has_json_and_a_threshold(images: ImageSet) -> None:
    result = CliRunner().invoke(app, [*arguments(images), "--num_images=5", "--json"])
    assert json.loads(result.stdout)["images"] == 5
    result = CliRunner().invoke(app, [*arguments(images), "--num_images=5", "--min-top1=0.99"])
    assert result.exit_code == 1 and "is below 0.99" in result.stderr


def test_official_flags_without_use_are_answered(images: ImageSet) -> None:
    flags = ["--use_xnnpack=true", "--use_nnapi=false", "--num_threads=4", "--num_images=2", "--json"]
    result = CliRunner().invoke(app, [*arguments(images), *flags])
    assert result.exit_code == 0 and json.loads(result.stdout)["images"] == 2
    assert "--num_threads is ignored: use --num_interpreter_threads" in result.stderr
    assert "nnapi" not in result.stderr
    for flag, words in (("--use_nnapi=true", "a part of Android"), ("--external_delegate_path=x.so", "load_delegate")):
        with pytest.raises(OptionError, match=words):
            CliRunner().invoke(app, [*arguments(images), flag], catch_exceptions=False)
    assert CliRunner().invoke(app, [*arguments(images), "--no_such_flag=1"]).exit_code == 2


def test_flags_of_the_official_tool_choose_the_delegate(images: ImageSet) -> None:
    require_gpu()
    flags = ["--use_gpu=true", "--gpu_precision_loss_allowed=false", "--num_images=3", "--json", "--batch=1"]
    result = CliRunner().invoke(app, [*arguments(images), *flags])
    assert json.loads(result.stdout)["delegate"] == "gpu/float32"
    with pytest.raises(OptionError, match="must be true, false, 1 or 0"):
        CliRunner().invoke(app, [*arguments(images), "--use_gpu=yes"], catch_exceptions=False)


def accuracies_in(message: bytes) -> list[float]:
    """topk_accuracies of an EvaluationStageMetrics message."""
    process = fields(fields(message)[2][0])
    image = fields(process[4][0])
    assert len(image[1]) == len(image[2]) == 1 and fields(message)[1] == fields(image[3][0])[1] == [COUNT]
    return [float(np.frombuffer(value, "<f4")[0]) for value in fields(image[4][0])[1]]


def fields(message: bytes) -> dict[int, list]:
    """Field number -> values, by the wire format of protocol buffers."""
    found: dict[int, list] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            found.setdefault(key >> 3, []).append(varint())
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        found.setdefault(key >> 3, []).append(message[at : at + size])
        at += size
    return found
