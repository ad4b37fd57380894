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
INLINE void end_products() {
  commit_products();
  products_wait<0>();
}
// d += 64 rows of a times 8 * COLUMNS rows of b, each 16 deep, by four warps, of which each has 16 rows of d.
#define FOUR(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
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
#define FOURS_32 \
  FOUR(0), FOUR(1), FOUR(2), FOUR(3)
#define FOURS_64 \
  FOURS_32, FOUR(4), FOUR(5), FOUR(6), FOUR(7)
#define FOURS_96 \
  FOURS_64, FOUR(8), FOUR(9), FOUR(10), FOUR(11)
#define FOURS_128 \
  FOURS_96, FOUR(12), FOUR(13), FOUR(14), FOUR(15)
#define FOURS_192 \
  FOURS_128, FOUR(16), FOUR(17), FOUR(18), FOUR(19), FOUR(20), FOUR(21), FOUR(22), FOUR(23)
#define FOURS_256 \
  FOURS_192, FOUR(24), FOUR(25), FOUR(26), FOUR(27), FOUR(28), FOUR(29), FOUR(30), FOUR(31)
#define PRODUCT(columns, a_number, b_number) \
  INLINE void multiply(float (&d)[columns / 8][4], unsigned long long a, unsigned long long b) { \
    asm volatile("{.reg .pred more; setp.ne.b32 more, 1, 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" SUMS_##columns "}, %" #a_number ", %" \
                 #b_number ", more, 1, 1, 0, 0;}" \
                 : FOURS_##columns \
                 : "l"(a), "l"(b)); \
  }
PRODUCT(32, 16, 17)
PRODUCT(64, 32, 33)
PRODUCT(96, 48, 49)
PRODUCT(128, 64, 65)
PRODUCT(192, 96, 97)
PRODUCT(256, 128, 129)
