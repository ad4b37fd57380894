"""`litegpu inference-diff`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from litegpu.cli.application import LARGEST, MOST_THREADS, ArithmeticKind, InputShapes, Json, Precision, app, print_json
from litegpu.cli.official_flags import DelegateFlagsCommand
from litegpu.errors import OptionError
from litegpu.gpu.backends import registry


class Truth(StrEnum):
    """How the official tools write booleans."""

    TRUE = "true"
    FALSE = "false"
    ONE = "1"
    ZERO = "0"


def _is_true(value: Truth) -> bool:
    return value in (Truth.TRUE, Truth.ONE)


@app.command(
    "inference-diff",
    cls=DelegateFlagsCommand,
    short_help="Say how far a delegate's results are from the CPU's, and which op is to blame.",
)
def inference_diff(
    model: Annotated[Path | None, typer.Argument(help="A .tflite file.", show_default=False)] = None,
    model_file: Annotated[Path | None, typer.Option("--model_file", "--model-file", help="The same.")] = None,
    delegate: Annotated[
        str,
        typer.Option(
            help="What is tested: gpu, xnnpack, cpu (without XNNPACK), openvino, or the name of another delegate.",
            show_default="gpu",
        ),
    ] = "",
    use_gpu: Annotated[Truth | None, typer.Option("--use_gpu", help="true: as --delegate=gpu.")] = None,
    use_xnnpack: Annotated[Truth | None, typer.Option("--use_xnnpack", help="true: as --delegate=xnnpack.")] = None,
    num_runs: Annotated[
        int | None,
        typer.Option("--num_runs", "--num-runs", help="Different inputs; 50, or as many as --input has.", max=LARGEST),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="Inputs of your own: .npz, or [NAME=]FILE of .npy or raw bytes for each. May be repeated."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Other random inputs.", min=0)] = 0,
    precision: Annotated[
        Precision | None, typer.Option(help="Of the GPU; by default what --gpu_precision_loss_allowed says.")
    ] = None,
    gpu_precision_loss_allowed: Annotated[
        Truth, typer.Option("--gpu_precision_loss_allowed", help="true: float16 where the GPU has it.")
    ] = Truth.TRUE,
    gpu_arithmetic: Annotated[
        ArithmeticKind,
        typer.Option("--gpu_arithmetic", "--arithmetic", help="Of 8-bit tensors: integer is equal to the CPU."),
    ] = ArithmeticKind.AUTO,
    gpu_backend: Annotated[
        str, typer.Option("--gpu_backend", help=f"{registry.listed()}; cuda:1 for the second.", show_default="the best")
    ] = "",
    gpu_experimental_enable_quant: Annotated[
        Truth, typer.Option("--gpu_experimental_enable_quant", help="8-bit ops too.")
    ] = Truth.TRUE,
    max_delegated_partitions: Annotated[
        int, typer.Option("--max_delegated_partitions", help="The GPU's; 0 means 1, as officially.", min=0, max=LARGEST)
    ] = 0,
    num_interpreter_threads: Annotated[
        int | None,
        typer.Option(
            "--num_interpreter_threads", help="CPU threads of what is tested.", max=MOST_THREADS, show_default="1"
        ),
    ] = None,
    num_threads: Annotated[
        int | None,
        typer.Option("--num_threads", "--num-threads", help="The same, if that is not given.", max=MOST_THREADS),
    ] = None,
    reference: Annotated[
        str, typer.Option(help="The reference's kernels: xnnpack, builtin or reference.", show_default="xnnpack")
    ] = "auto",
    max_relative_error: Annotated[
        float | None,
        typer.Option("--max_relative_error", "--max-relative-error", help="Exit with 1 if an output's is larger."),
    ] = None,
    per_op: Annotated[bool, typer.Option("--per-op", "--per_op", help="Also compare every op: who deviates?")] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(help="With --per-op, the relative L2 error that deviates; 1e-5 in float32, 1e-2 in float16."),
    ] = None,
    signature: Annotated[
        str | None, typer.Option(help="Of a model with several: the key of the one to run.", show_default="the first")
    ] = None,
    input_shape: InputShapes = None,
    html: Annotated[Path | None, typer.Option(help="Write a report as one HTML file.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Write the plots as PNG into this folder.")] = None,
    output_file_path: Annotated[
        Path | None, typer.Option("--output_file_path", help="Write the official EvaluationStageMetrics message.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a model on a delegate and on the CPU with one thread, on the same inputs, and say how far apart the outputs
    are: in the official tool's lines, and by more measures. With --per-op also op by op.

    The exit status is 0; 1 for an error, or if an output is farther off than --max_relative_error; 2 for a wrong
    command line.

    litegpu inference-diff model.tflite

    litegpu inference-diff --model_file=model.tflite --delegate=gpu --num_runs=20 --max_relative_error=0.01

    litegpu inference-diff model.tflite --precision float32 --per-op --html report.html

    litegpu inference-diff model.tflite --input samples.npy --json
    """
    from litegpu.tools.inference_diff import DiffOptions
    from litegpu.tools.inference_diff import inference_diff as compare
    from litegpu.tools.inference_diff.compare import InterruptedDifference
    from litegpu.tools.inference_diff.difference_page import write_page, write_plots
    from litegpu.tools.inference_diff.difference_text import print_report
    from litegpu.tools.inference_diff.metrics_file import write_metrics
    from litegpu.tools.outputs import all_of, require_folder, require_writable

    if model is not None and model_file is not None:
        raise OptionError("The model was given twice, as an argument and by --model_file")
    path = model if model is not None else model_file
    if path is None:
        raise typer.BadParameter("no model was given: litegpu inference-diff MODEL, or --model_file=MODEL")
    given = {name: _is_true(value) for name, value in (("gpu", use_gpu), ("xnnpack", use_xnnpack)) if value is not None}
    asked = [name for name, wanted in given.items() if wanted]
    chosen = delegate or (asked[0] if asked else "gpu")
    if any(wanted != (name == chosen) for name, wanted in given.items() if wanted or name == chosen):
        raise OptionError("--delegate, --use_gpu and --use_xnnpack contradict one another: one delegate is compared")
    if tolerance is not None and not per_op:
        raise OptionError("--tolerance says which op deviates: give --per-op as well")
    allowed = _is_true(gpu_precision_loss_allowed)
    threads = num_interpreter_threads if num_interpreter_threads is not None else num_threads
    options = DiffOptions(
        delegate=chosen,
        precision=precision.value if precision else "float16" if allowed else "float32",
        arithmetic=gpu_arithmetic.value,
        backend=gpu_backend or "auto",
        quantization=_is_true(gpu_experimental_enable_quant),
        max_delegated_partitions=max_delegated_partitions,
        num_threads=1 if threads is None or threads == -1 else threads,
        reference=reference,
        num_runs=num_runs,
        inputs=tuple(inputs or ()),
        seed=seed,
        max_relative_error=max_relative_error,
        per_op=per_op,
        tolerance=tolerance,
        signature=signature,
        shapes=tuple(input_shape or ()),
    )
    for target in (html, output_file_path):
        if target is not None:
            require_writable(target, read=[path])
    if plots is not None:
        require_folder(plots)
    try:
        report = compare(path, options)
    except InterruptedDifference as interrupt:
        print_json(interrupt.report.as_dict()) if as_json else print_report(interrupt.report)
        raise
    all_of(
        lambda: print_json(report.as_dict()) if as_json else print_report(report),
        lambda: write_metrics(report, output_file_path) if output_file_path is not None else None,
        lambda: write_page(report, html) if html is not None else None,
        lambda: write_plots(report, plots) if plots is not None else None,
    )
    raise typer.Exit(0 if report.passed else 1)
