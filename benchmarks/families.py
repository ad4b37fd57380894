"""How fast the usual networks run on an NVIDIA GPU in float16, beside torch.compile on the same networks.

    python benchmarks/families.py [--models resnet50,vit_tiny,FILE.tflite] [--batches 1,64] [--int8] [--tuning off]
                                  [--no-peers | --peers-only] [--kernels N] [--output DIR [--append]]

Names are those of the zoo and of benchmarks/strangers (all of the latter: "strangers"), which are built in processes
beforehand; whatever else is a path. GPU milliseconds, of the public API with PyTorch's tensors bound to inputs and
outputs: many inferences queued, CUDA events around them. ResNet-50 is measured at batch 256 as well. --int8 measures
the quantized networks beside the float16 ones (of paths: the files as they are). The peer is torch.compile
(families_peers.py) in processes of their own that compile side by side, while litegpu's networks are built, and are
measured one by one. Ratios are
litegpu's time over the peer's, with their geometric means for each batch.

--kernels N prints, at last, the slowest N kernels of each case, of those with the largest ratio first, with their share
and their limit: what their operations and bytes take at the GPU's peak. --output DIR writes families.json; with
--append rows of an earlier run stay, so that peers can be measured by a run of their own. Exit status 1 if a case
failed; peers that fail are only reported.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import families_peers
import peers
import roofline
from cuda_measure import find_models, lowered, repeats_within
from families_compare import Peers
from strangers import NETWORKS as STRANGERS

from litegpu import GpuDelegate, Interpreter
from litegpu.errors import LiteGpuError, TensorError
from litegpu.gpu.passes import optimise
from litegpu.gpu.passes.costs import node_cost
from litegpu.gpu.passes.layout import place
from litegpu.limits import WORK_VARIABLE
from litegpu.model import Model, read_model, with_batch
from litegpu.zoo import CATALOGUE, build_model

NETWORKS = tuple(families_peers.ZOO)
#: Measured at these batches too.
MORE = {"resnet50": (256,)}
ROUNDS = 3  # whose median counts

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    args = _arguments(arguments)
    os.environ.setdefault(WORK_VARIABLE, str(10**15))  # of what files do not state, too, as PSPNet's layers
    table = Table(args.output, args.append)
    kinds = ["float16", "int8"] if args.int8 else ["float16"]
    cases = [(name, batch, kind) for name in args.models for batch in _batches(args, name) for kind in kinds]
    started = time.perf_counter()
    batches = {} if args.no_peers else {name: _batches(args, name) for name in args.models}
    with tempfile.TemporaryDirectory() as folder, Peers(args.peer_python, batches, args.peer_timeout) as others:
        files = {} if args.peers_only else prepared(args, kinds, Path(folder))
        if batches and not args.peers_only:
            with contextlib.suppress(ImportError):  # which those say that need it
                importlib.import_module("torch")  # takes seconds, while others compile
        others.compiled()  # nothing is measured beside that
        print(f"built in {time.perf_counter() - started:.1f} s", flush=True)
        failed = 0
        for case in cases if not args.peers_only else ():
            row = table.row(*case)
            if time.perf_counter() - started > args.time_limit:
                row["failure"] = "not run: out of time"
            else:
                measure(files[case], row, args, Path(folder))
            failed += "failure" in row
            print(line(row), flush=True)
            table.write()
        others.measure(table.compare)
        for case in sorted(files, key=lambda case: -table.ratio(*case)) if args.kernels else ():
            if "gpu" in (row := table.row(*case, fresh=False)) and time.perf_counter() - started <= args.time_limit:
                failed += look(files[case], row, args, Path(folder))
                print(line(row), flush=True)
                table.write()
    print("\n".join(summary(table.rows, args.batches)))
    print(f"{time.perf_counter() - started:.1f} s in all")
    return 1 if failed else 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", type=words, default=list(NETWORKS), help="names of the zoo, paths, or names in ../shared/models")
    add("--batches", type=lambda text: [int(word) for word in words(text)], default=[1, 64])
    add("--only-batches", action="store_true", help="no further batches for single networks")
    add("--int8", action="store_true", help="the quantized networks as well")
    add("--tuning", choices=("off", "fast", "full"), default="off", help="as of GpuDelegate (default: off, as there)")
    add("--arithmetic", help="as of GpuDelegate, for int8")
    add("--seconds", type=float, default=0.3, help="about how long each case is measured for")
    add("--time-limit", type=float, default=math.inf, help="seconds after which nothing more is started")
    add("--kernels", type=int, default=0, metavar="N", help="the slowest kernels of each case")
    add("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="processes that build networks")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--no-peers", action="store_true")
    either.add_argument("--peers-only", action="store_true")
    add("--peer-timeout", type=float, default=300.0, help="seconds for all peers to compile (default: 300)")
    add("--peer-python", default=sys.executable, help="the Python that has the peers' packages (default: this one)")
    add("--output", type=Path, help="folder for families.json")
    add("--append", action="store_true", help="keep the figures in that folder's families.json")
    args = parser.parse_args(arguments)
    args.models = [name for given in args.models for name in (STRANGERS if given == "strangers" else [given])]
    if args.append and not args.output:
        parser.error("--append needs --output")
    return args


def _batches(args: argparse.Namespace, name: str) -> list[int]:
    more = () if args.only_batches else MORE.get(name, ())
    return [*args.batches, *(batch for batch in more if batch not in args.batches)]


# ---------------------------------------------------------------------------------------------------- building


def prepared(args: argparse.Namespace, kinds: Sequence[str], folder: Path) -> dict[tuple[str, int, str], Path | str]:
    """The file of each case, or why there is none. Networks are built, and compiled for this GPU, in processes."""
    wanted = [(name, kind) for name in args.models for kind in kinds]
    wanted.sort(key=lambda work: work[0] != "vgg16")  # which takes longest
    options = _options(args)
    found: dict[tuple[str, int, str], Path | str] = {}
    with ProcessPoolExecutor(min(args.jobs, len(wanted)), multiprocessing.get_context("spawn")) as pool:
        futures = {
            pool.submit(written, name, kind, _batches(args, name), folder, options): (name, kind)
            for name, kind in wanted
        }
        for future, (name, kind) in futures.items():
            try:
                files = future.result()
            except Exception as error:
                files = dict.fromkeys(_batches(args, name), f"{type(error).__name__}: {error}")
            except BaseException:  # Ctrl-C, perhaps: the pool would wait for what is under way
                for process in multiprocessing.active_children():
                    process.kill()
                raise
            found |= {(name, batch, kind): file for batch, file in files.items()}
    return found


def written(
    name: str, kind: str, batches: Sequence[int], folder: Path, options: dict[str, Any]
) -> dict[int, Path | str]:
    """The files for the batches; what was compiled of them goes to the cache in the folder."""
    if name in CATALOGUE:
        how: dict[str, Any] = {"quantized": True} if kind == "int8" else {"precision": "float16"}
        model = read_model(build_model(name, **how))
    elif name in STRANGERS:
        model = read_model(STRANGERS[name](precision="float16"))
    else:
        model = read_model(find_models([name])[0].read_bytes())
    files: dict[int, Path | str] = {}
    for batch in batches:
        path = folder / f"{title(name)}-{kind}-{batch}.tflite"
        try:
            path.write_bytes(of_batch(name, model, batch))
            files[batch] = path
            if options["tuning"] == "off":  # else it would be measured while others run
                opened(path, options, folder)[0].close()
        except Exception as error:
            files[batch] = f"{type(error).__name__}: {error}"
    return files


def title(name: str) -> str:
    """Of a network, or of a file, whose name may have dots in it."""
    return Path(name).name.removesuffix(".tflite")


def of_batch(name: str, model: Model, batch: int) -> bytes:
    """The network for a batch; built for it where the batch of a file cannot be changed, as it lies within others."""
    try:
        return bytes(with_batch(model, batch).content)
    except TensorError:
        if name not in STRANGERS:
            raise
        content: bytes = STRANGERS[name](precision="float16", batch=batch)
        return content


def _options(args: argparse.Namespace) -> dict[str, Any]:
    given = {"arithmetic": args.arithmetic} if args.arithmetic else {}
    return {"backend": "cuda", "precision_loss_allowed": True, "tuning": args.tuning, **given}


# ---------------------------------------------------------------------------------------------------- measuring


def opened(path: Path, options: dict[str, Any], folder: Path) -> tuple[Interpreter, GpuDelegate]:
    delegate = GpuDelegate(**options, wait_type="do_not_wait", serialization_dir=str(folder / "cache"))
    interpreter = Interpreter(str(path), experimental_delegates=[delegate], fallback="strict")
    interpreter.allocate_tensors()
    return interpreter, delegate


def measure(path: Path | str, row: Row, args: argparse.Namespace, folder: Path) -> None:
    """One case; what is known is in `row` even if a later part fails."""
    try:
        if isinstance(path, str):
            raise ValueError(path)
        started = time.perf_counter()
        interpreter, delegate = opened(path, _options(args), folder)
        kernel: Any = delegate.prepared[0].kernel()
        row.update(ready=time.perf_counter() - started, kernels=len(kernel.session.program.dispatches))
        try:
            row["gpu"] = bound_seconds(interpreter, delegate, args.seconds)
        finally:
            interpreter.close()
    except Exception as error:
        if not isinstance(error, (LiteGpuError, ValueError)):
            traceback.print_exc()
        row["failure"] = f"{type(error).__name__}: {error}"


def look(path: Path | str, row: Row, args: argparse.Namespace, folder: Path) -> bool:
    """Adds the slowest kernels of a case to its row; whether that failed."""
    try:
        interpreter, delegate = opened(Path(path), _options(args), folder)
        try:
            kernel: Any = delegate.prepared[0].kernel()
            row["slowest"] = slowest(Path(path), kernel.session, args.kernels)
        finally:
            interpreter.close()
    except Exception as error:
        traceback.print_exc()
        row["failure"] = f"{type(error).__name__}: {error}"
    return "failure" in row


def bound_seconds(interpreter: Interpreter, delegate: GpuDelegate, seconds: float) -> float:
    """GPU seconds of an inference among many, with tensors of PyTorch's bound."""
    import torch

    random = torch.Generator(device="cuda").manual_seed(0)
    interpreter.set_allow_buffer_handle_output(True)
    tensors = []
    for detail in interpreter.get_input_details():
        shape, kind = tuple(map(int, detail["shape"])), getattr(torch, str(detail["dtype"].__name__))
        if kind.is_floating_point:
            tensors.append(torch.rand(shape, device="cuda", generator=random, dtype=kind) * 2 - 1)
        else:
            low, high = (0, 100) if kind is torch.int32 else (torch.iinfo(kind).min, torch.iinfo(kind).max + 1)
            tensors.append(torch.randint(low, high, shape, device="cuda", generator=random, dtype=kind))
        delegate.bind_buffer_to_tensor(tensors[-1], detail["index"])
    for detail in interpreter.get_output_details():
        shape, kind = tuple(map(int, detail["shape"])), getattr(torch, str(detail["dtype"].__name__))
        tensors.append(torch.zeros(shape, device="cuda", dtype=kind))
        delegate.bind_buffer_to_tensor(tensors[-1], detail["index"])
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def timed(times: int) -> float:
        start.record()
        for _ in range(times):
            interpreter.invoke()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e-3 / times

    timed(3)
    repeats = repeats_within(seconds / ROUNDS, timed(3), least=5)
    return statistics.median(timed(repeats) for _ in range(ROUNDS))


