// Attention of bytes as the CPU computes it, operator by operator: products of queries and keys round to bytes, their softmax, added
// up in float32 from the first key to the last, to bytes again, and those are multiplied with values. A team of TEAM warps has 16 queries, and
// each of them the logits of some blocks of 16 keys, in registers; sums in order are a lane's for each query, from shared memory.
//
// In a 16 x 8 product a thread has two neighbours of a row. Keys go to places where those of two products are four neighbours: which
// is what the next product wants of its left factor, and what LOGITS_OF and rows in shared memory have. So it is with columns of
// values.
//
// Constants from the host: WARPS (of a workgroup) TEAM PARTS (workgroups of a head) HEADS QUERIES KEYS; DEPTH (numbers of a query)
// QUADS (of a value); KEY_PITCH VALUE_PITCH ROW_PITCH (words); SUMS_AT VALUES_AT KEYS_AT ROWS_AT (bytes); OF_Q OF_K OF_V (what numbers are
// less, as signed bytes); SCALE (of weights). Functions: QUERY_WORD and VALUE_WORD(batch, head, row, i), of four bytes; KEY_WORDS,
// four of them; LOGITS_OF(batch, head, query, quad of keys, int4).
constexpr unsigned THREADS = 32 * WARPS, PAIRS = (KEYS + 31) / 32, STEPS = (DEPTH + 31) / 32;
constexpr unsigned OWN = ((KEYS + 15) / 16 + TEAM - 1) / TEAM, BLOCKS = OWN * TEAM;  // of 16 keys
constexpr unsigned COLUMNS = (QUADS + 3) / 4, OWN_COLUMNS = (COLUMNS + TEAM - 1) / TEAM;  // blocks of 16
constexpr unsigned TABLE = 768;  // of which those behind 255 are zero
constexpr int ONES = 0x01010101, NO_KEY = -512;

// What the warps of a team tell each other: a row's largest logits, and what its weights are multiplied with.
struct Team {
  int largest[TEAM][16];
  float shares[16];
};

// Where a key, or a column of values, lies among 16.
INLINE unsigned place_of(unsigned i) { return (i & ~15u) + (i & 2 ? 8 : 0) + (i / 4 % 4) * 2 + (i & 1); }

INLINE int larger(int a, int b) { return b > a ? b : a; }

INLINE int of_neighbours(int x) {  // the sum of the four threads that share a row
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

INLINE void meet(unsigned team) {  // all warps of the team
  if (TEAM > 1)
    team_sync(1 + team, 32 * TEAM);
  else
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const float* __restrict__ table EPILOGUE_BUFFERS) {
  __shared__ Team teams[WARPS / TEAM];
  float* const known = (float*)shared;
  int* const key_sums = (int*)(shared + SUMS_AT);
  unsigned* const values = (unsigned*)(shared + VALUES_AT);
  unsigned* const keys = (unsigned*)(shared + KEYS_AT);
  const unsigned position = blockIdx.x / PARTS, batch = position / HEADS, head = position % HEADS;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, turn = lane % 4;
  const unsigned own = warp / TEAM, part = warp % TEAM;
  const unsigned first = (blockIdx.x % PARTS * (WARPS / TEAM) + own) * 16, row0 = first + group;  // and eight further on
  Team& team = teams[own];
#pragma unroll
  for (unsigned i = 0; i < TABLE; i += THREADS) {
    const unsigned at = i + threadIdx.x;
    if (at < TABLE) known[at] = at < 256 ? table[at] : 0.0f;
  }
  wait_for_predecessors();
  launch_dependents();

  unsigned query[STEPS][4];
#pragma unroll
  for (unsigned s = 0; s < STEPS; s++)
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
      const unsigned row = row0 + i % 2 * 8, word = s * 8 + i / 2 * 4 + turn;
      query[s][i] = QUERY_WORD(batch, head, row < QUERIES ? row : QUERIES - 1, word);
    }
  constexpr unsigned CHUNKS = STEPS * 2;  // of 16 numbers of a key
#pragma unroll
  for (unsigned i = 0; i < BLOCKS * 16 * CHUNKS; i += THREADS) {
    const unsigned key = (i + threadIdx.x) / CHUNKS, chunk = (i + threadIdx.x) % CHUNKS;
    if (i + THREADS > BLOCKS * 16 * CHUNKS && key >= BLOCKS * 16) continue;
    const int4 words = chunk * 16 < DEPTH ? KEY_WORDS(batch, head, key < KEYS ? key : KEYS - 1, chunk) : int4{};
    *(int4*)(keys + place_of(key) * KEY_PITCH + chunk * 4) = words;
  }
  // A thread turns four keys of a quad of columns; eight such and four quads lie side by side, for memory and for shared memory.
  constexpr unsigned DOWN = PAIRS * 8, ITEMS = DOWN * COLUMNS * 4;
#pragma unroll
  for (unsigned begin = 0; begin < ITEMS; begin += THREADS) {
    const unsigned i = begin + threadIdx.x, quad = i / 4 / DOWN * 4 + i % 4, four = i / 4 % DOWN;
    if (begin + THREADS > ITEMS && i >= ITEMS) continue;
    int rows[4];
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
      const unsigned key = four * 4 + j;
      rows[j] = quad < QUADS ? VALUE_WORD(batch, head, key < KEYS ? key : KEYS - 1, quad) : 0;
    }
    const unsigned low0 = __byte_perm(rows[0], rows[1], 0x5140), low1 = __byte_perm(rows[2], rows[3], 0x5140);
    const unsigned high0 = __byte_perm(rows[0], rows[1], 0x7362), high1 = __byte_perm(rows[2], rows[3], 0x7362);
    unsigned* const to = values + place_of(quad * 4) * VALUE_PITCH + four;  // the third and fourth are eight places on
    to[0] = __byte_perm(low0, low1, 0x5410), to[VALUE_PITCH] = __byte_perm(low0, low1, 0x7632);
    to[8 * VALUE_PITCH] = __byte_perm(high0, high1, 0x5410), to[9 * VALUE_PITCH] = __byte_perm(high0, high1, 0x7632);
  }
  __syncthreads();
  if (OF_Q != 0)
