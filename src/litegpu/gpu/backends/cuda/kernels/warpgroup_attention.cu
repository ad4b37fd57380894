// softmax(scale * q k^T + beta * mask) v for each of the leading positions, in half precision with float sums, by products of
// four warps together (compute capability 9.0). A workgroup is TEAMS times four warps, which have 64 queries each; all go
// through the same keys and values in steps of STEP, which all threads copy, to STAGES places that barriers tell of: a
// team is up to one step ahead of the others. The logits stay in registers, where they become the left factor of the
// product with the values. Where there are fewer workgroups than tiles of queries each has several one after the other:
// their steps follow as if they were of one, so that what the next tile needs comes under the work of this one.
//
// Constants from the host: TEAMS STEP STAGES RESIDENT (workgroups on a multiprocessor); DEPTH COLUMNS (multiples of 16);
// HEADS QUERIES KEYS QUADS (of the output); TILES (along the queries); POSITIONS (of tiles); GROUPS (workgroups: as many as
// there are tiles of all positions, or fewer); SCALE BETA (times log2 e); POSITIVE (the scale is); for Q_, K_ and V_:
// _WIDTH (that is copied of a row), _OFFSET _PITCH_BATCH _PITCH_HEAD _PITCH_ROW; K_SHARED V_SHARED (heads of queries that
// have one of keys, or values). MASK: 0; GIVEN, with MASK_PERIOD (of the batch) MASK_TYPE MASK_LOAD(value) MASK_OFFSET
// MASK_PITCH_*; or PACKED: halves in the order in which threads need them (_packed() of the host), times BETA, minus
// infinity for keys that there are not. LIMITED: only so many steps as `ends` has for each tile have a key that counts.
// CAUSAL: queries see the keys up to their own number and DIAGONAL (of all positions the longest workgroups come first).
#define GIVEN 1
#define PACKED 2
#define BY_KEYS (MASK == GIVEN && MASK_PITCH_ROW == 0)
constexpr unsigned THREADS = 128 * TEAMS, ROWS = 64 * TEAMS, STEPS = (KEYS + STEP - 1) / STEP;
// Tiles in shared memory: rows of at most 64 numbers, wider ones as slabs one behind the other.
INLINE constexpr unsigned row_bytes(unsigned width) { return width <= 16 ? 32 : width <= 32 ? 64 : 128; }
INLINE constexpr unsigned slab_bytes(unsigned rows, unsigned width) { return rows * row_bytes(width); }
// Each begins at a multiple of 1024 bytes: what lies where in a row goes by the address.
INLINE constexpr unsigned tile_bytes(unsigned rows, unsigned width) {
  return (slab_bytes(rows, width) * ((width + 63) / 64) + 1023) / 1024 * 1024;
}
constexpr bool PERSISTENT = GROUPS < TILES * POSITIONS;
constexpr unsigned LATE = STAGES > 2 ? 2 : 1;  // a place is filled again so many steps after it was read
constexpr unsigned Q_BYTES = tile_bytes(ROWS, DEPTH), K_BYTES = tile_bytes(STEP, DEPTH), V_BYTES = tile_bytes(STEP, COLUMNS);
constexpr unsigned K_AT = (PERSISTENT ? 2 : 1) * Q_BYTES, V_AT = K_AT + STAGES * K_BYTES;
constexpr unsigned K_THERE = V_AT + STAGES * V_BYTES, V_THERE = K_THERE + 8 * STAGES, FREE = V_THERE + 8 * STAGES;  // barriers
static_assert(FREE + 8 * STAGES == SHARED_BYTES, "the host reckons otherwise");
static_assert(PERSISTENT || STAGES >= STEPS || STAGES >= 3, "places are filled again a step late");
static_assert(!PERSISTENT || (STAGES >= 2 && STAGES <= STEPS + 1 && !CAUSAL && !LIMITED), "there are two places for queries");

// Where 16 bytes of a row lie: as matrix() expects them.
template <unsigned rows, unsigned width> INLINE unsigned place(unsigned row, unsigned chunk) {
  constexpr unsigned across = row_bytes(width), chunks = across / 16;
  const unsigned turn = chunks == 8 ? row % 8 : row / (8 / chunks) % chunks;
  return chunk / 8 * slab_bytes(rows, width) + row * across + (chunk % 8 ^ turn) * 16;
}

