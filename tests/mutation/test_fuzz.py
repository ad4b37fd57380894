"""A sample of what scripts/fuzz does, with a fixed seed: no damaged model and no call ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from litegpu import LiteGpuError, read_model
from mutation.mutate import mutated
from mutation.seeds import seed_model, seed_names

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the child limits its memory and time as POSIX does")


def fuzz(folder: Path, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "scripts" / "fuzz"), "--save", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def call(seed: str, count: int) -> None:
    command = [sys.executable, str(Path(__file__).with_name("calls.py")), seed, str(count), "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stdout[-1500:]


def test_a_sample(tmp_path: Path) -> None:
    output = fuzz(tmp_path, "--seed", "sample", "--count", "500")
    assert "500 models" in output and "0 went wrong" in output
    assert all(f"'{kind}'" in output for kind in ("ran", "refused", "error", "previewed"))  # or it would prove nothing


def test_random_calls() -> None:
    call("sample", 25)


@pytest.mark.slow
def test_many(tmp_path: Path) -> None:
    assert "0 went wrong" in fuzz(tmp_path, "--seed", "many", "--count", "20000", "--jobs", "2", "--gpu")


@pytest.mark.slow
def test_many_calls() -> None:
    for seed in range(20):
        call(f"many {seed}", 50)


def test_damage_is_the_same_for_the_same_seed_and_of_many_kinds() -> None:
    content = seed_model("further network")
    several = [mutated(content, f"s{i}") for i in range(60)]
    assert several == [mutated(content, f"s{i}") for i in range(60)]
    assert len(set(several)) > 50 and content not in several
    readable = 0
    for case in several:
        try:
            read_model(case)
            readable += 1
        except LiteGpuError:
            pass
    assert 5 < readable < 55


@pytest.mark.parametrize("name", [name for name in seed_names() if name.startswith("further")])
def test_seed_models_are_valid(name: str) -> None:
    read_model(seed_model(name))
