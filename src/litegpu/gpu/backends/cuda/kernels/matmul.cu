// The product of two values, a [.., M, K] and b [.., K, N], for each of BATCH x HEADS leading positions. A workgroup computes
// BM x BN of one product in steps of BK along K; copies of the next steps run while this one is multiplied. Sums are float.
//
// Constants from the host: HALF; BM BN BK STAGES; WARPS_*, WARPGROUPS; TILES_M TILES_N; HEADS; M QUADS (of the output);
// STEPS; and for either factor, named A_ or B_: A_TYPE, A_LOAD(value); A_COPY, how it comes to shared memory: 8 or 4 numbers
// along K at once, or 0, each by itself through a register; A_DEPTH (K, or as many as can be copied); A_OFFSET A_PITCH_BATCH
// A_PITCH_HEAD A_PITCH_ROW A_PITCH_K (elements; a row is one of M or N).
constexpr unsigned A_BYTES = BM * ROW_BYTES, STAGE_BYTES = (BM + BN) * ROW_BYTES;

// Numbers step * BK to step * BK + BK - 1 of `rows` rows, of which the first `left` are real, go to the tile at `at`.
#define BRING(side, SIDE)                                                                                               \
  template <unsigned rows>                                                                                              \
  INLINE void bring_##side(const SIDE##_TYPE* x, unsigned first, unsigned count, unsigned step, unsigned at) {          \
    _Pragma("unroll") for (unsigned i = threadIdx.x; i < rows * CHUNKS; i += THREADS) {                                 \
      /* threads next to each other read what lies next to each other */                                                \
      const unsigned row = SIDE##_COPY ? i / CHUNKS : i % rows, chunk = SIDE##_COPY ? i % CHUNKS : i / rows;            \
      const unsigned k = step * BK + chunk * PER_CHUNK, from = (first + row) * SIDE##_PITCH_ROW + k * SIDE##_PITCH_K;   \
      const unsigned to = at + place(row, chunk);                                                                       \
      const bool real = first + row < count;                                                                            \
      if constexpr (SIDE##_COPY == PER_CHUNK) {                                                                         \
        copy16(to, x + (real && k < SIDE##_DEPTH ? from : 0), real && k < SIDE##_DEPTH);                                \
      } else if constexpr (SIDE##_COPY != 0) {                                                                          \
        copy8(to, x + (real && k < SIDE##_DEPTH ? from : 0), real && k < SIDE##_DEPTH);                                 \
        copy8(to + 8, x + (real && k + 4 < SIDE##_DEPTH ? from + 4 : 0), real && k + 4 < SIDE##_DEPTH);                 \
      } else {                                                                                                          \
        float v[PER_CHUNK];                                                                                             \
        _Pragma("unroll") for (unsigned e = 0; e < PER_CHUNK; e++)                                                      \
          v[e] = real && k + e < SIDE##_DEPTH ? SIDE##_LOAD(x[from + e * SIDE##_PITCH_K]) : 0.0f;                       \
        write_chunk(to, v);                                                                                             \
      }                                                                                                                 \
    }                                                                                                                   \
  }

INLINE void write_chunk(unsigned to, const float (&v)[PER_CHUNK]) {
#if HALF
  *(uint4*)(shared + to) = uint4{pack_half2(v[0], v[1]), pack_half2(v[2], v[3]), pack_half2(v[4], v[5]),
                                 pack_half2(v[6], v[7])};
#else
  *(float4*)(shared + to) = float4{v[0], v[1], v[2], v[3]};
#endif
}
BRING(a, A)
BRING(b, B)

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const A_TYPE* a, const B_TYPE* b EPILOGUE_BUFFERS) {
  const unsigned column0 = blockIdx.x % TILES_N * BN, row0 = blockIdx.x / TILES_N % TILES_M * BM;
  const unsigned position = blockIdx.x / (TILES_N * TILES_M), batch = position / HEADS, head = position % HEADS;
  const A_TYPE* const left = a + batch * A_PITCH_BATCH + head * A_PITCH_HEAD + A_OFFSET;
  const B_TYPE* const right = b + batch * B_PITCH_BATCH + head * B_PITCH_HEAD + B_OFFSET;

  auto bring = [&](unsigned step, unsigned slot) {
    bring_a<BM>(left, row0, M, step, slot * STAGE_BYTES);
    bring_b<BN>(right, column0, N, step, slot * STAGE_BYTES + A_BYTES);
  };
  wait_for_predecessors();
  launch_dependents();
#pragma unroll
  for (unsigned s = 0; s < STAGES - 1; s++) {
    if (s < STEPS) bring(s, s);
    copies_commit();
  }
  Product product;
  for (unsigned step = 0; step < STEPS; step++) {
    copies_wait<STAGES - 2>();
#if WARPGROUPS
    announce_copies();
#endif
    __syncthreads();
    const unsigned next = step + STAGES - 1;
    if (next < STEPS) bring(next, next % STAGES);
    copies_commit();
    const unsigned tile = step % STAGES * STAGE_BYTES;
    product.add([&](unsigned row, unsigned chunk) { return tile + place(row, chunk); }, tile + A_BYTES);
  }
  product.store([&](unsigned row, unsigned column, float4 total, unsigned) {
    const unsigned y = row0 + row, quad = column0 / 4 + column;
    if (y < M && quad < QUADS) STORE(position * M + y, quad, total);
  });
}
