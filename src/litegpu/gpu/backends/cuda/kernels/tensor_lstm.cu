// The steps of an LSTM on tensor cores, for several sequences in float16. A cluster of CLUSTER workgroups has TILES times
// eight sequences, the columns of the products; the rows are the gates of its units. Each warp has GROUPS times eight
// units, and keeps their recurrent weights for all steps as the tensor cores read them: the first IN_REGISTERS chunks (of
// 32 columns) in registers, the others in shared memory, where each thread reads what it put there itself.
//
// Eight units are two products' rows: the gates input and candidate, forget and output, of the unit lane / 4. So a thread
// has all gates of one unit, of two sequences, and their states stay in its registers. Outputs go as halves to all
// workgroups, in pieces of a group's eight units of one sequence: to the other of two places, whose barrier counts what
// has come. Who has all outputs of a step knows that all warps have read those of the step before.
//
// Constants from the host, beside those of the layer (lstm_layer.py): CLUSTER, WARPS, GROUPS, TILES; CHUNKS,
// IN_REGISTERS.
constexpr unsigned THREADS = 32 * WARPS, PIECES = 4 * GROUPS;  // of 16 bytes: a thread's weights of a chunk
constexpr unsigned SETS = GROUPS * TILES == 1 ? 2 : 1;         // of sums, so that no product waits for the one before
constexpr unsigned TILE_BYTES = CHUNKS * 512, KEPT = TILES * TILE_BYTES;  // outputs of a step: [tile][chunk][sequence][unit]
constexpr unsigned BARRIERS = 2 * KEPT, MORE = BARRIERS + 16, SHARED_CHUNKS = CHUNKS - IN_REGISTERS;
constexpr unsigned SENT_BYTES = TILES * ((UNITS + 7) / 8) * 128;

struct Sums {
  float of[SETS][TILES][GROUPS][2][4];

  // Of 32 columns, `a` times the outputs at `at`.
  __device__ __forceinline__ void add(const unsigned (&a)[PIECES][4], unsigned at) {
    uint4 b[TILES];
#pragma unroll
    for (unsigned n = 0; n < TILES; n++) b[n] = *(const uint4*)(shared + at + n * TILE_BYTES);
#pragma unroll
    for (unsigned n = 0; n < TILES; n++)
#pragma unroll
      for (unsigned g = 0; g < GROUPS * 2; g++) multiply(of[0][n][g / 2][g % 2], a[g * 2], b[n].x, b[n].y);
#pragma unroll
    for (unsigned n = 0; n < TILES; n++)
#pragma unroll
      for (unsigned g = 0; g < GROUPS * 2; g++) multiply(of[SETS - 1][n][g / 2][g % 2], a[g * 2 + 1], b[n].z, b[n].w);
  }
};

