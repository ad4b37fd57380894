"""Whole small models at random, in every precision, against the official runtime: wholly on the GPU, and right."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from agreement import require_gpu
from small_models.grow import corpus_model
from small_models.judge import MODES, judged, verdicts, wanted
from small_models.pieces import STYLES

from litegpu.gpu.lower import supported_ops

SAMPLE, FULL, FEWEST = 40, 1000, 995


@pytest.mark.parametrize("first", range(0, SAMPLE, 10))
def test_sample(first: int) -> None:
    require_gpu()
    left, wrong = _run("sample", range(first, first + 10))
    assert not wrong and not left


@pytest.mark.slow
def test_full() -> None:
    require_gpu()
    left, wrong = _run(str(random.SystemRandom().getrandbits(32)), range(FULL))
    assert not wrong
    assert len(left) <= FULL - FEWEST, left


def _run(seed: str, numbers: range) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Which models leave something to the CPU, and which are wrong."""
    left, wrong = {}, {}
    for number in numbers:
        for mode, verdict in verdicts(corpus_model(seed, number), MODES, "webgpu").items():
            if verdict.left and mode == "float32":
                left[f"{seed} {number}"] = verdict.left
            if verdict.wrong:
                wrong[f"{seed} {number} {mode}"] = verdict.wrong
    return left, wrong


def test_a_model_can_be_made_again() -> None:
    assert corpus_model("again", 3).content == corpus_model("again", 3).content


def test_every_style_and_operator_is_drawn() -> None:
    models = [corpus_model("drawn", n) for n in range(400)]
    assert {m.style for m in models} == set(STYLES)
    assert any(m.signatures for m in models)
    known = {e.op.name for e in supported_ops() if not e.op.custom}
    drawn = set().union(*(m.operators for m in models))
    rare = {"DENSIFY", "RNN", "SVDF", "BIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_RNN", "RANDOM_UNIFORM",
            "RANDOM_STANDARD_NORMAL", "UNIDIRECTIONAL_SEQUENCE_RNN"}  # fmt: skip
    assert known - drawn <= rare


@pytest.mark.parametrize("number", range(6))
def test_what_is_wrong_is_found(number: int) -> None:
    model = corpus_model("judged", number)
    want = wanted(model, model.reference)
    for half in (False, True):
        assert not judged(model, want, want, half)
        assert judged(model, [[_other(a) for a in arrays] for arrays in want], want, half)


def _other(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "f":
        return np.asarray(array * array.dtype.type(1.5) + array.dtype.type(1))
    return ~array if array.dtype.kind == "b" else array ^ array.dtype.type(0x1000 if array.itemsize > 1 else 0x40)


def test_the_script_ends_in_time() -> None:
    """It tells of what it has done until then."""
    script = Path(__file__).resolve().parents[2] / "scripts" / "corpus"
    command = [sys.executable, str(script), "--count", "3", "--backend", "reference", "--modes", "plan", "--seconds"]
    found = [subprocess.run([*command, s], capture_output=True, text=True, timeout=300) for s in ("0", "250")]
    assert [f.stdout.split(":")[0] for f in found] == ["0 models", "3 models"], found
