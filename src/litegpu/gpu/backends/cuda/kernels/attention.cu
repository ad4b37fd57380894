// softmax(scale * q k^T + beta * mask) v for each of the leading positions, in half precision with float sums, or (TF32) of
// floats as exactly, each taken for two numbers of TF32 (rests.cu), without ever storing the logits. A workgroup has
// 16 * BLOCKS * WARPS_M queries; it goes through the keys and values in steps of STEP, whose copies run STAGES - 1 steps
// ahead, and WARPS_K warps divide the keys of a step among them. Every warp keeps, for its queries, the largest logit so far,
// and relative to that the sum of the exponentials and the sums of the values. SPLIT workgroups, a cluster (compute
// capability 9.0), divide the keys, and the rows of what they have together.
//
// Constants from the host: TF32, and with it WARPGROUPS (four warps multiply together) and RESTS_KEPT (in shared memory, else
// each warp finds them); BLOCKS WARPS_M WARPS_K STEP STAGES SPLIT; DP EP (depth and columns, padded to a power of two); HEADS
// QUERIES KEYS; QUADS (of the output); TILES (along the queries); SCALE BETA (but with TF32 times log2 e); for Q_, K_ and V_:
// _TYPE, _LOAD(value), _COPY (8 or 4 numbers at once, 1: four floats, or 0: one by one), _WIDTH (that can be read of a row),
// _OFFSET _PITCH_BATCH _PITCH_HEAD _PITCH_ROW _PITCH_COLUMN; K_SHARED V_SHARED (heads of queries that have one of keys, or
// values); MASKED, and for the mask: MASK_CONSTANT MASK_PERIOD (of the batch) MASK_TYPE MASK_LOAD(value) MASK_OFFSET
// MASK_PITCH_*.
constexpr unsigned THREADS = 32 * WARPS_M * WARPS_K, WARP_ROWS = 16 * BLOCKS, ROWS = WARP_ROWS * WARPS_M, OWN = STEP / WARPS_K;
#if TF32
constexpr unsigned SIZE = 4, CHAIN = 4;  // products of 8 numbers that tensor cores add up
INLINE float exponential(float x) { return rough_exp2(x * 1.44269504f); }
#else
constexpr unsigned SIZE = 2;
INLINE float exponential(float x) { return rough_exp2(x); }
#endif
constexpr unsigned PER_CHUNK = 16 / SIZE;  // numbers in 16 bytes
// Steps of a workgroup, the same of all: behind the last key there is nothing.
constexpr unsigned STEPS = (KEYS + STEP * SPLIT - 1) / (STEP * SPLIT), PLACES = STAGES < STEPS ? STAGES : STEPS;
constexpr unsigned Q_BYTES = ROWS * DP * SIZE, K_BYTES = STEP * DP * SIZE, V_BYTES = STEP * EP * SIZE;
constexpr unsigned Q_AT = 0, K_AT = WARPGROUPS && Q_BYTES < 2 * V_BYTES ? 2 * V_BYTES : Q_BYTES, V_AT = K_AT + PLACES * K_BYTES;
#if TF32
// Of the keys and values of one step. Four warps together have queries in registers, and values where those were.
constexpr unsigned K_RESTS = V_AT + PLACES * V_BYTES, V_TURNED = 0, V_RESTS = WARPGROUPS ? V_BYTES : K_RESTS + K_BYTES;
constexpr unsigned Q_RESTS = V_RESTS + V_BYTES;
// What is left of a tile in shared memory goes to another one.
template <unsigned bytes> INLINE void keep_rests(unsigned tile, unsigned rests) {
#pragma unroll
  for (unsigned at = threadIdx.x * 16; at < bytes; at += THREADS * 16) {
    const uint4 x = *(const uint4*)(shared + tile + at);
    *(uint4*)(shared + rests + at) = uint4{rest_of(x.x), rest_of(x.y), rest_of(x.z), rest_of(x.w)};
  }
}
// Four matrices, and what is left of them, which is found here unless it is kept.
INLINE void load_with_rests(unsigned (&x)[4], unsigned (&rests)[4], unsigned at, unsigned rests_at) {
  load_matrices(x, at);
  if (RESTS_KEPT) load_matrices(rests, rests_at);
#pragma unroll
  for (unsigned e = 0; e < 4; e++)
    if (!RESTS_KEPT) rests[e] = rest_of(x[e]);
}
#endif
constexpr bool VALUES_LATER = STEPS == 1 && !WARPGROUPS;
constexpr unsigned PITCH = EP + 8;  // of the sums in shared memory, in floats
static_assert(OWN % 16 == 0, "a warp multiplies 16 keys at once");
constexpr unsigned QUERY_CHUNKS = DP / PER_CHUNK, VALUE_CHUNKS = EP / PER_CHUNK;

