"""Every option of a command reaches what the command calls, and what that gives becomes the exit status."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from litegpu.cli import cache
from litegpu.cli.application import app, with_ray_address
from litegpu.errors import OptionError
from litegpu.tools.evaluate.coco import DelegatePrecision
from litegpu.tools.evaluate.data_set import DelegateResult
from litegpu.tools.evaluate.imagenet import DelegateAccuracy
from litegpu.tools.evaluate.pose import DelegatePose
from litegpu.tools.evaluate.segmentation import DelegateIou
from litegpu.tools.images import Normalization

Called = dict[str, Any]


class Reached(Exception):
    """The command has called what it is for."""


@pytest.fixture
def reaching(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Called]:
    """`reaching("package.function", *arguments)`: what the function is called with."""

    def reach(target: str, *arguments: str) -> Called:
        found: Called = {}

        def call(*given: Any, **named: Any) -> Any:
            found.update(named, given=given)
            raise Reached

        monkeypatch.setattr(target, call)
        result = CliRunner().invoke(app, list(arguments))
        assert isinstance(result.exception, Reached), result.output
        return found

    return reach


def test_map(reaching: Callable[..., Called], monkeypatch: pytest.MonkeyPatch) -> None:
    target = "litegpu.tools.mapping.map_model"
    plain = reaching(target, "map", "m", "a", "b", "--out", "o")
    assert plain.pop("given") == (Path("m"), [Path("a"), Path("b")], Path("o"))
    patience = plain.pop("patience")
    assert patience > 0 and plain == {
        "device": "auto", "precision": "float32",
        "arithmetic": "auto", "batch": None, "workers": None, "ray": None, "on_error": "fail",
        "resume": False, "overwrite": False, "normalization": None, "dequantize": False, "columns": {},
        "num_threads": None,
    }  # fmt: skip
    found = reaching(
        target, "map", "m", "a", "--out=o", "--device=cuda:1", "--precision=float16",
        "--arithmetic=integer", "--batch=3", "--workers=2",
        "--ray=host:1234", "--patience=7", "--on-error=skip", "--resume", "--overwrite", "--mean=3", "--dequantize",
        "--column=x=left", "--column=right", "--num-threads=5",
    )  # fmt: skip
    found.pop("given")
    assert found == {
        "device": "cuda:1", "precision": "float16",
        "arithmetic": "integer", "batch": 3, "workers": 2, "ray": "host:1234", "patience": 7.0,
        "on_error": "skip", "resume": True, "overwrite": True, "normalization": Normalization(3.0, 127.5),
        "dequantize": True, "columns": {"x": "left", "": "right"}, "num_threads": 5,
    }  # fmt: skip
    assert reaching(target, "map", "m", "a", "--out=o", "--std=2")["normalization"] == Normalization(127.5, 2.0)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(target, interrupted)
    result = CliRunner().invoke(app, ["map", "m", "a", "--out=o"])
    assert result.exit_code == 130 and "--resume goes on" in result.stderr


def test_run(reaching: Callable[..., Called], monkeypatch: pytest.MonkeyPatch) -> None:
    target = "litegpu.tools.model_run.run_model"
    plain = reaching(target, "run", "m")
    assert plain.pop("given") == (Path("m"), ())
    assert plain == {
        "labels": None, "device": "auto", "precision": "float32",
        "arithmetic": "auto", "compare_with_cpu": True, "output": None,
        "num_threads": None, "normalization": None, "signature": None, "shapes": (),
    }  # fmt: skip
    found = reaching(
        target, "run", "m", "--image=a", "--image=b", "--labels=l", "--device=webgpu", "--precision=auto",
        "--arithmetic=float",
        "--no-compare", "-o", "out", "--num-threads=4", "--std=2", "--signature=key", "--input-shape=1,2",
        "--input-shape=x=3",
    )  # fmt: skip
    assert found.pop("given") == (Path("m"), [Path("a"), Path("b")])
    assert found == {
        "labels": Path("l"), "device": "webgpu", "precision": "auto",
        "arithmetic": "float", "compare_with_cpu": False, "output": Path("out"),
        "num_threads": 4, "normalization": Normalization(127.5, 2.0), "signature": "key", "shapes": ["1,2", "x=3"],
    }  # fmt: skip
    for problems in ((), ("no room",)):
        report = SimpleNamespace(problems=problems, as_dict=lambda: {"a": 1})
        monkeypatch.setattr(target, lambda *_, report=report, **__: report)
        result = CliRunner().invoke(app, ["run", "m", "--json"])
        assert '"a": 1' in result.output
        assert isinstance(result.exception, OptionError) == bool(problems)


@pytest.mark.parametrize("agrees", [True, False])
def test_the_status_of_demo(agrees: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    def demonstrate(*arguments: Any) -> bool:
        given.append(arguments)
        return agrees

    monkeypatch.setattr("litegpu.tools.demo.demonstrate", demonstrate)
    assert CliRunner().invoke(app, ["demo", "m", "--image=i", "-o", "out"]).exit_code == (0 if agrees else 1)
    assert given == [(Path("m"), Path("i"), Path("out"))]


def test_inference_diff(reaching: Callable[..., Called], monkeypatch: pytest.MonkeyPatch) -> None:
    target = "litegpu.tools.inference_diff.inference_diff"

    def options(*arguments: str) -> Called:
        path, found = reaching(target, "inference-diff", *arguments)["given"]
        assert path == Path("m")
        return vars(found)

    plain = {
        "delegate": "gpu", "precision": "float16", "arithmetic": "auto", "backend": "auto", "quantization": True,
        "max_delegated_partitions": 0, "num_threads": 1, "reference": "auto", "num_runs": None, "inputs": (), "seed": 0,
        "max_relative_error": None, "per_op": False, "tolerance": None, "signature": None,
        "shapes": (),
    }  # fmt: skip
    assert options("m") == options("--model_file=m") == plain
    found = options(
        "m", "--delegate=gpu", "--precision=auto",
        "--gpu_arithmetic=integer", "--gpu_backend=vulkan", "--gpu_experimental_enable_quant=false",
        "--max_delegated_partitions=3", "--num_threads=4", "--reference=builtin", "--num_runs=7", "--input=a",
        "--input=x=b", "--seed=9", "--max_relative_error=0.5", "--per-op", "--tolerance=0.25", "--signature=key",
        "--input-shape=1,2", "--input_shape=x=3",
    )  # fmt: skip
    assert found == {
        "delegate": "gpu", "precision": "auto", "arithmetic": "integer", "backend": "vulkan", "quantization": False,
        "max_delegated_partitions": 3, "num_threads": 4, "reference": "builtin", "num_runs": 7, "inputs": ("a", "x=b"),
        "seed": 9, "max_relative_error": 0.5, "per_op": True, "tolerance": 0.25, "signature": "key",
        "shapes": ("1,2", "x=3"),
    }  # fmt: skip
    for arguments, changed in (
        (["--use_xnnpack=1"], {"delegate": "xnnpack"}), (["--use_xnnpack=true"], {"delegate": "xnnpack"}),
        (["--use_gpu=true"], {}), (["--use_xnnpack=0"], {}), (["--use_xnnpack=false", "--delegate=cpu"],
        {"delegate": "cpu"}), (["--gpu_precision_loss_allowed=0"], {"precision": "float32"}),
        (["--gpu_precision_loss_allowed=false", "--precision=float16"], {}), (["--num_threads=-1"], {}),
        (["--num_interpreter_threads=2", "--num_threads=5"], {"num_threads": 2}),
    ):  # fmt: skip
        assert options("m", *arguments) == plain | changed
    for passed in (True, False):
        report = SimpleNamespace(passed=passed, as_dict=dict)
        monkeypatch.setattr(target, lambda *_, report=report: report)
        assert CliRunner().invoke(app, ["inference-diff", "m", "--json"]).exit_code == (0 if passed else 1)


EVALUATIONS: dict[str, tuple[list[str], dict[str, Any], list[str], dict[str, Any], float]] = {
    "imagenet": (
        ["--ground_truth_labels=t", "--model_output_labels=l"],
        {"ground_truth_labels": "t", "model_output_labels": "l", "denylist_file_path": "", "output_file_path": ""},
        ["--denylist_file_path=d", "--output_file_path=p"],
        {"denylist_file_path": "d", "output_file_path": "p"},
        0.875,
    ),
    "coco": (
        ["--annotations=a"],
        {"annotations": "a", "ground_truth_proto": "", "model_output_labels": "", "match_labels": False,
         "class_offset": 1, "allowlist_file": "", "anchors": "", "output_order": "", "max_detections": 100,
         "output_file_path": ""},
        ["--ground_truth_proto=g", "--model_output_labels=l", "--match-labels", "--class_offset=3",
         "--allowlist_file=w", "--anchors=n", "--output_order=o", "--max_detections=55", "--output_file_path=p"],
        {"ground_truth_proto": "g", "model_output_labels": "l", "match_labels": True, "class_offset": 3,
         "allowlist_file": "w", "anchors": "n", "output_order": "o", "max_detections": 55, "output_file_path": "p"},
        0.0,
    ),
    "segmentation": (
        ["--ground_truth_masks_path=k"],
        {"ground_truth_masks_path": "k", "model_output_labels": "", "ignore_label": 255, "upsampling": "bilinear"},
        ["--model_output_labels=l", "--ignore_label=7", "--upsampling=nearest"],
        {"model_output_labels": "l", "ignore_label": 7, "upsampling": "nearest"},
        0.0,
    ),
    "pose": (
        ["--annotations=a"],
        {"annotations": "a", "every_image": False, "allowlist_file": ""},
        ["--every-image", "--allowlist_file=w"],
        {"every_image": True, "allowlist_file": "w"},
        0.0,
    ),
}  # fmt: skip


def evaluating(kind: str) -> tuple[str, list[str]]:
    base = ["evaluate", kind, "--model_file=m", "--ground_truth_images_path=i", *EVALUATIONS[kind][0]]
    return f"litegpu.tools.evaluate.{kind}.evaluate_{kind}", base


@pytest.mark.parametrize("kind", EVALUATIONS)
def test_evaluations(kind: str, reaching: Callable[..., Called], tmp_path: Path) -> None:
    target, base = evaluating(kind)
    _, plain, more, changed, crop = EVALUATIONS[kind]
    common = {"model_file": "m", "ground_truth_images_path": "i", "num_images": 0}
    task, how = reaching(target, *base)["given"]
    assert vars(task) == common | plain | {"preprocessing": {"crop": crop, "resize": "bilinear"}}
    patience = how.patience
    assert vars(how.choice) == {
        "kind": "cpu", "precision": "float16", "num_threads": 1, "max_delegated_partitions": 1, "arithmetic": "auto",
    }  # fmt: skip
    running = {k: v for k, v in vars(how).items() if k != "choice"}
    assert running == {
        "compare": None, "batch": 0, "workers": -1, "output": None, "restart": False, "skip_errors": False, "ray": None,
        "actors": None, "patience": patience,
    }  # fmt: skip
    task, how = reaching(
        target, *base, *more, "--num_images=6", "--resize=half-pixel", "--mean=1,2,3", "--std=4", "--delegate=vulkan",
        "--compare=cpu", "--precision=float32",
        "--gpu-arithmetic=integer", "--max_delegated_partitions=2", "--num_interpreter_threads=3",
        "-o", str(tmp_path / "out"), "--restart", "--batch=5", "--workers=4", "--on-error=skip", "--ray=a:1",
        "--actors=8", "--patience=9",
    )["given"]  # fmt: skip
    pixels = {"crop": crop, "resize": "half-pixel", "mean": (1.0, 2.0, 3.0), "deviation": (4.0,)}
    assert vars(task) == common | plain | changed | {"num_images": 6, "preprocessing": pixels}
    wanted = {"precision": "float32", "num_threads": 3, "max_delegated_partitions": 2, "arithmetic": "integer"}
    assert vars(how.choice) == {"kind": "vulkan", **wanted} and vars(how.compare) == {"kind": "cpu", **wanted}
    running = {k: v for k, v in vars(how).items() if k not in ("choice", "compare")}
    assert running == {
        "batch": 5, "workers": 4, "output": str(tmp_path / "out"), "restart": True, "skip_errors": True, "ray": "a:1",
        "actors": 8, "patience": 9.0,
    }  # fmt: skip
    official = ["--use_gpu=true", "--gpu_backend=cuda", "--gpu_precision_loss_allowed=false"]
    assert str(reaching(target, *base, *official)["given"][1].choice) == "cuda/float32"
    assert str(reaching(target, *base, "--delegate=gpu", "--gpu_backend=gl")["given"][1].choice) == "gl/float16"
    if kind == "imagenet":
        assert reaching(target, *base, "--crop=0.5")["given"][0].preprocessing["crop"] == 0.5
    (options,) = (reaching(target, *base, "--std=2")["given"][0].preprocessing,)
    assert (options["mean"], options["deviation"]) == ((127.5,), (2.0,))


FIGURES: dict[str, tuple[str, type[DelegateResult], Any]] = {
    "imagenet": (
        "top1", DelegateAccuracy, lambda v: SimpleNamespace(accuracy=SimpleNamespace(accuracies=(v, 1.0, 1.0))),
    ),
    "coco": (
        "map", DelegatePrecision,
        lambda v: SimpleNamespace(precisions=SimpleNamespace(overall=v, statistics={"AP50": 1.0})),
    ),
    "segmentation": ("iou", DelegateIou, lambda v: SimpleNamespace(mean_iou=v, pixel_accuracy=1.0)),
    "pose": ("oks", DelegatePose, lambda v: SimpleNamespace(mean_oks=v, precisions=SimpleNamespace(overall=1.0))),
}  # fmt: skip


@pytest.mark.parametrize("kind", FIGURES)
def test_a_result_that_is_too_low_is_an_exit_status(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, measured, result = FIGURES[kind]
    target, base = evaluating(kind)

    def ends(value: float, *arguments: str) -> Result:
        found = result(value)
        found.collected = SimpleNamespace(problem="")
        found.headline = measured.headline.fget(found)  # type: ignore[attr-defined]
        report = SimpleNamespace(result=found, sides=[found], as_dict=dict)
        monkeypatch.setattr(target, lambda *_: report)
        monkeypatch.setattr("litegpu.tools.evaluate.presentation.Presentation.write", lambda *_: [])
        return CliRunner().invoke(app, [*base, "--json", *arguments])

    assert ends(0.5, f"--min-{name}=0.5").exit_code == 0 and ends(0.0).exit_code == 0
    low = ends(0.4999, f"--min-{name}=0.5")
    assert low.exit_code == 1 and "0.4999 is below 0.5" in low.stderr
    assert ends(float("nan"), f"--min-{name}=0.5").exit_code == 1

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(target, interrupted)
    assert CliRunner().invoke(app, base).exit_code == 130


def test_records_that_were_not_kept_are_an_error_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    target, base = evaluating("segmentation")
    full = SimpleNamespace(headline=("mean IoU", 1.0), collected=SimpleNamespace(problem="No space left"))
    report = SimpleNamespace(result=full, sides=[full], as_dict=dict)
    monkeypatch.setattr(target, lambda *_: report)
    monkeypatch.setattr("litegpu.tools.evaluate.presentation.Presentation.write", lambda *_: [])
    result = CliRunner().invoke(app, [*base, "--json"])
    assert isinstance(result.exception, OptionError) and "No space left" in str(result.exception)
    assert result.stdout.strip() == "{}", "what was computed is shown all the same"


def test_ctrl_c_in_any_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("litegpu.tools.model_run.run_model", interrupted)
    result = CliRunner().invoke(app, ["run", "m"])
    assert result.exit_code == 130 and "interrupted" in result.stderr


@pytest.mark.parametrize("address", ["auto", "local", "host:6379", "ray://head:10001", "10.0.0.1:6379", "[::1]:6379"])
def test_addresses_of_clusters(address: str) -> None:
    assert with_ray_address(["map", "--ray", address, "m"]) == ["map", "--ray", address, "m"]
    for other in ("m.tflite", "--workers", "host:port"):
        assert with_ray_address(["map", "--ray", other]) == ["map", "--ray=auto", other]
    assert with_ray_address(["--ray"]) == ["--ray=auto"]


def test_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def entry(name: str, size: int, problem: str | None) -> Any:
        return SimpleNamespace(path=Path(name), size=size, used=0.0, problem=problem, about={"file": f"{name}.tflite"})

    sound, damaged = entry("aaa", 3_000_000, None), entry("bbb", 1_500_000, "torn")

    def command(name: str, *entries: Any) -> tuple[int, str]:
        folder = SimpleNamespace(list=lambda: list(entries), clear=lambda: 2, path="there", most_bytes=2_000_000_000)
        monkeypatch.setattr(cache, "_opened", lambda _: folder)
        result = CliRunner().invoke(app, ["cache", name])
        return result.exit_code, re.sub(r"\s+", " ", result.stdout)

    status, text = command("list", sound, damaged)
    assert status == 0 and "aaa" in text and "bbb" in text
    assert "there: 2 entries, 4.5 MB of at most 2000, 1 damaged" in text
    status, text = command("verify", sound, damaged)
    assert status == 1 and "aaa" not in text and "bbb" in text
    assert command("verify", sound) == (0, "there: 1 entry, 3.0 MB of at most 2000, all sound ")
    assert command("clear") == (0, "2 entries removed from there ")
