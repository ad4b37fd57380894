// Floats as halves, of which tensor cores multiply twice as many as of TF32: each is two, the nearest half and what that leaves,
// 2^11 times as large, which is exact to 2^-24 of the float. The product of two floats is three of halves, as exact as
// theirs: what is left out, the product of both rests, is at most 2^-23 of it.
//
// A half has five bits of exponent. Weights are scaled by the host, for each output. Rows are not: what their largest number
// is is found on the way, and those for which halves are not enough are multiplied once more, by a power of two as large as
// they need (`scale`): what is lost of a number is at most 2^-36, which is 2^-24 of the least of the largest numbers that do.
constexpr float LEAST_OF_ROW = 0x1p-12f, MOST_OF_ROW = 65504.0f;

// Two floats as their halves, and what is left of them.
struct HalvedPair { unsigned high, low; };
INLINE float low_half(unsigned word) { return half_to_float((unsigned short)word); }
INLINE float high_half(unsigned word) { return half_to_float((unsigned short)(word >> 16)); }
INLINE HalvedPair halved(float x, float y) {
  const unsigned high = pack_half2(x, y);
  return {high, pack_half2((x - low_half(high)) * 2048.0f, (y - high_half(high)) * 2048.0f)};
}
// What is zero of an infinity: the rest, and what rests of weights, which may be zeros, are multiplied by.
INLINE unsigned finite_halves(unsigned word) {
  const unsigned low = (word & 0x7fffu) == 0x7c00u ? 0 : word & 0xffffu;
  return low | ((word & 0x7fff0000u) == 0x7c000000u ? 0 : word & 0xffff0000u);
}
INLINE unsigned without_nan(unsigned word) {
  const unsigned low = (word & 0x7fffu) > 0x7c00u ? 0 : word & 0xffffu;
  return low | ((word & 0x7fff0000u) > 0x7c000000u ? 0 : word & 0xffff0000u);
}

INLINE bool needs_scale(float largest) { return largest > MOST_OF_ROW || (largest > 0.0f && largest < LEAST_OF_ROW); }
// The power of two that makes the largest number of a row one from 2^14 to 2^15, and what undoes it. A row with an infinity has
// other numbers that may be as large as floats are, and one of denormal numbers is made as large as is possible.
INLINE unsigned exponent_of(float largest) {
  const unsigned exponent = __float_as_uint(largest) >> 23;
  return exponent < 15 ? 15 : exponent > 254 ? 254 : exponent;
}
INLINE float row_scale(float largest) { return largest > 0.0f ? __uint_as_float((268 - exponent_of(largest)) << 23) : 1.0f; }
INLINE float row_unscaled(float largest) { return largest > 0.0f ? __uint_as_float((exponent_of(largest) - 14) << 23) : 1.0f; }
