"""`litegpu run`: a model on pictures or made-up input, what ran where, how fast, how far from the CPU, and drawings."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.delegates.report import CPU
from litegpu.errors import InvokeError, OptionError
from litegpu.model.cut import cut
from litegpu.model.inline import inline_composites
from litegpu.model.reader import DTYPES, read_model
from litegpu.model.types import Subgraph
from litegpu.session import load
from litegpu.tools.agreement import Agreement, Verdict, compare, judge, step_of
from litegpu.tools.drawing import draw
from litegpu.tools.entered import entered
from litegpu.tools.images import Normalization, image_to_tensor, load_image, save_image, takes_image
from litegpu.tools.inference_diff.surgery import with_float_weights
from litegpu.tools.inputs import made_up_inputs
from litegpu.tools.labels import packed_labels, read_labels, require_fit
from litegpu.tools.outputs import require_folder, require_writable
from litegpu.tools.predictions import (
    Classification,
    Detection,
    Picture,
    Pose,
    Result,
    Segmentation,
    class_count,
    interpret,
)

if TYPE_CHECKING:
    from litegpu.delegates.report import DelegationReport

_TIMED_RUNS = 10
_MOST_SECONDS = 3.0  # of timed runs on one device


@dataclass(frozen=True)
class RunTiming:
    """Seconds: to open and prepare the model, of the first inference, and of the ones after it."""

    prepare: float
    first: float
    median: float
    fastest: float
    runs: int


@dataclass(frozen=True, eq=False)
class InputResult:
    """One picture, or one made-up input. `agreement` holds one entry per output; `decision` compares what the outputs
    mean ("top-5 equal"); both are empty without a comparison. `hybrid`: the agreement with a CPU whose 8-bit weights of
    float ops are floats, where a model has such on the GPU. `drawing` is the file that was written."""

    source: str
    preparation: str
    result: Result
    agreement: tuple[Agreement, ...] = ()
    hybrid: tuple[Agreement, ...] = ()
    decision: str = ""
    drawing: str = ""


@dataclass(frozen=True, eq=False)
class RunReport:
    """Everything that `litegpu run` found out. `wanted` is the device asked for; `device` is the GPU's name, or "CPU";
    `is_software`: the GPU is emulated on the CPU; `cpu` is None without a comparison. `hybrid_ops`: how many ops on the
    GPU have 8-bit weights and float inputs. `problems`: what could not be written. `cpu_problem`: why the CPU could not
    be compared with, though that was wanted. `signature`: the one that was asked for."""

    model: str
    wanted: str
    device: str
    is_software: bool
    precision: str
    delegation: DelegationReport
    timing: RunTiming
    cpu: RunTiming | None
    inferences: tuple[InputResult, ...]
    hybrid_ops: int = 0
    problems: tuple[str, ...] = ()
    cpu_problem: str = ""
    signature: str | None = None

    @property
    def worst(self) -> float:
        """The largest relative L2 error of any output, 0 without a comparison."""
        return max((a.relative_l2 for i in self.inferences for a in i.agreement), default=0.0)

    @property
    def verdict(self) -> Verdict:
        """Whether the GPU's results are the CPU's; without a comparison they are."""
        found = [a for i in self.inferences for a in i.agreement]
        hybrid = [a for i in self.inferences for a in i.hybrid]
        if not found:
            return Verdict("", True, tells=False)
        return judge(found, self.precision, hybrid, self.hybrid_ops)

    @property
    def agrees(self) -> bool:
        return self.verdict.agrees

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "model": self.model,
            "wanted_device": self.wanted,
            "device": self.device,
            "is_software": self.is_software,
            "precision": self.precision,
            "delegation": self.delegation.as_dict(),
            "timing": asdict(self.timing),
            "cpu": asdict(self.cpu) if self.cpu else None,
            "worst_relative_l2": self.worst if self.cpu else None,
            "verdict": asdict(self.verdict) if self.cpu else None,
            "problems": list(self.problems),
            "cpu_problem": self.cpu_problem,
            "signature": self.signature,
            "inferences": [
                {
                    "source": i.source,
                    "preparation": i.preparation,
                    "task": i.result.task,
                    "result": _result_as_dict(i.result),
                    "agreement": [asdict(a) for a in i.agreement],
                    "agreement_with_float_weights": [asdict(a) for a in i.hybrid],
                    "decision": i.decision,
                    "drawing": i.drawing,
                }
                for i in self.inferences
            ],
        }


def run_model(
    model: str | os.PathLike[str],
    images: Sequence[str | os.PathLike[str]] = (),
    *,
    labels: str | os.PathLike[str] | None = None,
    device: str = "auto",
    precision: str = "float32",
    arithmetic: str = "auto",
    compare_with_cpu: bool = True,
    output: str | os.PathLike[str] | None = None,
    num_threads: int | None = None,
    normalization: Normalization | None = None,
    signature: str | None = None,
    shapes: Sequence[str] = (),
) -> RunReport:
    """Run a model on each picture, or once on made-up input, and write a drawing of each picture's result.

    Args:
        labels: a file with one class name a line; by default one that is packed into the model, if it fits.
        device, precision, num_threads: as for `litegpu.load`. arithmetic: as for GpuDelegate.
        compare_with_cpu: also run on the CPU, unless that is all there is.
        output: the drawing's file, or with several pictures a folder; by default PICTURE-MODEL.png in this folder.
        normalization: of pixels; by default a guess by the input's type.
        signature: the key of one of several; by default that of the file's first graph.
        shapes: of the inputs, as for tools.entered.entered().

    Raises LiteGpuError for everything that the user can do wrong; a drawing that cannot be written is one of the
    report's problems.
    """
    names = read_labels(labels) if labels else []
    pictures = [(os.fspath(path), load_image(path)) for path in images]
    targets = _drawing_paths([path for path, _ in pictures], model, output)
    content = entered(model, signature, shapes)
    with _Opened(content, device, precision, num_threads, arithmetic) as chosen:
        if labels:
            require_fit(names, chosen.classes, labels)
        else:
            names = packed_labels(read_model(model).content, chosen.classes)
        feeds = [chosen.feed(pixels, normalization) for _, pixels in pictures] or [chosen.feed(None, normalization)]
        outputs, timing = chosen.infer([arrays for arrays, _ in feeds])
        report = chosen.loaded.report
        details = chosen.loaded.interpreter.get_output_details()
        shape = chosen.shape
    sources = [path for path, _ in pictures] or ["made-up input"]
    inferences = [
        InputResult(source, how, interpret(arrays, details, shape, names))
        for source, (_, how), arrays in zip(sources, feeds, outputs, strict=True)
    ]
    cpu, hybrid_ops, wanted, cpu_problem = None, 0, None, ""
    given = [arrays for arrays, _ in feeds]
    if compare_with_cpu and report.delegated:
        try:
            with _Opened(content, "cpu", "float32", num_threads) as reference:
                wanted, cpu = reference.infer(given)
        except InvokeError as error:  # what the GPU computed is a result all the same
            cpu_problem = str(error)
    if wanted is not None:
        steps = _steps(content)
        in_float, hybrid_ops = _with_float_weights(content, report)
        careful = wanted
        if hybrid_ops:
            with _Opened(in_float, "cpu", "float32", num_threads) as reference:
                careful, _ = reference.infer(given, timed=False)
        for i, (got, want, exact) in enumerate(zip(outputs, wanted, careful, strict=True)):
            agreement, hybrid = (
                tuple(
                    compare(d["name"], g, w, step_of(d, g, steps[k]))
                    for k, (d, g, w) in enumerate(zip(details, got, side, strict=True))
                )
                for side in (want, exact)
            )
            decision = _decision(inferences[i].result, interpret(want, details, shape, names))
            inferences[i] = replace(
                inferences[i], agreement=agreement, hybrid=hybrid if hybrid_ops else (), decision=decision
            )
    problems = []
    for i, (target, (_, pixels)) in enumerate(zip(targets, pictures, strict=True)):
        drawn = draw(pixels, inferences[i].result)
        if drawn is not None:
            try:
                save_image(target, drawn)
                inferences[i] = replace(inferences[i], drawing=str(target))
            except OptionError as problem:
                problems.append(str(problem))
    return RunReport(
        os.fspath(model), device, chosen.loaded.hardware, chosen.loaded.is_software, precision, report, timing, cpu,
        tuple(inferences), hybrid_ops, tuple(problems), cpu_problem, signature,
    )  # fmt: skip


class _Opened:
    """A model on a device, with its timings."""

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes,
        device: str,
        precision: str,
        num_threads: int | None,
        arithmetic: str = "auto",
    ) -> None:
        start = time.perf_counter()
        more = {} if arithmetic == "auto" else {"arithmetic": arithmetic}
        self.loaded = load(model, device=device, precision=precision, num_threads=num_threads, **more)
        if self.loaded.interpreter.awaits_sizes:
            self.loaded.interpreter.allocate_tensors()  # which says what is missing
        self.prepare = time.perf_counter() - start

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.loaded.close()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the first input; of a model without inputs none."""
        details = self.loaded.interpreter.get_input_details()
        return tuple(int(n) for n in details[0]["shape"]) if details else ()

    @property
    def classes(self) -> int | None:
        """How many classes the model tells apart, as far as its shapes say."""
        details = self.loaded.interpreter.get_output_details()
        return class_count([tuple(int(n) for n in d["shape"]) for d in details], self.shape)

    def feed(self, pixels: np.ndarray | None, normalization: Normalization | None) -> tuple[list[np.ndarray], str]:
        """Arrays for all inputs, and how the picture became one of them."""
        details = self.loaded.interpreter.get_input_details()
        arrays = made_up_inputs(details, self.loaded.interpreter.graph)
        if pixels is None:
            return arrays, ""
        index = next((i for i, detail in enumerate(details) if takes_image(detail)), None)
        if index is None:
            shapes = ", ".join(f"{d['name']} {[int(n) for n in d['shape']]}" for d in details)
            raise OptionError(f"The model takes no picture (its inputs: {shapes}): leave --image out")
        arrays[index], how = image_to_tensor(pixels, details[index], normalization)
        return arrays, how

    def infer(
        self, feeds: Sequence[Sequence[np.ndarray]], *, timed: bool = True
    ) -> tuple[list[list[np.ndarray]], RunTiming]:
        """The outputs for each feed, and timings on the last of them."""
        interpreter, seconds = self.loaded.interpreter, []
        outputs = []
        for arrays in feeds:
            for detail, array in zip(interpreter.get_input_details(), arrays, strict=True):
                interpreter.set_tensor(detail["index"], array)
            seconds.append(_timed(interpreter.invoke))
            outputs.append([np.asarray(interpreter.get_tensor(d["index"])) for d in interpreter.get_output_details()])
        later: list[float] = []
        while timed and len(later) < _TIMED_RUNS and sum(later) < _MOST_SECONDS:
            later.append(_timed(interpreter.invoke))
        later = later or seconds
        return outputs, RunTiming(self.prepare, seconds[0], float(np.median(later)), min(later), len(later))


