// 1x1 convolution as a matrix product by workgroups that stay, in which two warpgroups take turns (compute capability 9.0):
// while one finishes and stores the sums of its tile right from registers (runs.cu), the other one multiplies for the
// next tile. Rows are pixels, columns output channels. A tile is BM x BN, in STEPS steps of BK along the depth; one thread
// fills a ring of STAGES pairs of what is multiplied, tile after tile, by bulk copies. CLUSTER workgroups have the same columns
// of different rows: each brings a part of the weights from the second cache, and all get it.
//
// Constants from the host: those of elements.cu and runs.cu; BM BN BK STAGES RING_BYTES CLUSTER; REGISTERS_COPY REGISTERS_MULTIPLY (of a
// thread); TILES_N (of columns) STEPS (along the depth); UNITS (tiles of CLUSTER workgroups), GROUPS (clusters). The weights
// are packed as in specialized.cu; the map's box is BM rows of BK elements.
constexpr unsigned ROW_BYTES = BK * BYTES;
constexpr unsigned A_BYTES = BM * ROW_BYTES, B_BYTES = BN * ROW_BYTES, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr unsigned FULL = STAGES * STAGE_BYTES, EMPTY = FULL + 8 * STAGES;  // barriers
constexpr unsigned TEAMS = 2, MULTIPLYING = 128 * TEAMS, THREADS = MULTIPLYING + 128, ROWS = BM / 64;
constexpr unsigned SHARE = B_BYTES / CLUSTER;  // of the weights of a step
static_assert(BM % 64 == 0 && SHARE % 16 == 0 && ROW_BYTES == 128, "tile");
#ifndef TOLD
#define TOLD_BUFFERS
#endif
static_assert(EMPTY + 8 * STAGES == RING_BYTES, "the host reckons otherwise");

INLINE unsigned column_of(unsigned unit) { return in_turn(unit, UNITS) % TILES_N; }
INLINE unsigned pixel_of(unsigned unit, unsigned part) { return (in_turn(unit, UNITS) / TILES_N * CLUSTER + part) * BM; }

// By one thread.
INLINE void copy_tiles(const TensorMap* rows, const Element* w, unsigned unit, unsigned part) {
  auto copy_weights = [&](unsigned step, unsigned slot) {
    const char* const tile = (const char*)(w + (size_t)(column_of(unit) * STEPS + step) * (BN * BK));
    barrier_expect(FULL + 8 * slot, STAGE_BYTES);
    copy_for_all<CLUSTER>(FULL + 8 * slot, slot * STAGE_BYTES + A_BYTES + part * SHARE, tile + part * SHARE, SHARE);
  };
  // The weights are nobody's output: they may come while the kernel before this one still runs.
  constexpr unsigned AHEAD = STAGES < STEPS ? STAGES : STEPS;
  for (unsigned s = 0; s < AHEAD; s++) copy_weights(s, s);
  fetch_map(rows);
  wait_for_predecessors();
  launch_dependents();
  unsigned slot = 0, parity = 1, filled = 0;
  for (; unit < UNITS; unit += GROUPS)
    for (unsigned step = 0; step < STEPS; step++, filled++) {
      if (filled >= STAGES) barrier_wait(EMPTY + 8 * slot, parity);
      if (filled >= AHEAD) copy_weights(step, slot);
      copy_rows(FULL + 8 * slot, slot * STAGE_BYTES, rows, step * BK, pixel_of(unit, part));
      if (++slot == STAGES) slot = 0, parity ^= 1;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if CLUSTER > 1
__cluster_dims__(CLUSTER, 1, 1)
#endif
NAME(const Element* x, const Element* __restrict__ w MORE_BUFFERS TOLD_BUFFERS EPILOGUE_BUFFERS, const __grid_constant__ TensorMap rows) {
  const unsigned part = CLUSTER > 1 ? cluster_part() : 0, first = blockIdx.x / CLUSTER;
  if (threadIdx.x == 0) {
    for (unsigned s = 0; s < STAGES; s++) {
      barrier_init(FULL + 8 * s, 1);
      barrier_init(EMPTY + 8 * s, 4 * CLUSTER);
    }
    barriers_ready();
  }
#if CLUSTER > 1
  cluster_sync();
#else
  __syncthreads();
#endif
  const unsigned team = threadIdx.x / 128;
  if (team == TEAMS) {
    registers_drop<REGISTERS_COPY>();
    if (threadIdx.x == MULTIPLYING) copy_tiles(&rows, w, first, part);
    __syncwarp();
  } else {
    registers_take<REGISTERS_MULTIPLY>();
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    wait_for_predecessors();  // what the epilogue reads, and where results go
    auto release = [&](unsigned slot) {
      if (lane < CLUSTER) cluster_barrier_arrive<CLUSTER>(EMPTY + 8 * slot, lane);
    };
    const Places places PLACES;
    unsigned used = team * STEPS;  // tiles of the ring
    for (unsigned unit = first + team * GROUPS; unit < UNITS; unit += TEAMS * GROUPS, used += (TEAMS - 1) * STEPS) {
      Sum sums[ROWS][BN / 8][4] = {};
      const unsigned column = column_of(unit), pixel0 = pixel_of(unit, part);
#pragma unroll
      for (unsigned m = 0; m < ROWS; m++) begin_sums(sums[m], CORRECTIONS, lane, column * (BN / 4));
#ifdef TOLD
      read_moments(TOLD_ROWS, pixel0, team, threadIdx.x % 128);
#endif
      // The other one has seen all that comes before in the ring, whose phases are known by their parity alone.
      if (unit != first) team_sync(1 + team, MULTIPLYING);
      unsigned slot = used % STAGES, parity = used / STAGES % 2, before = 0;
#pragma unroll 1
      for (unsigned step = 0; step < STEPS; step++, used++) {
        barrier_wait(FULL + 8 * slot, parity);
        const unsigned a = slot * STAGE_BYTES, b = a + A_BYTES;
        begin_products();
#pragma unroll
        for (unsigned m = 0; m < ROWS; m++)
#pragma unroll
          for (unsigned i = 0; i < ROW_BYTES / 32; i++)
            MULTIPLY(sums[m], matrix<ROW_BYTES>(a + m * (64 * ROW_BYTES) + i * 32), matrix<ROW_BYTES>(b + i * 32));
        commit_products();
        products_wait<1>();  // those of the step before are done: its tiles may be replaced
        if (step > 0) release(before);
        before = slot;
        if (++slot == STAGES) slot = 0, parity ^= 1;
      }
      if (unit + GROUPS < UNITS) team_arrive(1 + (team ^ 1), MULTIPLYING);
#ifdef FETCHED_AT
#pragma unroll
      for (unsigned i = 0; i < ROWS * 2; i++) fetch_run(places, lane, column * (BN / 4), pixel0 + warp * 16, 0, i);
      copies_commit();
#endif
      products_wait<0>();
      release(before);
#ifdef TOLD
      ToldRows<ROWS * 2> rows(team * BM + warp * 16 + lane / 4);
      store_one_by_one<1>(places, CORRECTIONS, sums, lane, column * (BN / 4), pixel0 + warp * 16, rows);
      rows.tell(TELLS_ROWS, lane, pixel0 + warp * 16 + lane / 4, column);
#else
      store_one_by_one<1>(places, CORRECTIONS, sums, lane, column * (BN / 4), pixel0 + warp * 16);
#endif
    }
  }
#if CLUSTER > 1
  cluster_sync();  // nobody goes whose barriers others tell of tiles
#endif
}
