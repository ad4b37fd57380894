// Floats as tensor cores multiply them (tf32.cu): each is two, its first 11 digits, and the rest, rounded to as many. The
// product of two floats is three, as exact as theirs: what is left out, the product of both rests, is at most 2^-22 of it.
// Tensor cores cut off what they add up: so sums are of few products, those of rests begin them or are apart, as their ends
// count for little, and other instructions add them up. A number's rest has its sign and is at least 2^-60 of it, that of an
// infinity is one: an infinity times both is one (but NaN times a number below 2^-66, whose rest would be too small).
INLINE float without_tail(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }
// Cut off behind 11 digits it is what was nearest.
INLINE unsigned to_be_cut(float x) { return __float_as_uint(x) + 0x1000u; }
INLINE float rest_of_number(float x) { return fmaf(x, 0x1p-60f, x - without_tail(x)); }
INLINE unsigned rest_of(unsigned word) {
  const float x = __uint_as_float(word), rest = rest_of_number(x);
  return to_be_cut(rest == rest ? rest : x);
}
