"""litegpu analyze: what it says is the partitioner's, its times add up, and what it writes is what others read."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import require_gpu
from browser import Browser
from flatbuffers import flexbuffers
from pages import check_self_contained
from tools.analyze import networks
from tools.analyze.networks import Drawn, examined
from typer.testing import CliRunner

from litegpu import Interpreter, OptionError, read_model
from litegpu.choosing.predict import on_one_core
from litegpu.cli.application import app
from litegpu.delegates.report import CPU as ON_CPU
from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.model import write_model
from litegpu.model.costs import op_costs
from litegpu.tools.advise import advise
from litegpu.tools.analyze import Analysis, analyze, annotated, node_data, print_analysis, write_graph_page
from litegpu.tools.analyze import rates as known
from litegpu.tools.analyze.analysis_text import numbers
from litegpu.tools.analyze.annotated import METADATA
from litegpu.tools.analyze.measured import node_times
from litegpu.tools.analyze.rates import H200, DeviceRates
from litegpu.tools.benchmark.result import KernelRow, OpRow, PartRow, Profile
from litegpu.zoo import build_model


@pytest.fixture(scope="module")
def ssd() -> bytes:
    """With an op that the GPU does not take: boxes of an infinite scale."""
    model = read_model(build_model("ssd_mobilenet_v1", resolution=96, classes=5))
    *others, last = model.main.operators
    options = flexbuffers.Loads(last.custom_options) | dict(h_scale=math.inf)
    last = dataclasses.replace(last, custom_options=bytes(flexbuffers.Dumps(options)))
    main = dataclasses.replace(model.main, operators=(*others, last))
    return write_model(dataclasses.replace(model, subgraphs=(main,)))


@pytest.fixture(scope="module")
def analysis(ssd: bytes) -> Analysis:
    return analyze(ssd, rates="H200")


def test_reasons_are_the_partitioners(ssd: bytes, analysis: Analysis) -> None:
    with Interpreter(model_content=ssd, experimental_delegates=[GpuDelegate()], fallback="silent") as interpreter:
        preview = interpreter.preview_delegation()
        interpreter.allocate_tensors()
        made = interpreter.delegation_report()
    told = [(op.index, op.op, op.owner, op.partition, op.accepted, op.reason) for op in analysis.ops]
    for report in (preview, made, advise(ssd).coverages[0].report):
        assert report is not None
        assert told == [(n.index, n.op, n.owner, n.partition, n.accepted, n.reason) for n in report.nodes]
    assert {op.owner for op in analysis.ops} == {"GPU", ON_CPU} and any(op.reason for op in analysis.ops)


def test_other_delegates_are_asked_alone(numpy_delegate: Any, tmp_path: Path, capsys: Any) -> None:
    """What they say is what the partitioner says of each, and changes nothing else."""
    b = Drawn()
    b.output(b.op("RELU", [networks.plain(b)], (1, 8, 8, 8)))
    content = b.build()
    others = [numpy_delegate(), GpuDelegate(first_delegate_node_index=1)]
    asked, plain = analyze(content, rates="H200", others=others), analyze(content, rates="H200")
    for place, one in enumerate(others):
        with Interpreter(model_content=content, experimental_delegates=[one], fallback="silent") as interpreter:
            report = interpreter.preview_delegation()
        told = [(op.answers[place].taken, op.answers[place].accepted, op.answers[place].reason) for op in asked.ops]
        assert told == [(n.owner != ON_CPU, n.accepted, n.reason) for n in report.nodes]
        assert {op.answers[place].delegate for op in asked.ops} == {one.name}
    assert not asked.ops[0].answers[1].taken and asked.ops[0].owner == "GPU"
    assert asked.total == plain.total and [op.owner for op in asked.ops] == [op.owner for op in plain.ops]
    assert json.loads(json.dumps(asked.as_dict()))["ops"][0]["answers"][1]["reason"] == asked.ops[0].answers[1].reason
    print_analysis(asked)
    text = capsys.readouterr().out
    assert f"where  {others[0].name}  GPU " in text and "Left by GPU: " in text and "Asked alone: " in text
    page = tmp_path / "page.html"
    write_graph_page(asked, content, page)
    assert "would take it" in page.read_text() and f"{others[0].name} would take" in page.read_text()


def test_the_command_asks_delegates_by_name(ssd: bytes, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    (tmp_path / "m.tflite").write_bytes(ssd)
    done = CliRunner().invoke(app, ["analyze", str(tmp_path / "m.tflite"), "--rates=H200", "--delegate=openvino"])
    assert done.exit_code == 0 and "Left by OpenVINO: TFLite_Detection_PostProcess" in done.output, done.output
    assert CliRunner().invoke(app, ["analyze", str(tmp_path / "m.tflite"), "--delegate=nobody"]).exit_code != 0


def test_costs_are_those_of_the_model(ssd: bytes, analysis: Analysis) -> None:
    costs = op_costs(read_model(ssd).main)
    assert [(op.flops, op.bytes) for op in analysis.ops] == [(cost.flops, cost.bytes) for cost in costs]


def test_times_add_up(analysis: Analysis) -> None:
    moved = sum(c.seconds for c in analysis.crossings)
    assert analysis.total == pytest.approx(sum(op.estimated for op in analysis.ops) + moved)
    assert all(0 <= op.limit <= op.estimated for op in analysis.ops)
    assert all(op.share is None or 0 <= op.share <= 1 for op in analysis.ops)
    shared = {op.index: op.shared for op in analysis.ops}
    assert all(i in shared[other] for i, others in shared.items() for other in others), "sharing is mutual"


def test_the_share_of_the_limit_is_of_the_measured_time(analysis: Analysis) -> None:
    op = max(analysis.ops, key=lambda op: op.limit)
    assert op.share == pytest.approx(op.limit / op.estimated)
    assert dataclasses.replace(op, measured=4 * op.limit).share == pytest.approx(0.25)
    assert dataclasses.replace(op, measured=op.limit / 2).share == 1.0, "rates are not exact"


def test_a_kernel_takes_its_limit_and_a_launch() -> None:
    model = examined(networks.plain)
    first = model.times[0]
    flops, nbytes = 2 * 64 * 16 * 4, 4 * (64 * 4 + 16 * 4 + 16 + 64 * 16)
    assert first.limit == pytest.approx(max(flops / H200.float32, nbytes / H200.bandwidth))
    assert first.estimated == pytest.approx(first.limit + H200.launch) and first.bound == "memory"
    (crossing,) = model.crossings
    assert crossing.bytes == 4 * (64 * 4 + 64 * 8)
    assert crossing.seconds == pytest.approx(crossing.bytes / H200.link + H200.wait)


def test_float16_counts_half_of_the_bytes() -> None:
    whole, half = examined(networks.plain), examined(networks.plain, GpuDelegate(precision="float16"))
    assert half.half and half.times[0].limit == pytest.approx(whole.times[0].limit / 2)


def test_what_runs_on_the_cpu_is_estimated_alone() -> None:
    model = examined(networks.island, GpuDelegate(max_delegated_partitions=0))
    time, cost = model.times[1], model.costs[1]
    assert time.estimated == on_one_core(model.graph, 1, cost) > 0 and not time.shared
    assert (time.limit, time.bound) == (0.0, "")
    assert len(model.crossings) == 2


def test_a_view_takes_no_time() -> None:
    def build(b: Drawn) -> int:
        y = b.conv(b.input("x", (1, 8, 8, 4)), (1, 8, 8, 4), 8)
        return b.conv(b.reshape(y, 1, 4, 16, 8), (1, 4, 16, 8), 8)

    time = examined(build).times[1]
    assert time.estimated == time.limit == 0 and time.bound == ""


def test_a_measured_time_is_divided_as_the_estimates_are() -> None:
    model = examined(networks.activation)
    profile = Profile(
        (PartRow("GPU", (0, 1), 0.0, (3.0,)),), (KernelRow(0, "conv", (0, 1), (2.0,)),),
        (OpRow(("CONV_2D", "RELU"), (0, 1), 2.0, 1),),
    )  # fmt: skip
    times = node_times(profile, model)
    assert sum(times.values()) == pytest.approx(2e-3)
    assert times[0] / times[1] == pytest.approx(model.times[0].estimated / model.times[1].estimated)
    on_cpu = Profile((PartRow("CPU", (0, 1), 0.0, (4.0, 6.0)),), (), ())
    assert sum(node_times(on_cpu, model).values()) == pytest.approx(5e-3)


# ------------------------------------------------------------------------------------------------ rates


def test_the_roofline() -> None:
    rates = DeviceRates("d", 100.0, 400.0, 10.0, 0, 1, 0, "")
    assert rates.limit(1000, 50) == 10.0 and rates.bound(1000, 50) == "arithmetic"
    assert rates.limit(1000, 50, half=True) == 5.0 and rates.bound(1000, 50, half=True) == "memory"
    assert rates.limit(0, 0) == 0.0 and rates.bound(0, 0) == ""


@pytest.mark.parametrize(
    ("name", "rates"),
    [("NVIDIA H200", "H200"), ("NVIDIA A100-SXM4-80GB", "A100"), ("NVIDIA GeForce RTX 4090", "RTX 4090"),
     ("Apple M1", "M1"), ("llvmpipe (LLVM 15.0.6, 256 bits)", None), ("NVIDIA L40S", None)],
)  # fmt: skip
def test_devices_by_their_drivers_names(name: str, rates: str | None) -> None:
    found = known.of_device(name)
    assert (found.name if found else None) == rates


def test_stated_figures_say_so_and_unknown_ones_are_refused() -> None:
    assert known.named("h200") is H200 and "data sheet" in H200.source
    assert (H200.float32, H200.float16, H200.bandwidth) == (54e12, 790e12, 4.3e12)
    with pytest.raises(OptionError, match=r"abacus.*H200"):
        analyze(build_model("mobilenet_v1", width=0.25, resolution=32, classes=10), rates="abacus")


# ------------------------------------------------------------------------------------------------ what is shown


def test_text(analysis: Analysis, capsys: pytest.CaptureFixture[str]) -> None:
    print_analysis(analysis)
    out = capsys.readouterr().out
    reason = next(op.reason for op in analysis.ops if op.reason)
    assert reason in out and "H200" in out and "data sheet" in out and analysis.report.summary() in out
    for finding in analysis.findings:
        assert finding.advice in out and finding.how in out
    assert numbers((1,)) == "node 1" and numbers(tuple(range(8))) == "nodes 0, 1, 2, 3, 4, 5 and 2 more"


def test_json(analysis: Analysis) -> None:
    plain = json.loads(json.dumps(analysis.as_dict()))
    assert plain["rates"]["name"] == "H200" and plain["measured"] is None
    assert [op["index"] for op in plain["ops"]] == [op.index for op in analysis.ops]
    assert plain["ops"][0]["share"] == analysis.ops[0].share


def test_the_page_shows_every_node(ssd: bytes, analysis: Analysis, tmp_path: Path) -> None:
    write_graph_page(analysis, ssd, tmp_path / "page.html")
    check_self_contained((tmp_path / "page.html").read_text(), scripts=True)
    with Browser(tmp_path / "profile", 390, 844) as browser:
        browser.open(tmp_path / "page.html")
        assert browser.run("document.documentElement.scrollWidth") <= 390
        browser.run("document.querySelector('canvas').focus()")
        browser.press("0")
        assert browser.run("document.querySelector('canvas').view.visible") == len(analysis.ops)
        browser.press("End")
        facts = browser.run("document.querySelector('.facts').textContent")
        last = analysis.ops[-1]
        assert last.op in facts and (last.reason or "") in facts and ON_CPU in facts
        assert not browser.complaints


# ------------------------------------------------------------------------------------------------ for other viewers


def test_node_data_has_the_documented_form(ssd: bytes, analysis: Analysis) -> None:
    """Of "Custom node data" in Model Explorer's wiki: graph -> results by node, thresholds or gradient."""
    main = read_model(ssd).main
    (graph,) = json.loads(node_data(analysis, main)).items()
    name, data = graph
    assert name == (main.name or "main") and set(data) == {"name", "results", "gradient"}
    assert list(data["results"]) == [str(op.index) for op in analysis.ops]
    assert all(set(result) == {"value"} and result["value"] >= 0 for result in data["results"].values())
    assert [stop["stop"] for stop in data["gradient"]] == [0, 1]
    assert all(stop["bgColor"].startswith("#") for stop in data["gradient"])
    assert data["results"]["0"]["value"] == pytest.approx(1e6 * analysis.ops[0].estimated, abs=1e-4)


