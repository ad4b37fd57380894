"""`litegpu map`: every kind of input, one row for each, errors, batches, resuming, and the same rows from Ray."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_interrupts import started

import litegpu
from litegpu import cli
from litegpu.cli.application import with_ray_address
from litegpu.errors import DeviceError, ModelError, OptionError, TensorError
from litegpu.gpu.backends import registry
from litegpu.model.builder import ModelBuilder, quantized
from litegpu.model.types import TensorType
from litegpu.tools.distribute import map_shards
from litegpu.tools.distribute.crew import WorkerContext
from litegpu.tools.images import image_to_tensor, load_image, save_image
from litegpu.tools.mapping import map_model
from litegpu.tools.mapping import map_run as run_module
from litegpu.tools.mapping import worker as worker_module
from litegpu.tools.mapping.batched import Interface, ItemPort, default_batch, interface_of, plan_batch
from litegpu.tools.mapping.sources import open_source
from litegpu.tools.mapping.worker import to_input
from litegpu.zoo import build_model

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'litegpu[parquet]'")
import pyarrow.parquet as pq  # noqa: E402


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("map") / "tiny.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=5))
    return path


@pytest.fixture(scope="module")
def adder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = x + (1, 2, 3) for three numbers; the batch is 1."""
    b = ModelBuilder()
    x = b.input("x", (1, 3))
    b.output(b.op("ADD", [x, b.constant(np.array([1, 2, 3], np.float32))], (1, 3)))
    path = tmp_path_factory.mktemp("map") / "adder.tflite"
    path.write_bytes(b.build())
    return path


def rows(path: Path) -> Any:
    """The whole output, one file or a folder of parts."""
    table = pq.read_table(path)
    assert table.column("index").to_pylist() == list(range(table.num_rows)), "not exactly one row per input, in order"
    return table


def numbers(table: Any, column: int = 3) -> np.ndarray:
    return np.array(table.column(column).to_pylist(), np.float32)


def pictures(folder: Path, count: int) -> list[Path]:
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:03}.png" for i in range(count)]
    for path in paths:
        save_image(path, rng.integers(0, 256, (40, 50, 3), np.uint8))
    return paths


# ------------------------------------------------------------------------------------------------ inputs and outputs


def test_images_in_folders_give_what_single_inferences_give(classifier: Path, tmp_path: Path) -> None:
    paths = pictures(tmp_path / "in" / "deep", 5) + pictures(tmp_path / "in" / "z", 2)
    (tmp_path / "in" / "notes.md").write_text("not an input")
    report = map_model(classifier, [tmp_path / "in"], tmp_path / "out.parquet", device="cpu", batch=3)
    assert (report.inputs, report.failed, report.batch, report.batch_note) == (7, 0, 3, "")
    table = rows(tmp_path / "out.parquet")
    assert table.column("input").to_pylist() == [str(p) for p in paths]
    with litegpu.load(classifier, device="cpu") as model:
        detail = next(iter(model.inputs.values()))
        wanted = [model(image_to_tensor(load_image(path), detail)[0])[0] for path in paths]
    np.testing.assert_allclose(numbers(table), wanted, rtol=1e-5, atol=1e-7)
    assert json.loads(table.schema.field(3).metadata[b"shape"]) == [5]


def test_rows_of_arrays_and_arrays_as_items(adder: Path, tmp_path: Path) -> None:
    many = np.random.default_rng(1).standard_normal((70, 3)).astype(np.float32)
    np.save(tmp_path / "rows.npy", many)
    np.save(tmp_path / "one.npy", many[0])
    np.save(tmp_path / "doubles.npy", many[:4].astype(np.float64))
    inputs = [tmp_path / name for name in ("rows.npy", "one.npy", "doubles.npy")]
    report = map_model(adder, inputs, tmp_path / "out", device="cpu", batch=16, workers=2)
    table = rows(tmp_path / "out")
    assert report.inputs == 75 and table.column("input")[69].as_py().endswith("rows.npy#69")
    np.testing.assert_array_equal(
        numbers(table), np.concatenate([many, many[:1], many[:4]]) + np.array([1, 2, 3], np.float32)
    )


