"""Damaged models: whatever the verifier lets pass must not crash or hang the official runtime.

Models run in child processes; a child that dies names the model that it died of, and another goes on behind it.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu.errors import ModelError
from litegpu.model import Model, TensorType, cut, read_model, write_model

CHILD = Path(__file__).with_name("run_mutations.py")
SOURCE = Path(__file__).resolve().parents[2] / "src"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the child limits its memory and time as POSIX does")


def verdicts(cases: Sequence[bytes], folder: Path) -> list[str]:
    """What became of each model; "crashed" for those that took their process down, by the signal's number."""
    path = folder / "cases.pickle"
    path.write_bytes(pickle.dumps(list(cases)))
    results: dict[int, str] = {}
    start = 0
    while start < len(cases):
        command = [sys.executable, str(CHILD), str(path), str(start)]
        child = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{CHILD.parents[1]}"},
            check=False,
        )
        for line in child.stdout.splitlines():
            number, verdict = line.split(" ", 1)
            results[int(number)] = verdict
        if child.returncode == 0:
            break
        last = max(results, default=-1)
        assert last >= start and results[last] == "start", f"the child failed by itself: {child.returncode}"
        results[last] = f"crashed {-child.returncode}"
        start = last + 1
    assert sorted(results) == list(range(len(cases)))
    return [results[number] for number in range(len(cases))]


def assert_harmless(cases: Sequence[tuple[object, bytes]], folder: Path) -> None:
    """Of models with a label each."""
    labels = [label for label, _ in cases]
    found = verdicts([content for _, content in cases], folder)
    bad = [
        f"{label}: {verdict}"
        for label, verdict in zip(labels, found, strict=True)
        if verdict.startswith(("crashed", "untyped"))
    ]
    assert not bad, "\n".join(bad[:20])
    # A run in which everything was refused, or nothing, would prove nothing.
    assert any(verdict.startswith("refused") for verdict in found)
    assert any(verdict == "ran" for verdict in found)


def flips(content: bytes, masks: Sequence[int]) -> Iterator[tuple[tuple[int, int], bytes]]:
    for position in range(len(content)):
        for mask in masks:
            damaged = bytearray(content)
            damaged[position] ^= mask
            yield (position, mask), bytes(damaged)


# A WHILE may be made endless by a flip of its condition: that is a program, not damage, so it is not among these.
FLIPPED = ("network", "shapes", "integer")


@pytest.mark.parametrize("name", FLIPPED)
def test_sampled_flips(small_models, tmp_path, name):
    every = list(flips(small_models[name], (0xFF, 0x80, 0x01)))
    sample = random.Random(0).sample(every, 400)
    assert_harmless([((name, *label), case) for label, case in sample], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FLIPPED)
@pytest.mark.parametrize("mask", [0xFF, 0x80, 0x40, 0x10, 0x04, 0x02, 0x01])
def test_each_byte_flipped(small_models, tmp_path, name, mask):
    every = list(flips(small_models[name], (mask,)))
    assert_harmless(every, tmp_path)


def test_each_byte_flipped_is_read_or_refused(small_models):
    """The reader alone, on every byte: nothing but ModelError, and no time lost."""
    refused = 0
    for _, case in flips(small_models["control_flow"], (0xFF, 0x01)):
        try:
            read_model(case)
        except ModelError as error:
            assert "model" in str(error) and len(str(error)) > 40
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("name", ["shapes", "integer"])
def test_sampled_changes(small_models, tmp_path, name):
    every = list(changed_models(read_model(small_models[name])))
    sample = random.Random(1).sample(every, 600)
    assert_harmless(sample, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FLIPPED)
def test_every_change(small_models, tmp_path, name):
    assert_harmless(list(changed_models(read_model(small_models[name]))), tmp_path)


INTEGERS = (-1, 0, 1, 3, 1000, 2**31 - 1, -(2**31))
REALS = (0.0, -1.0, float("nan"), float("inf"), 1e30)
# What a BROADCAST_ARGS or DILATE is given while running can crash the runtime too; only constants can be checked.