def takes_picture(model: str | os.PathLike[str]) -> bool:
    """Whether an input of the model can be a picture."""
    main = read_model(model).main
    inputs = [main.tensors[t] for t in main.inputs]
    return any(t.type in DTYPES and takes_image({"shape": t.shape, "dtype": DTYPES[t.type]}) for t in inputs)


def _steps(model: str | os.PathLike[str] | bytes) -> list[float]:
    """For each output of floats that are made of stored numbers how far two of these are apart, else 0."""
    main = read_model(model).main
    made = {t: o for o in main.operators for t in o.outputs}
    steps = []
    for output in main.outputs:
        source = made.get(output)
        widened = source is not None and source.name == "DEQUANTIZE"
        quantization = main.tensors[source.inputs[0]].quantization if source is not None and widened else None
        single = quantization is not None and len(quantization.scales) == 1
        steps.append(float(quantization.scales[0]) if quantization is not None and single else 0.0)
    return steps


def _with_float_weights(model: str | os.PathLike[str] | bytes, report: DelegationReport) -> tuple[bytes, int]:
    """The model with float weights in those of its dynamic-range ops that run on the GPU, and how many these are."""
    whole = inline_composites(read_model(model))
    taken = {n.index for n in report.nodes if n.owner != CPU}
    changed, nodes = with_float_weights(whole, taken)
    if not nodes:
        return b"", 0
    main: Subgraph = changed.main
    return cut(changed, 0, range(len(main.operators)), main.inputs, main.outputs), len(nodes)


