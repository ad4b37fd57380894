// The byte that a table has for each of many. The table is in shared memory: lanes that need different words of one bank, of
// which there are two, wait for one another once at most.
//
// Constants from the host: WIDTH (bytes that are loaded at once: 16 or 4), PIECES (of that size), EACH (of a thread), THREADS
// (of a workgroup), FROM, TO (pieces in front of the first one, and of the first result).
#if WIDTH == 16
typedef uint4 Piece;
#else
typedef unsigned Piece;
#endif
union Words {
  Piece all;
  unsigned words[WIDTH / 4];
};

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const Piece* x, const unsigned* table, Piece* y EPILOGUE_BUFFERS) {
  __shared__ unsigned known[64];
  if (threadIdx.x < 64) known[threadIdx.x] = table[threadIdx.x];
  __syncthreads();
  wait_for_predecessors();
  launch_dependents();
  const unsigned first = blockIdx.x * (EACH * THREADS) + threadIdx.x;
  Words found[EACH];
#pragma unroll
  for (unsigned i = 0; i < EACH; i++)
    if (PIECES % (EACH * THREADS) == 0 || first + i * THREADS < PIECES) found[i].all = x[FROM + first + i * THREADS];
  const unsigned char* const bytes = (const unsigned char*)known;
#pragma unroll
  for (unsigned i = 0; i < EACH; i++) {
    if (PIECES % (EACH * THREADS) && first + i * THREADS >= PIECES) return;
#pragma unroll
    for (unsigned j = 0; j < WIDTH / 4; j++) {
      const unsigned word = found[i].words[j];
      const unsigned low = bytes[word & 255] | bytes[word >> 8 & 255] << 8, high = bytes[word >> 16 & 255] | bytes[word >> 24] << 8;
      found[i].words[j] = low | high << 16;
    }
    y[TO + first + i * THREADS] = found[i].all;
  }
}