def test_model_explorer_loads_it(ssd: bytes, analysis: Analysis, tmp_path: Path) -> None:
    """By its own classes, and for the graph and the nodes that its adapter finds in the file."""
    builder = pytest.importorskip("model_explorer.node_data_builder", reason="ai-edge-model-explorer is large")
    dacite = pytest.importorskip("dacite")
    adapter = pytest.importorskip("model_explorer.builtin_tflite_flatbuffer_adapter")
    configuration = pytest.importorskip("model_explorer.config")

    (tmp_path / "m.tflite").write_bytes(ssd)
    (tmp_path / "d.json").write_text(node_data(analysis, read_model(ssd).main))
    plain = json.loads((tmp_path / "d.json").read_text())
    loaded = builder.ModelNodeData(
        {name: dacite.from_dict(builder.GraphNodeData, graph, dacite.Config(strict=True))
         for name, graph in plain.items()}
    )  # fmt: skip
    again = json.loads(loaded.to_json_string())
    assert {name: graph["results"] for name, graph in again.items()} == {n: g["results"] for n, g in plain.items()}
    config = configuration.ModelExplorerConfig()
    config.add_model_from_path(str(tmp_path / "m.tflite"))
    config.add_node_data("times", loaded)
    found = adapter.BuiltinTfliteFlatbufferAdapter().convert(str(tmp_path / "m.tflite"), {})
    collections = [dataclasses.asdict(collection) for collection in found["graphCollections"]]
    graphs = {graph["id"]: graph for collection in collections for graph in collection["graphs"]}
    for name, graph in plain.items():
        labels = {node["id"]: node["label"] for node in graphs[name]["nodes"]}
        for op in analysis.ops:
            assert labels[str(op.index)].lower().replace("_", "") == op.op.lower().replace("_", "")
        assert set(graph["results"]) <= set(labels)


