"""Where a model that chooses (by max pooling with argmax, ARG_MAX ...) first differs from the CPU, and whether that is
anything but rounding.

    python benchmarks/near_ties.py MODEL [--backend cuda] [--precision float32] [--seeds 3] [--images FOLDER]

For each input (made up from several distributions, constant, and pictures scaled to 0..1 and to -1..1), in the whole
model as it runs otherwise: the first op whose float result is more than 1e-6, 1e-5 and 1e-4 from the CPU's (relative
L2), and each op of the GPU with whole numbers as its result that differ: how many; how far the CPU's own values of the
two candidates lie apart, over the largest value; and how many of the choices follow from the GPU's own input. Then the
error of the outputs as they are, and of the model whose choices are given the CPU's: what is left of the error is not
due to choices.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import OpResolverType

import litegpu
from litegpu.delegates.report import CPU
from litegpu.gpu.delegate.options import GpuDelegateOptions
from litegpu.model import read_model
from litegpu.model.cut import cut
from litegpu.model.types import Model, Operator, TensorType
from litegpu.tools.inference_diff import surgery
from litegpu.tools.inference_diff.difference_inputs import Feed, gaussian_feeds
from litegpu.tools.inference_diff.fusion import kernels_of
from litegpu.tools.inference_diff.recording import RecordingDelegate, Staging

Values = dict[int, np.ndarray]
_LIMITS = (1e-6, 1e-5, 1e-4)
_WHOLE = (TensorType.INT32, TensorType.INT64)
_POOLS = ("MaxPoolingWithArgmax2D",)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=Path)
    args = parser.parse_args()
    options = GpuDelegateOptions(backend=args.backend, precision=args.precision)
    model = read_model(args.model.read_bytes())
    with contextlib.closing(litegpu.Interpreter(model_content=bytes(model.content))) as interpreter:
        details = interpreter.get_input_details()
    print(f"{args.model.name}, {args.precision}, on {RecordingDelegate(options).device[0]}")
    for name, feed in feeds(details, model, args.seeds, args.images):
        print(f"-- {name}")
        examine(model, options, feed)


def feeds(
    details: Sequence[Mapping[str, Any]], model: Model, seeds: int, images: Path | None
) -> Iterator[tuple[str, Feed]]:
    shapes = [tuple(d["shape"]) for d in details]

    def of(make: Callable[[tuple[int, ...]], np.ndarray]) -> Feed:
        return [make(shape).astype(np.float32) for shape in shapes]

    for seed, feed in enumerate(gaussian_feeds(details, model.main, seeds, 0)):
        yield f"as inference-diff's, {seed}", feed
    for seed in range(seeds):
        random = np.random.default_rng(seed)
        yield f"normal, {seed}", of(random.standard_normal)
        yield f"uniform in 0..1, {seed}", of(random.random)
    for number in (0.0, 0.5, 1.0):
        yield f"constant {number}", of(partial(np.full, fill_value=number))
    for path in sorted(images.glob("*.jpg")) if images else []:
        from PIL import Image

        for low in (0.0, -1.0):

            def picture(shape: tuple[int, ...], path: Path = path, low: float = low) -> np.ndarray:
                found = np.zeros(shape)
                whole = Image.open(path).convert("RGB").resize((shape[2], shape[1]))
                found[..., :3] = np.asarray(whole) / 255.0 * (1 - low) + low
                return found

            yield f"{path.name}, from {low} on", of(picture)


def examine(model: Model, options: GpuDelegateOptions, feed: Feed) -> None:
    main = model.main
    delegate = RecordingDelegate(options)
    plain = run(bytes(model.content), feed, main.outputs, delegate)
    on_gpu = {o.index for o, told in zip(main.operators, plain.report.nodes, strict=True) if told.owner != CPU}
    kernels = kernels_of(main, delegate.programs)
    nodes = [main.operators[n] for n in sorted(kernels.written & on_gpu)]
    shown = [t for o in nodes for t in o.outputs if t >= 0 and surgery.is_readable(main, t)]
    choices = [o for o in nodes if any(main.tensors[t].type in _WHOLE or o.name in _POOLS for t in o.outputs)]
    wanted: dict[int, np.ndarray] = {}
    got: dict[int, np.ndarray] = {}
    every = [t for o in main.operators for t in o.outputs if t >= 0 and surgery.is_readable(main, t)]
    for tensors in _portions(main, every):
        wanted |= run(surgery.exposed(model, tensors), feed, _outputs(model, tensors), None).values
    for tensors in _portions(main, shown):
        outputs = _outputs(model, tensors)
        staging = Staging(outputs=frozenset(i for i, t in enumerate(outputs) if t not in main.outputs))
        got |= run(surgery.exposed(model, tensors), feed, outputs, RecordingDelegate(options, staging)).values
    wanted |= dict(zip(main.inputs, feed, strict=True))
    got |= dict(zip(main.inputs, feed, strict=True))
    errors = {
        (o.index, o.name): max(distance(got[t], wanted[t]) for t in o.outputs if t in got)
        for o in nodes
        if not set(o.outputs).isdisjoint(got)
    }
    for limit in _LIMITS:
        first = next(((n, e) for n, e in errors.items() if not e <= limit), None)
        print(
            f"first op beyond {limit:.0e}: " + (f"node {first[0][0]} {first[0][1]}, {first[1]:.2e}" if first else "-")
        )
    for o in choices:
        tell_choice(o, got, wanted)
    print("outputs:", _errors(plain.values, wanted, main.outputs))
    given = [t for o in choices for t in o.outputs if _is_choice(o, t, model)]
    if given:
        replaced, outputs = with_inputs(model, given)
        found = run(replaced, [*feed, *(wanted[t] for t in given)], outputs, RecordingDelegate(options)).values
        print("outputs with the CPU's choices:", _errors(found, wanted, main.outputs))


def tell_choice(o: Operator, got: Mapping[int, np.ndarray], wanted: Mapping[int, np.ndarray]) -> None:
    """How the choices of a pooling with argmax differ, and why."""
    places = next(t for t in reversed(o.outputs) if t in got)
    ours, theirs = got[places].astype(np.int64), wanted[places].astype(np.int64)
    different = np.argwhere(ours != theirs)
    print(f"node {o.index} {o.name}: {len(different)} of {ours.size} choices differ", end="")
    x = wanted[o.inputs[0]]
    if not len(different) or o.name not in _POOLS:
        print()
        return
    window = x.shape[1] // ours.shape[1], x.shape[2] // ours.shape[2]  # MediaPipe's have stride = window
    cells = {}
    for name, index in (("ours", ours), ("theirs", theirs)):
        b, y, px, c = different.T
        k = index[b, y, px, c]
        cells[name] = (b, y * window[0] + k // window[1], px * window[1] + k % window[1], c)
    apart = np.abs(x[cells["theirs"]] - x[cells["ours"]])
    size = np.maximum(np.abs(x[cells["theirs"]]), np.abs(x[cells["ours"]]))
    here = got.get(o.inputs[0])
    line = f"; the CPU's two candidates are {apart.max() / np.abs(x).max():.1e} apart at most (of the largest value)"
    line += f", {np.max(apart / np.maximum(size, 1e-30)):.1e} of their own size"
    if here is not None:
        follows = here[cells["ours"]] >= here[cells["theirs"]]
        line += (
            f"; {int(follows.sum())} of {len(different)} follow from the input, which is {distance(here, x):.1e} off"
        )
    print(line)


@dataclasses.dataclass(frozen=True)
class Run:
    values: Values
    report: litegpu.DelegationReport


def run(content: bytes, feed: Sequence[np.ndarray], tensors: Sequence[int], delegate: RecordingDelegate | None) -> Run:
    """One inference; `tensors` are those that the outputs are. Without a delegate by the CPU's plain kernels."""
    interpreter = litegpu.Interpreter(
        model_content=content,
        experimental_delegates=[delegate] if delegate is not None else None,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
        fallback="silent",
    )
    with contextlib.closing(interpreter):
        interpreter.allocate_tensors()
        for detail, array in zip(interpreter.get_input_details(), feed, strict=True):
            interpreter.set_tensor(detail["index"], array)
        interpreter.invoke()
        details = interpreter.get_output_details()
        values = {t: np.array(interpreter.get_tensor(d["index"])) for t, d in zip(tensors, details, strict=True)}
        return Run(values, interpreter.delegation_report())


