"""Bundles of models: listed, opened by name, and refused where they are broken."""

from __future__ import annotations

import io
import random
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

import litegpu
from litegpu import Interpreter, ModelError, list_models, read_model
from litegpu.cli.application import app
from litegpu.model.builder import ModelBuilder


def model(operator: str) -> bytes:
    b = ModelBuilder()
    b.output(b.op(operator, [b.input("x", (1, 4))], (1, 4)))
    return b.build()


MODELS = {"first.tflite": model("ABS"), "more/second.tflite": model("NEG")}


def archive(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", compression) as out:
        for name, content in members.items():
            out.writestr(name, content)
    return memory.getvalue()


@pytest.fixture(params=[zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED], ids=["stored", "deflated"])
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    nested = archive({"third.tflite": model("FLOOR"), "labels.txt": b"a b c d e"})
    path = tmp_path / "hands.task"
    path.write_bytes(archive({"readme.txt": b"hello, world", **MODELS, "inner.task": nested}, request.param))
    return path


def run(path: Path | str) -> np.ndarray:
    with Interpreter(model_path=str(path)) as one:
        one.allocate_tensors()
        one.set_tensor(one.get_input_details()[0]["index"], np.array([[-1.5, 0, 2, 3]], np.float32))
        one.invoke()
        return np.array(one.get_tensor(one.get_output_details()[0]["index"]))[0]


def test_models_are_listed_and_run_by_name(bundle: Path) -> None:
    found = list_models(bundle)
    assert [m.name for m in found] == ["first.tflite", "more/second.tflite", "inner.task/third.tflite"]
    assert found[0].size == len(MODELS["first.tflite"])
    assert bytes(found[0].read()) == MODELS["first.tflite"]
    assert run(f"{bundle}/first.tflite").tolist() == [1.5, 0, 2, 3]
    assert run(bundle / "more" / "second.tflite").tolist() == [1.5, 0, -2, -3]
    assert run(f"{bundle}/inner.task/third.tflite").tolist() == [-2, 0, 2, 3]
    assert read_model(f"{bundle}/first.tflite").main.operators[0].name == "ABS"
    np.testing.assert_array_equal(litegpu.load(f"{bundle}/first.tflite", "cpu")(np.full((1, 4), -1, np.float32)), 1)


def test_a_bundle_of_one_model_needs_no_name(tmp_path: Path) -> None:
    path = tmp_path / "one.task"
    path.write_bytes(archive({"only.tflite": model("ABS")}))
    assert run(path).tolist() == [1.5, 0, 2, 3]


def test_what_is_not_there(bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds 3 models: name one.*first\.tflite.*third\.tflite"):
        Interpreter(model_path=str(bundle))
    with pytest.raises(ModelError, match=r"has no model 'fourth\.tflite'.*first"):
        Interpreter(model_path=f"{bundle}/fourth.tflite")
    empty = tmp_path / "empty.task"
    empty.write_bytes(archive({"readme.txt": b"hello, world"}))
    with pytest.raises(ModelError, match=r"a bundle without a \.tflite model"):
        Interpreter(model_path=str(empty))
    plain = tmp_path / "plain.tflite"
    plain.write_bytes(model("ABS"))
    assert list_models(plain) == []
    with pytest.raises(ModelError, match="Could not open"):
        Interpreter(model_path=str(tmp_path / "nowhere.task" / "x.tflite"))


def test_stored_models_are_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "one.task"
    path.write_bytes(archive({"only.tflite": model("ABS")}))
    content = list_models(path)[0].read()
    assert content.readonly and type(content.obj).__name__ == "mmap"


def test_broken_bundles_are_refused(bundle: Path, tmp_path: Path) -> None:
    content = bundle.read_bytes()
    path = tmp_path / "broken.task"
    rng = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(content)
        for at in rng.integers(0, len(content), 4):
            damaged[at] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(damaged[: rng.integers(8, len(content) + 1)]))
        try:
            for found in list_models(path):
                read_model(found.read())
        except ModelError:
            pass
    bomb = bytearray(archive({"x.tflite": model("ABS") + bytes(50 << 20)}, zipfile.ZIP_DEFLATED))
    at = bomb.index(b"PK\x01\x02")
    bomb[at + 24 : at + 28] = struct.pack("<I", 1 << 30)
    path.write_bytes(bytes(bomb))
    with pytest.raises(ModelError, match=r"more than a model can have|cannot be unpacked|damaged"):
        for found in list_models(path):
            found.read()
    deep = model("ABS")
    for _ in range(6):
        deep = archive({"x.tflite": deep})
    path.write_bytes(deep)
    with pytest.raises(ModelError, match="nested more than"):
        list_models(path)


def litertlm(sections: list[tuple[int, str, bytes]]) -> bytes:
    """A container as LiteRT-LM lays it out: the header's flatbuffer is put together back to front here."""
    out = bytearray(b"\0" * 32)
    body = bytearray()
    base = 16 << 10

    # a flatbuffer by hand: fixed layout, all offsets forward
    def u32(n: int) -> bytes:
        return struct.pack("<I", n)

    buffer = bytearray(u32(0))

    def pad(to: int) -> None:
        buffer.extend(bytes(-len(buffer) % to))

    def vtable(fields: list[int], size: int) -> int:
        pad(2)
        at = len(buffer)
        buffer.extend(struct.pack(f"<HH{len(fields)}H", 4 + 2 * len(fields), size, *fields))
        return at

    def table(fields: list[int], size: int) -> int:
        place = vtable(fields, size)
        pad(8)
        at = len(buffer)
        buffer.extend(bytes(size))
        struct.pack_into("<i", buffer, at, at - place)
        return at

    def text(value: str) -> int:
        pad(4)
        at = len(buffer)
        buffer.extend(u32(len(value)) + value.encode() + b"\0")
        return at

    def vector(count: int) -> int:
        pad(4)
        at = len(buffer)
        buffer.extend(u32(count) + bytes(4 * count))
        return at

    def link(at: int, to: int) -> None:
        struct.pack_into("<I", buffer, at, to - at)

    root = table([0, 4], 8)
    struct.pack_into("<I", buffer, 0, root)
    metadata = table([4], 8)
    link(root + 4, metadata)
    objects = vector(len(sections))
    link(metadata + 4, objects)
    for i, (kind, name, content) in enumerate(sections):
        body.extend(bytes(-len(body) % 64))
        begin = base + len(body)
        body.extend(content)
        section = table([4, 8, 16, 24], 32)
        link(objects + 4 + 4 * i, section)
        struct.pack_into("<QQB", buffer, section + 8, begin, begin + len(content), kind)
        items = vector(1)
        link(section + 4, items)
        pair = table([4, 12, 8], 16)
        link(items + 4, pair)
        struct.pack_into("<B", buffer, pair + 12, 9)
        link(pair + 4, text("model_type"))
        value = table([4], 8)
        link(pair + 8, value)
        link(value + 4, text(name))
    out[:8] = b"LITERTLM"
    struct.pack_into("<III4xQ", out, 8, 1, 3, 0, 32 + len(buffer))
    out += buffer
    return bytes(out + bytes(base - len(out)) + body)


def test_litert_lm(tmp_path: Path) -> None:
    path = tmp_path / "chat.litertlm"
    path.write_bytes(litertlm([(4, "x", b"tokens"), (3, "tf_lite_embedder", model("ABS")), (3, "", model("NEG"))]))
    assert [m.name for m in list_models(path)] == ["tf_lite_embedder.tflite", "model_1.tflite"]
    assert run(f"{path}/tf_lite_embedder.tflite").tolist() == [1.5, 0, 2, 3]
    path.write_bytes(litertlm([(3, "a", model("ABS")), (7, "a", b"weights")]))
    with pytest.raises(ModelError, match="weights in sections of their own"):
        list_models(path)
    whole = litertlm([(3, "a", model("ABS"))])
    rng = np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(whole)
        for at in rng.integers(8, 300, 3):
            damaged[at] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(damaged[: rng.integers(40, len(whole) + 1)]))
        try:
            for found in list_models(path):
                read_model(found.read())
        except ModelError:
            pass