// Chunks of 16 bytes that lie side by side; what is wider for four warps together lies in blocks one below the other.
template <unsigned chunks> constexpr unsigned ABREAST = WARPGROUPS && chunks > 8 ? 8 : chunks;
// Where 16 bytes of a row lie: permuted so that the same chunk of eight rows is in eight different groups of banks.
template <unsigned chunks, unsigned rows> INLINE unsigned place(unsigned row, unsigned chunk) {
  constexpr unsigned abreast = ABREAST<chunks>;
  const unsigned turn = abreast >= 8 ? row % 8 : row / (8 / abreast) % abreast;
  if constexpr (abreast == chunks) return (row * chunks + (chunk ^ turn)) * 16;
  return (chunk / abreast * rows + row) * (abreast * 16) + (chunk % abreast ^ turn) * 16;
}

// Of a tile: a thread's chunks; its floats in registers; whether it loads all before it converts the first of them.
template <unsigned rows, unsigned chunks> constexpr unsigned OF_THREAD = (rows * chunks + THREADS - 1) / THREADS;
template <unsigned rows, unsigned chunks> using Floats = float4[2 * OF_THREAD<rows, chunks>];
template <unsigned rows, unsigned chunks, unsigned copy> constexpr bool HELD = !TF32 && copy == 1 && OF_THREAD<rows, chunks> <= 8;

INLINE void write_chunk(unsigned to, const float (&v)[PER_CHUNK]) {
#if TF32
  *(float4*)(shared + to) = float4{v[0], v[1], v[2], v[3]};
#else
  *(uint4*)(shared + to) = uint4{pack_half2(v[0], v[1]), pack_half2(v[2], v[3]), pack_half2(v[4], v[5]),
                                 pack_half2(v[6], v[7])};
#endif
}

// `rows` rows from number `first` on, of which there are `count`, go to the tile at `at`; what is outside becomes zero, and is
// not read. A thread's chunks are one below the other, mostly whole groups of eight rows apart: both addresses of each
// are then those of the first and a constant. What is HELD comes to registers, and with `keep` from there to the tile.
#define BRING(name, SIDE)                                                                                               \
  template <bool keep, unsigned rows, unsigned chunks>                                                                  \
  INLINE void bring_##name(const SIDE##_TYPE* x, unsigned first, unsigned count, unsigned at, float4* floats) {         \
    constexpr bool held = HELD<rows, chunks, SIDE##_COPY>;                                                              \
    if (keep && !held) return;                                                                                          \
    constexpr unsigned down = THREADS / chunks;                                                                         \
    const unsigned own = threadIdx.x / chunks, chunk = threadIdx.x % chunks, column = chunk * PER_CHUNK;                \
    const SIDE##_TYPE* const top = x + (first + own) * SIDE##_PITCH_ROW + column * SIDE##_PITCH_COLUMN;                 \
    const unsigned top_to = at + place<chunks, rows>(own, chunk);                                                       \
    _Pragma("unroll") for (unsigned below = 0; below < rows; below += down) {                                           \
      const unsigned row = own + below;                                                                                 \
      if (below + down > rows && row >= rows) continue;                                                                 \
      const SIDE##_TYPE* const from = top + below * SIDE##_PITCH_ROW;                                                   \
      const unsigned to =                                                                                               \
          down % 8 == 0 ? top_to + below * ABREAST<chunks> * 16 : at + place<chunks, rows>(row, chunk);                 \
      const bool real = first + row < count;                                                                            \
      if constexpr (SIDE##_COPY == 8 || (TF32 && SIDE##_COPY)) {                                                        \
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
        float v[PER_CHUNK];                                                                                             \
        _Pragma("unroll") for (unsigned e = 0; e < PER_CHUNK; e++)                                                      \
          v[e] = real && column + e < SIDE##_WIDTH ? SIDE##_LOAD(from[e * SIDE##_PITCH_COLUMN]) : 0.0f;                 \
        write_chunk(to, v);                                                                                             \
      }                                                                                                                 \
    }                                                                                                                   \
  }
