"""`litegpu run` as a function: devices, comparison with the CPU, drawings."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from agreement import FLOAT32, require_gpu

from litegpu.errors import OptionError
from litegpu.model.builder import ModelBuilder
from litegpu.model.reader import read_model
from litegpu.model.types import TensorType
from litegpu.tools import model_run
from litegpu.tools.agreement import compare, judge
from litegpu.tools.demo import demonstrate
from litegpu.tools.images import load_image, save_image
from litegpu.tools.inputs import made_up_inputs, random_inputs
from litegpu.tools.model_run import run_model
from litegpu.tools.predictions import Classification, Segmentation
from litegpu.tools.run_page import write_page
from litegpu.tools.run_text import print_report
from litegpu.zoo import build_model, draw_scene


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "tiny.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=64, classes=10))
    return path


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    save_image(tmp_path / "scene.png", draw_scene(90, 120, 3))
    return tmp_path / "scene.png"


def test_cpu_run_with_a_picture(model: Path, picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"thing {i}" for i in range(10)))
    report = run_model(model, [picture], labels=labels, device="cpu", output=tmp_path / "new" / "out.png")
    assert report.device == "CPU" and report.cpu is None and report.worst == 0
    (inference,) = report.inferences
    assert isinstance(inference.result, Classification) and len(inference.result.top) == 5
    assert inference.drawing == str(tmp_path / "new" / "out.png")
    assert load_image(inference.drawing).shape == (480, 640, 3)
    print_report(report)
    text = capsys.readouterr().out
    assert inference.result.top[0].label in text and "31 ops on the CPU" in text
    assert json.loads(json.dumps(report.as_dict()))["inferences"][0]["task"] == "classification"
    write_page(report, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert inference.result.top[0].label in page and "data:image/png;base64," in page and "31 ops on the CPU" in page


def test_gpu_agrees_with_the_cpu_without_being_identical(
    model: Path, picture: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require_gpu()
    report = run_model(model, [picture, picture], device="webgpu", output=tmp_path)
    assert report.delegation.fully_delegated and report.cpu is not None
    assert len(report.inferences) == 2
    assert 0 < report.worst <= FLOAT32 and report.agrees and report.verdict.tells
    assert report.inferences[0].decision == "top-5 equal"
    print_report(report)
    assert "within 1e-05 for float32" in capsys.readouterr().out


def test_automatic_precision_is_judged_as_float16(model: Path) -> None:
    require_gpu()
    assert run_model(model, device="webgpu", precision="auto").agrees


def tensor(seed: int, dtype: type, shape: tuple[int, ...] = (4, 5)) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 100, shape).astype(dtype)


A, ZEROS = tensor(1, np.float32), np.zeros((4, 5), np.float32)
INTEGERS = tensor(2, np.int8)
NOT_NUMBERS = np.full((4, 5), np.nan, np.float32)
#: got, wanted, step -> near enough, in float32 and in float16, and whether that says anything
VERDICTS = {
    "equal floats": (A, A, 0.0, True, True, True),
    "near floats": (A * np.float32(1 + 3e-6), A, 0.0, True, True, True),
    "far floats": (A * np.float32(1 + 1e-3), A, 0.0, False, True, True),
    "zeros": (ZEROS, ZEROS, 0.0, True, True, False),
    "zeros instead of something": (ZEROS, A, 0.0, False, False, True),
    "something instead of zeros": (A, ZEROS, 0.0, False, False, False),
    "one number throughout": (ZEROS + 3, ZEROS + 3, 0.0, True, True, False),
    "NaN throughout": (NOT_NUMBERS, NOT_NUMBERS, 0.0, True, True, False),
    "NaN on the GPU alone": (NOT_NUMBERS, A, 0.0, False, False, True),
    "NaN on the CPU alone": (A, NOT_NUMBERS, 0.0, False, False, False),
    "a single number": (np.array([2.5], np.float32), np.array([2.5], np.float32), 0.0, True, True, True),
    "a single zero": (np.array([0], np.float32), np.array([0], np.float32), 0.0, True, True, False),
    "a single index": (np.array([0], np.int32), np.array([0], np.int32), 0.0, True, True, True),
    "equal quanta": (INTEGERS, INTEGERS, 1.0, True, True, True),
    "quanta one step apart": (INTEGERS + np.eye(4, 5, dtype=np.int8), INTEGERS, 1.0, True, True, True),
    "quanta two steps apart": (INTEGERS + 2 * np.eye(4, 5, dtype=np.int8), INTEGERS, 1.0, False, False, True),
    "floats one step apart": (A + 0.25 * np.eye(4, 5, dtype=np.float32), A, 0.25, True, True, True),
    "floats three steps apart": (A + 0.75 * np.eye(4, 5, dtype=np.float32), A, 0.25, False, True, True),
    "16 bits against zeros": (tensor(3, np.int16), ZEROS.astype(np.int16), 1.0, False, False, False),
    "equal indices": (tensor(4, np.int32), tensor(4, np.int32), 0.0, True, True, True),
    "other indices": (tensor(4, np.int32), tensor(5, np.int32), 0.0, False, False, True),
    "equal truths": (A > 50, A > 50, 0.0, True, True, True),
    "other truths": (A > 50, A > 40, 0.0, False, False, True),
    "equal texts": (np.array([b"a", b"b"], object), np.array([b"a", b"b"], object), 0.0, True, True, True),
    "other texts": (np.array([b"a", b"b"], object), np.array([b"a", b"c"], object), 0.0, False, False, True),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_verdicts(case: str) -> None:
    got, want, step, *near, tells = VERDICTS[case]
    agreement = compare("out", got, want, step)
    assert agreement.constant is not tells
    for precision, agrees in zip(("float32", "float16"), near, strict=True):
        verdict = judge([agreement], precision)
        assert verdict.agrees is agrees, (precision, verdict.text, agreement)
        assert ("MORE than" in verdict.text) is not agrees
        assert verdict.tells is (tells or not agrees) and ("says nothing" in verdict.text) is not verdict.tells


def test_one_output_that_says_something_is_enough() -> None:
    verdict = judge([compare("a", ZEROS, ZEROS), compare("b", A, A)], "float32")
    assert verdict.agrees and verdict.tells and "bit for bit" in verdict.text


def test_with_8_bit_weights_the_agreement_with_float_weights_counts() -> None:
    near, far = compare("a", A, A), compare("a", A, A * np.float32(1.002))
    verdict = judge([far], "float32", [near], 3)
    assert verdict.agrees and "rounds the inputs of 3 ops" in verdict.text and "2.0e-03" in verdict.text
    assert not judge([near], "float32", [far], 3).agrees


def test_dynamic_range_models_are_judged_by_their_float_weights(models_dir: Path, tmp_path: Path) -> None:
    require_gpu()
    report = run_model(models_dir / "kws_ref_model_float32.tflite", device="webgpu")
    assert report.hybrid_ops == 5 and report.worst > 1e-4 and report.agrees and report.verdict.tells
    assert max(a.relative_l2 for i in report.inferences for a in i.hybrid) <= FLOAT32
    wrong = tuple(replace(a, relative_l2=1e-3, identical=False) for a in report.inferences[0].hybrid)
    assert not replace(report, inferences=(replace(report.inferences[0], hybrid=wrong),)).agrees


def test_integer_models_that_equal_the_cpu_agree(models_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_gpu()
    report = run_model(models_dir / "mobilenet_v1_0.25_128_quant.tflite", device="webgpu")
    assert report.verdict.agrees and report.verdict.tells and not report.hybrid_ops
    print_report(report)
    assert "every output equals the CPU's" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [("int8", -127, 127), ("uint8", 0, 254), ("int16", -32767, 32767), ("uint16", 0, 65534), ("int32", 0, 99),
     ("int64", 0, 99), ("uint32", 0, 99), ("bool", 0, 1), ("float32", -0.5, 0.5), ("float16", -0.5, 0.5)],
)  # fmt: skip
def test_made_up_inputs_take_all_of_their_range(dtype: str, low: float, high: float) -> None:
    (array,) = random_inputs([{"name": "x", "dtype": np.dtype(dtype), "shape": (100, 100)}])
    assert array.dtype == dtype and low <= array.min() <= array.max() <= high
    reach = 0.01 * (high - low) if high > 1 else 1e-3
    assert array.min() <= low + reach and array.max() >= high - reach


def test_made_up_indices_stay_within_what_they_select_from() -> None:
    main = read_model(gather_model(7)).main
    (array,) = made_up_inputs(
        [{"name": "i", "dtype": np.dtype(np.int32), "shape": (1000,), "index": main.inputs[0]}], main
    )
    assert set(array.tolist()) == set(range(7))


def gather_model(rows: int) -> bytes:
    b = ModelBuilder()
    ids = b.input("ids", [1000], TensorType.INT32)
    b.output(b.op("GATHER", [b.constant(np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)), ids], [1000, 3]))
    return b.build()


def packed(model: Path, target: Path, files: dict[str, bytes]) -> Path:
    target.write_bytes(model.read_bytes())
    with zipfile.ZipFile(target, "a") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return target


def test_labels_may_be_packed_into_the_model(model: Path, picture: Path, tmp_path: Path) -> None:
    names = "\n".join(f"thing {i}" for i in range(10)).encode()
    cases: dict[str, tuple[dict[str, bytes], str]] = {
        "labels": ({"labels.txt": names}, "thing"),
        "another name": ({"readme.md": b"x", "Classes.TXT": names}, "thing"),
        "labels first": ({"about.txt": b"\n".join([b"no"] * 10), "my_labels.txt": names}, "thing"),
        "wrong number": ({"labels.txt": b"a\nb"}, "class"),
        "not text": ({"labels.txt": bytes(range(256))}, "class"),
        "too large": ({"labels.txt": b"a\n" * (3 << 20)}, "class"),
        "none": ({"readme.md": names}, "class"),
    }
    for name, (files, label) in cases.items():
        with_files = packed(model, tmp_path / f"{name}.tflite", files)
        (inference,) = run_model(with_files, [picture], device="cpu", output=tmp_path).inferences
        assert isinstance(inference.result, Classification), name
        assert all(e.label == f"{label} {e.index}" for e in inference.result.top), name
    own = tmp_path / "own.txt"
    own.write_text("\n".join(f"own {i}" for i in range(10)))
    (inference,) = run_model(
        packed(model, tmp_path / "m.tflite", {"labels.txt": names}),
        [picture],
        labels=own,
        device="cpu",
        output=tmp_path,
    ).inferences
    assert isinstance(inference.result, Classification) and inference.result.top[0].label.startswith("own")


@pytest.mark.parametrize(("count", "fits"), [(8, False), (9, True), (10, True), (11, True), (12, False)])
def test_labels_of_something_else_are_refused(model: Path, tmp_path: Path, count: int, fits: bool) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(f"thing {i}" for i in range(count)))
    if fits:
        run_model(model, labels=labels, device="cpu")
        return
    with pytest.raises(OptionError, match=rf"labels.txt has {count} names, but the model tells 10 classes apart"):
        run_model(model, labels=labels, device="cpu")


def test_agreement_sees_nan_and_differences() -> None:
    want = np.array([3.0, 4.0], np.float32)
    near = compare("a", np.array([3.0, 4.5], np.float32), want)
    assert near.relative_l2 == pytest.approx(0.1) and near.max_abs == pytest.approx(0.5) and not near.identical
    assert compare("a", want.copy(), want).identical
    assert compare("a", np.array([3, np.nan], np.float32), want).relative_l2 == np.inf
    assert compare("a", np.array([3, np.nan]), np.array([3, np.nan])).relative_l2 == 0
    assert compare("a", want, np.array([3, np.inf], np.float32)).relative_l2 == np.inf


def test_mistakes_are_named(model: Path, picture: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="give a folder"):
        run_model(model, [picture, picture], device="cpu", output=tmp_path / "one.png")
    with pytest.raises(OptionError, match="No such file"):
        run_model(model, [tmp_path / "absent.png"], device="cpu")


def test_deeplab_segments_the_cat(models_dir: Path, images_dir: Path, tmp_path: Path) -> None:
    require_gpu()
    report = run_model(
        models_dir / "deeplabv3_257_mv_gpu.tflite",
        [images_dir / "cat.bmp"],
        labels=models_dir / "pascal_voc_segmentation_labels.txt",
        device="webgpu",
        output=tmp_path / "cat.png",
    )
    assert report.delegation.delegated == 70 and len(report.delegation.partitions) == 1
    assert report.agrees
    result = report.inferences[0].result
    assert isinstance(result, Segmentation)
    assert [entry.label for entry in result.shares[:2]] == ["background", "cat"]
    assert 0.3 < result.shares[1].score < 0.42
    # The cat sits in the left half, below the middle.
    mask = result.mask == 8
    assert mask[200, 100] and not mask[20, 20] and not mask[100, 240]
    assert (tmp_path / "cat.png").stat().st_size > 10_000


def test_custom_ops_agree_with_the_official_runtime(models_dir: Path) -> None:
    require_gpu()
    report = run_model(models_dir / "hair_segmentation.tflite", device="webgpu")
    assert report.delegation.fully_delegated
    assert all(a.relative_l2 <= 1e-5 for a in report.inferences[0].agreement)


def test_a_model_without_pictures_says_so(models_dir: Path, picture: Path) -> None:
    with pytest.raises(OptionError, match="takes no picture"):
        run_model(models_dir / "ad01_fp32.tflite", [picture], device="cpu")


def test_demo_draws_its_own_picture(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demonstrate(model, output=tmp_path / "demo")
    assert {path.name for path in (tmp_path / "demo").iterdir()} == {"scene.png", "scene-tiny.png"}
    assert "ops on" in capsys.readouterr().out


def test_a_drawing_that_nobody_asked_for_stands_in_nobodys_way(
    model: Path, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that cannot be written to there are results, and what could not be written is told."""

    def refused(path: Path, *_: object, **__: object) -> None:
        raise OptionError(f"Cannot write {path}: Permission denied")

    for name in ("require_writable", "save_image"):
        monkeypatch.setattr(model_run, name, refused)
    monkeypatch.setattr("os.access", lambda *_: False)
    report = run_model(model, [picture], device="cpu")
    assert not report.inferences[0].drawing
    assert report.problems == ("Cannot write scene-tiny.png: Permission denied",)
    with pytest.raises(OptionError, match=r"out\.png"):
        run_model(model, [picture], device="cpu", output="out.png")
