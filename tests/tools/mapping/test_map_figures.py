"""What a map is told reaches its model, and what it counts is right, on models and sources that are made up."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import litegpu
from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import TensorType
from litegpu.tools.distribute import WorkerContext
from litegpu.tools.mapping import batched, map_model
from litegpu.tools.mapping import map_run as run_module
from litegpu.tools.mapping.batched import BatchedModel, BatchPlan, Interface, ItemPort, default_batch
from litegpu.tools.mapping.items import Rows
from litegpu.tools.mapping.map_run import MapReport
from litegpu.tools.mapping.output import Output
from litegpu.tools.mapping.sources import open_source
from litegpu.tools.mapping.worker import ChunkResult, MapFactory, to_input

pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'litegpu[parquet]'")
import pyarrow.parquet as pq

FLOAT, NONE = np.dtype(np.float32), (0.0, 0)


def port(name: str, *shape: int, dtype: type = np.float32, quantization: tuple[float, int] = NONE) -> ItemPort:
    return ItemPort(name, shape, np.dtype(dtype), quantization)


def interface(*sizes: int) -> Interface:
    inputs, outputs = (tuple(port("p", n // 4) for n in some) for some in (sizes[:1], sizes[1:]))
    return Interface(inputs, outputs, 1)


def test_a_batch_is_16_mib_of_inputs_or_of_outputs() -> None:
    mib = 1 << 20
    assert default_batch(interface(mib, mib), 1000) == 16
    assert default_batch(interface(mib, 4 * mib), 1000) == default_batch(interface(4 * mib, mib), 1000) == 4
    assert default_batch(interface(4, 4), 1000) == 64 and default_batch(interface(4, 4), 7) == 7
    assert default_batch(interface(64 * mib, 4), 1000) == 1


class Loaded:
    """Stands for a loaded model of batch 4 that gives three times its input, and knows when two threads are inside."""

    def __init__(self) -> None:
        self.interpreter: Any = self
        self.inputs, self.outputs = {"x": {"index": 0}}, {"y": {"index": 1}}
        self.model = SimpleNamespace(main=SimpleNamespace(tensors=()), subgraphs=())
        self.delegate, self.device, self.hardware, self.closed = None, "cpu", "CPU", 0
        self.batches: list[list[float]] = []
        self.inside = threading.Lock()

    def set_tensor(self, index: int, array: np.ndarray) -> None:
        assert self.inside.acquire(blocking=False), "two threads are inside"
        threading.Event().wait(0.002)  # so that others have their chance
        self.array = array.copy()

    def invoke(self) -> None:
        self.batches.append(self.array.reshape(-1).tolist())

    def get_tensor(self, index: int) -> np.ndarray:
        found: np.ndarray = self.array * 3
        self.inside.release()
        return found

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of load(), and then the model that it gave."""
    found: list[Any] = []

    def load(content: Any, **options: Any) -> Loaded:
        found.extend([options, Loaded()])
        return found[-1]

    monkeypatch.setattr(batched, "load", load)
    return found


ONE = Interface((port("x", 1),), (port("y", 1),), 1)


def test_an_incomplete_batch_is_filled_up_and_gives_no_more_rows(loaded: list[Any]) -> None:
    model = BatchedModel(b"m", ONE, BatchPlan(b"n", 4), device="cpu", precision="float32", num_threads=3)
    (rows,) = model([[np.array([i], np.float32)] for i in range(6)])
    assert [float(r[0]) for r in rows] == [0, 3, 6, 9, 12, 15]
    assert loaded[1].batches == [[0, 1, 2, 3], [4, 5, 5, 5]]
    assert loaded[0] == {"device": "cpu", "precision": "float32", "num_threads": 3, "fallback": "silent"}