def slowest(path: Path, session: Any, count: int) -> list[dict[str, Any]]:
    """The nodes of the graph whose kernels take longest: seconds, share of all, and what the peak allows."""
    device = session.device
    peak = (roofline.peak_of(device) if device.info.backend == "cuda" else None) or roofline.H200
    _, graph = lowered(path)
    placed = place(optimise(graph, device.features, True), True).graph
    layers: dict[tuple[int, ...], str] = {}  # of the first and second input, and of the result
    limits: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for node in placed.nodes:
        cost = node_cost(placed, node, True)
        limits[node.sources] += max(cost.flops / peak.float16, cost.bytes / peak.bandwidth)
        shapes = [placed.values[v].shape for v in (*node.reads[:1], *node.inputs[1:2], node.output)]
        layers[node.sources] = " ".join("x".join(map(str, shape)) for shape in shapes)
    spent: dict[tuple[int, ...], dict[str, Any]] = {}
    for row in session.profile():
        label = f"{row.label} {layers.get(tuple(row.sources), '')}".rstrip()
        entry = spent.setdefault(tuple(row.sources), {"label": label, "seconds": 0.0, "kernels": 0})
        entry["seconds"] += row.seconds
        entry["kernels"] += 1
    whole = sum(entry["seconds"] for entry in spent.values())
    for sources, entry in spent.items():
        entry.update(share=entry["seconds"] / whole, limit=limits.get(sources, 0.0))
    return sorted(spent.values(), key=lambda entry: -entry["seconds"])[:count]


