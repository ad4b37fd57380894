// softmax(scale * q k^T + beta * mask) v for each of the leading positions, in half precision with float sums, where keys are
// few: a warp has BLOCKS times 16 queries of a position and all its keys and values in registers, which it reads from
// memory as products of 16 x 8 x 16 need them. For that it is free which of a row's numbers a product takes for which of its own, if
// both factors agree: each thread reads neighbours. So nothing goes through shared memory, and no warp waits for another.
//
// Constants from the host: WARPS (of a workgroup) BLOCKS PARTS (warps of a position) POSITIONS; PIECE CHUNKS (of a query's or a key's
// numbers a thread has PIECE of each 4 * PIECE); RUN SPANS (of a value's, RUN of each 8 * RUN); HEADS QUERIES KEYS; QUADS (of
// the output); SCALE BETA (times log2 e); POSITIVE (the scale is); for Q_, K_ and V_: _TYPE, _LOAD(value), _COPY (8 or 4 halves
// at once, 1: four floats, or 0: one by one), _WIDTH (that can be read of a row), _OFFSET _PITCH_BATCH _PITCH_HEAD _PITCH_ROW
// _PITCH_COLUMN; K_SHARED V_SHARED (heads of queries that have one of keys, or values). MASK: 0; GIVEN, with
// MASK_CONSTANT MASK_PERIOD (of the batch) MASK_LOAD(value) MASK_OFFSET MASK_PITCH_*; or PACKED: halves in the order in
// which threads need them (packed_mask() of the host), times BETA, minus infinity for keys that there are not. CAUSAL: queries see
// the keys up to their own number and DIAGONAL.
#define GIVEN 1
#define PACKED 2
#define BY_KEYS (MASK == GIVEN && MASK_PITCH_ROW == 0)
constexpr unsigned TILES = (KEYS + 7) / 8, STEPS = (TILES + 1) / 2;  // of 8 keys, and of 16
constexpr unsigned WORDS = PIECE / 2 * CHUNKS, OUT = RUN * SPANS, RUN_WORDS = (RUN + 1) / 2;
static_assert(PIECE == 8 || CHUNKS == 1, "pieces of fewer are of narrow rows");
static_assert(RUN == 4 || SPANS == 1, "runs of fewer are of narrow rows");

// `count` numbers of a row from `column` on, as pairs of halves; what is outside is zero.
#define READ(name, SIDE)                                                                                                \
  template <unsigned count> INLINE void read_##name(unsigned* words, const SIDE##_TYPE* row, unsigned column, bool real) { \
    if constexpr (SIDE##_COPY == 8 && count == 8) {                                                                     \
      const uint4 v = real && column < SIDE##_WIDTH ? *(const uint4*)(row + column) : uint4{};                          \
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;                                                   \
    } else if constexpr (SIDE##_COPY >= 4 && count >= 4) {                                                              \
      _Pragma("unroll") for (unsigned e = 0; e < count; e += 4) {                                                       \
        const uint2 v = real && column + e < SIDE##_WIDTH ? *(const uint2*)(row + column + e) : uint2{};                \
        words[e / 2] = v.x, words[e / 2 + 1] = v.y;                                                                     \
      }                                                                                                                 \
    } else if constexpr (SIDE##_COPY >= 4 && count == 2) {                                                              \
      words[0] = real && column < SIDE##_WIDTH ? *(const unsigned*)(row + column) : 0;                                  \
    } else if constexpr (SIDE##_COPY >= 4) {                                                                            \
      words[0] = real && column < SIDE##_WIDTH ? *(const unsigned short*)(row + column) : 0;                            \
    } else if constexpr (SIDE##_COPY == 1 && count >= 4) {                                                              \
      _Pragma("unroll") for (unsigned e = 0; e < count; e += 4) {                                                       \
        const float4 v = real && column + e < SIDE##_WIDTH ? *(const float4*)(row + column + e) : float4{};             \
        words[e / 2] = pack_half2(v.x, v.y), words[e / 2 + 1] = pack_half2(v.z, v.w);                                   \
      }                                                                                                                 \
    } else {                                                                                                            \
      float v[count + 1] = {};                                                                                          \
      _Pragma("unroll") for (unsigned e = 0; e < count; e++)                                                            \
        if (real && column + e < SIDE##_WIDTH) v[e] = SIDE##_LOAD(row[(column + e) * SIDE##_PITCH_COLUMN]);             \
      _Pragma("unroll") for (unsigned e = 0; e < count; e += 2) words[e / 2] = pack_half2(v[e], v[e + 1]);              \
    }                                                                                                                   \
  }
READ(q, Q)
READ(k, K)
READ(v, V)