// The rows from number `first` on, a multiple of `rows`, of which there are `count`, go to the tile at `at`; what is outside
// becomes zero, and is not read. Where a thread's chunks are one below the other, whole groups of eight rows apart, both
// addresses of each are those of the first and a constant.
template <unsigned rows, unsigned width, unsigned real_width, unsigned pitch, unsigned count>
INLINE void bring(const unsigned short* x, unsigned first, unsigned at) {
  constexpr unsigned chunks = width / 8, down = THREADS % (8 * chunks) == 0 ? THREADS / chunks : 0;
  constexpr bool all_rows = count % rows == 0, whole = real_width == width;
  if constexpr (down > 0) {
    const unsigned row = threadIdx.x / chunks, chunk = threadIdx.x % chunks;
    const unsigned short* const from = x + (first + row) * pitch + chunk * 8;
    const unsigned to = at + place<rows, width>(row, chunk);
#pragma unroll
    for (unsigned below = 0; below < rows; below += down) {
      if (below + down > rows && row + below >= rows) continue;
      const bool real = (all_rows || first + row + below < count) && (whole || chunk * 8 < real_width);
      copy16(to + below * row_bytes(width), from + below * pitch, real);
    }
  } else {
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < rows * chunks; i += THREADS) {
      const unsigned row = i / chunks, chunk = i % chunks;
      const bool real = (all_rows || first + row < count) && (whole || chunk * 8 < real_width);
      copy16(at + place<rows, width>(row, chunk), x + (real ? (first + row) * pitch + chunk * 8 : 0), real);
    }
  }
}

#if CAUSAL
// Those that queries in front of number `row` see a key of.
INLINE unsigned steps_until(unsigned row) {
  const unsigned end = (row < QUERIES ? row : QUERIES) + DIAGONAL;
  return (end + STEP - 1) / STEP;
}
#endif

