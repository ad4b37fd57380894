// A constant matrix times each of many (compute capability 9.0): what mixes the places of a picture, the same for each
// channel. A workgroup keeps TEAMS times 64 rows of the matrix in shared memory, and goes through units, BN columns of one
// right factor each, of all its depth, which all threads copy to STAGES places that barriers tell of. Four warps, a team,
// have 64 rows; while one multiplies, others finish their sums and store them. Of the right factor, whose rows are the
// depth, products read the columns as they lie.
//
// Constants from the host: TEAMS BN (32 or 64) STAGES RESIDENT; DEPTH (that of the sums in whole 16s) REAL (of it); M QUADS (of
// the output); TILES_M TILES_N UNITS GROUPS (workgroups that share them, for each TILES_M); HEADS; OFFSET PITCH_BATCH
// PITCH_HEAD PITCH_ROW (elements, of the right factor's view); SHARED_BYTES. The matrix is packed as packed() of the host says.
constexpr unsigned THREADS = 128 * TEAMS, ACROSS = BN * 2, CHUNKS = BN / 8, STEPS = DEPTH / 16;
constexpr unsigned LEFT_BYTES = TEAMS * 64 * DEPTH * 2, TILE_BYTES = DEPTH * ACROSS;
constexpr unsigned THERE = LEFT_BYTES + STAGES * TILE_BYTES, FREE = THERE + 8 * STAGES;  // barriers
static_assert(FREE + 8 * STAGES == SHARED_BYTES, "the host reckons otherwise");
static_assert(STAGES >= 2, "places are filled again a unit late");

// Where 16 bytes of a row lie: as matrix() expects them.
INLINE unsigned place(unsigned row, unsigned chunk) {
  const unsigned turn = CHUNKS == 8 ? row % 8 : row / 2 % 4;
  return row * ACROSS + (chunk ^ turn) * 16;
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
NAME(const unsigned short* __restrict__ w, const unsigned short* x EPILOGUE_BUFFERS) {
  const unsigned tile = blockIdx.x % TILES_M, group = blockIdx.x / TILES_M;
  const unsigned team = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  if (threadIdx.x == 0) {
    for (unsigned s = 0; s < STAGES; s++) {
      barrier_init(THERE + 8 * s, THREADS);
      barrier_init(FREE + 8 * s, 4 * TEAMS);
    }
    barriers_ready();
  }
  __syncthreads();
  // The matrix is nobody's output: it may come while the kernel before this one still runs.
  for (unsigned i = threadIdx.x; i < LEFT_BYTES / 16; i += THREADS)
    copy16(i * 16, w + (size_t)tile * (LEFT_BYTES / 2) + i * 8, true);
  auto bring = [&](unsigned turn, unsigned slot) {
    const unsigned unit = in_turn(turn, UNITS), position = unit / TILES_N, at = LEFT_BYTES + slot * TILE_BYTES;
    const unsigned short* const from =
        x + position / HEADS * PITCH_BATCH + position % HEADS * PITCH_HEAD + OFFSET + unit % TILES_N * BN;
#pragma unroll 4
    for (unsigned i = threadIdx.x; i < DEPTH * CHUNKS; i += THREADS) {
      const unsigned row = i / CHUNKS, chunk = i % CHUNKS;
      copy16(at + place(row, chunk), from + (row < REAL ? row * PITCH_ROW : 0) + chunk * 8, row < REAL);
    }
    barrier_arrive_copied(THERE + 8 * slot);
  };
  wait_for_predecessors();
  launch_dependents();
#pragma unroll
  for (unsigned s = 0; s < STAGES; s++)
    if (group + s * GROUPS < UNITS) bring(group + s * GROUPS, s);  // the matrix comes with the first
  const unsigned first = tile * (64 * TEAMS) + team * 64, row = first + warp * 16 + lane / 4;  // and the eighth after it
  const unsigned last = row + 8 < M ? row + 8 : row;
  unsigned turn = 0;
#pragma unroll 1
  for (unsigned at = group; at < UNITS; at += GROUPS, turn++) {
    const unsigned slot = turn % STAGES, next = at + (STAGES - 1) * GROUPS, unit = in_turn(at, UNITS);
    barrier_wait(THERE + 8 * slot, turn / STAGES % 2);
    announce_copies();
    float sums[BN / 8][4];
    if (first < M) {  // in the last workgroup there may be teams without a row
      unsigned left[STEPS][4];
#pragma unroll
      for (unsigned i = 0; i < STEPS; i++) {
        const uint4 v = *(const uint4*)(shared + (((team * 4 + warp) * STEPS + i) * 32 + lane) * 16);
        left[i][0] = v.x, left[i][1] = v.y, left[i][2] = v.z, left[i][3] = v.w;
      }
      begin_products();
#pragma unroll
      for (unsigned i = 0; i < STEPS; i++)
        multiply_kept_turned(sums, left[i],
                             turned_matrix<ACROSS>(LEFT_BYTES + slot * TILE_BYTES + i * (16 * ACROSS), TILE_BYTES), i > 0);
      end_products();
    }
    if (lane == 0) barrier_arrive(FREE + 8 * slot);
    if (turn > 0 && next < UNITS) {  // where the unit before this one was
      barrier_wait(FREE + 8 * ((turn - 1) % STAGES), (turn - 1) / STAGES % 2);
      bring(next, (turn - 1) % STAGES);
    }
    if (first < M) {
      const unsigned pixel0 = unit / TILES_N * M;
#pragma unroll
      for (unsigned n = 0; n < BN / 16; n++) {
        const float4 v0 = exchanged_quad(sums[2 * n], sums[2 * n + 1], 0);
        const float4 v1 = exchanged_quad(sums[2 * n], sums[2 * n + 1], 1);
        const unsigned quad = unit % TILES_N * (BN / 4) + n * 4 + exchanged_number();
        if (row < M && quad < QUADS) STORE(pixel0 + row, pixel0 + last, quad, v0, (last == row ? v0 : v1));
      }
    }
  }
}