extern "C" __global__ void __launch_bounds__(32 * WARPS)
NAME(const Q_TYPE* q, const K_TYPE* k, const V_TYPE* v MASK_PARAMETER EPILOGUE_BUFFERS) {
  const unsigned number = blockIdx.x * WARPS + threadIdx.x / 32, position = number / PARTS;
  const unsigned lane = threadIdx.x % 32, group = lane / 4, turn = lane % 4;  // eight groups of four threads
  const unsigned batch = position / HEADS, head = position % HEADS;
  unsigned row0 = number % PARTS * (16 * BLOCKS);
  const Q_TYPE* const queries = q + batch * Q_PITCH_BATCH + head * Q_PITCH_HEAD + Q_OFFSET;
  const K_TYPE* const keys = k + batch * K_PITCH_BATCH + head / K_SHARED * K_PITCH_HEAD + K_OFFSET;
  const V_TYPE* const values = v + batch * V_PITCH_BATCH + head / V_SHARED * V_PITCH_HEAD + V_OFFSET;
#if MASK == PACKED
  uint4 packed[STEPS];
  auto read_mask = [&] {
    const unsigned lead = batch % MASK_PERIOD * MASK_PITCH_BATCH + head * MASK_PITCH_HEAD;
#pragma unroll
    for (unsigned i = 0; i < STEPS; i++) packed[i] = mask[((lead + row0 / 16) * STEPS + i) * 32 + lane];
  };
  read_mask();  // it is constant: before the kernel in front of this one ends
#elif MASK == GIVEN
  auto masked = [&](unsigned row, unsigned key) {
    if (row >= QUERIES || key >= KEYS) return 0.0f;
    return BETA * MASK_LOAD(mask[batch % MASK_PERIOD * MASK_PITCH_BATCH + head * MASK_PITCH_HEAD + row * MASK_PITCH_ROW +
                                 key * MASK_PITCH_COLUMN + MASK_OFFSET]);
  };
#endif
  wait_for_predecessors();
  launch_dependents();
  if (position >= POSITIONS) return;

  unsigned query[2][WORDS], key_words[TILES][WORDS], value_words[STEPS][SPANS][4][RUN_WORDS];
  auto read_queries = [&] {
#pragma unroll
    for (unsigned r = 0; r < 2; r++)
#pragma unroll
      for (unsigned c = 0; c < CHUNKS; c++) {
        const unsigned row = row0 + group + r * 8;
        read_q<PIECE>(query[r] + c * (PIECE / 2), queries + row * Q_PITCH_ROW, (c * 4 + turn) * PIECE, row < QUERIES);
      }
  };
  read_queries();
#pragma unroll
  for (unsigned n = 0; n < TILES; n++)
#pragma unroll
    for (unsigned c = 0; c < CHUNKS; c++) {
      const unsigned row = n * 8 + group;
      read_k<PIECE>(key_words[n] + c * (PIECE / 2), keys + row * K_PITCH_ROW, (c * 4 + turn) * PIECE, row < KEYS);
    }
  // Of values a thread has four rows of each step, and the run that makes its sums in the end whole quads beside its neighbours'.
  const unsigned run = RUN == 4 ? group / 2 + group % 2 * 4 : group;
#pragma unroll
  for (unsigned i = 0; i < STEPS; i++)
#pragma unroll
    for (unsigned s = 0; s < SPANS; s++)
#pragma unroll
      for (unsigned e = 0; e < 4; e++) {
        const unsigned row = i * 16 + turn * 2 + e % 2 + e / 2 * 8;
        if (i * 16 + e / 2 * 8 < KEYS)
          read_v<RUN>(value_words[i][s][e], values + row * V_PITCH_ROW, (s * 8 + run) * RUN, row < KEYS);
        else
          value_words[i][s][e][0] = value_words[i][s][e][RUN_WORDS - 1] = 0;
      }
#if BY_KEYS
  float more[TILES][2];  // the same for all rows
#pragma unroll
  for (unsigned n = 0; n < TILES; n++)
#pragma unroll
    for (unsigned e = 0; e < 2; e++) more[n][e] = masked(0, n * 8 + turn * 2 + e);
#endif
  unsigned right[STEPS][OUT][2];
#pragma unroll
  for (unsigned i = 0; i < STEPS; i++)
#pragma unroll
    for (unsigned j = 0; j < OUT; j++)
#pragma unroll
      for (unsigned half = 0; half < 2; half++) {
        const unsigned(&rows)[4][RUN_WORDS] = value_words[i][j / RUN];
        const unsigned word = j % RUN / 2;
        right[i][j][half] = __byte_perm(rows[2 * half][word], rows[2 * half + 1][word], j % RUN % 2 ? 0x7632 : 0x5410);
      }

  // To the compiler it is a loop even of one block (the grid has one row): in front of one it reads all that is needed in it,
  // where else it would read values when logits have been waited for.
  const unsigned blocks = BLOCKS * gridDim.y;
#pragma unroll 1
  for (unsigned block = 0; block < blocks; block++) {
    float logits[TILES][4] = {};
#pragma unroll
    for (unsigned w = 0; w < WORDS; w += 2) {
      constexpr bool pairs = WORDS > 1;
      const unsigned second = pairs ? w + 1 : w;
      const unsigned left[4] = {query[0][w], query[1][w], pairs ? query[0][second] : 0, pairs ? query[1][second] : 0};
#pragma unroll
      for (unsigned n = 0; n < TILES; n++)
        multiply(logits[n], left, key_words[n][w], pairs ? key_words[n][second] : 0);
    }
    const unsigned first = row0;
    row0 += 16;
    if (BLOCKS > 1 && block + 1 < BLOCKS && row0 < QUERIES) read_queries();  // for the next block, meanwhile
#if MASK || !POSITIVE
    constexpr float scale = 1.0f;
#pragma unroll
    for (unsigned n = 0; n < TILES; n++)
#pragma unroll
      for (unsigned e = 0; e < 4; e++) {
        float logit = logits[n][e] * SCALE;
#if MASK == PACKED
        const uint4 two = packed[n / 2];
        const unsigned word = n % 2 ? e / 2 ? two.w : two.z : e / 2 ? two.y : two.x;
        logit += half_to_float((unsigned short)(e % 2 ? word >> 16 : word));
#elif BY_KEYS
        logit += more[n][e % 2];
#elif MASK == GIVEN
        logit += masked(first + group + e / 2 * 8, n * 8 + turn * 2 + e % 2);
#endif
        logits[n][e] = logit;
      }
#else
    constexpr float scale = SCALE;
#endif
#if MASK == PACKED
    if (BLOCKS > 1 && block + 1 < BLOCKS && row0 < QUERIES) read_mask();
#endif
#pragma unroll
    for (unsigned n = 0; n < TILES; n++)
#pragma unroll
      for (unsigned e = 0; e < 4; e++) {
        const unsigned key = n * 8 + turn * 2 + e % 2;
        if (CAUSAL ? key > first + group + e / 2 * 8 + DIAGONAL : n * 8 + 8 > KEYS && key >= KEYS) logits[n][e] = NOTHING;
      }
    float inverse[2];
#pragma unroll
    for (unsigned r = 0; r < 2; r++) {
      float most = fmaxf(logits[0][2 * r], logits[0][2 * r + 1]);
#pragma unroll
      for (unsigned n = 1; n < TILES; n++) most = fmaxf(most, fmaxf(logits[n][2 * r], logits[n][2 * r + 1]));
      most = of_neighbours(most, false) * scale;
      const float base = most == NOTHING ? 0.0f : most;  // of rows without a key all exponentials are 0
      float all = 0.0f;
#pragma unroll
      for (unsigned n = 0; n < TILES; n++)
#pragma unroll
        for (unsigned e = 2 * r; e < 2 * r + 2; e++) {
          logits[n][e] = rough_exp2(fmaf(logits[n][e], scale, -base));
          all += logits[n][e];
        }
      inverse[r] = rough_reciprocal(of_neighbours(all, true));
    }
    float sums[OUT][4] = {};
#pragma unroll
    for (unsigned i = 0; i < STEPS; i++) {
      const bool both = 2 * i + 1 < TILES;
      const float(&a)[4] = logits[2 * i], (&b)[4] = logits[both ? 2 * i + 1 : 2 * i];
      const unsigned weights[4] = {pack_half2(a[0], a[1]), pack_half2(a[2], a[3]), both ? pack_half2(b[0], b[1]) : 0,
                                   both ? pack_half2(b[2], b[3]) : 0};
#pragma unroll
      for (unsigned j = 0; j < OUT; j++) multiply(sums[j], weights, right[i][j][0], right[i][j][1]);
    }
#pragma unroll
    for (unsigned j = 0; j < OUT; j++)
#pragma unroll
      for (unsigned e = 0; e < 4; e++) sums[j][e] *= inverse[e / 2];

    const unsigned pixel = position * QUERIES + first + group;  // and eight further on
    const bool there[2] = {first + group < QUERIES, first + group + 8 < QUERIES};
#if RUN == 1  // neighbours exchange theirs of one of both rows
    const bool odd = lane % 2;
    const float(&own)[4] = sums[0];
    const float x = __shfl_xor_sync(~0u, odd ? own[0] : own[2], 1), y = __shfl_xor_sync(~0u, odd ? own[1] : own[3], 1);
    const float4 value = odd ? float4{x, y, own[2], own[3]} : float4{own[0], own[1], x, y};
    if ((odd ? there[1] : there[0]) && turn / 2 < QUADS) STORE(pixel + odd * 8, turn / 2, value);
#else
#pragma unroll
    for (unsigned r = 0; r < 2; r++)
#pragma unroll
      for (unsigned j = 0; j < (RUN == 2 ? 1 : 2 * SPANS); j++) {
        const unsigned quad = j * 4 + turn;
#if RUN == 2
        const float4 value = float4{sums[0][2 * r], sums[1][2 * r], sums[0][2 * r + 1], sums[1][2 * r + 1]};
#else
        const unsigned s = j / 2 * 4, e = 2 * r + j % 2;
        const float4 value = float4{sums[s][e], sums[s + 1][e], sums[s + 2][e], sums[s + 3][e]};
#endif
        if (there[r] && quad < QUADS) STORE(pixel + r * 8, quad, value);
      }
#endif
    if (BLOCKS > 1 && row0 >= QUERIES) break;
  }
}
