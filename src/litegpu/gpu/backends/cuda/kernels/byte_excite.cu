// The end of squeeze-and-excite of bytes: the gates of some channels of an image, by its second layer, and what becomes of some of
// its pixels with them, in runs of RUN neighbouring channels (runs.cu). What is computed several times is little; weights are loaded
// before the inputs exist. With SUMS_AT all of squeeze-and-excite behind sums: each workgroup computes the first layer, too.
//
// Constants from the host: those of runs.cu (BN 4 * RUN: a run for each thread); WORDS (of the layer's inputs), S_OFFSET S_PITCH (bytes, of
// these), UNSIGNED (these); TILE_QUADS (of a workgroup), LANES (threads of a channel), TURNS (words of a thread), TILE_PIXELS, GROUPS_C
// GROUPS_P (workgroups along these, then images), IMAGE (pixels of one), THREADS; ITEMS (runs of a thread), EARLY (of these under way);
// GATE(quad, sums, constants, operands): four channels' numbers. SUMS_AT, perhaps: where in `s`, ints then, [images][COPIES]
// [channels], sums over the pixels are; with the constants of byte_means.cu, and INNER(quad, sums, constants, operands), the layer's inputs.
constexpr unsigned ACROSS = TILE_QUADS / RUN_QUADS, DOWN = THREADS / ACROSS;  // threads of a pixel, and pixels side by side
static_assert(THREADS == 4 * TILE_QUADS * LANES && TURNS * LANES >= WORDS && TILE_QUADS % RUN_QUADS == 0, "a gate belongs to a warp");
static_assert(ITEMS * DOWN >= TILE_PIXELS && 32 % LANES == 0, "all pixels");

#ifdef SUMS_AT
#define GIVEN const int* s, const uint4* inner_weights, const int4* inner_corrections
static_assert(RESULTS >= WORDS * 4, "the layer's inputs");
#else
#define GIVEN const signed char* s
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
NAME(GIVEN, const unsigned* w, const int4* corrections EPILOGUE_BUFFERS) {
  __shared__ int4 sums[TILE_QUADS], gates[TILE_QUADS];
  const unsigned thread = threadIdx.x, lane = thread % LANES, slice = blockIdx.x % GROUPS_C;
  const unsigned image = blockIdx.x / (GROUPS_C * GROUPS_P), first = blockIdx.x / GROUPS_C % GROUPS_P * TILE_PIXELS;
  const unsigned last = first + TILE_PIXELS < IMAGE ? first + TILE_PIXELS : IMAGE;
  unsigned factors[TURNS];
#pragma unroll
  for (unsigned i = 0; i < TURNS; i++) factors[i] = w[(slice * TURNS + i) * THREADS + thread];
  const unsigned own_quad = slice * TILE_QUADS + thread;  // whose gates this thread finishes
  const bool finishes = thread < TILE_QUADS && own_quad < QUADS;
  const int4 more = finishes ? corrections[own_quad] : int4{};
  const GATE_CONSTANTS_TYPE constants = GATE_CONSTANTS((finishes ? own_quad : 0));
#ifdef SUMS_AT
  __shared__ uint4 means[CHUNKS];
  __shared__ int inner_sums[RESULTS];
  __shared__ unsigned inputs[RESULTS / 4];
  InnerWeights inner_factors;
  load_weights(inner_factors, inner_weights, 0, RESULTS);
  const bool has_input = thread < RESULTS / 4;
  const int4 inner_more = has_input ? inner_corrections[thread] : int4{};
  const INNER_CONSTANTS_TYPE inner_constants = INNER_CONSTANTS((has_input ? thread : 0));
#endif
  wait_for_predecessors();
  launch_dependents();

  const Places places PLACES;
  const unsigned quad = slice * TILE_QUADS + thread % ACROSS * RUN_QUADS, row = thread / ACROSS;
  auto pixel_of = [&](unsigned item) { return first + row + item * DOWN; };
  auto there = [&](unsigned item) { return row < DOWN && pixel_of(item) < last && quad < QUADS; };
  Row rows[EARLY];
#pragma unroll
  for (unsigned i = 0; i < EARLY; i++)
    if (there(i)) rows[i] = load_row(places, image * IMAGE + pixel_of(i), quad);
  ChannelsOf<RUN_QUADS> own;
  load_channels(own, places, corrections, 0, quad);
  unsigned words[TURNS];
#ifdef SUMS_AT
  for (unsigned item = thread; item < CHUNKS * 4; item += THREADS) {
    int4 sum = {};
#pragma unroll
    for (unsigned copy = 0; copy < COPIES; copy++)
      if (item < QUADS) sum = corrected(sum, ((const int4*)(s + SUMS_AT))[(image * COPIES + copy) * QUADS + item]);
    ((unsigned*)means)[item] = item < QUADS ? mean_word(sum) : 0;
  }
  __syncthreads();
  multiply_means(inner_sums, means, inner_factors);
  __syncthreads();
  if (has_input)
    inputs[thread] = packed(INNER(thread, (corrected(((const int4*)inner_sums)[thread], inner_more)), inner_constants, INNER_OPERANDS(thread)));
  __syncthreads();
#pragma unroll
  for (unsigned i = 0; i < TURNS; i++) {
    const unsigned word = i * LANES + lane;
    words[i] = word < WORDS ? inputs[word] ^ (UNSIGNED ? 0x80808080u : 0u) : 0;
  }
#else
#pragma unroll
  for (unsigned i = 0; i < TURNS; i++) {
    const unsigned word = i * LANES + lane;
    words[i] = word < WORDS ? ((const unsigned*)(s + (S_OFFSET + image * S_PITCH)))[word] ^ (UNSIGNED ? 0x80808080u : 0u) : 0;
  }
#endif
  int sum = 0;
#pragma unroll
  for (unsigned i = 0; i < TURNS; i++) sum = __dp4a((int)words[i], (int)factors[i], sum);
#pragma unroll
  for (unsigned by = LANES / 2; by; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (lane == 0) ((int*)sums)[thread / LANES] = sum;
  __syncthreads();
  if (finishes) gates[thread] = GATE(own_quad, (corrected(sums[thread], more)), constants, GATE_OPERANDS(own_quad));
  __syncthreads();
  int4 gate[RUN_QUADS];
#pragma unroll
  for (unsigned q = 0; q < RUN_QUADS; q++) gate[q] = gates[thread % ACROSS * RUN_QUADS + q];
#pragma unroll
  for (unsigned begin = 0; begin < ITEMS; begin += EARLY) {
    if (begin) {
#pragma unroll
      for (unsigned i = 0; i < EARLY; i++)
        if (begin + i < ITEMS && there(begin + i)) rows[i] = load_row(places, image * IMAGE + pixel_of(begin + i), quad);
    }
#pragma unroll
    for (unsigned i = 0; i < EARLY; i++) {
      if (begin + i >= ITEMS || !there(begin + i)) continue;
      Quad quads[RUN_QUADS];
#pragma unroll
      for (unsigned q = 0; q < RUN_QUADS; q++) FINISH(own, q, rows[i], q, gate[q], quads + q);
      *(Run*)result_at(places, image * IMAGE + pixel_of(begin + i), quad) = joined(quads);
    }
  }
}
