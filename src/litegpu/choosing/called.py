"""What IF and WHILE call, as work to be counted: an operator that calls subgraphs costs next to nothing by itself."""

from __future__ import annotations

from collections.abc import Mapping

from litegpu.gpu.control import CalledWork, called_work, check_control, is_control
from litegpu.model.inline import inline_called
from litegpu.model.list_updates import with_list_updates
from litegpu.model.state import without_resources
from litegpu.model.types import Model

#: Rounds of a loop that only the run knows.
UNKNOWN_ROUNDS = 16

#: Operator of the main subgraph, by its number -> what comes to be run of the subgraphs that it calls.
Called = Mapping[int, tuple[CalledWork, ...]]


def called(model: Model) -> Called:
    """Of the operators that call subgraphs whose shapes are known beforehand."""
    if not any(map(is_control, model.main.operators)):
        return {}
    plain = without_resources(with_list_updates(inline_called(model))).model
    found = {}
    for operator in plain.main.operators:
        if is_control(operator) and check_control(plain, plain.main, operator, lambda *_: None) is None:
            found[operator.index] = tuple(called_work(plain, plain.main, operator, UNKNOWN_ROUNDS))
    return found
