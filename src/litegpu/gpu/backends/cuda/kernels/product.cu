// The product of two tiles in shared memory, BM rows times BN columns, by steps of BK along their depth: on tensor cores
// (HALF) or by plain multiplications (float). Sums are float, or int where the tensor cores multiply bytes (HALF and WHOLE;
// those of the left factor are unsigned with UNSIGNED). WARPS_M, WARPS_N and WARPS_K warps divide rows, columns
// and depth; each of the latter has sums of its own, which are added up at the end. With WARPGROUPS four warps along the
// rows multiply 64 rows at once, and the tensor cores read both factors from shared memory (compute capability 9.0).
// With row_norm.cu the left factor's rows are normalised.
#if WHOLE
typedef signed char Element;
typedef int Sum;
typedef int2 Two;
typedef int4 Four;
#else
#if HALF
typedef unsigned short Element;
#else
typedef float Element;
#endif
typedef float Sum;
typedef float2 Two;
typedef float4 Four;
#endif
#if WHOLE && UNSIGNED
#define MULTIPLY multiply_unsigned
#else
#define MULTIPLY multiply
#endif
constexpr unsigned PER_CHUNK = 16 / sizeof(Element), CHUNKS = BK / PER_CHUNK, ROW_BYTES = BK * sizeof(Element);
constexpr unsigned THREADS = 32 * WARPS_M * WARPS_N * WARPS_K;
constexpr unsigned TILE_M = BM / WARPS_M, TILE_N = BN / WARPS_N;  // of a warp
constexpr unsigned PITCH = BN + 8;  // of the sums in shared memory, so that the rows of a store lie in different banks
static_assert(THREADS % CHUNKS == 0 && CHUNKS % WARPS_K == 0, "tile");
static_assert(!WARPGROUPS || (WARPS_M % 4 == 0 && WARPS_N == 1 && WARPS_K == 1 && BM % (16 * WARPS_M) == 0), "warpgroups");

// Where 16 bytes of a tile's row lie: permuted so that the same chunk of eight rows is in eight different groups of banks.
INLINE unsigned place(unsigned row, unsigned chunk) {
  const unsigned turn = CHUNKS >= 8 ? row % 8 : row / (8 / CHUNKS) % CHUNKS;
  return row * ROW_BYTES + (chunk ^ turn) * 16;
}

struct Product {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned group = warp / (WARPS_M * WARPS_N), warp_m = warp % WARPS_M, warp_n = warp / WARPS_M % WARPS_N;
#if HALF
  static constexpr unsigned ROWS = TILE_M / 16, COLUMNS = TILE_N / 8;  // products of a warp
  static constexpr unsigned NEXT = WARPGROUPS ? 64 : 16;               // rows from one of them to the next
  Sum sums[ROWS][COLUMNS][4] = {};
  const unsigned first_row = WARPGROUPS ? warp_m / 4 * (4 * TILE_M) + warp_m % 4 * 16 : warp_m * TILE_M;
  const unsigned a_row = warp_m * TILE_M + lane % 16, a_chunk = lane / 16;
  const unsigned b_row = warp_n * TILE_N + lane % 8 + lane / 16 * 8, b_chunk = lane / 8 % 2;
#ifdef ROW_NORM
  RowMoments moments[ROWS];
#endif
#else
  static constexpr unsigned ROWS = TILE_M / 4, COLUMNS = TILE_N / 8;  // of a thread; those of a warp alternate
  float sums[ROWS][COLUMNS] = {};
  const unsigned a_row = warp_m * TILE_M + lane / 8, b_row = warp_n * TILE_N + lane % 8;
#endif

  // One step: a(row, chunk) is the place of 16 bytes of the left tile; the right one begins at `b`.
  template <class Left> __device__ __forceinline__ void add(Left a, unsigned b) {
#if WARPGROUPS
    begin_products();
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++)
#pragma unroll
      for (unsigned i = 0; i < BK / 16; i++)  // the 16 bytes that a matrix begins with lie where they would unpermuted
        multiply(sums[m], matrix<ROW_BYTES>(a(warp_m / 4 * (4 * TILE_M) + m * 64, 0) + i * 32),
                 matrix<ROW_BYTES>(b + i * 32));
#ifdef ROW_NORM
    commit_products();
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++)
      moments[m].read<BK / 16>([&](unsigned chunk) { return a(first_row + m * 64 + lane % 16, chunk + lane / 16); });
#endif
    end_products();
