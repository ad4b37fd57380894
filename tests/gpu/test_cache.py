"""The cache of compiled programs: the same results from it, and no harm from whatever befalls its files."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import require_gpu
from typer.testing import CliRunner

import litegpu
from litegpu import GpuDelegate, GpuDelegateOptions, InferencePriority, Interpreter, OptionError, version
from litegpu.gpu import cache_folder
from litegpu.gpu.build import build_program
from litegpu.gpu.cache_entry import CacheEntry, EntryError, decode, encode
from litegpu.gpu.cache_folder import CacheFolder
from litegpu.gpu.delegate.cache_key import fingerprint
from litegpu.gpu.graph import DType
from litegpu.gpu.program import Binding, Dispatch, KernelCode, MemoryReport, Port, Program, RowMap
from litegpu.model.builder import ModelBuilder
from litegpu.model.types import TensorType
from litegpu.own_folder import default_folder

SHAPE = (1, 4, 5, 3)


def network(seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    w, bias = b.constant(rng.normal(size=(6, 3, 3, 3)).astype(np.float32)), b.constant(np.zeros(6, np.float32))
    options = {"padding": 0, "stride_h": 1, "stride_w": 1, "fused_activation_function": 1}
    y = b.op("CONV_2D", [x, w, bias], (1, 4, 5, 6), options=options)
    b.output(b.op("LOGISTIC", [y], (1, 4, 5, 6), name="y"))
    return b.build()


MAP = RowMap(0, 32, (5, 24), 64, (2, 8), 2)


def example(key: str = "k", size: int = 300, images: tuple[bytes, ...] = (b"image", b"")) -> CacheEntry:
    port = Port("x", 0, (1, 2, 3, 4), DType.FLOAT16, 0, 48, ((0, 1), (2, 0)))
    program = Program(
        kernels=(KernelCode("a", "text ä", (8, 4, 1), ("read", "read_write"), 16, ("-x",), (MAP,)),),
        dispatches=(
            Dispatch(0, (3, 2, 1), (Binding("arena", 0, 64), Binding("constants", 0, 16)), "conv [1]", (1, 2), 0),
        ),
        constants=np.arange(size, dtype=np.uint8),
        arena_size=256,
        inputs=(port,),
        outputs=(dataclasses.replace(port, name="y", dtype=DType.INT8, nbytes=24),),
        memory=MemoryReport(256, 512, 128),
        in_float32=(("v", "a sum"),),
        variables=(port,),
    )
    return CacheEntry({"key": key}, program, images)


def content(entry: CacheEntry) -> bytes:
    return b"".join(encode(entry))


def run(folder: Path, backend: str = "webgpu", **options: Any) -> np.ndarray:
    delegate = GpuDelegate(backend=backend, serialization_dir=folder, **options)
    with Interpreter(model_content=network(), experimental_delegates=[delegate], fallback="strict") as interpreter:
        interpreter.allocate_tensors()
        values = np.random.default_rng(5).normal(size=SHAPE).astype(np.float32)
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], values)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).copy()


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever a program is built."""
    found: list[int] = []
    build = build_program

    def counted(*args: Any, **named: Any) -> Program:
        found.append(1)
        return build(*args, **named)

    monkeypatch.setattr("litegpu.gpu.build.build_program", counted)
    return found


# ------------------------------------------------------------------------------------- bytes


def _without_constants(program: Program) -> Program:
    """Arrays are compared on their own."""
    return dataclasses.replace(program, constants=b"")  # type: ignore[arg-type]


def test_entries_come_back_as_they_were() -> None:
    for entry in (example(), example(size=0, images=()), example(images=(bytes(1000), b"x"))):
        found = decode(content(entry))
        assert _without_constants(found.program) == _without_constants(entry.program)
        np.testing.assert_array_equal(found.program.constants, entry.program.constants)
        assert (found.about, found.images) == (dict(entry.about), entry.images)


def test_every_flipped_byte_is_noticed() -> None:
    good = content(example())
    for position in range(len(good)):
        bad = bytearray(good)
        bad[position] ^= 1 << position % 8
        with pytest.raises(EntryError):
            decode(bytes(bad))


