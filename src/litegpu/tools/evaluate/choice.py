"""Which delegate a model is evaluated on, and the model opened there for a batch of images."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

from litegpu.delegate_registry import known_delegates, library_of
from litegpu.delegates.elsewhere import recognised
from litegpu.device_choice import best_gpu, is_device, names_delegate
from litegpu.errors import OptionError, TensorError
from litegpu.gpu.backends import registry
from litegpu.model.batch import with_batch
from litegpu.model.reader import read_model
from litegpu.session import LoadedModel, load

log = logging.getLogger("litegpu")

_KINDS = ("cpu", "gpu", *registry.words()[1:])
_PRECISIONS = ("float32", "float16", "auto")


@dataclass(frozen=True)
class DelegateChoice:
    """`kind`: "cpu", "gpu" (the best there is), or a backend, a part of one, or a device of one by its number; or the
    name of another delegate that there is.

    `precision` is that of the GPU. `num_threads` are the CPU's, `max_delegated_partitions` the GPU's (0: all), as is
    `arithmetic`, of tensors of 8 bits.
    """

    kind: str = "cpu"
    precision: str = "float16"
    num_threads: int = field(default=1, compare=False)
    max_delegated_partitions: int = 1
    arithmetic: str = "auto"

    def __post_init__(self) -> None:
        foreign = None if self.is_named else recognised(self.kind)
        if foreign is not None:
            library_of(foreign)  # raises if it is not here
        elif self.kind not in _KINDS and not self.is_named and not (":" in self.kind and is_device(self.kind)):
            numbered = " or ".join(f"{name}:<index>" for name in registry.numbered())
            names = ", ".join(known.name for known in known_delegates() if known.name not in _KINDS)
            raise OptionError(
                f"The delegate {self.kind!r} is unknown: use {', '.join(_KINDS)} or {numbered}, or one of: {names}"
            )
        if self.precision not in _PRECISIONS:
            raise OptionError(f"The precision {self.precision!r} is unknown: use {', '.join(_PRECISIONS)}")
        if self.num_threads < 1:
            raise OptionError(f"The CPU threads are {self.num_threads}; there must be 1 or more")
        if self.max_delegated_partitions < 0:
            raise OptionError(f"max_delegated_partitions is {self.max_delegated_partitions}; it must be 0 or more")

    @property
    def is_named(self) -> bool:
        """Whether it is a delegate by name, other than the GPU's."""
        return self.kind not in _KINDS and names_delegate(self.kind)

    @property
    def on_gpu(self) -> bool:
        return self.kind in _KINDS[1:] or (
            is_device(self.kind) and not names_delegate(self.kind) and self.kind != "cpu"
        )

    @property
    def delegated(self) -> bool:
        return self.kind != "cpu"

    def __str__(self) -> str:
        """ "cpu", "gpu/float16"; also how a choice is written on the command line."""
        return f"{self.kind}/{self.precision}" if self.delegated else self.kind


def parse_choice(text: str, like: DelegateChoice | None = None) -> DelegateChoice:
    """ "cpu", "xnnpack" (the same), "gpu", "cuda:1/float32" ...; what is not said is as in `like`."""
    like = like or DelegateChoice()
    kind, _, precision = text.partition("/")
    return DelegateChoice(
        "cpu" if kind in ("", "xnnpack") else kind,
        precision or like.precision,
        like.num_threads,
        like.max_delegated_partitions,
        like.arithmetic,
    )


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model that takes `batch` items at once. `note` says why it is one at a time although more were asked for."""

    loaded: LoadedModel
    batch: int
    note: str = ""


def open_model(model: str | bytes, choice: DelegateChoice, batch: int = 1) -> OpenedModel:
    """The model on its delegate, for `batch` items at once if its rows can be kept apart, else for one.

    Raises ModelError, OptionError, and DeviceError if there is no such device: a GPU that is missing is never replaced
    by the CPU, whose accuracy nobody asked for.
    """
    source, note = model, ""
    if batch > 1:
        try:
            source = bytes(with_batch(read_model(model), batch).content)
        except TensorError as error:
            batch, note = 1, str(error)
            log.info("The model takes one image at a time: %s", error)
    if not choice.delegated:
        return OpenedModel(load(source, "cpu", num_threads=choice.num_threads), batch, note)
    if not choice.on_gpu:
        return OpenedModel(_with_delegate(source, choice), batch, note)
    options: dict[str, Any] = {"max_delegated_partitions": choice.max_delegated_partitions}
    if choice.arithmetic != "auto":
        options["arithmetic"] = choice.arithmetic
    device = choice.kind
    if device == "gpu":
        device = best_gpu()
    elif not is_device(device):  # a part of a backend
        device, options["backend"] = registry.owner(device), device
    loaded = load(source, device, choice.precision, num_threads=choice.num_threads, **options)
    loaded.interpreter.invoke()  # what drivers compile at the first inference is no latency of a model
    return OpenedModel(loaded, batch, note)


def _with_delegate(source: str | bytes, choice: DelegateChoice) -> LoadedModel:
    """On a delegate by name, or one of another system whose library is here."""
    if choice.is_named:
        return load(source, choice.kind, choice.precision, num_threads=choice.num_threads)
    return load(source, delegate=choice.kind, num_threads=choice.num_threads)
