// What products do of rows that are to be normalised over their depth first: the sum and the sum of squares of each,
// beside the product. (x - mean) w is x (w - the mean of w), so that the host centres the weights, and what
// x is divided by becomes a factor of the row's results.
//
// Or, with ROW_FACTORS (a place in shared memory, of four bytes for each row), the factors are there before the product begins:
// rows come a second time then, from the second cache to registers, beside the copies of the first steps.
//
// Constants from the host: CENTRED (the mean counts); NORM_DEPTH (numbers of a row); EPSILON; NORM_SCALE (what the weights
// were divided by). ROW_NORM says that it is here.
#define ROW_NORM 1
#ifndef ROW_FACTORS
#define BESIDE 1
#endif

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

#ifdef ROW_FACTORS
// The sum of a row, and that of squares in two parts, so that additions wait less for each other.
struct ChunkMoments {
  float total = 0.0f, squares[2] = {};

  // Eight numbers more.
  __device__ __forceinline__ void add(uint4 v) {
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
      const float a = half_to_float((unsigned short)words[i]), b = half_to_float((unsigned short)(words[i] >> 16));
#if CENTRED
      total += a + b;
#endif
      squares[0] = fmaf(a, a, squares[0]);
      squares[1] = fmaf(b, b, squares[1]);
    }
  }
  // The row's factor, of `lanes` neighbouring lanes with parts of it.
  template <unsigned lanes> __device__ __forceinline__ float factor() const {
    float2 all = float2{total, squares[0] + squares[1]};
#pragma unroll
    for (unsigned by = lanes / 2; by > 0; by /= 2) {
      all.x += __shfl_xor_sync(~0u, all.x, by);
      all.y += __shfl_xor_sync(~0u, all.y, by);
    }
    return row_factor(all);
  }
};
// Of `rows` rows, each of which a warp reads at read(row, chunk), 16 bytes of it.
template <unsigned rows, unsigned warps, unsigned chunks, class Read> INLINE void sum_up_rows(unsigned thread, Read read) {
  const unsigned lane = thread % 32;
#pragma unroll 4
  for (unsigned row = thread / 32; row < rows; row += warps) {
    ChunkMoments moments;
#pragma unroll
    for (unsigned chunk = lane; chunk < chunks; chunk += 32) moments.add(read(row, chunk));
    const float factor = moments.template factor<32>();
    if (lane == 0) *(float*)(shared + ROW_FACTORS + row * 4) = factor;
  }
}
// The same of tiles that lie in shared memory, a step of the depth each, of which read(step, row, chunk) gives 16 bytes once
// wait(step) has returned; by `threads` threads.
template <unsigned rows, unsigned threads, unsigned chunks, unsigned steps, class Wait, class Read>
INLINE void sum_up_tiles(unsigned thread, Wait wait, Read read) {
  constexpr unsigned shares = threads > rows ? threads / rows : 1, own = rows > threads ? rows / threads : 1;
  ChunkMoments moments[own];
#pragma unroll 1
  for (unsigned step = 0; step < steps; step++) {
    wait(step);
#pragma unroll
    for (unsigned r = 0; r < own; r++)
#pragma unroll
      for (unsigned i = 0; i < chunks / shares; i++)
        moments[r].add(read(step, thread / shares + r * threads, i * shares + thread % shares));
  }
#pragma unroll
  for (unsigned r = 0; r < own; r++) {
    const float factor = moments[r].template factor<shares>();
    if (thread % shares == 0) *(float*)(shared + ROW_FACTORS + (thread / shares + r * threads) * 4) = factor;
  }
}

// What a lane has of the results of 16 rows, by the factors of its first one, and of that eight rows on.
template <unsigned count> INLINE void scale_rows(float (&sums)[count][4], const float* factors) {
  const float one = factors[0], other = factors[8];
#pragma unroll
  for (unsigned n = 0; n < count; n++) sums[n][0] *= one, sums[n][1] *= one, sums[n][2] *= other, sums[n][3] *= other;
}
#endif