def test_command(bundle: Path) -> None:
    from typer.testing import CliRunner

    result = CliRunner().invoke(app, ["models", str(bundle)])
    assert result.exit_code == 0 and f"{bundle}/inner.task/third.tflite" in result.stdout
    assert CliRunner().invoke(app, ["models", str(bundle), "--json"]).stdout.count('"path"') == 3


def test_what_is_unpacked_is_limited_in_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty bundles of 4 MiB each, which a kilobyte says."""
    inner = archive({"zeros.bin": bytes(4 << 20)})
    path = tmp_path / "flood.task"
    path.write_bytes(archive({f"{i}.task": inner for i in range(40)}, zipfile.ZIP_DEFLATED))
    assert path.stat().st_size < 1 << 20 and list_models(path) == []
    monkeypatch.setenv("LITEGPU_MEMORY_LIMIT", "100M")
    with pytest.raises(ModelError, match=r"24\.task' would unpack, .*LITEGPU_MEMORY_LIMIT"):
        list_models(path)
    deep = archive({"a.task": archive({"b.task": inner}, zipfile.ZIP_DEFLATED), "c.task": inner}, zipfile.ZIP_DEFLATED)
    path.write_bytes(deep)
    monkeypatch.setenv("LITEGPU_MEMORY_LIMIT", "8M")  # bundles in bundles count as well
    with pytest.raises(ModelError, match="LITEGPU_MEMORY_LIMIT"):
        list_models(path)


def test_a_model_that_is_nearly_nothing_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "small.task"
    path.write_bytes(archive({"m.tflite": b"\x1c\0\0\0TFL3" + bytes(4 << 20)}, zipfile.ZIP_DEFLATED))
    (found,) = list_models(path)
    found.read()
    monkeypatch.setenv("LITEGPU_MEMORY_LIMIT", "2M")
    with pytest.raises(ModelError, match="LITEGPU_MEMORY_LIMIT"):
        found.read()


def test_members_do_not_overlap(tmp_path: Path) -> None:
    """Many entries of the directory that stand for the same bytes."""
    content = bytearray(archive({"a.task": archive({"m.tflite": model("ABS")})}))
    start = content.rindex(b"PK\x01\x02")
    end = content.rindex(b"PK\x05\x06")
    entry = bytes(content[start:end])
    directory = b"".join(entry.replace(b"a.task", b"%06d" % i) for i in range(50))
    ending = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 50, 50, len(directory), start, 0)
    path = tmp_path / "overlap.task"
    path.write_bytes(bytes(content[:start]) + directory + ending)
    with pytest.raises(ModelError, match=r"overlap|damaged"):
        list_models(path)


def test_other_compressions_are_named(tmp_path: Path) -> None:
    path = tmp_path / "other.task"
    for method in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        path.write_bytes(archive(MODELS, method))
        with pytest.raises(ModelError, match=f"compressed by method {method}"):
            list_models(path)


def test_damaged_bundles_give_models_or_model_errors(tmp_path: Path) -> None:
    nested = archive({"third.tflite": model("FLOOR")}, zipfile.ZIP_DEFLATED)
    whole = archive({**MODELS, "inner.task": nested}, zipfile.ZIP_DEFLATED)
    rng = random.Random(0)
    refused = 0
    for _ in range(600):
        content = bytearray(whole)
        for _ in range(rng.choice((1, 1, 2, 5))):
            content[rng.randrange(len(content))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.1:
            del content[rng.randrange(len(content)) :]
        path = tmp_path / "damaged.task"
        path.write_bytes(bytes(content))
        try:
            for found in list_models(path):
                found.read()
            Interpreter(model_path=f"{path}/first.tflite")
        except ModelError:
            refused += 1
    assert 50 < refused < 600


@pytest.mark.parametrize("depth, fits", [(4, True), (5, False)])
def test_how_deep_bundles_may_be_nested(tmp_path: Path, depth: int, fits: bool) -> None:
    content = model("ABS")
    for _ in range(depth):
        content = archive({"x.tflite": content})
    path = tmp_path / "deep.task"
    path.write_bytes(content)
    if fits:
        assert [m.name for m in list_models(path)] == ["/".join(["x.tflite"] * depth)]
        return
    with pytest.raises(ModelError, match="nested more than 4 deep"):
        list_models(path)


def test_members_whose_sizes_add_up_to_more_than_the_file(tmp_path: Path) -> None:
    """One member is listed twice: each fits into the file, both do not."""
    content = bytearray(archive({"a.tflite": model("ABS") + bytes(1000)}))
    start, end = content.rindex(b"PK\x01\x02"), content.rindex(b"PK\x05\x06")
    entry = bytes(content[start:end])
    ending = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 2, 2, 2 * len(entry), start, 0)
    path = tmp_path / "twice.task"
    path.write_bytes(bytes(content[:start]) + entry * 2 + ending)
    with pytest.raises(ModelError, match="its members overlap"):
        list_models(path)


def test_a_section_ends_within_the_file(tmp_path: Path) -> None:
    path = tmp_path / "chat.litertlm"
    whole = litertlm([(3, "a", model("ABS"))])
    path.write_bytes(whole)
    assert len(list_models(path)) == 1
    path.write_bytes(whole[:-1])
    with pytest.raises(ModelError, match="is cut off: a section is at bytes"):
        list_models(path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_encrypted_members_are_named(tmp_path: Path, compression: int) -> None:
    content = bytearray(archive({"only.tflite": model("ABS")}, compression))
    content[content.rindex(b"PK\x01\x02") + 8] |= 1
    path = tmp_path / "secret.task"
    path.write_bytes(bytes(content))
    with pytest.raises(ModelError, match=r"'only\.tflite' is encrypted, which is not supported"):
        list_models(path)


def test_stored_members_begin_behind_their_extra_field(tmp_path: Path) -> None:
    """Which tools fill so that models are aligned."""
    info = zipfile.ZipInfo("only.tflite")
    info.extra = struct.pack("<HH6s", 0xD935, 6, b"filled")
    path = tmp_path / "aligned.task"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr(info, model("ABS"))
    (found,) = list_models(path)
    assert bytes(found.read()) == model("ABS")
    assert run(path).tolist() == [1.5, 0, 2, 3]
