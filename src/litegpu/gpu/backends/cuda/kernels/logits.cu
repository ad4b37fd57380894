// Of 16 x 8 products by tensor cores a thread has two neighbours of a row, and two eight rows below: what attentions do with rows of
// logits.
#define NOTHING __int_as_float(0xff800000)  // minus infinity, of which the exponential is 0

INLINE float of_neighbours(float x, bool add) {  // the sum or the largest of the four threads that share a row
#pragma unroll
  for (unsigned by = 1; by < 4; by *= 2) {
    const float other = __shfl_xor_sync(~0u, x, by);
    x = add ? x + other : fmaxf(x, other);
  }
  return x;
}
