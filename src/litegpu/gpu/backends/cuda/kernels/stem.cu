// Convolution of one to four channels, as a network's first layer has them, on tensor cores. Pixels lie in shared memory
// as four halves each, so that all taps of a row of the window are one run of numbers there: the depth is the rows of the
// window times these runs, instead of eight channels for each tap. A workgroup keeps the weights of BN outputs, and walks
// over blocks of BY x 16 output pixels; while one is computed, the pixels of the next are on their way to registers.
//
// Constants from the host: BY BN; WARPS_M WARPS_N; TILES_N TILES_Y TILES_X BATCH GROUPS (workgroups for each BN); AT_ONCE
// (rows that a lane stores at once); QUADS; OUT_H OUT_W; H W (of the input, upsampled); UPSAMPLE_*, BORDER (border.cu);
// CHANNELS TAPS KERNEL_W; STRIDE_*, DILATION_Y, PADDING_*; OFFSET PITCH_* (elements, of the input's view); DEPTH (of the
// packed weights, a multiple of 32); SHARED_BYTES; WHOLE (STORE takes int4).
constexpr unsigned BX = 16, ROW_CHUNKS = (KERNEL_W + 1) / 2, KERNEL_H = TAPS / KERNEL_W;  // chunks of two pixels
constexpr unsigned HALO_Y = (BY - 1) * STRIDE_Y + (KERNEL_H - 1) * DILATION_Y + 1;
constexpr unsigned HALO_X = (BX - 1) * STRIDE_X + 2 * ROW_CHUNKS;
// With an odd stride every other pixel begins in the middle of 16 bytes: for these there is a copy that begins at pixel
// 1, in the other half of the banks.
constexpr unsigned LINE = (HALO_X + 1) / 2 * 16, COPY = (HALO_Y * LINE + 127) / 128 * 128 + 64, COPIES = STRIDE_X % 2 + 1;
constexpr unsigned WEIGHTS = COPIES * COPY + 64 * (COPIES % 2), WEIGHT_BYTES = (DEPTH / 8 | 1) * 16;  // of a row
constexpr unsigned WARPS = WARPS_M * WARPS_N, THREADS = 32 * WARPS, TILES = BATCH * TILES_Y * TILES_X;
constexpr unsigned ROWS = BY / WARPS_M, COLUMNS = BN / WARPS_N / 8;  // products of a warp: 16 pixels of a line each
constexpr unsigned PITCH = COLUMNS * 8 + 8, SUMS = WEIGHTS + BN * WEIGHT_BYTES;  // of a warp's 16 rows, in floats
constexpr unsigned LOADS = (HALO_Y * HALO_X + THREADS - 1) / THREADS;            // pixels of a thread
static_assert(SUMS + WARPS * 16 * PITCH * 4 == SHARED_BYTES, "the host reckons otherwise");
static_assert(BY % WARPS_M == 0 && CHANNELS <= 4, "block");

// Whole numbers are multiplied as halves, which hold bytes less their zero point, and their sums are exact.
#if WHOLE
INLINE int4 number(float4 v) { return int4{(int)v.x, (int)v.y, (int)v.z, (int)v.w}; }
#else
INLINE float4 number(float4 v) { return v; }
#endif
struct Block { unsigned image, y, x; };  // of output pixels

INLINE Block block_at(unsigned turn) {
  const unsigned tile = in_turn(turn, TILES), row = tile / TILES_X;
  return {row / TILES_Y, row % TILES_Y * BY, tile % TILES_X * BX};
}
INLINE unsigned least(unsigned a, unsigned b) { return a < b ? a : b; }

