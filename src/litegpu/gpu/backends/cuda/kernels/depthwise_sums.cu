// The sums of a depthwise convolution: a thread computes a chunk of LANES channels of TY x TX neighbouring output pixels. Each
// input is loaded and converted once for all the taps and pixels that it belongs to, and as many loads as registers hold are
// under way at once: with few pixels, waiting for memory is most of the time. Sums are float. Bytes are multiplied as floats,
// which hold their sums: windows have at most 258 taps.
//
// Constants from the host: HALF (the input), BYTES (the input: 1 signed, 2 unsigned) with ZERO_POINT, FINITE (all weights
// are); LANES TX TY; CHUNKS; OUT_H OUT_W H W; KERNEL_H KERNEL_W STRIDE_* DILATION_* PADDING_*; STEP_Y STEP_X (the inputs of a
// thread lie in rows and columns that are multiples of these); OFFSET PITCH_* (elements, of the input's view).
// The weights are float: each is needed for several pixels, and would have to be converted again and again.
#if BYTES && LANES == 16
typedef uint4 Chunk;
#define OUTSIDE uint4{ZERO_POINTS, ZERO_POINTS, ZERO_POINTS, ZERO_POINTS}
#elif BYTES && LANES == 8
typedef uint2 Chunk;
#define OUTSIDE uint2{ZERO_POINTS, ZERO_POINTS}
#elif BYTES
typedef unsigned Chunk;
#define OUTSIDE ZERO_POINTS
#elif HALF && LANES == 8
typedef uint4 Chunk;
#elif HALF
typedef uint2 Chunk;
#else
typedef float4 Chunk;
#endif
#if BYTES
constexpr unsigned ZERO_POINTS = (ZERO_POINT & 255) * 0x01010101u;
typedef int4 Four;
typedef int Number;
// Four bytes to floats less the zero point: the byte becomes the last of the number 2^23 + byte.
INLINE void unpack_word(unsigned word, float* v) {
  const unsigned bytes = BYTES == 1 ? word ^ 0x80808080u : word;
  const float less = 8388608.0f + ZERO_POINT + (BYTES == 1 ? 128 : 0);
  v[0] = __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7440)) - less;
  v[1] = __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7441)) - less;
  v[2] = __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7442)) - less;
  v[3] = __uint_as_float(__byte_perm(bytes, 0x4b000000u, 0x7443)) - less;
}
INLINE void unpack_chunk(unsigned a, float (&v)[LANES]) { unpack_word(a, v); }
INLINE void unpack_chunk(uint2 a, float (&v)[LANES]) { unpack_word(a.x, v), unpack_word(a.y, v + 4); }
INLINE void unpack_chunk(uint4 a, float (&v)[LANES]) {
  unpack_word(a.x, v), unpack_word(a.y, v + 4), unpack_word(a.z, v + 8), unpack_word(a.w, v + 12);
}
#else
typedef float4 Four;
typedef float Number;
#define OUTSIDE Chunk{}
#define unpack_chunk unpack
#endif

constexpr int ROWS = ((TY - 1) * STRIDE_Y + (KERNEL_H - 1) * DILATION_Y) / STEP_Y + 1;
constexpr int COLUMNS = ((TX - 1) * STRIDE_X + (KERNEL_W - 1) * DILATION_X) / STEP_X + 1;
// Rows of weights that are loaded before anything else, and rows of inputs that are under way: what registers allow, at most
// so many words of each.
#ifndef TAP_WORDS
#define TAP_WORDS 104
#define INPUT_WORDS 104
#endif
INLINE constexpr int rows(int all, int words, int row, int limit) {
  const int most = (words < limit ? words : limit) / row;
  return most < 1 ? 1 : most < all ? most : all;
}
constexpr int EARLY = rows(KERNEL_H, 128 - TX * TY * LANES, KERNEL_W * LANES, TAP_WORDS);
constexpr int AHEAD = rows(ROWS, 112 - TX * TY * LANES, COLUMNS * sizeof(Chunk) / 4, INPUT_WORDS);
// Whether every input of every thread is inside of the image.
INLINE constexpr bool inside(int out, int pixels, int stride, int span, int padding, int size) {
  return padding == 0 && (out - 1) / pixels * pixels * stride + span <= size;
}
constexpr bool INSIDE_Y = inside(OUT_H, TY, STRIDE_Y, (ROWS - 1) * STEP_Y + 1, PADDING_Y, H);
constexpr bool INSIDE_X = inside(OUT_W, TX, STRIDE_X, (COLUMNS - 1) * STEP_X + 1, PADDING_X, W);

