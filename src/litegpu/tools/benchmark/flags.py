"""The flags of `litegpu benchmark`: those of the official tool by name, and litegpu's own."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

from litegpu.errors import OptionError
from litegpu.gpu.backends import registry

#: Threads that call where none are given.
_CALLERS = 16
_MOST_CALLERS = 4096
_MOST_ARRIVALS = 1e6
#: Seconds between two runs, or configurations: longer ones are more than an operating system can sleep.
LONGEST_PAUSE = 1e6


def _flag(default: Any, label: str, meaning: str, kind: type | None = None) -> Any:
    metadata = {"label": label, "help": meaning, "kind": kind or type(default)}
    return dataclass_field(default=default, metadata=metadata)


@dataclass(frozen=True)
class BenchmarkFlags:
    """What `litegpu benchmark` is told. Names, types, defaults and meanings are those of the official tool unless the
    help says otherwise; the order is that of the parameter dump."""

    num_runs: int = _flag(50, "Min num runs", "timed runs wanted")
    min_secs: float = _flag(1.0, "Min runs duration (seconds)", "keep running at least so long")
    max_secs: float = _flag(150.0, "Max runs duration (seconds)", "start no further run after so long")
    run_delay: float = _flag(-1.0, "Inter-run delay (seconds)", "sleep after each run; 0 or less: none")
    run_frequency: float = _flag(
        -1.0, "Number of prorated runs per second", "above 0: runs per second, by a fixed schedule; overrides run_delay"
    )
    num_threads: int = _flag(-1, "Num threads", "CPU threads; -1: one")
    benchmark_name: str = _flag("", "Benchmark name", "only logged")
    output_prefix: str = _flag("", "Output prefix", "only logged")
    warmup_runs: int = _flag(1, "Min warmup runs", "warm-up runs wanted")
    warmup_min_secs: float = _flag(0.5, "Min warmup runs duration (seconds)", "keep warming up at least so long")
    dry_run: bool = _flag(False, "Run w/o invoking kernels", "load and prepare only")
    report_peak_memory_footprint: bool = _flag(
        False, "Report the peak memory footprint", "print the peak, and the resident set at the end"
    )
    memory_footprint_check_interval_ms: int = _flag(
        50, "Memory footprint check interval (ms)", "without effect: the kernel itself keeps the peak"
    )
    verbose: bool = _flag(False, "Log parameter values verbosely", "print every parameter")

    graph: str = _flag("", "Graph", "the .tflite file (required)")
    input_layer: str = _flag("", "Input layers", "names of all inputs, with commas between")
    input_layer_shape: str = _flag("", "Input shapes", "their shapes: 1,224,224,3:1,10")
    input_layer_value_range: str = _flag("", "Input value ranges", "name,low,high:name,low,high")
    input_layer_value_files: str = _flag("", "Input value files", "name:path,name:path; raw bytes")
    signature_to_run_for: str = _flag("", "Signature to run", "needed if the model has several")
    list_signatures: bool = _flag(False, "List signatures", "print the signatures' keys, and stop")
    require_full_delegation: bool = _flag(False, "Require full delegation", "fail unless the delegate takes every op")
    print_preinvoke_state: bool = _flag(
        False, "Print pre-invoke interpreter state", "tensors and nodes, before the warm-up"
    )
    print_postinvoke_state: bool = _flag(False, "Print post-invoke interpreter state", "the same, after the results")
    tensor_name_display_length: int = _flag(25, "Tensor name display length", "a column's width there")
    tensor_type_display_length: int = _flag(15, "Tensor type display length", "a column's width there")
    alloc_type_display_length: int = _flag(18, "Tensor allocation type display length", "a column's width there")
    disable_delegate_clustering: bool = _flag(
        False, "Disable delegate clustering", "keep the order of ops for the official runtime's delegates"
    )
    enable_op_profiling: bool = _flag(
        False, "Enable op profiling", "time each GPU kernel and each part, after the runs"
    )
    op_profiling_output_mode: str = _flag("stdout", "Op profiling output mode.", "stdout, csv, proto or json")
    op_profiling_output_file: str = _flag("", "Op profiling output file.", "its file; empty: standard output")
    profiling_output_csv_file: str = _flag("", "CSV File to export profiling data to", "as mode csv with this file")
    export_model_runtime_info: bool = _flag(
        False, "Enable Model Runtime Info Export", "write which node runs where, as a ModelRuntimeDetails message"
    )
    model_runtime_info_output_file: str = _flag("", "Proto File to export model runtime info to", "its file")
    output_filepath: str = _flag("", "File path to export outputs layer to", "raw bytes of all outputs")
    output_proto_filepath: str = _flag(
        "", "File path to export outputs layer as tf example to", "the outputs as a tf.Example message"
    )
    result_file_path: str = _flag(
        "", "File path to save the benchmark result in binary proto format", "the result as a BenchmarkResult message"
    )

    max_delegated_partitions: int = _flag(0, "Max number of delegated partitions", "0 means 1, as officially")
    min_nodes_per_partition: int = _flag(0, "Min nodes per partition", "the GPU's smaller partitions stay on the CPU")
    first_delegate_node_index: int = _flag(0, "Index of the first node that could be delegated", "to bisect a wrong op")
    last_delegate_node_index: int = _flag(
        sys.maxsize, "Index of the last node that could be delegated", "to bisect a wrong op"
    )
    delegate_serialize_dir: str = _flag(
        "", "Directory for delegate serialization", "keep compiled programs here; auto: in the user's cache folder"
    )
    delegate_serialize_token: str = _flag(
        "", "Model-specific token/key for delegate serialization.", "names the model there; by default its content does"
    )
    use_gpu: bool = _flag(False, "Use gpu", "run on the GPU what it can take; an error if there is none")
    gpu_precision_loss_allowed: bool = _flag(True, "Allow lower precision in gpu", "float16 where the GPU has it")
    gpu_precision: str = _flag("", "GPU precision", "float16, float32 or auto, in place of gpu_precision_loss_allowed")
    gpu_arithmetic: str = _flag("auto", "GPU arithmetic", "auto, float or integer: of 8-bit tensors")
    gpu_experimental_enable_quant: bool = _flag(
        True, "Enable quant in gpu delegate", "8-bit nodes too (officially moot)"
    )
    gpu_inference_for_sustained_speed: bool = _flag(
        False, "Prefer maximizing the throughput in gpu", "measure kernels while preparing"
    )
    gpu_backend: str = _flag("", "Force gpu backend", f"{registry.listed()}; empty: the best")
    gpu_wait_type: str = _flag("", "GPU delegate wait type", "passive, active, do_not_wait or aggressive")
    gpu_device: str = _flag("", "GPU device", "a part of its name, or its number with CUDA")
    gpu_tuning: str = _flag("off", "GPU tuning", "off, fast or full: measure kernels while preparing (CUDA)")
    use_xnnpack: bool | None = _flag(
        None, "Use xnnpack", "false: without XNNPACK on the CPU; true, or not given: with it", bool
    )
    external_delegate_path: str = _flag(
        "", "External delegate path", "a delegate's shared library, for the CPU's part, or its name: openvino"
    )
    external_delegate_options: str = _flag("", "External delegate options", "key:value;key:value")

    @property
    def pace(self) -> float:
        """Seconds between the starts of runs; 0: one after the other."""
        return 1 / self.run_frequency if self.run_frequency > 0 else 0.0


@dataclass(frozen=True)
class ReportFlags:
    """What else is to be measured and written; litegpu's own, but for the last three."""

    compare: str = _flag("", "Configurations to compare", "cpu,gpu,gpu:precision=float32: interleaved runs, and ratios")
    batch_sizes: str = _flag("", "Batch sizes", "1,4,16: each in turn")
    json: bool = _flag(False, "JSON", "print one JSON object instead of the log")
    html: str = _flag("", "HTML file", "write a report as one file")
    plot: str = _flag("", "Folder of plots", "write the plots as PNG into this folder")
    trace: str = _flag("", "Trace file", "write a trace for Perfetto and chrome://tracing; implies enable_op_profiling")
    perf_options_list: str = _flag(
        "", "Performance options", "all, cpu, gpu or none: the official tool's set of configurations, and its summary"
    )
    option_benchmark_run_delay: float = _flag(-1.0, "Pause between configurations (s)", "0 or less: none")
    random_shuffle_benchmark_runs: bool = _flag(True, "Shuffle configurations", "in every round; false: in turn")

    def check(self) -> None:
        """Raises OptionError for a pause that is none."""
        if self.option_benchmark_run_delay > LONGEST_PAUSE:
            delay = self.option_benchmark_run_delay
            raise OptionError(f"--option_benchmark_run_delay={delay:g} would wait for more than {LONGEST_PAUSE:g} s")


