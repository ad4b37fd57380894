// Convolution of floats as a matrix product of halves (halved.cu), by warps that copy and warps that multiply (compute
// capability 9.0). Rows are output pixels, columns output channels, and the depth is the taps of the window times the input
// channels. A workgroup computes BM x BN in steps of BK, 32, along the depth: its last COPYING threads fill a ring of STAGES
// tiles, the CONSUMERS warpgroups before them multiply these, each BM / CONSUMERS rows. They take floats from the tile and
// make halves of them in registers; weights come as halves. Sums of a step, of WIDE columns at once, are apart: tensor cores
// cut off what they add up, and so sums are of few products, of which those with rests come first; other instructions add them
// to those of all steps. With AHEAD the sums of a part are added beside the products of the next.
//
// When all steps are done, all warps know whether a row needs a scale. If so, everything is copied and multiplied again.
//
// Constants from the host: those of rows.cu (BYTES is 4); STAGES CONSUMERS RESIDENT (workgroups on a multiprocessor);
// REGISTERS_COPY REGISTERS_MULTIPLY (of a thread; where a whole warpgroup copies); TILES_N (of columns); STEPS (along the
// depth); WIDE AHEAD. The weights are packed as the tiles lie in shared memory: for each BN columns and BK of the depth
// three, of halves, of their rests, and of halves by 2^-11, for the rests of the rows. `scales`: what undoes the scale of
// each column.
constexpr unsigned HALVES = 2 * BK;  // bytes of a column of weights
constexpr unsigned A_BYTES = BM * ROW_BYTES, B_BYTES = 3 * BN * HALVES, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr unsigned PITCH = BN + 8;  // of the sums in shared memory, so that the rows of a store lie in different banks
// In the same place: the ring, and the sums of 16 rows of each warp.
constexpr unsigned RING = STAGES * STAGE_BYTES, SUMS = 16 * PITCH * 4 * 4 * CONSUMERS;
constexpr unsigned FULL = RING > SUMS ? RING : SUMS, EMPTY = FULL + 8 * STAGES, AGAIN = EMPTY + 8 * STAGES;  // barriers; a word
constexpr unsigned MULTIPLYING = 128 * CONSUMERS, THREADS = MULTIPLYING + COPYING;
constexpr unsigned ROWS = BM / (64 * CONSUMERS), PARTS = BN / WIDE;  // products of a warpgroup, and along the columns
static_assert(BM % (64 * CONSUMERS) == 0 && BN % WIDE == 0 && BK == 32, "tile");
static_assert(AGAIN + 16 == SHARED_BYTES, "the host reckons otherwise");

struct Ring {
  unsigned slot = 0, parity;
  __device__ __forceinline__ void next() {
    if (++slot == STAGES) slot = 0, parity ^= 1;
  }
};

// All steps, to the ring; `used`: it was filled before.
INLINE void copy_tiles(const Window& window, const float* x, const unsigned short* weights, Ring& ring, bool used) {
  const bool first = threadIdx.x == MULTIPLYING;
  for (unsigned step = 0; step < STEPS; step++) {
    if (used || step >= STAGES) barrier_wait(EMPTY + 8 * ring.slot, ring.parity);
    if (first && (used || step >= STAGES))  // others are on their way
      barrier_copy(FULL + 8 * ring.slot, ring.slot * STAGE_BYTES + A_BYTES, weights + (size_t)step * (B_BYTES / 2), B_BYTES);
    window.copy(x, x, step, ring.slot * STAGE_BYTES);
    barrier_arrive_copied(FULL + 8 * ring.slot);
    ring.next();
  }
}

struct Rows {
  float sums[ROWS][BN / 8][4];
  float largest[ROWS][2];  // of rows number lane / 4 and lane / 4 + 8 of a warp's 16

  // Products of all steps. With `scaled` rows are multiplied by what their largest number needs.
  template <bool scaled> __device__ __forceinline__ void multiply(Ring& ring) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float scale[ROWS][2];
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++) {
#pragma unroll
      for (unsigned i = 0; i < 2; i++) {
        scale[m][i] = scaled ? row_scale(largest[m][i]) : 1.0f;
        if (!scaled) largest[m][i] = 0.0f;
      }
#pragma unroll
      for (unsigned n = 0; n < BN / 8; n++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++) sums[m][n][e] = 0.0f;
    }
