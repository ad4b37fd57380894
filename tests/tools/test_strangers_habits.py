"""What strangers give tools: models of several graphs, numbers that are none, files of one name, odd flags."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from control_models import three_signatures
from PIL import Image
from rich.text import Text

from litegpu import cli
from litegpu.cli.application import app
from litegpu.errors import InvokeError, OptionError
from litegpu.model.builder import ModelBuilder
from litegpu.tools import run_text
from litegpu.tools.benchmark.benchmark_text import software_line
from litegpu.tools.benchmark.loop import InterruptedRuns, Rule, timed_runs
from litegpu.tools.entered import others_line
from litegpu.tools.inference_diff import DiffOptions, inference_diff
from litegpu.tools.inference_diff.difference_text import says_nothing
from litegpu.tools.json_text import json_text
from litegpu.tools.model_run import RunReport, run_model
from litegpu.tools.outputs import require_folder, require_writable
from litegpu.tools.predictions import Detection, interpret
from litegpu.zoo import build_model


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["litegpu", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def one_op(operator: str, shape: tuple[int, ...] = (8,), twice: bool = False) -> bytes:
    model = ModelBuilder("one op")
    x = model.input("x", shape)
    model.output(model.op(operator, [x, x] if twice else [x], shape))
    return model.build()


@pytest.fixture
def several(tmp_path: Path) -> Path:
    path = tmp_path / "several.tflite"
    path.write_bytes(three_signatures())
    return path


def commands(group: Any, name: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for one, command in group.commands.items():
        inner = commands(command, f"{name} {one}") if hasattr(command, "commands") else []
        found += inner or [(f"{name} {one}".strip(), command)]
    return found


def test_help_shows_all_that_it_says() -> None:
    """Rich takes words in brackets for styles, and leaves them out."""
    checked = 0
    for name, command in commands(typer.main.get_command(app)):
        for parameter in command.params:
            text = getattr(parameter, "help", None) or ""
            shown = Text.from_markup(text).plain
            written = text.replace("[bold]", "").replace("[/]", "").replace("\\[", "[")
            assert shown == written, (name, parameter.name)
            checked += 1
    assert checked > 100


def test_the_zoo_offers_no_precision_that_it_refuses(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert call(monkeypatch, "zoo", "build", "mobilenet_v1", "--precision=auto") == 2
    assert "'float32', 'float16'" in " ".join(capsys.readouterr().err.split())


def test_json_has_no_numbers_that_parsers_refuse() -> None:
    value = {"a": [np.nan, 1.5, (np.inf,)], "b": np.float64(-np.inf), "c": Path("x")}
    read = json.loads(json_text(value), parse_constant=lambda text: pytest.fail(text))
    assert read == {"a": ["nan", 1.5, ["inf"]], "b": "-inf", "c": "x"}


# ------------------------------------------------------------------------------------------------ several signatures


def test_which_of_several_signatures_ran(several: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert others_line(several) == "This is the signature encode; the model also has decode, both"
    assert call(monkeypatch, "run", str(several), "--device=cpu", "--signature=both") == 0
    told = capsys.readouterr().out
    assert "This is the signature both; the model also has encode, decode (--signature chooses)" in told
    assert "all 3 ops" in told
    assert call(monkeypatch, "run", str(several), "--device=cpu", "--signature=other") == 1
    assert "'encode', 'decode', 'both'" in capsys.readouterr().err


def test_the_difference_of_one_of_several_signatures(several: Path) -> None:
    found = inference_diff(several, DiffOptions(delegate="cpu", num_runs=1, signature="decode"))
    assert found.outputs[0].shape == (1, 8) and found.options.signature == "decode"
    assert inference_diff(several, DiffOptions(delegate="cpu", num_runs=1)).outputs[0].shape == (1, 16)


def test_the_page_has_the_graph_that_ran(several: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "run.html"
    assert call(monkeypatch, "run", str(several), "--device=cpu", "--signature=decode", f"--html={page}") == 0
    assert "TANH" in page.read_text() and "the model also has encode, both" in page.read_text()


@pytest.mark.parametrize("tool", ["advise", "analyze"])
def test_what_is_not_looked_at_is_told(tool: str, several: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert call(monkeypatch, tool, str(several)) == 0
    line = "This is the signature encode; the model also has decode, both"
    assert f"{line}, which are not looked at here\n" in capsys.readouterr().out
    assert call(monkeypatch, tool, str(several), "--json") == 0
    assert json.loads(capsys.readouterr().out)["signature"] == line


# ------------------------------------------------------------------------------------- results that are no numbers


def test_figures_are_of_the_finite_numbers() -> None:
    detail = {"name": "y", "dtype": np.float32, "quantization": (0.0, 0)}
    result = interpret([np.array([1, np.nan, 3, np.inf], np.float32)], [detail], ())
    _, rows, told = run_text.result_table(result)
    assert rows == [("y", "[4]", "float32", "1", "3", "2", "1")]
    assert told == "2 of the 4 numbers of 'y' are NaN or infinite: the figures are of the others"
    empty = interpret([np.zeros((0, 4), np.float32)], [detail], ())
    assert run_text.result_table(empty)[1:] == ([("y", "[0, 4]", "float32", "-", "-", "-", "-")], "")


def test_a_detector_that_gives_no_numbers_detects_nothing() -> None:
    detail = {"name": "y", "dtype": np.float32, "quantization": (0.0, 0)}
    boxes, rows = np.full((1, 3, 4), np.nan, np.float32), np.full((1, 3), np.nan, np.float32)
    for count in (np.nan, np.inf, 3.0):
        found = interpret([boxes, rows, rows, np.array([count], np.float32)], [detail] * 4, (1, 8, 8, 3))
        assert isinstance(found, Detection) and not found.boxes


def test_measures_are_of_the_numbers_that_both_have(tmp_path: Path) -> None:
    path = tmp_path / "root.tflite"
    path.write_bytes(one_op("SQRT"))
    (output,) = inference_diff(path, DiffOptions(delegate="cpu", num_runs=2)).outputs
    assert output.cosine > 0.999 and output.psnr > 60 and not output.constant


def test_a_comparison_that_says_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    path = tmp_path / "nothing.tflite"
    path.write_bytes(one_op("SUB", twice=True))
    report = inference_diff(path, DiffOptions(delegate="cpu", num_runs=2))
    assert report.outputs[0].constant and "every output, in every run" in says_nothing(report)
    assert call(monkeypatch, "inference-diff", str(path), "--delegate=cpu", "--num_runs=1") == 0
    assert "that comparison says nothing" in capsys.readouterr().out
    path.write_bytes(one_op("TANH"))
    assert says_nothing(inference_diff(path, DiffOptions(delegate="cpu", num_runs=1))) == ""


# ------------------------------------------------------------------------------- models that the CPU does not take


def test_what_the_gpu_computed_is_told_though_the_cpu_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from litegpu.tools import model_run

    path = tmp_path / "m.tflite"
    path.write_bytes(one_op("TANH"))
    opened = model_run._Opened

    def refusing(content: Any, device: str, *others: Any) -> Any:
        if device == "cpu":
            raise InvokeError("it failed to prepare")
        return opened(content, device, *others)

    monkeypatch.setattr(model_run, "_Opened", refusing)
    report = run_model(path, device="reference")
    assert report.cpu is None and report.cpu_problem == "it failed to prepare"
    assert report.as_dict()["cpu_problem"] == "it failed to prepare"
    run_text.print_report(report)
    told = capsys.readouterr().out
    assert "agreement: not known, for the official CPU runtime cannot run this model: it failed to prepare" in told


def test_a_reference_that_cannot_run_is_named(tmp_path: Path) -> None:
    model = ModelBuilder("no bias")
    x, kernel = model.input("x", (1, 8, 8, 3)), model.constant(np.ones((4, 3, 3, 3), np.float32))
    options = dict(padding="SAME", stride_w=1, stride_h=1)
    model.output(model.op("CONV_2D", [x, kernel, None], (1, 8, 8, 4), options))
    path = tmp_path / "m.tflite"
    path.write_bytes(model.build())
    with pytest.raises(InvokeError, match=r"official CPU runtime, which is the reference, cannot run .*m\.tflite"):
        inference_diff(path, DiffOptions(delegate="cpu"))


# ----------------------------------------------------------------------------------------------------------- files


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("habits") / "m.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=10))
    return path


def test_pictures_of_one_name_have_drawings_of_their_own(tmp_path: Path, classifier: Path) -> None:
    pictures = []
    for folder, value in (("a", 0), ("b", 200), ("c", 90)):
        (tmp_path / folder).mkdir()
        pictures.append(tmp_path / folder / "x.png")
        Image.fromarray(np.full((40, 40, 3), value, np.uint8)).save(pictures[-1])
    report = run_model(classifier, pictures, device="cpu", output=tmp_path / "out")
    assert [Path(i.drawing).name for i in report.inferences] == ["x-m.png", "x-2-m.png", "x-3-m.png"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "{m}", "--image={x}", "--output={x}", "--device=cpu"),
        ("run", "{m}", "--html={m}", "--device=cpu"),
        ("analyze", "{m}", "--annotated={m}"),
        ("advise", "{m}", "--html={m}"),
        ("inference-diff", "{m}", "--delegate=cpu", "--output_file_path={m}"),
        ("benchmark", "--graph={m}", "--output_filepath={m}"),
        ("benchmark", "--graph={m}", "--html={m}"),
    ],
)
def test_nothing_is_written_over_what_is_read(
    arguments: tuple[str, ...], tmp_path: Path, classifier: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    picture = tmp_path / "x.png"
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(picture)
    before = classifier.read_bytes(), picture.read_bytes()
    assert call(monkeypatch, *(a.format(m=classifier, x=picture) for a in arguments)) == 1
    assert "it is what is read; give another name" in capsys.readouterr().err
    assert (classifier.read_bytes(), picture.read_bytes()) == before


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(OptionError, match="it is a file, not a folder"):
        require_folder(file)
    require_writable(file, read=[tmp_path / "other"])


def test_labels_that_are_a_picture(tmp_path: Path, classifier: Path) -> None:
    labels = tmp_path / "labels.jpg"
    labels.write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(OptionError, match="it is no text in UTF-8"):
        run_model(classifier, labels=labels, device="cpu")


# ----------------------------------------------------------------------------------------------------------- flags


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--min_secs=nan",), "--min_secs is 'nan'"),
        (("--run_delay=nan",), "--run_delay is 'nan'"),
        (("--option_benchmark_run_delay=nan",), "--option_benchmark_run_delay is 'nan'"),
        (("--max_delay_ms=nan",), "--max_delay_ms is 'nan'"),
        (("--run_delay=1e99",), "--run_delay=1e+99 would wait"),
        (("--run_frequency=1e-99",), "--run_frequency=1e-99 would wait"),
        (("--option_benchmark_run_delay=inf",), "--option_benchmark_run_delay=inf would wait"),
        (("--max_secs=-1",), "no run would be started"),
        (("--tensor_name_display_length=-1",), "from 0 to"),
        (("--alloc_type_display_length=1000000000",), "from 0 to"),
    ],
)
def test_numbers_that_no_benchmark_can_use(
    flags: tuple[str, ...], says: str, classifier: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert call(monkeypatch, "benchmark", f"--graph={classifier}", "--print_preinvoke_state=true", *flags) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ("--delegate=gpu", "--use_gpu=false"),
        ("--use_gpu=true", "--use_xnnpack=true"),
        ("--use_gpu=false",),
        ("--delegate=cpu", "--tolerance=1e-3"),
    ],
)
def test_flags_of_the_difference_that_contradict(
    flags: tuple[str, ...], classifier: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    assert call(monkeypatch, "inference-diff", str(classifier), *flags) == 1
    told = capsys.readouterr().err
    assert "contradict" in told or "--per-op" in told


@pytest.mark.parametrize("flags", [("--use_xnnpack=true",), ("--delegate=xnnpack", "--use_gpu=false")])
def test_flags_of_the_difference_that_agree(
    flags: tuple[str, ...], classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(monkeypatch, "inference-diff", str(classifier), "--num_runs=1", *flags) == 0


def test_minus_one_thread_is_the_default(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(monkeypatch, "run", str(classifier), "--device=cpu", "--num-threads=-1") == 0


def test_times_below_a_millisecond_are_not_nothing() -> None:
    assert [run_text.milliseconds(s) for s in (4e-6, 5.1e-5, 9.99e-4, 1e-3, 1.5)] == [
        "0.004", "0.051", "0.999", "1.00", "1500.00"
    ]  # fmt: skip


def test_a_benchmark_of_a_program_says_so(classifier: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    given = (f"--graph={classifier}", "--use_gpu=true", "--gpu_backend=reference", "--gpu_precision=float32")
    assert call(monkeypatch, "benchmark", *given, "--num_runs=1", "--min_secs=0", "--warmup_runs=0",
                "--warmup_min_secs=0") == 0  # fmt: skip
    told = capsys.readouterr().out
    assert software_line("").strip() in told


def test_a_report_without_a_comparison_says_nothing_of_one(classifier: Path) -> None:
    report = run_model(classifier, device="cpu")
    assert isinstance(report, RunReport) and run_text.no_comparison(report) == ""


# ---------------------------------------------------------------------------------------------------------- Ctrl-C


class Interrupts:
    """Raises KeyboardInterrupt in the call of this number, of what is called in its place."""

    def __init__(self, function: Any, number: int) -> None:
        self.function, self.left = function, number

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self.function(*arguments, **named)


def test_timed_runs_that_are_interrupted_are_kept() -> None:
    with pytest.raises(InterruptedRuns) as interrupt:
        timed_runs(lambda: None, Interrupts(lambda: None, 4), Rule(10, 0.0, 10.0))
    assert interrupt.value.timing.count == len(interrupt.value.timing.ends) == 3


def test_a_benchmark_that_is_interrupted_tells_what_it_has(
    classifier: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from litegpu.interpreter import Interpreter

    monkeypatch.setattr(Interpreter, "invoke", _method(Interrupts(Interpreter.invoke, 8)))
    given = (f"--graph={classifier}", "--num_runs=1000", "--min_secs=0", "--warmup_min_secs=0", "--warmup_runs=2")
    assert call(monkeypatch, "benchmark", *given) == 130
    told = capsys.readouterr()
    assert "WARN: Interrupted: the figures are of the 5 timed runs until then" in told.out
    assert "INFO: count=5 " in told.out and "litegpu: interrupted" in told.err


def _method(interrupts: Any) -> Any:
    def method(self: Any, *arguments: Any) -> Any:
        return interrupts(self, *arguments)

    return method


def test_a_comparison_that_is_interrupted_tells_its_rounds(
    classifier: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from litegpu.tools.benchmark import comparison

    given = (f"--graph={classifier}", "--compare=cpu,cpu:threads=2", "--num_runs=1000", "--min_secs=0",
             "--warmup_min_secs=0")  # fmt: skip
    turn = comparison._turn
    for turns, status in ((6, 130), (2, 130)):
        monkeypatch.setattr(comparison, "_turn", Interrupts(turn, turns))
        assert call(monkeypatch, "benchmark", *given) == status
        told = capsys.readouterr().out
        assert ("Interrupted: the figures are of the rounds until then" in told) == (turns == 6)
        assert ("the median over 2 interleaved rounds" in told) == (turns == 6)


def test_a_difference_that_is_interrupted_tells_its_runs(
    classifier: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from litegpu.tools.inference_diff.measures import measure

    target = "litegpu.tools.inference_diff.compare.measure"
    monkeypatch.setattr(target, Interrupts(measure, 4))
    assert call(monkeypatch, "inference-diff", str(classifier), "--delegate=cpu", "--num_runs=50") == 130
    told = capsys.readouterr().out
    assert "Interrupted: the figures are of the 3 runs until then" in told and "Num evaluation runs: 3" in told
    monkeypatch.setattr(target, Interrupts(measure, 1))
    assert call(monkeypatch, "inference-diff", str(classifier), "--delegate=cpu", "--num_runs=50") == 130
    assert "OutputDiff" not in capsys.readouterr().out
