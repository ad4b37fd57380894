"""Refuses operators whose scales or options abort official CPU kernels, where those are about to get them.

Such files are legal: TensorFlow's converter writes scales far apart for x - x. What a delegate runs is not asked about.
Each limit was found by running the official kernels in processes of their own (tests/delegates/test_aborts.py does).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ai_edge_litert.interpreter import OpResolverType

from litegpu.errors import InvokeError, ModelError
from litegpu.model.hazards import check_as_on_the_cpu, is_of_xnnpack
from litegpu.model.ops import find
from litegpu.model.types import Operator, Tensor

#: The resolvers that come with the default delegate.
WITH_XNNPACK = (OpResolverType.AUTO, OpResolverType.BUILTIN)

#: The resolvers that give the kernels which an entry names.
_KERNELS = {"": tuple(OpResolverType), "xnnpack": WITH_XNNPACK, "reference": (OpResolverType.BUILTIN_REF,)}


def refuse_aborting(
    operators: Sequence[Operator], tensors: Sequence[Tensor], outputs: Iterable[int], resolver: OpResolverType
) -> None:
    """Raises InvokeError naming the first of `operators` that a kernel of the official runtime would abort on.
    `outputs`: what is read of theirs beside what they read themselves.
    `resolver`: some abort in XNNPACK or the reference kernels alone."""
    read = {*outputs, *(i for o in operators for i in o.inputs)}
    for operator in operators:
        if is_of_xnnpack(operator):
            try:
                check_as_on_the_cpu(operator, tensors)
            except ModelError as error:
                raise InvokeError(f"Node {operator.index} ({operator.name}) cannot run on the CPU: {error}") from None
        unread = not read.issuperset(operator.outputs)
        if is_of_xnnpack(operator) and resolver in WITH_XNNPACK and unread:
            raise InvokeError(
                f"Node {operator.index} ({operator.name}) cannot run on the CPU: nothing reads one of its results, "
                "which XNNPACK crashes on. Let a delegate run it (GpuDelegate does), or make all its results outputs."
            )
        known = find(operator)
        if known is None or known.aborts is None or resolver not in _KERNELS[known.aborts_in]:
            continue
        problem = known.aborts(operator, tensors)
        if problem is not None:
            raise InvokeError(
                f"Node {operator.index} ({operator.name}) cannot run on the CPU: {problem}, which the official kernel "
                "aborts on. Let a delegate run it (GpuDelegate does), or convert the model with other scales."
            )
