"""How much a device computes and moves in a second at the most: stated figures of known ones, or measured ones."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from litegpu.errors import OptionError


@dataclass(frozen=True)
class DeviceRates:
    """What a device sustains at the most.

    float32, float16: operations in a second (float16 with float32 sums, on tensor cores where there are some).
    bandwidth: bytes in a second, of its own memory. launch: seconds that a small kernel of a recorded sequence takes.
    link: bytes in a second between host and device. wait: seconds to hand over and to wait for the result, once for a
    partition. source: where the figures are from.
    """

    name: str
    float32: float
    float16: float
    bandwidth: float
    launch: float
    link: float
    wait: float
    source: str

    def limit(self, flops: int, nbytes: int, half: bool = False) -> float:
        """Seconds of arithmetic or of memory traffic, whichever is longer: the roofline."""
        return max(flops / (self.float16 if half else self.float32), nbytes / self.bandwidth)

    def bound(self, flops: int, nbytes: int, half: bool = False) -> str:
        """What that limit is: "arithmetic" or "memory", "" for what takes neither."""
        if flops == nbytes == 0:
            return ""
        arithmetic = flops / (self.float16 if half else self.float32)
        return "arithmetic" if arithmetic > nbytes / self.bandwidth else "memory"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


#: What kernels sustain of a data sheet's arithmetic, and of its bandwidth.
ARITHMETIC, BANDWIDTH = 0.8, 0.9
_SHEET = "data sheet: 80% of its arithmetic, 90% of its bandwidth"


def _stated(name: str, float32: float, float16: float, bandwidth: float, link: float, launch: float) -> DeviceRates:
    """`float32`, `float16` (dense, float32 sums) in teraflops, `bandwidth` and `link` in GB/s, `launch` in us, as
    stated; two digits are kept."""

    def sustained(value: float, share: float) -> float:
        return float(f"{value * share:.2g}")

    return DeviceRates(
        name, sustained(float32 * 1e12, ARITHMETIC), sustained(float16 * 1e12, ARITHMETIC),
        sustained(bandwidth * 1e9, BANDWIDTH), launch * 1e-6, sustained(link * 1e9, BANDWIDTH), 10e-6, _SHEET,
    )  # fmt: skip


#: 0.85 us for a kernel were measured on an H200; a WebGPU queue takes more.
KNOWN = (
    _stated("H200", 67, 989, 4800, 64, 0.85),
    _stated("H100", 67, 989, 3350, 64, 0.85),
    _stated("A100", 19.5, 312, 2039, 32, 1.0),
    _stated("L4", 30.3, 121, 300, 32, 1.0),
    _stated("T4", 8.1, 65, 320, 16, 1.5),
    _stated("RTX 4090", 82.6, 165, 1008, 32, 1.0),
    _stated("RTX 3090", 35.6, 71, 936, 32, 1.0),
    _stated("M1", 2.6, 2.6, 68, 68, 3.0),
    _stated("M2", 3.6, 3.6, 100, 100, 3.0),
)
H200 = KNOWN[0]


def named(name: str) -> DeviceRates:
    """Of a known device; raises OptionError that says which there are."""
    for rates in KNOWN:
        if rates.name.lower() == name.strip().lower():
            return rates
    raise OptionError(f"the figures of {name!r} are not known; those of {', '.join(r.name for r in KNOWN)} are")


def of_device(name: str) -> DeviceRates | None:
    """Of a device as its driver calls it ("NVIDIA H200"), None for one that is not known."""
    words = name.replace("-", " ").lower().split()
    for rates in KNOWN:
        wanted = rates.name.lower().split()
        if any(words[i : i + len(wanted)] == wanted for i in range(len(words))):
            return rates
    return None