@dataclass(frozen=True)
class LoadFlags:
    """How many callers there are at once; litegpu's own."""

    threads_concurrent: int = _flag(
        0, "Callers", "so many threads call the model, each again as soon as it is answered"
    )
    streams: int = _flag(0, "Inferences in flight", "one thread keeps so many inferences in flight (model.stream)")
    arrival_rate: float = _flag(
        0.0, "Arrivals per second", "calls arrive at random (Poisson), whether earlier ones are answered or not"
    )
    batcher: bool = _flag(False, "Batcher", "calls go through model.batcher()")
    max_batch: int = _flag(64, "Rows of a batch", "of the batcher")
    max_delay_ms: float = _flag(2.0, "Longest wait for others (ms)", "of the batcher")

    @property
    def is_asked(self) -> bool:
        """Whether there is to be any load."""
        return bool(self.threads_concurrent or self.streams or self.arrival_rate or self.batcher)

    @property
    def callers(self) -> int:
        """Threads that call; 0 where calls are submitted."""
        if self.streams or (self.arrival_rate and self.batcher):
            return 0
        return self.threads_concurrent or _CALLERS

    @property
    def mode(self) -> str:
        return "open loop" if self.arrival_rate else "stream" if self.streams else "closed loop"

    def check(self) -> None:
        """Raises OptionError for what does not fit together."""
        for name in ("threads_concurrent", "streams"):
            if not 0 <= getattr(self, name) <= _MOST_CALLERS:
                raise OptionError(f"--{name} is {getattr(self, name)}; it must be from 1 to {_MOST_CALLERS}")
        if not 0 <= self.arrival_rate <= _MOST_ARRIVALS:
            raise OptionError(
                f"--arrival_rate is {self.arrival_rate:g}; it must be above 0, at most {_MOST_ARRIVALS:g}"
            )
        if self.streams and (self.threads_concurrent or self.arrival_rate or self.batcher):
            raise OptionError(
                "--streams is one caller with several inferences in flight: leave out --threads_concurrent, "
                "--arrival_rate and --batcher"
            )
        if self.batcher and self.arrival_rate and self.threads_concurrent:
            raise OptionError(
                "arrivals are submitted to a batcher, not called by threads: leave out --threads_concurrent"
            )
