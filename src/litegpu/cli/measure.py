"""`litegpu benchmark`."""

from __future__ import annotations

import typer

from litegpu.cli.application import app


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    short_help="Time a model with the flags of the official benchmark tool (--help lists them).",
)
def benchmark(context: typer.Context) -> None:
    from litegpu.tools.benchmark import main as benchmark_main

    raise typer.Exit(benchmark_main(context.args))