// The tap that pixel number `pixel` of a thread uses of the input at `at`, or -1.
INLINE constexpr int tap_of(int at, int pixel, int stride, int dilation, int taps) {
  const int from = at - pixel * stride;
  return from >= 0 && from % dilation == 0 && from / dilation < taps ? from / dilation : -1;
}
INLINE constexpr bool needed(int at, int pixels, int stride, int dilation, int taps) {
  for (int p = 0; p < pixels; p++)
    if (tap_of(at, p, stride, dilation, taps) >= 0) return true;
  return false;
}

// Adds to `sums` those of the pixels from (oy0, ox0) on, once the kernels before this one have ended.
INLINE void add_products(const SOURCE* x, const float4* w, unsigned chunk, unsigned image, unsigned oy0, unsigned ox0,
                         float (&sums)[TY][TX][LANES]) {
  float4 taps[KERNEL_H][KERNEL_W][LANES / 4];
  auto load_taps = [&](int ky) {
#pragma unroll
    for (int kx = 0; kx < KERNEL_W; kx++)
#pragma unroll
      for (int q = 0; q < LANES / 4; q++)
        taps[ky][kx][q] = w[((ky * KERNEL_W + kx) * CHUNKS + chunk) * (LANES / 4) + q];
  };
  // The weights are nobody's output: they may come while the kernel before this one still runs. (By plain loads: the
  // compiler moves those of __ldg behind the wait.)
#pragma unroll
  for (int ky = 0; ky < EARLY; ky++) load_taps(ky);
  wait_for_predecessors();
  launch_dependents();

  const int iy0 = (int)(oy0 * STRIDE_Y) - PADDING_Y, ix0 = (int)(ox0 * STRIDE_X) - PADDING_X;
  const SOURCE* first = x + ((long long)image * PITCH_B + (long long)iy0 * PITCH_Y + (long long)ix0 * PITCH_X +
                             chunk * LANES + OFFSET);
  Chunk inputs[ROWS][COLUMNS];
  auto real = [&](int i, int j) {
    return (INSIDE_Y || (unsigned)(iy0 + i * STEP_Y) < H) && (INSIDE_X || (unsigned)(ix0 + j * STEP_X) < W);
  };
  auto load_inputs = [&](int i) {
    if (!needed(i * STEP_Y, TY, STRIDE_Y, DILATION_Y, KERNEL_H)) return;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
      if (needed(j * STEP_X, TX, STRIDE_X, DILATION_X, KERNEL_W))
        inputs[i][j] = real(i, j) ? *(const Chunk*)(first + (i * STEP_Y * PITCH_Y + j * STEP_X * PITCH_X)) : OUTSIDE;
  };
#pragma unroll
  for (int i = 0; i < AHEAD; i++) load_inputs(i);

#pragma unroll
  for (int i = 0; i < ROWS; i++) {
    const int tap = tap_of(i * STEP_Y, 0, STRIDE_Y, DILATION_Y, KERNEL_H);
    if (tap >= EARLY) load_taps(tap);
    if (i > 0 && i + AHEAD - 1 < ROWS) load_inputs(i + AHEAD - 1);
    if (!needed(i * STEP_Y, TY, STRIDE_Y, DILATION_Y, KERNEL_H)) continue;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      if (!needed(j * STEP_X, TX, STRIDE_X, DILATION_X, KERNEL_W)) continue;
      float input[LANES];
      unpack_chunk(inputs[i][j], input);
#pragma unroll
      for (int p = 0; p < TY * TX; p++) {
        const int ky = tap_of(i * STEP_Y, p / TX, STRIDE_Y, DILATION_Y, KERNEL_H);
        const int kx = tap_of(j * STEP_X, p % TX, STRIDE_X, DILATION_X, KERNEL_W);
        if (ky < 0 || kx < 0) continue;
        if (!FINITE && !real(i, j)) continue;  // zero times infinity would not be zero
        float(&sum)[LANES] = sums[p / TX][p % TX];
#pragma unroll
        for (int q = 0; q < LANES / 4; q++) {
          const float4 weight = taps[ky][kx][q];
          sum[4 * q] = fmaf(input[4 * q], weight.x, sum[4 * q]);
          sum[4 * q + 1] = fmaf(input[4 * q + 1], weight.y, sum[4 * q + 1]);
          sum[4 * q + 2] = fmaf(input[4 * q + 2], weight.z, sum[4 * q + 2]);
          sum[4 * q + 3] = fmaf(input[4 * q + 3], weight.w, sum[4 * q + 3]);
        }
      }
    }
  }
}
