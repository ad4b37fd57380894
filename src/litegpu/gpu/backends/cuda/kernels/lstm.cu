// The steps of an LSTM. A cluster of CLUSTER workgroups has BATCH_EACH sequences; each workgroup has UNITS_EACH units and
// keeps their recurrent weights for all steps, in registers and, where these do not suffice, in shared memory. Four rows
// of weights, the gates, belong to a unit, and LANES neighbouring threads divide a row: thread p of them has the chunks
// (four numbers) p, p + LANES, ... In each step every workgroup reads the last outputs of all units in its own shared
// memory, and stores its new ones in that of all workgroups: in the other of two places, so that one barrier a step is
// enough.
//
// Constants from the host, beside those of the layer (lstm_layer.py): CLUSTER; UNITS_EACH; BATCH_EACH; LANES (1 to 8),
// CHUNKS (of a row for a thread; the first IN_REGISTERS of them), HALF (the weights), THREADS.
#if HALF
typedef uint2 Chunk;
INLINE float4 unpacked(uint2 a) {
  return float4{half_to_float((unsigned short)(a.x & 0xffffu)), half_to_float((unsigned short)(a.x >> 16)),
                half_to_float((unsigned short)(a.y & 0xffffu)), half_to_float((unsigned short)(a.y >> 16))};
}
#else
typedef float4 Chunk;
INLINE float4 unpacked(float4 a) { return a; }
#endif
constexpr unsigned ROOM = CHUNKS * LANES * 4;  // for the outputs of a sequence
constexpr unsigned KEPT = 2 * BATCH_EACH * ROOM, SHARED_CHUNKS = CHUNKS - IN_REGISTERS;
constexpr unsigned BYTES = KEPT * 4 + SHARED_CHUNKS * THREADS * sizeof(Chunk), QUARTER = LANES, TEAM = 4 * LANES;
static_assert(TEAM <= 32 && THREADS % 32 == 0 && THREADS >= UNITS_EACH * TEAM, "a unit's threads are in one warp");

INLINE float squash(float x) { return 1.0f / (1.0f + expf(-x)); }

extern "C" __global__ void __launch_bounds__(THREADS)
#if CLUSTER > 1
    __cluster_dims__(CLUSTER, 1, 1)
#endif
    NAME(const GATES_TYPE* gates, const Chunk* weights, const float* output, const float* state, OUT_TYPE* out) {
  float* kept = own_shared(BYTES);  // [2][BATCH_EACH][ROOM]
  const unsigned rank = CLUSTER > 1 ? cluster_rank() : 0, team = threadIdx.x / TEAM, member = threadIdx.x % TEAM;
  const unsigned gate = member / LANES, lane = member % LANES;
  const unsigned unit = rank * UNITS_EACH + team, first = blockIdx.x / CLUSTER * BATCH_EACH;
  const bool real = team < UNITS_EACH && unit < UNITS;

  Chunk w[IN_REGISTERS];  // zeros past the last unit and the last output
#pragma unroll
  for (unsigned j = 0; j < IN_REGISTERS; j++) w[j] = weights[(rank * CHUNKS + j) * THREADS + threadIdx.x];
  Chunk* more = (Chunk*)(kept + KEPT) + threadIdx.x;
  for (unsigned j = 0; j < SHARED_CHUNKS; j++)
    more[j * THREADS] = weights[(rank * CHUNKS + IN_REGISTERS + j) * THREADS + threadIdx.x];
  wait_for_predecessors();
  launch_dependents();

  for (unsigned i = threadIdx.x; i < KEPT; i += THREADS) {
    const unsigned b = first + i / ROOM % BATCH_EACH, u = i % ROOM;
    kept[i] = i < BATCH_EACH * ROOM && u < UNITS && b < BATCH ? output[FIRST_OUTPUT(b, u)] : 0.0f;
  }
  float c[BATCH_EACH], next[BATCH_EACH];
  auto load_gates = [&](unsigned t) {
#pragma unroll
    for (unsigned r = 0; r < BATCH_EACH; r++)
      if (real && first + r < BATCH)
        next[r] = LOAD_GATE(gates[GATES_OFFSET + t * GATES_T + (first + r) * GATES_B + (gate * UNITS + unit) * GATES_C]);
  };
#pragma unroll
  for (unsigned r = 0; r < BATCH_EACH; r++) {
    next[r] = 0.0f;
    c[r] = real && first + r < BATCH ? state[FIRST_STATE(first + r, unit)] : 0.0f;
  }
  load_gates(0);
  __syncthreads();
  if (CLUSTER > 1) {  // nobody's shared memory is written before its own workgroup has begun
    cluster_arrive();
    cluster_wait();
  }

#pragma unroll 1
  for (unsigned t = 0; t < STEPS; t++) {
    const float* last = kept + t % 2 * (BATCH_EACH * ROOM);
    float* fresh = kept + (t + 1) % 2 * (BATCH_EACH * ROOM);
#pragma unroll
    for (unsigned r = 0; r < BATCH_EACH; r++) {
      float4 sums = {0.0f, 0.0f, 0.0f, 0.0f};
      auto add = [&](Chunk chunk, unsigned j) {
        const float4 a = unpacked(chunk), h = ((const float4*)(last + r * ROOM))[j * LANES + lane];
        sums.x = fmaf(a.x, h.x, sums.x);
        sums.y = fmaf(a.y, h.y, sums.y);
        sums.z = fmaf(a.z, h.z, sums.z);
        sums.w = fmaf(a.w, h.w, sums.w);
      };
#pragma unroll
      for (unsigned j = 0; j < IN_REGISTERS; j++) add(w[j], j);
#pragma unroll 8
      for (unsigned j = 0; j < SHARED_CHUNKS; j++) add(more[j * THREADS], IN_REGISTERS + j);
      float sum = (sums.x + sums.y) + (sums.z + sums.w);
#pragma unroll
      for (unsigned by = 1; by < LANES; by *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
      sum += next[r];
      // tanh(x) is 2 / (1 + exp(-2x)) - 1: all gates take the same way.
      const float squashed = squash(gate == 1 ? 2.0f * sum : sum), value = gate == 1 ? 2.0f * squashed - 1.0f : squashed;
      const unsigned base = threadIdx.x % 32 - member;
      const float into = __shfl_sync(0xffffffffu, value, base);
      const float candidate = __shfl_sync(0xffffffffu, value, base + QUARTER);
      const float forget = __shfl_sync(0xffffffffu, value, base + 2 * QUARTER);
      const float open = __shfl_sync(0xffffffffu, value, base + 3 * QUARTER);
      c[r] = fmaf(forget, c[r], into * candidate);
      if (CLIP > 0) c[r] = c[r] < -CLIP ? -CLIP : c[r] > CLIP ? CLIP : c[r];
      const float h = open * tanhf(c[r]);
      if (real && first + r < BATCH) {
        if (CLUSTER == 1 && member == 0) fresh[r * ROOM + unit] = h;
        if (CLUSTER > 1)
          for (unsigned to = member; to < CLUSTER; to += TEAM) cluster_store(fresh + r * ROOM + unit, to, h, BYTES);
        if (member < 2)
          out[OUT_OFFSET + t * OUT_T + (first + r) * OUT_B + (member * UNITS + unit) * OUT_C] =
              STORE_OUT(member == 0 ? h : c[r]);
      }
    }
    if (CLUSTER > 1) cluster_arrive();
    if (t + 1 < STEPS) load_gates(t + 1);  // while the others arrive
    if (CLUSTER > 1) cluster_wait();
    else __syncthreads();
  }
}
