"""Compiles the package's libraries in C into the wheel, if there is a compiler; without one the wheel is a plain one,
and they are compiled when they are first asked for."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent


class Libraries(BuildHookInterface):  # type: ignore[type-arg]
    """For wheels on Linux: macOS's Python is built for several architectures, its compiler for one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries to the wheel, which is then for this platform and any Python."""
        if self.target_name != "wheel" or version == "editable" or not sys.platform.startswith("linux"):
            return
        compiling = _compiling()
        self._folder = tempfile.TemporaryDirectory(prefix="litegpu-")
        wanted = (compiling.EXTERNAL, compiling.NATIVE)
        try:
            made = [sources.compile(Path(self._folder.name)) for sources in wanted]
        except (compiling.CompilerError, OSError) as error:
            self.app.display_warning(f"The wheel has no libraries in C: {error}")
            return
        for sources, library in zip(wanted, made, strict=True):
            build_data["force_include"][str(library)] = f"litegpu/{sources.folder.name}/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _compiling() -> Any:
    """The module of the package, which needs nothing else of it."""
    spec = importlib.util.spec_from_file_location("compiling", ROOT / "src" / "litegpu" / "native" / "compiling.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclass is looked for
    spec.loader.exec_module(module)
    return module
