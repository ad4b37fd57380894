// Two 1x1 convolutions in one kernel (compute capability 9.0): what the first one gives, its bias and what is done with it
// stay in registers, where they are the left factor of the second. A workgroup is TEAMS times four warps, which have 64
// rows, pixels, at a time, and one warp more, which brings the weights of STEP channels between the two after each other,
// of the first convolution, then of the second, to STAGES places in shared memory that barriers tell of. Where all
// weights have a place they stay there. With row_norm.cu rows are normalised first.
//
// Constants from the host: TEAMS STAGES RESIDENT (workgroups on a multiprocessor); STEP (32 or 64); STEPS; COLUMNS (of the
// second convolution); BLOCKS (of 64 rows), GROUPS (workgroups); SPAN (columns of sums that leave at a time);
// INNER(value): what is done with four sums and their bias; those of rows.cu and row_tile.cu.
constexpr unsigned THREADS = 128 * TEAMS + 32;
// Of a step: the weights of both convolutions and the bias.
constexpr unsigned FIRST_BYTES = STEP * DEPTH * 2, SECOND_BYTES = COLUMNS * STEP * 2;
constexpr unsigned STEP_BYTES = FIRST_BYTES + SECOND_BYTES + 1024;
constexpr unsigned X_AT = STAGES * STEP_BYTES, BUFFERS = BLOCKS > GROUPS * TEAMS ? 2 : 1;
constexpr unsigned WARP_SUMS = 16 * (SPAN + 8) * 4, SUMS_AT = X_AT + TEAMS * BUFFERS * X_BYTES;
constexpr bool OVER = 4 * WARP_SUMS <= X_BYTES;  // sums leave by way of the rows' place
constexpr unsigned FULL = SUMS_AT + (OVER ? 0 : 4 * TEAMS * WARP_SUMS), FREE = FULL + 8 * STAGES;  // barriers
constexpr bool STAYING = STAGES >= STEPS;
static_assert(FREE + 8 * STAGES == SHARED_BYTES && COLUMNS % SPAN == 0, "the host reckons otherwise");

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
NAME(const SOURCE* x, const Element* __restrict__ w EPILOGUE_BUFFERS) {
  if (threadIdx.x == 0) {
    for (unsigned s = 0; s < STAGES; s++) {
      barrier_init(FULL + 8 * s, 1);
      barrier_init(FREE + 8 * s, 128 * TEAMS);
    }
    barriers_ready();
  }
  __syncthreads();
  const unsigned team = threadIdx.x / 128, thread = threadIdx.x % 128, lane = thread % 32, warp = thread / 32;
  const unsigned rounds = (BLOCKS - blockIdx.x * TEAMS + GROUPS * TEAMS - 1) / (GROUPS * TEAMS);
  if (team == TEAMS) {  // the weights are nobody's output: they may come while the kernel before this one still runs
    const unsigned all = STAYING ? STEPS : rounds * STEPS;
    if (lane == 0)
      for (unsigned i = 0; i < all; i++) {
        const unsigned slot = i % STAGES;
        if (i >= STAGES) barrier_wait(FREE + 8 * slot, (i / STAGES - 1) % 2);
        barrier_copy(FULL + 8 * slot, slot * STEP_BYTES, w + (size_t)(i % STEPS) * (STEP_BYTES / 2), STEP_BYTES);
      }
    return;
  }
  wait_for_predecessors();
  launch_dependents();
  const unsigned own = X_AT + team * (BUFFERS * X_BYTES);
  bring_rows(x, in_turn(blockIdx.x * TEAMS + team, BLOCKS), own, thread);
  unsigned used = 0;  // places
  for (unsigned round = 0; round < rounds; round++) {
    const unsigned block = (round * GROUPS + blockIdx.x) * TEAMS + team, at = own + round % BUFFERS * X_BYTES;
    const bool live = block < BLOCKS;  // of the last blocks there may be fewer than teams
    copies_commit();
    copies_wait<0>();
    announce_copies();
    team_sync(1 + team, 128);  // the rows are there, and all are done with those before
    if (round + 1 < rounds) bring_rows(x, in_turn(block + GROUPS * TEAMS, BLOCKS), own + (round + 1) % BUFFERS * X_BYTES, thread);
#ifdef ROW_NORM
    RowMoments moments;
    moments.read<DEPTH / 16>([&](unsigned chunk) { return at + place_in_slab<64>(warp * 16 + lane % 16, chunk + lane / 16); });
    const float one = row_factor(moments.of(0)), other = row_factor(moments.of(1));
#else
    constexpr float one = 1.0f, other = 1.0f;
#endif
    float sums[COLUMNS / 8][4] = {};
#pragma unroll 1
    for (unsigned step = 0; step < STEPS; step++, used++) {
      const unsigned slot = STAYING ? step : used % STAGES, first = slot * STEP_BYTES, second = first + FIRST_BYTES;
      barrier_wait(FULL + 8 * slot, STAYING ? 0 : used / STAGES % 2);
      if (live) {
        float hidden[STEP / 8][4] = {};
        multiply_rows<STEP>(hidden, at, first);
        products_wait<0>();
        const float* const bias = (const float*)(shared + second + SECOND_BYTES) + lane % 4 * 2;
        unsigned factors[STEP / 16][4];
#pragma unroll
        for (unsigned n = 0; n < STEP / 8; n++) {
          const float2 more = *(const float2*)(bias + n * 8);
          const float4 v = INNER((float4{fmaf(hidden[n][0], one, more.x), fmaf(hidden[n][1], one, more.y),
                                         fmaf(hidden[n][2], other, more.x), fmaf(hidden[n][3], other, more.y)}));
          factors[n / 2][n % 2 * 2] = pack_half2(v.x, v.y), factors[n / 2][n % 2 * 2 + 1] = pack_half2(v.z, v.w);
        }
        begin_products();
#pragma unroll
        for (unsigned i = 0; i < STEP / 16; i++) multiply_kept(sums, factors[i], matrix<STEP * 2>(second + i * 32), 1);
        end_products();
      }
      if (!STAYING) {
        __syncwarp();
        barrier_arrive(FREE + 8 * slot);  // each lane for itself, which has read of the bias
      }
    }
    if (!live) continue;
    if (OVER) team_sync(1 + team, 128);  // nobody needs the rows any more
    Sum* const totals = (Sum*)(shared + (OVER ? at : SUMS_AT + team * (4 * WARP_SUMS)) + warp * WARP_SUMS);
#pragma unroll
    for (unsigned from = 0; from < COLUMNS; from += SPAN)
      store_rows<SPAN>(totals, sums + from / 8, lane, in_turn(block, BLOCKS) * 64 + warp * 16, from / 4, nullptr,
                       [&](const unsigned (&rows)[AT_ONCE], unsigned quad, const Four (&found)[AT_ONCE]) {
                         STORE_ROWS(rows, quad, found);
                       });
  }
}
