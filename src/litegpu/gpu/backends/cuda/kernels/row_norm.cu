// What products do of rows that are to be normalised over their depth first: the sum and the sum of squares of each,
// beside the product. (x - mean) w is x (w - the mean of w), so that the host centres the weights, and what
// x is divided by becomes a factor of the row's results.
//
// Constants from the host: CENTRED (the mean counts); NORM_DEPTH (numbers of a row); EPSILON; NORM_SCALE (what the weights
// were divided by). ROW_NORM says that it is here.
#define ROW_NORM 1

// Of 16 rows, by a warp: what a lane has read of its rows lane / 4 and lane / 4 + 8.
struct RowMoments {
  float total[2] = {}, squares[2] = {};

  // 16 numbers of each row, as multiply() takes a left factor.
  __device__ __forceinline__ void add(const unsigned (&rows)[4]) {
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
      const float a = half_to_float((unsigned short)rows[i]), b = half_to_float((unsigned short)(rows[i] >> 16));
#if CENTRED
      total[i % 2] += a + b;
#endif
      squares[i % 2] = fmaf(b, b, fmaf(a, a, squares[i % 2]));
    }
  }
  // Of what lies in shared memory: `deep` times 16 numbers, from the two chunks of 16 bytes on that at(0) gives.
  template <unsigned deep, class At> __device__ __forceinline__ void read(At at) {
#pragma unroll
    for (unsigned i = 0; i < deep; i++) {
      unsigned rows[4];
      load_matrices(rows, at(i * 2));
      add(rows);
    }
  }
  // The sum, and that of squares, of row lane / 4 + 8 * half.
  __device__ __forceinline__ float2 of(unsigned half) const {
    float2 all = float2{total[half], squares[half]};
#pragma unroll
    for (unsigned by = 1; by < 4; by *= 2) {
      all.x += __shfl_xor_sync(~0u, all.x, by);
      all.y += __shfl_xor_sync(~0u, all.y, by);
    }
    return all;
  }
};

INLINE float row_factor(float2 moments) {
  const float mean = moments.x * (1.0f / NORM_DEPTH), variance = fmaf(-mean, mean, moments.y * (1.0f / NORM_DEPTH));
  // What was rounded must not make it negative; a NaN stays.
  return NORM_SCALE * rsqrtf((variance < 0.0f ? 0.0f : variance) + EPSILON);
}

// What a lane has of the results of 16 rows, by their factors.
template <unsigned count> INLINE void normalise_rows(float (&sums)[count][4], const RowMoments& moments) {
  const float one = row_factor(moments.of(0)), other = row_factor(moments.of(1));
#pragma unroll
  for (unsigned n = 0; n < count; n++) sums[n][0] *= one, sums[n][1] *= one, sums[n][2] *= other, sums[n][3] *= other;
}
