"""The exceptions a user of litegpu can meet; each also derives from the built-in that the official API raises."""

from __future__ import annotations

from typing import TypeVar

from litegpu.visible import visible

_Error = TypeVar("_Error", bound=Exception)


class LiteGpuError(Exception):
    """Base class of every error that litegpu raises on purpose. What a message quotes from a file cannot command the
    terminal that it is shown on."""

    def __str__(self) -> str:
        return visible(super().__str__())


class ModelError(LiteGpuError, ValueError):
    """The bytes are not a model that can be read, or the model contradicts itself."""


class TensorError(LiteGpuError, ValueError):
    """A tensor was addressed, shaped or typed wrongly by the caller."""


class OptionError(LiteGpuError, ValueError):
    """An option has an unknown name or an impossible value."""


class WrongTypeError(LiteGpuError, TypeError):
    """An argument is of a type that cannot be used, or the number or names of the arguments are wrong."""


class InvokeError(LiteGpuError, RuntimeError):
    """Allocation or inference failed."""


class OpenShapeError(InvokeError):
    """The model does not run in the sizes that its file has in place of those that it leaves open."""


class QueueFullError(InvokeError):
    """So many calls wait for a batcher that it takes no more."""


class DeadlineError(InvokeError, TimeoutError):
    """The time that a call was given was over before its result was there."""


class DelegateError(LiteGpuError, RuntimeError):
    """A delegate could not take what the caller insisted that it takes, or failed while preparing."""


class DelegateLoadError(DelegateError, OptionError, OSError):
    """There is no delegate of a name, or its library or package cannot be loaded. Also what the official function
    raises, an OSError or a ValueError."""


class DeviceError(LiteGpuError, RuntimeError):
    """A device is missing, was lost, or refused a request."""


class SoftwareDeviceError(DeviceError):
    """The only device is a program that computes on the CPU, and it was not asked for by name."""


class ForkError(DeviceError):
    """This process was forked, and what is asked for stayed behind: a GPU that the process before it had used, or what
    a model on the CPU keeps, whose threads are there."""


class DelegateTypeError(DelegateError, AttributeError):
    """An object was given as a delegate that does not implement the delegate protocol."""


def blame(error: _Error, nodes: tuple[int, ...]) -> _Error:
    """The error, with the numbers of the operators that it is about, unless others were blamed before."""
    error.__dict__.setdefault("nodes", nodes)
    return error