def outputs(content: bytes, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    for detail, array in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], array)
    interpreter.invoke()
    return [np.array(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()]


def test_an_annotated_copy_tells_and_computes_the_same(ssd: bytes, analysis: Analysis) -> None:
    copy = annotated(analysis, ssd)
    before, after = read_model(ssd), read_model(copy)
    assert json.loads(bytes(after.metadata[METADATA]))["total"] == analysis.total
    outside = {*before.main.inputs, *before.main.outputs}
    for op in analysis.ops:
        for t in before.main.operators[op.index].outputs:
            old, new = before.main.tensors[t].name, after.main.tensors[t].name
            assert new == old if t in outside else new.startswith(f"{old} [{op.owner} {op.partition}, ")
    inner = [t for o in before.main.operators for t in o.outputs if t not in outside]
    assert inner and before.signatures == after.signatures
    image = np.random.default_rng(0).random(before.main.tensors[before.main.inputs[0]].shape, np.float32)
    for mine, theirs in zip(outputs(copy, [image]), outputs(ssd, [image]), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_measured_analysis(tmp_path: Path) -> None:
    require_gpu()
    model = tmp_path / "m.tflite"
    model.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=10))
    found: Any = analyze(model, delegate=GpuDelegate(backend="webgpu"), measure=True)
    assert found.device and found.measured > 0 and (found.rates.source.startswith("measured") or found.rates.name)
    if not found.notes:
        timed = [op for op in found.ops if op.measured]
        assert len(timed) >= 28 and sum(op.measured for op in timed) < 10 * found.measured
    assert node_data(found, read_model(model).main).count("measured us") == 1