BRING(q, Q)
BRING(k, K)
BRING(v, V)
// Whether floats wait in registers while the step in front of theirs is multiplied.
constexpr bool LATE = OF_THREAD<STEP, QUERY_CHUNKS> + OF_THREAD<STEP, VALUE_CHUNKS> <= 8;
// One workgroup at least on a multiprocessor, for the compiler, which else is sparing with registers, and waits for floats
// before it loads others.
constexpr unsigned RESIDENT = !TF32 && (K_COPY == 1 || V_COPY == 1);

#if WARPGROUPS
// A column's values of all keys become a row, and what is left of them another: of eight keys those of even numbers first,
// as products take the logits of a thread's two neighbours.
INLINE void turn_values(unsigned tile) {
#pragma unroll
  for (unsigned i = threadIdx.x; i < EP * (STEP / 4); i += THREADS) {
    const unsigned column = i % EP, chunk = i / EP;
    unsigned x[4], rests[4];
#pragma unroll
    for (unsigned e = 0; e < 4; e++) {
      const unsigned row = chunk / 2 * 8 + e * 2 + chunk % 2;
      x[e] = *(const unsigned*)(shared + tile + place<VALUE_CHUNKS, STEP>(row, column / 4) + column % 4 * 4);
      rests[e] = rest_of(x[e]);
    }
    const unsigned to = place<STEP / 4, EP>(column, chunk);
    *(uint4*)(shared + V_TURNED + to) = uint4{x[0], x[1], x[2], x[3]};
    *(uint4*)(shared + V_RESTS + to) = uint4{rests[0], rests[1], rests[2], rests[3]};
  }
}
#endif

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
    const float factor = exponential(of[w].x - base);
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
  float added[BLOCKS][OWN / 8][4];
  auto read_mask = [&](unsigned step) {
#pragma unroll
    for (unsigned i = 0; i < BLOCKS * (OWN / 8); i++)
#pragma unroll
      for (unsigned e = 0; e < 4; e++) {
        const unsigned m = i / (OWN / 8), n = i % (OWN / 8);
        const unsigned key = key0 + step * STEP + warp_k * OWN + n * 8 + lane % 4 * 2 + e % 2;
        const unsigned row = row0 + warp_m * WARP_ROWS + m * 16 + lane / 4 + e / 2 * 8;
        added[m][n][e] = 0.0f;
        if (row < QUERIES && key < KEYS)
          added[m][n][e] = BETA * MASK_LOAD(mask[batch % MASK_PERIOD * MASK_PITCH_BATCH + head * MASK_PITCH_HEAD +
                                                 row * MASK_PITCH_ROW + key * MASK_PITCH_COLUMN + MASK_OFFSET]);
      }
  };
  if (MASK_CONSTANT) read_mask(0);
