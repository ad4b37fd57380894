// Convolution as a matrix product, by warps that copy and warps that multiply (compute capability 9.0). Rows are output
// pixels, columns output channels, and the depth is the taps of the window times the input channels. A workgroup computes
// BM x BN in steps of BK along the depth: its last COPYING threads fill a ring of STAGES tiles, the CONSUMERS warpgroups
// before them multiply these, each BM / CONSUMERS rows. Sums of halves are float, those of bytes int.
// With row_norm.cu rows are normalised; with a PROLOGUE (prologue.cu) the threads that copy do with what has arrived what is to be done before it is multiplied.
//
// Constants from the host: those of rows.cu (AT_ONCE unless SPLIT); STAGES CONSUMERS RESIDENT (workgroups on a multiprocessor);
// REGISTERS_COPY REGISTERS_MULTIPLY (of a thread; where a whole warpgroup copies); TILES_N (of columns); STEPS (along the
// depth). The weights are packed as the tiles lie in shared memory: for each BN columns and BK of the depth one. SPLIT
// workgroups, a cluster, divide the depth, and the rows of their sums. With RUN sums are stored as runs.cu does, NORM_PARTS (workgroups
// that have a row together): normalised (normed.cu). With RUN and TILES (of all rows and columns) GROUPS workgroups stay, and take every
// GROUPS-th tile: what the next one multiplies comes while the sums of this one are stored.
#ifndef NORM_PARTS
#define NORM_PARTS 0
#define NORM_BUFFERS
#endif
// AHEAD: a lane's 16 rows by BN are stored at once, and what the epilogue reads comes before the products.
#ifndef TILES
#define TILES 0
#define GROUPS 0
#endif
#ifndef AHEAD
#define AHEAD 0
#endif
constexpr unsigned A_BYTES = BM * ROW_BYTES, B_BYTES = BN * ROW_BYTES, STAGE_BYTES = A_BYTES + B_BYTES;
constexpr unsigned PITCH = BN + 8;  // of the sums in shared memory, so that the rows of a store lie in different banks
// In the same place: the ring, and the sums of 16 rows of each warp, or of all rows.
constexpr unsigned RING = STAGES * STAGE_BYTES, SUMS = (SPLIT > 1 ? BM / (4 * CONSUMERS) : 16) * PITCH * 4 * 4 * CONSUMERS;
constexpr unsigned FULL = RING > SUMS ? RING : SUMS, EMPTY = FULL + 8 * STAGES;         // barriers
constexpr unsigned MULTIPLYING = 128 * CONSUMERS, THREADS = MULTIPLYING + COPYING;
constexpr unsigned ROWS = BM / (64 * CONSUMERS);  // products of a warpgroup
// Runs of which what the epilogue reads is on its way at once: as many as there are registers for where a workgroup has a
// multiprocessor alone.
constexpr unsigned TOGETHER = RESIDENT == 1 && ROWS * BN <= 256 ? 8 : 1;
static_assert(BM % (64 * CONSUMERS) == 0 , "tile");
static_assert(FULL + 16 * STAGES == SHARED_BYTES, "the host reckons otherwise");

INLINE unsigned number_of(unsigned tile) { return TILES ? in_turn(tile, TILES) : tile; }
INLINE unsigned column_of(unsigned tile) { return NORM_PARTS > 1 ? cluster_part() : number_of(tile) % TILES_N; }
INLINE unsigned pixel_of(unsigned tile) { return number_of(tile) / TILES_N * BM; }  // of all rows