def with_inputs(model: Model, given: Sequence[int]) -> tuple[bytes, list[int]]:
    """The model whose operators read what `given` holds from further inputs; and its outputs' tensors."""
    main = model.main
    tensors = list(main.tensors)
    stands = {}
    for t in given:
        stands[t] = len(tensors)
        tensors.append(dataclasses.replace(main.tensors[t], index=len(tensors), name=f"given_{t}"))
    operators = tuple(dataclasses.replace(o, inputs=tuple(stands.get(t, t) for t in o.inputs)) for o in main.operators)
    inputs = (*main.inputs, *stands.values())
    changed = dataclasses.replace(main, tensors=tuple(tensors), operators=operators, inputs=inputs)
    whole = dataclasses.replace(model, subgraphs=(changed, *model.subgraphs[1:]))
    return cut(whole, 0, range(len(operators)), inputs, main.outputs), list(main.outputs)


def distance(got: np.ndarray, wanted: np.ndarray) -> float:
    """Relative L2; of whole numbers the share that differs."""
    if wanted.dtype.kind != "f":
        return float(np.mean(got != wanted))
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-30))


def _is_choice(o: Operator, t: int, model: Model) -> bool:
    return model.main.tensors[t].type in _WHOLE or (o.name in _POOLS and t == o.outputs[1])


def _errors(got: Mapping[int, np.ndarray], wanted: Mapping[int, np.ndarray], outputs: Sequence[int]) -> str:
    return ", ".join(f"{distance(got[t], wanted[t]):.2e}" for t in outputs)


def _outputs(model: Model, tensors: Sequence[int]) -> list[int]:
    outputs = model.main.outputs
    return [*outputs, *(t for t in tensors if t not in outputs)]


def _portions(main: object, tensors: Sequence[int]) -> list[list[int]]:
    parts = surgery.portions(main, [(t,) for t in tensors])  # type: ignore[arg-type]
    return [list(tensors[part]) for part in parts]


if __name__ == "__main__":
    main()