def test_threads_take_turns_at_the_model(loaded: list[Any]) -> None:
    model = BatchedModel(b"m", ONE, BatchPlan(b"n", 4), device="cpu", precision="float32")
    problems: list[BaseException] = []
    start = threading.Barrier(4)

    def work(first: int) -> None:
        start.wait()
        try:
            for _ in range(10):
                (rows,) = model([[np.array([first + i], np.float32)] for i in range(4)])
                assert [float(r[0]) for r in rows] == [3 * (first + i) for i in range(4)]
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(10 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == [] and len(loaded[1].batches) == 40


@pytest.mark.parametrize(("device", "given", "wanted"), [("cpu", None, 6), ("cpu", 2, 2), ("webgpu", None, None)])
def test_a_worker_s_threads_and_its_end(
    device: str, given: int | None, wanted: int | None, loaded: list[Any], tmp_path: Path
) -> None:
    factory = MapFactory(b"m", ONE, BatchPlan(None, 4), device=device, precision="float16", num_threads=given)
    worker = factory(WorkerContext(0, 1, 6))
    assert loaded[0] == {"device": device, "precision": "float16", "num_threads": wanted, "fallback": "silent"}
    np.save(tmp_path / "rows.npy", np.arange(5, dtype=np.float32)[:, None])
    found = worker(SimpleNamespace(items=Rows(str(tmp_path / "rows.npy"), 1, 3).items))  # type: ignore[arg-type]
    assert found.errors == ("", "", "") and found.outputs[0].tolist() == [[3], [6], [9]]  # type: ignore[union-attr]
    worker.close()
    assert loaded[1].closed == 1


def test_quantized_numbers_in_and_out(loaded: list[Any]) -> None:
    stored = Interface((port("x", 1),), (port("y", 1, dtype=np.int8, quantization=(0.5, -3)), port("z", 1)), 1)
    factory = MapFactory(b"m", stored, BatchPlan(None, 4), device="cpu", dequantize=True)
    assert [(p.dtype, p.quantization) for p in factory.stored()] == [(FLOAT, NONE), (FLOAT, NONE)]
    kept = dataclasses.replace(factory, dequantize=False).stored()
    assert [(p.dtype.name, p.quantization) for p in kept] == [("int8", (0.5, -3)), ("float32", NONE)]
    worker: Any = factory(WorkerContext(0, 1, 1))
    assert worker._column(stored.outputs[0], [np.array([-3], np.int8), np.array([7], np.int8)]).tolist() == [[0], [5]]
    assert worker._column(stored.outputs[1], [np.array([-3], np.float32)]).tolist() == [[-3]]
    worker.close()
    real = np.array([-100.0, -1.5, 0.26, 100.0], np.float64)
    taken = to_input(real, port("x", 4, dtype=np.int8, quantization=(0.5, -3)))
    assert taken.tolist() == [-128, -6, -2, 127] and taken.dtype == np.int8


def test_chunks_go_on_after_what_is_done(tmp_path: Path) -> None:
    for name, count in (("b", 3), ("a", 5), ("c", 4)):
        np.save(tmp_path / f"{name}.npy", np.zeros((count, 2), np.float32))
    files = [tmp_path / f"{name}.npy" for name in "bac"]
    source = open_source(files, Interface((port("x", 2),), (port("y", 2),), 1), {})
    names = [f"{tmp_path / n}.npy#{i}" for n, count in (("b", 3), ("a", 5), ("c", 4)) for i in range(count)]
    assert source.count == 12
    wholes = [[range(skip, 12)] for skip in range(13)]
    for ranges in [*wholes, *([range(1, n), range(n + 1, 11)] for n in range(1, 10))]:
        numbers = [number for numbers in ranges for number in numbers]
        chunks = list(source.chunks(2, ranges))
        assert [name for chunk in chunks for name in chunk.names] == [names[number] for number in numbers]
        assert [c.start + i for c in chunks for i in range(len(c.names))] == numbers
        assert all(len(c.names) <= 2 for c in chunks)


def test_folders_are_walked_by_name(tmp_path: Path) -> None:
    for name, size in (("b", 1), ("a", 3), ("c", 2)):
        np.save(tmp_path / f"{name}.npy", np.zeros((size, 2), np.float32))
    source = open_source([tmp_path], Interface((port("x", 2),), (port("y", 2),), 1), {})
    assert [Path(n).name for c in source.chunks(2, [range(3)]) for n in c.names] == ["a.npy", "b.npy", "c.npy"]


def test_rows_are_numbered_and_parts_are_called_by_their_first(tmp_path: Path) -> None:
    ports = (port("index", 2), port("y"))
    table = Output(tmp_path / "out", ports, {"a": 1})
    assert table.open(resume=False, overwrite=False) == 0
    for first, count in ((0, 3), (3, 2)):
        values = np.arange(first, first + count, dtype=np.float32)
        table.append(
            first, [f"n{i}" for i in range(count)], ChunkResult(("",) * count, (np.stack([values] * 2, 1), values))
        )
        table.flush()
    table.append(5, ["bad"], table.nothing(1, "broken"))
    table.finish()
    assert [p.name for p in sorted((tmp_path / "out").iterdir())] == [f"part-{n:012}.parquet" for n in (0, 3, 5)]
    rows = pq.read_table(tmp_path / "out").to_pydict()
    assert rows["index"] == list(range(6)) and rows["input"] == ["n0", "n1", "n2", "n0", "n1", "bad"]
    assert rows["index_output"] == [[float(i)] * 2 for i in range(5)] + [None] and rows["error"] == [None] * 5 + [
        "broken"
    ]
    again = Output(tmp_path / "out", ports, {"a": 1})
    assert again.open(resume=True, overwrite=False) == 6


def test_the_rate_is_that_of_this_run() -> None:
    report = MapReport("m", "o", 100, 40, 0, (), 0, 1, "", (), 2.0)
    assert report.throughput == 30.0 and report.as_dict()["throughput"] == 30.0


@pytest.fixture
def quantized_model(tmp_path: Path) -> Path:
    b = ModelBuilder()
    x = b.input("x", (1, 2), TensorType.INT8, quantization=quantized(0.5, 3))
    b.output(b.op("RESHAPE", [x], (1, 2), {"new_shape": (1, 2)}, type=TensorType.INT8, quantization=quantized(0.5, 3)))
    path = tmp_path / "q.tflite"
    path.write_bytes(b.build())
    return path


def test_options_of_a_map(quantized_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Reached(Exception):
        pass

    def shards(factory: Any, chunks: Any, **options: Any) -> Any:
        given.update(options, factory=factory, chunks=list(chunks))
        raise Reached

    monkeypatch.setattr(run_module, "map_shards", shards)
    np.save(tmp_path / "rows.npy", np.zeros((150, 2), np.float32))

    def call(name: str, **options: Any) -> dict[str, Any]:
        with pytest.raises(Reached):
            map_model(quantized_model, [tmp_path / "rows.npy"], tmp_path / f"{name}.parquet", **options)
        return given

    plain = call("plain")
    assert plain["factory"].plan.batch == 64 and plain["workers"] is None and plain["ray"] is None and plain["gpus"]
    found = call("more", batch=8, workers=3, patience=9.0, device="cpu", num_threads=5, dequantize=True)
    assert (found["workers"], found["patience"], found["gpus"]) == (3, 9.0, False)
    factory = found["factory"]
    assert (factory.plan.batch, factory.num_threads, factory.device, factory.dequantize) == (8, 5, "cpu", True)
    assert sum(len(chunk.names) for chunk in found["chunks"]) == 150


def test_results_of_other_options_are_not_gone_on_with(quantized_model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.array([[1, 2], [3, 4]], np.float32))
    common: dict[str, Any] = {"device": "cpu", "workers": 1}
    map_model(quantized_model, [tmp_path / "rows.npy"], tmp_path / "out", **common)
    assert map_model(quantized_model, [tmp_path / "rows.npy"], tmp_path / "out", resume=True, **common).resumed == 2
    for changes in ({"dequantize": True}, {"precision": "float16"}):
        with pytest.raises(litegpu.OptionError, match="other options"):
            map_model(quantized_model, [tmp_path / "rows.npy"], tmp_path / "out", resume=True, **common, **changes)
    rows = pq.read_table(tmp_path / "out")
    (column,) = (rows.schema.field(i) for i in range(len(rows.schema)) if i > 2)
    assert rows[column.name].to_pylist() == [[5, 7], [9, 11]]
    metadata = {k.decode(): v.decode() for k, v in column.metadata.items()}
    assert json.loads(metadata["shape"]) == [2] and metadata["scale"] == "0.5" and metadata["zero_point"] == "3"
    map_model(quantized_model, [tmp_path / "rows.npy"], tmp_path / "real", dequantize=True, **common)
    rows = pq.read_table(tmp_path / "real")
    assert rows[column.name].to_pylist() == [[1, 2], [3, 4]] and b"scale" not in rows.schema.field(3).metadata
