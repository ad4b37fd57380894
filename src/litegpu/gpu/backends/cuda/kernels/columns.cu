// 1x1 convolutions with many columns (compute capability 9.0): rows, of all their depth, stay in shared memory while the
// weights of one block of columns after the other pass by. A workgroup goes through units, a block of BM rows times BN
// columns each, those of the same rows next to each other; each of its warpgroups has 64 of the rows, and finishes and
// stores its sums right from registers (runs.cu). One warp more brings the weights by bulk copies to a ring of STAGES
// tiles, COPYING threads the rows: those of the next block take the places of these as soon as nobody needs them. With
// row_norm.cu rows are normalised, of which the sums are taken once for all columns.
//
// Constants from the host: those of rows.cu and runs.cu; STAGES TILES_N (blocks of columns) STEPS (along the depth); UNITS,
// GROUPS (workgroups that share them). The weights are packed as in specialized.cu.
constexpr unsigned TEAMS = BM / 64, MULTIPLYING = 128 * TEAMS, THREADS = MULTIPLYING + 32 + COPYING;
constexpr unsigned ROWS_BYTES = BM * ROW_BYTES, TILE_BYTES = BN * ROW_BYTES, RING = STEPS * ROWS_BYTES;  // of a step
constexpr unsigned FULL = RING + STAGES * TILE_BYTES, EMPTY = FULL + 8 * STAGES;                        // barriers: of tiles
constexpr unsigned THERE = EMPTY + 8 * STAGES, GONE = THERE + 8 * STEPS;                                // and of rows
static_assert(GONE + 8 * STEPS == SHARED_BYTES && BM % 64 == 0, "the host reckons otherwise");

INLINE void copy_weights(const Element* w, unsigned first, unsigned end) {
  unsigned slot = 0, parity = 1;
  for (unsigned unit = first; unit < end; unit++)
    for (unsigned step = 0; step < STEPS; step++) {
      if ((unit - first) * STEPS + step >= STAGES) barrier_wait(EMPTY + 8 * slot, parity);
      const Element* const tile = w + (size_t)(unit % TILES_N * STEPS + step) * (BN * BK);
      barrier_copy(FULL + 8 * slot, RING + slot * TILE_BYTES, tile, TILE_BYTES);
      if (++slot == STAGES) slot = 0, parity ^= 1;
    }
}

INLINE void copy_rows(const Element* x, unsigned thread, unsigned first, unsigned end) {
  unsigned parity = 1;  // of the rows before, once there are some
  for (unsigned block = first; block <= end; block++, parity ^= 1) {
    const Window window(thread, in_turn(block, UNITS / TILES_N) * BM);
    for (unsigned step = 0; step < STEPS; step++) {
      if (block > first) barrier_wait(GONE + 8 * step, parity);
      window.copy(x, x, step, step * ROWS_BYTES);
      barrier_arrive_copied(THERE + 8 * step);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const Element* x, const Element* __restrict__ w EPILOGUE_BUFFERS) {
  const unsigned first = blockIdx.x * UNITS / GROUPS, end = (blockIdx.x + 1) * UNITS / GROUPS;
  if (threadIdx.x == 0) {
    for (unsigned s = 0; s < STAGES; s++) {
      barrier_init(FULL + 8 * s, 1);
      barrier_init(EMPTY + 8 * s, MULTIPLYING);
    }
    for (unsigned s = 0; s < STEPS; s++) {
      barrier_init(THERE + 8 * s, COPYING);
      barrier_init(GONE + 8 * s, MULTIPLYING);
    }
    barriers_ready();
  }
  __syncthreads();
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  if (threadIdx.x >= MULTIPLYING) {
    // The weights are nobody's output: they may come while the kernel before this one still runs.
    if (threadIdx.x == MULTIPLYING) copy_weights(w, first, end);
    if (threadIdx.x < MULTIPLYING + 32) return;
    wait_for_predecessors();
    launch_dependents();
    copy_rows(x, threadIdx.x - MULTIPLYING - 32, first / TILES_N, (end - 1) / TILES_N);
    return;
  }
  const unsigned own = threadIdx.x / 128 * 64;  // rows
  const Places places PLACES;
  wait_for_predecessors();  // what the epilogue reads, and where results go
#ifdef ROW_NORM
  RowMoments moments;
#endif
  unsigned slot = 0, parity = 0;
  for (unsigned unit = first; unit < end; unit++) {
    const unsigned block = unit / TILES_N;
    const bool fresh = unit == first || unit % TILES_N == 0, last = (unit + 1) % TILES_N == 0;  // of its rows
    float sums[1][BN / 8][4] = {};
    unsigned before = 0;  // tile
#ifdef ROW_NORM
    if (fresh) moments = RowMoments();
#endif
#pragma unroll 1
    for (unsigned step = 0; step < STEPS; step++) {
      const unsigned at = step * ROWS_BYTES + own * ROW_BYTES;
      if (fresh) barrier_wait(THERE + 8 * step, (block - first / TILES_N) % 2);
      barrier_wait(FULL + 8 * slot, parity);
      announce_copies();
      begin_products();
#pragma unroll
      for (unsigned i = 0; i < ROW_BYTES / 32; i++)
        multiply(sums[0], matrix<ROW_BYTES>(at + i * 32), matrix<ROW_BYTES>(RING + slot * TILE_BYTES + i * 32));
      commit_products();
#ifdef ROW_NORM
      if (fresh)
        moments.read<BK / 16>([&](unsigned chunk) {
          return step * ROWS_BYTES + place(own + warp * 16 + lane % 16, chunk + lane / 16);
        });
#endif
      products_wait<1>();  // those of the step before are done: its tiles may be replaced
#ifdef ROW_NORM
      __syncwarp();
#endif
      if (step > 0) {  // each lane for itself, which has read of the rows
        barrier_arrive(EMPTY + 8 * before);
        if (last) barrier_arrive(GONE + 8 * (step - 1));
      }
      before = slot;
      if (++slot == STAGES) slot = 0, parity ^= 1;
    }
    products_wait<0>();
#ifdef ROW_NORM
    __syncwarp();
#endif
    barrier_arrive(EMPTY + 8 * before);
    if (last) barrier_arrive(GONE + 8 * (STEPS - 1));
#ifdef ROW_NORM
    normalise_rows(sums[0], moments);
#endif
    store_one_by_one<1>(places, nullptr, sums, lane, unit % TILES_N * (BN / 4), in_turn(block, UNITS / TILES_N) * BM + own + warp * 16);
  }
}
