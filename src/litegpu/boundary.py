"""Turns what untrusted files and the official runtime make Python raise into errors of litegpu's own, in one place."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

from litegpu.errors import InvokeError, LiteGpuError, ModelError, OptionError, TensorError, WrongTypeError, blame

_Class = TypeVar("_Class", bound=type)
P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Whatever decoding stumbles over becomes a ModelError that names `what` and has the cause; a bug of a decoder
    looks like a damaged file then, but never gets past one who catches LiteGpuError."""
    try:
        yield
    except LiteGpuError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"[:500]
        raise ModelError(f"{what} cannot be read ({text}); fetch or convert it again") from error


def typed_errors(cls: _Class) -> _Class:
    """A class decorator: ValueErrors and RuntimeErrors that leave a public method and are not litegpu's become
    TensorError and InvokeError, those of the constructor ModelError; TypeErrors and AttributeErrors become
    WrongTypeError. Methods whose names begin with an underscore are called by those, and are left alone: an inference
    passes a dozen of them."""
    for name, value in list(vars(cls).items()):
        if name.startswith("_") and not name.startswith("__"):
            continue
        if isinstance(value, FunctionType) and value in _left_alone:
            continue
        if callable(value) and not isinstance(value, type | staticmethod | classmethod) and name not in _LEFT:
            setattr(cls, name, _typed(value, ModelError if name == "__init__" else TensorError))
        elif isinstance(value, property) and value.fget is not None:
            setattr(cls, name, value.getter(_typed(value.fget, TensorError)))
    return cls


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """The same for a function; its ValueErrors become OptionError."""
    return cast("Callable[P, R]", _typed(function, OptionError))


def left_alone(method: Callable[P, R]) -> Callable[P, R]:
    """A method that typed_errors leaves alone, as it sees to its errors itself: that takes half a microsecond."""
    _left_alone.add(method)
    return method


def typed_method(method: Callable[P, R]) -> Callable[P, R]:
    """The same for what is called later, in another way than by its class."""
    return cast("Callable[P, R]", _typed(method, TensorError))


def _typed(method: Callable[..., Any], wrong: type[LiteGpuError]) -> Callable[..., Any]:
    @functools.wraps(method)
    def typed(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except LiteGpuError:
            raise
        except OTHERS as error:
            raise typed_error(error, method.__name__, wrong) from error

    return typed


def typed_error(error: Exception, name: str, wrong: type[LiteGpuError] = TensorError) -> LiteGpuError:
    """What typed_errors has in place of one of OTHERS that has left a method of this name."""
    if isinstance(error, (RuntimeError, MemoryError)):
        found: LiteGpuError = InvokeError(str(error) or type(error).__name__)
    elif isinstance(error, _WRONG_VALUES):
        found = wrong(f"{type(error).__name__}: {error}")
    else:
        found = WrongTypeError(f"{name}(): {error}")
    nodes = getattr(error, "nodes", ())
    return blame(found, nodes) if nodes else found


_WRONG_VALUES = (ValueError, ArithmeticError, LookupError, BufferError, EOFError)
#: In whose place there is an error of litegpu's, unless they are that already.
OTHERS = (RuntimeError, MemoryError, *_WRONG_VALUES, TypeError, AttributeError)
_left_alone: set[Callable[..., Any]] = set()
_LEFT = frozenset({"__del__", "__reduce__", "__enter__", "__exit__"})