# ---------------------------------------------------------------------------------------------------- reporting


class Table:
    """The rows by model, batch and kind, and the file that they are written to."""

    def __init__(self, folder: Path | None, append: bool) -> None:
        self.path = None if folder is None else folder / "families.json"
        self.rows: list[Row] = []
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if append and self.path.is_file():
                self.rows = json.loads(self.path.read_text())

    def row(self, model: str, batch: int, kind: str, *, fresh: bool = True) -> Row:
        """The row of a case; `fresh`: without what litegpu took before."""
        key = {"model": title(model), "batch": batch, "kind": kind}
        row = next((row for row in self.rows if key.items() <= row.items()), None)
        if row is None:
            self.rows.append(row := key)
        if fresh:
            kept = {name: row[name] for name in (*key, "torch_compile") if name in row}
            row.clear()
            row.update(kept)
        return row

    def ratio(self, model: str, batch: int, kind: str) -> float:
        """Its time over the peer's, 0 if either is not known."""
        row = self.row(model, batch, kind, fresh=False)
        return float(row.get("gpu", 0.0) / row.get("torch_compile", math.inf))

    def compare(self, model: str, figure: peers.Figure) -> None:
        """Adds a figure of torch.compile's."""
        self.row(model, figure.batch, "float16", fresh=False)[figure.name] = figure.seconds
        self.write()

    def write(self) -> None:
        if self.path is not None:
            self.path.write_text(json.dumps(self.rows, indent=1) + "\n")


