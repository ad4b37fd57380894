// Products of four warps together whose left factor they hold in registers, after warpgroup.cu: as PRODUCT there, with
// halves and float sums. Without `more` d is what the product is, and what it was does not count. Each warp has 16 rows of a, in
// the order of multiply() of device.cu.
#define SUMS_16 \
  "%0, %1, %2, %3, %4, %5, %6, %7"
#define FOURS_16(kind) \
  FOUR(kind, 0), FOUR(kind, 1)
#define SUMS_48 \
  SUMS_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define FOURS_48(kind) \
  FOURS_32(kind), FOUR(kind, 4), FOUR(kind, 5)
#define SUMS_80 \
  SUMS_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define FOURS_80(kind) \
  FOURS_64(kind), FOUR(kind, 8), FOUR(kind, 9)
#define SUMS_112 \
  SUMS_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define FOURS_112(kind) \
  FOURS_96(kind), FOUR(kind, 12), FOUR(kind, 13)
#define KEPT_PRODUCT(name, columns, turned, a0, a1, a2, a3, b_number, more_number) \
  INLINE void name(float (&d)[columns / 8][4], const unsigned (&a)[4], unsigned long long b, int more) { \
    asm volatile("{.reg .pred more; setp.ne.b32 more, %" #more_number ", 0; " \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" SUMS_##columns "}, {%" #a0 ", %" #a1 \
                 ", %" #a2 ", %" #a3 "}, %" #b_number ", more, 1, 1, " #turned ";}" \
                 : FOURS_##columns("+f") \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more)); \
  }
// b is eight rows of `columns` numbers, or (turned) eight columns of 16.
#define KEPT_PRODUCTS(columns, ...) \
  KEPT_PRODUCT(multiply_kept, columns, 0, __VA_ARGS__) \
  KEPT_PRODUCT(multiply_kept_turned, columns, 1, __VA_ARGS__)
KEPT_PRODUCTS(16, 8, 9, 10, 11, 12, 13)
KEPT_PRODUCTS(32, 16, 17, 18, 19, 20, 21)
KEPT_PRODUCTS(48, 24, 25, 26, 27, 28, 29)
KEPT_PRODUCTS(64, 32, 33, 34, 35, 36, 37)
KEPT_PRODUCTS(80, 40, 41, 42, 43, 44, 45)
KEPT_PRODUCTS(96, 48, 49, 50, 51, 52, 53)
KEPT_PRODUCTS(112, 56, 57, 58, 59, 60, 61)
KEPT_PRODUCTS(128, 64, 65, 66, 67, 68, 69)
KEPT_PRODUCTS(192, 96, 97, 98, 99, 100, 101)

// A tile whose rows are the depth: `row_bytes` of each row lie together, chunks permuted as place() does, the next ones `slab`
// bytes further on.
template <unsigned row_bytes> INLINE unsigned long long turned_matrix(unsigned at, unsigned slab) {
  return (matrix<row_bytes>(at) & ~(0x3fffull << 16)) | (unsigned long long)(slab >> 4) << 16;
}
