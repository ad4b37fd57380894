"""Delegates of other systems that the official documentation names: recognised, and answered with what replaces them.

Where their library is present, on a phone, the official runtime loads it (delegate_registry.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Elsewhere:
    """`libraries`: under which the delegate's external-delegate library may be found. `why`: it is not here.
    `instead`: what does its work, by the names that load_delegate() and the tools take."""

    title: str
    libraries: tuple[str, ...]
    why: str
    instead: str

    @property
    def answer(self) -> str:
        return f"{self.why}; {self.instead}"


ELSEWHERE: Mapping[str, Elsewhere] = {
    "nnapi": Elsewhere(
        "NNAPI",
        ("libnnapi_delegate.so", "libnnapi_external_delegate.so"),
        "NNAPI is a part of Android, which deprecated it with version 15",
        'use "gpu" for GPUs, "openvino" for the CPUs, GPUs and NPUs of Intel',
    ),
    "hexagon": Elsewhere(
        "Hexagon",
        ("libhexagon_delegate.so", "libtensorflowlite_hexagon_jni.so"),
        "the Hexagon delegate needs a Qualcomm DSP under Android",
        'use "gpu", which runs 8-bit models to the CPU\'s numbers, or "openvino" for NPUs of Intel',
    ),
    "coreml": Elsewhere(
        "Core ML",
        ("libcoreml_delegate.dylib",),
        "the Core ML delegate is a part of Apple's own runtime for phones",
        'on a Mac use "coreml", litegpu\'s own, or "gpu", which runs on Metal there',
    ),
}


def recognised(name: str) -> Elsewhere | None:
    """The delegate of another system that a name means."""
    return ELSEWHERE.get(name.lower().replace("_", "").replace("-", "").removesuffix("delegate"))