#pragma unroll
    for (unsigned i = 0; i < BLOCKS * 16; i += THREADS) {
      const unsigned key = i + threadIdx.x;
      if (i + THREADS > BLOCKS * 16 && key >= BLOCKS * 16) continue;
      int sum = 0;
#pragma unroll
      for (unsigned w = 0; w < STEPS * 8; w++) sum = __dp4a((int)keys[place_of(key) * KEY_PITCH + w], ONES, sum);
      key_sums[key] = OF_Q * (OF_K * DEPTH - sum);
    }
  if (OF_Q != 0) __syncthreads();
  if (first >= QUERIES) return;
  int of_rows[2];
#pragma unroll
  for (unsigned r = 0; r < 2; r++) {
    int sum = 0;
#pragma unroll
    for (unsigned s = 0; s < STEPS; s++) sum = __dp4a((int)query[s][r], ONES, __dp4a((int)query[s][r + 2], ONES, sum));
    of_rows[r] = OF_K == 0 ? 0 : of_neighbours(-OF_K * sum);
  }
  int logits[2 * OWN][4] = {};
#pragma unroll
  for (unsigned s = 0; s < STEPS; s++)
#pragma unroll
    for (unsigned n = 0; n < 2 * OWN; n++) {
      const unsigned* const at = keys + ((part * OWN * 2 + n) * 8 + group) * KEY_PITCH + s * 8 + turn;
      multiply(logits[n], query[s], at[0], at[4]);
    }

  int largest[2];
#pragma unroll
  for (unsigned r = 0; r < 2; r++) {
    const unsigned row = row0 + r * 8, real_row = row < QUERIES ? row : QUERIES - 1;
    largest[r] = NO_KEY;
#pragma unroll
    for (unsigned j = 0; j < OWN; j++) {
      const unsigned quad = (part * OWN + j) * 4 + turn, key = quad * 4;
      const bool passes = ((TEAM - 1) * OWN + j) * 16 + 16 > KEYS;  // the last key, perhaps
      const int4 more = OF_Q != 0 ? *(const int4*)(key_sums + key) : int4{};
      int* const a = logits[2 * j] + 2 * r;
      int* const b = logits[2 * j + 1] + 2 * r;
      const int4 found = LOGITS_OF(batch, head, real_row, passes && key >= KEYS ? (KEYS - 1) / 4 : quad,
                                   (int4{a[0] + more.x + of_rows[r], a[1] + more.y + of_rows[r],
                                         b[0] + more.z + of_rows[r], b[1] + more.w + of_rows[r]}));
      a[0] = found.x, a[1] = found.y, b[0] = found.z, b[1] = found.w;
      if (passes) {
        if (key >= KEYS) a[0] = NO_KEY;
        if (key + 1 >= KEYS) a[1] = NO_KEY;
        if (key + 2 >= KEYS) b[0] = NO_KEY;
        if (key + 3 >= KEYS) b[1] = NO_KEY;
      }
      largest[r] = larger(larger(largest[r], larger(a[0], a[1])), larger(b[0], b[1]));
    }
    largest[r] = larger(largest[r], __shfl_xor_sync(~0u, largest[r], 1));
    largest[r] = larger(largest[r], __shfl_xor_sync(~0u, largest[r], 2));
    if (TEAM > 1 && turn == 0) team.largest[part][group + r * 8] = largest[r];
  }
  if (TEAM > 1) meet(own);

  float* const rows = (float*)(shared + ROWS_AT) + own * 16 * ROW_PITCH;
