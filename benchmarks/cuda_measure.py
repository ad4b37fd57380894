"""What the CUDA benchmarks share: finding models, building programs, running and timing them, and their errors."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from litegpu.gpu.build import build_program
from litegpu.gpu.graph import DType, Graph
from litegpu.gpu.lower import lower_partition
from litegpu.gpu.program import Program
from litegpu.model import Model, read_model, with_batch
from litegpu.model.builder import ModelBuilder

#: Models that the documentation has figures of.
MODELS = (
    "mobilenet_v1_1.0_224_random",
    "deeplabv3_257_mv_gpu",
    "pose_detection",
    "face_landmark",
    "style_transfer_f16_384",
)
ROOT = Path(__file__).resolve().parents[1]


def find_models(names: Sequence[str] = MODELS) -> list[Path]:
    """Files for paths or names, the latter in the folder LITEGPU_MODELS or ../shared/models beside the repository.

    Raises FileNotFoundError for one that is not there.
    """
    folder = Path(os.environ.get("LITEGPU_MODELS", ROOT.parent / "shared" / "models"))
    found = []
    for name in names:
        places = (Path(name), folder / name, folder / f"{name}.tflite")
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            raise FileNotFoundError(f"no model {name!r}: give a path, or the name of a file in {folder}")
        found.append(path)
    return found


def small_model() -> bytes:
    """A network of a few microseconds: convolution 3x3, depthwise 3x3, 1x1, mean, fully connected, softmax."""
    rng = np.random.default_rng(0)
    builder = ModelBuilder()

    def weights(*shape: int) -> int:
        return builder.constant((rng.standard_normal(shape) * 0.3).astype(np.float32))

    window = {"stride_h": 1, "stride_w": 1, "padding": 0, "fused_activation_function": "RELU6"}
    x = builder.input("image", (1, 16, 16, 3))
    y = builder.op("CONV_2D", [x, weights(16, 3, 3, 3), weights(16)], (1, 16, 16, 16), window)
    options = {**window, "depth_multiplier": 1}
    y = builder.op("DEPTHWISE_CONV_2D", [y, weights(1, 3, 3, 16), weights(16)], (1, 16, 16, 16), options)
    y = builder.op("CONV_2D", [y, weights(24, 1, 1, 16), weights(24)], (1, 16, 16, 24), window)
    axes = builder.constant(np.array([1, 2], np.int32))
    y = builder.op("MEAN", [y, axes], (1, 24), {"keep_dims": False})
    y = builder.op("FULLY_CONNECTED", [y, weights(10, 24), weights(10)], (1, 10))
    builder.output(builder.op("SOFTMAX", [y], (1, 10), {"beta": 1.0}))
    return builder.build()


def lowered(path: Path, batch: int | None = None) -> tuple[Model, Graph]:
    """A model for a batch size (by default its own), and all of it as a GPU graph."""
    model = read_model(path.read_bytes())
    if batch is not None:
        model = with_batch(model, batch)
    main = model.main
    return model, lower_partition(main, main.operators, main.inputs, main.outputs).graph


def build(device: Any, graph: Graph, half: bool, tuning: str = "off") -> Program:
    return build_program(graph, device.features, device.target, half=half, tuner=device.tuner(tuning))


def reference(path: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Random inputs and the official runtime's outputs."""
    official = Interpreter(
        str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES, num_threads=4
    )
    official.allocate_tensors()
    rng = np.random.default_rng(0)
    inputs = []
    for detail in official.get_input_details():
        kind = np.dtype(detail["dtype"])
        values = rng.standard_normal(detail["shape"]) if kind.kind == "f" else rng.integers(0, 2, detail["shape"])
        inputs.append(np.ascontiguousarray(values.astype(kind)))
        official.set_tensor(detail["index"], inputs[-1])
    official.invoke()
    return inputs, [np.array(official.get_tensor(d["index"])) for d in official.get_output_details()]


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Relative L2; infinite if anything that should be a finite number is not."""
    got, want = got.astype(np.float64).ravel(), want.astype(np.float64).ravel()
    if not np.isfinite(got[np.isfinite(want)]).all():
        return float("inf")
    difference, size = (float(np.linalg.norm(np.nan_to_num(values))) for values in (got - want, want))
    return difference / max(size, 1e-30)


def output_arrays(program: Program) -> list[np.ndarray]:
    """Room for the outputs, flat."""
    return [np.empty(p.nbytes // 4, np.float32 if p.dtype is DType.FLOAT32 else np.int32) for p in program.outputs]


def write_all(session: Any, inputs: Sequence[np.ndarray]) -> None:
    for i, array in enumerate(inputs):
        session.write(i, array)


def read_all(session: Any, outputs: Sequence[np.ndarray]) -> None:
    for i, out in enumerate(outputs):
        session.read(i, out)


def infer(session: Any, program: Program, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The outputs, flat."""
    outputs = output_arrays(program)
    write_all(session, inputs)
    session.run()
    read_all(session, outputs)
    return outputs


def host_to_host(session: Any, program: Program, inputs: Sequence[np.ndarray], repeats: int) -> float:
    """The median seconds of write, run and read."""
    outputs = infer(session, program, inputs)

    def once() -> None:
        write_all(session, inputs)
        session.run()
        read_all(session, outputs)

    return median_seconds(once, repeats)


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def repeats_within(seconds: float, one: float, least: int = 5, most: int = 1000) -> int:
    """How often something that takes `one` second is repeated in about `seconds`."""
    return max(least, min(most, round(seconds / max(one, 1e-9))))
