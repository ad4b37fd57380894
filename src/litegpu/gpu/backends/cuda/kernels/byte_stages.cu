// What the kernels of widening blocks of bytes share (byte_inverted.cu, byte_images.cu): bytes of sums, the products of what
// widens, and those of the window by pairs of columns.
//
// Constants from the host: TY (rows of a unit); KERNEL_H KERNEL_W STRIDE_* (of the window); UNSIGNED EXPANDS PROJECTS; those of the
// two stages, as byte_inverted.cu says.
//
// Pixels of a strip by turns, pixels of a strip, and pairs of columns that a pixel reads.
constexpr unsigned TURNS = STRIDE_X == 1 ? 2 : 1, STRIP = 8 * TURNS, PAIRS = STRIDE_X == 1 ? KERNEL_W / 2 + 1 : (KERNEL_W + 1) / 2;
// Which rows a depthwise product is of: see inverted.cu.
constexpr unsigned TOGETHER = STRIDE_Y == 1 && TY % 4 == 0 ? 2 : 1, BETWEEN = TOGETHER == 2 ? 2 : STRIDE_Y;
constexpr unsigned DOWN = KERNEL_H + TOGETHER - 1;  // rows that it begins with, and those that begin in the next one
constexpr unsigned TAPS_ALL = KERNEL_H * TURNS * PAIRS, TAP_WORDS = (TAPS_ALL + 3) / 4;
static_assert(TY % 2 == 0 && STRIDE_X <= 2, "window");

INLINE constexpr unsigned product_of(unsigned row) { return TOGETHER == 2 ? row / 4 * 2 + row % 2 : row / 2; }
INLINE constexpr unsigned half_of_rows(unsigned row) { return TOGETHER == 2 ? row / 2 % 2 : row % 2; }

// The whole number nearest to (sum + bias) * scale, within limits, or what saturates to that. With `near` the sum has MAGIC
// more, the bits of 1.5 * 2**23, and the bias, a float, that much less. Positive floats are their bits as multiples of the
// least float, and negative ones negative numbers.
constexpr int MAGIC = 0x4B400000;
// Of numbers from zero on, `fused`, sums begin with their bias and the bits of 2**23: times the scale, less 2**23 times the
// scale, which is exact, that is the product, rounded once. Where the sum is below zero it is half of that, and below zero.
template <bool near, bool fused, bool positive, int limits>
INLINE int requantized(int sum, int bias, float scale, float low, float high, int offset) {
  float scaled = 0;
  if (fused) {
    scaled = fmaf(__int_as_float(sum), scale, __int_as_float(bias));
  } else {
    const float whole = near ? __fadd_rn(__int_as_float(sum), __int_as_float(bias)) : __int2float_rn(sum + bias);
    scaled = __fmul_rn(whole, scale);
  }
  if (limits > 0) scaled = fminf(scaled, high);
  if (limits > 1) scaled = fmaxf(scaled, low);
  if (positive) return __float_as_int(__fmul_rn(scaled, __int_as_float(1)));
  return __float_as_int(__fadd_rn(scaled, __int_as_float(MAGIC))) - (MAGIC - offset);
}
#define ONE_BYTE(WHICH, n) \
  requantized<WHICH##_NEAR, WHICH##_FUSED, WHICH##_POSITIVE, WHICH##_LIMITS>(v.n, bias.n, scale.n, WHICH##_LOW, WHICH##_HIGH, WHICH##_OFFSET)
#define TO_BYTES(name, WHICH) \
  INLINE unsigned name(int4 v, int4 bias, float4 scale) { \
    const int x = ONE_BYTE(WHICH, x), y = ONE_BYTE(WHICH, y), z = ONE_BYTE(WHICH, z), w = ONE_BYTE(WHICH, w); \
    return WHICH##_POSITIVE ? pack_u8(x, y, z, w) : pack_i8(x, y, z, w); \
  }
// Two numbers twice, which the compiler keeps, not knowing that they are the same.
INLINE int4 kept_pairs(int n, int m) {
  int4 v = {n, m, n, m};
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w));
#endif
  return v;
}
// What sums of four channels begin with, those of the two products; and what is to be done with them takes the place of the
// bias.
template <bool near, bool fused> INLINE void begin_stage(int4 (&begin)[2], int4& bias, float4 scale) {
  if (fused) {
    begin[0] = kept_pairs(bias.x, bias.y), begin[1] = kept_pairs(bias.z, bias.w);
    bias = int4{__float_as_int(scale.x * -8388608.0f), __float_as_int(scale.y * -8388608.0f),
                __float_as_int(scale.z * -8388608.0f), __float_as_int(scale.w * -8388608.0f)};
  } else {
    begin[0] = begin[1] = near ? kept_pairs(MAGIC, MAGIC) : int4{};
  }
}
INLINE unsigned kept(unsigned n) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(n));
#endif
  return n;
}
#if EXPANDS
TO_BYTES(expanded_bytes, EXPANDED)
#endif
#if PROJECTS
TO_BYTES(middle_bytes, MIDDLE)
#endif

