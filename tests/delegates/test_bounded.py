"""Tensors whose number of rows the data decide, computed with all the rows there can be: equal to the official
runtime's, of its size, and in one partition."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter as Official
from control_models import BOOL, F32, random, scalar

import litegpu
from litegpu import GpuDelegate, Interpreter
from litegpu.delegates import bounded
from litegpu.gpu.kernels.nth_place import NthPlace
from litegpu.model.types import TensorType
from litegpu.model.writer import ModelBuilder

I64 = TensorType.INT64


def mask(model: ModelBuilder, x: int, shape: tuple[int, ...]) -> int:
    truth = model.op("GREATER", [x, scalar(model, 0.0, np.float32)], shape, type=BOOL)
    return model.op("WHERE", [truth], (-1, len(shape)), type=I64)


def chosen_rows(count: int = 6, end: str = "") -> bytes:
    """The rows of a table [n,4] where x [n] is positive, through a layer; and what goes on behind: `end`."""
    model = ModelBuilder("chosen rows")
    x, table = model.input("x", (count,)), model.input("table", (count, 4))
    y = model.op("GATHER_ND", [table, mask(model, x, (count,))], (-1, 4), type=F32)
    y = model.op("FULLY_CONNECTED", [y, model.constant(random(3, 4, seed=1)), None], (-1, 3))
    y = model.op("SOFTMAX", [model.op("ADD", [y, y], (-1, 3))], (-1, 3), dict(beta=1.0))
    axis = model.constant(np.array([0], np.int32))
    match end:
        case "sum":
            y = model.op("SUM", [y, axis], (3,), type=F32)
        case "places":
            y = model.op(
                "RESHAPE", [mask(model, x, (count,)), model.constant(np.array([-1], np.int32))], (-1,), type=I64
            )
        case "both":
            model.output(model.op("SUM", [y, axis], (3,), type=F32))
    model.output(y)
    return model.build()


def places(shape: tuple[int, ...], kind: str) -> bytes:
    model = ModelBuilder("places")
    model.output(model.op("WHERE", [model.input("x", shape, TensorType[kind.upper()])], (-1, len(shape)), type=I64))
    return model.build()


def opened(content: bytes, **options: Any) -> Interpreter:
    delegate = GpuDelegate(**{"backend": "reference", "max_delegated_partitions": 0, **options})
    interpreter = Interpreter(model_content=content, experimental_delegates=[delegate], fallback="silent")
    interpreter.allocate_tensors()
    return interpreter


def official(content: bytes) -> Any:
    interpreter = Official(model_content=content)
    interpreter.allocate_tensors()
    return interpreter


def run(interpreter: Any, arrays: list[np.ndarray]) -> list[np.ndarray]:
    for detail, array in zip(interpreter.get_input_details(), arrays, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]


def signs(count: int, positive: int, seed: int = 0) -> np.ndarray:
    x = -np.ones(count, np.float32)
    x[np.random.default_rng(seed).permutation(count)[:positive]] = 1
    return x


@pytest.mark.parametrize("end", ["", "sum", "places", "both"])
@pytest.mark.parametrize("backend", ["reference", "webgpu"])
def test_rows_that_are_chosen(backend: str, end: str) -> None:
    content = chosen_rows(end=end)
    interpreter, cpu = opened(content, backend=backend), official(content)
    table = random(6, 4, seed=3)
    report = interpreter.delegation_report()
    known = [n for n in report.nodes if n.op != "SUM"]
    assert all(n.owner == "GPU" and n.partition == known[0].partition for n in known), report
    assert report.fully_delegated == (end in ("", "places"))
    for positive in (3, 6, 1, 3, 3, 5):
        arrays = [signs(6, positive, positive), table]
        for found, wanted in zip(run(interpreter, arrays), run(cpu, arrays), strict=True):
            assert found.shape == wanted.shape and found.dtype == wanted.dtype
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_no_rows() -> None:
    """The official interpreter hands out no empty tensor."""
    (found,) = run(opened(chosen_rows()), [signs(6, 0), random(6, 4)])
    assert found.shape == (0, 3) and found.dtype == np.float32


@pytest.mark.parametrize("kind", ["bool", "float32", "int32", "int8", "uint8", "int64"])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 4), (1, 300), (600,)])
def test_places(shape: tuple[int, ...], kind: str) -> None:
    content = places(shape, kind)
    interpreter, cpu = opened(content), official(content)
    if kind != "int64":
        assert interpreter.delegation_report().fully_delegated, interpreter.delegation_report().summary()
    for seed in range(3):
        x = (np.random.default_rng(seed).random(shape) < 0.4).astype(kind)
        x.reshape(-1)[seed] = 1
        np.testing.assert_array_equal(run(interpreter, [x])[0], run(cpu, [x])[0])


def unique(count: int, kind: str, which: TensorType) -> bytes:
    model = ModelBuilder("unique")
    type_ = TensorType[kind.upper()]
    x = model.input("x", (count,), type_)
    options = dict(idx_out_type=which.name)
    model.output(*model.op_multi("UNIQUE", [x], [((-1,), type_), ((count,), which)], options))
    return model.build()


@pytest.mark.parametrize("which", [TensorType.INT32, I64], ids=["int32", "int64"])
@pytest.mark.parametrize("kind", ["float32", "int32", "int8", "uint8", "int16"])
@pytest.mark.parametrize("count", [1, 9, 300])
def test_unique(count: int, kind: str, which: TensorType) -> None:
    content = unique(count, kind, which)
    interpreter, cpu = opened(content), official(content)
    assert interpreter.delegation_report().fully_delegated, interpreter.delegation_report().summary()
    for seed in range(3):
        x = np.random.default_rng(seed).integers(0, 2 + count // 3, count).astype(kind)
        for found, wanted in zip(run(interpreter, [x]), run(cpu, [x]), strict=True):
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)


def test_what_goes_on_behind_unique() -> None:
    """Values row by row, and which of them each is, in its own size."""
    model = ModelBuilder()
    x = model.input("x", (9,))
    values, which = model.op_multi("UNIQUE", [x], [((-1,), F32), ((9,), TensorType.INT32)], dict(idx_out_type="INT32"))
    doubled = model.op("MUL", [values, scalar(model, 2.0, np.float32)], (-1,))
    model.output(doubled, model.op("ADD", [which, scalar(model, 1)], (9,)))
    interpreter, cpu = opened(model.build()), official(model.build())
    given = np.array([3, 1, 3, 3, 2, 1, 0, 2, 3], np.float32)
    for found, wanted in zip(run(interpreter, [given]), run(cpu, [given]), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_what_has_a_known_size_behind_unique() -> None:
    """Which value each element is, and what is computed from that in any way."""
    model = ModelBuilder()
    x = model.input("x", (9,))
    values, which = model.op_multi("UNIQUE", [x], [((-1,), F32), ((9,), TensorType.INT32)], dict(idx_out_type="INT32"))
    total = model.op("SUM", [which, model.constant(np.array([0], np.int32))], (), type=TensorType.INT32)
    rows = model.op("GATHER", [model.constant(random(9, 4)), which], (9, 4), type=F32)
    model.output(values, total, rows)
    interpreter, cpu = opened(model.build()), official(model.build())
    assert interpreter.delegation_report().fully_delegated, interpreter.delegation_report().summary()
    for given in ([3, 1, 3, 3, 2, 1, 0, 2, 3], [1] * 9):
        x_given = [np.array(given, np.float32)]
        for found, wanted in zip(run(interpreter, x_given), run(cpu, x_given), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_other_sizes() -> None:
    interpreter = opened(chosen_rows())
    for detail, shape in zip(interpreter.get_input_details(), ((9,), (9, 4)), strict=True):
        interpreter.resize_tensor_input(detail["index"], shape)
    interpreter.allocate_tensors()
    assert interpreter.delegation_report().fully_delegated
    assert run(interpreter, [signs(9, 8), random(9, 4)])[0].shape == (8, 3)


def test_with_calls() -> None:
    content, cpu = chosen_rows(), official(chosen_rows())
    with litegpu.load(content, "webgpu") as model:
        for positive in (2, 5):
            arrays = [signs(6, positive), random(6, 4)]
            found = model(x=arrays[0], table=arrays[1])
            np.testing.assert_allclose(found, run(cpu, arrays)[0], rtol=1e-5, atol=1e-6)


def test_too_many_rows_stay_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "_MOST_ELEMENTS", 20)
    interpreter, cpu = opened(chosen_rows()), official(chosen_rows())
    owners = {n.op: n.owner for n in interpreter.delegation_report().nodes}
    assert owners["WHERE"] == "GPU" and owners["GATHER_ND"] == "CPU"  # 6 places, and 24 elements
    arrays = [signs(6, 4), random(6, 4)]
    np.testing.assert_allclose(run(interpreter, arrays)[0], run(cpu, arrays)[0], rtol=1e-5)


@pytest.mark.parametrize("options", [dict(last_delegate_node_index=1), dict(first_delegate_node_index=3)])
def test_without_a_delegate_for_all_of_it_there_are_no_bounds(options: dict[str, Any]) -> None:
    interpreter, cpu = opened(chosen_rows(), **options), official(chosen_rows())
    where = next(n for n in interpreter.delegation_report().nodes if n.op == "WHERE")
    assert where.owner == "CPU"
    arrays = [signs(6, 4), random(6, 4)]
    np.testing.assert_allclose(run(interpreter, arrays)[0], run(cpu, arrays)[0], rtol=1e-5)


def test_a_delegate_that_cannot_prepare_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("not this one")

    monkeypatch.setattr(NthPlace, "build", fails)
    interpreter, cpu = opened(chosen_rows()), official(chosen_rows())
    assert next(n for n in interpreter.delegation_report().nodes if n.op == "WHERE").owner == "CPU"
    arrays = [signs(6, 4), random(6, 4)]
    np.testing.assert_allclose(run(interpreter, arrays)[0], run(cpu, arrays)[0], rtol=1e-5)


def test_what_is_not_of_rows_alone_is_not_bounded() -> None:
    """A table whose rows the data decide is not looked up, nor are sums along them."""
    model = ModelBuilder()
    x, table = model.input("x", (6,)), model.input("table", (6, 4))
    rows = model.op("GATHER_ND", [table, mask(model, x, (6,))], (-1, 4), type=F32)
    model.output(model.op("GATHER", [rows, model.constant(np.array([0, 0], np.int32))], (2, 4), dict(axis=0), type=F32))
    interpreter, cpu = opened(model.build()), official(model.build())
    assert {n.op: n.owner for n in interpreter.delegation_report().nodes}["GATHER"] == "CPU"
    arrays = [signs(6, 2), random(6, 4)]
    np.testing.assert_array_equal(run(interpreter, arrays)[0], run(cpu, arrays)[0])


def test_reports_name_the_tensors_of_the_file() -> None:
    content = chosen_rows(end="both")
    interpreter, count = opened(content), len(litegpu.read_model(content).main.tensors)
    report = interpreter.delegation_report()
    assert [p.index for p in report.partitions] == list(range(len(report.partitions)))
    assert all(t < count for p in report.partitions for t in (*p.inputs, *p.outputs))


def test_what_looks_at_other_rows_is_not_bounded_so_that_they_stay_ordered() -> None:
    """Turned round, the rows that count are no longer the first."""
    model = ModelBuilder()
    x, table = model.input("x", (6,)), model.input("table", (6, 4))
    rows = model.op("GATHER_ND", [table, mask(model, x, (6,))], (-1, 4), type=F32)
    model.output(model.op("REVERSE_V2", [rows, model.constant(np.array([0], np.int32))], (-1, 4), type=F32))
    interpreter, cpu = opened(model.build()), official(model.build())
    arrays = [signs(6, 2), random(6, 4)]
    np.testing.assert_array_equal(run(interpreter, arrays)[0], run(cpu, arrays)[0])


@pytest.mark.parametrize("backend", ["reference", "webgpu"])
def test_a_size_that_is_known_after_all(backend: str) -> None:
    """The places of a constant, among values that the model computes."""
    model = ModelBuilder()
    x = model.input("x", (6, 4))
    chosen = model.op("WHERE", [model.constant(np.array([0, 1, 1, 0, 0, 1], np.bool_))], (3, 1), type=I64)
    model.output(model.op("GATHER_ND", [model.op("NEG", [x], (6, 4)), chosen], (3, 4), type=F32))
    interpreter, cpu = opened(model.build(), backend=backend), official(model.build())
    np.testing.assert_array_equal(run(interpreter, [random(6, 4)])[0], run(cpu, [random(6, 4)])[0])


def test_nothing_is_said_of_the_cpu_where_there_are_bounds(caplog: pytest.LogCaptureFixture) -> None:
    opened(chosen_rows())
    assert not [r for r in caplog.records if "WHERE" in r.getMessage()]
