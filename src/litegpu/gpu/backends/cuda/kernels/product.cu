// The product of two tiles in shared memory, BM rows times BN columns, by steps of BK along their depth: on tensor cores
// (HALF; TF32: of floats) or by plain multiplications (float). Sums are float, or int where the tensor cores multiply bytes
// (HALF and WHOLE; those of the left factor are unsigned with UNSIGNED). WARPS_M, WARPS_N and WARPS_K warps divide rows, columns
// and depth; each of the latter has sums of its own, which are added up at the end. With WARPGROUPS four warps along the
// rows multiply 64 rows at once, and the tensor cores read both factors from shared memory (compute capability 9.0).
// With row_norm.cu the left factor's rows are normalised.
//
// With TF32 each float is two (rests.cu), and each step has sums of its own, which other instructions add to those of all
// steps. With NUMBERS the right factor has no infinity. Four warps together find the rests of the right tile behind it, in
// shared memory.
#ifndef TF32
#define TF32 0
#endif
#ifndef NUMBERS
#define NUMBERS 0
#endif
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
constexpr unsigned B_ROWS = TF32 && WARPGROUPS ? 2 * BN : BN;  // of the right tile: its rests too
static_assert(THREADS % CHUNKS == 0 && CHUNKS % WARPS_K == 0, "tile");
static_assert(!WARPGROUPS || (WARPS_M % 4 == 0 && WARPS_N == 1 && WARPS_K == 1 && BM % (16 * WARPS_M) == 0), "warpgroups");

// Where 16 bytes of a tile's row lie: permuted so that the same chunk of eight rows is in eight different groups of banks.
INLINE unsigned place(unsigned row, unsigned chunk) {
  const unsigned turn = CHUNKS >= 8 ? row % 8 : row / (8 / CHUNKS) % CHUNKS;
  return row * ROW_BYTES + (chunk ^ turn) * 16;
}

#if TF32
INLINE unsigned rest_of_right(unsigned word) {
#if NUMBERS
  return to_be_cut(rest_of_number(__uint_as_float(word)));
#else
  return rest_of(word);
#endif
}
#endif

struct Product {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned group = warp / (WARPS_M * WARPS_N), warp_m = warp % WARPS_M, warp_n = warp / WARPS_M % WARPS_N;
#if HALF || TF32
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
#if TF32 && WARPGROUPS
    // By parts of 64 rows and WIDE columns: one is added to the sums beside the products of the next.
    constexpr unsigned WIDE = BN % 64 == 0 ? 64 : 32, PARTS = BN / WIDE, STEPS_OF_8 = BK / 8;
    unsigned left[ROWS][STEPS_OF_8][4], rests[ROWS][STEPS_OF_8][4];
    float found[2][WIDE / 8][4];
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++)
#pragma unroll
      for (unsigned i = 0; i < STEPS_OF_8; i++) {
        load_matrices(left[m][i], a(first_row + m * NEXT + lane % 16, i * 2 + lane / 16));
#pragma unroll
        for (unsigned e = 0; e < 4; e++) rests[m][i][e] = rest_of(left[m][i][e]);
      }
    auto add_found = [&](unsigned part) {
#pragma unroll
      for (unsigned n = 0; n < WIDE / 8; n++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++) sums[part / PARTS][part % PARTS * (WIDE / 8) + n][e] += found[part % 2][n][e];
    };
#pragma unroll
    for (unsigned part = 0; part < ROWS * PARTS; part++) {
      const unsigned m = part / PARTS, right = b + part % PARTS * (WIDE * ROW_BYTES);
      begin_products();
#pragma unroll
      for (unsigned i = 0; i < STEPS_OF_8; i++) {
        multiply_tf32(found[part % 2], rests[m][i], matrix<ROW_BYTES>(right + i * 32), i > 0);
        multiply_tf32(found[part % 2], left[m][i], matrix<ROW_BYTES>(right + BN * ROW_BYTES + i * 32), 1);
      }
#pragma unroll
      for (unsigned i = 0; i < STEPS_OF_8; i++)
        multiply_tf32(found[part % 2], left[m][i], matrix<ROW_BYTES>(right + i * 32), 1);
      commit_products();
      if (part == 0) continue;
      products_wait<1>();
      add_found(part - 1);
    }
    products_wait<0>();
    add_found(ROWS * PARTS - 1);
#elif WARPGROUPS
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
#elif TF32
    float found[ROWS][COLUMNS][4] = {};
#pragma unroll
    for (unsigned whole = 0; whole < 2; whole++)
#pragma unroll
      for (unsigned i = 0; i < ROW_BYTES / 32 / WARPS_K; i++) {
        const unsigned first = (i * WARPS_K + group) * 2;  // chunk
        unsigned left[ROWS][4], left_rests[ROWS][4];
#pragma unroll
        for (unsigned m = 0; m < ROWS; m++) {
          load_matrices(left[m], a(a_row + m * 16, first + a_chunk));
#pragma unroll
          for (unsigned e = 0; e < 4; e++) left_rests[m][e] = rest_of(left[m][e]);
        }
#pragma unroll
        for (unsigned n = 0; n < COLUMNS; n += 2) {
          unsigned right[4], rests[4];
          load_matrices(right, b + place(b_row + n * 8, first + b_chunk));
#pragma unroll
          for (unsigned e = 0; e < 4; e++) rests[e] = rest_of_right(right[e]);
#pragma unroll
          for (unsigned j = 0; j < 2; j++)
#pragma unroll
            for (unsigned m = 0; m < ROWS; m++) {
              if (whole) {
                multiply_tf32(found[m][n + j], left[m], right[2 * j], right[2 * j + 1]);
                continue;
              }
              multiply_tf32(found[m][n + j], left_rests[m], right[2 * j], right[2 * j + 1]);
              multiply_tf32(found[m][n + j], left[m], rests[2 * j], rests[2 * j + 1]);
            }
        }
      }
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++)
#pragma unroll
      for (unsigned n = 0; n < COLUMNS; n++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++) sums[m][n][e] += found[m][n][e];
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
  // that threads next to each other have columns next to each other. Those that are `begun` begin with `bias`.
  template <bool begun = false, class Store> __device__ __forceinline__ void store(Store store, Four bias = {}) {
    copies_wait<0>();
    __syncthreads();
    Sum* const totals = (Sum*)shared;
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++)
#pragma unroll
      for (unsigned n = 0; n < COLUMNS; n++) {
#if HALF || TF32
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
      if (begun) total = Four{bias.x + total.x, bias.y + total.y, bias.z + total.z, bias.w + total.w};
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
