"""The Core ML delegate: takes what it translates, and has coremltools make and load programs of partitions."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from litegpu.background import Patient
from litegpu.boundary import typed_errors
from litegpu.coreml import runtime
from litegpu.coreml.conversion import converted, first_line, reason_against
from litegpu.coreml.kernel import CoreMlKernel
from litegpu.coreml.options import CoreMlOptions
from litegpu.delegates.protocol import DelegateKernel, Partition
from litegpu.errors import DelegateError, LiteGpuError, OptionError, blame
from litegpu.model.types import Model, Operator, Subgraph

_UNITS = {
    "all": "Neural Engine, GPU and CPU",
    "cpu_and_gpu": "GPU and CPU",
    "cpu_and_ne": "Neural Engine and CPU",
    "cpu_only": "CPU",
}


@typed_errors
class CoreMlDelegate:
    """Runs what it can of a model of floats through Core ML, on a Mac's Neural Engine, GPU and CPU.

    `CoreMlDelegate(CoreMlOptions(...))` or `CoreMlDelegate(compute_units="cpu_and_ne", ...)`. Elsewhere programs are
    built, which previews show, and prepare() raises DeviceError. Raises DelegateLoadError if coremltools is not
    installed, OptionError.
    """

    name = "Core ML"

    def __init__(self, options: CoreMlOptions | None = None, **changes: object) -> None:
        known = [f.name for f in fields(CoreMlOptions)]
        for name in changes:
            if name not in known:
                raise OptionError(f"CoreMlDelegate has no option {name!r}: the options are {', '.join(known)}")
        if options is not None and changes:
            raise OptionError("give either a CoreMlOptions object or keyword options, not both")
        self.options = options if options is not None else CoreMlOptions(**changes)  # type: ignore[arg-type]
        runtime.require_installed()
        self.max_delegated_partitions = self.options.max_delegated_partitions
        self.min_nodes_per_partition = self.options.min_nodes_per_partition
        self.first_delegate_node_index = self.options.first_delegate_node_index
        self.last_delegate_node_index = self.options.last_delegate_node_index

    def __repr__(self) -> str:
        options = getattr(self, "options", None)  # None where the constructor has failed
        return f"CoreMlDelegate({options!r})" if options is not None else "<CoreMlDelegate, not opened>"

    def __reduce__(self) -> Any:
        return type(self), (self.options,)

    def device_name(self) -> str:
        """What it runs on, for people."""
        return f"{_UNITS[self.options.compute_units]} (Core ML)"

    def check(self, model: Model, subgraph: Subgraph, operator: Operator) -> str | None:
        """The reason why Core ML does not take the node, or None. Needs coremltools, no Mac."""
        return reason_against(subgraph, operator, self.options.target)

    def rehearse(self, partition: Partition) -> None:
        """Build the program, without loading it. Raises DelegateError."""
        self._converted(partition)

    def prepare(self, partition: Partition) -> DelegateKernel:
        """Build the partition's program and load it. Raises DeviceError where Core ML is not, DelegateError, with the
        number of the node to blame in `nodes` where it is one, and ForkError."""
        runtime.require_apple(neural_engine=self.options.enabled_devices == "with_neural_engine")
        made: list[Any] = []
        Patient().call(lambda: made.append(self._converted(partition)))  # in a thread, so that Ctrl-C gets through
        units = _UNITS[self.options.compute_units]
        note = f"Core ML may use {units}, and computes in {self.options.computes_in}"
        return CoreMlKernel(made[0], partition, (note,))

    def _converted(self, partition: Partition) -> Any:
        try:
            return converted(partition, self.options)
        except LiteGpuError:
            raise
        except Exception as error:
            failure = DelegateError(f"coremltools makes no program of it: {first_line(error)}")
            nodes = getattr(error, "nodes", ())
            raise (blame(failure, nodes) if nodes else failure) from error
