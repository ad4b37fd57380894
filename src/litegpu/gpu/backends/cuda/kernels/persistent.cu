// Convolution as a matrix product by workgroups that stay (compute capability 9.0): for shallow layers, whose time goes
// into moving pixels and storing results. Rows are output pixels, columns output channels, the depth is the taps of the
// window times the input channels. A workgroup keeps the weights of its BN columns in shared memory and goes through
// blocks of BM rows: TEAMS warpgroups take turns, so that one stores its sums while another multiplies. The last COPYING
// threads fill a ring of STAGES tiles for each of them with the rows' inputs, ahead of what is multiplied. With row_norm.cu
// rows are normalised.
//
// Constants from the host: those of rows.cu; STAGES TEAMS RESIDENT (workgroups on a multiprocessor); REGISTERS_COPY
// REGISTERS_MULTIPLY (of a thread; where a whole warpgroup copies); TILES_N (of columns); STEPS (along the depth); SPAN (columns
// of sums in shared memory at a time; 0: they are stored as runs.cu does); BLOCKS (of rows), LANES (workgroups that share those of a column). The weights are packed
// as in specialized.cu.
constexpr unsigned ROWS = BM / 64, BLOCK_BYTES = BM * ROW_BYTES, WEIGHT_BYTES = STEPS * BN * ROW_BYTES;
constexpr unsigned PITCH = SPAN + 8, WARP_SUMS = SPAN ? 16 * PITCH * 4 : 0;
constexpr unsigned RING = WEIGHT_BYTES, SUMS = RING + TEAMS * STAGES * BLOCK_BYTES, FULL = SUMS + 4 * TEAMS * WARP_SUMS;
constexpr unsigned EMPTY = FULL + 8 * TEAMS * STAGES, READY = EMPTY + 8 * TEAMS * STAGES;  // barriers
constexpr unsigned MULTIPLYING = 128 * TEAMS, THREADS = MULTIPLYING + COPYING;
static_assert(READY + 16 == SHARED_BYTES && (!SPAN || BN % SPAN == 0), "the host reckons otherwise");

INLINE void copy_tiles(const Element* x, const Element* weights, const Element* outside, unsigned first) {
  const unsigned thread = threadIdx.x - MULTIPLYING;
  // The weights are nobody's output: they may come while the kernel before this one still runs.
  if (thread == 0) barrier_copy(READY, 0, weights, WEIGHT_BYTES);
  wait_for_predecessors();
  launch_dependents();
  for (unsigned block = first, turn = 0; block < BLOCKS; block += LANES, turn++) {
    const Window window(thread, in_turn(block, BLOCKS) * BM);
    for (unsigned step = 0; step < STEPS; step++) {
      const unsigned filled = turn / TEAMS * STEPS + step, slot = turn % TEAMS * STAGES + filled % STAGES;
      if (filled >= STAGES) barrier_wait(EMPTY + 8 * slot, filled / STAGES % 2 ^ 1);
      window.copy(x, outside, step, RING + slot * BLOCK_BYTES);
      barrier_arrive_copied(FULL + 8 * slot);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
NAME(const Element* x, const Element* __restrict__ w MORE_BUFFERS EPILOGUE_BUFFERS) {
  const unsigned column = blockIdx.x % TILES_N, first = blockIdx.x / TILES_N;
  if (threadIdx.x == 0) {
    for (unsigned s = 0; s < TEAMS * STAGES; s++) {
      barrier_init(FULL + 8 * s, COPYING);
      barrier_init(EMPTY + 8 * s, 4);
    }
    barrier_init(READY, 1);
    barriers_ready();
  }
  __syncthreads();
  const unsigned team = threadIdx.x / 128;
  if (team == TEAMS) {
    if (COPYING == 128) registers_drop<REGISTERS_COPY>();
    copy_tiles(x, w + (size_t)column * STEPS * (BN * BK), MORE, first);
    return;
  }
  if (COPYING == 128) registers_take<REGISTERS_MULTIPLY>();
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  Sum* const totals = (Sum*)(shared + SUMS + warp * WARP_SUMS);
  wait_for_predecessors();  // what the epilogue reads
  barrier_wait(READY, 0);
#ifdef RUN
  const Places places PLACES;
#if BN <= 128
  Channels own;  // as long as there are registers for it
  load_channels(own, places, CORRECTIONS, lane, column * (BN / 4));
#endif
#endif
  unsigned used = 0;  // tiles of the team's ring
  for (unsigned block = first + team * LANES; block < BLOCKS; block += TEAMS * LANES) {
    const unsigned row0 = in_turn(block, BLOCKS) * BM;
    Sum sums[ROWS][BN / 8][4] = {};
#if defined(RUN) && BN > 128
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++) begin_sums(sums[m], CORRECTIONS, lane, column * (BN / 4));
#elif defined(RUN)
    Row rows[ROWS][2][RUNS];
    unsigned pixels[ROWS][2];
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++) {
      pixels[m][0] = row0 + m * 64 + warp % 4 * 16 + lane / 4, pixels[m][1] = pixels[m][0] + 8;
      load_rows(rows[m], places, lane, column * (BN / 4), pixels[m]);
      begin_sums(sums[m], own);
    }
#endif
#ifdef ROW_NORM
    RowMoments moments[ROWS];
#endif
    for (unsigned step = 0; step < STEPS; step++, used++) {
      const unsigned slot = team * STAGES + used % STAGES;
      barrier_wait(FULL + 8 * slot, used / STAGES % 2);
      announce_copies();
      begin_products();
#pragma unroll
      for (unsigned m = 0; m < ROWS; m++)
#pragma unroll
        for (unsigned i = 0; i < ROW_BYTES / 32; i++)
          MULTIPLY(sums[m], matrix<ROW_BYTES>(RING + slot * BLOCK_BYTES + m * (64 * ROW_BYTES) + i * 32),
                   matrix<ROW_BYTES>(step * (BN * ROW_BYTES) + i * 32));
      commit_products();
#ifdef ROW_NORM
#pragma unroll
      for (unsigned m = 0; m < ROWS; m++)
        moments[m].read<BK / 16>([&](unsigned chunk) {
          return RING + slot * BLOCK_BYTES + place(m * 64 + warp % 4 * 16 + lane % 16, chunk + lane / 16);
        });
#endif
      products_wait<0>();
      if (lane == 0) barrier_arrive(EMPTY + 8 * slot);
    }
#ifdef ROW_NORM
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++) normalise_rows(sums[m], moments[m]);
#endif
#if defined(RUN) && BN > 128
    store_one_by_one<1>(places, CORRECTIONS, sums, lane, column * (BN / 4), row0 + warp % 4 * 16);
#elif defined(RUN)
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++)
      store_runs(places, own, rows[m], sums[m], lane, column * (BN / 4), pixels[m]);
#else
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++)
#pragma unroll
      for (unsigned from = 0; from < BN; from += SPAN)
        store_rows<SPAN>(totals, sums[m] + from / 8, lane, row0 + m * 64 + warp % 4 * 16, column * (BN / 4) + from / 4,
                         CORRECTIONS, [&](const unsigned (&rows)[AT_ONCE], unsigned quad, const Four (&found)[AT_ONCE]) {
                           STORE_ROWS(rows, quad, found);
                         });
#endif
  }
}