def test_every_cut_is_noticed() -> None:
    good = content(example())
    for length in range(len(good)):
        with pytest.raises(EntryError):
            decode(good[:length])
    with pytest.raises(EntryError):
        decode(good + b"\0")


@pytest.mark.parametrize(
    "change",
    [{"blobs": [[0, 1 << 40]]}, {"kernels": [["a"]]}, {"inputs": [["x", 0, [1], "float99", 0, 4, None]]},
     {"images": -3}, {"memory": [1]}, {"dispatches": 3}, {"about": None}],
)  # fmt: skip
def test_headers_that_make_no_sense(change: dict[str, Any], tmp_path: Path) -> None:
    """With a right checksum: what another version, or somebody, might have written."""
    good = content(example("key"))
    length = int.from_bytes(good[48:56], "little")
    header = json.loads(good[56 : 56 + length]) | change
    text = json.dumps(header).encode()
    rest = len(text).to_bytes(8, "little") + text + good[56 + length :]
    bad = good[:16] + hashlib.sha256(rest).digest() + rest
    folder = CacheFolder(tmp_path / "c")
    (folder.path / "key.litegpu").write_bytes(bad)
    assert folder.load("key") is None


def test_fingerprints() -> None:
    large = np.random.default_rng(0).integers(0, 256, 9 << 20, np.uint8)
    before = fingerprint(large.tobytes())
    assert before == fingerprint(memoryview(large.tobytes()))
    for position in (0, 5 << 20, (9 << 20) - 1):
        large[position] ^= 1
        assert fingerprint(large.tobytes()) != before
        large[position] ^= 1
    assert len({fingerprint(b""), fingerprint(b"\0"), fingerprint(b"\0\0")}) == 3


# ------------------------------------------------------------------------------------- the folder


def test_the_folder_is_private(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "a" / "b")
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert folder.store("k", example()) and stat.S_IMODE((folder.path / "k.litegpu").stat().st_mode) == 0o600
    assert sorted(p.name for p in folder.path.iterdir()) == ["k.litegpu"]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o720])
def test_folders_that_others_can_write_to_are_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(OptionError, match="can be written by others"):
        GpuDelegate(serialization_dir=tmp_path)


def test_folders_of_other_users_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CacheFolder(tmp_path)
    folder.store("k", example())
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    real = os.fstat

    def of_somebody(handle: int) -> os.stat_result:
        return os.stat_result([*real(handle)[:4], 4712, *real(handle)[5:]])

    monkeypatch.setattr(os, "fstat", of_somebody)
    assert folder.load("k") is None
    monkeypatch.setattr(Path, "stat", lambda self: os.stat_result([0o40700, 0, 0, 0, 4712, 0, 0, 0, 0, 0]))
    with pytest.raises(OptionError, match="belongs to another user"):
        CacheFolder(tmp_path)