#pragma unroll 1
    for (unsigned step = 0; step < STEPS; step++) {
      barrier_wait(FULL + 8 * ring.slot, ring.parity);
      const unsigned a = ring.slot * STAGE_BYTES, b = a + A_BYTES;
      unsigned high[ROWS][2][4], low[ROWS][2][4], numbers[ROWS][2][4];
#pragma unroll
      for (unsigned m = 0; m < ROWS; m++) {
        const unsigned row = (warp / 4 * ROWS + m) * 64 + warp % 4 * 16 + lane % 16;
#pragma unroll
        for (unsigned i = 0; i < 2 * (BK / 16); i++) {  // eight numbers of the depth: two and two are a pair
          unsigned words[4];
          load_matrices(words, a + place(row, i * 2 + lane / 16));
#pragma unroll
          for (unsigned r = 0; r < 2; r++) {
            float x = __uint_as_float(words[r]), y = __uint_as_float(words[r + 2]);
            if (scaled) x *= scale[m][r], y *= scale[m][r]; else largest[m][r] = fmaxf(largest[m][r], fmaxf(fabsf(x), fabsf(y)));
            const HalvedPair pair = halved(x, y);
            high[m][i / 2][i % 2 * 2 + r] = pair.high;
            low[m][i / 2][i % 2 * 2 + r] = scaled ? without_nan(pair.low) : pair.low;
            numbers[m][i / 2][i % 2 * 2 + r] = scaled ? finite_halves(pair.high) : pair.high;
          }
        }
      }
      float found[1 + AHEAD][WIDE / 8][4];
      auto add = [&](unsigned part) {
#pragma unroll
        for (unsigned n = 0; n < WIDE / 8; n++)
#pragma unroll
          for (unsigned e = 0; e < 4; e++)
            sums[part / PARTS][part % PARTS * (WIDE / 8) + n][e] += found[part % (1 + AHEAD)][n][e];
      };
#pragma unroll
      for (unsigned part = 0; part < ROWS * PARTS; part++) {
        const unsigned m = part / PARTS, of = part % (1 + AHEAD), right = b + part % PARTS * (WIDE * HALVES);
        begin_products();
#pragma unroll
        for (unsigned i = 0; i < BK / 16; i++)
          multiply_kept(found[of], low[m][i], matrix<HALVES>(right + 2 * BN * HALVES + i * 32), i > 0);
#pragma unroll
        for (unsigned i = 0; i < BK / 16; i++)
          multiply_kept(found[of], numbers[m][i], matrix<HALVES>(right + BN * HALVES + i * 32), 1);
#pragma unroll
        for (unsigned i = 0; i < BK / 16; i++) multiply_kept(found[of], high[m][i], matrix<HALVES>(right + i * 32), 1);
        commit_products();
        if (AHEAD && part == 0) continue;
        products_wait<AHEAD>();
        if (part + 1 < ROWS * PARTS || AHEAD) add(part - AHEAD);
      }
      products_wait<0>();
      barrier_arrive(EMPTY + 8 * ring.slot);  // each lane for itself, which has read of the rows
      add(ROWS * PARTS - 1);
      ring.next();
    }
#pragma unroll
    for (unsigned m = 0; m < ROWS && !scaled; m++)
#pragma unroll
      for (unsigned i = 0; i < 2; i++) {
        largest[m][i] = fmaxf(largest[m][i], __shfl_xor_sync(0xffffffffu, largest[m][i], 1));
        largest[m][i] = fmaxf(largest[m][i], __shfl_xor_sync(0xffffffffu, largest[m][i], 2));
      }
  }
  __device__ __forceinline__ bool need_scale() const {
    bool any = false;
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++) any |= needs_scale(largest[m][0]) || needs_scale(largest[m][1]);
    return any;
  }
  // Undoes the scales of columns, and then of rows: the other way round numbers might not be floats between.
  __device__ __forceinline__ void undo(const float* scales, bool scaled) {
#pragma unroll
    for (unsigned n = 0; n < BN / 8; n++) {
      const float2 scale = *(const float2*)(scales + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
      for (unsigned m = 0; m < ROWS; m++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++) sums[m][n][e] *= e % 2 ? scale.y : scale.x;
    }
    if (!scaled) return;
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++) {
      const float above = row_unscaled(largest[m][0]), below = row_unscaled(largest[m][1]);
#pragma unroll
      for (unsigned n = 0; n < BN / 8; n++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++) sums[m][n][e] *= e / 2 ? below : above;
    }
  }
};

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
NAME(const float* x, const unsigned short* __restrict__ w, const float* __restrict__ scales EPILOGUE_BUFFERS) {
  const unsigned column = blockIdx.x % TILES_N, pixel0 = blockIdx.x / TILES_N * BM;
  volatile unsigned* const again = (volatile unsigned*)(shared + AGAIN);
  if (threadIdx.x == 0) {
    for (unsigned s = 0; s < STAGES; s++) {
      barrier_init(FULL + 8 * s, COPYING + 1);  // the threads that copy, and the one that announces the weights
      barrier_init(EMPTY + 8 * s, MULTIPLYING);
    }
    *again = 0;
    barriers_ready();
  }
  __syncthreads();
  const unsigned team = threadIdx.x / 128;
  if (team == CONSUMERS) {
    if (COPYING == 128) registers_drop<REGISTERS_COPY>();
    const unsigned short* const weights = w + (size_t)column * STEPS * (B_BYTES / 2);
    // The weights are nobody's output: they may come while the kernel before this one still runs.
    if (threadIdx.x == MULTIPLYING)
      for (unsigned s = 0; s < STAGES && s < STEPS; s++)
        barrier_copy(FULL + 8 * s, s * STAGE_BYTES + A_BYTES, weights + (size_t)s * (B_BYTES / 2), B_BYTES);
    const Window window(threadIdx.x - MULTIPLYING, pixel0);
    wait_for_predecessors();
    launch_dependents();
    Ring ring{0, 1};
    copy_tiles(window, x, weights, ring, false);
    team_sync(2, THREADS);
    if (*again) copy_tiles(window, x, weights, ring, true);
    return;
  }
  if (COPYING == 128) registers_take<REGISTERS_MULTIPLY>();
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  wait_for_predecessors();  // what the epilogue reads
  Ring ring{0, 0};
  Rows rows;
  rows.multiply<false>(ring);
  if (rows.need_scale()) *again = 1;
  team_sync(2, THREADS);
  const bool scaled = *again;
  if (scaled) {
    rows.multiply<true>(ring);
    team_sync(1, MULTIPLYING);  // nobody needs the tiles any more
  }
  rows.undo(scales + column * BN, scaled);
  Sum* const totals = (Sum*)(shared + warp * (16 * PITCH * 4));
#pragma unroll
  for (unsigned m = 0; m < ROWS; m++)
    store_rows<BN>(totals, rows.sums[m], lane, pixel0 + (team * ROWS + m) * 64 + warp % 4 * 16, column * (BN / 4), nullptr,
                   [&](const unsigned (&pixels)[AT_ONCE], unsigned quad, const Four (&values)[AT_ONCE]) {
                     STORE_ROWS(pixels, quad, values);
                   });
}