#endif
  wait_for_predecessors();
  launch_dependents();

  Floats<ROWS, QUERY_CHUNKS> floats_q;
  Floats<STEP, QUERY_CHUNKS> floats_k;
  Floats<STEP, VALUE_CHUNKS> floats_v;
  const Q_TYPE* const queries = q + batch * Q_PITCH_BATCH + head * Q_PITCH_HEAD + Q_OFFSET;
  auto bring = [&](unsigned step) {
    bring_k<false, STEP, QUERY_CHUNKS>(keys, key0 + step * STEP, KEYS, K_AT + step % STAGES * K_BYTES, floats_k);
    if (VALUES_LATER) copies_commit();  // the values are awaited later
    bring_v<false, STEP, VALUE_CHUNKS>(values, key0 + step * STEP, KEYS, V_AT + step % STAGES * V_BYTES, floats_v);
  };
  auto keep = [&](unsigned step) {
    bring_k<true, STEP, QUERY_CHUNKS>(keys, key0 + step * STEP, KEYS, K_AT + step % STAGES * K_BYTES, floats_k);
    bring_v<true, STEP, VALUE_CHUNKS>(values, key0 + step * STEP, KEYS, V_AT + step % STAGES * V_BYTES, floats_v);
  };
  bring_q<false, ROWS, QUERY_CHUNKS>(queries, row0, QUERIES, Q_AT, floats_q);
#pragma unroll
  for (unsigned step = 0; step < STAGES - 1; step++) {
    if (step < STEPS) bring(step);
    if (step == 0) {
#if MASKED
      if (!MASK_CONSTANT) read_mask(0);
#endif
      bring_q<true, ROWS, QUERY_CHUNKS>(queries, row0, QUERIES, Q_AT, floats_q);
    }
    if (step < STEPS) keep(step);
    copies_commit();
  }

  float sums[BLOCKS][EP / 8][4] = {}, largest[BLOCKS][2], total[BLOCKS][2] = {};
#pragma unroll
  for (unsigned m = 0; m < BLOCKS; m++) largest[m][0] = largest[m][1] = NOTHING;
#if WARPGROUPS
  unsigned query[DP / 8][4], query_rests[DP / 8][4];
#elif !TF32
  unsigned query[BLOCKS][DP / 16][4];
