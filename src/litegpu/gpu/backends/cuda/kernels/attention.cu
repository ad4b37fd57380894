// softmax(scale * q k^T + beta * mask) v for each of the leading positions, in half precision with float sums, without ever
// storing the logits. A workgroup has 16 * WARPS_M queries; it goes through the keys and values in steps of STEP, whose
// copies run STAGES - 1 steps ahead, and WARPS_K warps divide the keys of a step among them. Every warp keeps, for its queries, the
// largest logit so far, and relative to that the sum of the exponentials and the sums of the values. SPLIT workgroups, a
// cluster (compute capability 9.0), divide the keys, and the rows of what they have together.
//
// Constants from the host: WARPS_M WARPS_K STEP STAGES SPLIT; DP EP (depth and columns, padded to a power of two); HEADS QUERIES KEYS
// QUADS (of the output); TILES (along the queries); SCALE BETA (times log2 e); for Q_, K_ and V_: _TYPE,
// _LOAD(value), _COPY (8 or 4 numbers at once, 1: four floats, or 0: one by one), _WIDTH (that can be read of a row), _OFFSET _PITCH_BATCH
// _PITCH_HEAD _PITCH_ROW _PITCH_COLUMN; K_SHARED V_SHARED (heads of queries that have one of keys, or values); MASKED, and for the mask: MASK_CONSTANT MASK_PERIOD (of the batch) MASK_TYPE MASK_LOAD(value) MASK_OFFSET MASK_PITCH_*.
constexpr unsigned THREADS = 32 * WARPS_M * WARPS_K, ROWS = 16 * WARPS_M, OWN = STEP / WARPS_K;
// Steps of a workgroup, the same of all: behind the last key there is nothing.
constexpr unsigned STEPS = (KEYS + STEP * SPLIT - 1) / (STEP * SPLIT), PLACES = STAGES < STEPS ? STAGES : STEPS;
constexpr unsigned Q_AT = 0, K_AT = ROWS * DP * 2, K_BYTES = STEP * DP * 2, V_AT = K_AT + PLACES * K_BYTES, V_BYTES = STEP * EP * 2;
constexpr unsigned PITCH = EP + 8;  // of the sums in shared memory, in floats
static_assert(OWN % 16 == 0, "a warp multiplies 16 keys at once");

// Where 16 bytes of a row lie: permuted so that the same chunk of eight rows is in eight different groups of banks.
template <unsigned chunks> INLINE unsigned place(unsigned row, unsigned chunk) {
  const unsigned turn = chunks >= 8 ? row % 8 : row / (8 / chunks) % chunks;
  return (row * chunks + (chunk ^ turn)) * 16;
}

// Of a tile: a thread's chunks; its floats in registers; whether it loads all before it converts the first of them.
template <unsigned rows, unsigned chunks> constexpr unsigned OF_THREAD = (rows * chunks + THREADS - 1) / THREADS;
template <unsigned rows, unsigned chunks> using Floats = float4[2 * OF_THREAD<rows, chunks>];
template <unsigned rows, unsigned chunks, unsigned copy> constexpr bool HELD = copy == 1 && OF_THREAD<rows, chunks> <= 8;

