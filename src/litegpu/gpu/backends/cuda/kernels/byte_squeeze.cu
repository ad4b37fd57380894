// The mean of an image's bytes over its pixels, and the first layer of squeeze-and-excite of these, in one kernel: a cluster of
// SPLIT workgroups (compute capability 9.0; elsewhere one) has an image and divides its pixels, then the layer's results. A
// thread adds up RUN neighbouring channels of every ROWS-th pixel, FOLD threads' sums are added up again and again, and each
// workgroup of a cluster adds what the others have. The layer's weights are loaded before the bytes exist.
//
// Constants from the host: RUN (channels that are loaded at once: 16, 8 or 4), RUNS (of a pixel), ROWS (of threads), THREADS, EARLY
// (pixels under way); SPLIT, PIXELS (of an image), PART (of a workgroup; the last one may have fewer), WIDTH, OFFSET PITCH_B PITCH_Y
// PITCH_X (elements, of x's view), UNSIGNED (x); QUADS (of all results), and those of byte_means.cu.
#if RUN == 16
typedef uint4 Run;
#elif RUN == 8
typedef uint2 Run;
#else
typedef unsigned Run;
#endif
constexpr unsigned WORDS = RUN / 4, CHANNELS = RUNS * WORDS;  // of a run, of a pixel (quads)
constexpr unsigned FOLD = 8;  // lines that a thread adds up
// In shared memory, in bytes: rows of sums, the means, and the layer's sums.
constexpr unsigned MEANS_AT = ROWS * CHANNELS * 16, SUMS_AT = MEANS_AT + CHUNKS * 16;
static_assert(ROWS * RUNS <= THREADS && SUMS_AT + RESULTS * 4 <= SHARED_BYTES, "threads");
union Loaded {
  Run all;
  unsigned words[WORDS];
};

INLINE int4 both(int4 a, int4 b) { return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }

extern "C" __global__ void __launch_bounds__(THREADS)
#if SPLIT > 1
    __cluster_dims__(SPLIT, 1, 1)
#endif
    NAME(const signed char* x, const uint4* w, const int4* corrections EPILOGUE_BUFFERS) {
  int4* const lines = (int4*)shared;
  unsigned* const means = (unsigned*)(shared + MEANS_AT);
  int* const totals = (int*)(shared + SUMS_AT);
  const unsigned thread = threadIdx.x, image = blockIdx.x / SPLIT;
#if SPLIT > 1
  const unsigned part = cluster_part();
#else
  const unsigned part = 0;
#endif
  InnerWeights factors;
  load_weights(factors, w, part * RESULTS, QUADS * 4);
  const unsigned quad = part * (RESULTS / 4) + thread;  // that this thread will store
  const bool stores = thread < RESULTS / 4 && quad < QUADS;
  const int4 more = stores ? corrections[quad] : int4{};
  const STORE_CONSTANTS_TYPE constants = STORE_CONSTANTS((stores ? quad : 0));
  wait_for_predecessors();
  launch_dependents();

  const unsigned run = thread % RUNS, row = thread / RUNS;
  const unsigned first = part * PART, pixels = SPLIT * PART == PIXELS || part + 1 < SPLIT ? PART : PIXELS - (SPLIT - 1) * PART;
  const signed char* const from = x + (OFFSET + (long long)image * PITCH_B + run * RUN);
  int4 sums[WORDS] = {};
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
        for (unsigned word = 0; word < WORDS; word++) sums[word] = byte_sums<UNSIGNED>(loaded[i].words[word], sums[word]);
    }
  if (row < ROWS)
#pragma unroll
    for (unsigned i = 0; i < WORDS; i++) lines[row * CHANNELS + run * WORDS + i] = sums[i];
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
      word = mean_word(sum);
    }
    means[item] = word;
  }
#if SPLIT > 1
  cluster_arrive();  // what the others have is read
#endif
  __syncthreads();
  multiply_means(totals, (const uint4*)means, factors);
  __syncthreads();
  if (stores) STORE(image, quad, (both(((const int4*)totals)[thread], more)), constants, STORE_OPERANDS(image, quad));
#if SPLIT > 1
  cluster_wait();
#endif
}
