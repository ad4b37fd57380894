// Products of four warps together, which tensor cores of compute capability 9.0 compute while the warps go on (wgmma).

// A tile in shared memory as four warps multiply it: rows of `row_bytes`, whose chunks are permuted as place() does, and
// which begin at a multiple of eight rows. What is written there by other instructions has to be announced.
template <unsigned row_bytes> INLINE unsigned long long matrix(unsigned at) {
  constexpr unsigned long long permuted = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
  constexpr unsigned long long eight_rows = row_bytes * 8 / 16;
  return (shared_address(at) >> 4 & 0x3fff) | 1ull << 16 | eight_rows << 32 | permuted << 62;
}
INLINE void announce_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
INLINE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
INLINE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all but the newest `pending` groups of products are done.
template <int pending> INLINE void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory"); }
// A sum is in its register from here on. (What sums begin with may be put between the first products of several, else,
// which the compiler then lets wait for each other.)
INLINE void pin(float& sum) { asm volatile("" : "+f"(sum)); }
INLINE void pin(int& sum) { asm volatile("" : "+r"(sum)); }
INLINE void end_products() {
  commit_products();
  products_wait<0>();
}
// d += 64 rows of a times 8 * COLUMNS rows of b, each 32 bytes deep, by four warps, of which each has 16 rows of d: halves
// with float sums, or signed bytes of b and signed or unsigned ones of a with int sums.
#define FOUR(kind, i) kind(d[i][0]), kind(d[i][1]), kind(d[i][2]), kind(d[i][3])
#define SUMS_32 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SUMS_64 \
  SUMS_32 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SUMS_96 \
  SUMS_64 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SUMS_128 \
  SUMS_96 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_192 \
  SUMS_128 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SUMS_256 \
  SUMS_192 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, " \
  "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FOURS_32(kind) \
  FOUR(kind, 0), FOUR(kind, 1), FOUR(kind, 2), FOUR(kind, 3)
#define FOURS_64(kind) \
  FOURS_32(kind), FOUR(kind, 4), FOUR(kind, 5), FOUR(kind, 6), FOUR(kind, 7)
#define FOURS_96(kind) \
  FOURS_64(kind), FOUR(kind, 8), FOUR(kind, 9), FOUR(kind, 10), FOUR(kind, 11)
#define FOURS_128(kind) \
  FOURS_96(kind), FOUR(kind, 12), FOUR(kind, 13), FOUR(kind, 14), FOUR(kind, 15)
#define FOURS_192(kind) \
  FOURS_128(kind), FOUR(kind, 16), FOUR(kind, 17), FOUR(kind, 18), FOUR(kind, 19), FOUR(kind, 20), FOUR(kind, 21), \
  FOUR(kind, 22), FOUR(kind, 23)
#define FOURS_256(kind) \
  FOURS_192(kind), FOUR(kind, 24), FOUR(kind, 25), FOUR(kind, 26), FOUR(kind, 27), FOUR(kind, 28), FOUR(kind, 29), \
  FOUR(kind, 30), FOUR(kind, 31)
#define PRODUCT(name, sum, kind, columns, types, flags, a_number, b_number) \
  INLINE void name(sum (&d)[columns / 8][4], unsigned long long a, unsigned long long b) { \
    asm volatile("{.reg .pred more; setp.ne.b32 more, 1, 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #columns types " {" SUMS_##columns "}, %" #a_number ", %" #b_number \
                 ", more" flags ";}" \
                 : FOURS_##columns(kind) \
                 : "l"(a), "l"(b)); \
  }
#define PRODUCTS(columns, a_number, b_number) \
  PRODUCT(multiply, float, "+f", columns, "k16.f32.f16.f16", ", 1, 1, 0, 0", a_number, b_number) \
  PRODUCT(multiply, int, "+r", columns, "k32.s32.s8.s8", "", a_number, b_number) \
  PRODUCT(multiply_unsigned, int, "+r", columns, "k32.s32.u8.s8", "", a_number, b_number)
PRODUCTS(32, 16, 17)
PRODUCTS(64, 32, 33)
PRODUCTS(96, 48, 49)
PRODUCTS(128, 64, 65)
PRODUCTS(192, 96, 97)
PRODUCTS(256, 128, 129)
