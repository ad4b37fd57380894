"""The GPU delegate's options: defaults, spellings, and what is refused."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

import litegpu
from litegpu import (
    ExperimentalFlags,
    GpuDelegate,
    GpuDelegateOptions,
    InferencePreference,
    InferencePriority,
    OptionError,
    WaitType,
)

AUTO, PRECISION, LATENCY, MEMORY = InferencePriority


def test_defaults_are_those_of_the_original() -> None:
    options = GpuDelegateOptions()
    assert GpuDelegate().options == options == GpuDelegate(GpuDelegateOptions()).options
    assert not options.precision_loss_allowed and options.quantization_enabled
    assert options.wait_type is WaitType.PASSIVE
    assert options.inference_preference is InferencePreference.FAST_SINGLE_ANSWER
    assert options.priorities == (PRECISION, AUTO, AUTO)
    assert options.experimental_flags == ExperimentalFlags.ENABLE_QUANT
    assert options.max_delegated_partitions == 1 and not options.validation
    assert not options.half and options.quantization and options.tuning_level == "off"
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.backend = "gl"  # type: ignore[misc]
    for field in dataclasses.fields(options):
        assert f"{field.name}=" in repr(GpuDelegate())


def test_members_may_be_given_by_name_or_value() -> None:
    for spelling in (WaitType.ACTIVE, "active", "ACTIVE"):
        assert GpuDelegateOptions(wait_type=spelling).wait_type is WaitType.ACTIVE  # type: ignore[arg-type]
    assert GpuDelegateOptions(inference_priority1=2).inference_priority1 is LATENCY  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="wait_type is 'lazy'; it must be one of PASSIVE, ACTIVE"):
        GpuDelegateOptions(wait_type="lazy")  # type: ignore[arg-type]


@pytest.mark.parametrize("priorities, half", [
    ((PRECISION, AUTO, AUTO), False), ((PRECISION, LATENCY, MEMORY), False), ((PRECISION, LATENCY, AUTO), False),
    ((LATENCY, AUTO, AUTO), True), ((LATENCY, PRECISION, AUTO), True), ((MEMORY, LATENCY, PRECISION), True),
])  # fmt: skip
def test_priorities(priorities, half: bool) -> None:
    first, second, third = priorities
    options = GpuDelegateOptions(inference_priority1=first, inference_priority2=second, inference_priority3=third)
    assert options.half is half
    assert dataclasses.replace(options, precision_loss_allowed=True).half


@pytest.mark.parametrize("priorities", [
    (AUTO, AUTO, AUTO), (AUTO, LATENCY, AUTO), (PRECISION, AUTO, LATENCY), (LATENCY, LATENCY, AUTO),
    (PRECISION, LATENCY, PRECISION),
])  # fmt: skip
def test_impossible_priorities(priorities) -> None:
    first, second, third = priorities
    with pytest.raises(OptionError, match="are invalid"):
        GpuDelegateOptions(inference_priority1=first, inference_priority2=second, inference_priority3=third)


def test_flags() -> None:
    assert not GpuDelegateOptions(experimental_flags=ExperimentalFlags.NONE).quantization
    assert not GpuDelegateOptions(quantization_enabled=False).quantization
    gl = ExperimentalFlags.GL_ONLY | ExperimentalFlags.ENABLE_QUANT
    assert GpuDelegateOptions(experimental_flags=gl).chosen_backend == "gl"
    with pytest.raises(OptionError, match="no OpenCL backend"):
        GpuDelegateOptions(experimental_flags=ExperimentalFlags.CL_ONLY)
    with pytest.raises(OptionError, match="GL_ONLY, but backend is 'cuda'"):
        GpuDelegateOptions(experimental_flags=gl, backend="cuda")


def test_preference() -> None:
    sustained = GpuDelegateOptions(inference_preference=InferencePreference.SUSTAINED_SPEED)
    assert sustained.tuning_level == "fast"
    assert dataclasses.replace(sustained, tuning="full").tuning_level == "full"


@pytest.mark.parametrize("name", ["fallback", "num_threads"])
def test_what_a_model_is_opened_with_is_no_option(name: str) -> None:
    with pytest.raises(OptionError, match=f"'{name}': it is an argument of litegpu.Interpreter and litegpu.load"):
        GpuDelegate(None, **{name: "strict"})
    for opens in (litegpu.Interpreter, litegpu.load):
        assert name in inspect.signature(opens).parameters


def test_unknown_names_are_refused_with_the_nearest_one() -> None:
    with pytest.raises(OptionError, match="no option 'wait_typ': did you mean 'wait_type'"):
        GpuDelegate(wait_typ="active")
    for bad in ({"backend": "opencl"}, {"tuning": "some"}, {"max_delegated_partitions": -1}):
        with pytest.raises(OptionError):
            GpuDelegate(**bad)


@pytest.mark.parametrize("precision", [None, "float32", "float16", "auto"])
@pytest.mark.parametrize("priorities", [(PRECISION, AUTO, AUTO), (LATENCY, AUTO, AUTO)])
@pytest.mark.parametrize("loss", [False, True])
def test_precision_by_name_outweighs_the_rest(precision: str | None, priorities, loss: bool) -> None:
    given = dict(precision=precision, precision_loss_allowed=loss, inference_priority1=priorities[0])
    if precision == "float32" and loss:
        with pytest.raises(OptionError, match="precision is 'float32', but precision_loss_allowed is True"):
            GpuDelegateOptions(**given)
        return
    wanted = {None: loss or priorities[0] is LATENCY, "float32": False}.get(precision, True)
    assert GpuDelegateOptions(**given).half is wanted


@pytest.mark.parametrize("quantization, flag", [(a, b) for a in (False, True) for b in (False, True)])
def test_quantization_needs_both(quantization: bool, flag: bool) -> None:
    flags = ExperimentalFlags.ENABLE_QUANT if flag else ExperimentalFlags.NONE
    options = GpuDelegateOptions(quantization_enabled=quantization, experimental_flags=flags)
    assert options.quantization is (quantization and flag)


@pytest.mark.parametrize("tuning", ["off", "fast", "full"])
@pytest.mark.parametrize("preference", list(InferencePreference))
def test_what_the_tuner_is_asked_for(tuning: str, preference: InferencePreference) -> None:
    sustained = preference is InferencePreference.SUSTAINED_SPEED and tuning == "off"
    options = GpuDelegateOptions(tuning=tuning, inference_preference=preference)
    assert options.tuning_level == ("fast" if sustained else tuning)


SAVED = ExperimentalFlags.ENABLE_SERIALIZATION
CONTRADICTIONS: dict[str, tuple[dict[str, object], str]] = {
    **{f"calibration in {precision}": (dict(calibration=[], precision=precision), "calibration is for precision='auto'")
       for precision in (None, "float32", "float16")},
    "a token without a cache": (dict(model_token="m"), "model_token names a model in a cache"),
    "an empty token": (dict(model_token="", serialization_dir="d"), "model_token is ''"),
    "serialization into nothing": (dict(experimental_flags=SAVED), "there is no serialization_dir"),
    "a precision that is none": (dict(precision="float64"), "precision 'float64' is unknown"),
    "a tuning that is none": (dict(tuning="some"), "tuning 'some' is unknown"),
    "a backend that is none": (dict(backend="opencl"), "backend 'opencl' is unknown"),
    **{f"{name} below 0": ({name: -1}, f"{name} is -1; it must be 0 or more") for name in
       ("max_delegated_partitions", "min_nodes_per_partition", "first_delegate_node_index")},
    **{f"GL_ONLY on {backend}": (dict(experimental_flags=ExperimentalFlags.GL_ONLY, backend=backend), "GL_ONLY, but")
       for backend in ("cuda", "vulkan", "metal", "d3d12")},
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions(name: str) -> None:
    values, words = CONTRADICTIONS[name]
    with pytest.raises(OptionError, match=words):
        GpuDelegateOptions(**values)  # type: ignore[arg-type]


def test_what_goes_together() -> None:
    GpuDelegateOptions(calibration=[], precision="auto")
    GpuDelegateOptions(model_token="m", serialization_dir="d", experimental_flags=SAVED)
    for backend in ("auto", "webgpu", "gl"):
        assert GpuDelegateOptions(experimental_flags=ExperimentalFlags.GL_ONLY, backend=backend).chosen_backend == "gl"
