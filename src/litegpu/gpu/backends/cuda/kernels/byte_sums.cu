// Sums of bytes by channel: what a word of four channels has is added to their sums, each byte by a product with one.
template <bool is_unsigned>
INLINE int byte_sum(unsigned word, unsigned one, int sum) {
  if constexpr (is_unsigned)
    return (int)__dp4a(word, one, (unsigned)sum);
  else
    return __dp4a((int)word, (int)one, sum);
}
template <bool is_unsigned>
INLINE int4 byte_sums(unsigned word, int4 sums) {
  return {byte_sum<is_unsigned>(word, 1u, sums.x), byte_sum<is_unsigned>(word, 1u << 8, sums.y),
          byte_sum<is_unsigned>(word, 1u << 16, sums.z), byte_sum<is_unsigned>(word, 1u << 24, sums.w)};
}
