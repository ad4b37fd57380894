"""The benchmark's flags: those of the official tool that have an effect, those that are answered, and signatures."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from agreement import require_gpu
from fake_device import FakeDevice

import litegpu
from litegpu.errors import DelegateError, DeviceError, InvokeError, OptionError
from litegpu.gpu.backends import registry
from litegpu.model.builder import ModelBuilder
from litegpu.tools.benchmark import BenchmarkFlags, main
from litegpu.tools.benchmark.answers import KNOWN
from litegpu.tools.benchmark.delegates import gpu_delegate
from litegpu.tools.benchmark.energy import EnergyWatch, meter_of
from litegpu.tools.benchmark.flags import LoadFlags, ReportFlags
from litegpu.tools.benchmark.opening import open_model
from litegpu.tools.benchmark.parse import parse_flags, usage
from litegpu.zoo import build_model

QUICK: dict[str, Any] = {"num_runs": 2, "min_secs": 0.0, "warmup_min_secs": 0.0}
ARGUMENTS = [f"--{name}={value}" for name, value in QUICK.items()]

#: Every flag of the official tool, and of its sister for compiled models.
OFFICIAL = """
graph num_threads num_runs min_secs max_secs run_delay run_frequency warmup_runs warmup_min_secs use_caching
benchmark_name output_prefix verbose dry_run report_peak_memory_footprint memory_footprint_check_interval_ms
gpu_invoke_loop_times signature_to_run_for list_signatures input_layer input_layer_shape input_layer_value_range
input_layer_value_files allow_fp16 require_full_delegation enable_op_profiling op_profiling_output_mode
op_profiling_output_file profiling_output_csv_file max_profiling_buffer_entries allow_dynamic_profiling_buffer_increase
export_model_runtime_info model_runtime_info_output_file print_preinvoke_state print_postinvoke_state
tensor_name_display_length tensor_type_display_length alloc_type_display_length release_dynamic_tensors
optimize_memory_for_large_tensors disable_delegate_clustering enable_builtin_cast_constant_cache output_filepath
output_proto_filepath result_file_path max_delegated_partitions min_nodes_per_partition first_delegate_node_index
last_delegate_node_index delegate_serialize_dir delegate_serialize_token use_gpu gpu_precision_loss_allowed
gpu_experimental_enable_quant gpu_inference_for_sustained_speed gpu_backend gpu_wait_type use_xnnpack xnnpack_force_fp16
xnnpack_weight_cache_file_path xnnpack_runtime_flags use_ynnpack ynnpack_static_shape ynnpack_fast_math
ynnpack_consistent_arithmetic ynnpack_no_excess_precision use_nnapi nnapi_execution_preference nnapi_execution_priority
nnapi_accelerator_name disable_nnapi_cpu nnapi_allow_fp16 nnapi_allow_dynamic_dimensions nnapi_use_burst_mode
nnapi_support_library_path use_hexagon hexagon_profiling hexagon_lib_path use_coreml coreml_version
external_delegate_path external_delegate_options stable_delegate_settings_file perf_options_list
option_benchmark_run_delay random_shuffle_benchmark_runs use_cpu use_npu gpu_precision gpu_low_priority
enable_weight_sharing convert_weights_on_gpu gpu_serialize_external_tensors gpu_prefer_texture_weights
gpu_wait_for_weights_conversion_complete gpu_cache_compiled_programs_only gpu_serialization_dir gpu_model_cache_key
use_profiler enable_perfetto dispatch_library_path compiler_plugin_library_path compiler_cache_path
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("flags") / "m.tflite"
    path.write_bytes(build_model("mobilenet_v1", width=0.25, resolution=32, classes=10))
    return str(path)


@pytest.fixture(scope="module")
def signatures(tmp_path_factory: pytest.TempPathFactory) -> str:
    b = ModelBuilder()
    x = b.input("x", (1, 4))
    y = b.op("RELU", [x], (1, 4))
    b.output(y)
    b.signature("first", {"x": x}, {"y": y})
    other = b.subgraph("other")
    z = other.input("z", (1, 8))
    w = other.op("RELU", [z], (1, 8))
    other.output(w)
    b.signature("second", {"z": z}, {"w": w}, other)
    path = tmp_path_factory.mktemp("signatures") / "two.tflite"
    path.write_bytes(b.build())
    return str(path)


def test_every_official_flag_has_an_effect_or_an_answer() -> None:
    ours = {f.name for kind in (BenchmarkFlags, LoadFlags, ReportFlags) for f in dataclasses.fields(kind)}
    assert [name for name in OFFICIAL.split() if name not in ours and name not in KNOWN] == []
    assert not ours & set(KNOWN)
    text = usage()
    assert all(f"--{name}=" in text for name in ours)


