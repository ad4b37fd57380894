// Depthwise convolution by large windows: a thread computes two channels of ROWS rows of TX neighbouring output pixels,
// from the top down. All taps stay in registers, and so do the sums of the KERNEL_H rows of outputs that a row of inputs
// belongs to; each input is loaded and converted once for KERNEL_H * KERNEL_W products of each pixel, where a tile of a few
// pixels (depthwise.cu) loads most of its taps and inputs again. Two threads have the halves of a quad, and exchange them
// so that each stores whole quads of half of the pixels. Sums are float.
//
// Constants from the host: HALF (the input); THREADS TX ROWS; BLOCKS_X BLOCKS_Y (along a row, and down); BATCH; PAIRS (of
// channels, an even number); OUT_H OUT_W H W; KERNEL_H KERNEL_W PADDING_*; OFFSET PITCH_* (elements, of the input's view).
// The weights are finite, the stride and the dilation 1.
#if HALF
typedef unsigned Pair;
#else
typedef float2 Pair;
#endif

constexpr int COLUMNS = TX + KERNEL_W - 1, SPAN = ROWS + KERNEL_H - 1;

INLINE float2 unpacked(unsigned a) { return float2{half_to_float((unsigned short)a), half_to_float((unsigned short)(a >> 16))}; }
INLINE float2 unpacked(float2 a) { return a; }

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const Pair* x, const float2* w EPILOGUE_BUFFERS) {
  const unsigned thread = blockIdx.x * THREADS + threadIdx.x;
  const unsigned pair = thread % PAIRS, place = thread / PAIRS;
  const unsigned ox0 = place % BLOCKS_X * TX, oy0 = place / BLOCKS_X % BLOCKS_Y * ROWS;
  const unsigned number = place / (BLOCKS_X * BLOCKS_Y);
  const unsigned image = number < BATCH ? number : BATCH - 1;  // all threads take part in the exchange

  float2 taps[KERNEL_H][KERNEL_W];
#pragma unroll
  for (int ky = 0; ky < KERNEL_H; ky++)
#pragma unroll
    for (int kx = 0; kx < KERNEL_W; kx++) taps[ky][kx] = w[(ky * KERNEL_W + kx) * PAIRS + pair];
  wait_for_predecessors();
  launch_dependents();

  const int iy0 = (int)oy0 - PADDING_Y, ix0 = (int)ox0 - PADDING_X;
  const Pair* first = x + ((long long)image * PITCH_B + (long long)iy0 * PITCH_Y + (long long)ix0 * PITCH_X + OFFSET) / 2 + pair;
  Pair row[COLUMNS];
  auto load_row = [&](int r) {
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      row[j] = Pair{};
      if ((unsigned)(iy0 + r) < H && (unsigned)(ix0 + j) < W) row[j] = first[r * (PITCH_Y / 2) + j * (PITCH_X / 2)];
    }
  };
  load_row(0);

  float2 sums[KERNEL_H][TX] = {};  // of output row o in place o % KERNEL_H
  const bool second = pair % 2;
  for (int base = 0; base < SPAN; base += KERNEL_H) {
#pragma unroll
    for (int step = 0; step < KERNEL_H; step++) {
      const int r = base + step;
      if (r >= SPAN) break;
      float2 inputs[COLUMNS];
#pragma unroll
      for (int j = 0; j < COLUMNS; j++) inputs[j] = unpacked(row[j]);
      if (r + 1 < SPAN) load_row(r + 1);
      if ((unsigned)(iy0 + r) < H) {
#pragma unroll
        for (int ky = 0; ky < KERNEL_H; ky++) {
          if (r < ky || r - ky >= ROWS) continue;
          float2(&sum)[TX] = sums[(step - ky + KERNEL_H) % KERNEL_H];
#pragma unroll
          for (int kx = 0; kx < KERNEL_W; kx++)
#pragma unroll
            for (int p = 0; p < TX; p++) {
              sum[p].x = fmaf(inputs[p + kx].x, taps[ky][kx].x, sum[p].x);
              sum[p].y = fmaf(inputs[p + kx].y, taps[ky][kx].y, sum[p].y);
            }
        }
      }
      const int done = r - (KERNEL_H - 1);
      if (done < 0) continue;
      float2(&sum)[TX] = sums[(step + 1) % KERNEL_H];
      const unsigned oy = oy0 + done;
#pragma unroll
      for (int p = 0; p < TX / 2; p++) {
        const float2 mine = second ? sum[p + TX / 2] : sum[p], given = second ? sum[p] : sum[p + TX / 2];
        const float2 got = {__shfl_xor_sync(0xffffffffu, given.x, 1), __shfl_xor_sync(0xffffffffu, given.y, 1)};
        const unsigned ox = ox0 + p + (second ? TX / 2 : 0);
        if (number < BATCH && (OUT_H % ROWS == 0 || oy < OUT_H) && (OUT_W % TX == 0 || ox < OUT_W))
          STORE((image * OUT_H + oy) * OUT_W + ox, pair / 2,
                (second ? float4{got.x, got.y, mine.x, mine.y} : float4{mine.x, mine.y, got.x, got.y}));
      }
#pragma unroll
      for (int p = 0; p < TX; p++) sum[p] = float2{};
    }
  }
}
