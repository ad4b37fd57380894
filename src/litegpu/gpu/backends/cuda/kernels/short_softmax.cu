// Softmax of short rows of bytes as the CPU does it, with softmax.cu's table: a thread has a row, and adds its few parts up
// in order. (A warp's scans take longer than that.)
//
// Constants from the host: ROWS, CHANNELS, QUADS (that a row is stored as), THREADS (of a workgroup), SCALE (of what is
// stored).
extern "C" __global__ void __launch_bounds__(THREADS) NAME(const float* __restrict__ table EPILOGUE_BUFFERS) {
  __shared__ float known[256];
  for (unsigned i = threadIdx.x; i < 256; i += THREADS) known[i] = table[i];
  __syncthreads();
  wait_for_predecessors();
  launch_dependents();
  const unsigned row = blockIdx.x * THREADS + threadIdx.x;
  if (row >= ROWS) return;
  int all[4 * QUADS], largest = -256;
#pragma unroll
  for (unsigned q = 0; q < QUADS; q++) {
    const int4 quad = NUMBERS(row, q);
    all[4 * q] = quad.x, all[4 * q + 1] = quad.y, all[4 * q + 2] = quad.z, all[4 * q + 3] = quad.w;
  }
#pragma unroll
  for (unsigned i = 0; i < CHANNELS; i++)
    if (all[i] > largest) largest = all[i];
  float parts[4 * QUADS], sum = 0.0f;
#pragma unroll
  for (unsigned i = 0; i < 4 * QUADS; i++) parts[i] = i < CHANNELS ? known[largest - all[i] & 255] : 0.0f;
#pragma unroll
  for (unsigned i = 0; i < CHANNELS; i++) sum = __fadd_rn(sum, parts[i]);
  const float share = 1.0f / (sum * SCALE);
#pragma unroll
  for (unsigned q = 0; q < QUADS; q++) {
    int found[4];
#pragma unroll
    for (unsigned j = 0; j < 4; j++) found[j] = (int)floorf(__fadd_rn(parts[4 * q + j] * share, 0.5f));
    STORE(row, q, (int4{found[0], found[1], found[2], found[3]}));
  }
}