#endif
  for (unsigned step = 0; step < STEPS; step++) {
    copies_wait<VALUES_LATER ? 1 : STAGES - 2>();
    __syncthreads();  // this step is there, and all are done with the one before it
    if (step + STAGES - 1 < STEPS) bring(step + STAGES - 1);
    if (!LATE && step + STAGES - 1 < STEPS) keep(step + STAGES - 1);
    copies_commit();
    const unsigned key_tile = K_AT + step % STAGES * K_BYTES, value_tile = V_AT + step % STAGES * V_BYTES;
    const unsigned query_row = warp_m * WARP_ROWS + lane % 16, key_row = warp_k * OWN + lane % 8 + lane / 16 * 8;
    float logits[BLOCKS][OWN / 8][4] = {};
#if WARPGROUPS
    if (step == 0) {
#pragma unroll
      for (unsigned i = 0; i < DP / 8; i++) {
        load_matrices(query[i], Q_AT + place<QUERY_CHUNKS, ROWS>(query_row, i * 2 + lane / 16));
#pragma unroll
        for (unsigned e = 0; e < 4; e++) query_rests[i][e] = rest_of(query[i][e]);
      }
      __syncthreads();
    }
    keep_rests<K_BYTES>(key_tile, K_RESTS);
    turn_values(value_tile);
    announce_copies();
    __syncthreads();
    auto rows_of = [](unsigned tile, unsigned rows, unsigned i) { return matrix<128>(tile + i / 4 * (rows * 128) + i % 4 * 32); };
    begin_products();
#pragma unroll
    for (unsigned i = 0; i < DP / 8; i++) {
      multiply_tf32(logits[0], query_rests[i], rows_of(key_tile, STEP, i), i > 0);
      multiply_tf32(logits[0], query[i], rows_of(K_RESTS, STEP, i), 1);
    }
#pragma unroll
    for (unsigned i = 0; i < DP / 8; i++) multiply_tf32(logits[0], query[i], rows_of(key_tile, STEP, i), 1);
    end_products();
#elif TF32
    if (RESTS_KEPT) {
      if (step == 0) keep_rests<Q_BYTES>(Q_AT, Q_RESTS);
      keep_rests<K_BYTES>(key_tile, K_RESTS);
      if (!VALUES_LATER) keep_rests<V_BYTES>(value_tile, V_RESTS);
      __syncthreads();
    }
#pragma unroll
    for (unsigned first = 0; first < DP / 8; first += CHAIN) {
      float found[BLOCKS][OWN / 8][4] = {}, found_of_rests[BLOCKS][OWN / 8][4] = {};
#pragma unroll
      for (unsigned i = first; i < first + CHAIN && i < DP / 8; i++) {
        unsigned left[BLOCKS][4], left_rests[BLOCKS][4];
#pragma unroll
        for (unsigned m = 0; m < BLOCKS; m++) {
          const unsigned at = place<QUERY_CHUNKS, ROWS>(query_row + m * 16, i * 2 + lane / 16);
          load_with_rests(left[m], left_rests[m], Q_AT + at, Q_RESTS + at);
        }
#pragma unroll
        for (unsigned n = 0; n < OWN / 16; n++) {
          unsigned right[4], rests[4];
          const unsigned at = place<QUERY_CHUNKS, STEP>(key_row + n * 16, i * 2 + lane / 8 % 2);
          load_with_rests(right, rests, key_tile + at, K_RESTS + at);
#pragma unroll
          for (unsigned of = 0; of < 3; of++)
#pragma unroll
            for (unsigned j = 0; j < 2; j++)
#pragma unroll
              for (unsigned m = 0; m < BLOCKS; m++) {
                const unsigned at = 2 * n + j;
                if (of == 0) multiply_tf32(found_of_rests[m][at], left_rests[m], right[2 * j], right[2 * j + 1]);
                if (of == 1) multiply_tf32(found[m][at], left[m], right[2 * j], right[2 * j + 1]);
                if (of == 2) multiply_tf32(found_of_rests[m][at], left[m], rests[2 * j], rests[2 * j + 1]);
              }
        }
      }
#pragma unroll
      for (unsigned m = 0; m < BLOCKS; m++)
#pragma unroll
        for (unsigned n = 0; n < OWN / 8; n++)
#pragma unroll
          for (unsigned e = 0; e < 4; e++) logits[m][n][e] += found[m][n][e] + found_of_rests[m][n][e];
    }
#else
    if (step == 0) {
#pragma unroll
      for (unsigned m = 0; m < BLOCKS; m++)
#pragma unroll
        for (unsigned i = 0; i < DP / 16; i++)
          load_matrices(query[m][i], Q_AT + place<QUERY_CHUNKS, ROWS>(query_row + m * 16, i * 2 + lane / 16));
    }
#pragma unroll
    for (unsigned i = 0; i < DP / 16; i++)
#pragma unroll
      for (unsigned n = 0; n < OWN / 16; n++) {
        unsigned right[4];
        load_matrices(right, key_tile + place<QUERY_CHUNKS, STEP>(key_row + n * 16, i * 2 + lane / 8 % 2));
#pragma unroll
        for (unsigned m = 0; m < BLOCKS; m++) {
          multiply(logits[m][2 * n], query[m][i], right[0], right[1]);
          multiply(logits[m][2 * n + 1], query[m][i], right[2], right[3]);
        }
      }
#endif
    float factor[BLOCKS][2];
#pragma unroll
    for (unsigned m = 0; m < BLOCKS; m++) {
      float most[2] = {largest[m][0], largest[m][1]}, base[2];
#pragma unroll
      for (unsigned n = 0; n < OWN / 8; n++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++) {
          const unsigned key = key0 + step * STEP + warp_k * OWN + n * 8 + lane % 4 * 2 + e % 2;
          float logit = logits[m][n][e] * SCALE;
#if MASKED
          logit += added[m][n][e];
#endif
          logit = key < KEYS ? logit : NOTHING;
          logits[m][n][e] = logit;
          most[e / 2] = logit != logit ? logit : fmaxf(most[e / 2], logit);
        }
#pragma unroll
      for (unsigned r = 0; r < 2; r++) {
        most[r] = of_neighbours(most[r], false);
        base[r] = most[r] == NOTHING ? 0.0f : most[r];  // where nothing but -infinity came so far there is no difference
        factor[m][r] = exponential(largest[m][r] - base[r]);
        largest[m][r] = most[r];
        total[m][r] *= factor[m][r];
      }
#pragma unroll
      for (unsigned n = 0; n < OWN / 8; n++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++) {
          logits[m][n][e] = exponential(logits[m][n][e] - base[e / 2]);
          total[m][e / 2] += logits[m][n][e];
        }
    }
#if MASKED
    if (step + 1 < STEPS) read_mask(step + 1);
#endif
    if (VALUES_LATER) {
      copies_wait<0>();
      __syncthreads();
#if TF32
      if (RESTS_KEPT) {
        keep_rests<V_BYTES>(value_tile, V_RESTS);
        __syncthreads();
      }
#endif
    }
#if WARPGROUPS
#pragma unroll
    for (unsigned part = 0; part < STEP / 32; part++) {
      float found[EP / 8][4];
      unsigned left[4][4], left_rests[4][4];
#pragma unroll
      for (unsigned i = 0; i < 4; i++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++) {
          const float p = logits[0][part * 4 + i][e / 2 + e % 2 * 2];
          left[i][e] = __float_as_uint(p), left_rests[i][e] = to_be_cut(rest_of_number(p));
        }
      begin_products();
#pragma unroll
      for (unsigned i = 0; i < 4; i++) {
        multiply_tf32(found, left_rests[i], rows_of(V_TURNED, EP, part * 4 + i), i > 0);
        multiply_tf32(found, left[i], rows_of(V_RESTS, EP, part * 4 + i), 1);
      }
#pragma unroll
      for (unsigned i = 0; i < 4; i++) multiply_tf32(found, left[i], rows_of(V_TURNED, EP, part * 4 + i), 1);
      end_products();
#pragma unroll
      for (unsigned n = 0; n < EP / 8; n++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++)
          sums[0][n][e] = part ? sums[0][n][e] + found[n][e] : fmaf(sums[0][n][e], factor[0][e / 2], found[n][e]);
    }
#elif TF32
    // A product's key number t is the thread's 2t, and number t + 4 is 2t + 1: so its logits are the left factor as they
    // are. Of the values it has four neighbours of both rows, so that its sums are two whole quads of each row.
#pragma unroll
    for (unsigned s = 0; s < EP / 32; s++) {
      float found[BLOCKS][4][4] = {}, found_of_rests[BLOCKS][4][4] = {};
#pragma unroll
      for (unsigned i = 0; i < OWN / 8; i++) {
        unsigned right[2][4], rests[2][4];
#pragma unroll
        for (unsigned r = 0; r < 2; r++) {
          const unsigned at = place<VALUE_CHUNKS, STEP>(warp_k * OWN + i * 8 + lane % 4 * 2 + r, s * 8 + lane / 4);
          auto read = [&](unsigned (&four)[4], unsigned tile) {
            const uint4 x = *(const uint4*)(shared + tile + at);
            four[0] = x.x, four[1] = x.y, four[2] = x.z, four[3] = x.w;
          };
          read(right[r], value_tile);
          if (RESTS_KEPT) read(rests[r], V_RESTS);
#pragma unroll
          for (unsigned e = 0; e < 4; e++)
            if (!RESTS_KEPT) rests[r][e] = rest_of(right[r][e]);
        }
#pragma unroll
        for (unsigned m = 0; m < BLOCKS; m++) {
          unsigned left[4], left_rests[4];
#pragma unroll
          for (unsigned e = 0; e < 4; e++) {
            const float p = logits[m][i][e / 2 + e % 2 * 2];
            left[e] = __float_as_uint(p), left_rests[e] = to_be_cut(rest_of_number(p));
          }
#pragma unroll
          for (unsigned of = 0; of < 3; of++)
#pragma unroll
            for (unsigned j = 0; j < 4; j++) {
              if (of == 0) multiply_tf32(found_of_rests[m][j], left_rests, right[0][j], right[1][j]);
              if (of == 1) multiply_tf32(found[m][j], left, right[0][j], right[1][j]);
              if (of == 2) multiply_tf32(found_of_rests[m][j], left, rests[0][j], rests[1][j]);
            }
        }
      }
#pragma unroll
      for (unsigned m = 0; m < BLOCKS; m++)
#pragma unroll
        for (unsigned j = 0; j < 4; j++)
#pragma unroll
          for (unsigned e = 0; e < 4; e++) {
            float& sum = sums[m][s * 4 + j][e];
            sum = fmaf(sum, factor[m][e / 2], found[m][j][e] + found_of_rests[m][j][e]);
          }
    }
#else
#pragma unroll
    for (unsigned m = 0; m < BLOCKS; m++)
#pragma unroll
      for (unsigned n = 0; n < EP / 8; n++)
#pragma unroll
        for (unsigned e = 0; e < 4; e++) sums[m][n][e] *= factor[m][e / 2];
#pragma unroll
    for (unsigned i = 0; i < OWN / 16; i++)
#pragma unroll
      for (unsigned n = 0; n < EP / 16; n++) {
        unsigned right[4];
        load_matrices_turned(right, value_tile + place<VALUE_CHUNKS, STEP>(warp_k * OWN + i * 16 + lane % 16, n * 2 + lane / 16));
#pragma unroll
        for (unsigned m = 0; m < BLOCKS; m++) {
          const float(&a)[4] = logits[m][2 * i], (&b)[4] = logits[m][2 * i + 1];
          const unsigned weights[4] = {pack_half2(a[0], a[1]), pack_half2(a[2], a[3]), pack_half2(b[0], b[1]),
                                       pack_half2(b[2], b[3])};
          multiply(sums[m][2 * n], weights, right[0], right[1]);
          multiply(sums[m][2 * n + 1], weights, right[2], right[3]);
        }
      }
#endif
    if (LATE && step + STAGES - 1 < STEPS) keep(step + STAGES - 1);
  }

  // What the warps have of a row meets in shared memory, over the tiles.
  copies_wait<0>();
  __syncthreads();
  float* const parts = (float*)shared;
  float* const tops = parts + WARPS_K * ROWS * PITCH;  // the largest logit and the sum, by warp and row
#pragma unroll
  for (unsigned i = 0; i < 2 * BLOCKS; i++) {
    const unsigned m = i / 2, r = i % 2, row = warp_k * ROWS + warp_m * WARP_ROWS + i * 8 + lane / 4;
    const float all = of_neighbours(total[m][r], true);
    if (lane % 4 == 0) tops[row * 2] = largest[m][r], tops[row * 2 + 1] = all;
#if TF32 && !WARPGROUPS
#pragma unroll
    for (unsigned n = 0; n < EP / 16; n++) {
      const float(&four)[EP / 8][4] = sums[m];
      const unsigned s = n / 2 * 4, e = 2 * r + n % 2;
      *(float4*)(parts + row * PITCH + (n / 2 * 8 + lane % 4 * 2 + n % 2) * 4) =
          float4{four[s][e], four[s + 1][e], four[s + 2][e], four[s + 3][e]};
    }
#else
#pragma unroll
    for (unsigned n = 0; n < EP / 8; n++)
      *(float2*)(parts + row * PITCH + n * 8 + lane % 4 * 2) = float2{sums[m][n][2 * r], sums[m][n][2 * r + 1]};
#endif
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