// A tile of queries, and of which position.
struct Item {
  unsigned tile, position, batch, head;
};
INLINE Item item_of(unsigned turn) {
  const unsigned number = PERSISTENT ? in_turn(turn, TILES * POSITIONS) : turn;
#if CAUSAL
  const unsigned tile = TILES - 1 - number / POSITIONS, position = number % POSITIONS;
#elif LIMITED  // the longest first
  const unsigned tile = TILES - 1 - number % TILES, position = number / TILES;
#else
  const unsigned tile = number % TILES, position = number / TILES;
#endif
  return Item{tile, position, position / HEADS, position % HEADS};
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
NAME(const unsigned short* q, const unsigned short* k, const unsigned short* v MASK_PARAMETER EPILOGUE_BUFFERS) {
  const unsigned team = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  if (threadIdx.x == 0) {
    for (unsigned s = 0; s < STAGES; s++) {
      barrier_init(K_THERE + 8 * s, THREADS);
      barrier_init(V_THERE + 8 * s, THREADS);
      barrier_init(FREE + 8 * s, 4 * TEAMS);
    }
    barriers_ready();
  }
  __syncthreads();
  const unsigned items = (TILES * POSITIONS - blockIdx.x + GROUPS - 1) / GROUPS;  // tiles of this workgroup
  const Item only = item_of(blockIdx.x);
#if CAUSAL
  const unsigned all_steps = steps_until((only.tile + 1) * ROWS);
#elif LIMITED
  const unsigned all_steps = ends[only.tile];
#else
  const unsigned all_steps = items * STEPS;
#endif
#if MASK == PACKED
  uint4 packed[STEP / 16];  // of the step that comes next
  auto read_mask = [&](const Item& item, unsigned step) {
    const unsigned lead = item.batch % MASK_PERIOD * MASK_PITCH_BATCH + item.head * MASK_PITCH_HEAD;
    const unsigned row0 = item.tile * ROWS + team * 64 + warp * 16;
    if (item.tile * ROWS + team * 64 < QUERIES)
#pragma unroll
      for (unsigned n = 0; n < STEP / 16; n++)
        packed[n] = mask[((lead + row0 / 16) * STEPS + step) * (STEP * 2) + n * 32 + lane];
  };
  read_mask(only, 0);  // it is constant: before the kernel in front of this one ends
#elif BY_KEYS
  decltype(*mask + 0) by_keys[STEP / 8][2];  // of the step that comes next, the same for all rows
  auto read_mask = [&](const Item& item, unsigned step) {
    const unsigned from = item.batch % MASK_PERIOD * MASK_PITCH_BATCH + item.head * MASK_PITCH_HEAD + MASK_OFFSET;
#pragma unroll
    for (unsigned n = 0; n < STEP / 8; n++)
#pragma unroll
      for (unsigned e = 0; e < 2; e++) {
        const unsigned key = step * STEP + n * 8 + lane % 4 * 2 + e;
        by_keys[n][e] = mask[from + (KEYS % STEP == 0 || key < KEYS ? key : 0) * MASK_PITCH_COLUMN];
      }
  };
#endif
  wait_for_predecessors();
  launch_dependents();

  auto bring_step = [&](unsigned step) {  // of all
    const unsigned slot = step % STAGES, number = PERSISTENT ? step / STEPS : 0, within = PERSISTENT ? step % STEPS : step;
    const Item item = item_of(blockIdx.x + number * GROUPS);
    if (within == 0)
      bring<ROWS, DEPTH, Q_WIDTH, Q_PITCH_ROW, QUERIES>(
          q + item.batch * Q_PITCH_BATCH + item.head * Q_PITCH_HEAD + Q_OFFSET, item.tile * ROWS, number % 2 * Q_BYTES);
    const unsigned short* const keys = k + item.batch * K_PITCH_BATCH + item.head / K_SHARED * K_PITCH_HEAD + K_OFFSET;
    bring<STEP, DEPTH, K_WIDTH, K_PITCH_ROW, KEYS>(keys, within * STEP, K_AT + slot * K_BYTES);
    barrier_arrive_copied(K_THERE + 8 * slot);
    const unsigned short* const values = v + item.batch * V_PITCH_BATCH + item.head / V_SHARED * V_PITCH_HEAD + V_OFFSET;
    bring<STEP, COLUMNS, V_WIDTH, V_PITCH_ROW, KEYS>(values, within * STEP, V_AT + slot * V_BYTES);
    barrier_arrive_copied(V_THERE + 8 * slot);
  };
#pragma unroll
  for (unsigned step = 0; step < (PERSISTENT || STAGES < STEPS ? STAGES : STEPS); step++)
    if (step < all_steps) bring_step(step);
#if BY_KEYS
  read_mask(only, 0);
#endif

#pragma unroll 1
  for (unsigned number = 0; number < (PERSISTENT ? items : 1); number++) {
    const unsigned item_number = blockIdx.x + number * GROUPS;
    const Item item = item_of(item_number);
    const unsigned tile = item.tile, batch = item.batch, head = item.head, position = item.position;
    const unsigned team_row = tile * ROWS + team * 64, row0 = team_row + warp * 16;  // of this team, and of this warp
    const bool live = team_row < QUERIES;  // in the last workgroup there may be teams without a query
    const unsigned steps = PERSISTENT ? STEPS : all_steps;
#if CAUSAL
    const unsigned own_steps = live ? steps_until(team_row + 64) : 0;
#else
    const unsigned own_steps = live ? steps : 0;
#endif
    float sums[COLUMNS / 8][4] = {}, largest[2] = {NOTHING, NOTHING}, total[2] = {0.0f, 0.0f};
#pragma unroll 1
    for (unsigned step = 0; step < steps; step++) {
      const unsigned of_all = number * STEPS + step, slot = of_all % STAGES, parity = of_all / STAGES % 2;
      if ((PERSISTENT || STEPS > STAGES) && of_all >= LATE && of_all - LATE + STAGES < all_steps) {
        barrier_wait(FREE + 8 * ((of_all - LATE) % STAGES), (of_all - LATE) / STAGES % 2);
        bring_step(of_all - LATE + STAGES);
      }
      barrier_wait(K_THERE + 8 * slot, parity);  // the queries have come before the first keys
      if (step < own_steps) {
        announce_copies();
        // Anew in each step: of what stays in registers over the loop ptxas 13.0 gives some away to the weights.
        unsigned query[DEPTH / 16][4];
#pragma unroll
        for (unsigned i = 0; i < DEPTH / 16; i++)
          load_matrices(query[i], number % 2 * Q_BYTES + place<ROWS, DEPTH>(team * 64 + warp * 16 + lane % 16, i * 2 + lane / 16));
        float logits[STEP / 8][4];
        begin_products();
#pragma unroll
        for (unsigned i = 0; i < DEPTH / 16; i++)
          multiply_kept(logits, query[i],
                        matrix<row_bytes(DEPTH)>(K_AT + slot * K_BYTES + i / 4 * slab_bytes(STEP, DEPTH) + i % 4 * 32), i > 0);
        commit_products();
#if BY_KEYS
        float more[STEP / 8][2];
#pragma unroll
        for (unsigned n = 0; n < STEP / 8; n++)
#pragma unroll
          for (unsigned e = 0; e < 2; e++) more[n][e] = BETA * MASK_LOAD(by_keys[n][e]);
#endif
        products_wait<0>();
        if (row0 < QUERIES) {
#if MASK || !POSITIVE
          constexpr float scale = 1.0f;
#pragma unroll
          for (unsigned n = 0; n < STEP / 8; n++)
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
              const unsigned key = step * STEP + n * 8 + lane % 4 * 2 + e % 2, row = row0 + lane / 4 + e / 2 * 8;
              if (row < QUERIES && key < KEYS)
                logit += BETA * MASK_LOAD(mask[batch % MASK_PERIOD * MASK_PITCH_BATCH + head * MASK_PITCH_HEAD + row * MASK_PITCH_ROW +
                                               key * MASK_PITCH_COLUMN + MASK_OFFSET]);
#endif
              logits[n][e] = logit;
            }
#else
          constexpr float scale = SCALE;
#endif
#if CAUSAL
          if ((step + 1) * STEP > row0 + DIAGONAL + 1) {
#pragma unroll
            for (unsigned n = 0; n < STEP / 8; n++)
#pragma unroll
              for (unsigned e = 0; e < 4; e++)
                if (step * STEP + n * 8 + lane % 4 * 2 + e % 2 > row0 + lane / 4 + e / 2 * 8 + DIAGONAL) logits[n][e] = NOTHING;
          }
#endif
          if (!CAUSAL && MASK != PACKED && KEYS % STEP && step == STEPS - 1) {
#pragma unroll
            for (unsigned n = 0; n < STEP / 8; n++)
#pragma unroll
              for (unsigned e = 0; e < 4; e++)
                if ((STEPS - 1) * STEP + n * 8 + lane % 4 * 2 + e % 2 >= KEYS) logits[n][e] = NOTHING;
          }
#if MASK == PACKED || BY_KEYS
          if (step + 1 < steps)
            read_mask(item, step + 1);
          else if (number + 1 < items)
            read_mask(item_of(item_number + GROUPS), 0);
#endif
#pragma unroll
          for (unsigned r = 0; r < 2; r++) {
            float most = fmaxf(logits[0][2 * r], logits[0][2 * r + 1]);
#pragma unroll
            for (unsigned n = 1; n < STEP / 8; n++) most = fmaxf(most, fmaxf(logits[n][2 * r], logits[n][2 * r + 1]));
            most = fmaxf(largest[r], of_neighbours(most, false) * scale);
            const float base = most == NOTHING ? 0.0f : most;  // where nothing but -infinity came so far there is no difference
            const float factor = rough_exp2(largest[r] - base);
            largest[r] = most;
            float all = 0.0f;
#pragma unroll
            for (unsigned n = 0; n < STEP / 8; n++)
#pragma unroll
              for (unsigned e = 2 * r; e < 2 * r + 2; e++) {
                logits[n][e] = rough_exp2(fmaf(logits[n][e], scale, -base));
                all += logits[n][e];
              }
            total[r] = fmaf(total[r], factor, all);
            if (STEPS > 1) {
#pragma unroll
              for (unsigned n = 0; n < COLUMNS / 8; n++) sums[n][2 * r] *= factor, sums[n][2 * r + 1] *= factor;
            }
          }
        }
        unsigned weights[STEP / 16][4];
#pragma unroll
        for (unsigned i = 0; i < STEP / 16; i++) {
          const float(&a)[4] = logits[2 * i], (&b)[4] = logits[2 * i + 1];
          weights[i][0] = pack_half2(a[0], a[1]), weights[i][1] = pack_half2(a[2], a[3]);
          weights[i][2] = pack_half2(b[0], b[1]), weights[i][3] = pack_half2(b[2], b[3]);
        }
        barrier_wait(V_THERE + 8 * slot, parity);
        announce_copies();
        begin_products();
#pragma unroll
        for (unsigned i = 0; i < STEP / 16; i++)
          multiply_kept_turned(sums, weights[i],
                               turned_matrix<row_bytes(COLUMNS)>(V_AT + slot * V_BYTES + i * (16 * row_bytes(COLUMNS)),
                                                                 slab_bytes(STEP, COLUMNS)), 1);
        end_products();
      }
      if ((PERSISTENT || STEPS > STAGES) && lane == 0) barrier_arrive(FREE + 8 * slot);
    }
    if (row0 >= QUERIES) continue;

#pragma unroll
    for (unsigned r = 0; r < 2; r++) {
      const unsigned row = row0 + lane / 4 + r * 8;
      const float inverse = 1.0f / of_neighbours(total[r], true);
#pragma unroll
      for (unsigned n = 0; n < COLUMNS / 16; n++) {
        const float4 v = exchanged_quad(sums[2 * n], sums[2 * n + 1], r);
        const unsigned quad = n * 4 + exchanged_number();
        if (row < QUERIES && quad < QUADS)
          STORE(position * QUERIES + row, quad, (float4{v.x * inverse, v.y * inverse, v.z * inverse, v.w * inverse}));
      }
    }
  }
}
