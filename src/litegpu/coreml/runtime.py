"""coremltools and Core ML itself: imported when a model needs them, and whether this machine can run programs."""

from __future__ import annotations

import functools
import importlib.util
import logging
import platform
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from litegpu import fork
from litegpu.errors import DelegateLoadError, DeviceError

_ADVICE = "pip install litegpu[coreml], or coremltools 8.0 or later"

#: coremltools builds one program at a time: the block that operations go to is a variable of its module.
_building = threading.RLock()


def is_installed() -> bool:
    """Whether coremltools is there, without importing it."""
    return importlib.util.find_spec("coremltools") is not None


def require_installed() -> None:
    """Raises DelegateLoadError, with what to install, if coremltools is not there."""
    if not is_installed():
        raise DelegateLoadError(f"The Core ML delegate needs the package coremltools: {_ADVICE}")


def coremltools() -> Any:
    """The package. Raises DelegateLoadError if it is not there or cannot be imported."""
    with _building:
        return _coremltools()


def builder() -> Any:
    """coremltools' Builder of MIL operations."""
    coremltools()
    from coremltools.converters.mil import Builder

    return Builder


def is_apple() -> bool:
    """Whether programs can be loaded and run here."""
    return sys.platform == "darwin"


def require_apple(*, neural_engine: bool) -> None:
    """Raises DeviceError if no program runs here, or, asked for it, if there is no Neural Engine; ForkError in a
    process that was forked from one that had used a GPU."""
    if not is_apple():
        raise DeviceError(
            "Core ML runs on macOS only; elsewhere its programs can be built, not run. Here, use the device "
            '"auto", or "openvino"'
        )
    if neural_engine and platform.machine() != "arm64":
        raise DeviceError(
            "This Mac has no Neural Engine: only those with Apple silicon do. "
            'enabled_devices="all" takes its other devices'
        )
    fork.check()
    fork.gpu_is_used()


@contextmanager
def building() -> Iterator[None]:
    """While coremltools builds, converts or loads: one thread at a time, without its progress bars and warnings."""
    with _building:
        _coremltools()
        from coremltools.converters.mil.mil.passes import pass_pipeline

        bars, log = pass_pipeline.tqdm, logging.getLogger("coremltools")
        level = log.level
        pass_pipeline.tqdm = _without_bar
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            pass_pipeline.tqdm = bars
            log.setLevel(level)


def _without_bar(passes: Any, **_: Any) -> Any:
    return passes


@functools.cache
def _coremltools() -> Any:
    require_installed()
    log = logging.getLogger("coremltools")
    level = log.level
    quiet = _Silence()
    log.addFilter(quiet)  # what it lacks on other systems than macOS is no news, nor which PyTorch it was tried with
    try:
        import coremltools
    except Exception as error:
        raise DelegateLoadError(f"The package coremltools cannot be imported: {error}; {_ADVICE}") from error
    finally:
        log.removeFilter(quiet)
        log.setLevel(level)
    return coremltools


class _Silence(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.ERROR


@fork.in_child
def _forget() -> None:
    global _building
    _building = threading.RLock()
