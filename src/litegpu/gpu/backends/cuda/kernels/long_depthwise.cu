// Depthwise convolution with windows that are long in one direction (A, the other one is O): along time, or large kernels. A
// thread computes a chunk of LANES channels of OUTPUTS pixels along A. Of the inputs it keeps as many, in a ring: for each tap
// it needs one more, and one less. Taps are a loop, so that no window is too long.
//
// The pixels of a thread are SPACING apart, and of the taps every PHASES-th follows the other, so that the pixel next to one
// reads at a tap what that one reads at the next: both reads are STEP apart. With a stride S, a dilation D and G = gcd(S, D)
// SPACING is D / G, PHASES S / G, STEP S * D / G.
//
// Constants from the host: HALF (the input), BYTES (the input: 1 signed, 2 unsigned) with ZERO_POINT; LANES OUTPUTS; ALONG_X
// (A is x, else y); SPACING PHASES STEP; WC WA WO (threads of a workgroup: along chunks, A, O), GROUPS_C GROUPS_A GROUPS_O
// (workgroups along these, then images); CHUNKS; FINITE (all weights are); AT_ONCE (taps that are unrolled); KERNEL_H and those of the layer.
#if BYTES
typedef int4 Four;
typedef int Number;
#if LANES == 16
typedef uint4 Chunk;
#elif LANES == 8
typedef uint2 Chunk;
#else
typedef unsigned Chunk;
#endif
INLINE void unpack_word(unsigned word, int* v) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const unsigned byte = word >> 8 * i;
    v[i] = (BYTES == 1 ? (int)(signed char)byte : (int)(byte & 255)) - (ZERO_POINT);
  }
}
INLINE void unpack_chunk(unsigned a, int (&v)[LANES]) { unpack_word(a, v); }
INLINE void unpack_chunk(uint2 a, int (&v)[LANES]) { unpack_word(a.x, v), unpack_word(a.y, v + 4); }
INLINE void unpack_chunk(uint4 a, int (&v)[LANES]) {
  unpack_word(a.x, v), unpack_word(a.y, v + 4), unpack_word(a.z, v + 8), unpack_word(a.w, v + 12);
}
#else
typedef float4 Four;
typedef float Number;
#if !HALF
typedef float4 Chunk;
#elif LANES == 8
typedef uint4 Chunk;
#else
typedef uint2 Chunk;
#endif
#define unpack_chunk unpack
#endif

#if ALONG_X
#define TAPS_A KERNEL_W
#define TAPS_O KERNEL_H
#define STRIDE_A STRIDE_X
#define STRIDE_O STRIDE_Y
#define DILATION_A DILATION_X
#define DILATION_O DILATION_Y
#define PADDING_A PADDING_X
#define PADDING_O PADDING_Y
#define PITCH_A PITCH_X
#define PITCH_O PITCH_Y
#define SIZE_A W
#define SIZE_O H
#define OUT_A OUT_W
#define OUT_O OUT_H
constexpr int TAP_A = 1, TAP_O = KERNEL_W;
#else
#define TAPS_A KERNEL_H
#define TAPS_O KERNEL_W
#define STRIDE_A STRIDE_Y
#define STRIDE_O STRIDE_X
#define DILATION_A DILATION_Y
#define DILATION_O DILATION_X
#define PADDING_A PADDING_Y
#define PADDING_O PADDING_X
#define PITCH_A PITCH_Y
#define PITCH_O PITCH_X
#define SIZE_A H
#define SIZE_O W
#define OUT_A OUT_H
#define OUT_O OUT_W
constexpr int TAP_A = KERNEL_W, TAP_O = 1;
#endif
static_assert(AT_ONCE % OUTPUTS == 0, "a round of taps turns the ring once or more");

