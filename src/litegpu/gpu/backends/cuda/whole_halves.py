"""Whole numbers within limits that are stored as halves, four at once: limited as pairs, of which each is half as many
instructions. (Quanta of 8 bits, in what follows a layer.)"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from litegpu.gpu.backends.cuda.halves import INLINE
from litegpu.gpu.lang import tree
from litegpu.gpu.lang.types import Type, f32, i32, vec
from litegpu.gpu.lang.value import TracedValue

_LARGEST = 2048  # up to which halves have every whole number
_HALVES = Type("f16", 4)


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
        low, high = f"{self.low}.0f", f"{self.high}.0f"
        convert = "cvt.rn.relu.f16x2.f32 %0, %1, %2;" if self.low == 0 else "cvt.rn.f16x2.f32 %0, %1, %2;"
        at_least = "" if self.low == 0 else " max.NaN.f16x2 %0, %0, %4;"
        return f"""{INLINE} unsigned {self.name}_pair(float x, float y) {{
#if __CUDA_ARCH__ >= 800
  unsigned word;
  x = __fadd_rn(__fadd_rn(x, 12582912.0f), -12582912.0f), y = __fadd_rn(__fadd_rn(y, 12582912.0f), -12582912.0f);
  asm("{{{convert}{at_least} min.NaN.f16x2 %0, %0, %3;}}"
      : "=&r"(word) : "f"(y), "f"(x), "r"({_pair(self.high)}), "r"({_pair(self.low)}));
  return word;
#else
  return pack_half2(rintf(at_most(at_least(x, {low}), {high})), rintf(at_most(at_least(y, {low}), {high})));
#endif
}}
{INLINE} uint2 {self.name}(float4 a) {{
  return uint2{{{self.name}_pair(a.x, a.y), {self.name}_pair(a.z, a.w)}};
}}"""

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


def of_store(store: tree.Store) -> tuple[WholeHalves, tuple[TracedValue, ...]] | None:
    """How what is stored is made, and the values that are made with it; the last one's operand is given to the
    function. None of other stores."""
    made, memory = store.value, store.memory
    if (
        memory.storage != _HALVES
        or memory.type != vec(f32, 4)
        or not made.args
        or made.op not in ("round_small", "cast")
    ):
        return None
    limited = made.args[0]
    if limited.op != "min" or limited.args[0].op != "max" or limited.type not in (vec(f32, 4), vec(i32, 4)):
        return None
    low, high = _whole(limited.args[0].args[1]), _whole(limited.args[1])
    if low is None or high is None or low > high:
        return None
    if made.op == "round_small":
        fits = max(abs(low), abs(high)) <= _LARGEST
    else:  # saturated to bytes
        fits = limited.type == vec(i32, 4) and low == 0 and high == 255
    return (WholeHalves(limited.type, low, high), (made, limited, limited.args[0])) if fits else None


def _whole(value: TracedValue) -> int | None:
    """The whole number that it is in all lanes, if it is one."""
    number = (value.args[0] if value.op == "splat" else value).constant
    return int(number) if number is not None and float(number).is_integer() else None


def _pair(number: int) -> str:
    """Two halves, as a word."""
    return f"0x{int(np.float16(number).view(np.uint16)) * 0x10001:08x}u"
