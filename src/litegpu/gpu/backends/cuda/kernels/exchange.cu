// Of 8 x 8 sums of a product by tensor cores a thread has two neighbours of a row, and two eight rows below. Of two such blocks
// side by side pairs of threads exchange theirs, so that each has a quad: number exchanged_number() of the four, in row
// `lane / 4` (r = 0) or eight below (r = 1). All threads of a warp take part.
INLINE unsigned exchanged_number() { return threadIdx.x % 2 * 2 + threadIdx.x % 4 / 2; }
INLINE float4 exchanged_quad(const float (&a)[4], const float (&b)[4], unsigned r) {
  const bool odd = threadIdx.x % 2;
  const float a0 = a[2 * r], a1 = a[2 * r + 1], b0 = b[2 * r], b1 = b[2 * r + 1];
  const float c0 = __shfl_xor_sync(~0u, odd ? a0 : b0, 1), c1 = __shfl_xor_sync(~0u, odd ? a1 : b1, 1);
  return odd ? float4{c0, c1, b0, b1} : float4{a0, a1, c0, c1};
}
