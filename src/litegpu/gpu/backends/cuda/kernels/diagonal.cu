// More products of a warp, and what is done to two halves at once.
// d = c + a (16 x 16) times b (16 x 8), sums in float.
INLINE void multiply_onto(float (&d)[4], float4 c, const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%10, %11, %12, %13};"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c.x), "f"(c.y), "f"(c.z), "f"(c.w));
#else
  d[0] = c.x, d[1] = c.y, d[2] = c.z, d[3] = c.w;
  multiply(d, a, b0, b1);
#endif
}
// d = c + a (16 x 8, its rows 0 to 7 and 8 to 15) times b (8 x 8).
INLINE void multiply_eight_onto(float (&d)[4], float4 c, unsigned a0, unsigned a1, unsigned b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
               : "r"(a0), "r"(a1), "r"(b), "f"(c.x), "f"(c.y), "f"(c.z), "f"(c.w));
}
// Two floats, of which negative ones become zero, to halves; NaN stays NaN.
INLINE unsigned pack_positive(float x, float y) {
#if __CUDA_ARCH__ >= 800
  unsigned word;
  asm("cvt.rn.relu.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
  return word;
#else
  return pack_half2(x < 0 ? 0 : x, y < 0 ? 0 : y);
#endif
}
// The lesser ones of two halves each; NaN where either is.
#if __CUDA_ARCH__ >= 800
INLINE unsigned lesser_halves(unsigned a, unsigned b) {
  unsigned word;
  asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
  return word;
}
#else
INLINE float lesser(float x, float y) { return x != x || x < y ? x : y; }
INLINE unsigned lesser_halves(unsigned a, unsigned b) {
  return pack_half2(lesser(half_to_float((unsigned short)a), half_to_float((unsigned short)b)),
                    lesser(half_to_float((unsigned short)(a >> 16)), half_to_float((unsigned short)(b >> 16))));
}
#endif