INLINE float squash(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
INLINE float tangent(float x) { return 2.0f * squash(2.0f * x) - 1.0f; }

INLINE void words_of(unsigned (&words)[4], uint4 v) { words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w; }

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if CLUSTER > 1
    __cluster_dims__(CLUSTER, 1, 1)
#endif
    NAME(const GATES_TYPE* gates, const uint4* weights, const float* output, const float* state, OUT_TYPE* out) {
#if CLUSTER > 1
  const unsigned rank = cluster_part();
#else
  const unsigned rank = 0;
#endif
  const unsigned lane = threadIdx.x % 32, group = (rank * WARPS + threadIdx.x / 32) * GROUPS;
  const unsigned unit = group * 8 + lane / 4, first = blockIdx.x / CLUSTER * (TILES * 8) + lane % 4 * 2;
  const bool busy = group * 8 < UNITS;  // any of the warp's units is one

  unsigned w[IN_REGISTERS][PIECES][4];  // zeros past the last unit and the last output
  const uint4* mine = weights + rank * (CHUNKS * PIECES * THREADS) + threadIdx.x;
#pragma unroll
  for (unsigned j = 0; j < IN_REGISTERS; j++)
#pragma unroll
    for (unsigned p = 0; p < PIECES; p++) words_of(w[j][p], mine[(j * PIECES + p) * THREADS]);
  uint4* more = (uint4*)(shared + MORE) + threadIdx.x;
#pragma unroll 8
  for (unsigned j = 0; j < SHARED_CHUNKS * PIECES; j++) more[j * THREADS] = mine[(IN_REGISTERS * PIECES + j) * THREADS];
  wait_for_predecessors();
  launch_dependents();

  for (unsigned i = threadIdx.x; i < KEPT; i += THREADS) {
    const unsigned u = i / 256 % CHUNKS * 32 + i % 32;
    const unsigned b = blockIdx.x / CLUSTER * (TILES * 8) + i / (CHUNKS * 256) % TILES * 8 + i % 256 / 32;
    const bool given = i < KEPT / 2 && u < UNITS && b < BATCH;
    ((unsigned short*)shared)[i] = given ? float_to_half(output[FIRST_OUTPUT(b, u)]) : 0;
  }
  float c[TILES][GROUPS][2];
  GATES_TYPE next[TILES][GROUPS][4][2];
  auto is_real = [&](unsigned n, unsigned g, unsigned e) { return unit + g * 8 < UNITS && first + n * 8 + e < BATCH; };
  auto load_gates = [&](unsigned t) {
#pragma unroll
    for (unsigned n = 0; n < TILES; n++)
#pragma unroll
      for (unsigned g = 0; g < GROUPS; g++)
#pragma unroll
        for (unsigned e = 0; e < 2; e++)
          if (is_real(n, g, e))
#pragma unroll
            for (unsigned i = 0; i < 4; i++)
              next[n][g][i][e] = gates[GATES_OFFSET + t * GATES_T + (first + n * 8 + e) * GATES_B +
                                       (i * UNITS + unit + g * 8) * GATES_C];
  };
#pragma unroll
  for (unsigned n = 0; n < TILES; n++)
#pragma unroll
    for (unsigned g = 0; g < GROUPS; g++)
#pragma unroll
      for (unsigned e = 0; e < 2; e++) {
        c[n][g][e] = is_real(n, g, e) ? state[FIRST_STATE(first + n * 8 + e, unit + g * 8)] : 0.0f;
#pragma unroll
        for (unsigned i = 0; i < 4; i++) next[n][g][i][e] = 0;
      }
  load_gates(0);
#if CLUSTER > 1
  if (threadIdx.x == 0) {
    barrier_init(BARRIERS, 1);
    barrier_init(BARRIERS + 8, 1);
    barriers_ready();
    barrier_expect(BARRIERS + 8, SENT_BYTES);
    barrier_expect(BARRIERS, SENT_BYTES);
  }
  cluster_sync();  // nobody's shared memory is written before its own workgroup has begun
#else
  __syncthreads();
#endif

#pragma unroll 1
  for (unsigned t = 0; t < STEPS; t++) {
    const unsigned place = t % 2;
    if (busy) {
      Sums sums;
#pragma unroll
      for (unsigned n = 0; n < TILES; n++)
#pragma unroll
        for (unsigned g = 0; g < GROUPS; g++)
#pragma unroll
          for (unsigned i = 0; i < 8; i++) {
            sums.of[0][n][g][i / 4][i % 4] = LOAD_GATE(next[n][g][i / 2][i % 2]);
            if (SETS > 1) sums.of[SETS - 1][n][g][i / 4][i % 4] = 0.0f;
          }
      if (t + 1 < STEPS) load_gates(t + 1);  // they have a step's time to come
#if CLUSTER > 1
      if (t > 0) {
        __syncwarp();  // lanes wait together, when all of them have sent
        barrier_wait(BARRIERS + place * 8, (t - 1) / 2 % 2);
        if (threadIdx.x == 0) barrier_expect(BARRIERS + place * 8, SENT_BYTES);  // for the step after the next
      }
#endif
      const unsigned at = place * KEPT + lane * 16;
#pragma unroll
      for (unsigned j = 0; j < IN_REGISTERS; j++) {
        sums.add(w[j], at + j * 512);
#pragma unroll 2
        for (unsigned i = j * SHARED_CHUNKS / IN_REGISTERS; i < (j + 1) * SHARED_CHUNKS / IN_REGISTERS; i++) {
          unsigned a[PIECES][4];  // while tensor cores multiply those in registers
#pragma unroll
          for (unsigned p = 0; p < PIECES; p++) words_of(a[p], more[(i * PIECES + p) * THREADS]);
          sums.add(a, at + (IN_REGISTERS + i) * 512);
        }
      }
#pragma unroll
      for (unsigned n = 0; n < TILES; n++)
#pragma unroll
        for (unsigned g = 0; g < GROUPS; g++) {
          float h[2];
#pragma unroll
          for (unsigned e = 0; e < 2; e++) {
            float v[4];
#pragma unroll
            for (unsigned i = 0; i < 4; i++) {
              v[i] = sums.of[0][n][g][i / 2][i % 2 * 2 + e];
              if (SETS > 1) v[i] += sums.of[SETS - 1][n][g][i / 2][i % 2 * 2 + e];
            }
            float& s = c[n][g][e];
            s = fmaf(squash(v[2]), s, squash(v[0]) * tangent(v[1]));
            if (CLIP > 0) s = s < -CLIP ? -CLIP : s > CLIP ? CLIP : s;
            h[e] = squash(v[3]) * tangent(s);
          }
          if (t + 1 < STEPS && (group + g) * 8 < UNITS) {
            // Pairs of lanes exchange, so that each has two units of one sequence; four such lanes have a piece.
            const unsigned odd = lane / 4 % 2, from = lane % 8;
            const float other = __shfl_xor_sync(~0u, odd ? h[0] : h[1], 4);
            const unsigned word = odd ? pack_half2(other, h[1]) : pack_half2(h[0], other);
            const uint4 piece = {__shfl_sync(~0u, word, from), __shfl_sync(~0u, word, from + 8),
                                 __shfl_sync(~0u, word, from + 16), __shfl_sync(~0u, word, from + 24)};
            const unsigned to = (1 - place) * KEPT + n * TILE_BYTES + (group + g) / 4 * 512 +
                                (lane % 4 * 2 + odd) * 64 + (group + g) % 4 * 16;
#if CLUSTER > 1
            for (unsigned part = lane / 8; part < CLUSTER; part += 4)
              cluster_send(to, BARRIERS + (1 - place) * 8, part, piece);
#else
            if (lane < 8) *(uint4*)(shared + to) = piece;
#endif
          }
#pragma unroll
          for (unsigned e = 0; e < 2; e++)
            if (is_real(n, g, e)) {
              const unsigned here = OUT_OFFSET + t * OUT_T + (first + n * 8 + e) * OUT_B + (unit + g * 8) * OUT_C;
              out[here] = STORE_OUT(h[e]);
              out[here + UNITS * OUT_C] = STORE_OUT(c[n][g][e]);
            }
        }
    }
#if CLUSTER == 1
    __syncthreads();
#endif
  }
}
