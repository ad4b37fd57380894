"""What a backend tells `litegpu doctor`, if it can: its devices, what the system has for it, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from litegpu.gpu.backends.contract import Device
from litegpu.gpu.lang.features import Features


@dataclass(frozen=True)
class ListedDevice:
    """A device that may be opened. `api`: as in DeviceInfo.backend. `kind`: "discrete", "software" or the like."""

    name: str
    api: str
    kind: str
    driver: str
    features: Features  # so far as they are known before it is opened
    open: Callable[[], Device]


@dataclass(frozen=True)
class Listing:
    """A backend's devices. `chosen`: the number of the one that is taken where nobody names one; `problem`: why there
    is none. `note`: a line for people. `repair`: what to do before anything else, where the backend itself is broken.
    """

    devices: tuple[ListedDevice, ...]
    chosen: int | None = None
    problem: str | None = None
    note: str = ""
    repair: str | None = None


@dataclass(frozen=True)
class RenderNode:
    """A GPU's device file on Linux."""

    path: str
    accessible: bool
    group: str


@dataclass(frozen=True)
class SystemReport:
    """What the operating system shows of GPUs, whichever backend may drive them."""

    system: str  # sys.platform
    container: bool
    pci_gpus: tuple[str, ...]  # makers of the GPUs on the PCI bus (Linux)
    render_nodes: tuple[RenderNode, ...]
    makers: tuple[str, ...]  # of GPUs that a backend found signs of
    variables: dict[str, str]  # set variables that change which device is found

    @property
    def shows_gpu(self) -> bool | None:
        """Whether any sign of a real GPU is visible; None where this is not known (not Linux)."""
        if not self.system.startswith("linux"):
            return None
        return bool(self.pci_gpus or self.render_nodes or self.makers)


class SystemPart(Protocol):
    """What the system has for one backend: a frozen dataclass of plain data."""

    @property
    def makers(self) -> tuple[str, ...]:
        """Makers of GPUs that show by it."""

    def lines(self) -> list[str]:
        """For people, one fact each."""


class Doctor(Protocol):
    """One backend's part in `litegpu doctor`. Nothing of it raises."""

    packages: tuple[str, ...]  # of Python, by their names in the registry
    variables: tuple[str, ...]  # of the environment, that change which device is found

    def list_devices(self) -> Listing:
        """The devices, best first."""

    def inspect(self, environment: Mapping[str, str]) -> SystemPart:
        """What the system has for the backend."""

    def advice(self, listing: Listing, part: SystemPart, system: SystemReport, working: Sequence[str]) -> list[str]:
        """What to do so that its devices appear, most useful first. `listing` and `part`: what it said
        itself. `working`: names and drivers of the hardware that works, through any backend."""

    def install_advice(self) -> str:
        """What to install where nothing else is wrong; empty if that is another backend's to say."""


@runtime_checkable
class Diagnosed(Protocol):
    """A backend that has a part in `litegpu doctor`; of others the device that they open is listed."""

    def doctor(self) -> Doctor:
        """The part."""
