"""The command line: help, exit codes, errors of one line, JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from litegpu import cli
from litegpu.errors import OptionError
from litegpu.tools.evaluate.image_list import read_lines
from litegpu.tools.labels import read_labels


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of `litegpu ARGUMENTS`, run in this process."""
    monkeypatch.setattr(sys, "argv", ["litegpu", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    return int(exit_.value.code or 0)


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["advise"],
        ["benchmark"],
        ["demo"],
        ["doctor"],
        ["inference-diff"],
        ["map"],
        ["run"],
        ["zoo"],
        ["zoo", "build"],
    ],
)
def test_every_command_explains_itself(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *command, "--help") == 0
    assert "sage:" in capsys.readouterr().out


def test_build_list_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tmp_path / "m.tflite")
    build = ["zoo", "build", "mobilenet_v1", "--width", "0.25", "--resolution", "64", "--classes", "7", "-o", model]
    assert call(monkeypatch, *build) == 0
    assert call(monkeypatch, "zoo", "list") == 0
    assert "deeplab_v3" in capsys.readouterr().out
    assert call(monkeypatch, "run", model, "--device", "cpu", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["delegation"]["counts"] == {"CPU": 31}
    assert len(report["inferences"][0]["result"]["top"]) == 5
    assert call(monkeypatch, "run", model, "--device", "cpu", "--num_threads", "2", "--no-compare") == 0
    assert "class" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["run", "absent.tflite"], 1, "absent.tflite"),
        (["benchmark", "--graph=absent.tflite"], 1, "absent.tflite"),
        (["benchmark"], 1, "--graph is missing"),
        (["benchmark", "--num_runs=x"], 1, "--num_runs"),
        (["zoo", "build", "posenot"], 1, "did you mean 'posenet'"),
        (["run", "m.tflite", "--device", "tpu"], 2, "tpu"),
        (["run"], 2, "model"),
        (["frobnicate"], 2, "frobnicate"),
    ],
)
def test_mistakes_cost_one_line_and_an_exit_status(
    arguments: list[str],
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("LITEGPU_DEBUG", raising=False)
    assert call(monkeypatch, *arguments) == status
    error = capsys.readouterr().err
    assert message in error.lower() or message in error
    assert "Traceback" not in error
    if status == 1:
        assert error.splitlines()[-1].startswith("litegpu: ")


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from litegpu.errors import ModelError

    monkeypatch.setenv("LITEGPU_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["litegpu", "run", "absent.tflite", "--device", "cpu"])
    with pytest.raises(ModelError):
        cli.main()


def test_a_web_page_is_not_a_model(models_dir: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "litegpu", "run", str(models_dir / "malformed.tflite")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stdout == "" and "Traceback" not in done.stderr and "HTML" in done.stderr


def test_versions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "version", "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == {"litegpu", "ai-edge-litert", "wgpu", "numpy"}


def test_the_command_leaves_the_logger_of_wgpu_to_wgpu() -> None:
    """In a process of its own: wgpu must be imported after the command has begun, as it is there."""
    code = (
        "import sys; sys.argv = ['litegpu', 'version']\n"
        "import litegpu.cli\n"
        "try: litegpu.cli.main()\n"
        "except SystemExit: pass\n"
        "import logging, wgpu\n"
        "logging.getLogger('wgpu').warning('of wgpu'); logging.getLogger('litegpu').warning('of litegpu')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "WARNING: of litegpu\n"


@pytest.mark.parametrize("module", ["labels", "evaluate.image_list"])
def test_text_files_without_end_are_refused(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"litegpu.tools.{module}._MOST_CHARACTERS", 1 << 20)
    read = read_labels if module == "labels" else partial(read_lines, what="the list")
    with pytest.raises(OptionError, match="longer than 1 MiB"):
        read("/dev/zero")


def test_memory_that_is_used_up_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("litegpu.tools.model_run.run_model", fail)
    monkeypatch.setattr(sys, "argv", ["litegpu", "run", "m.tflite"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1 and capsys.readouterr().err == "litegpu: out of memory\n"


def test_large_pictures_are_no_warning(tmp_path: Path) -> None:
    """In a process of its own: pytest has its own filters of warnings."""
    code = (
        "import sys; sys.argv = ['litegpu', 'version']\n"
        "import litegpu.cli\n"
        "try: litegpu.cli.main()\n"
        "except SystemExit: pass\n"
        "from PIL import Image\n"
        "Image.new('L', (5, 5)).save('p.png')\n"
        "Image.MAX_IMAGE_PIXELS = 20\n"
        "from litegpu.tools.images import load_image\n"
        "load_image('p.png')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stderr == ""


@pytest.mark.parametrize(("closed", "says"), [(">&-", ""), ("2>&-", "litegpu"), (">&- 2>&-", "")])
def test_closed_streams_are_no_error(closed: str, says: str) -> None:
    command = ["sh", "-c", f'"$0" -m litegpu version {closed}', sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "" and says in done.stdout