extern "C" __global__ void __launch_bounds__(THREADS)
NAME(const SOURCE* x, const unsigned short* __restrict__ w EPILOGUE_BUFFERS) {
  const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const unsigned warp_m = warp % WARPS_M, warp_n = warp / WARPS_M;
  const unsigned column0 = blockIdx.x % TILES_N * BN;
  for (unsigned i = thread; i < BN * DEPTH / 8; i += THREADS) {
    const unsigned row = i / (DEPTH / 8), chunk = i % (DEPTH / 8);
    copy16(WEIGHTS + row * WEIGHT_BYTES + chunk * 16, w + (column0 + row) * DEPTH + chunk * 8, true);
  }
  copies_commit();

  Stored pixels[LOADS][CHANNELS];
  auto load = [&](unsigned tile) {
    const Block block = block_at(tile);
    const int y0 = (int)(block.y * STRIDE_Y) - PADDING_Y, x0 = (int)(block.x * STRIDE_X) - PADDING_X;
#pragma unroll
    for (unsigned i = 0; i < LOADS; i++) {
      const unsigned pixel = thread + i * THREADS;
      bool real = pixel < HALO_Y * HALO_X;
      const int iy = inside(y0 + (int)(pixel / HALO_X), H, UPSAMPLE_Y, real);
      const int ix = inside(x0 + (int)(pixel % HALO_X), W, UPSAMPLE_X, real);
      const unsigned from = block.image * PITCH_B + iy * PITCH_Y + ix * PITCH_X + OFFSET;
#pragma unroll
      for (unsigned c = 0; c < CHANNELS; c++) pixels[i][c] = real ? stored(x[from + c * PITCH_C]) : OUTSIDE;
    }
  };
  auto keep = [&] {
#pragma unroll
    for (unsigned i = 0; i < LOADS; i++) {
      const unsigned pixel = thread + i * THREADS, line = pixel / HALO_X, column = pixel % HALO_X;
      if (pixel >= HALO_Y * HALO_X) break;
      Stored four[4] = {OUTSIDE, OUTSIDE, OUTSIDE, OUTSIDE};
#pragma unroll
      for (unsigned c = 0; c < CHANNELS; c++) four[c] = pixels[i][c];
      const uint2 packed = {half_pair(four[0], four[1]), half_pair(four[2], four[3])};
      *(uint2*)(shared + line * LINE + column * 8) = packed;
      if (COPIES == 2 && column > 0) *(uint2*)(shared + COPY + line * LINE + (column - 1) * 8) = packed;
    }
  };

  unsigned a_at[ROWS];  // where the window of this lane's pixel begins
#pragma unroll
  for (unsigned m = 0; m < ROWS; m++) {
    const unsigned column = lane % 16 * STRIDE_X, odd = column % 2;
    a_at[m] = odd * COPY + (warp_m * ROWS + m) * STRIDE_Y * LINE + (column - odd) * 8;
  }
  const unsigned b_at = WEIGHTS + (warp_n * COLUMNS * 8 + lane % 8) * WEIGHT_BYTES + lane / 8 * 16;
  float* const totals = (float*)(shared + SUMS + warp * (16 * PITCH * 4));

  wait_for_predecessors();
  launch_dependents();
  unsigned tile = blockIdx.x / TILES_N;
  load(tile);
  keep();
  copies_wait<0>();
  __syncthreads();
  for (; tile < TILES; tile += GROUPS) {
    const bool more = tile + GROUPS < TILES;
    if (more) load(tile + GROUPS);
    float sums[ROWS][COLUMNS][4] = {};
#pragma unroll
    for (unsigned chunk = 0; chunk < DEPTH / 8; chunk += 4) {
      unsigned b[COLUMNS][4];
#pragma unroll
      for (unsigned n = 0; n < COLUMNS; n++) load_matrices(b[n], b_at + n * 8 * WEIGHT_BYTES + chunk * 16);
#pragma unroll
      for (unsigned half = 0; half < 2; half++) {
        // weights past the last row are zero
        const unsigned first = chunk + half * 2, second = first + 1;
        const unsigned here = first / ROW_CHUNKS < KERNEL_H ? first / ROW_CHUNKS * DILATION_Y * LINE + first % ROW_CHUNKS * 16 : 0;
        const unsigned next = second / ROW_CHUNKS < KERNEL_H ? second / ROW_CHUNKS * DILATION_Y * LINE + second % ROW_CHUNKS * 16 : 0;
#pragma unroll
        for (unsigned m = 0; m < ROWS; m++) {
          unsigned a[4];
          load_matrices(a, a_at[m] + (lane < 16 ? here : next));
#pragma unroll
          for (unsigned n = 0; n < COLUMNS; n++) multiply(sums[m][n], a, b[n][half * 2], b[n][half * 2 + 1]);
        }
      }
    }
    const Block block = block_at(tile);
    constexpr unsigned ACROSS = COLUMNS * 2, DOWN = 32 / ACROSS;  // lanes
    const unsigned all = least(16, OUT_W - block.x), first = lane / ACROSS;  // rows
    const unsigned last = first + (all - 1 - first) / DOWN * DOWN;           // of the lane: as in rows.cu
    const unsigned quad = column0 / 4 + warp_n * COLUMNS * 2 + lane % ACROSS;
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++) {
      float* const to = totals + lane / 4 * PITCH + lane % 4 * 2;
#pragma unroll
      for (unsigned n = 0; n < COLUMNS; n++) {
        *(float2*)(to + n * 8) = float2{sums[m][n][0], sums[m][n][1]};
        *(float2*)(to + 8 * PITCH + n * 8) = float2{sums[m][n][2], sums[m][n][3]};
      }
      __syncwarp();
      const unsigned oy = block.y + warp_m * ROWS + m, pixel0 = (block.image * OUT_H + oy) * OUT_W + block.x;
      const float* const from = totals + lane % ACROSS * 4;
#define ROW(i) least(row + i * DOWN, last)
#define TOTAL(i) number(*(const float4*)(from + ROW(i) * PITCH))
      if (oy < OUT_H && quad < QUADS && first < DOWN)
#pragma unroll 1
        for (unsigned row = first; row < all; row += AT_ONCE * DOWN)
#if AT_ONCE == 4
          STORE(pixel0 + ROW(0), pixel0 + ROW(1), pixel0 + ROW(2), pixel0 + ROW(3), quad, TOTAL(0), TOTAL(1), TOTAL(2),
                TOTAL(3));
#else
          STORE(pixel0 + ROW(0), pixel0 + ROW(1), quad, TOTAL(0), TOTAL(1));
#endif
      __syncwarp();
    }
    __syncthreads();
    if (more) keep();
    __syncthreads();
  }
}