def test_pictures_in_parquet_as_bytes_structures_and_names(classifier: Path, tmp_path: Path) -> None:
    paths = pictures(tmp_path, 3)
    content = [path.read_bytes() for path in paths]
    columns = {
        "bytes": pa.array(content),
        "structure": pa.array([{"bytes": c, "path": None} for c in content]),
        "name": pa.array([path.name for path in paths]),
    }
    results = []
    for name, values in columns.items():
        pq.write_table(pa.table({"label": [1, 2, 3], name: values}), tmp_path / "in.parquet")
        out = tmp_path / f"{name}.parquet"
        map_model(classifier, [tmp_path / "in.parquet"], out, device="cpu",
                  columns={"": "name"} if name == "name" else None)  # fmt: skip
        results.append(numbers(rows(out)))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_several_inputs_come_from_columns_across_row_groups(tmp_path: Path) -> None:
    b = ModelBuilder()
    x, y = b.input("x", (1, 2)), b.input("y", (1, 2))
    b.output(b.op("SUB", [x, y], (1, 2)))
    (tmp_path / "m.tflite").write_bytes(b.build())
    values = np.arange(40, dtype=np.float32).reshape(20, 2)
    pq.write_table(
        pa.table({"y": (values / 2).tolist(), "other": values.tolist()}), tmp_path / "in.parquet", row_group_size=7
    )
    with pytest.raises(OptionError, match="--column x=NAME"):
        map_model(tmp_path / "m.tflite", [tmp_path / "in.parquet"], tmp_path / "out")
    map_model(tmp_path / "m.tflite", [tmp_path / "in.parquet"], tmp_path / "out", device="cpu", columns={"x": "other"})
    np.testing.assert_allclose(numbers(rows(tmp_path / "out")), values / 2)
    source = open_source([tmp_path / "in.parquet"], interface_of(tmp_path / "m.tflite"), {"x": "other"})
    for skip in (0, 6, 7, 13, 19):
        chunks = list(source.chunks(4, [range(skip, 20)]))
        assert [name for chunk in chunks for name in chunk.names] == [
            f"{tmp_path / 'in.parquet'}#{row}" for row in range(skip, 20)
        ]
        assert chunks[0].start == skip