// d: 16 places and 16 channels for each of its first index. `from`: where this lane's row of the left factor begins; `right`
// gives the weights of a step and of 16 channels, `begin` what sums begin with.
template <unsigned depth, unsigned sixteens, class Right>
INLINE void expand(int (&d)[sixteens][2][4], unsigned from, unsigned lane, const int4 (&begin)[sixteens][2], Right right) {
#pragma unroll
  for (unsigned k = 0; k * 32 < depth; k++) {
    unsigned left[4];
    const bool whole = k * 32 + 32 <= depth;
    if (whole)
      load_matrices(left, from + lane / 16 * 16 + k * 32);
    else
      load_two_matrices(left, from + k * 32);
#pragma unroll
    for (unsigned n = 0; n < sixteens; n++) {
      const uint4 factors = right(k, n);
#pragma unroll
      for (unsigned c = 0; c < 2; c++) {
        int(&sum)[4] = d[n][c];
        const int4 before = k > 0 ? int4{sum[0], sum[1], sum[2], sum[3]} : begin[n][c];
        const unsigned b0 = c ? factors.z : factors.x, b1 = c ? factors.w : factors.y;
        if (whole)
          multiply_bytes_onto<UNSIGNED>(sum, before, left, b0, b1);
        else
          multiply_half_onto<UNSIGNED>(sum, before, left[0], left[1], b0);
      }
    }
  }
}

// A lane has one of its four bytes of a pair of columns, or none: what takes this from each byte of a word.
INLINE void select_taps(unsigned (&selectors)[4], unsigned lane) {
  const unsigned g = lane / 4, q = lane % 4;
#pragma unroll
  for (unsigned tap = 0; tap < 4; tap++) {
    const unsigned at = g % 4 * 4;
    selectors[tap] = kept(q % 2 == g / 4 ? (0x4444u & ~(4u << at)) | tap << at : 0x4444u);
  }
}
INLINE void spread_taps(unsigned (&weights)[2][TAPS_ALL], const unsigned (&words)[2][TAP_WORDS], const unsigned (&selectors)[4]) {
#pragma unroll
  for (unsigned c = 0; c < 2; c++)
#pragma unroll
    for (unsigned tap = 0; tap < TAPS_ALL; tap++) weights[c][tap] = __byte_perm(words[c][tap / 4], 0, selectors[tap % 4]);
}
// Sums of TY rows of a strip, of 16 channels, from planes with lines of `line` places. `from`: where this lane's first row of a
// matrix begins.
template <unsigned line, unsigned plane, bool is_unsigned>
INLINE void multiply_window(int (&sums)[TY / 2][TURNS][2][4], unsigned from, const unsigned (&weights)[2][TAPS_ALL],
                            const int4 (&begin)[2]) {
  const unsigned lane = threadIdx.x % 32;
#pragma unroll
  for (unsigned first = 0; first < TY / 2; first += TOGETHER)
#pragma unroll
    for (unsigned c = 0; c < 2; c++) {
      unsigned inputs[DOWN][PAIRS + 1][4];  // of each second pair of columns: that pair and the next one, of two rows
#pragma unroll
      for (unsigned t = 0; t < DOWN; t++)
#pragma unroll
        for (unsigned p = 0; p < PAIRS; p += 2) {
          const unsigned at = from + ((2 * first * STRIDE_Y + t) * (line / 2) + p) * 16 + c * plane;
          if (p + 1 < PAIRS)
            load_matrices(inputs[t][p], at + lane / 16 * 16);
          else
            load_two_matrices(inputs[t][p], at);
        }
#pragma unroll
      for (unsigned ky = 0; ky < KERNEL_H; ky++)
#pragma unroll
        for (unsigned p = 0; p < PAIRS; p += 2)
#pragma unroll
          for (unsigned i = 0; i < TOGETHER; i++)
#pragma unroll
            for (unsigned w = 0; w < TURNS; w++) {
              const unsigned tap = (ky * TURNS + w) * PAIRS + p;
              int(&sum)[4] = sums[first + i][w][c];
              const int4 before = ky + p > 0 ? int4{sum[0], sum[1], sum[2], sum[3]} : begin[c];
              const unsigned(&four)[4] = inputs[ky + i][p];
              if (p + 1 < PAIRS)
                multiply_bytes_onto<is_unsigned>(sum, before, four, weights[c][tap], weights[c][tap + 1]);
              else
                multiply_half_onto<is_unsigned>(sum, before, four[0], four[1], weights[c][tap]);
            }
    }
}

// What a weight that no byte holds adds to sums.
template <bool is_unsigned> INLINE int byte_of(unsigned word) { return is_unsigned ? (int)(word & 255) : (int)(signed char)word; }
template <bool is_unsigned> INLINE int byte_at(unsigned at) { return byte_of<is_unsigned>(*(const unsigned char*)(shared + at)); }
// Of the lane's element E of each pixel; `at`: what its first pixel reads.
template <unsigned line, bool is_unsigned, unsigned E>
INLINE void add_window_rest(int (&sums)[TY / 2][TURNS][2][4], unsigned at, int rest) {
#pragma unroll
  for (unsigned p = 0; p < TY; p++)
#pragma unroll
    for (unsigned w = 0; w < TURNS; w++)
      sums[product_of(p)][w][E / 2][half_of_rows(p) * 2 + E % 2] +=
          rest * byte_at<is_unsigned>(at + (p * STRIDE_Y * line + w * STRIDE_X) * 8);
}
