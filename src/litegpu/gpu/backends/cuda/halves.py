"""Conversions of halves in CUDA C++, which kernels need that come before the language does: see tests/test_later.py."""

from __future__ import annotations

INLINE = "static __device__ __forceinline__"

#: Conversions of halves, which are kept as their 16 bits, and of pairs of them in a word (the first lane is low).
HALF_CONVERSIONS = f"""{INLINE} float half_to_float(unsigned short x) {{
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
  return y;
}}
{INLINE} unsigned short float_to_half(float x) {{
  unsigned short y;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
  return y;
}}
{INLINE} unsigned pack_half2(float x, float y) {{
#if __CUDA_ARCH__ >= 800
  unsigned word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
  return word;
#else
  return float_to_half(x) | (unsigned)float_to_half(y) << 16;
#endif
}}"""
