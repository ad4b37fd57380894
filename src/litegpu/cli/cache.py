"""`litegpu cache list`, `clear` and `verify`: what was compiled and kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from litegpu.cli.application import Json, app, print_json
from litegpu.errors import OptionError

if TYPE_CHECKING:
    from litegpu.gpu.cache_folder import CacheFolder, Listed

cache_app = typer.Typer(
    help="Look after the cache of compiled models, which the option serialization_dir fills.", no_args_is_help=True
)
app.add_typer(cache_app, name="cache")

Folder = Annotated[
    Path | None,
    typer.Argument(help="The folder; by default the one of serialization_dir='auto'.", show_default=False),
]


@cache_app.command("list")
def cache_list(folder: Folder = None, as_json: Json = False) -> None:
    """List the entries: of which model, for which device, how large, last used when.

    litegpu cache list

    litegpu cache list my_cache --json
    """
    _show(folder, as_json, only_damaged=False)


@cache_app.command("verify")
def cache_verify(folder: Folder = None, as_json: Json = False) -> None:
    """Check every entry's checksum and structure. The exit status is 1 if one is damaged.

    A damaged entry does no harm: it is built anew when it is next needed.
    """
    if _show(folder, as_json, only_damaged=True):
        raise typer.Exit(1)


@cache_app.command("clear")
def cache_clear(folder: Folder = None, as_json: Json = False) -> None:
    """Remove all entries."""
    opened = _opened(folder)
    count = opened.clear()
    if as_json:
        print_json({"folder": str(opened.path), "removed": count})
    else:
        print(f"{count} {'entry' if count == 1 else 'entries'} removed from {opened.path}")


def _show(folder: Path | None, as_json: bool, only_damaged: bool) -> int:
    """Print the entries; how many are damaged."""
    from litegpu.tools.console import print_table

    opened = _opened(folder)
    found = opened.list()
    damaged = [one for one in found if one.problem is not None]
    shown = damaged if only_damaged else found

    def plain(one: Listed) -> dict[str, Any]:
        return {
            "path": str(one.path), "bytes": one.size, "last_used": one.used, "problem": one.problem,
            **(one.about or {}),
        }  # fmt: skip

    total = sum(one.size for one in found)
    if as_json:
        print_json({"folder": str(opened.path), "bytes": total, "limit": opened.most_bytes, "damaged": len(damaged),
                    "entries": [plain(one) for one in shown]})  # fmt: skip
        return len(damaged)
    if shown:
        print_table(("file", "MB", "last used", "model", "nodes", "precision", "device"), [_row(one) for one in shown])
    entries = f"{len(found)} {'entry' if len(found) == 1 else 'entries'}"
    state = f", {len(damaged)} damaged" if damaged else ", all sound" if only_damaged else ""
    print(f"{opened.path}: {entries}, {total / 1e6:.1f} MB of at most {opened.most_bytes / 1e6:.0f}{state}")
    return len(damaged)


def _opened(folder: Path | None) -> CacheFolder:
    from litegpu.gpu.cache_folder import CacheFolder
    from litegpu.own_folder import default_folder

    if folder is not None and not folder.is_dir():
        raise OptionError(f"{folder} is no folder")
    return CacheFolder(folder or default_folder())


def _row(one: Listed) -> tuple[str, ...]:
    from datetime import datetime

    used = datetime.fromtimestamp(one.used).strftime("%Y-%m-%d %H:%M") if one.used else ""
    head = (f"{one.path.name[:12]}…", f"{one.size / 1e6:.1f}", used)
    if one.about is None:
        return *head, f"damaged: {one.problem}", "", "", ""
    about = one.about
    model = about.get("file") or about.get("model", "")
    return *head, str(model), str(about.get("nodes")), str(about.get("precision")), str(about.get("device"))
