"""The page of every tool that writes one: complete by itself, and shown by a browser without complaint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from agreement import require_gpu
from browser import Browser
from PIL import Image
from typer.testing import CliRunner

from litegpu.cli.application import app
from litegpu.zoo import build_model

Files = dict[str, Path]


def _run(files: Files, page: Path) -> list[object]:
    return ["run", files["model"], "--image", files["picture"], "-o", page.with_suffix(".png"), "--html", page,
            "--device", "webgpu"]  # fmt: skip


def _map(files: Files, page: Path) -> list[object]:
    return ["map", files["model"], files["inputs"], "--out", page.with_suffix(".parquet"), "--device", "cpu",
            "--html", page]  # fmt: skip


def _advise(files: Files, page: Path) -> list[object]:
    return ["advise", files["model"], "--html", page]


def _analyze(files: Files, page: Path) -> list[object]:
    return ["analyze", files["model"], "--rates", "H200", "--html", page]


def _difference(files: Files, page: Path) -> list[object]:
    return ["inference-diff", f"--model_file={files['model']}", "--delegate=gpu", "--gpu_backend=webgpu",
            "--num_runs=2", "--per-op", f"--html={page}"]  # fmt: skip


def _benchmark(files: Files, page: Path) -> list[object]:
    return ["benchmark", f"--graph={files['model']}", "--compare=cpu,gpu:backend=webgpu", "--min_secs=0.05",
            "--warmup_min_secs=0.01", "--num_runs=3", f"--html={page}"]  # fmt: skip


COMMANDS: dict[str, Callable[[Files, Path], list[object]]] = {
    "run": _run, "map": _map, "advise": _advise, "analyze": _analyze, "inference-diff": _difference,
    "benchmark": _benchmark,
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("pages")
    model = folder / "small.tflite"
    model.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=10))
    np.save(folder / "inputs.npy", np.zeros((3, 32, 32, 3), np.float32))
    Image.fromarray(np.arange(32 * 32 * 3, dtype=np.uint8).reshape(32, 32, 3)).save(folder / "picture.png")
    return {"model": model, "inputs": folder / "inputs.npy", "picture": folder / "picture.png"}


@pytest.mark.sweep
@pytest.mark.parametrize("tool", COMMANDS)
def test_page(tool: str, files: Files, tmp_path: Path) -> None:
    require_gpu()
    if tool == "map":
        pytest.importorskip("pyarrow")
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, [str(word) for word in COMMANDS[tool](files, page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "small.tflite" in text and text.rstrip().endswith("</html>")
    assert "<script" not in text or tool == "analyze"
    for outside in ("http://", "https://", "//cdn", "<script src", "@import"):
        assert outside not in text.replace("http://www.w3.org/2000/svg", ""), outside
    shot = tmp_path / "shot.png"
    with Browser(tmp_path / "profile", 500, 900) as browser:
        browser.open(page)
        browser.shot(shot)
    assert not browser.complaints
    with Image.open(shot) as image:
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 20, "nothing is shown"
        edge = image.convert("RGB").crop((497, 0, 500, 900)).getcolors(1 << 24) or []
        assert len(edge) == 1, "the page is wider than a phone"
