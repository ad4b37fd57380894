// Instructions that need PTX: matrix products of a warp, and copies to shared memory that run on their own. Compute
// capability 7.5 has no such copies, and smaller products.
// `at` is a byte offset in the shared memory that the launch gives.
extern __shared__ __align__(1024) unsigned char shared[];

INLINE unsigned shared_address(unsigned at) { return (unsigned)__cvta_generic_to_shared(shared) + at; }

// 16, 8 or 4 bytes from global to shared memory, or zeros unless `real`.
#if __CUDA_ARCH__ >= 800
INLINE void copy16(unsigned at, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(at)), "l"(from), "r"(real ? 16 : 0)
               : "memory");
}
// The same, of 128 bytes that come to the second cache together.
INLINE void copy16_of_line(unsigned at, const void* from, bool real) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(at)), "l"(from), "r"(real ? 16 : 0)
               : "memory");
}
INLINE void copy8(unsigned at, const void* from, bool real) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(at)), "l"(from), "r"(real ? 8 : 0)
               : "memory");
}
INLINE void copy4(unsigned at, const void* from, bool real) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(at)), "l"(from), "r"(real ? 4 : 0)
               : "memory");
}
// 16 bytes that many threads copy, through the first cache.
INLINE void copy_again(unsigned at, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(shared_address(at)), "l"(from) : "memory");
}
// Copies are awaited in groups: all but the newest `pending` groups have arrived.
INLINE void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> INLINE void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }
#else
INLINE void copy16(unsigned at, const void* from, bool real) {
  *(uint4*)(shared + at) = real ? *(const uint4*)from : uint4{};
}
INLINE void copy8(unsigned at, const void* from, bool real) {
  *(uint2*)(shared + at) = real ? *(const uint2*)from : uint2{};
}
INLINE void copy4(unsigned at, const void* from, bool real) {
  *(unsigned*)(shared + at) = real ? *(const unsigned*)from : 0;
}
INLINE void copy_again(unsigned at, const void* from) { copy16(at, from, true); }
INLINE void copies_commit() {}
template <int pending> INLINE void copies_wait() {}
#endif

// Four 8x8 matrices of halves; lane i gives where row i % 8 of matrix i / 8 begins.
INLINE void load_matrices(unsigned (&r)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(at))
               : "memory");
}
// The same, each matrix transposed.
INLINE void load_matrices_turned(unsigned (&r)[4], unsigned at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(at))
               : "memory");
}
// d += a (16 x 16) times b (16 x 8), sums in float; and a (16 x 32) times b (32 x 8) of bytes, those of b signed, sums in int.
#if __CUDA_ARCH__ >= 800
INLINE void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#define BYTE_PRODUCT(name, kind) \
  INLINE void name(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) { \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." kind ".s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
                 "{%0, %1, %2, %3};" \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)); \
  }
#else
INLINE void multiply_part(float (&d)[4], unsigned a0, unsigned a1, unsigned b) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(b));
}
INLINE void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  multiply_part(d, a[0], a[1], b0);
  multiply_part(d, a[2], a[3], b1);
}
#define BYTE_PRODUCT(name, kind) \
  INLINE void name##_part(int& d0, int& d1, unsigned a, unsigned b) { \
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32." kind ".s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};" \
                 : "+r"(d0), "+r"(d1) \
                 : "r"(a), "r"(b)); \
  } \
  INLINE void name(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) { \
    name##_part(d[0], d[1], a[0], b0); \
    name##_part(d[2], d[3], a[1], b0); \
    name##_part(d[0], d[1], a[2], b1); \
    name##_part(d[2], d[3], a[3], b1); \
  }
#endif
BYTE_PRODUCT(multiply, "s8")
BYTE_PRODUCT(multiply_unsigned, "u8")
