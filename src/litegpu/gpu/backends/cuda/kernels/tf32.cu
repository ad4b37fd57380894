// Products of floats on tensor cores, which know 11 digits of a float's 24 (TF32): the last 13 bits of both factors are
// ignored (compute capability 8.0).

// d += a (16 x 8) times b (8 x 8), by a warp.
INLINE void multiply_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#if WARPGROUPS
// The same by four warps, of which each has 16 rows of a in registers as above, and 8 * COLUMNS rows of b (warpgroup.cu),
// each 32 bytes deep; without `more` what d was does not count.
#define FLOAT_PRODUCT(columns, a0, a1, a2, a3, b_number, more_number) \
  INLINE void multiply_tf32(float (&d)[columns / 8][4], const unsigned (&a)[4], unsigned long long b, int more) { \
    asm volatile("{.reg .pred more; setp.ne.b32 more, %" #more_number ", 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k8.f32.tf32.tf32 {" SUMS_##columns "}, " \
                 "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_number ", more, 1, 1;}" \
                 : FOURS_##columns("+f") \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more)); \
  }
FLOAT_PRODUCT(32, 16, 17, 18, 19, 20, 21)
FLOAT_PRODUCT(64, 32, 33, 34, 35, 36, 37)
#endif
