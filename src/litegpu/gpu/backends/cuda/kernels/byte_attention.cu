// Attention of bytes as the CPU computes it, operator by operator: products of queries and keys round to bytes, their softmax, added
// up in float32 from the first key to the last, to bytes again, and those are multiplied with values. A warp has 16 queries and the
// logits of all keys in registers, where nothing is waited for but the sums in order: a lane adds up a row.
//
// In a 16 x 8 product a thread has two neighbours of a row. Keys go to places where those of two products are four neighbours: which
// is what the next product wants of its left factor, and what LOGITS_OF and rows in shared memory have. So it is with columns of values.
//
// Constants from the host: WARPS (of a workgroup) PARTS (workgroups of a head) HEADS QUERIES KEYS; DEPTH (numbers of a query) QUADS
// (of a value); KEY_PITCH VALUE_PITCH ROW_PITCH (words); SUMS_AT VALUES_AT KEYS_AT (bytes); OF_Q OF_K OF_V (what numbers are less,
// as signed bytes); SCALE (of weights). Functions: QUERY_WORD and VALUE_WORD(batch, head, row, i), of four bytes; KEY_WORDS, four of
// them; LOGITS_OF(batch, head, query, quad of keys, int4).
constexpr unsigned THREADS = 32 * WARPS, BLOCKS = (KEYS + 15) / 16, PAIRS = (KEYS + 31) / 32, STEPS = (DEPTH + 31) / 32;
constexpr unsigned COLUMNS = (QUADS + 3) / 4;  // blocks of 16
constexpr int ONES = 0x01010101;

// Where a key, or a column of values, lies among 16.
INLINE unsigned place_of(unsigned i) { return (i & ~15u) + (i & 2 ? 8 : 0) + (i / 4 % 4) * 2 + (i & 1); }

INLINE int larger(int a, int b) { return b > a ? b : a; }

INLINE int of_neighbours(int x) {  // the sum of the four threads that share a row
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const float* __restrict__ table EPILOGUE_BUFFERS) {
  float* const known = (float*)shared;
  int* const key_sums = (int*)(shared + SUMS_AT);
  unsigned* const values = (unsigned*)(shared + VALUES_AT);
  unsigned* const keys = (unsigned*)(shared + KEYS_AT);
  const unsigned position = blockIdx.x / PARTS, batch = position / HEADS, head = position % HEADS;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, turn = lane % 4;
  const unsigned row0 = (blockIdx.x % PARTS * WARPS + warp) * 16 + group;  // and eight further on
  for (unsigned i = threadIdx.x; i < 256; i += THREADS) known[i] = table[i];
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
  for (unsigned i = threadIdx.x; i < BLOCKS * 16 * CHUNKS; i += THREADS) {
    const unsigned key = i / CHUNKS, chunk = i % CHUNKS;
    const int4 words = chunk * 16 < DEPTH ? KEY_WORDS(batch, head, key < KEYS ? key : KEYS - 1, chunk) : int4{};
    *(int4*)(keys + place_of(key) * KEY_PITCH + chunk * 4) = words;
  }
  // A thread turns four keys of a quad of columns; eight such and four quads lie side by side, for memory and for shared memory.
  constexpr unsigned DOWN = PAIRS * 8, ITEMS = DOWN * COLUMNS * 4;
  for (unsigned i = threadIdx.x; i < ITEMS; i += THREADS) {
    const unsigned quad = i / 4 / DOWN * 4 + i % 4, four = i / 4 % DOWN;
    int rows[4];
#pragma unroll
    for (unsigned j = 0; j < 4; j++) {
      const unsigned key = four * 4 + j;
      rows[j] = quad < QUADS ? VALUE_WORD(batch, head, key < KEYS ? key : KEYS - 1, quad) : 0;
    }
    const unsigned low0 = __byte_perm(rows[0], rows[1], 0x5140), low1 = __byte_perm(rows[2], rows[3], 0x5140);
    const unsigned high0 = __byte_perm(rows[0], rows[1], 0x7362), high1 = __byte_perm(rows[2], rows[3], 0x7362);
    values[place_of(quad * 4) * VALUE_PITCH + four] = __byte_perm(low0, low1, 0x5410);
    values[place_of(quad * 4 + 1) * VALUE_PITCH + four] = __byte_perm(low0, low1, 0x7632);
    values[place_of(quad * 4 + 2) * VALUE_PITCH + four] = __byte_perm(high0, high1, 0x5410);
    values[place_of(quad * 4 + 3) * VALUE_PITCH + four] = __byte_perm(high0, high1, 0x7632);
  }
  __syncthreads();
  for (unsigned key = threadIdx.x; key < BLOCKS * 16; key += THREADS) {
    int sum = 0;
#pragma unroll
    for (unsigned i = 0; i < STEPS * 8; i++) sum = __dp4a((int)keys[place_of(key) * KEY_PITCH + i], ONES, sum);
    key_sums[key] = OF_Q * (OF_K * DEPTH - sum);
  }
  int of_rows[2];
#pragma unroll
  for (unsigned r = 0; r < 2; r++) {
    int sum = 0;
#pragma unroll
    for (unsigned s = 0; s < STEPS; s++) sum = __dp4a((int)query[s][r], ONES, __dp4a((int)query[s][r + 2], ONES, sum));
    of_rows[r] = -OF_K * of_neighbours(sum);
  }
  int logits[2 * BLOCKS][4] = {};
#pragma unroll
  for (unsigned s = 0; s < STEPS; s++)
#pragma unroll
    for (unsigned n = 0; n < 2 * BLOCKS; n++) {
      const unsigned* const at = keys + (n * 8 + group) * KEY_PITCH + s * 8 + turn;
      multiply(logits[n], query[s], at[0], at[4]);
    }
  __syncthreads();  // keys give way to floats

  float* const rows = (float*)keys + warp * 16 * ROW_PITCH;
  unsigned weights[BLOCKS + 1][2];
  int weight_sums[2] = {};
  float shares[2];
#pragma unroll
  for (unsigned r = 0; r < 2; r++) {
    const unsigned row = row0 + r * 8, real_row = row < QUERIES ? row : QUERIES - 1;
    int largest = -256;
#pragma unroll
    for (unsigned j = 0; j < BLOCKS; j++) {
      const int4 more = *(const int4*)(key_sums + j * 16 + turn * 4);
      const unsigned quad = j * 4 + turn, real_quad = quad < (KEYS + 3) / 4 ? quad : (KEYS - 1) / 4;
      int* const a = logits[2 * j] + 2 * r;
      int* const b = logits[2 * j + 1] + 2 * r;
      const int4 found = LOGITS_OF(batch, head, real_row, real_quad,
                                (int4{a[0] + more.x + of_rows[r], a[1] + more.y + of_rows[r], b[0] + more.z + of_rows[r],
                                      b[1] + more.w + of_rows[r]}));
      a[0] = found.x, a[1] = found.y, b[0] = found.z, b[1] = found.w;
      if (j * 16 + 16 > KEYS) {  // what is behind the last key is as low as can be
        if (quad * 4 >= KEYS) a[0] = -256;
        if (quad * 4 + 1 >= KEYS) a[1] = -256;
        if (quad * 4 + 2 >= KEYS) b[0] = -256;
        if (quad * 4 + 3 >= KEYS) b[1] = -256;
      }
      largest = larger(larger(largest, larger(a[0], a[1])), larger(b[0], b[1]));
    }
    largest = larger(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = larger(largest, __shfl_xor_sync(~0u, largest, 2));
#pragma unroll
    for (unsigned j = 0; j < BLOCKS; j++) {
      int* const a = logits[2 * j] + 2 * r;
      int* const b = logits[2 * j + 1] + 2 * r;
      float4 parts{known[largest - a[0] & 255], known[largest - a[1] & 255], known[largest - b[0] & 255],
                   known[largest - b[1] & 255]};
      if (j * 16 + 16 > KEYS) {
        const unsigned key = j * 16 + turn * 4;
        if (key >= KEYS) parts.x = 0.0f;
        if (key + 1 >= KEYS) parts.y = 0.0f;
        if (key + 2 >= KEYS) parts.z = 0.0f;
        if (key + 3 >= KEYS) parts.w = 0.0f;
      }
      *(float4*)(rows + (group + r * 8) * ROW_PITCH + j * 16 + turn * 4) = parts;
      a[0] = __float_as_int(parts.x), a[1] = __float_as_int(parts.y);
      b[0] = __float_as_int(parts.z), b[1] = __float_as_int(parts.w);
    }
  }
  __syncwarp();
  float sum = 0.0f;
  if (lane < 16) {
#pragma unroll
    for (unsigned j = 0; j < 4 * BLOCKS; j++) {
      const float4 quad = *(const float4*)(rows + lane * ROW_PITCH + j * 4);
      sum = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(sum, quad.x), quad.y), quad.z), quad.w);
    }
  }
  const float share = 1.0f / (sum * SCALE);