def line(row: Row) -> str:
    """One case, and its slowest kernels below."""
    name = f"{row['model']} b{row['batch']} {row['kind']}"
    if "failure" in row:
        return f"{name}: FAILED {row['failure']}"
    lines = [
        f"{name}: GPU {1e3 * row['gpu']:.4f} ms, {row['batch'] / row['gpu']:.0f}/s; {row['kernels']} kernels, "
        f"ready in {row['ready']:.1f} s"
    ]
    lines += [
        f"    {1e6 * k['seconds']:8.2f} us {100 * k['share']:5.1f}%  limit {1e6 * k['limit']:8.2f} us "
        f"({k['seconds'] / k['limit'] if k['limit'] else math.inf:.1f}x)  {k['label']}"
        for k in row.get("slowest", ())
    ]
    return "\n".join(lines)


def summary(rows: Sequence[Row], batches: Sequence[int]) -> list[str]:
    """A table of all networks, and the geometric means of the ratios."""
    compared = [row for row in rows if "torch_compile" in row and "gpu" in row and row["kind"] == "float16"]
    by_case = {(row["model"], row["batch"], row["kind"]): row for row in rows if "gpu" in row}
    torch = {(row["model"], row["batch"]): row["torch_compile"] for row in rows if "torch_compile" in row}
    lines = [
        "",
        "| network | batch | float16 ms | torch.compile ms | ratio | int8 ms | of float16 |",
        "|" + " --- |" * 7,
    ]
    for model, batch in dict.fromkeys((row["model"], row["batch"]) for row in rows):
        half, byte = (by_case.get((model, batch, kind), {}) for kind in ("float16", "int8"))
        peer = torch.get((model, batch))
        cells = [model, str(batch), _ms(half.get("gpu")), _ms(peer), _over(half.get("gpu"), peer), _ms(byte.get("gpu"))]
        lines.append(f"| {' | '.join([*cells, _over(byte.get('gpu'), half.get('gpu'))])} |")
    lines.append("")
    for batch in batches:
        ratios = [row["gpu"] / row["torch_compile"] for row in compared if row["batch"] == batch]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            lines.append(f"batch {batch}: geometric mean {mean:.3f} of {len(ratios)} networks, worst {max(ratios):.3f}")
    return lines


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.4f}" if seconds < 1e-3 else f"{1e3 * seconds:.3f}"


def _over(one: float | None, other: float | None) -> str:
    return "-" if one is None or not other else f"{one / other:.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