INLINE void copy_tiles(const Element* x, const Element* w, const Element* outside, unsigned tile, unsigned pixel0,
                       unsigned column, unsigned begin, unsigned end PROLOGUE_PARAMETER) {
  const unsigned thread = threadIdx.x - MULTIPLYING;
  const Element* weights = w + (size_t)column * STEPS * (BN * BK);
  auto copy_weights = [&](unsigned step, unsigned slot) {
    barrier_copy(FULL + 8 * slot, slot * STAGE_BYTES + A_BYTES, weights + (size_t)step * (BN * BK), B_BYTES);
  };
  // The weights are nobody's output: they may come while the kernel before this one still runs.
  if (thread == 0)
    for (unsigned s = 0; s < STAGES && begin + s < end; s++) copy_weights(begin + s, s);
  Window window(thread, pixel0);
#ifdef PROLOGUE
  Pairs channels;
  copy_factors(prologue, begin * BK, (end - begin) * BK, thread, COPYING);
#endif
  wait_for_predecessors();
  launch_dependents();
#ifdef PROLOGUE
  // Steps. A tile is free when the next one is multiplied, which has to be ready by then.
  constexpr unsigned BEHIND = STAGES - 2;
  channels.fetch(prologue, (begin * CHUNKS + window.chunk) * PER_CHUNK, pixel0 + window.row);
  unsigned ready = 0;  // slot
  auto make_ready = [&](unsigned step) {
    const unsigned own = (step * CHUNKS + window.chunk) * PER_CHUNK;
    copies_wait<BEHIND>();
    if (step == begin) team_sync(2, COPYING);  // others have copied the factors
    channels.load(own);
    channels.take();
#pragma unroll
    for (unsigned i = 0; i < COPIES; i++) {
      channels.follow(prologue, pixel0 + window.row + i * APART);
      channels.apply(shared + ready * STAGE_BYTES + place(window.row, window.chunk) + i * (APART * ROW_BYTES));
    }
    announce_copies();
    barrier_arrive(FULL + 8 * ready);
    if (++ready == STAGES) ready = 0;
    if (step + 1 < end) channels.fetch(prologue, own + BK, pixel0 + window.row);  // ahead of time
  };
#endif
  unsigned slot = 0, parity = 1, before = 0;  // steps of the tiles before
  for (;;) {
    for (unsigned step = begin; step < end; step++) {
      const bool used = before + step >= begin + STAGES;  // the place
      if (used || before > 0) {
        if (used) barrier_wait(EMPTY + 8 * slot, parity);
        if (thread == 0) copy_weights(step, slot);
      }
      window.copy(x, outside, step, slot * STAGE_BYTES);
#ifdef PROLOGUE
      copies_commit();
      if (step >= begin + BEHIND) make_ready(step - BEHIND);
#else
      barrier_arrive_copied(FULL + 8 * slot);
#endif
      if (++slot == STAGES) slot = 0, parity ^= 1;
    }
    if (!TILES || (tile += GROUPS) >= TILES) break;
    before += STEPS;
    pixel0 = pixel_of(tile), weights = w + (size_t)column_of(tile) * STEPS * (BN * BK);
    window = Window(thread, pixel0);
  }
#ifdef PROLOGUE
  for (unsigned step = end; step < end + BEHIND; step++) {
    copies_commit();  // none, but those that are awaited are the oldest
    if (step >= begin + BEHIND) make_ready(step - BEHIND);
  }
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
#if SPLIT > 1
__cluster_dims__(SPLIT, 1, 1)
#elif NORM_PARTS > 1
__cluster_dims__(NORM_PARTS, 1, 1)
#endif
NAME(const Element* x, const Element* __restrict__ w MORE_BUFFERS PROLOGUE_BUFFERS NORM_BUFFERS EPILOGUE_BUFFERS) {
  unsigned tile = blockIdx.x / SPLIT, column = column_of(tile), pixel0 = pixel_of(tile);
  const unsigned part = SPLIT > 1 ? cluster_part() : 0;
  const unsigned begin = part * STEPS / SPLIT, end = (part + 1) * STEPS / SPLIT;
  if (threadIdx.x == 0) {
    for (unsigned s = 0; s < STAGES; s++) {
      barrier_init(FULL + 8 * s, COPYING + 1);  // the threads that copy, and the one that announces the weights
      barrier_init(EMPTY + 8 * s, 4 * CONSUMERS);
    }
    barriers_ready();
  }
  __syncthreads();
  const unsigned team = threadIdx.x / 128;
  if (team == CONSUMERS) {
    if (COPYING == 128) registers_drop<REGISTERS_COPY>();
    copy_tiles(x, w, MORE, tile, pixel0, column, begin, end PROLOGUE_ARGUMENT);
#if SPLIT > 1 || NORM_PARTS > 1
    cluster_sync();
    cluster_sync();
#endif
    return;
  }
  if (COPYING == 128) registers_take<REGISTERS_MULTIPLY>();
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#if AHEAD
  typedef LaneRows<BN> Lanes;
  static_assert(Lanes::ONCE && ROWS == 1 && SPLIT == 1 && !TILES, "each lane stores once");
  const Lanes own(lane, pixel0 + team * 64 + warp % 4 * 16);
  const unsigned own_quad = column * (BN / 4) + lane % Lanes::ACROSS, real_quad = own_quad < QUADS ? own_quad : 0;
  const STORE_CONSTANTS_TYPE constants = STORE_CONSTANTS(real_quad);
#endif
  wait_for_predecessors();  // what the epilogue reads
#if AHEAD
  unsigned own_rows[AT_ONCE];
#pragma unroll
  for (unsigned i = 0; i < AT_ONCE; i++) own_rows[i] = own.real ? own.pixel0 + own.row(own.first, i) : 0;
  const STORE_OPERANDS_TYPE operands = STORE_ROWS_OPERANDS(own_rows, real_quad);
#endif
  unsigned slot = 0, parity = 0;
  for (;;) {
    Sum sums[ROWS][BN / 8][4] = {};
#ifdef RUN
    const Places places PLACES;
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++) begin_sums(sums[m], CORRECTIONS, lane, column * (BN / 4));
#endif
#ifdef ROW_NORM
    RowMoments moments[ROWS];
#endif
#if TILES
#pragma unroll 1
#endif
    for (unsigned step = begin; step < end; step++) {
      barrier_wait(FULL + 8 * slot, parity);
      announce_copies();
      const unsigned a = slot * STAGE_BYTES + team * (ROWS * 64 * ROW_BYTES), b = slot * STAGE_BYTES + A_BYTES;
      begin_products();
#pragma unroll
      for (unsigned m = 0; m < ROWS; m++)
#pragma unroll
        for (unsigned i = 0; i < ROW_BYTES / 32; i++)
          MULTIPLY(sums[m], matrix<ROW_BYTES>(a + m * (64 * ROW_BYTES) + i * 32), matrix<ROW_BYTES>(b + i * 32));
      commit_products();
#ifdef ROW_NORM
#pragma unroll
      for (unsigned m = 0; m < ROWS; m++)
        moments[m].read<BK / 16>([&](unsigned chunk) { return a + place(m * 64 + warp % 4 * 16 + lane % 16, chunk + lane / 16); });
#endif
      products_wait<1>();  // those of the step before are done: its tiles may be replaced
      if (step > begin && lane == 0) barrier_arrive(EMPTY + 8 * (slot == 0 ? STAGES - 1 : slot - 1));
      if (++slot == STAGES) slot = 0, parity ^= 1;
    }
    products_wait<0>();
#if TILES
#ifdef ROW_NORM
    __syncwarp();  // all lanes have read
#endif
    if (lane == 0) barrier_arrive(EMPTY + 8 * (slot == 0 ? STAGES - 1 : slot - 1));
#endif
#ifdef RUN
#ifdef ROW_NORM
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++) normalise_rows(sums[m], moments[m]);
#endif
#if NORM_PARTS
    normalise_behind<ROWS, MULTIPLYING>(sums, norm_bias, NORM_RESIDUAL, lane, column * (BN / 4),
                                        team * (ROWS * 64) + warp % 4 * 16, pixel0 + team * (ROWS * 64) + warp % 4 * 16);
#endif
    store_one_by_one<TOGETHER>(places, CORRECTIONS, sums, lane, column * (BN / 4), pixel0 + team * (ROWS * 64) + warp % 4 * 16);
#if NORM_PARTS > 1
    cluster_wait();
#endif
#else
    team_sync(1, MULTIPLYING);  // nobody needs the tiles any more: the sums take their place
#if SPLIT > 1
    {  // each workgroup adds up some rows of all
      Sum* const own = (Sum*)shared;
#pragma unroll
      for (unsigned m = 0; m < ROWS; m++) {
        Sum* const to = own + ((team * ROWS + m) * 64 + warp % 4 * 16 + lane / 4) * PITCH + lane % 4 * 2;
#pragma unroll
        for (unsigned n = 0; n < BN / 8; n++) {
          *(Two*)(to + n * 8) = Two{sums[m][n][0], sums[m][n][1]};
          *(Two*)(to + 8 * PITCH + n * 8) = Two{sums[m][n][2], sums[m][n][3]};
        }
#ifdef ROW_NORM
        const float2 above = moments[m].of(0), below = moments[m].of(1);
        if (lane % 4 == 0) *(float2*)(to + BN) = above, *(float2*)(to + 8 * PITCH + BN) = below;  // in the padding
#endif
      }
      const unsigned first = pixel0 / POOL;
      add_up<BM, PITCH, MULTIPLYING>(
          part, column * (BN / 4), CORRECTIONS,
          [&](unsigned result, unsigned quad) { return first + result < PIXELS && quad < QUADS; },
          [&](Four& total, unsigned row) {
#ifdef ROW_NORM
            float2 moments_of_row = {};
#pragma unroll
            for (unsigned p = 0; p < SPLIT; p++) {
              const uint4 bits = cluster_read((row * PITCH + BN) * 4, p);
              const float2 v = *(const float2*)&bits;
              moments_of_row = float2{moments_of_row.x + v.x, moments_of_row.y + v.y};
            }
            const float factor = row_factor(moments_of_row);
            total = Four{total.x * factor, total.y * factor, total.z * factor, total.w * factor};
#endif
          },
          [&](unsigned result, unsigned quad, Four total) { STORE(first + result, quad, total); });
    }
#else
    Sum* const totals = (Sum*)(shared + warp * (16 * PITCH * 4));
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++) {
#ifdef ROW_NORM
      normalise_rows(sums[m], moments[m]);
#endif
      store_rows<BN>(totals, sums[m], lane, pixel0 + (team * ROWS + m) * 64 + warp % 4 * 16, column * (BN / 4), CORRECTIONS,
                     [&](const unsigned (&rows)[AT_ONCE], unsigned quad, const Four (&found)[AT_ONCE]) {
#if AHEAD
                       STORE_ROWS(rows, quad, found, constants, operands);
#else
                       STORE_ROWS(rows, quad, found);
#endif
                     });
    }
#endif
#endif
    if (!TILES || (tile += GROUPS) >= TILES) return;
    column = column_of(tile), pixel0 = pixel_of(tile);
  }
}
