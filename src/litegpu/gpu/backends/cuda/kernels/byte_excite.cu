// The end of squeeze-and-excite of bytes: the gates of some channels of an image, by its second layer, and what becomes of some of
// its pixels with them, in runs of RUN neighbouring channels (runs.cu). What is computed several times is little; weights are loaded
// before the inputs exist.
//
// Constants from the host: those of runs.cu (BN 4 * RUN: a run for each thread); WORDS (of the layer's inputs), S_OFFSET S_PITCH (bytes, of
// these), UNSIGNED (these); TILE_QUADS (of a workgroup), LANES (threads of a channel), TURNS (words of a thread), TILE_PIXELS, GROUPS_C
// GROUPS_P (workgroups along these, then images), IMAGE (pixels of one), THREADS; ITEMS (runs of a thread), EARLY (of these under way);
// GATE(quad, sums, constants, operands): four channels' numbers.
constexpr unsigned ACROSS = TILE_QUADS / RUN_QUADS, DOWN = THREADS / ACROSS;  // threads of a pixel, and pixels side by side
static_assert(THREADS == 4 * TILE_QUADS * LANES && TURNS * LANES >= WORDS && TILE_QUADS % RUN_QUADS == 0, "a gate belongs to a warp");
static_assert(ITEMS * DOWN >= TILE_PIXELS && 32 % LANES == 0, "all pixels");

extern "C" __global__ void __launch_bounds__(THREADS)
NAME(const signed char* s, const unsigned* w, const int4* corrections EPILOGUE_BUFFERS) {
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
  wait_for_predecessors();
  launch_dependents();

  unsigned words[TURNS];
#pragma unroll
  for (unsigned i = 0; i < TURNS; i++) {
    const unsigned word = i * LANES + lane;
    words[i] = word < WORDS ? ((const unsigned*)(s + (S_OFFSET + image * S_PITCH)))[word] ^ (UNSIGNED ? 0x80808080u : 0u) : 0;
  }
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
