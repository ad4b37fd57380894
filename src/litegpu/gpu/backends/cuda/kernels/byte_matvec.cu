// Products of a few rows of bytes with a matrix of signed bytes, at most eight: to load the matrix is the work. LANES
// threads compute four outputs of all rows, each at every LANES-th chunk (16 bytes) of the depth; EARLY chunks of each
// output are under way at once, the first of them before the rows exist. Bytes are multiplied four at once, unsigned ones
// less 128, and sums are int32.
//
// Constants from the host: LANES (4, 8, 16 or 32), THREADS, EARLY; ROWS, QUADS (of outputs); DEPTH (bytes, a multiple of
// VECTOR), CHUNKS; VECTOR (bytes that can be loaded at once: 16, 8 or 4); OFFSET, PITCH (bytes from row to row); UNSIGNED.
#if VECTOR == 16
typedef uint4 Piece;
#elif VECTOR == 8
typedef uint2 Piece;
#else
typedef unsigned Piece;
#endif
constexpr unsigned STEPS = (CHUNKS + LANES - 1) / LANES;

union Chunk {
  uint4 all;
  unsigned words[4];
  Piece pieces[16 / VECTOR];
};

INLINE Chunk load(const signed char* x, unsigned row, unsigned chunk) {
  Chunk found;
#pragma unroll
  for (unsigned i = 0; i < 16 / VECTOR; i++) {
    const unsigned k = chunk * 16 + i * VECTOR;
    found.pieces[i] = k < DEPTH ? *(const Piece*)(x + (OFFSET + row * PITCH + k)) : Piece{};
  }
#if UNSIGNED
#pragma unroll
  for (unsigned i = 0; i < 4; i++) found.words[i] ^= 0x80808080u;
#endif
  return found;
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const signed char* x, const uint4* w, const int4* corrections EPILOGUE_BUFFERS) {
  const unsigned lane = threadIdx.x % LANES, quad = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
  Chunk weights[EARLY][4];
  auto load_weights = [&](unsigned slot, unsigned step) {
    const unsigned chunk = step * LANES + lane;
    const bool real = quad < QUADS && (CHUNKS % LANES == 0 || chunk < CHUNKS);
#pragma unroll
    for (unsigned o = 0; o < 4; o++) weights[slot][o].all = real ? w[(quad * 4 + o) * CHUNKS + chunk] : uint4{};
  };
  // The weights are nobody's output: they may come while the kernel before this one still runs. (By plain loads: the
  // compiler moves those of __ldg behind the wait.)
#pragma unroll
  for (unsigned slot = 0; slot < EARLY; slot++) load_weights(slot, slot);
  const unsigned real_quad = quad < QUADS ? quad : 0;
  const STORE_CONSTANTS_TYPE constants = STORE_CONSTANTS(real_quad);
  const int4 more = corrections[real_quad];
  wait_for_predecessors();
  launch_dependents();

  int sums[ROWS][4] = {};
#pragma unroll 1
  for (unsigned first = 0; first < STEPS; first += EARLY)
#pragma unroll
    for (unsigned slot = 0; slot < EARLY; slot++) {
      const unsigned step = first + slot;
      if (STEPS % EARLY && step >= STEPS) break;
      Chunk factors[4];
#pragma unroll
      for (unsigned o = 0; o < 4; o++) factors[o] = weights[slot][o];
      if (step + EARLY < STEPS) load_weights(slot, step + EARLY);
#pragma unroll
      for (unsigned row = 0; row < ROWS; row++) {
        const Chunk inputs = load(x, row, step * LANES + lane);
#pragma unroll
        for (unsigned i = 0; i < 4; i++)
#pragma unroll
          for (unsigned o = 0; o < 4; o++)
            sums[row][o] = __dp4a((int)inputs.words[i], (int)factors[o].words[i], sums[row][o]);
      }
    }
#pragma unroll
  for (unsigned row = 0; row < ROWS; row++)
#pragma unroll
    for (unsigned by = LANES / 2; by; by /= 2)
#pragma unroll
      for (unsigned o = 0; o < 4; o++) sums[row][o] += __shfl_xor_sync(0xffffffffu, sums[row][o], by);
  if (quad >= QUADS) return;
#pragma unroll
  for (unsigned row = 0; row < ROWS; row++)
    if (lane == row % LANES)
      STORE(row, quad, (int4{sums[row][0] + more.x, sums[row][1] + more.y, sums[row][2] + more.z, sums[row][3] + more.w}), constants,
            STORE_OPERANDS(row, quad));
}