#pragma unroll
  for (unsigned r = 0; r < 2; r++) {
#pragma unroll
    for (unsigned other = 0; TEAM > 1 && other < TEAM; other++)
      largest[r] = larger(largest[r], team.largest[other][group + r * 8]);
    const float* const of_largest = known + largest[r];
#pragma unroll
    for (unsigned j = 0; j < OWN; j++) {
      int* const a = logits[2 * j] + 2 * r;
      int* const b = logits[2 * j + 1] + 2 * r;
      const float4 exponentials{of_largest[-a[0]], of_largest[-a[1]], of_largest[-b[0]], of_largest[-b[1]]};
      const unsigned key = (part * OWN + j) * 16 + turn * 4;
      if (((TEAM - 1) * OWN + j) * 16 + 16 <= KEYS || key < KEYS)
        *(float4*)(rows + (group + r * 8) * ROW_PITCH + key) = exponentials;
      a[0] = __float_as_int(exponentials.x), a[1] = __float_as_int(exponentials.y);
      b[0] = __float_as_int(exponentials.z), b[1] = __float_as_int(exponentials.w);
    }
  }
  meet(own);
  if (part == 0 && lane < 16) {
    float sum = 0.0f;
#pragma unroll
    for (unsigned j = 0; j < (KEYS + 3) / 4; j++) {
      const float4 quad = *(const float4*)(rows + lane * ROW_PITCH + j * 4);
      sum = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(sum, quad.x), quad.y), quad.z), quad.w);
    }
    team.shares[lane] = 1.0f / (sum * SCALE);
  }
  meet(own);

  unsigned* const weight_rows = (unsigned*)rows;  // of all warps of the team, as wide as those of values
  unsigned weights[OWN + 1][2];
#pragma unroll
  for (unsigned r = 0; r < 2; r++) {
    const float share = team.shares[group + r * 8];
#pragma unroll
    for (unsigned j = 0; j < OWN; j++) {
      unsigned bits[4];
#pragma unroll
      for (unsigned e = 0; e < 4; e++) {
        const float exponential = __int_as_float(logits[2 * j + e / 2][2 * r + e % 2]);
        // The bits of a float from 2^23 on count its units; rounding down is what cuts the fraction off.
        const float whole = __fadd_rd(__fadd_rn(__fmul_rn(exponential, share), 0.5f), 8388608.0f);
        bits[e] = whole > 8388863.0f ? 0x4b0000ffu : __float_as_uint(whole);
      }
      weights[j][r] = __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
      if (TEAM > 1) weight_rows[(group + r * 8) * VALUE_PITCH + (part * OWN + j) * 4 + turn] = weights[j][r];
    }
    weights[OWN][r] = 0;
    if (TEAM > 1 && part == 0 && BLOCKS < 2 * PAIRS) weight_rows[(group + r * 8) * VALUE_PITCH + BLOCKS * 4 + turn] = 0;
  }
  if (TEAM > 1) meet(own);

  int sums[2 * OWN_COLUMNS][4] = {}, weight_sums[2] = {};
#pragma unroll
  for (unsigned i = 0; i < PAIRS; i++) {
    unsigned left[4];
#pragma unroll
    for (unsigned e = 0; e < 4; e++) {
      if constexpr (TEAM > 1)
        left[e] = weight_rows[(group + e % 2 * 8) * VALUE_PITCH + (2 * i + e / 2) * 4 + turn];
      else
        left[e] = weights[2 * i + e / 2][e % 2];
      weight_sums[e % 2] = __dp4a(left[e], (unsigned)ONES, (unsigned)weight_sums[e % 2]);
    }
#pragma unroll
    for (unsigned n = 0; n < 2 * OWN_COLUMNS; n++) {
      const unsigned column = part * OWN_COLUMNS * 2 + n;
      if (OWN_COLUMNS * TEAM > COLUMNS && column >= 2 * COLUMNS) continue;
      const unsigned* const at = values + (column * 8 + group) * VALUE_PITCH + i * 8 + turn;
      multiply_unsigned(sums[n], left, at[0], at[4]);
    }
  }
#pragma unroll
  for (unsigned r = 0; r < 2; r++) {
    const int less = OF_V == 0 ? 0 : OF_V * of_neighbours(weight_sums[r]);
#pragma unroll
    for (unsigned j = 0; j < OWN_COLUMNS; j++) {
      const unsigned row = row0 + r * 8, quad = (part * OWN_COLUMNS + j) * 4 + turn;
      const int* const a = sums[2 * j] + 2 * r;
      const int* const b = sums[2 * j + 1] + 2 * r;
      if (row < QUERIES && quad < QUADS)
        STORE(position * QUERIES + row, quad, (int4{a[0] - less, a[1] - less, b[0] - less, b[1] - less}));
    }
  }
}
