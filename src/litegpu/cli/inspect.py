"""`litegpu doctor`, `litegpu models`, `litegpu version` and `litegpu --version`: what there is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from litegpu.cli.application import Json, app, print_json
from litegpu.errors import OptionError


@app.command()
def models(
    bundle: Annotated[Path, typer.Argument(help="A .task bundle or a .litertlm container.", show_default=False)],
    as_json: Json = False,
) -> None:
    """List the models in a bundle. Each runs by the path that is printed.

    litegpu models hands.task

    litegpu run hands.task/hand_detector.tflite
    """
    from litegpu.model.bundle import list_models

    found = list_models(bundle)
    if not found:
        raise OptionError(f"{bundle} is no bundle of models: no .task file, and no .litertlm")
    if as_json:
        print_json({"models": [{"path": f"{bundle}/{m.name}", "bytes": m.size} for m in found]})
    else:
        width = max(len(f"{bundle}/{m.name}") for m in found)
        print("\n".join(f"{f'{bundle}/{m.name}':<{width}}  {m.size / 1e6:8.2f} MB" for m in found))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say which devices, drivers and features there are, which would be picked, and what to install if none works.

    The exit status is 0 if a GPU can be used, else 1.
    """
    from litegpu.tools.doctor import diagnose, render_text

    diagnosis = diagnose()
    if as_json:
        print_json(diagnosis.as_dict())
    else:
        print(render_text(diagnosis))
    raise typer.Exit(0 if diagnosis.ok else 1)


@app.command()
def version(as_json: Json = False) -> None:
    """Print the versions of litegpu and of what it stands on."""
    from importlib.metadata import version as installed

    from litegpu.gpu.backends import registry
    from litegpu.version import __version__

    packages = ("ai-edge-litert", *registry.libraries(), "numpy")
    versions = {"litegpu": __version__} | {name: installed(name) for name in packages}
    if as_json:
        print_json(versions)
    else:
        for name, number in versions.items():
            print(f"{name} {number}")


def _print_version(asked: bool) -> None:
    if asked:
        from litegpu.version import __version__

        print(f"litegpu {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version of litegpu; `litegpu version` has those of what it stands on, too.",
        ),
    ] = False,
) -> None:
    """What may stand before a command."""
