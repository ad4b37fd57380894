"""How the Core ML delegate works: its options, and what they are to coremltools."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from litegpu.boundary import typed
from litegpu.errors import OptionError

COMPUTE_UNITS = ("all", "cpu_and_gpu", "cpu_and_ne", "cpu_only")
ENABLED_DEVICES = ("with_neural_engine", "all")
PRECISIONS = ("float32", "float16", "auto")
#: Core ML's version -> the systems that came with it, by the name coremltools has for them.
TARGETS = {0: "iOS16", 5: "iOS15", 6: "iOS16", 7: "iOS17", 8: "iOS18"}


@dataclass(frozen=True)
class CoreMlOptions:
    """How the Core ML delegate works. Names and defaults are those of the official Core ML delegate where it has them.

    compute_units: what Core ML may use: "all", in which it prefers the Neural Engine where that can compute something,
        "cpu_and_gpu", "cpu_and_ne" or "cpu_only".
    precision: "float32" computes in it, for which the Neural Engine has no means: programs then run on GPU and CPU.
        "float16" computes and keeps weights in it, relative error about 1e-3; "auto" is the same, as in coremltools.
    enabled_devices: "with_neural_engine" takes nothing on Macs without one (those with Intel's processors); "all".
    coreml_version: 5 (macOS 12), 6 (macOS 13), 7 (macOS 14) or 8 (macOS 15): what programs are made for, 0 means 6.
        Versions 2 and 3 of the official option have no ML programs.
    max_delegated_partitions: the largest so many partitions are taken; 0 means all.
    min_nodes_per_partition: partitions with fewer nodes stay on the official runtime.
    first_delegate_node_index, last_delegate_node_index: nodes outside stay there too (to bisect a wrong op).

    Raises OptionError for values that are not allowed.
    """

    compute_units: str = "all"
    precision: str = "float32"
    enabled_devices: str = "with_neural_engine"
    coreml_version: int = 0
    max_delegated_partitions: int = 0
    min_nodes_per_partition: int = 2
    first_delegate_node_index: int = 0
    last_delegate_node_index: int = sys.maxsize

    @typed
    def __post_init__(self) -> None:
        for name, allowed in (
            ("compute_units", COMPUTE_UNITS), ("precision", PRECISIONS), ("enabled_devices", ENABLED_DEVICES),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise OptionError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}")
        if self.coreml_version in (2, 3, 4):
            raise OptionError(
                f"coreml_version is {self.coreml_version}; ML programs, which this delegate makes, began with version 5"
            )
        if self.coreml_version not in TARGETS:
            raise OptionError(f"coreml_version is {self.coreml_version!r}; it must be one of 0, 5, 6, 7, 8")
        for name in ("max_delegated_partitions", "min_nodes_per_partition", "first_delegate_node_index"):
            if getattr(self, name) < 0:
                raise OptionError(f"{name} is {getattr(self, name)}; it must be 0 or more")

    @property
    def target(self) -> str:
        """The name of coremltools' deployment target."""
        return TARGETS[self.coreml_version]

    @property
    def computes_in(self) -> str:
        """ "float32" or "float16"."""
        return "float32" if self.precision == "float32" else "float16"
