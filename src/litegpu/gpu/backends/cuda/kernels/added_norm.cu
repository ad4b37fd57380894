// Rows of another value that are normalised and added to those of a product, times a number for each channel: the mean of
// each row of the tile, and what its numbers are divided by, come into shared memory while the first steps are copied.
//
// Constants from the host: ADDED_CENTRED (the mean counts); ADDED_DEPTH (numbers of a row); ADDED_EPSILON; ADDED_PLACE (in
// shared memory, of 8 bytes for each of BM rows); and as functions ADDED(pixel, quad), which reads, and
// SUM_WITH(pixel, quad, sum, factor, shift), the sum with what was read times `factor` plus `shift`, times the channels' numbers.
#define ADDED_NORM 1

template <unsigned rows, unsigned warps, class Read> INLINE void sum_up_added(unsigned thread, Read read) {
  constexpr unsigned quads = (ADDED_DEPTH + 3) / 4;
  const unsigned lane = thread % 32;
#pragma unroll 4
  for (unsigned row = thread / 32; row < rows; row += warps) {
    float total = 0.0f, squares = 0.0f;
#pragma unroll
    for (unsigned quad = lane; quad < quads; quad += 32) {
      const float4 v = read(row, quad);
      total += (v.x + v.y) + (v.z + v.w);
      squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares))));
    }
#pragma unroll
    for (unsigned by = 16; by > 0; by /= 2) {
      total += __shfl_xor_sync(~0u, total, by);
      squares += __shfl_xor_sync(~0u, squares, by);
    }
    const float mean = ADDED_CENTRED ? total * (1.0f / ADDED_DEPTH) : 0.0f;
    const float variance = fmaf(-mean, mean, squares * (1.0f / ADDED_DEPTH));
    // What was rounded must not make it negative; a NaN stays.
    const float factor = rsqrtf((variance < 0.0f ? 0.0f : variance) + ADDED_EPSILON);
    if (lane == 0) *(float2*)(shared + ADDED_PLACE + row * 8) = float2{factor, -mean * factor};
  }
}