#: A user who is a number without a name and a home, as in containers.
_NAMELESS = """
import pwd
pwd.getpwuid = {}.__getitem__
"""
_UNWRITABLE = """
import logging, sys
logging.basicConfig()
import litegpu
delegate = litegpu.GpuDelegate(serialization_dir=sys.argv[2], backend="reference")
interpreter = litegpu.Interpreter(sys.argv[1], experimental_delegates=[delegate])
interpreter.allocate_tensors()
interpreter.invoke()
print(interpreter.delegation_report().summary())
"""


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
@pytest.mark.parametrize("home", ["read-only", "none"])
def test_a_cache_that_cannot_be_written(tmp_path: Path, home: str) -> None:
    """With the rights of an ordinary user: "auto" goes without, a folder that was named is an error, and one that can
    only be read is read."""
    (tmp_path / "model.tflite").write_bytes(network())
    locked, filled = tmp_path / "locked", tmp_path / "filled"
    for folder in (locked, filled):
        folder.mkdir(mode=0o700)
    environment = {k: v for k, v in os.environ.items() if k not in ("XDG_CACHE_HOME", "LITEGPU_CACHE_DIR", "HOME")}
    if home == "read-only":
        environment["HOME"] = str(locked)
    ordinary: list[str] = []
    if os.getuid() == 0:  # whom permissions do not bind
        if not shutil.which("setpriv"):
            pytest.skip("needs setpriv")
        ordinary = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]

    def run(where: object, environment: dict[str, str] = environment) -> subprocess.CompletedProcess[str]:
        script = _UNWRITABLE if home == "read-only" else _NAMELESS + _UNWRITABLE
        command = [*ordinary, sys.executable, "-c", script, str(tmp_path / "model.tflite"), str(where)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    assert run(filled).returncode == 0 and len(list(filled.iterdir())) == 1
    for folder in (locked, filled):
        folder.chmod(0o500)
    try:
        auto = run("auto")
        assert auto.returncode == 0 and "2/2 ops" in auto.stdout, auto.stderr
        assert auto.stderr.count("nothing that is compiled is kept") == 1, auto.stderr
        named = run("auto", environment | {"LITEGPU_CACHE_DIR": str(locked / "named")})
        assert named.returncode == 1 and "OptionError" in named.stderr and "Permission denied" in named.stderr
        assert "takes no new entries: Permission denied" in run(locked).stderr
        kept = run(filled)
        assert kept.returncode == 0 and "cache" not in kept.stderr, kept.stderr
    finally:
        for folder in (locked, filled):
            folder.chmod(0o700)


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(OptionError, match="cannot be made or read"):
        GpuDelegate(serialization_dir=tmp_path / "f")


def test_entries_that_others_can_write_to_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = CacheFolder(tmp_path)
    folder.store("k", example("k"))
    (tmp_path / "k.litegpu").chmod(0o666)
    assert folder.load("k") is None and "written by others" in caplog.text


def test_links_are_not_followed(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "c")
    folder.store("k", example("k"))
    (folder.path / "k.litegpu").rename(tmp_path / "elsewhere")
    (folder.path / "k.litegpu").symlink_to(tmp_path / "elsewhere")
    assert folder.load("k") is None


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = CacheFolder(tmp_path)
    os.mkfifo(tmp_path / "k.litegpu", 0o600)
    assert folder.load("k") is None and "it is no file" in caplog.text
    assert "is no file" in str(folder.list()[0].problem)
    assert folder.store("k", example("k")) and folder.load("k") is not None


def test_an_entry_under_another_key_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = CacheFolder(tmp_path)
    folder.store("a", example("a"))
    (tmp_path / "a.litegpu").rename(tmp_path / "b.litegpu")
    assert folder.load("b") is None and "of something else" in caplog.text


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    size = len(content(example("a")))
    folder = CacheFolder(tmp_path, most_bytes=3 * size)
    for i, key in enumerate("abc"):
        folder.store(key, example(key))
        os.utime(tmp_path / f"{key}.litegpu", (1000 + i, 1000 + i))
    assert folder.load("a") is not None  # is used: the time is renewed
    folder.store("d", example("d"))
    assert sorted(p.stem for p in tmp_path.iterdir()) == ["a", "c", "d"]
    CacheFolder(tmp_path, most_bytes=1).store("e", example("e"))
    assert [p.stem for p in tmp_path.iterdir()] == ["e"], "what was just written stays"


def test_the_limit_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITEGPU_CACHE_BYTES", "12345")
    assert CacheFolder(tmp_path).most_bytes == 12345
    monkeypatch.setenv("LITEGPU_CACHE_BYTES", "1G")
    with pytest.raises(OptionError, match="number of bytes"):
        CacheFolder(tmp_path)
    monkeypatch.setenv("LITEGPU_CACHE_DIR", "/somewhere")
    assert default_folder() == Path("/somewhere")


def test_what_dead_processes_left_is_removed(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    (tmp_path / ".writing-1-dead").write_bytes(b"half")
    script = f"""
import sys, time
from litegpu.file_lock import lock
handle = open({str(tmp_path / ".writing-2-alive")!r}, "wb")
assert lock(handle.fileno())
print("locked", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None and writer.stdout.readline()
            folder.store("k", example())
            assert sorted(p.name for p in tmp_path.iterdir()) == [".writing-2-alive", "k.litegpu"]
        finally:
            writer.kill()
    folder.store("k", example())
    assert [p.name for p in tmp_path.iterdir()] == ["k.litegpu"]


# ------------------------------------------------------------------------------------- models


def test_a_second_start_builds_nothing(tmp_path: Path, builds: list[int]) -> None:
    require_gpu()
    first = run(tmp_path)
    assert len(builds) == 1
    np.testing.assert_array_equal(run(tmp_path), first)
    assert len(builds) == 1 and len(list(tmp_path.iterdir())) == 1


@pytest.mark.cuda
def test_a_second_start_compiles_nothing(tmp_path: Path, builds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    from litegpu.gpu.backends.cuda import opening as cuda

    reason = cuda.available()
    if reason is not None:
        pytest.skip(f"no CUDA device: {reason}")
    from litegpu.gpu.backends.cuda import compile as cuda_compile

    first = run(tmp_path, "cuda")

    def refused(*arguments: Any) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(cuda_compile, "_compile", refused)
    for _ in range(2):
        cuda_compile._images.clear()  # as in a new process
        np.testing.assert_array_equal(run(tmp_path, "cuda"), first)
    assert len(builds) == 1
    (path,) = tmp_path.iterdir()
    entry = decode(path.read_bytes())
    assert len(entry.images) == len(entry.program.kernels) + 1 and all(entry.images), "and the kernel that copies"


def test_what_another_program_depends_on(tmp_path: Path, builds: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of anything that the program depends on leads to an entry of its own."""
    require_gpu()
    from litegpu.gpu.backends.webgpu.device import open_device
    from litegpu.gpu.delegate import cache_key
    from litegpu.gpu.delegate import delegate as gpu

    changes: list[tuple[dict[str, Any], Any]] = [
        ({}, None),
        ({"precision_loss_allowed": True}, None),
        ({"precision": "auto"}, None),
        ({"model_token": "a"}, None),
        ({"model_token": "b"}, None),
        ({}, lambda: monkeypatch.setattr(version, "__version__", "9.9")),
        ({}, lambda: monkeypatch.setattr(cache_key, "code_stamp", lambda: "other code")),
        ({}, lambda: monkeypatch.setattr(gpu, "fingerprint", lambda content: "other weights")),
    ]
    for i, (options, change) in enumerate(changes):
        if change:
            change()
        for _ in range(2):
            run(tmp_path, **options)
        assert len(builds) == len(list(tmp_path.iterdir())) == i + 1, f"change {i}: {options}"
    device = open_device("auto")
    other_driver = dataclasses.replace(device.info, driver="other")
    for i, changed in enumerate((other_driver, dataclasses.replace(other_driver, name="other"))):
        monkeypatch.setattr(device, "info", changed)
        run(tmp_path)
        assert len(builds) == len(changes) + i + 1


def test_one_entry_for_all_ways_in(tmp_path: Path, builds: list[int]) -> None:
    """What is asked for in other words is the same program, whoever asks."""
    require_gpu()
    fast = {"inference_priority1": InferencePriority.MIN_LATENCY}
    words: dict[str, list[dict[str, Any]]] = {
        "float32": [{}, {"precision": "float32"}],
        "float16": [{"precision_loss_allowed": True}, {"precision": "float16"}, fast],
    }
    for count, (precision, ways) in enumerate(words.items(), 1):
        for options in ways:
            run(tmp_path, **options)
        for device in ("webgpu", "auto"):
            chosen: dict[str, Any] = {"backend": "webgpu"} if device == "auto" else {}
            with litegpu.load(network(), device, precision, serialization_dir=tmp_path, **chosen) as model:
                model(np.zeros(SHAPE, np.float32))
        assert len(builds) == len(list(tmp_path.iterdir())) == count, precision


def test_a_resize_has_an_entry_of_its_own(tmp_path: Path, builds: list[int]) -> None:
    require_gpu()
    delegate = GpuDelegate(backend="webgpu", serialization_dir=tmp_path)
    for _ in range(2):
        with Interpreter(model_content=network(), experimental_delegates=[delegate]) as interpreter:
            x, y = interpreter.get_input_details()[0]["index"], interpreter.get_output_details()[0]["index"]
            for batch in (1, 3):
                values = np.random.default_rng(batch).normal(size=(batch, *SHAPE[1:])).astype(np.float32)
                interpreter.resize_tensor_input(x, values.shape)
                interpreter.allocate_tensors()
                interpreter.set_tensor(x, values)
                interpreter.invoke()
                assert interpreter.get_tensor(y).shape[0] == batch
    assert len(builds) == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "text"])
