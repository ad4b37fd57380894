"""`litegpu inference-diff`: the official lines, every measure, inputs, thresholds, pages."""

from __future__ import annotations

import json
import math
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from agreement import require_gpu

import litegpu
from litegpu import cli
from litegpu.errors import DelegateError, OptionError
from litegpu.model import ModelBuilder, TensorType
from litegpu.tools.inference_diff import DiffOptions, inference_diff
from litegpu.tools.inference_diff.difference_inputs import _samples, file_feeds, gaussian_feeds
from litegpu.tools.inference_diff.difference_text import official_lines
from litegpu.tools.inference_diff.measures import EDGES, histogram, measure, summarise
from litegpu.zoo import build_model

PLAIN = {"name": "x", "quantization": (0.0, 0)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diff") / "tiny.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=10))
    return path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `litegpu inference-diff ARGUMENTS`, run in this process."""
    monkeypatch.setattr(sys, "argv", ["litegpu", "inference-diff", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return int(exit_.value.code or 0)


# ------------------------------------------------------------------------------------------------ measures


def test_measures_of_known_arrays() -> None:
    want = np.array([[0.0, 3.0, 4.0, 1.0]], np.float32)
    got = np.array([[0.0, 3.5, 4.0, 0.0]], np.float32)
    found = measure(got, want, PLAIN)
    assert found.mean_error == pytest.approx(1.5 / 4) and found.max_abs == 1.0 and found.max_quanta is None
    assert found.relative_l2 == pytest.approx(math.sqrt(1.25) / math.sqrt(26))
    assert found.cosine == pytest.approx(26.5 / (math.sqrt(26) * math.sqrt(3.5**2 + 16)))
    assert found.psnr == pytest.approx(20 * math.log10(4 / math.sqrt(1.25 / 4)))
    assert found.top1 == 1.0
    same = measure(want, want.copy(), PLAIN)
    assert (same.mean_error, same.relative_l2, same.psnr) == (0, 0, math.inf) and same.cosine == pytest.approx(1)


def test_quantized_outputs_are_compared_in_quanta_and_in_real_numbers() -> None:
    detail = {"name": "q", "quantization": (0.5, 10)}
    want, got = np.array([[10, 12, 14]], np.uint8), np.array([[10, 12, 16]], np.uint8)
    found = measure(got, want, detail)
    assert found.mean_error == pytest.approx(2 / 3) and found.max_quanta == 2
    assert found.max_abs == pytest.approx(1.0)  # two quanta of 0.5
    assert found.relative_l2 == pytest.approx(1 / math.sqrt(1 + 4))  # of 0, 1 and 2: the zero point counts


def test_nan_infinity_and_shapes() -> None:
    nan, inf = float("nan"), float("inf")
    both = np.array([1, nan, inf, -inf], np.float32)
    assert measure(both, both.copy(), PLAIN).relative_l2 == 0
    assert histogram(both, both.copy(), PLAIN).exact == 4
    one = measure(np.array([1, nan], np.float32), np.array([1, 2], np.float32), PLAIN)
    assert one.relative_l2 == inf and math.isnan(one.mean_error)
    assert histogram(np.array([1, nan], np.float32), np.array([1, 2], np.float32), PLAIN).not_finite == 1
    assert measure(np.zeros(3, np.float32), np.zeros(4, np.float32), PLAIN).relative_l2 == inf
    assert measure(np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32), PLAIN).mean_error == 0
    large = np.full(4, 1e38, np.float32)
    assert measure(large, large / 2, PLAIN).cosine == pytest.approx(1)
    assert measure(np.zeros(2, np.float32), np.ones(2, np.float32), PLAIN).cosine == 0


@pytest.mark.parametrize(
    ("got", "want", "top1"),
    [
        ([[1, 2], [5, 3]], [[1, 2], [3, 5]], 0.5),
        ([[[[0, 9, 1]]]], [[[[0, 2, 1]]]], 1.0),
        ([[0.1, 0.2]], [[0.5, 0.5]], 1.0),  # the reference has two highest scores
        ([[[1, 2], [3, 4]]], [[[1, 2], [3, 4]]], None),  # no row of scores
        ([[1], [2]], [[1], [2]], None),
        ([1, 2], [1, 2], None),
        ([[np.nan, 2], [1, np.nan]], [[np.nan, 2], [1, 3]], 0.5),  # no numbers, but the same
    ],
)
def test_top1_of_what_looks_like_a_classifier(got: list, want: list, top1: float | None) -> None:
    assert measure(np.array(got, np.float32), np.array(want, np.float32), PLAIN).top1 == top1


def test_the_histogram_counts_every_element_once() -> None:
    error = np.array([0, 1e-20, 1e-12, 4e-5, 5e-5, 0.5, 1e9])
    found = histogram(error, np.zeros(7), PLAIN)
    assert found.exact == 1 and sum(found.counts) == 6 and found.not_finite == 0
    assert found.counts[0] == 2 and found.counts[-1] == 1  # what lies beyond the ends counts there
    (two,) = [i for i, n in enumerate(found.counts) if n == 2 and i]
    assert EDGES[two] <= 4e-5 < 5e-5 <= EDGES[two + 1]
    assert (found + found).counts[0] == 4


def test_official_figures_are_those_of_runs() -> None:
    """avg_error and std_dev are mean and population deviation of the runs' mean errors."""
    runs = [measure(np.full(4, e, np.float32), np.zeros(4, np.float32), PLAIN) for e in (1.0, 2.0, 6.0)]
    found = summarise(PLAIN | {"dtype": np.float32}, (4,), runs, histogram(np.ones(4), np.zeros(4), PLAIN))
    assert found.avg_error == 3 and found.std_dev == pytest.approx(math.sqrt(14 / 3)) and found.max_abs == 6


