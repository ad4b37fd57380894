"""Numbers within limits that are stored as halves, four at once: limited as pairs, of which each is half as many
instructions. (RELU6; whole numbers, as of quanta of 8 bits in what follows a layer.)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.halves import INLINE
from litegpu.gpu.lang import tree
from litegpu.gpu.lang.types import Type, f32, i32, vec
from litegpu.gpu.lang.value import TracedValue

_LARGEST = 2048  # up to which halves have every whole number
_HALVES = Type("f16", 4)


@dataclass(frozen=True)
class WithinLimits:
    """How floats are converted within limits: a conversion keeps the order of numbers, so that it may be in front of
    the limits. Each limit is what halves have nearest to it. A NaN stays one."""

    low: float
    high: float

    @property
    def name(self) -> str:
        return f"halves_within_{_bits(self.low):04x}_{_bits(self.high):04x}"

    @property
    def text(self) -> str:
        """The function, of what LIMITS and HALF_CONVERSIONS define."""
        low, high = (f"half_to_float(0x{_bits(limit):04x})" for limit in (self.low, self.high))
        return _of_pairs(self.name, self.low, self.high, "", f"at_most(at_least({{}}, {low}), {high})")


@dataclass(frozen=True)
class WholeHalves:
    """How floats are rounded, or ints converted, within limits."""

    of: Type  # of four lanes
    low: int
    high: int

    @property
    def name(self) -> str:
        return f"whole_halves_of_{self.of.kind}_{self.low}_{self.high}".replace("-", "minus_")

    @property
    def text(self) -> str:
        """The function, of what LIMITS and HALF_CONVERSIONS define."""
        return self._of_floats() if self.of.kind == "f32" else self._of_ints()

    def _of_floats(self) -> str:
        """Limited behind the rounding, which is the same: of what is too large to be rounded so, and of what halves do
        not have, a limit is left. A NaN stays one."""
        rounded = ", ".join(f"{n} = __fadd_rn(__fadd_rn({n}, 12582912.0f), -12582912.0f)" for n in "xy")
        limited = f"rintf(at_most(at_least({{}}, {self.low}.0f), {self.high}.0f))"
        return _of_pairs(self.name, self.low, self.high, f"  {rounded};\n", limited)

    def _of_ints(self) -> str:
        """Within the limits of bytes, to which they are saturated; their bits become the last ones of 1024 and them."""
        limited = [f"(float)(a.{n} < 0 ? 0 : a.{n} > 255 ? 255 : a.{n})" for n in "xyzw"]
        return f"""#ifdef __CUDA_ARCH__
{INLINE} unsigned {self.name}_pair(unsigned bytes, unsigned places) {{
  unsigned word;
  asm("{{prmt.b32 %0, %1, 0x64, %2; add.f16x2 %0, %0, %3;}}"
      : "=&r"(word) : "r"(bytes), "r"(places), "r"({_pair(-1024)}));
  return word;
}}
#endif
{INLINE} uint2 {self.name}(int4 a) {{
#ifdef __CUDA_ARCH__
  unsigned bytes;
  asm("{{.reg .u32 high; cvt.pack.sat.u8.s32.b32 high, %4, %3, 0; cvt.pack.sat.u8.s32.b32 %0, %2, %1, high;}}"
      : "=r"(bytes) : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w));
  return uint2{{{self.name}_pair(bytes, 0x4140u), {self.name}_pair(bytes, 0x4342u)}};
#else
  return uint2{{pack_half2({limited[0]}, {limited[1]}), pack_half2({limited[2]}, {limited[3]})}};
#endif
}}"""


def of_store(
    store: tree.Store, may_lose_sign: Callable[[TracedValue], bool]
) -> tuple[WholeHalves | WithinLimits, tuple[TracedValue, ...]] | None:
    """How what is stored is made, and the values that are made with it; the last one's operand is given to the
    function. None of other stores. `may_lose_sign`: of what nobody can tell -0 from 0."""
    made, memory = store.value, store.memory
    if memory.storage != _HALVES or memory.type != vec(f32, 4):
        return None
    limited = made.args[0] if made.op in ("round_small", "cast") else made
    if limited.op != "min" or limited.args[0].op != "max" or limited.type not in (vec(f32, 4), vec(i32, 4)):
        return None
    least, most = _number(limited.args[0].args[1]), _number(limited.args[1])
    if least is None or most is None or least > most:
        return None
    if made is limited:
        signed = least == 0 and not may_lose_sign(limited.args[0].args[0])
        fits = not signed and max(abs(least), abs(most)) <= float(np.finfo(np.float16).max)
        return (WithinLimits(least, most), (limited, limited.args[0])) if fits else None
    if not least.is_integer() or not most.is_integer():
        return None
    low, high = int(least), int(most)
    if made.op == "round_small":
        fits = max(abs(low), abs(high)) <= _LARGEST
    else:  # saturated to bytes
        fits = limited.type == vec(i32, 4) and low == 0 and high == 255
    return (WholeHalves(limited.type, low, high), (made, limited, limited.args[0])) if fits else None


def _number(value: TracedValue) -> float | None:
    """The number that it is in all lanes, if it is one."""
    number = (value.args[0] if value.op == "splat" else value).constant
    return None if number is None or np.isnan(number) else float(number)


def _of_pairs(name: str, low: float, high: float, rounded: str, limited: str) -> str:
    """The function of four floats by one of two, which are `rounded` and converted, and then limited; `limited` says
    the same of one float."""
    relu = _bits(low) == 0  # as a part of the conversion
    convert, at_least = (".relu", "") if relu else ("", " max.NaN.f16x2 %0, %0, %4;")
    return f"""{INLINE} unsigned {name}_pair(float x, float y) {{
#if __CUDA_ARCH__ >= 800
  unsigned word;
{rounded}  asm("{{cvt.rn{convert}.f16x2.f32 %0, %1, %2;{at_least} min.NaN.f16x2 %0, %0, %3;}}"
      : "=&r"(word) : "f"(y), "f"(x), "r"({_pair(high)}), "r"({_pair(low)}));
  return word;
#else
  return pack_half2({limited.format("x")}, {limited.format("y")});
#endif
}}
{INLINE} uint2 {name}(float4 a) {{
  return uint2{{{name}_pair(a.x, a.y), {name}_pair(a.z, a.w)}};
}}"""


def _pair(number: float) -> str:
    """Two halves, as a word."""
    return f"0x{_bits(number) * 0x10001:08x}u"


def _bits(number: float) -> int:
    """Those of the half nearest to it."""
    return int(np.float16(number).view(np.uint16))