def test_quantized_inputs_and_outputs(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.input("x", (1, 4), TensorType.INT8, quantization=quantized(0.5, 3))
    b.output(b.op("RESHAPE", [x, b.constant(np.array([1, 4], np.int32))], (1, 4), quantization=quantized(0.5, 3)))
    (tmp_path / "m.tflite").write_bytes(b.build())
    np.save(tmp_path / "in.npy", np.array([[0, 1, -1, 1000]], np.float32))
    map_model(tmp_path / "m.tflite", [tmp_path / "in.npy"], tmp_path / "raw.parquet", device="cpu")
    map_model(tmp_path / "m.tflite", [tmp_path / "in.npy"], tmp_path / "real.parquet", device="cpu", dequantize=True)
    raw, real = rows(tmp_path / "raw.parquet"), rows(tmp_path / "real.parquet")
    assert raw.column(3).to_pylist() == [[3, 5, 1, 127]] and real.column(3).to_pylist() == [[0, 1, -1, 62]]
    assert raw.schema.field(3).metadata[b"scale"] == b"0.5" and b"scale" not in real.schema.field(3).metadata


def test_detections_have_scalars_and_no_batch(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(
        build_model("ssd_mobilenet_v1", width=0.25, resolution=96, classes=4, max_detections=3)
    )
    pictures(tmp_path / "in", 3)
    report = map_model(tmp_path / "m.tflite", [tmp_path / "in"], tmp_path / "o.parquet", device="cpu", batch=8)
    table = rows(tmp_path / "o.parquet")
    assert report.batch == 1 and "TFLite_Detection_PostProcess" in report.batch_note
    assert [len(v) for v in table.column(3).to_pylist()] == [12] * 3
    assert all(isinstance(v, float) for v in table.column(6).to_pylist())


def test_variables_do_not_leak_from_one_input_to_the_next(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.input("x", (1, 2))
    state = b.variable("state", (1, 8))
    rng = np.random.default_rng(0)
    feature = b.constant(rng.standard_normal((4, 2)).astype(np.float32))
    time = b.constant(rng.standard_normal((4, 2)).astype(np.float32))
    b.output(b.op("SVDF", [x, feature, time, None, state], (1, 4), {"rank": 1}))
    (tmp_path / "m.tflite").write_bytes(b.build())
    np.save(tmp_path / "in.npy", np.ones((5, 2), np.float32))
    map_model(tmp_path / "m.tflite", [tmp_path / "in.npy"], tmp_path / "o.parquet", device="cpu", batch=1)
    got = numbers(rows(tmp_path / "o.parquet"))
    np.testing.assert_array_equal(got, np.repeat(got[:1], 5, axis=0))


def test_a_batch_in_the_file_is_divided_into_items(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.input("x", (4, 3))
    b.output(b.op("RELU", [x], (4, 3)))
    (tmp_path / "m.tflite").write_bytes(b.build())
    interface = interface_of(tmp_path / "m.tflite")
    assert interface.inputs[0].shape == (3,) and interface.lead == 4
    values = np.arange(18, dtype=np.float32).reshape(6, 3) - 9
    np.save(tmp_path / "in.npy", values)
    for batch in (4, 5):
        out = tmp_path / f"{batch}.parquet"
        map_model(tmp_path / "m.tflite", [tmp_path / "in.npy"], out, device="cpu", batch=batch)
        np.testing.assert_array_equal(numbers(rows(out)), np.maximum(values, 0))


def test_models_whose_rows_depend_on_each_other_are_not_batched(tmp_path: Path) -> None:
    b = ModelBuilder()
    x = b.input("x", (4, 3))
    b.output(
        b.op("SOFTMAX", [b.op("TRANSPOSE", [x, b.constant(np.array([1, 0], np.int32))], (3, 4))], (3, 4), {"beta": 1.0})
    )
    (tmp_path / "m.tflite").write_bytes(b.build())
    interface = interface_of(tmp_path / "m.tflite")
    assert interface.lead is None and interface.inputs[0].shape == (4, 3)
    assert plan_batch(tmp_path / "m.tflite", interface, 8).batch == 1


def test_the_batch_is_bounded_by_inputs_and_outputs() -> None:
    def interface(given: int, made: int) -> Interface:
        ports = (ItemPort("p", (n << 20,), np.dtype(np.uint8), (0.0, 0)) for n in (given, made))
        return Interface((next(ports),), (next(ports),), 1)

    assert [default_batch(interface(*sizes), 1000) for sizes in ((0, 0), (1, 0), (1, 4), (64, 1))] == [64, 16, 4, 1]
    assert default_batch(interface(0, 0), 10) == 10


def test_the_gpu_gives_the_same(adder: Path, tmp_path: Path) -> None:
    from agreement import require_gpu

    from litegpu.device_choice import best_gpu

    require_gpu()
    np.save(tmp_path / "in.npy", np.arange(30, dtype=np.float32).reshape(10, 3))
    report = map_model(adder, [tmp_path / "in.npy"], tmp_path / "o.parquet", batch=4, device=best_gpu())
    assert "CPU" not in report.workers[0]
    np.testing.assert_array_equal(
        numbers(rows(tmp_path / "o.parquet")), np.load(tmp_path / "in.npy") + np.array([1, 2, 3], np.float32)
    )


# ------------------------------------------------------------------------------------------------ mistakes


def broken_inputs(folder: Path) -> Path:
    """A list of six files: pictures 0, 3 and 5 are good."""
    paths = pictures(folder, 6)
    paths[1].write_bytes(b"no picture")
    paths[2].write_bytes(paths[2].read_bytes()[:200])
    paths[4].unlink()
    (folder / "list.txt").write_text("\n".join(path.name for path in paths) + "\n")
    return folder / "list.txt"


def test_skipped_inputs_keep_their_rows(classifier: Path, tmp_path: Path) -> None:
    report = map_model(classifier, [broken_inputs(tmp_path)], tmp_path / "o.parquet", device="cpu", on_error="skip")
    table = rows(tmp_path / "o.parquet")
    assert (report.inputs, report.failed, [f.index for f in report.failures]) == (6, 3, [1, 2, 4])
    errors = table.column("error").to_pylist()
    assert [error is None for error in errors] == [True, False, False, True, False, True]
    assert "not an image" in errors[1] and "No such file" in errors[4]
    assert [value is None for value in table.column(3).to_pylist()] == [False, True, True, False, True, False]


def test_a_failure_ends_the_run_and_what_was_computed_is_kept(classifier: Path, tmp_path: Path) -> None:
    inputs = broken_inputs(tmp_path)
    with pytest.raises(OptionError, match=r"Input 1, .*001.png.*--on-error=skip"):
        map_model(classifier, [inputs], tmp_path / "o.parquet", device="cpu")
    report = map_model(classifier, [inputs], tmp_path / "o.parquet", device="cpu", on_error="skip", resume=True)
    assert report.resumed == 3 and rows(tmp_path / "o.parquet").num_rows == 6


def test_all_inputs_may_fail(adder: Path, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("a.npy\nb.npy\n")
    report = map_model(adder, [tmp_path / "list.txt"], tmp_path / "o.parquet", device="cpu", on_error="skip")
    assert report.failed == 2 and rows(tmp_path / "o.parquet").column(3).to_pylist() == [None, None]


def test_mistakes_are_found_before_work_starts(classifier: Path, adder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "wrong.npy", np.zeros((4, 7), np.float32))
    np.save(tmp_path / "right.npy", np.zeros((4, 3), np.float32))
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.doc").write_text("")
    (tmp_path / "fake.parquet").write_text("no table")
    (tmp_path / "file").write_text("")
    out = tmp_path / "o.parquet"
    for inputs, message in (
        (["absent"], "no file or folder absent"),
        ([], "No inputs"),
        ([tmp_path / "empty"], "no inputs in"),
        ([tmp_path / "a.doc"], "nothing that map reads"),
        ([tmp_path / "wrong.npy"], r"shape \[4, 7\]; the model takes \[3\]"),
        ([tmp_path / "fake.parquet"], "no Parquet file"),
    ):
        with pytest.raises(OptionError, match=message):
            map_model(adder, inputs, out, device="cpu")
    with pytest.raises(OptionError, match="on_error"):
        map_model(adder, [tmp_path / "right.npy"], out, on_error="ignore")
    with pytest.raises(OptionError, match="Cannot write"):
        map_model(adder, [tmp_path / "right.npy"], tmp_path / "file" / "o.parquet", device="cpu")
    with pytest.raises(ModelError):
        map_model(tmp_path / "file", [tmp_path / "right.npy"], out)
    assert not out.exists() and not out.with_name("o.parquet.parts").exists()


def test_arrays_are_converted_only_where_nothing_is_lost() -> None:
    port = ItemPort("x", (2,), np.dtype(np.int32), (0.0, 0))
    assert to_input(np.array([[1.0, 2.0]]), port).tolist() == [1, 2]
    for bad, message in (
        ([1.5, 2], "do not fit"),
        ([1, 2, 3], "shape"),
        ([2**40, 0], "do not fit"),
        (["a", "b"], "<U1"),
    ):
        with pytest.raises(TensorError, match=message):
            to_input(np.array(bad), port)
    with pytest.raises(TensorError, match="not finite"):
        to_input(np.array([np.nan, 0]), ItemPort("x", (2,), np.dtype(np.int8), (0.5, 0)))
    assert to_input(np.array(3), ItemPort("x", (), np.dtype(np.int32), (0.0, 0))).shape == ()


# ------------------------------------------------------------------------------------------------ resuming


@pytest.fixture
def in_small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of four inputs, each a part of the output."""
    monkeypatch.setattr("litegpu.tools.mapping.map_run._CHUNK_ITEMS", 4)
    monkeypatch.setattr("litegpu.tools.mapping.output._PART_BYTES", 1)


@pytest.mark.parametrize("name", ["out.parquet", "out"])
def test_an_interrupted_run_goes_on(
    adder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_small_parts: None, name: str
) -> None:
    values = np.random.default_rng(2).standard_normal((50, 3)).astype(np.float32)
    np.save(tmp_path / "in.npy", values)

    def interrupted(*arguments: Any, **options: Any) -> Iterator[Any]:
        for i, outcome in enumerate(original(*arguments, **options)):
            if i == 5:
                raise KeyboardInterrupt
            yield outcome

    original = map_shards
    arguments = (adder, [tmp_path / "in.npy"], tmp_path / name)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "map_shards", interrupted)
        with pytest.raises(KeyboardInterrupt):
            map_model(*arguments, device="cpu", batch=4)
    with pytest.raises(OptionError, match="--resume"):
        map_model(*arguments, device="cpu", batch=4)
    report = map_model(*arguments, device="cpu", batch=4, resume=True)
    assert report.resumed == 20 and report.inputs == 50
    np.testing.assert_array_equal(numbers(rows(tmp_path / name)), values + np.array([1, 2, 3], np.float32))
    assert (tmp_path / name).is_file() == name.endswith(".parquet") and not (tmp_path / "out.parquet.parts").exists()
    again = map_model(*arguments, device="cpu", resume=True)
    assert again.resumed == 50 and again.workers == ()


class Delayed:
    """Workers that stay at the chunk which begins with input 0 while the other chunks are computed, send `number` to
    this process when those before input `until` are, and say which chunks they have computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, until: int, number: int = signal.SIGINT) -> None:
        self.computed: list[int] = []
        self.release = threading.Event()
        original = worker_module._Worker.__call__

        def call(worker: Any, chunk: Any) -> Any:
            if chunk.start == 0:
                self.release.wait()
            result = original(worker, chunk)
            self.computed.append(chunk.start)
            if chunk.start == until:
                os.kill(os.getpid(), number)
            return result

        monkeypatch.setattr(worker_module._Worker, "__call__", call)


@pytest.fixture
def listening() -> Iterator[None]:
    """A process that was started in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize("part_bytes", [1, 32 << 20])
@pytest.mark.parametrize("name", ["out.parquet", "out"])
def test_every_chunk_that_was_computed_is_kept(
    adder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listening: None, name: str, part_bytes: int
) -> None:
    """Those behind an unfinished one as well: only the others are computed later, and rows stand in order."""
    monkeypatch.setattr("litegpu.tools.mapping.map_run._CHUNK_ITEMS", 4)
    monkeypatch.setattr("litegpu.tools.mapping.output._PART_BYTES", part_bytes)
    values = np.random.default_rng(2).standard_normal((50, 3)).astype(np.float32)
    np.save(tmp_path / "in.npy", values)
    arguments = (adder, [tmp_path / "in.npy"], tmp_path / name)
    with monkeypatch.context() as patch:
        first = Delayed(patch, until=16)
        with pytest.raises(KeyboardInterrupt):
            map_model(*arguments, device="cpu", batch=4)
        kept = {n for part in tmp_path.glob("out*/part-*") for n in pq.read_table(part).column("index").to_pylist()}
        first.release.set()
    assert kept >= set(range(4, 20)) and 0 not in kept
    with monkeypatch.context() as patch:
        second = Delayed(patch, until=-1)
        second.release.set()
        report = map_model(*arguments, device="cpu", batch=4, resume=True)
    assert report.resumed == len(kept) and not kept & set(second.computed)
    assert kept | {n for start in second.computed for n in range(start, min(start + 4, 50))} == set(range(50))
    np.testing.assert_array_equal(numbers(rows(tmp_path / name)), values + np.array([1, 2, 3], np.float32))


def test_what_dead_processes_left_is_no_part(adder: Path, tmp_path: Path, in_small_parts: None) -> None:
    """A process that died while it wrote a part, and one that died when it had put the parts together."""
    np.save(tmp_path / "in.npy", np.zeros((9, 3), np.float32))
    map_model(adder, [tmp_path / "in.npy"], tmp_path / "out", device="cpu", batch=4)
    part = tmp_path / "out" / "part-000000000004.parquet"
    for name in (".part-000000000004.parquet.unfinished", "part-000000000004.unfinished"):
        (tmp_path / "out" / name).write_bytes(part.read_bytes()[:100])
    part.unlink()
    assert map_model(adder, [tmp_path / "in.npy"], tmp_path / "out", device="cpu", batch=4, resume=True).resumed == 5
    assert rows(tmp_path / "out").num_rows == 9
    map_model(adder, [tmp_path / "in.npy"], tmp_path / "o.parquet", device="cpu", batch=4)
    shutil.copytree(tmp_path / "out", tmp_path / "o.parquet.parts")
    (tmp_path / "o.parquet.parts" / "part-000000000000.parquet").unlink()
    assert (
        map_model(adder, [tmp_path / "in.npy"], tmp_path / "o.parquet", device="cpu", batch=4, resume=True).resumed == 9
    )
    assert rows(tmp_path / "o.parquet").num_rows == 9 and not (tmp_path / "o.parquet.parts").exists()


def test_a_part_under_another_name_is_not_gone_on_with(adder: Path, tmp_path: Path, in_small_parts: None) -> None:
    np.save(tmp_path / "in.npy", np.zeros((12, 3), np.float32))
    map_model(adder, [tmp_path / "in.npy"], tmp_path / "out", device="cpu", batch=4)
    parts = {n: tmp_path / "out" / f"part-{n:012}.parquet" for n in (0, 2, 4, 8)}
    content = parts[8].read_bytes()
    for n, message in ((4, "begins with row 8, not 4"), (2, "as well"), (8, "Cannot go on with .*Parquet")):
        parts[n].write_bytes(b"garbage" if n == 8 else content)
        with pytest.raises(OptionError, match=message):
            map_model(adder, [tmp_path / "in.npy"], tmp_path / "out", device="cpu", batch=4, resume=True)
        parts[n].unlink()


@pytest.mark.skipif(os.name != "posix", reason="needs locks")
@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}], ids=["", "resume", "overwrite"])
@pytest.mark.parametrize("name", ["out.parquet", "out"])
def test_one_run_at_a_time_writes_an_output(
    adder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: dict[str, Any]
) -> None:
    np.save(tmp_path / "in.npy", np.zeros((12, 3), np.float32))
    arguments = (adder, [tmp_path / "in.npy"], tmp_path / name)
    refusals: list[str] = []
    original = map_shards

    def shards(*given: Any, **other: Any) -> Iterator[Any]:
        with pytest.raises(OptionError) as refused:
            map_model(*arguments, device="cpu", **options)
        refusals.append(str(refused.value))
        yield from original(*given, **other)

    monkeypatch.setattr(run_module, "map_shards", shards)
    assert map_model(*arguments, device="cpu").inputs == rows(tmp_path / name).num_rows == 12
    assert len(refusals) == 1 and "Another process is writing" in refusals[0]
    monkeypatch.setattr(run_module, "map_shards", original)
    assert map_model(*arguments, device="cpu", resume=True).resumed == 12


@pytest.mark.parametrize("on_file", [True, False])
def test_a_table_that_is_damaged_in_the_middle_costs_nothing_of_what_is_before(
    adder: Path, tmp_path: Path, in_small_parts: None, on_file: bool
) -> None:
    values = np.arange(60, dtype=np.float32).reshape(20, 3)
    table, path = pa.table({"x": values.tolist()}), tmp_path / "in.parquet"
    pq.write_table(table, path, row_group_size=5, compression="NONE", use_dictionary=False)
    whole = path.read_bytes()
    place = pq.read_metadata(path).row_group(2).column(0).data_page_offset
    path.write_bytes(whole[:place] + b"\xff" * 40 + whole[place + 40 :])
    out = tmp_path / ("o.parquet" if on_file else "o")
    with pytest.raises(OptionError, match=r"Cannot read .*in\.parquet"):
        map_model(adder, [path], out, device="cpu", batch=4)
    path.write_bytes(whole)
    assert map_model(adder, [path], out, device="cpu", batch=4, resume=True).resumed == 8
    np.testing.assert_array_equal(numbers(rows(out)), values + np.array([1, 2, 3], np.float32))


def test_other_work_is_not_gone_on_with(adder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.zeros((5, 3), np.float32))
    out = tmp_path / "o.parquet"
    map_model(adder, [tmp_path / "in.npy"], out, device="cpu")
    with pytest.raises(OptionError, match="--overwrite"):
        map_model(adder, [tmp_path / "in.npy"], out, device="cpu")
    with pytest.raises(OptionError, match="other options"):
        map_model(adder, [tmp_path / "in.npy"], out, device="cpu", precision="float16", resume=True)
    np.save(tmp_path / "in.npy", np.ones((6, 3), np.float32))
    with pytest.raises(OptionError, match=r"other (inputs and count|count and inputs)"):
        map_model(adder, [tmp_path / "in.npy"], out, device="cpu", resume=True)
    with pytest.raises(OptionError, match="one of them"):
        map_model(adder, [tmp_path / "in.npy"], out, device="cpu", resume=True, overwrite=True)
    assert map_model(adder, [tmp_path / "in.npy"], out, device="cpu", overwrite=True).inputs == 6


def test_overwriting_removes_nothing_but_parts(adder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.zeros((5, 3), np.float32))
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    with pytest.raises(OptionError, match="holds other files"):
        map_model(adder, [tmp_path / "in.npy"], home, device="cpu", overwrite=True)
    assert (home / "thesis.tex").exists()
    parts = tmp_path / "parts"
    for overwrite in (False, True):
        assert map_model(adder, [tmp_path / "in.npy"], parts, device="cpu", overwrite=overwrite).inputs == 5
        assert [p.name for p in parts.iterdir()] == ["part-000000000000.parquet"]


# ------------------------------------------------------------------------------------------------ the command


def test_command(
    adder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["litegpu", "map", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        streams = capsys.readouterr()
        return int(exit_.value.code or 0), streams.out, streams.err

    np.save(tmp_path / "in.npy", np.zeros((5, 3), np.float32))
    out = tmp_path / "o.parquet"
    status, text, error = call(adder, tmp_path / "in.npy", "--out", out, "--device", "cpu", "--json")
    assert status == 0 and json.loads(text)["inputs"] == 5 and error == ""
    status, text, error = call(adder, tmp_path / "in.npy", "--out", out, "--device", "cpu")
    assert status == 1 and text == "" and "--overwrite" in error
    (tmp_path / "l.txt").write_text("a.npy")
    status, text, error = call(adder, tmp_path / "l.txt", "-o", out, "--device=cpu", "--overwrite", "--on_error=skip")
    assert status == 0 and "1 input has an error" in text and "a.npy" in text
    status, text, error = call(adder, tmp_path / "l.txt", "-o", out, "--device=cpu", "--overwrite", "--on-error=skip",
                               "--html", tmp_path / "p.html")  # fmt: skip
    page = (tmp_path / "p.html").read_text()
    assert status == 0 and "Inputs without results" in page and "a.npy" in page and "adder" in page
    status, _, error = call(adder, tmp_path / "in.npy")
    assert status == 2 and "--out" in error


MAP = """
    import sys
    import threading
    from litegpu.__main__ import main
    from litegpu.tools.mapping import map_run, worker
    map_run._CHUNK_ITEMS = 4
    original = worker._Worker.__call__
    def call(self, chunk):
        if chunk.start == 40:
            print("ready")
            threading.Event().wait(1)
        return original(self, chunk)
    worker._Worker.__call__ = call
    main()
"""


@pytest.mark.skipif(os.name != "posix", reason="needs signals")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_ended_by_a_signal_and_gone_on_with(adder: Path, tmp_path: Path, number: int, status: int) -> None:
    values = np.random.default_rng(4).standard_normal((90, 3)).astype(np.float32)
    np.save(tmp_path / "in.npy", values)
    out = tmp_path / "o.parquet"
    child = started(MAP, "map", str(adder), str(tmp_path / "in.npy"), "--out", str(out), "--device=cpu", "--batch=4")
    child.send_signal(number)
    errors = child.communicate(timeout=60)[1]
    assert child.returncode == status and not out.exists()
    if number != signal.SIGKILL:
        assert errors == "litegpu: interrupted. The finished rows are kept: --resume goes on with the others.\n"
    report = map_model(adder, [tmp_path / "in.npy"], out, device="cpu", batch=4, resume=True)
    assert report.resumed >= (36 if number != signal.SIGKILL else 0)
    np.testing.assert_array_equal(numbers(rows(out)), values + np.array([1, 2, 3], np.float32))


def test_ray_needs_no_address() -> None:
    assert with_ray_address(["map", "--ray"]) == ["map", "--ray=auto"]
    assert with_ray_address(["map", "--ray", "--out", "x"]) == ["map", "--ray=auto", "--out", "x"]
    assert with_ray_address(["map", "--ray", "m.tflite"]) == ["map", "--ray=auto", "m.tflite"]
    for address in ("auto", "local", "head:6379", "10.0.0.1:6379", "ray://head:10001"):
        assert with_ray_address(["--ray", address, "m"]) == ["--ray", address, "m"]
    assert with_ray_address(["--ray=local"]) == ["--ray=local"]


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray: pip install 'litegpu[ray]'")
@pytest.mark.filterwarnings("ignore")
def test_on_ray_every_input_has_one_row_although_workers_are_killed(
    adder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_small_parts: None
) -> None:
    values = np.random.default_rng(3).standard_normal((400, 3)).astype(np.float32)
    np.save(tmp_path / "in.npy", values)
    rng, killed = random.Random(1), set[int]()

    def murderous(*arguments: Any, **options: Any) -> Iterator[Any]:
        seen = set()
        for outcome in original(*arguments, **options, attempts=10):
            seen.add(int(outcome.worker.split()[1]))
            if outcome.index % 25 == 10 and seen - killed:
                victim = rng.choice(sorted(seen - killed))
                killed.add(victim)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
            yield outcome

    original = map_shards
    monkeypatch.setattr(run_module, "map_shards", murderous)
    report = map_model(
        adder, [tmp_path / "in.npy"], tmp_path / "o.parquet", device="cpu", batch=4, workers=3, ray="local"
    )
    assert report.inputs == 400 and report.failed == 0 and len(killed) >= 3 and len(report.workers) > 3
    np.testing.assert_array_equal(numbers(rows(tmp_path / "o.parquet")), values + np.array([1, 2, 3], np.float32))


def test_all_devices_have_a_process_each(adder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the CPU twice."""
    monkeypatch.setattr(run_module, "every_device", lambda device: ("cpu", "cpu"))
    asked: dict[str, Any] = {}

    def noting(*args: Any, **options: Any) -> Iterator[Any]:
        asked.update(options)
        return map_shards(*args, **options)

    monkeypatch.setattr(run_module, "map_shards", noting)
    values = np.random.default_rng(3).normal(size=(150, 3)).astype(np.float32)
    np.save(tmp_path / "in.npy", values)
    report = map_model(adder, [tmp_path / "in.npy"], tmp_path / "o.parquet", device="cpu", batch=4)
    assert report.inputs == 150 and not report.failed and report.workers
    assert asked["workers"] == 2 and asked["processes"] is True
    assert not any(f"process {os.getpid()} " in worker for worker in report.workers)
    np.testing.assert_array_equal(numbers(rows(tmp_path / "o.parquet")), values + np.array([1, 2, 3], np.float32))


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_to_the_output_stays(adder: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "in.npy", np.ones((5, 3), np.float32))
    (tmp_path / "large").mkdir()
    (tmp_path / "o.parquet").symlink_to(tmp_path / "large" / "real.parquet")
    for overwrite in (False, True):
        map_model(adder, [tmp_path / "in.npy"], tmp_path / "o.parquet", device="cpu", overwrite=overwrite)
        assert (tmp_path / "o.parquet").is_symlink() and len(rows(tmp_path / "large" / "real.parquet")) == 5
    assert sorted(os.listdir(tmp_path)) == ["in.npy", "large", "o.parquet"]


def test_workers_take_turns_with_numbered_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    class Two:
        def list_devices(self) -> list[str]:
            return ["0", "1"]

    class Broken:
        def list_devices(self) -> list[str]:
            raise DeviceError("no driver")

    def device(wanted: str, number: int | None, backend: object) -> str:
        monkeypatch.setattr(registry, "backend", lambda name: backend)
        return worker_module._device(wanted, WorkerContext(0, 4, 1, gpu=number))

    (name,) = registry.numbered()
    assert [device("auto", i, Two()) for i in range(3)] == [f"{name}:0", f"{name}:1", f"{name}:0"]
    assert device(name, 3, Two()) == f"{name}:1"
    assert device("auto", None, Two()) == "auto" and device("cpu", 1, Two()) == "cpu"
    assert [device(f"{name}:all", i, Two()) for i in (None, 0, 1, 2)] == [f"{name}:{i}" for i in (0, 0, 1, 0)]
    assert device("auto", 1, Broken()) == "auto" and device("auto", 1, object()) == "auto"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names are text here")
def test_names_that_are_no_utf8_stay_apart(classifier: Path, tmp_path: Path) -> None:
    """As those of archives from elsewhere, of inputs and of the model."""
    model = os.fsdecode(os.fsencode(tmp_path) + b"/m\xf6del.tflite")
    shutil.copy(classifier, model)
    (picture,) = pictures(tmp_path / "one", 1)
    folder = tmp_path / "in"
    folder.mkdir()
    for name in (b"\xe9", b"\xe8"):
        shutil.copy(os.fsencode(picture), os.fsencode(folder) + b"/" + name + os.fsencode(picture.suffix))
    map_model(model, [folder], tmp_path / "out.parquet", device="cpu")
    names = rows(tmp_path / "out.parquet").column("input").to_pylist()
    assert [Path(name).stem for name in names] == ["\\udce8", "\\udce9"]