def test_damaged_entries_are_built_anew_with_one_warning(
    tmp_path: Path, builds: list[int], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    require_gpu()
    first = run(tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    bad = {"flip": good[:200] + bytes([good[200] ^ 1]) + good[201:], "cut": good[:-100], "empty": b"", "text": b"hi"}
    path.write_bytes(bad[damage])
    caplog.clear()
    np.testing.assert_array_equal(run(tmp_path), first)
    assert len(builds) == 2 and [r.levelname for r in caplog.records if "cache" in r.message] == ["WARNING"]
    caplog.clear()
    np.testing.assert_array_equal(run(tmp_path), first)
    assert len(builds) == 2 and "cache" not in caplog.text, "it was written anew"


def test_flipped_bytes_never_change_a_result(tmp_path: Path, builds: list[int]) -> None:
    require_gpu()
    first = run(tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    rng = random.Random(3)
    for i, position in enumerate(rng.sample(range(len(good)), 24)):
        path.write_bytes(good[:position] + bytes([good[position] ^ 1 << rng.randrange(8)]) + good[position + 1 :])
        np.testing.assert_array_equal(run(tmp_path), first)
        assert len(builds) == i + 2


def test_an_entry_appears_when_all_of_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then it has no name that anybody looks for, and its bytes are on the disk before it gets one."""
    folder = CacheFolder(tmp_path)
    order: list[str] = []
    sync, replace = os.fsync, os.replace

    def synced(handle: int) -> None:
        assert not list(tmp_path.glob("*.litegpu")) and folder.load("k") is None
        assert os.fstat(handle).st_size == len(content(example()))
        order.append("sync")
        sync(handle)

    def replaced(source: Any, target: Any) -> None:
        order.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    assert folder.store("k", example()) and order == ["sync", "replace"]
    assert [path.name for path in tmp_path.iterdir()] == ["k.litegpu"] and folder.load("k") is not None


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    require_gpu()

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        first = run(tmp_path)
    assert "No space left" in caplog.text and not list(tmp_path.iterdir())
    np.testing.assert_array_equal(run(tmp_path), first)


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    """A write that the system really cuts short."""
    script = f"""
import resource, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r}), sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from test_cache import CacheFolder, example
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
folder = CacheFolder({str(tmp_path)!r})
assert not folder.store("k", example("k", 100_000))
resource.setrlimit
assert folder.load("k") is None
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "takes no new entries" in done.stderr and not list(tmp_path.iterdir())


def test_a_folder_that_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, builds: list[int]
) -> None:
    require_gpu()
    real = os.open

    def refused(path: Any, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, flags, *mode)

    kept = run(tmp_path)
    monkeypatch.setattr(os, "open", refused)
    np.testing.assert_array_equal(run(tmp_path), kept)
    assert len(builds) == 1 and not caplog.records
    delegate = GpuDelegate(backend="webgpu", serialization_dir=tmp_path)
    for seed in (1, 2):
        with Interpreter(model_content=network(seed), experimental_delegates=[delegate]) as interpreter:
            interpreter.allocate_tensors()
    assert [
        r.message for r in caplog.records if "Permission denied" in r.message and "cache" in r.message
    ].__len__() == 1