// `rows` rows from number `first` on, of which there are `count`, go to the tile at `at`; what is outside becomes zero, and is
// not read. A thread's chunks are one below the other, mostly whole groups of eight rows apart: both addresses of each
// are then those of the first and a constant. What is HELD comes to registers, and with `keep` from there to the tile.
#define BRING(name, SIDE)                                                                                               \
  template <bool keep, unsigned rows, unsigned chunks>                                                                  \
  INLINE void bring_##name(const SIDE##_TYPE* x, unsigned first, unsigned count, unsigned at, float4* floats) {         \
    constexpr bool held = HELD<rows, chunks, SIDE##_COPY>;                                                              \
    if (keep && !held) return;                                                                                          \
    constexpr unsigned down = THREADS / chunks;                                                                         \
    const unsigned own = threadIdx.x / chunks, chunk = threadIdx.x % chunks, column = chunk * 8;                        \
    const SIDE##_TYPE* const top = x + (first + own) * SIDE##_PITCH_ROW + column * SIDE##_PITCH_COLUMN;                 \
    const unsigned top_to = at + place<chunks>(own, chunk);                                                             \
    _Pragma("unroll") for (unsigned below = 0; below < rows; below += down) {                                           \
      const unsigned row = own + below;                                                                                 \
      if (below + down > rows && row >= rows) continue;                                                                 \
      const SIDE##_TYPE* const from = top + below * SIDE##_PITCH_ROW;                                                   \
      const unsigned to = down % 8 == 0 ? top_to + below * chunks * 16 : at + place<chunks>(row, chunk);                \
      const bool real = first + row < count;                                                                            \
      if constexpr (SIDE##_COPY == 8) {                                                                                 \
        copy16(to, from, real && column < SIDE##_WIDTH);                                                                \
      } else if constexpr (SIDE##_COPY == 4) {                                                                          \
        copy8(to, from, real && column < SIDE##_WIDTH);                                                                 \
        copy8(to + 8, from + 4, real && column + 4 < SIDE##_WIDTH);                                                     \
      } else if constexpr (SIDE##_COPY == 1) {                                                                          \
        float4& a = floats[held ? below / down * 2 : 0], &b = floats[held ? below / down * 2 + 1 : 1];                  \
        const float4 zero = float4{0.0f, 0.0f, 0.0f, 0.0f};                                                             \
        if (!keep) {                                                                                                    \
          a = real && column < SIDE##_WIDTH ? *(const float4*)from : zero;                                              \
          b = real && column + 4 < SIDE##_WIDTH ? *(const float4*)(from + 4) : zero;                                    \
        }                                                                                                               \
        if (keep || !held)                                                                                              \
          *(uint4*)(shared + to) = uint4{pack_half2(a.x, a.y), pack_half2(a.z, a.w), pack_half2(b.x, b.y),              \
                                         pack_half2(b.z, b.w)};                                                         \
      } else {                                                                                                          \
        float v[8];                                                                                                     \
        _Pragma("unroll") for (unsigned e = 0; e < 8; e++)                                                              \
          v[e] = real && column + e < SIDE##_WIDTH ? SIDE##_LOAD(from[e * SIDE##_PITCH_COLUMN]) : 0.0f;                 \
        *(uint4*)(shared + to) = uint4{pack_half2(v[0], v[1]), pack_half2(v[2], v[3]), pack_half2(v[4], v[5]),          \
                                       pack_half2(v[6], v[7])};                                                         \
      }                                                                                                                 \
    }                                                                                                                   \
  }
BRING(q, Q)
BRING(k, K)
BRING(v, V)
// Whether floats wait in registers while the step in front of theirs is multiplied.
constexpr bool LATE = OF_THREAD<STEP, DP / 8> + OF_THREAD<STEP, EP / 8> <= 8;
// One workgroup at least on a multiprocessor, for the compiler, which else is sparing with registers, and waits for floats
// before it loads others.
constexpr unsigned RESIDENT = K_COPY == 1 || V_COPY == 1;

// Of a row, what one of those who divide the keys has, or all together: the largest logit, and relative to that the sum of
// the exponentials and four sums of the values.
struct Share {
  float top, all;
  float4 sums;
  __device__ __forceinline__ float4 values() const { return float4{sums.x / all, sums.y / all, sums.z / all, sums.w / all}; }
};
template <unsigned count, class Tops, class Sums> INLINE Share together(Tops tops, Sums sums) {
  Share share = {NOTHING, 0.0f, float4{0.0f, 0.0f, 0.0f, 0.0f}};
  float2 of[count];
#pragma unroll
  for (unsigned w = 0; w < count; w++) {
    of[w] = tops(w);
    share.top = of[w].x != of[w].x || of[w].x > share.top ? of[w].x : share.top;
  }
  const float base = share.top == NOTHING ? 0.0f : share.top;
#pragma unroll
  for (unsigned w = 0; w < count; w++) {
    const float factor = rough_exp2(of[w].x - base);
    const float4 part = sums(w);
    share.all += of[w].y * factor;
    share.sums = float4{fmaf(part.x, factor, share.sums.x), fmaf(part.y, factor, share.sums.y),
                        fmaf(part.z, factor, share.sums.z), fmaf(part.w, factor, share.sums.w)};
  }
  return share;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
#if SPLIT > 1
__cluster_dims__(SPLIT, 1, 1)
#endif
NAME(const Q_TYPE* q, const K_TYPE* k, const V_TYPE* v MASK_PARAMETER EPILOGUE_BUFFERS) {
#if SPLIT > 1
  const unsigned part = cluster_part(), key0 = part * (STEPS * STEP);
#else
  constexpr unsigned key0 = 0;
#endif
  const unsigned tile = blockIdx.x / SPLIT % TILES, position = blockIdx.x / SPLIT / TILES;
  const unsigned batch = position / HEADS, head = position % HEADS;
  const unsigned row0 = tile * ROWS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const unsigned warp_m = warp % WARPS_M, warp_k = warp / WARPS_M;
  const K_TYPE* const keys = k + batch * K_PITCH_BATCH + head / K_SHARED * K_PITCH_HEAD + K_OFFSET;
  const V_TYPE* const values = v + batch * V_PITCH_BATCH + head / V_SHARED * V_PITCH_HEAD + V_OFFSET;
#if MASKED
  // What is added to a step's logits is read a step ahead; what is constant before the kernel in front of this one ends.
  float added[OWN / 8][4];
  auto read_mask = [&](unsigned step) {
#pragma unroll
    for (unsigned n = 0; n < OWN / 8; n++)
#pragma unroll
      for (unsigned e = 0; e < 4; e++) {
        const unsigned key = key0 + step * STEP + warp_k * OWN + n * 8 + lane % 4 * 2 + e % 2;
        const unsigned row = row0 + warp_m * 16 + lane / 4 + e / 2 * 8;
        added[n][e] = 0.0f;
        if (row < QUERIES && key < KEYS)
          added[n][e] = BETA * MASK_LOAD(mask[batch % MASK_PERIOD * MASK_PITCH_BATCH + head * MASK_PITCH_HEAD +
                                              row * MASK_PITCH_ROW + key * MASK_PITCH_COLUMN + MASK_OFFSET]);
      }
  };
  if (MASK_CONSTANT) read_mask(0);
#endif
  wait_for_predecessors();
  launch_dependents();

  Floats<ROWS, DP / 8> floats_q;
  Floats<STEP, DP / 8> floats_k;
  Floats<STEP, EP / 8> floats_v;
  const Q_TYPE* const queries = q + batch * Q_PITCH_BATCH + head * Q_PITCH_HEAD + Q_OFFSET;
  auto bring = [&](unsigned step) {
    bring_k<false, STEP, DP / 8>(keys, key0 + step * STEP, KEYS, K_AT + step % STAGES * K_BYTES, floats_k);
    if (STEPS == 1) copies_commit();  // the values are awaited later
    bring_v<false, STEP, EP / 8>(values, key0 + step * STEP, KEYS, V_AT + step % STAGES * V_BYTES, floats_v);
  };
  auto keep = [&](unsigned step) {
    bring_k<true, STEP, DP / 8>(keys, key0 + step * STEP, KEYS, K_AT + step % STAGES * K_BYTES, floats_k);
    bring_v<true, STEP, EP / 8>(values, key0 + step * STEP, KEYS, V_AT + step % STAGES * V_BYTES, floats_v);
  };
  bring_q<false, ROWS, DP / 8>(queries, row0, QUERIES, Q_AT, floats_q);
#pragma unroll
  for (unsigned step = 0; step < STAGES - 1; step++) {
    if (step < STEPS) bring(step);
    if (step == 0) {
#if MASKED
      if (!MASK_CONSTANT) read_mask(0);
#endif
      bring_q<true, ROWS, DP / 8>(queries, row0, QUERIES, Q_AT, floats_q);
    }
    if (step < STEPS) keep(step);
    copies_commit();
  }

  unsigned query[DP / 16][4];
  float sums[EP / 8][4] = {}, largest[2] = {NOTHING, NOTHING}, total[2] = {0.0f, 0.0f};
  for (unsigned step = 0; step < STEPS; step++) {
    copies_wait<STEPS == 1 ? 1 : STAGES - 2>();
    __syncthreads();  // this step is there, and all are done with the one before it
    if (step + STAGES - 1 < STEPS) bring(step + STAGES - 1);
    if (!LATE && step + STAGES - 1 < STEPS) keep(step + STAGES - 1);
    copies_commit();
    if (step == 0) {
#pragma unroll
      for (unsigned i = 0; i < DP / 16; i++)
        load_matrices(query[i], Q_AT + place<DP / 8>(warp_m * 16 + lane % 16, i * 2 + lane / 16));
    }
    const unsigned key_tile = K_AT + step % STAGES * K_BYTES, value_tile = V_AT + step % STAGES * V_BYTES;
    float logits[OWN / 8][4] = {};
#pragma unroll
    for (unsigned i = 0; i < DP / 16; i++)
#pragma unroll
      for (unsigned n = 0; n < OWN / 16; n++) {
        unsigned right[4];
        const unsigned row = warp_k * OWN + n * 16 + lane % 8 + lane / 16 * 8;
        load_matrices(right, key_tile + place<DP / 8>(row, i * 2 + lane / 8 % 2));
        multiply(logits[2 * n], query[i], right[0], right[1]);
        multiply(logits[2 * n + 1], query[i], right[2], right[3]);
      }
    float most[2] = {largest[0], largest[1]};
#pragma unroll
    for (unsigned n = 0; n < OWN / 8; n++)
#pragma unroll
      for (unsigned e = 0; e < 4; e++) {
        const unsigned key = key0 + step * STEP + warp_k * OWN + n * 8 + lane % 4 * 2 + e % 2;
        float logit = logits[n][e] * SCALE;
#if MASKED
        logit += added[n][e];
#endif
        logit = key < KEYS ? logit : NOTHING;
        logits[n][e] = logit;
        most[e / 2] = logit != logit ? logit : fmaxf(most[e / 2], logit);
      }
#if MASKED
    if (step + 1 < STEPS) read_mask(step + 1);
#endif
    float factor[2], base[2];
#pragma unroll
    for (unsigned r = 0; r < 2; r++) {
      most[r] = of_neighbours(most[r], false);
      base[r] = most[r] == NOTHING ? 0.0f : most[r];  // where nothing but -infinity came so far there is no difference
      factor[r] = rough_exp2(largest[r] - base[r]);
      largest[r] = most[r];
      total[r] *= factor[r];
    }
#pragma unroll
    for (unsigned n = 0; n < OWN / 8; n++)
#pragma unroll
      for (unsigned e = 0; e < 4; e++) {
        logits[n][e] = rough_exp2(logits[n][e] - base[e / 2]);
        total[e / 2] += logits[n][e];
      }
#pragma unroll
    for (unsigned n = 0; n < EP / 8; n++)
#pragma unroll
      for (unsigned e = 0; e < 4; e++) sums[n][e] *= factor[e / 2];
    if (STEPS == 1) {
      copies_wait<0>();
      __syncthreads();
    }
#pragma unroll
    for (unsigned i = 0; i < OWN / 16; i++) {
      const float(&a)[4] = logits[2 * i], (&b)[4] = logits[2 * i + 1];
      const unsigned weights[4] = {pack_half2(a[0], a[1]), pack_half2(a[2], a[3]), pack_half2(b[0], b[1]),
                                   pack_half2(b[2], b[3])};
#pragma unroll
      for (unsigned n = 0; n < EP / 16; n++) {
        unsigned right[4];
        load_matrices_turned(right, value_tile + place<EP / 8>(warp_k * OWN + i * 16 + lane % 16, n * 2 + lane / 16));
        multiply(sums[2 * n], weights, right[0], right[1]);
        multiply(sums[2 * n + 1], weights, right[2], right[3]);
      }
    }
    if (LATE && step + STAGES - 1 < STEPS) keep(step + STAGES - 1);
  }

  // What the warps have of a row meets in shared memory, over the tiles.
  copies_wait<0>();
  __syncthreads();
  float* const parts = (float*)shared;
  float* const tops = parts + WARPS_K * ROWS * PITCH;  // the largest logit and the sum, by warp and row
#pragma unroll
  for (unsigned r = 0; r < 2; r++) {
    const unsigned row = warp_k * ROWS + warp_m * 16 + lane / 4 + r * 8;
    const float all = of_neighbours(total[r], true);
    if (lane % 4 == 0) tops[row * 2] = largest[r], tops[row * 2 + 1] = all;
#pragma unroll
    for (unsigned n = 0; n < EP / 8; n++)
      *(float2*)(parts + row * PITCH + n * 8 + lane % 4 * 2) = float2{sums[n][2 * r], sums[n][2 * r + 1]};
  }
  __syncthreads();
#pragma unroll 2
  for (unsigned i = threadIdx.x; i < ROWS * (EP / 4); i += THREADS) {
    const unsigned row = i / (EP / 4), quad = i % (EP / 4);
    if (row0 + row >= QUERIES || quad >= QUADS) continue;
    const Share share = together<WARPS_K>(
        [&](unsigned w) { return *(const float2*)(tops + (w * ROWS + row) * 2); },
        [&](unsigned w) { return *(const float4*)(parts + (w * ROWS + row) * PITCH + quad * 4); });
#if SPLIT > 1
    *(float4*)(parts + row * PITCH + quad * 4) = share.sums;  // which nobody else reads
    if (quad == 0) *(float2*)(parts + row * PITCH + EP) = float2{share.top, share.all};  // in the padding
#else
    STORE(position * QUERIES + row0 + row, quad, share.values());
#endif
  }
#if SPLIT > 1
  constexpr unsigned ITEMS = ROWS / SPLIT * (EP / 4), DOWN = THREADS / (EP / 4), EACH = (ITEMS + THREADS - 1) / THREADS;
  const unsigned first = part * (ROWS / SPLIT) + threadIdx.x / (EP / 4), quad = threadIdx.x % (EP / 4);
  auto real = [&](unsigned n) {
    return threadIdx.x + n * THREADS < ITEMS && row0 + first + n * DOWN < QUERIES && quad < QUADS;
  };
  float4 found[EACH];
  cluster_sync();
#pragma unroll
  for (unsigned n = 0; n < EACH; n++) {
    if (!real(n)) continue;
    const unsigned at = (first + n * DOWN) * (PITCH * 4);
    const Share share = together<SPLIT>(
        [&](unsigned p) {
          const uint4 bits = cluster_read(at + EP * 4, p);
          return *(const float2*)&bits;
        },
        [&](unsigned p) {
          const uint4 bits = cluster_read(at + quad * 16, p);
          return *(const float4*)&bits;
        });
    found[n] = share.values();
  }
  cluster_arrive();  // what the others have is read
#pragma unroll
  for (unsigned n = 0; n < EACH; n++)
    if (real(n)) STORE(position * QUERIES + row0 + first + n * DOWN, quad, found[n]);
  cluster_wait();
#endif
}
