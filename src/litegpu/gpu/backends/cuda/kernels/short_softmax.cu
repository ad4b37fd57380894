// Softmax of short rows of bytes as the CPU does it, with softmax.cu's table: TEAM lanes have a row, and each of them adds
// all of its few parts up in order. (A warp's scans take longer than that.)
//
// Constants from the host: ROWS, CHANNELS, QUADS (that a row is stored as), TEAM (1, or a power of two of at least QUADS: a
// quad for each lane), THREADS (of a workgroup), SCALE (of what is stored).
constexpr unsigned OWN = TEAM > 1 ? 1 : QUADS;  // quads of a lane
static_assert(TEAM == 1 || TEAM >= QUADS, "a lane has a quad");

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const float* __restrict__ table EPILOGUE_BUFFERS) {
  __shared__ float known[256];
#if TEAM > 1
  __shared__ float4 rows[THREADS / TEAM][TEAM];
#endif
  for (unsigned i = threadIdx.x; i < 256; i += THREADS) known[i] = table[i];
  __syncthreads();
  wait_for_predecessors();
  launch_dependents();
  const unsigned lane = threadIdx.x % TEAM, number = (blockIdx.x * THREADS + threadIdx.x) / TEAM;
  const bool real = number < ROWS;
  const unsigned row = real ? number : 0;
  int all[4 * OWN], largest = -256;
#pragma unroll
  for (unsigned q = 0; q < OWN; q++) {
    const int4 quad = NUMBERS(row, lane < QUADS ? lane + q : 0);
    all[4 * q] = quad.x, all[4 * q + 1] = quad.y, all[4 * q + 2] = quad.z, all[4 * q + 3] = quad.w;
  }
#pragma unroll
  for (unsigned i = 0; i < 4 * OWN; i++)
    if (4 * lane + i < CHANNELS && all[i] > largest) largest = all[i];
#pragma unroll
  for (unsigned by = 1; by < TEAM; by *= 2) {
    const int other = __shfl_xor_sync(~0u, largest, by);
    if (other > largest) largest = other;
  }
  float parts[4 * OWN], sum = 0.0f;
#pragma unroll
  for (unsigned i = 0; i < 4 * OWN; i++) parts[i] = 4 * lane + i < CHANNELS ? known[largest - all[i] & 255] : 0.0f;
#if TEAM > 1
  float4* const shared_row = rows[threadIdx.x / TEAM];
  shared_row[lane] = float4{parts[0], parts[1], parts[2], parts[3]};
  __syncwarp();
#pragma unroll
  for (unsigned q = 0; q < QUADS; q++) {
    const float4 quad = shared_row[q];
    sum = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(sum, quad.x), quad.y), quad.z), quad.w);  // zeros behind the channels
  }
#else
#pragma unroll
  for (unsigned i = 0; i < CHANNELS; i++) sum = __fadd_rn(sum, parts[i]);
#endif
  const float share = 1.0f / (sum * SCALE);
#pragma unroll
  for (unsigned q = 0; q < OWN; q++) {
    int found[4];
#pragma unroll
    for (unsigned j = 0; j < 4; j++) found[j] = (int)floorf(__fadd_rn(parts[4 * q + j] * share, 0.5f));
    if (real && lane < QUADS) STORE(row, lane + q, (int4{found[0], found[1], found[2], found[3]}));
  }
}
