"""A delegate's options from strings, under the names of GpuDelegateOptions and a few of the host's own."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from litegpu.errors import OptionError
from litegpu.gpu.delegate.delegate import GpuDelegate
from litegpu.gpu.delegate.options import GpuDelegateOptions

FALLBACKS = ("warn", "silent", "strict")
_TRUTHS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_OWN = ("model_path", "fallback")


@dataclass(frozen=True)
class HostOptions:
    """`model_path`: the file, where it cannot be found by itself. `fallback`: as of litegpu.Interpreter."""

    delegate: GpuDelegate
    model_path: str | None
    fallback: str


def parsed(texts: Mapping[str, str]) -> HostOptions:
    """Raises OptionError."""
    own = {name: texts[name] for name in _OWN if name in texts}
    defaults = {f.name: f.default for f in fields(GpuDelegateOptions)}
    if "calibration" in texts:
        raise OptionError("calibration takes arrays, which cannot be passed as a text")
    values: dict[str, Any] = {
        name: _value(name, text, defaults[name]) if name in defaults else text
        for name, text in texts.items()
        if name not in own
    }
    fallback = own.get("fallback", "warn")
    if fallback not in FALLBACKS:
        raise OptionError(f"fallback is {fallback!r}; it must be one of {', '.join(FALLBACKS)}")
    return HostOptions(GpuDelegate(None, **values), own.get("model_path") or None, fallback)


def _value(name: str, text: str, default: Any) -> Any:
    """What a text stands for, by the type of the option's default. An enumeration's own words are left to the options,
    which know them."""
    if isinstance(default, bool):
        if text.lower() not in _TRUTHS:
            raise OptionError(f"{name} is {text!r}; it must be 1 or 0, true or false")
        return _TRUTHS[text.lower()]
    if isinstance(default, enum.IntFlag):
        return type(default)(_number(name, text))
    if isinstance(default, enum.Enum):
        word = text.rpartition(".")[2]  # str() of a member is "WaitType.ACTIVE"
        return int(word) if word.isdecimal() else word
    if isinstance(default, int):
        return _number(name, text)
    return None if default is None and text in ("", "None") else text


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{name} is {text!r}; it must be a whole number") from None
