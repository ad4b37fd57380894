"""Flags that several commands share, declared once as the parameters of a function that makes something of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_type_hints

F = TypeVar("F", bound=Callable[..., object])


class FlagGroup:
    """As the default of a command's parameter: in its place the command has the flags that `make` has as parameters,
    and gets what `make` returns for them."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self.parameters = list(inspect.signature(make).parameters.values())


def with_flag_groups(command: F) -> F:
    """A command as Typer is to see it: with the flags of its groups in place of those parameters."""
    groups: dict[str, FlagGroup] = {}
    parameters: list[inspect.Parameter] = []
    own = inspect.signature(command).parameters
    for parameter in own.values():
        if isinstance(parameter.default, FlagGroup):
            groups[parameter.name] = parameter.default
            parameters += parameter.default.parameters
        else:
            parameters.append(parameter)
    hints: dict[str, Any] = {}
    for group in groups.values():
        hints |= get_type_hints(group.make, localns=_unresolved(group.make, "return"), include_extras=True)
    # What a group makes may be of a type that is imported only when the command runs.
    hints |= get_type_hints(command, localns=_unresolved(command, *groups), include_extras=True)

    @functools.wraps(command)
    def run(**given: Any) -> object:
        made = {
            name: group.make(**{p.name: given.pop(p.name) for p in group.parameters}) for name, group in groups.items()
        }
        return command(**given, **made)

    del run.__wrapped__  # else its signature would be found
    seen = [p.replace(annotation=hints[p.name]) for p in parameters]
    run.__signature__ = inspect.Signature(seen)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in seen}
    return run  # type: ignore[return-value]


def _unresolved(function: Callable[..., Any], *names: str) -> dict[str, Any]:
    """The annotations of these parameters, as names that mean anything at all."""
    return {str(function.__annotations__[name]): object for name in names if name in function.__annotations__}