# -------------------------------------------------------------------------------------------------- inputs


def _detail(dtype: type, shape: tuple[int, ...], name: str = "x", index: int = 0) -> dict[str, object]:
    return {"name": name, "dtype": dtype, "shape": np.array(shape), "index": index}


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [(np.uint8, 0, 255), (np.int8, -128, 127), (np.int16, -32768, 32767), (np.int32, 0, 99), (np.int64, 0, 99)],
)
def test_whole_numbers_fill_their_range(dtype: type, low: int, high: int, model: Path) -> None:
    (feed,) = gaussian_feeds([_detail(dtype, (200_000,))], litegpu.read_model(model).main, 1, 0)
    values = feed[0].astype(np.int64)
    assert feed[0].dtype == dtype and values.min() >= low and values.max() <= high
    if high - low < 1000:  # every value occurs, the ends as well, and zero no more often than its neighbours
        counts = np.bincount(values - low, minlength=high - low + 1)
        assert counts.min() > 0 and counts.max() < 2 * counts[len(counts) // 4]
    assert abs(values.mean() - (low + high) / 2) < 0.02 * (high - low)


def test_floats_are_normal_and_seeds_reproduce_them(model: Path) -> None:
    main, details = (
        litegpu.read_model(model).main,
        [_detail(np.float32, (100_000,)), _detail(np.bool_, (1000,), "b", 1)],
    )
    first, second = gaussian_feeds(details, main, 2, 5)
    values = first[0]
    assert values.dtype == np.float32 and values.min() >= -1 and values.max() < 1
    # A normal distribution of deviation 2/3, cut at 1.5 deviations: its own deviation is 0.7426 of that.
    assert abs(values.mean()) < 0.01 and values.std() == pytest.approx(2 / 3 * 0.7426, rel=0.01)
    assert 0.4 < first[1].mean() < 0.6
    assert not np.array_equal(first[0], second[0])
    again = next(iter(gaussian_feeds(details, main, 1, 5)))
    assert np.array_equal(first[0], again[0])
    assert not np.array_equal(first[0], next(iter(gaussian_feeds(details, main, 1, 6)))[0])


def test_indices_stay_inside_what_they_select_from() -> None:
    b = ModelBuilder()
    ids = b.input("ids", [50], TensorType.INT32)
    table = b.constant(np.zeros((7, 3), np.float32))
    b.output(
        b.op("GATHER", [table, b.op("RESHAPE", [ids, b.constant(np.array([5, 10], np.int32))], [5, 10])], [5, 10, 3])
    )
    main = litegpu.read_model(bytes(b.build())).main
    feeds = list(gaussian_feeds([_detail(np.int32, (50,), "ids", ids)], main, 5, 0))
    values = np.concatenate([feed[0] for feed in feeds])
    assert values.min() == 0 and values.max() == 6


def test_files_of_the_user(tmp_path: Path) -> None:
    details = [_detail(np.float32, (1, 2), "a"), _detail(np.uint8, (3,), "b", 1)]
    a, b = np.arange(6, dtype=np.float64).reshape(3, 2), np.arange(9, dtype=np.uint8).reshape(3, 3)
    np.savez(tmp_path / "both.npz", a=a, b=b)
    feeds = file_feeds(details, [str(tmp_path / "both.npz")])
    assert len(feeds) == 3 and feeds[1][0].tolist() == [[2, 3]] and feeds[1][1].tolist() == [3, 4, 5]
    assert feeds[0][0].dtype == np.float32
    np.save(tmp_path / "a.npy", a.astype(np.float32))
    (tmp_path / "b.bin").write_bytes(b.tobytes())
    assert np.array_equal(file_feeds(details, [str(tmp_path / "a.npy"), str(tmp_path / "b.bin")])[2][1], b[2])
    named = [f"b={tmp_path / 'b.bin'}", f"a={tmp_path / 'a.npy'}"]
    assert np.array_equal(file_feeds(details, named)[2][0], a[2:])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["absent.npy"], "Cannot read .*absent.npy"),
        (["short.bin"], "takes 8 or a multiple"),
        (["wrong.npy"], r"shape \[5, 7\].*\[n, 1, 2\] for n runs"),
        (["whole.npy"], "No values were given for input 'b'"),
        (["whole.npy", "fraction.npy"], "holds float64, but input 'b' takes uint8"),
        (["whole.npy", "one.npy"], "3 for 'a', 1 for 'b'"),
        (["whole.npy", "one.npy", "one.npy"], "one file too many"),
        (["whole.npy", "a=whole.npy"], "'a' was given twice"),
        (["other.npz"], "has an array 'c'"),
        (["text.npy"], "Cannot read"),
    ],
)
def test_files_that_do_not_fit(files: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short.bin").write_bytes(b"12345")
    np.save("wrong.npy", np.zeros((5, 7), np.float32))
    np.save("whole.npy", np.zeros((3, 1, 2), np.float32))
    np.save("fraction.npy", np.full((3, 3), 0.5))
    np.save("one.npy", np.zeros(3, np.uint8))
    np.savez("other.npz", c=np.zeros(3))
    Path("text.npy").write_text("hello")
    details = [_detail(np.float32, (1, 2), "a"), _detail(np.uint8, (3,), "b", 1)]
    with pytest.raises(OptionError, match=message):
        file_feeds(details, files)


# ------------------------------------------------------------------------------------------------ the tool


def test_the_gpu_agrees_and_the_official_lines_say_so(model: Path) -> None:
    require_gpu()
    report = inference_diff(model, DiffOptions(num_runs=3, backend="webgpu"))
    assert report.delegation.fully_delegated and 0 < report.worst < 1e-5 and report.passed
    (output,) = report.outputs
    assert output.top1 == 1.0 and output.cosine > 0.999999 and output.psnr > 80 and len(output.errors) == 3
    assert sum(output.histogram.counts) + output.histogram.exact == 30
    lines = official_lines(report)
    assert lines[0] == "INFO: Num evaluation runs: 3"
    assert lines[1].startswith("INFO: Reference run latency: avg=") and "(us), std_dev=" in lines[1]
    assert lines[3] == f"INFO: OutputDiff[0]: avg_error={output.avg_error:g}, std_dev={output.std_dev:g}"
    assert len(report.test_latency.values) == 9  # three invokes a run, the warm-up left out
    assert inference_diff(model, DiffOptions(num_runs=3, backend="webgpu")).outputs == report.outputs


def test_the_cpu_against_itself(model: Path) -> None:
    report = inference_diff(model, DiffOptions(delegate="xnnpack", num_runs=2, num_threads=2))
    assert report.device == "CPU" and 0 < report.worst < 1e-4  # XNNPACK beside the built-in kernels
    same = inference_diff(model, DiffOptions(delegate="xnnpack", reference="xnnpack", num_runs=2))
    assert same.worst == 0 and same.outputs[0].identical


def test_a_gpu_that_takes_nothing_is_an_error(tmp_path: Path) -> None:
    """The official tool compares the CPU with itself then, and reports no difference."""
    require_gpu()
    b = ModelBuilder()
    x = b.input("x", [9000])
    b.output(b.op("CUMSUM", [x, b.constant(0)], [9000]))  # longer than the GPU takes
    path = tmp_path / "long.tflite"
    path.write_bytes(bytes(b.build()))
    with pytest.raises(DelegateError, match="nothing is compared"):
        inference_diff(path, DiffOptions(num_runs=1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delegate": "nnapi"}, "Unsupported TFLite delegate: nnapi"),
        ({"num_runs": 0}, "num_runs is 0"),
        ({"max_relative_error": -1.0}, "0 or more"),
        ({"tolerance": float("nan")}, "0 or more"),
        ({"reference": "gpu"}, "reference is 'gpu'"),
        ({"per_op": True, "delegate": "cpu"}, "use delegate gpu"),
    ],
)
def test_options_that_make_no_sense(changes: dict, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        DiffOptions(**changes)


def test_command_with_official_flags(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics, page = tmp_path / "m" / "metrics.pb", tmp_path / "p" / "page.html"
    official = ["--delegate=xnnpack", "--num_runs=2", "--num_interpreter_threads=2", f"--output_file_path={metrics}"]
    limits = ["--max_relative_error=0.5", f"--html={page}", f"--plots={tmp_path / 'plots'}"]
    assert call(monkeypatch, f"--model_file={model}", *official, *limits) == 0
    text = capsys.readouterr().out
    assert text.startswith("INFO: Num evaluation runs: 2\n") and "INFO: OutputDiff[0]: avg_error=" in text
    assert "PASSED" in text
    assert "Inference diff: tiny.tflite" in page.read_text() and (tmp_path / "plots" / "errors-0.png").exists()
    assert call(monkeypatch, str(model), *official, "--max_relative_error=1e-12", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["passed"] is False and found["outputs"][0]["avg_error"] > 0
    content = metrics.read_bytes()
    assert content[:2] == b"\x08\x02"  # num_runs
    # The first error's mean, a double (field 3), by the numbers in the JSON.
    assert struct.pack("<d", found["outputs"][0]["avg_error"]) in content


def test_the_metrics_file_is_the_official_message(model: Path, tmp_path: Path) -> None:
    """Read back field by field."""
    from litegpu.tools.inference_diff.metrics_file import write_metrics

    report = inference_diff(model, DiffOptions(delegate="xnnpack", num_runs=2))
    write_metrics(report, tmp_path / "metrics.pb")
    root = _decoded((tmp_path / "metrics.pb").read_bytes())
    assert root[1] == [2]
    profile = _decoded(_decoded(root[2][0])[5][0])
    latency = _decoded(profile[2][0])
    assert latency[4] == [sum(report.test_latency.values)] and latency[2] == [max(report.test_latency.values)]
    assert struct.unpack("<d", latency[5][0])[0] == report.test_latency.average
    error = _decoded(profile[3][0])
    assert struct.unpack("<d", error[3][0])[0] == report.outputs[0].avg_error
    assert struct.unpack("<f", error[4][0])[0] == pytest.approx(report.outputs[0].std_dev, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "no model was given"),
        (["absent.tflite"], 1, "absent.tflite"),
        (["MODEL", "--delegate=coreml"], 1, "Core ML" if sys.platform == "darwin" else "Core ML runs on macOS only"),
        (["MODEL", "--use_gpu=yes"], 2, "yes"),
        (["MODEL", "--delegate=cpu", "--html=MODEL/x.html"], 1, "Cannot write"),
        (["MODEL", "--delegate=cpu", "--input=absent.npy"], 1, "Cannot read the input values absent.npy"),
    ],
)
def test_mistakes_on_the_command_line(
    arguments: list[str], status: int, message: str, model: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    arguments = [a.replace("MODEL", str(model)) for a in arguments]
    assert call(monkeypatch, *arguments) == status
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split()) and captured.out == ""


def _decoded(content: bytes) -> dict[int, list]:
    """Field -> values of a protocol buffer: ints, or bytes."""
    fields: dict[int, list] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = content[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(content):
        key = varint()
        kind = key & 7
        if kind == 0:
            value: object = varint()
        else:
            size = {1: 8, 5: 4}.get(kind) or varint()
            value, at = content[at : at + size], at + size
        fields.setdefault(key >> 3, []).append(value)
    return fields


def test_values_that_the_input_cannot_hold_are_one_line(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[np.nan, 300.0]], np.float32))
    detail = {"name": "x", "dtype": np.uint8, "shape": np.array([1, 2], np.int32)}
    with pytest.raises(OptionError, match="holds float32, but input 'x' takes uint8"):
        _samples(np.load(tmp_path / "x.npy"), detail, "x.npy")
