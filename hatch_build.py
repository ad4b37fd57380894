"""Compiles the library for the official runtime into the wheel, if there is a compiler; without one the wheel is a
plain one, and the library is compiled when it is first asked for."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent


class HostLibrary(BuildHookInterface):  # type: ignore[type-arg]
    """For wheels on Linux: macOS's Python is built for several architectures, its compiler for one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the library to the wheel, which is then for this platform and any Python."""
        if self.target_name != "wheel" or version == "editable" or not sys.platform.startswith("linux"):
            return
        compiling = _compiling()
        self._folder = tempfile.TemporaryDirectory(prefix="litegpu-")
        try:
            library = compiling.compile_library(Path(self._folder.name))
        except (compiling.CompilerError, OSError) as error:
            self.app.display_warning(f"The wheel has no library for the official runtime: {error}")
            return
        build_data["force_include"][str(library)] = f"litegpu/external/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def _compiling() -> Any:
    """The module of the package, which needs nothing else of it."""
    spec = importlib.util.spec_from_file_location("compiling", ROOT / "src" / "litegpu" / "external" / "compiling.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
