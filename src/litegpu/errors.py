"""The exceptions a user of litegpu can meet; each also derives from the built-in that the official API raises."""

from __future__ import annotations


class LiteGpuError(Exception):
    """Base class of every error that litegpu raises on purpose."""


class ModelError(LiteGpuError, ValueError):
    """The bytes are not a model that can be read, or the model contradicts itself."""


class TensorError(LiteGpuError, ValueError):
    """A tensor was addressed, shaped or typed wrongly by the caller."""


class OptionError(LiteGpuError, ValueError):
    """An option has an unknown name or an impossible value."""


class InvokeError(LiteGpuError, RuntimeError):
    """Allocation or inference failed."""


class DelegateError(LiteGpuError, RuntimeError):
    """A delegate could not take what the caller insisted that it takes, or failed while preparing."""


class DeviceError(LiteGpuError, RuntimeError):
    """A device is missing, was lost, or refused a request."""


class DelegateTypeError(DelegateError, AttributeError):
    """An object was given as a delegate that does not implement the delegate protocol."""
