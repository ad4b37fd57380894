"""Flags of the official tools that have no meaning here, and what to use instead."""

from __future__ import annotations

from litegpu.delegates.elsewhere import ELSEWHERE

_PHONE = "it is for phones; use --use_gpu=true, or --external_delegate_path=openvino"
_CPU = "the CPU part is the official runtime's wheel, which leaves no choice here; --num_threads and --use_xnnpack do"
_MEMORY = "memory is planned by the runtime"
_PROFILE = "profiles have no fixed buffer"
_COMPILED = "of the official CompiledModel tool"

#: Asked to run on something that is not there: an error, since the figures would be those of something else.
DELEGATES = {
    **{
        f"use_{name}": f"{foreign.answer} (--use_gpu=true, --external_delegate_path=openvino)"
        for name, foreign in ELSEWHERE.items()
    },
    "use_ynnpack": "the wheel has no YNNPACK: use --use_xnnpack=true",
    "use_npu": "use --use_gpu=true, or for NPUs of Intel --external_delegate_path=openvino:NPU",
    "stable_delegate_settings_file": "the wheel loads no stable delegates: use --external_delegate_path",
}

#: Without effect: a warning.
TUNING = {
    "use_caching": _CPU,
    "allow_fp16": "it was NNAPI's; use --gpu_precision=float16",
    "gpu_invoke_loop_times": "use --num_runs; GPU time without the host is what --enable_op_profiling=true prints",
    "max_profiling_buffer_entries": _PROFILE,
    "allow_dynamic_profiling_buffer_increase": _PROFILE,
    "release_dynamic_tensors": _MEMORY,
    "optimize_memory_for_large_tensors": _MEMORY,
    "enable_builtin_cast_constant_cache": _CPU,
    "xnnpack_force_fp16": _CPU,
    "xnnpack_weight_cache_file_path": _CPU,
    "xnnpack_runtime_flags": _CPU,
    "ynnpack_static_shape": _CPU,
    "ynnpack_fast_math": _CPU,
    "ynnpack_consistent_arithmetic": _CPU,
    "ynnpack_no_excess_precision": _CPU,
    "nnapi_execution_preference": _PHONE,
    "nnapi_execution_priority": _PHONE,
    "nnapi_accelerator_name": _PHONE,
    "disable_nnapi_cpu": _PHONE,
    "nnapi_allow_fp16": _PHONE,
    "nnapi_allow_dynamic_dimensions": _PHONE,
    "nnapi_use_burst_mode": _PHONE,
    "nnapi_support_library_path": _PHONE,
    "hexagon_profiling": _PHONE,
    "hexagon_lib_path": _PHONE,
    "coreml_version": "use --use_gpu=true --gpu_backend=metal",
    "use_cpu": f"{_COMPILED}; the CPU always runs what the GPU does not; --require_full_delegation=true forbids it",
    "gpu_low_priority": f"{_COMPILED}; the GPU's driver has no such setting here",
    "enable_weight_sharing": f"{_COMPILED}; constants are always shared",
    "convert_weights_on_gpu": f"{_COMPILED}; weights are laid out on the CPU, once with --delegate_serialize_dir",
    "gpu_serialize_external_tensors": f"{_COMPILED}; use --delegate_serialize_dir",
    "gpu_prefer_texture_weights": f"{_COMPILED}; weights are in buffers",
    "gpu_wait_for_weights_conversion_complete": f"{_COMPILED}; that is always so",
    "gpu_cache_compiled_programs_only": f"{_COMPILED}; use --delegate_serialize_dir",
    "gpu_serialization_dir": f"{_COMPILED}; use --delegate_serialize_dir",
    "gpu_model_cache_key": f"{_COMPILED}; use --delegate_serialize_token",
    "use_profiler": f"{_COMPILED}; use --enable_op_profiling=true",
    "enable_perfetto": f"{_COMPILED}; use --trace=FILE",
    "dispatch_library_path": "there is no NPU delegate",
    "compiler_plugin_library_path": "there is no NPU delegate",
    "compiler_cache_path": "there is no NPU delegate",
}

KNOWN = {**DELEGATES, **TUNING}