def changed_models(model: Model) -> Iterator[tuple[str, bytes]]:
    """Every operator as a model of its own, with one value of it changed at a time."""
    main = model.main
    for operator in main.operators:
        inputs = [i for i in dict.fromkeys(operator.inputs) if i >= 0 and not main.tensors[i].is_constant]
        single = read_model(cut(model, 0, [operator.index], inputs, operator.outputs))
        yield f"{operator.name} unchanged", bytes(single.content)
        for label, changed in _changes(single):
            try:
                yield f"{operator.index} {operator.name} {label}", write_model(changed)
            except ModelError:
                continue  # the value does not even fit the format


def _changes(model: Model) -> Iterator[tuple[str, Model]]:
    graph = model.main
    (operator,) = graph.operators

    def with_operator(**values: Any) -> Model:
        changed = dataclasses.replace(operator, **values)
        return dataclasses.replace(model, subgraphs=(dataclasses.replace(graph, operators=(changed,)),))

    def with_tensor(index: int, **values: Any) -> Model:
        tensors = list(graph.tensors)
        tensors[index] = dataclasses.replace(tensors[index], **values)
        return dataclasses.replace(model, subgraphs=(dataclasses.replace(graph, tensors=tuple(tensors)),))

    yield "without options", with_operator(options={}, options_type="")
    yield "without its last input", with_operator(inputs=operator.inputs[:-1])
    yield "with an input more", with_operator(inputs=(*operator.inputs, *operator.inputs[-1:]))
    for position in range(len(operator.inputs)):
        for other in {-1, *operator.inputs} - {operator.inputs[position]}:
            inputs = list(operator.inputs)
            inputs[position] = other
            yield f"input {position} = {other}", with_operator(inputs=tuple(inputs))
    for name, value in operator.options.items():
        for changed in _others(value):
            yield f"{name} = {changed}", with_operator(options={**operator.options, name: changed})
    for tensor in graph.tensors:
        index, shape = tensor.index, tensor.shape
        if tensor.quantization is not None:
            yield f"tensor {index} not quantized", with_tensor(index, quantization=None)
            for scale in (0.0, 1e-38, 1e-10, 1.0, 100.0, 1e38):
                scales = np.full_like(tensor.quantization.scales, scale)
                quantization = dataclasses.replace(tensor.quantization, scales=scales)
                yield f"tensor {index} scale {scale}", with_tensor(index, quantization=quantization)
        if tensor.data is None:
            for wrong in ((), (*shape, 1), (1, *shape), shape[1:], shape[:-1]):
                yield f"tensor {index} shape {wrong}", with_tensor(index, shape=wrong, shape_signature=wrong)
            for dimension in range(len(shape)):
                for extent in (0, 1, 3, 5, 100):
                    wrong = (*shape[:dimension], extent, *shape[dimension + 1 :])
                    yield f"tensor {index} shape {wrong}", with_tensor(index, shape=wrong, shape_signature=wrong)
            for type_ in TensorType:
                yield f"tensor {index} type {type_.name}", with_tensor(index, type=type_)
        elif tensor.data.dtype.kind in "iu" and tensor.data.size <= 16:
            for element in range(tensor.data.size):
                for value in INTEGERS:
                    if np.iinfo(tensor.data.dtype).min <= value <= np.iinfo(tensor.data.dtype).max:
                        data = tensor.data.copy()
                        data.flat[element] = value
                        yield f"tensor {index} [{element}] = {value}", with_tensor(index, data=data)
            if shape:
                empty = (0, *shape[1:])
                changed = with_tensor(index, shape=empty, shape_signature=empty, data=tensor.data[:0])
                yield f"tensor {index} empty", changed


def _others(value: object) -> Iterator[object]:
    match value:
        case bool():
            yield not value
        case int():
            yield from INTEGERS
        case float():
            yield from REALS
        case tuple():
            yield from ((), value + value, value * 9)
            yield from ((*value[:i], other, *value[i + 1 :]) for i in range(len(value)) for other in INTEGERS)
