"""What `litegpu advise --measure` found, kept by model, machine and versions: a small file for each model."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

from litegpu import native, version
from litegpu.choosing.candidate import Measured
from litegpu.errors import OptionError
from litegpu.gpu.delegate.cache_key import fingerprint
from litegpu.own_folder import default_folder

log = logging.getLogger("litegpu")

FOLDER = "choices"
_FORMAT = 1
_RUNTIMES = ("openvino", "coremltools")  # that delegates run on, where they are installed


def machine() -> str:
    """The processor, the cores that may be used, and what computes on them."""
    parts = (_processor(), native.processors(), sys.platform, version.__version__, _version("ai-edge-litert"))
    others = (f"{name} {found}" for name in _RUNTIMES if (found := _version(name)))
    return " | ".join(map(str, (*parts, *others)))


def _version(package: str) -> str:
    try:
        return installed(package)
    except PackageNotFoundError:
        return ""


def keep(content: bytes | memoryview, found: Sequence[Measured]) -> Path | None:
    """Write what was measured of a model, over what there was; None, with a line in the log, if that cannot be."""
    text = json.dumps({"format": _FORMAT, "machine": machine(), "measured": [one.as_dict() for one in found]}, indent=1)
    try:
        path = _path(content)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except (OSError, OptionError) as error:
        log.warning("What was measured is not kept: %s", error)
        return None
    return path


def recall(content: bytes | memoryview) -> tuple[Measured, ...]:
    """What was measured of a model on this machine; nothing if that was never done, or with other versions, or cannot
    be read."""
    try:
        folder = default_folder() / FOLDER
        if not folder.is_dir() or not any(folder.iterdir()):
            return ()
        values = json.loads(_path(content).read_text(encoding="utf-8"))
        if values["format"] != _FORMAT or values["machine"] != machine():
            return ()
        return tuple(Measured.of(one) for one in values["measured"])
    except (OSError, OptionError, ValueError, KeyError, TypeError) as error:
        log.debug("Nothing that was measured is recalled: %s", error)
        return ()


def _path(content: bytes | memoryview) -> Path:
    place = hashlib.sha256(machine().encode()).hexdigest()[:12]
    return default_folder() / FOLDER / f"{fingerprint(content)}-{place}.json"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith(("model name", "Model")):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
