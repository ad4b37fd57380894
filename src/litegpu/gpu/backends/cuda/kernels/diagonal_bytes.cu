// More products of bytes by a warp: d = c + a times b, those of a unsigned or not. 16 x 32 times 32 x 8, and half as deep.
template <bool is_unsigned>
INLINE void multiply_bytes_onto(int (&d)[4], int4 c, const unsigned (&a)[4], unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
#define PRODUCT(kind) \
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." kind ".s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
               "{%10, %11, %12, %13};" \
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w))
  if (is_unsigned)
    PRODUCT("u8");
  else
    PRODUCT("s8");
#undef PRODUCT
#else
  d[0] = c.x, d[1] = c.y, d[2] = c.z, d[3] = c.w;
  if (is_unsigned)
    multiply_unsigned(d, a, b0, b1);
  else
    multiply(d, a, b0, b1);
#endif
}
template <bool is_unsigned>
INLINE void multiply_half_onto(int (&d)[4], int4 c, unsigned a0, unsigned a1, unsigned b) {
#if __CUDA_ARCH__ >= 800
#define PRODUCT(kind) \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.s32." kind ".s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %8, %9, %10};" \
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) \
               : "r"(a0), "r"(a1), "r"(b), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w))
  if (is_unsigned)
    PRODUCT("u8");
  else
    PRODUCT("s8");
#undef PRODUCT
#else
  d[0] = c.x, d[1] = c.y, d[2] = c.z, d[3] = c.w;
  if (is_unsigned) {
    multiply_unsigned_part(d[0], d[1], a0, b);
    multiply_unsigned_part(d[2], d[3], a1, b);
  } else {
    multiply_part(d[0], d[1], a0, b);
    multiply_part(d[2], d[3], a1, b);
  }
#endif
}
// Two 8x8 matrices of halves, the first two numbers of `r`; lane i below 16 gives where row i % 8 of matrix i / 8 begins.
INLINE void load_two_matrices(unsigned (&r)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(shared_address(at))
               : "memory");
}
