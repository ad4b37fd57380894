// Two fully connected layers of one pixel, one behind the other, as squeeze-and-excite has them, by a cluster of 8
// workgroups: each computes its share of the first layer's outputs, which all are told, and its share of the second's.
// Both layers' weights are loaded before the inputs exist. Sums are float.
//
// Constants from the host: INPUTS PITCH_C OFFSET (elements, of the input's view); HIDDEN (outputs of the first layer),
// DEPTH (as many, a multiple of 32); QUADS (of the second's outputs); THREADS (multiples of 32). INNER(quad, value)
// finishes four outputs of the first layer.
constexpr unsigned PARTS = 8, WARPS = THREADS / 32;
constexpr unsigned CHUNKS = (INPUTS + 7) / 8, FIRST = (CHUNKS + 31) / 32;         // of 8 inputs; of a lane
constexpr unsigned SHARE = (HIDDEN + PARTS - 1) / PARTS, OWN = (SHARE + WARPS - 1) / WARPS;  // of a workgroup, a warp
constexpr unsigned LANES = 4, SECOND = DEPTH / (8 * LANES);                       // that share a quad; chunks of each
constexpr unsigned QUADS_EACH = (QUADS + PARTS - 1) / PARTS;
static_assert(QUADS_EACH * LANES <= THREADS && DEPTH % 32 == 0 && DEPTH / 4 <= THREADS, "layers");
constexpr unsigned BYTES = (CHUNKS * 8 + 2 * DEPTH) * 4;

extern "C" __global__ void __launch_bounds__(THREADS) __cluster_dims__(8, 1, 1)
NAME(const SOURCE* x, const uint4* w, const uint4* v EPILOGUE_BUFFERS) {
  float* const inputs = own_shared(BYTES);
  float* const sums = inputs + CHUNKS * 8;  // of the first layer
  float* const hidden = sums + DEPTH;
  const unsigned part = cluster_rank(), thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const unsigned own = thread / LANES, quad = part * QUADS_EACH + own, piece = thread % LANES;
  cluster_arrive();  // nobody's shared memory is written before its own workgroup has begun
  uint4 first[OWN][FIRST], second[4][SECOND];
#pragma unroll
  for (unsigned o = 0; o < OWN; o++) {
    const unsigned place = warp + o * WARPS, row = part * SHARE + place;
#pragma unroll
    for (unsigned i = 0; i < FIRST; i++) {
      const unsigned chunk = lane + i * 32;
      first[o][i] = place < SHARE && row < HIDDEN && chunk < CHUNKS ? w[row * CHUNKS + chunk] : uint4{};
    }
  }
  const bool real = own < QUADS_EACH && quad < QUADS;
#pragma unroll
  for (unsigned o = 0; o < 4; o++)
#pragma unroll
    for (unsigned s = 0; s < SECOND; s++)
      second[o][s] = real ? v[((quad * 4 + o) * LANES + piece) * SECOND + s] : uint4{};
  for (unsigned i = HIDDEN + thread; i < DEPTH; i += THREADS) sums[i] = 0.0f;
  wait_for_predecessors();
  launch_dependents();

  for (unsigned c = thread; c < CHUNKS * 8; c += THREADS) inputs[c] = c < INPUTS ? LOAD(x[c * PITCH_C + OFFSET]) : 0.0f;
  __syncthreads();
  cluster_wait();
#pragma unroll
  for (unsigned o = 0; o < OWN; o++) {
    const unsigned place = warp + o * WARPS, row = part * SHARE + place;
    float sum = 0.0f;
#pragma unroll
    for (unsigned i = 0; i < FIRST; i++) {
      const unsigned chunk = lane + i * 32;
      float factors[8];
      unpack(first[o][i], factors);
#pragma unroll
      for (unsigned e = 0; e < 8; e++)
        if (CHUNKS % 32 == 0 || chunk < CHUNKS) sum = fmaf(factors[e], inputs[chunk * 8 + e], sum);
    }
#pragma unroll
    for (unsigned by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (place < SHARE && row < HIDDEN && lane < PARTS) cluster_store(sums + row, lane, sum, BYTES);
  }
  cluster_arrive();
  cluster_wait();
  if (thread < DEPTH / 4) {
    const float* const from = sums + thread * 4;
    float4 four = {};
    if (thread < (HIDDEN + 3) / 4) four = INNER(thread, (float4{from[0], from[1], from[2], from[3]}));
    const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (unsigned e = 0; e < 4; e++) hidden[thread * 4 + e] = thread * 4 + e < HIDDEN ? values[e] : 0.0f;
  }
  __syncthreads();
  float totals[4] = {};
#pragma unroll
  for (unsigned o = 0; o < 4; o++) {
#pragma unroll
    for (unsigned s = 0; s < SECOND; s++) {
      float factors[8];
      unpack(second[o][s], factors);
#pragma unroll
      for (unsigned e = 0; e < 8; e++) totals[o] = fmaf(factors[e], hidden[(piece * SECOND + s) * 8 + e], totals[o]);
    }
#pragma unroll
    for (unsigned by = LANES / 2; by > 0; by /= 2) totals[o] += __shfl_xor_sync(0xffffffffu, totals[o], by);
  }
  if (real && piece == 0) STORE(0, quad, (float4{totals[0], totals[1], totals[2], totals[3]}));
}