#elif HALF
#pragma unroll
    for (unsigned i = 0; i < ROW_BYTES / 32 / WARPS_K; i++) {
      const unsigned first = (i * WARPS_K + group) * 2;  // chunk
      unsigned left[ROWS][4], right[COLUMNS / 2][4];
#pragma unroll
      for (unsigned m = 0; m < ROWS; m++) load_matrices(left[m], a(a_row + m * 16, first + a_chunk));
#pragma unroll
      for (unsigned n = 0; n < COLUMNS / 2; n++) load_matrices(right[n], b + place(b_row + n * 16, first + b_chunk));
#pragma unroll
      for (unsigned m = 0; m < ROWS; m++)
#pragma unroll
        for (unsigned n = 0; n < COLUMNS; n++)
          MULTIPLY(sums[m][n], left[m], right[n / 2][n % 2 * 2], right[n / 2][n % 2 * 2 + 1]);
#ifdef ROW_NORM
      if (i % WARPS_N == warp_n)  // which share the work
#pragma unroll
        for (unsigned m = 0; m < ROWS; m++) moments[m].add(left[m]);
#endif
    }
#else
#pragma unroll
    for (unsigned i = 0; i < CHUNKS / WARPS_K; i++) {
      const unsigned chunk = i * WARPS_K + group;
      float4 left[ROWS];
#pragma unroll
      for (unsigned m = 0; m < ROWS; m++) left[m] = *(const float4*)(shared + a(a_row + m * 4, chunk));
#pragma unroll
      for (unsigned n = 0; n < COLUMNS; n++) {
        const float4 y = *(const float4*)(shared + b + place(b_row + n * 8, chunk));
#pragma unroll
        for (unsigned m = 0; m < ROWS; m++) {
          const float4 x = left[m];
          sums[m][n] = fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sums[m][n]))));
        }
      }
    }
#endif
  }

  static constexpr unsigned QUADS_ACROSS = BN / 4, ITEMS = BM * QUADS_ACROSS;
  static constexpr unsigned EACH = (ITEMS + THREADS - 1) / THREADS;  // quads that a thread stores
  static constexpr bool SAME = THREADS % QUADS_ACROSS == 0;          // a thread stays with its quad, and what belongs to it
  // Row of the n-th quad that a thread stores.
  static __device__ __forceinline__ unsigned row_of(unsigned n) { return (threadIdx.x + n * THREADS) / QUADS_ACROSS; }

  // Hands out the sums as store(row, quad of columns, Four, n). They go through shared memory, over what is there, so
  // that threads next to each other have columns next to each other.
  template <class Store> __device__ __forceinline__ void store(Store store) {
    copies_wait<0>();
    __syncthreads();
    Sum* const totals = (Sum*)shared;
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++)
#pragma unroll
      for (unsigned n = 0; n < COLUMNS; n++) {
#if HALF
        const unsigned row = group * BM + first_row + m * NEXT + lane / 4;
        Sum* const to = totals + row * PITCH + warp_n * TILE_N + n * 8 + lane % 4 * 2;
        *(Two*)to = Two{sums[m][n][0], sums[m][n][1]};
        *(Two*)(to + 8 * PITCH) = Two{sums[m][n][2], sums[m][n][3]};
#else
        totals[(group * BM + a_row + m * 4) * PITCH + b_row + n * 8] = sums[m][n];
#endif
      }
#ifdef ROW_NORM
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++) {  // in the padding
        const float2 above = moments[m].of(0), below = moments[m].of(1);
        float* const to = totals + (group * BM + first_row + m * NEXT + lane / 4) * PITCH + BN + warp_n * 2;
        if (lane % 4 == 0) *(float2*)to = above, *(float2*)(to + 8 * PITCH) = below;
    }
#endif
    __syncthreads();
#pragma unroll (EACH <= 4 ? EACH : 2)
    for (unsigned n = 0; n < EACH; n++) {
      if (ITEMS % THREADS && threadIdx.x + n * THREADS >= ITEMS) break;
      const unsigned row = row_of(n), quad = (SAME ? threadIdx.x : threadIdx.x + n * THREADS) % QUADS_ACROSS;
      Four total = *(const Four*)(totals + row * PITCH + quad * 4);
#pragma unroll
      for (unsigned g = 1; g < WARPS_K; g++) {
        const Four part = *(const Four*)(totals + (g * BM + row) * PITCH + quad * 4);
        total = Four{total.x + part.x, total.y + part.y, total.z + part.z, total.w + part.w};
      }
#ifdef ROW_NORM
      float2 all = {};
#pragma unroll
      for (unsigned g = 0; g < WARPS_K * WARPS_N; g++) {
        const float2 part = *(const float2*)(totals + (g / WARPS_N * BM + row) * PITCH + BN + g % WARPS_N * 2);
        all = float2{all.x + part.x, all.y + part.y};
      }
      const float factor = row_factor(all);
      total = Four{total.x * factor, total.y * factor, total.z * factor, total.w * factor};
#endif
      store(row, quad, total, n);
    }
  }
};
