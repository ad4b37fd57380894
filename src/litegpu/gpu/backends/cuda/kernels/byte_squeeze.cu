// The mean of an image's bytes over its pixels, and the first layer of squeeze-and-excite of these, in one kernel: a cluster of
// SPLIT workgroups (compute capability 9.0; elsewhere one) has an image and divides its pixels, then the layer's results. A
// thread adds up RUN neighbouring channels of every ROWS-th pixel, FOLD threads' sums are added up again and again, and each
// workgroup of a cluster adds what the others have. The layer's weights are loaded before the bytes exist.
//
// Constants from the host: RUN (channels that are loaded at once: 16, 8 or 4), RUNS (of a pixel), ROWS (of threads), THREADS, EARLY
// (pixels under way); SPLIT, PIXELS (of an image), PART (of a workgroup; the last one may have fewer), WIDTH, OFFSET PITCH_B PITCH_Y
// PITCH_X (elements, of x's view), UNSIGNED (x), UNSIGNED_MEAN; RESULTS (of a workgroup, a multiple of four), QUADS (of all
// results), CHUNKS (16 bytes of the depth), LANES (threads of a result), PASSES; MEAN(sum): four bytes' numbers.
#if RUN == 16
typedef uint4 Run;
#elif RUN == 8
typedef uint2 Run;
#else
typedef unsigned Run;
#endif
constexpr unsigned WORDS = RUN / 4, CHANNELS = RUNS * WORDS;  // of a run, of a pixel (quads)
constexpr unsigned FOLD = 8;  // lines that a thread adds up
constexpr unsigned STEPS = (CHUNKS + LANES - 1) / LANES, AT_ONCE = THREADS / LANES;
// In shared memory, in bytes: rows of sums, the means, and the layer's sums.
constexpr unsigned MEANS_AT = ROWS * CHANNELS * 16, SUMS_AT = MEANS_AT + CHUNKS * 16;
static_assert(ROWS * RUNS <= THREADS && AT_ONCE * PASSES >= RESULTS && SUMS_AT + RESULTS * 4 <= SHARED_BYTES, "threads");
union Loaded {
  Run all;
  unsigned words[WORDS];
};

