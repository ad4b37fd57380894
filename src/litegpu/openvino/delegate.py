"""The OpenVINO delegate: takes what OpenVINO's front end is known to read rightly, and compiles partitions."""

from __future__ import annotations

import contextlib
from dataclasses import fields
from typing import Any

from litegpu.background import Patient
from litegpu.boundary import typed_errors
from litegpu.delegates.protocol import DelegateKernel, Partition
from litegpu.errors import DelegateError, ForkError, OptionError, blame
from litegpu.gpu.cache_folder import open_cache
from litegpu.model.types import Model, Operator, Subgraph
from litegpu.openvino import runtime
from litegpu.openvino.conversion import converted
from litegpu.openvino.kernel import OpenVinoKernel
from litegpu.openvino.options import OpenVinoOptions
from litegpu.openvino.support import reason_against


@typed_errors
class OpenVinoDelegate:
    """Runs what it can of a model through OpenVINO, on an Intel CPU, GPU or NPU.

    `OpenVinoDelegate(OpenVinoOptions(...))` or `OpenVinoDelegate(device="GPU", ...)`. Raises DelegateLoadError if the
    package openvino is not installed, DeviceError if there is no such device, OptionError.
    """

    name = "OpenVINO"

    def __init__(self, options: OpenVinoOptions | None = None, **changes: object) -> None:
        known = [f.name for f in fields(OpenVinoOptions)]
        for name in changes:
            if name not in known:
                raise OptionError(f"OpenVinoDelegate has no option {name!r}: the options are {', '.join(known)}")
        if options is not None and changes:
            raise OptionError("give either an OpenVinoOptions object or keyword options, not both")
        self.options = options if options is not None else OpenVinoOptions(**changes)  # type: ignore[arg-type]
        runtime.require_installed()
        if self.options.device != "CPU":
            runtime.require_device(self.options.device)
        self.max_delegated_partitions = self.options.max_delegated_partitions
        self.min_nodes_per_partition = self.options.min_nodes_per_partition
        self.first_delegate_node_index = self.options.first_delegate_node_index
        self.last_delegate_node_index = self.options.last_delegate_node_index
        folder = self.options.serialization_dir
        cache = open_cache(folder) if folder is not None else None
        self._cache = str(cache.path) if cache is not None else None

    def __repr__(self) -> str:
        options = getattr(self, "options", None)  # None where the constructor has failed
        return f"OpenVinoDelegate({options!r})" if options is not None else "<OpenVinoDelegate, not opened>"

    def __reduce__(self) -> Any:
        return type(self), (self.options,)

    def device_name(self) -> str:
        """What it runs on, for people."""
        return f"{runtime.full_name(self.options.device)} (OpenVINO {self.options.device})"

    def check(self, model: Model, subgraph: Subgraph, operator: Operator) -> str | None:
        """The reason why OpenVINO does not take the node, or None. Needs no OpenVINO."""
        return reason_against(subgraph, operator, quantization=self.options.quantization_enabled)

    def prepare(self, partition: Partition) -> DelegateKernel:
        """Compile a partition. Raises DelegateError, with the numbers of the nodes to blame in `nodes` where it is some
        of them, and ForkError."""
        try:
            return self._compiled(partition)
        except ForkError:
            raise
        except Exception as error:
            failure = DelegateError(f"OpenVINO does not compile it: {_first_lines(error)}")
            if len(partition.nodes) > 1:
                culprits = tuple(o.index for o in partition.nodes if not self._prepares(partition, o))
                if 0 < len(culprits) < len(partition.nodes):
                    raise blame(failure, culprits) from error
            raise failure from error

    def _prepares(self, partition: Partition, operator: Operator) -> bool:
        """Whether one node alone can be compiled."""
        from litegpu.delegates.partitioner import borders

        inputs, outputs = borders(partition.subgraph, [operator])
        alone = Partition(partition.model, partition.subgraph, (operator,), inputs, outputs, partition.xnnpack)
        if not outputs:
            return True
        with contextlib.suppress(Exception):
            self._compiled(alone).close()
            return True
        return False

    def _compiled(self, partition: Partition) -> OpenVinoKernel:
        core = runtime.core()
        device = self.options.device
        properties = self.options.properties(runtime.known_properties(device), self._cache)
        made: list[OpenVinoKernel] = []

        def compile_it() -> None:
            compiled = core.compile_model(converted(partition), device, properties)
            made.append(OpenVinoKernel(compiled, partition, (self._note(compiled),)))

        Patient().call(compile_it)  # in a thread, so that Ctrl-C gets through
        return made[0]

    def _note(self, compiled: Any) -> str:
        """What the report says of it."""
        return f"OpenVINO {runtime.version()} on {self.device_name()} computes in {computes_in(compiled)}"


def computes_in(compiled: Any) -> str:
    """The element type that floats are computed in, in the words of NumPy, as far as a device tells."""
    try:
        return str(compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())
    except Exception:
        return "its own precision"


def _first_lines(error: Exception) -> str:
    """OpenVINO's texts begin with places in its sources, and end with what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if not line.startswith(("Exception from", "Check '", "While validating"))]
    return "; ".join((told or lines)[:3]) or type(error).__name__