def test_flags_without_effect_are_answered(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--allow_fp16=true", "--use_nnapi=false", "--enable_perfetto=true", "--gpu_backend=cuda"]
    assert main([f"--graph={graph}", *ARGUMENTS, *asked]) == 0
    text = capsys.readouterr().out
    assert "WARN: --allow_fp16 has no effect: it was NNAPI's; use --gpu_precision=float16" in text
    assert "WARN: --enable_perfetto has no effect" in text and "use --trace=FILE" in text
    assert "WARN: --gpu_backend has no effect without --use_gpu=true" in text
    assert "Unconsumed" not in text


@pytest.mark.parametrize("flag", ["use_nnapi", "use_hexagon", "use_coreml", "use_ynnpack", "use_npu"])
def test_a_delegate_that_is_not_there_is_an_error(flag: str) -> None:
    with pytest.raises(OptionError, match=f"--{flag}=true cannot be had: .*--use_"):
        parse_flags(["--graph=m", f"--{flag}=true"])


def test_hyphens_and_a_bare_model_are_understood() -> None:
    line = parse_flags(["model.tflite", "--gpu-precision=fp16", "--use-gpu", "more"])
    assert line.flags == BenchmarkFlags(graph="model.tflite", gpu_precision="fp16", use_gpu=True)
    assert line.unknown == ("more",)
    assert parse_flags(["--odd", "5", "--graph=m"]).flags.graph == "m"


def test_flags_become_options_of_the_delegate(tmp_path: Path) -> None:
    def options(**flags: Any) -> litegpu.GpuDelegateOptions:
        return gpu_delegate(BenchmarkFlags(graph="m", **flags)).options

    plain = options()
    assert plain.half and plain.max_delegated_partitions == 1 and plain.wait_type is litegpu.WaitType.PASSIVE
    assert not options(gpu_precision_loss_allowed=False).half
    assert options(gpu_precision="auto").precision == "auto"
    assert options(gpu_precision="fp32").precision == "float32"
    assert options(gpu_wait_type="active").wait_type is litegpu.WaitType.ACTIVE
    assert options(gpu_inference_for_sustained_speed=True).tuning_level == "fast"
    assert options(gpu_backend="opengl").backend == "gl"
    cached = options(delegate_serialize_dir=str(tmp_path), delegate_serialize_token="t")
    assert cached.serialization_dir == str(tmp_path) and cached.model_token == "t"
    for wrong, message in (
        ({"gpu_precision": "half"}, "gpu_precision"),
        ({"gpu_backend": "cl"}, "no OpenCL"),
        ({"gpu_wait_type": "never"}, "gpu_wait_type"),
        ({"delegate_serialize_token": "t"}, "delegate_serialize_dir"),
    ):
        with pytest.raises(OptionError, match=message):
            options(**wrong)


def test_xnnpack_can_be_asked_for_and_done_without(graph: str) -> None:
    def delegates(use: bool | None) -> tuple[tuple[str, int, bool], ...]:
        opened = open_model(BenchmarkFlags(graph=graph, use_xnnpack=use))
        opened.close()
        return opened.delegates

    assert delegates(True) == (("XNNPACK", 1, True),)
    assert delegates(False) == delegates(None) == ()


def test_require_full_delegation_counts_xnnpack(graph: str) -> None:
    litegpu.benchmark(graph, use_xnnpack=True, require_full_delegation=True, **QUICK)
    with pytest.raises(DelegateError, match="Disallowed CPU fallback"):
        litegpu.benchmark(graph, require_full_delegation=True, **QUICK)


def test_signatures_are_listed_and_chosen(signatures: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([f"--graph={signatures}", "--list_signatures=true"]) == 0
    assert capsys.readouterr().out == (
        "The Model contains 2 signature key(s).\n-> Signature Key: first\n-> Signature Key: second\n"
    )
    with pytest.raises(OptionError, match="one of first, second"):
        litegpu.benchmark(signatures, **QUICK)
    with pytest.raises(OptionError, match="third is not in the model"):
        litegpu.benchmark(signatures, signature_to_run_for="third", **QUICK)
    sizes = {}
    for key in ("first", "second"):
        result = litegpu.benchmark(signatures, signature_to_run_for=key, **QUICK)
        assert result.inference.count == 2
        sizes[key] = result.input_bytes
    assert sizes == {"first": 16, "second": 32}


def test_outputs_of_a_signature_are_written(signatures: str, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    litegpu.benchmark(signatures, signature_to_run_for="second", output_filepath=raw, **QUICK)
    assert raw.stat().st_size == 32


def test_a_delegate_s_library_that_is_missing_is_named(graph: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no such file"):
        litegpu.benchmark(graph, external_delegate_path=tmp_path / "x.so", **QUICK)
    with pytest.raises(OptionError, match="not key:value"):
        litegpu.benchmark(graph, external_delegate_path="x.so", external_delegate_options="odd", **QUICK)


def test_a_batch_that_the_model_does_not_take_comes_with_advice(graph: str) -> None:
    with pytest.raises(InvokeError, match="made by --batch_sizes"):
        litegpu.benchmark(graph, input_layer="input", input_layer_shape="2,32,32,3", use_xnnpack=False, **QUICK)


def test_keyword_arguments_are_checked(graph: str) -> None:
    with pytest.raises(OptionError, match=r"no flag num_run .*num_runs"):
        litegpu.benchmark(graph, num_run=3)
    with pytest.raises(OptionError, match="type int"):
        litegpu.benchmark(graph, num_runs=2.5)
    result = litegpu.benchmark(Path(graph), num_runs=2, min_secs=0, warmup_min_secs=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.label = "x"  # type: ignore[misc]


def test_a_cache_makes_the_second_start_quicker(graph: str, tmp_path: Path) -> None:
    require_gpu()
    flags = {"use_gpu": True, "delegate_serialize_dir": tmp_path / "cache", **QUICK}
    first, second = (litegpu.benchmark(graph, **flags) for _ in range(2))
    assert any((tmp_path / "cache").rglob("*"))
    assert second.startup.build < first.startup.build


class Meter:
    """A device of 100 W, with a counter of energy or without."""

    source = "the test"

    def __init__(self, counts: bool) -> None:
        self.counts, self.asked = counts, 0

    def millijoules(self) -> int | None:
        self.asked += 1
        return 50_000 * self.asked if self.counts else None

    def milliwatts(self) -> int | None:
        return 100_000


@pytest.mark.parametrize("counts", [True, False])
def test_energy_is_counted_or_sampled(counts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    from litegpu.tools.benchmark import energy

    monkeypatch.setattr(energy, "SHORTEST_SECONDS", 0.1)
    with EnergyWatch(Meter(counts)) as watch:
        time.sleep(0.15)
    found, note = watch.energy(10)
    assert found is not None and note == ""
    if counts:
        assert found.joules == 50 and found.per_inference == 5 and found.source == "the test's counter"
    else:
        assert found.watts == pytest.approx(100) and found.per_inference == pytest.approx(100 * found.seconds / 10)
    with EnergyWatch(Meter(counts)) as watch:
        pass
    assert watch.energy(10) == (None, "the runs were too short to measure energy: less than 0.1 s")
    with EnergyWatch(None) as watch:
        pass
    assert watch.energy(10)[0] is None


def test_what_reports_no_power_is_told(graph: str) -> None:
    assert meter_of(None) == (None, "energy is measured of NVIDIA GPUs only, not of the CPU")
    result = litegpu.benchmark(graph, **QUICK)
    assert result.energy is None and "NVIDIA" in result.energy_note
    found, note = meter_of(FakeDevice())
    assert found is None and note == "fake does not report power: only NVIDIA's driver is asked"


def test_a_backend_that_tells_nothing_of_its_device_is_measured_all_the_same(tmp_path: Path) -> None:
    """The reference: no power, no free memory, no buffers of the user's."""
    b = ModelBuilder()
    x = b.input("x", (1, 2, 2, 4))
    b.output(b.op("ABS", [x], (1, 2, 2, 4)))
    path = tmp_path / "abs.tflite"
    path.write_bytes(b.build())
    result = litegpu.benchmark(str(path), **QUICK, use_gpu=True, gpu_backend="reference")
    assert result.device == "NumPy (reference)" and len(result.inference.seconds) == QUICK["num_runs"]
    assert result.memory.device_used is None and result.memory.device > 0
    assert result.energy is None and "NumPy does not report power" in result.energy_note


def test_the_first_backend_that_knows_a_device_s_power_measures_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Knows:
        def power_meter(self, device: object) -> Meter:
            return Meter(True)

    class KnowsNot:
        def power_meter(self, device: object) -> Meter:
            raise DeviceError("not mine")

    def found(*backends: object) -> tuple[object, str]:
        monkeypatch.setattr(registry, "every", lambda: [("x", backend) for backend in backends])
        return meter_of(FakeDevice())

    assert isinstance(found(object(), KnowsNot(), Knows())[0], Meter)
    assert found(object(), KnowsNot()) == (None, "not mine")
    assert found(object()) == (None, "no backend knows of its power")