#pragma unroll
  for (unsigned r = 0; r < 2; r++) shares[r] = __shfl_sync(~0u, share, group + r * 8);
#pragma unroll
  for (unsigned r = 0; r < 2; r++) {
#pragma unroll
    for (unsigned j = 0; j < BLOCKS; j++) {
      unsigned bits[4];
#pragma unroll
      for (unsigned e = 0; e < 4; e++) {
        const float part = __int_as_float(logits[2 * j + e / 2][2 * r + e % 2]);
        // The bits of a float from 2^23 on count its units; rounding down is what cuts the fraction off.
        const float whole = __fadd_rd(__fadd_rn(__fmul_rn(part, shares[r]), 0.5f), 8388608.0f);
        bits[e] = whole > 8388863.0f ? 0x4b0000ffu : __float_as_uint(whole);
      }
      weights[j][r] = __byte_perm(__byte_perm(bits[0], bits[1], 0x0040), __byte_perm(bits[2], bits[3], 0x0040), 0x5410);
      weight_sums[r] = __dp4a(weights[j][r], (unsigned)ONES, (unsigned)weight_sums[r]);
    }
    weights[BLOCKS][r] = 0;
    weight_sums[r] = OF_V * of_neighbours(weight_sums[r]);
  }

  int sums[2 * COLUMNS][4] = {};
#pragma unroll
  for (unsigned i = 0; i < PAIRS; i++) {
    const unsigned second = 2 * i + 1;
    const unsigned left[4] = {weights[2 * i][0], weights[2 * i][1], weights[second][0], weights[second][1]};
#pragma unroll
    for (unsigned n = 0; n < 2 * COLUMNS; n++) {
      const unsigned* const at = values + (n * 8 + group) * VALUE_PITCH + i * 8 + turn;
      multiply_unsigned(sums[n], left, at[0], at[4]);
    }
  }
#pragma unroll
  for (unsigned r = 0; r < 2; r++)
#pragma unroll
    for (unsigned j = 0; j < COLUMNS; j++) {
      const unsigned row = row0 + r * 8, quad = j * 4 + turn;
      const int* const a = sums[2 * j] + 2 * r;
      const int* const b = sums[2 * j + 1] + 2 * r;
      const int less = weight_sums[r];
      if (row < QUERIES && quad < QUADS)
        STORE(position * QUERIES + row, quad, (int4{a[0] - less, a[1] - less, b[0] - less, b[1] - less}));
    }
}
