"""Benchmarks open devices as everybody does: a backend's native kernels are there only if the registry loaded it."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def test_devices_come_from_the_registry() -> None:
    scripts = sorted(FOLDER.glob("*.py"))
    assert len(scripts) > 10
    around = [s.name for s in scripts if "cuda.opening import" in s.read_text()]
    assert around == []