extern "C" __global__ void __launch_bounds__(WC * WA * WO) NAME(const SOURCE* x, const Four* w EPILOGUE_BUFFERS) {
  wait_for_predecessors();
  launch_dependents();
  const unsigned thread = threadIdx.x, group = blockIdx.x;
  const unsigned chunk = group % GROUPS_C * WC + thread % WC;
  const unsigned along = group / GROUPS_C % GROUPS_A * WA + thread / WC % WA;
  const unsigned o = group / (GROUPS_C * GROUPS_A) % GROUPS_O * WO + thread / (WC * WA);
  const unsigned image = group / (GROUPS_C * GROUPS_A * GROUPS_O);
  const unsigned a0 = along / SPACING * (OUTPUTS * SPACING) + along % SPACING;
  if (chunk >= CHUNKS || a0 >= OUT_A || o >= OUT_O) return;

  Number sums[OUTPUTS][LANES] = {};
  const int ia0 = (int)(a0 * STRIDE_A) - PADDING_A;
  const SOURCE* channels = x + ((long long)image * PITCH_B + chunk * LANES + OFFSET);
#pragma unroll 1
  for (int to = 0; to < TAPS_O; to++) {
    const int io = (int)(o * STRIDE_O) - PADDING_O + to * DILATION_O;
    if ((unsigned)io >= SIZE_O) continue;
    const SOURCE* line = channels + (long long)io * PITCH_O;
#pragma unroll 1
    for (int phase = 0; phase < PHASES; phase++) {
      const int start = ia0 + phase * DILATION_A, count = (TAPS_A - phase + PHASES - 1) / PHASES;
      const Four* weights = w + ((to * TAP_O + phase * TAP_A) * CHUNKS + chunk) * (LANES / 4);
      Number ring[OUTPUTS][LANES];
      auto load = [&](int number, Number(&input)[LANES]) {
        const int ia = start + number * STEP;
        if ((unsigned)ia < SIZE_A) {  // by a branch: a place chosen by selection took 5% more
          unpack_chunk(*(const Chunk*)(line + (long long)ia * PITCH_A), input);
        } else {
#pragma unroll
          for (int i = 0; i < LANES; i++) input[i] = 0;
        }
      };
      auto multiply = [&](int tap, int turn) {  // the ring begins at place `turn`
#pragma unroll
        for (int q = 0; q < LANES / 4; q++) {
          const Four weight = weights[tap * (PHASES * TAP_A * CHUNKS * (LANES / 4)) + q];
#pragma unroll
          for (int i = 0; i < OUTPUTS; i++) {
            // zero times infinity would not be zero
            if (!FINITE && (unsigned)(start + (tap + i) * STEP) >= SIZE_A) continue;
            const Number(&input)[LANES] = ring[(i + turn) % OUTPUTS];
            sums[i][4 * q] += input[4 * q] * weight.x;
            sums[i][4 * q + 1] += input[4 * q + 1] * weight.y;
            sums[i][4 * q + 2] += input[4 * q + 2] * weight.z;
            sums[i][4 * q + 3] += input[4 * q + 3] * weight.w;
          }
        }
      };
#pragma unroll
      for (int i = 0; i < OUTPUTS; i++) load(i, ring[i]);
      int tap = 0;
#pragma unroll 1
      for (; tap + AT_ONCE <= count; tap += AT_ONCE)
#pragma unroll
        for (int turn = 0; turn < AT_ONCE; turn++) {
          multiply(tap + turn, turn);
          load(tap + turn + OUTPUTS, ring[turn % OUTPUTS]);
        }
#pragma unroll
      for (int turn = 0; turn < (PHASES > 1 ? AT_ONCE - 1 : TAPS_A % AT_ONCE); turn++) {
        if (PHASES > 1 && tap + turn >= count) break;
        multiply(tap + turn, turn);
        load(tap + turn + OUTPUTS, ring[turn % OUTPUTS]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < OUTPUTS; i++) {
    const unsigned a = a0 + i * SPACING;
    if (a >= OUT_A) break;
    const unsigned pixel = (image * OUT_H + (ALONG_X ? o : a)) * OUT_W + (ALONG_X ? a : o);
#pragma unroll
    for (unsigned q = 0; q < LANES / 4; q++)
      STORE(pixel, chunk * (LANES / 4) + q,
            (Four{sums[i][4 * q], sums[i][4 * q + 1], sums[i][4 * q + 2], sums[i][4 * q + 3]}));
  }
}