def test_user_ops_are_not_kept(tmp_path: Path) -> None:
    require_gpu()
    b = ModelBuilder()
    b.output(*b.custom("Twice", [b.input("x", SHAPE)], [(SHAPE, TensorType.FLOAT32)]))
    litegpu.register_op("Twice", lambda op, t: t.here(0) * 2.0)
    try:
        delegate = GpuDelegate(backend="webgpu", serialization_dir=tmp_path)
        with Interpreter(model_content=b.build(), experimental_delegates=[delegate], fallback="strict") as interpreter:
            interpreter.allocate_tensors()
    finally:
        litegpu.unregister_op("Twice")
    assert not list(tmp_path.iterdir())


def test_options() -> None:
    with pytest.raises(OptionError, match="serialization_dir"):
        GpuDelegateOptions(model_token="a")
    with pytest.raises(OptionError, match="model_token"):
        GpuDelegateOptions(model_token="", serialization_dir="x")
    with pytest.raises(OptionError, match="ENABLE_SERIALIZATION"):
        GpuDelegateOptions(experimental_flags=litegpu.ExperimentalFlags.ENABLE_SERIALIZATION)
    wrong: Any
    for wrong in (5, True, b"x", ["x"], "a\0b"):
        with pytest.raises(OptionError, match=r"serialization_dir is .*; it must be the path of a folder"):
            GpuDelegateOptions(serialization_dir=wrong)