INLINE int4 both(int4 a, int4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
INLINE int byte_sum(unsigned word, unsigned which, int sum) {
#if UNSIGNED
  return (int)__dp4a(word, which, (unsigned)sum);
#else
  return __dp4a((int)word, (int)which, sum);
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
#if SPLIT > 1
    __cluster_dims__(SPLIT, 1, 1)
#endif
    NAME(const signed char* x, const uint4* w, const int4* corrections EPILOGUE_BUFFERS) {
  int4* const lines = (int4*)shared;
  unsigned* const means = (unsigned*)(shared + MEANS_AT);
  int* const totals = (int*)(shared + SUMS_AT);
  const unsigned thread = threadIdx.x, lane = thread % LANES, image = blockIdx.x / SPLIT;
#if SPLIT > 1
  const unsigned part = cluster_part();
#else
  const unsigned part = 0;
#endif
  uint4 factors[PASSES][STEPS];
#pragma unroll
  for (unsigned pass = 0; pass < PASSES; pass++)
#pragma unroll
    for (unsigned step = 0; step < STEPS; step++) {
      const unsigned result = pass * AT_ONCE + thread / LANES, chunk = step * LANES + lane;
      const bool real = result < RESULTS && part * RESULTS + result < QUADS * 4 && chunk < CHUNKS;
      factors[pass][step] = real ? w[(part * RESULTS + result) * CHUNKS + chunk] : uint4{};
    }
  const unsigned quad = part * (RESULTS / 4) + thread;  // that this thread will store
  const bool stores = thread < RESULTS / 4 && quad < QUADS;
  const int4 more = stores ? corrections[quad] : int4{};
  const STORE_CONSTANTS_TYPE constants = STORE_CONSTANTS((stores ? quad : 0));
  wait_for_predecessors();
  launch_dependents();

  const unsigned run = thread % RUNS, row = thread / RUNS;
  const unsigned first = part * PART, pixels = SPLIT * PART == PIXELS || part + 1 < SPLIT ? PART : PIXELS - (SPLIT - 1) * PART;
  const signed char* const from = x + (OFFSET + (long long)image * PITCH_B + run * RUN);
  int sums[RUN] = {};
  if (row < ROWS)
    for (unsigned begin = row; begin < pixels; begin += EARLY * ROWS) {
      Loaded loaded[EARLY];
#pragma unroll
      for (unsigned i = 0; i < EARLY; i++) {
        const unsigned own = begin + i * ROWS, pixel = first + own;
        loaded[i].all = Run{};
        if (own < pixels)
          loaded[i].all = *(const Run*)(from + (PITCH_Y == WIDTH * PITCH_X ? pixel * PITCH_X : pixel / WIDTH * PITCH_Y + pixel % WIDTH * PITCH_X));
      }
#pragma unroll
      for (unsigned i = 0; i < EARLY; i++)
#pragma unroll
        for (unsigned c = 0; c < RUN; c++) sums[c] = byte_sum(loaded[i].words[c / 4], 1u << 8 * (c % 4), sums[c]);
    }
  if (row < ROWS)
#pragma unroll
    for (unsigned i = 0; i < WORDS; i++)
      lines[row * CHANNELS + run * WORDS + i] = int4{sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
  __syncthreads();
#pragma unroll
  for (unsigned count = ROWS; count > 1; count = (count + FOLD - 1) / FOLD) {
    const unsigned left = (count + FOLD - 1) / FOLD;
    for (unsigned item = thread; item < left * CHANNELS; item += THREADS) {  // each line is written by who alone reads it
      int4 sum = lines[item];
#pragma unroll
      for (unsigned i = 1; i < FOLD; i++)
        if (item + i * left * CHANNELS < count * CHANNELS) sum = both(sum, lines[item + i * left * CHANNELS]);
      lines[item] = sum;
    }
    __syncthreads();
  }
#if SPLIT > 1
  cluster_sync();
#endif
  for (unsigned item = thread; item < CHUNKS * 4; item += THREADS) {
    unsigned word = 0;
    if (item < CHANNELS) {
      int4 sum = lines[item];
#if SPLIT > 1
      uint4 theirs[SPLIT];
#pragma unroll
      for (unsigned p = 1; p < SPLIT; p++) theirs[p] = cluster_read(item * 16, (part + p) % SPLIT);
#pragma unroll
      for (unsigned p = 1; p < SPLIT; p++)
        sum = both(sum, int4{(int)theirs[p].x, (int)theirs[p].y, (int)theirs[p].z, (int)theirs[p].w});
#endif
      const int4 found = MEAN(sum);
      word = ((unsigned)found.x & 255) | ((unsigned)found.y & 255) << 8 | ((unsigned)found.z & 255) << 16 | (unsigned)found.w << 24;
      if (UNSIGNED_MEAN) word ^= 0x80808080u;
    }
    means[item] = word;
  }
#if SPLIT > 1
  cluster_arrive();  // what the others have is read
#endif
  __syncthreads();
#pragma unroll
  for (unsigned pass = 0; pass < PASSES; pass++) {
    const unsigned result = pass * AT_ONCE + thread / LANES;
    int sum = 0;
#pragma unroll
    for (unsigned step = 0; step < STEPS; step++) {
      const unsigned chunk = step * LANES + lane;
      if (CHUNKS % LANES && chunk >= CHUNKS) continue;
      const uint4 values = ((const uint4*)means)[chunk], by = factors[pass][step];
      sum = __dp4a((int)values.x, (int)by.x, sum), sum = __dp4a((int)values.y, (int)by.y, sum);
      sum = __dp4a((int)values.z, (int)by.z, sum), sum = __dp4a((int)values.w, (int)by.w, sum);
    }
#pragma unroll
    for (unsigned by = LANES / 2; by; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
    if (lane == 0 && result < RESULTS) totals[result] = sum;
  }
  __syncthreads();
  if (stores) STORE(image, quad, (both(((const int4*)totals)[thread], more)), constants, STORE_OPERANDS(image, quad));
#if SPLIT > 1
  cluster_wait();
#endif
}