def _timed(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _decision(got: Result, want: Result) -> str:
    """Whether two results mean the same."""
    match got, want:
        case Classification(), Classification():
            same = [e.index for e in got.top] == [e.index for e in want.top]
            count = len(got.top)
            return f"top-{count} equal" if same else f"top-{count} DIFFERENT"
        case Segmentation(), Segmentation():
            return f"{float((got.mask == want.mask).mean()):.3%} of the pixels have the same class"
        case Detection(), Detection():
            same = [b.found.index for b in got.boxes] == [b.found.index for b in want.boxes]
            return "same classes detected" if same else "DIFFERENT classes detected"
        case Pose(), Pose():
            pairs = zip(got.keypoints, want.keypoints, strict=True)
            farthest = max(max(abs(a.y - b.y), abs(a.x - b.x)) for a, b in pairs)
            return f"keypoints at most {farthest:.2e} of the picture apart"
    return ""


def _drawing_paths(
    images: Sequence[str], model: str | os.PathLike[str], output: str | os.PathLike[str] | None
) -> list[Path]:
    """A file for each picture's drawing: pictures of one name, from several folders, are numbered. Where nobody asked
    for one, in a folder that nothing can be written to, that is found out when it is drawn."""
    stems: list[str] = []
    for image in images:
        stem, number = Path(image).stem, 2
        while stem in stems:
            stem, number = f"{Path(image).stem}-{number}", number + 1
        stems.append(stem)
    paths = [_drawing_path(stem, model, output, len(images)) for stem in stems]
    for path in paths:
        try:
            require_writable(path, read=[model, *images])
        except OptionError:
            if output is not None or os.access(path.parent, os.W_OK):
                raise
    return paths


def _drawing_path(stem: str, model: str | os.PathLike[str], output: str | os.PathLike[str] | None, count: int) -> Path:
    name = f"{stem}-{Path(model).stem}.png"
    if output is None:
        return Path(name)
    target = Path(output)
    if target.suffix and not target.is_dir():
        if count > 1:
            raise OptionError(f"--output {target} is one file, but there are {count} pictures: give a folder")
        return target
    require_folder(target)
    return target / name


def _result_as_dict(result: Result) -> dict[str, Any]:
    match result:
        case Segmentation():
            return {"classes": [asdict(entry) for entry in result.shares]}
        case Picture():
            return {"shape": list(result.pixels.shape)}
    return asdict(result)