def test_the_command(tmp_path: Path) -> None:
    from litegpu.cli.application import app

    folder = CacheFolder(tmp_path)
    for key in ("one", "two"):
        entry = example(key)
        folder.store(key, dataclasses.replace(entry, about={**entry.about, "file": f"{key}.tflite", "nodes": 3}))

    def call(*words: str) -> Any:
        return CliRunner().invoke(app, ["cache", *words])

    shown = call("list", str(tmp_path))
    assert shown.exit_code == 0 and "one.tflite" in shown.output and "2 entries" in shown.output
    found = json.loads(call("list", str(tmp_path), "--json").output)
    assert {e["file"] for e in found["entries"]} == {"one.tflite", "two.tflite"} and found["damaged"] == 0
    assert call("verify", str(tmp_path)).exit_code == 0
    (tmp_path / "one.litegpu").write_bytes(b"nothing")
    checked = call("verify", str(tmp_path))
    assert checked.exit_code == 1 and "1 damaged" in checked.output
    cleared = call("clear", str(tmp_path))
    assert cleared.exit_code == 0 and "2 entries" in cleared.output and not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------- many processes


def _kill_rounds(folder: Path, rounds: int) -> None:
    """Eight processes at a time build or load the same model, and are killed at random points; a process that lives
    has the right result, and no file is left but the entry."""
    expected = run(folder.parent / "expected")
    np.save(folder.parent / "expected.npy", expected)
    script = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r}), sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import logging
from pathlib import Path
import numpy as np
import test_cache
from litegpu.gpu.delegate.cache_key import code_stamp
code_stamp()  # once for all, in case somebody works on the code meanwhile
expected = np.load({str(folder.parent / "expected.npy")!r})
print("ready", flush=True)
for line in sys.stdin:  # a round: fork, so that only the work itself is killed
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            try:
                found = test_cache.run(Path({str(folder)!r}))
                os._exit(0 if np.array_equal(found, expected) else 7)
            except BaseException as error:
                print("failed", repr(error), file=sys.stderr, flush=True)
                os._exit(8)
        children.append(child)
    print(*children, flush=True)
    print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children), flush=True)
"""
    rng = random.Random(1)
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        assert parent.stdout.readline().strip() == "ready"
        longest, lived = 2.0, 0
        for turn in range(rounds):
            print("go", file=parent.stdin, flush=True)
            started = time.perf_counter()
            children = [int(word) for word in parent.stdout.readline().split()]
            for child in rng.sample(children, 6):
                time.sleep(rng.uniform(0, longest / 6))
                with contextlib.suppress(ProcessLookupError):  # it has ended, and its parent has seen that
                    os.kill(child, signal.SIGKILL)
            codes = [int(word) for word in parent.stdout.readline().split()]
            assert set(codes) <= {0, -signal.SIGKILL}, f"round {turn}: {codes}"
            longest = max(0.2, min(longest, time.perf_counter() - started))
            lived += codes.count(0)
            if turn % 3 == 2:
                CacheFolder(folder).clear()
        parent.stdin.close()
    assert lived >= 2 * rounds, "those that were not killed"
    CacheFolder(folder).store("other", example("other"))  # tidies up
    left = sorted(p.name for p in folder.iterdir())
    assert len(left) <= 2 and all(name.endswith(".litegpu") for name in left), left
    assert all(one.problem is None for one in CacheFolder(folder).list())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_killed_at_random(tmp_path: Path) -> None:
    require_gpu()
    _kill_rounds(tmp_path / "cache", 4)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_processes_killed_at_random_200_rounds(tmp_path: Path) -> None:
    require_gpu()
    _kill_rounds(tmp_path / "cache", 200)


def test_the_module_logs_where_the_package_does() -> None:
    assert cache_folder.log is logging.getLogger("litegpu")
