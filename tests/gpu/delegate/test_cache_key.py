"""The key of a cached program differs as soon as anything differs that the program depends on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_device import FakeDevice

from litegpu import GpuDelegateOptions, version
from litegpu.delegates.protocol import Partition
from litegpu.gpu.custom import registration
from litegpu.gpu.delegate import cache_key
from litegpu.gpu.lang.features import Features
from litegpu.model import read_model
from litegpu.model.builder import ModelBuilder

SHAPE = (1, 2, 3, 4)


def partition() -> Partition:
    b = ModelBuilder()
    x = b.input("x", SHAPE)
    y = b.op("ABS", [x], SHAPE)
    z = b.op("ADD", [y, b.constant(np.ones(4, np.float32))], SHAPE)
    b.output(y)
    b.output(z)
    model = read_model(b.build())
    outputs = tuple(model.main.outputs)
    return Partition(model, model.main, tuple(model.main.operators), tuple(model.main.inputs), outputs)


@dataclasses.dataclass
class Case:
    """What describe() is given."""

    part: Partition = dataclasses.field(default_factory=partition)
    device: FakeDevice = dataclasses.field(default_factory=FakeDevice)
    options: GpuDelegateOptions = dataclasses.field(default_factory=GpuDelegateOptions)
    half: bool = False
    ranges: dict[int, tuple[float, float]] = dataclasses.field(default_factory=dict)
    token: str = "token"

    def key(self) -> str:
        found = cache_key.describe(self.part, self.device, self.options, self.half, self.ranges, self.token)
        assert found is not None
        return str(found["key"])


def of_part(**changes: Any) -> Callable[[Case], None]:
    def change(case: Case) -> None:
        case.part = dataclasses.replace(case.part, **changes)

    return change


def of_tensor(index: int, **changes: Any) -> Callable[[Case], None]:
    def change(case: Case) -> None:
        graph = case.part.subgraph
        tensors = list(graph.tensors)
        tensors[index] = dataclasses.replace(tensors[index], **changes)
        case.part = dataclasses.replace(case.part, subgraph=dataclasses.replace(graph, tensors=tuple(tensors)))

    return change


def of(name: str, value: Any) -> Callable[[Case], None]:
    return lambda case: setattr(case, name, value)


def of_info(**changes: Any) -> Callable[[Case], None]:
    return lambda case: setattr(case.device, "info", dataclasses.replace(case.device.info, **changes))


CHANGES: dict[str, Callable[[Case], None]] = {
    "batch": of_tensor(0, shape=(7, *SHAPE[1:])),
    "inner shape": of_tensor(1, shape=(7, *SHAPE[1:])),
    "a node's place": lambda case: of_part(
        nodes=(dataclasses.replace(case.part.nodes[0], index=7), *case.part.nodes[1:])
    )(case),
    "a node's operand": lambda case: of_part(
        nodes=(case.part.nodes[0], dataclasses.replace(case.part.nodes[1], inputs=case.part.nodes[1].inputs[::-1]))
    )(case),
    "subgraph": lambda case: of_part(subgraph=dataclasses.replace(case.part.subgraph, index=1))(case),
    "length of the file": lambda case: of_part(model=dataclasses.replace(case.part.model, content=b"x"))(case),
    "nodes": lambda case: of_part(nodes=case.part.nodes[:1])(case),
    "outputs": lambda case: of_part(outputs=case.part.outputs[:1])(case),
    "inputs": of_part(inputs=()),
    "xnnpack": of_part(xnnpack=False),
    "half": of("half", True),
    "token": of("token", "another"),
    "ranges": of("ranges", {1: (0.0, 1.0)}),
    "other ranges": of("ranges", {1: (0.0, 2.0)}),
    "ranges of another tensor": of("ranges", {2: (0.0, 1.0)}),
    "auto": of("options", GpuDelegateOptions(precision="auto")),
    "quantization": of("options", GpuDelegateOptions(quantization_enabled=False)),
    "arithmetic": of("options", GpuDelegateOptions(arithmetic="integer")),
    "tuning fast": of("options", GpuDelegateOptions(tuning="fast")),
    "tuning full": of("options", GpuDelegateOptions(tuning="full")),
    "driver": of_info(driver="2.0"),
    "device": of_info(name="another"),
    "backend": of_info(backend="metal"),
    "features": lambda case: setattr(case.device, "features", Features(float16=True, compute_units=7)),
    "target": lambda case: setattr(case.device, "target", "cuda"),
    "overlap": lambda case: setattr(case.device, "way", True),
}


def test_all_keys_differ() -> None:
    keys = {"": Case().key()}
    for name, change in CHANGES.items():
        case = Case()
        change(case)
        keys[name] = case.key()
    same = {name: [other for other, key in keys.items() if key == own and other != name] for name, own in keys.items()}
    assert not any(same.values()), {name: others for name, others in same.items() if others}


def test_the_same_again_has_the_same_key() -> None:
    assert Case().key() == Case().key()


@pytest.mark.parametrize("options", [{"wait_type": "active"}, {"validation": True}, {"min_nodes_per_partition": 1}])
def test_what_does_not_matter_to_a_program(options: dict[str, Any]) -> None:
    case = Case()
    case.options = GpuDelegateOptions(**options)
    assert case.key() == Case().key()


def test_other_code_and_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Case().key()
    with monkeypatch.context() as patch:
        patch.setattr(version, "__version__", "9.9")
        assert Case().key() != before
    monkeypatch.setattr(cache_key, "code_stamp", lambda: "other files")
    assert Case().key() != before


def test_the_stamp_of_the_code(tmp_path, monkeypatch) -> None:
    """Names, sizes and times of all files of the folders that make programs."""
    folder = tmp_path / "litegpu"
    for part in ("delegates", "gpu/kernels", "model", "tools"):
        (folder / part).mkdir(parents=True)
        (folder / part / "one.py").write_text("x = 1\n")
    monkeypatch.setattr(version, "__file__", str(folder / "version.py"))
    stamp = cache_key.code_stamp.__wrapped__
    stamps = [stamp()]
    (folder / "tools" / "one.py").write_text("changed\n")
    assert stamp() == stamps[0]  # no program comes from there
    for part in ("delegates", "gpu/kernels", "model"):
        (folder / part / "one.py").write_text("x = 1 + 1\n")
        stamps.append(stamp())
    (folder / "gpu" / "kernels" / "new.cu").write_text("")
    stamps.append(stamp())
    assert len(set(stamps)) == 5


@pytest.mark.parametrize("size", [1, 5, 8, 9, 23, 24, 25])
def test_every_byte_of_a_model_counts(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of eight bytes here."""
    monkeypatch.setattr(cache_key, "_PIECE", 8)
    content = bytes(range(size))
    changed = [bytearray(content) for _ in content]
    for i, one in enumerate(changed):
        one[i] ^= 1
    found = {cache_key.fingerprint(memoryview(c)) for c in (content, content + b"\0", *map(bytes, changed))}
    assert len(found) == size + 2
    assert cache_key.fingerprint(content) == cache_key.fingerprint(memoryview(content))


def test_operators_of_the_user_s_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even beside others."""
    case = Case()
    monkeypatch.setattr(registration, "registered", lambda name: object() if name == "Mine" else None)
    for known in (True, False):
        custom = dataclasses.replace(case.part.nodes[0], name="Mine" if known else "Other", is_custom=True)
        part = dataclasses.replace(case.part, nodes=(custom, *case.part.nodes[1:]))
        found = cache_key.describe(part, case.device, case.options, False, {}, "token")
        assert (found is None) is known
