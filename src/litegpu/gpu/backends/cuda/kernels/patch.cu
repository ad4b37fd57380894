// Convolution whose windows lie side by side: what divides a picture into patches. Then the window of an output is KERNEL_H runs
// of RUN elements, and the product's left factor goes from memory to registers, once, and right into products of four warps
// (compute capability 9.0). Rows are output pixels, columns output channels. A workgroup has TEAMS times four warps, of
// which each four compute 64 x BN; one thread has the weights copied, in steps of 64 along the depth, to a ring of STAGES
// places. Loads run AHEAD steps ahead of products. ALONG teams of four warps divide the depth, where there are few pixels.
//
// A thread loads four neighbours of 16 along a run, where a product wants two pairs that are eight apart: the weights are
// packed in that order. A run takes whole groups of 16.
//
// Constants from the host: TEAMS BN STAGES AHEAD ALONG RESIDENT; FLOATS (the input is float32, else halves); TILES_N
// STEPS; PIXELS QUADS (of the output); OUT_H OUT_W; RUN KERNEL_H; STRIDE_*; OFFSET PITCH_B PITCH_Y PITCH_X (elements, of the input's view).
#if FLOATS
typedef float Element;
typedef float4 Piece;
INLINE unsigned low(Piece p) { return pack_half2(p.x, p.y); }
INLINE unsigned high(Piece p) { return pack_half2(p.z, p.w); }
#else
typedef unsigned short Element;
typedef uint2 Piece;
INLINE unsigned low(Piece p) { return p.x; }
INLINE unsigned high(Piece p) { return p.y; }
#endif
constexpr unsigned PLACE_BYTES = BN * 128, FULL = STAGES * PLACE_BYTES, EMPTY = FULL + 8 * STAGES;  // barriers
constexpr unsigned DOWN = TEAMS / ALONG, ROWS = 64 * DOWN, GROUPS = (RUN + 15) / 16;
static_assert(EMPTY + 8 * STAGES == SHARED_BYTES, "the host reckons otherwise");
static_assert(ALONG == 1 || (STAGES == STEPS && STAGES >= 2 * (ALONG - 1) * DOWN), "weights, and afterwards sums");

extern "C" __global__ void __launch_bounds__(128 * TEAMS, RESIDENT)
NAME(const Element* x, const unsigned short* __restrict__ w EPILOGUE_BUFFERS) {
  const unsigned column = blockIdx.x % TILES_N, pixel0 = blockIdx.x / TILES_N * ROWS;
  const unsigned short* const weights = w + (size_t)column * STEPS * (BN * 64);
  auto copy_weights = [&](unsigned step) {
    const unsigned slot = step % STAGES;
    barrier_copy(FULL + 8 * slot, slot * PLACE_BYTES, weights + (size_t)step * (BN * 64), PLACE_BYTES);
  };
  if (threadIdx.x == 0) {
    for (unsigned s = 0; s < STAGES; s++) {
      barrier_init(FULL + 8 * s, 1);
      barrier_init(EMPTY + 8 * s, 4 * TEAMS);
    }
    barriers_ready();
    // They are nobody's output: they may come while the kernel before this one still runs.
    for (unsigned step = 0; step < STAGES && step < STEPS; step++) copy_weights(step);
  }
  __syncthreads();
  const unsigned team = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const unsigned down = team % DOWN, part = team / DOWN, begin = part * STEPS / ALONG, end = (part + 1) * STEPS / ALONG;
  const unsigned row0 = pixel0 + down * 64 + warp * 16 + lane / 4;  // and the eighth after it
  unsigned from[2];
#pragma unroll
  for (unsigned r = 0; r < 2; r++) {
    const unsigned pixel = row0 + 8 * r, line = pixel / OUT_W;
    from[r] = line / OUT_H * PITCH_B + line % OUT_H * STRIDE_Y * PITCH_Y + pixel % OUT_W * STRIDE_X * PITCH_X + OFFSET;
  }
  wait_for_predecessors();
  launch_dependents();
  Piece pieces[AHEAD][4][2];
  auto load = [&](Piece (&to)[4][2], unsigned step) {
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
      const unsigned group = step * 4 + i, line = group / GROUPS, at = group % GROUPS * 16 + lane % 4 * 4;
#pragma unroll
      for (unsigned r = 0; r < 2; r++) {
        const bool real = row0 + 8 * r < PIXELS && line < KERNEL_H && at < RUN;
        to[i][r] = real ? *(const Piece*)(x + from[r] + line * PITCH_Y + at) : Piece{};
      }
    }
  };
#pragma unroll
  for (unsigned a = 0; a < AHEAD; a++) load(pieces[a], begin + a);
  float sums[BN / 8][4] = {};
  unsigned factors[4][4];
#pragma unroll 1
  for (unsigned first = begin; first < end; first += AHEAD)
#pragma unroll
    for (unsigned a = 0; a < AHEAD; a++) {
      const unsigned step = first + a, slot = step % STAGES;
      if ((ALONG > 1 || STEPS % AHEAD) && step >= end) break;
      products_wait<0>();  // which read the factors
      if (STAGES < STEPS && step > 0 && step - 1 + STAGES < STEPS) {
        const unsigned done = (step - 1) % STAGES;
        if (lane == 0) barrier_arrive(EMPTY + 8 * done);
        if (threadIdx.x < 32) {
          barrier_wait(EMPTY + 8 * done, (step - 1) / STAGES % 2);
          if (lane == 0) copy_weights(step - 1 + STAGES);
          __syncwarp();
        }
      }
#pragma unroll
      for (unsigned i = 0; i < 4; i++) {
        factors[i][0] = low(pieces[a][i][0]), factors[i][1] = low(pieces[a][i][1]);
        factors[i][2] = high(pieces[a][i][0]), factors[i][3] = high(pieces[a][i][1]);
      }
      if (step + AHEAD < end) load(pieces[a], step + AHEAD);
      barrier_wait(FULL + 8 * slot, step / STAGES % 2);
      begin_products();
#pragma unroll
      for (unsigned i = 0; i < 4; i++) multiply_kept(sums, factors[i], matrix<128>(slot * PLACE_BYTES + i * 32), 1);
      commit_products();
    }
  products_wait<0>();
#if ALONG > 1
  float* const own = (float*)shared + down * 128 + threadIdx.x % 128;  // sums of the parts, over the weights
  __syncthreads();
#pragma unroll
  for (unsigned i = 0; i < BN / 2; i++)
    if (part > 0) own[((part - 1) * (BN / 2) + i) * (128 * DOWN)] = sums[i / 4][i % 4];
  __syncthreads();
  if (part > 0) return;
#pragma unroll
  for (unsigned i = 0; i < BN / 2; i++)
#pragma unroll
    for (unsigned p = 0; p < ALONG - 1; p++) sums[i / 4][i % 4] += own[(p * (BN / 2) + i) * (128 * DOWN)];
#endif

  // Of two blocks of eight columns each thread has two neighbouring numbers of a row: pairs of threads exchange them.
  const unsigned last = row0 + 8 < PIXELS ? row0 + 8 : row0;
#pragma unroll
  for (unsigned n = 0; n < BN / 16; n++) {
    const float4 v0 = exchanged_quad(sums[2 * n], sums[2 * n + 1], 0), v1 = exchanged_quad(sums[2 * n], sums[2 * n + 1], 1);
    const unsigned quad = column * (BN / 4) + n * 4 + exchanged_number();
    if (row0 < PIXELS && quad < QUADS) STORE(row0, last, quad, v0, (last == row0 ? v0 : v1));
  }
}
