// The first layer of squeeze-and-excite of bytes: its inputs are means of channels, which a workgroup has in shared memory, and
// each of its results belongs to some threads, which load its weights before there are inputs. (byte_squeeze.cu, byte_excite.cu.)
//
// Constants from the host: THREADS, RESULTS (of the workgroup, a multiple of four), CHUNKS (16 bytes of the depth), INNER_LANES (threads
// of a result), PASSES (results of a thread), UNSIGNED_MEAN (the means); MEAN(sum): four means as numbers, of the sums over all pixels.
constexpr unsigned STEPS = (CHUNKS + INNER_LANES - 1) / INNER_LANES, AT_ONCE = THREADS / INNER_LANES;
static_assert(AT_ONCE * PASSES >= RESULTS && RESULTS / 4 <= THREADS, "threads");
typedef uint4 InnerWeights[PASSES][STEPS];  // of a thread

// Four numbers as bytes.
INLINE unsigned packed(int4 v) {
  return ((unsigned)v.x & 255) | ((unsigned)v.y & 255) << 8 | ((unsigned)v.z & 255) << 16 | (unsigned)v.w << 24;
}
// As signed ones, four means of sums.
INLINE unsigned mean_word(int4 sum) { return packed(MEAN(sum)) ^ (UNSIGNED_MEAN ? 0x80808080u : 0u); }
// Of the workgroup's results, which begin with number `first` of `all`.
INLINE void load_weights(InnerWeights& factors, const uint4* w, unsigned first, unsigned all) {
  const unsigned lane = threadIdx.x % INNER_LANES;
#pragma unroll
  for (unsigned pass = 0; pass < PASSES; pass++)
#pragma unroll
    for (unsigned step = 0; step < STEPS; step++) {
      const unsigned result = pass * AT_ONCE + threadIdx.x / INNER_LANES, chunk = step * INNER_LANES + lane;
      const bool real = result < RESULTS && first + result < all && chunk < CHUNKS;
      factors[pass][step] = real ? w[(first + result) * CHUNKS + chunk] : uint4{};
    }
}
// The results' sums, by all threads, in shared memory as the means are.
INLINE void multiply_means(int* sums, const uint4* means, const InnerWeights& factors) {
  const unsigned lane = threadIdx.x % INNER_LANES;
#pragma unroll
  for (unsigned pass = 0; pass < PASSES; pass++) {
    const unsigned result = pass * AT_ONCE + threadIdx.x / INNER_LANES;
    int sum = 0;
#pragma unroll
    for (unsigned step = 0; step < STEPS; step++) {
      const unsigned chunk = step * INNER_LANES + lane;
      if (CHUNKS % INNER_LANES && chunk >= CHUNKS) continue;
      const uint4 values = means[chunk], by = factors[pass][step];
      sum = __dp4a((int)values.x, (int)by.x, sum), sum = __dp4a((int)values.y, (int)by.y, sum);
      sum = __dp4a((int)values.z, (int)by.z, sum), sum = __dp4a((int)values.w, (int)by.w, sum);
    }
#pragma unroll
    for (unsigned by = INNER_LANES / 2; by; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
    if (lane == 0 && result < RESULTS) sums[result] = sum;
  }
}
