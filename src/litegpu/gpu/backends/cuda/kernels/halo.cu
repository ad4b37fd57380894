// Convolution by windows of several taps, which copies what a tile of output pixels needs once, and computes all taps
// from that (compute capability 9.0). The outputs of all images stand in one line of positions: each image has LINES rows
// of PITCH positions, and sums of positions that stand for no output are dropped. With stride 1 a position is an input
// pixel as well, shifted by the padding: what is outside of the input lies between its rows, so that a tap of the window
// is a distance between positions, and any run of output positions needs one run of input positions. With other strides
// there are STRIDE_Y * STRIDE_X such lines of input pixels (phases), of which a tap needs one. Wide images stand in the
// line as STRIPS one behind the other.
//
// The channels of a position lie in shared memory as chunks of 16 bytes, those with the same number one behind the other
// (a panel), so that a tap changes nothing but where a panel's rows begin: warpgroup products read them from there.
// COPYING threads of a workgroup behind those that multiply fill a ring of STAGES pieces, each the positions of a tile
// with CHUNKS chunks of their channels. The weights, which the last warp copies, are there from the beginning (RING 0),
// or come in a ring of RING pieces of PIECE taps.
// Each of the CONSUMERS warpgroups computes a tile of BM positions in its turn, or, if TOGETHER, its BM of one tile.
// With SIDE 2 (and RUN) only the largest of each two by two sums are stored: a position stands for two sums, one below the
// other, and the input's lines are in two phases as if STRIDE_Y were 2, which it is then here.
//
// SPLIT workgroups, a cluster, divide the channels of one tile, and the rows of their sums; GROUPS are then those of each.
//
// Constants from the host: BYTES (of an element: 2, halves; 1, bytes); BM BN; CONSUMERS TOGETHER COPYING; STAGES CHUNKS
// GROUPS (pieces of all channels); PANEL (bytes); SPAN (positions of a piece); RING PIECE; TILES TILES_N; WALKERS
// (workgroups for each BN); BATCH LINES PITCH STRIPS STRIP (output columns); PIXELS QUADS (that are stored); OUT_H OUT_W (lines and columns of
// positions with an output); H W
// (of the input); VECTOR (channels that are copied at once); CHANNELS KERNEL_W TAPS; STRIDE_* DILATION_* PADDING_*; OFFSET PITCH_B
// PITCH_Y PITCH_X (elements, of the input's view); SHARED_BYTES. Of bytes further: UNSIGNED, PADDED (elements.cu). With RUN
// sums are stored as runs.cu does, else by way of shared memory.
constexpr unsigned PER_CHUNK = 16 / BYTES, TILE = TOGETHER ? BM * CONSUMERS : BM;
constexpr unsigned PHASE_BYTES = CHUNKS * PANEL, STAGE_BYTES = STRIDE_Y * STRIDE_X * PHASE_BYTES;
constexpr unsigned PIECE_BYTES = PIECE * CHUNKS * BN * 16, PIECES = TAPS / PIECE;
constexpr unsigned WEIGHTS = STAGES * STAGE_BYTES, HELD = RING ? RING : GROUPS * PIECES;  // pieces of weights
constexpr unsigned SUMS = WEIGHTS + HELD * PIECE_BYTES, SUMS_PITCH = 40;  // of 16 rows and 32 columns, for each warp
#if SPLIT > 1
constexpr unsigned ALL_PITCH = BN + 8, ALL_SUMS = TILE * SIDE * ALL_PITCH * 4;  // in the place of all else
constexpr unsigned FULL = SUMS > ALL_SUMS ? SUMS : ALL_SUMS;
static_assert(WALKERS == TILES && !RING && (TOGETHER || CONSUMERS == 1), "a workgroup has one tile");
#elif defined(RUN)
constexpr unsigned FULL = SUMS;
#else
constexpr unsigned FULL = SUMS + CONSUMERS * 4 * 16 * SUMS_PITCH * 4;
#endif
constexpr unsigned EMPTY = FULL + 8 * STAGES;  // barriers
constexpr unsigned READY = EMPTY + 8 * STAGES, USED = READY + 8 * HELD;                          // of the weights
constexpr unsigned TURN = USED + 8 * RING;  // of each warpgroup
constexpr unsigned MULTIPLYING = 128 * CONSUMERS, THREADS = MULTIPLYING + COPYING + 32, ROWS = BM / 64;
constexpr unsigned PARTS = PER_CHUNK / VECTOR;  // of a chunk
static_assert(TURN + 8 * CONSUMERS == SHARED_BYTES, "the host reckons otherwise");
static_assert(BM % 64 == 0 && TAPS % PIECE == 0 && PIECE % KERNEL_W == 0 && COPYING % CHUNKS == 0, "tile");
static_assert(TOGETHER || !RING, "weights that come and go are read by all at once");
static_assert(SPAN * 16 <= PANEL && PANEL % 16 == 0 && CHANNELS % VECTOR == 0, "panel");

INLINE unsigned tile_at(unsigned turn) { return in_turn(turn, TILES); }

struct Place { unsigned image, line, column; };  // of the whole image

INLINE Place place_of(unsigned position) {
  const unsigned row = position / PITCH, column = position % PITCH, image = row / LINES;
  if (STRIPS == 1) return {image, row % LINES, column};
  return {image / STRIPS, row % LINES, image % STRIPS * STRIP + column};
}
// The number of the output pixel at a position, or PIXELS. (OUT_W: of positions.)
INLINE unsigned pixel_at(unsigned position) {
  const Place at = place_of(position);
  const bool real = at.image < BATCH && at.line < OUT_H && at.column < OUT_W && (STRIPS == 1 || position % PITCH < STRIP);
  return real ? (at.image * OUT_H + at.line) * (OUT_W / SIDE) + at.column / SIDE : PIXELS;
}

// By one thread, as far ahead of their use as there is room.
INLINE void copy_weights(const Element* w, unsigned first) {
  // The weights are nobody's output: they may come while the kernel before this one still runs.
  const unsigned tiles = (TILES - first + WALKERS - 1) / WALKERS;
  for (unsigned step = 0; step < (RING ? tiles * GROUPS * PIECES : HELD); step++) {
    const unsigned slot = step % HELD;
    if (step >= HELD) barrier_wait(USED + 8 * slot, step / HELD % 2 ^ 1);
    barrier_copy(READY + 8 * slot, WEIGHTS + slot * PIECE_BYTES,
                 w + (size_t)(step % (GROUPS * PIECES)) * (PIECE_BYTES / BYTES), PIECE_BYTES);
  }
}

INLINE void copy_tiles(const Element* x, const Element* outside, unsigned first, unsigned part) {
  const unsigned thread = threadIdx.x - MULTIPLYING, chunk = thread % CHUNKS;
  wait_for_predecessors();
  launch_dependents();
  unsigned stage = 0;
  for (unsigned tile = first; tile < TILES; tile += WALKERS) {
    for (unsigned group = 0; group < GROUPS; group++, stage++) {
      const unsigned slot = stage % STAGES;
      if (stage >= STAGES) barrier_wait(EMPTY + 8 * slot, stage / STAGES % 2 ^ 1);
      const unsigned channel = ((part * GROUPS + group) * CHUNKS + chunk) * PER_CHUNK;
#pragma unroll(STRIDE_Y * STRIDE_X > 1 ? 1 : 4)
      for (unsigned i = thread / CHUNKS; i < SPAN; i += COPYING / CHUNKS) {
        const Place at = place_of(tile_at(tile) * TILE + i);
#pragma unroll
        for (unsigned phase = 0; phase < STRIDE_Y * STRIDE_X; phase++) {
          const int iy = (int)(at.line * STRIDE_Y + phase / STRIDE_X) - PADDING_Y;
          const int ix = (int)(at.column * STRIDE_X + phase % STRIDE_X) - PADDING_X;
          const bool inside = at.image < BATCH && (unsigned)iy < H && (unsigned)ix < W;
          const int from = (int)(at.image * PITCH_B) + iy * (int)PITCH_Y + ix * (int)PITCH_X + (int)(OFFSET + channel);
          const unsigned to = slot * STAGE_BYTES + phase * PHASE_BYTES + chunk * PANEL + i * 16;
#if PADDED
          if (!inside) {  // all the same: from the second cache it would come as slowly as one by one
            copy_again(to, outside);
            continue;
          }
#endif
#pragma unroll
          for (unsigned part = 0; part < PARTS; part++) {
            const bool real = inside && (CHANNELS % (CHUNKS * PER_CHUNK) == 0 || channel + part * VECTOR < CHANNELS);
            copy_piece<VECTOR * BYTES>(to + part * (VECTOR * BYTES), x + (real ? from + (int)(part * VECTOR) : 0), real);
          }
        }
      }
      barrier_arrive_copied(FULL + 8 * slot);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if SPLIT > 1
__cluster_dims__(SPLIT, 1, 1)
#endif
NAME(const Element* x, const Element* __restrict__ w MORE_BUFFERS EPILOGUE_BUFFERS) {
  const unsigned group0 = blockIdx.x / SPLIT, part = SPLIT > 1 ? cluster_part() : 0;
  const unsigned column = group0 % TILES_N, first = group0 / TILES_N;
  if (threadIdx.x == 0) {
    for (unsigned s = 0; s < STAGES; s++) {
      barrier_init(FULL + 8 * s, COPYING);
      barrier_init(EMPTY + 8 * s, TOGETHER ? 4 * CONSUMERS : 4);
    }
    for (unsigned s = 0; s < HELD; s++) barrier_init(READY + 8 * s, 1);
    for (unsigned s = 0; s < RING; s++) barrier_init(USED + 8 * s, 4 * CONSUMERS);
    for (unsigned t = 0; t < CONSUMERS; t++) barrier_init(TURN + 8 * t, 4);
    barriers_ready();
  }
  __syncthreads();
  const unsigned team = __shfl_sync(~0u, threadIdx.x / 128, 0);  // so that the compiler sees that warps stay together
  if (team == CONSUMERS) {
    if (threadIdx.x < MULTIPLYING + COPYING) {
      copy_tiles(x, MORE, first, part);
    } else if (threadIdx.x == MULTIPLYING + COPYING) {
      copy_weights(w + (size_t)(column * SPLIT + part) * (GROUPS * TAPS * CHUNKS * BN * PER_CHUNK), first);
    }
#if SPLIT > 1
    __syncwarp();
    cluster_sync();
    cluster_sync();
#endif
    return;
  }
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#if SPLIT > 1
  static_assert(MULTIPLYING % (BN / 4) == 0, "a thread stays with its quad");
  const unsigned own_quad = column * (BN / 4) + threadIdx.x % (BN / 4);
  const STORE_CONSTANTS_TYPE constants = STORE_CONSTANTS((own_quad < QUADS ? own_quad : 0));
#endif
  wait_for_predecessors();  // what the epilogue reads
#ifdef RUN
  const Places places PLACES;
  Channels channels;
  load_channels(channels, places, CORRECTIONS, lane, column * (BN / 4));
#elif SPLIT == 1
  Sum* const totals = (Sum*)(shared + SUMS + warp * (16 * SUMS_PITCH * 4));
#endif
  for (unsigned turn = TOGETHER ? 0 : team; first + turn * WALKERS < TILES; turn += TOGETHER ? 1 : CONSUMERS) {
    Sum sums[ROWS * SIDE][BN / 8][4] = {};
#ifdef RUN
#pragma unroll
    for (unsigned m = 0; m < ROWS * SIDE; m++) begin_sums(sums[m], channels);
#endif
#pragma unroll
    for (unsigned m = 0; m < ROWS * SIDE; m++)
#pragma unroll
      for (unsigned i = 0; i < BN / 2; i++) pin(sums[m][i / 4][i % 4]);
    // Those of the tile before have all that they need: no barrier of the ring is more than one phase behind.
    if (!TOGETHER && CONSUMERS > 1 && turn) barrier_wait(TURN + 8 * team, (turn - 1) / CONSUMERS % 2);
    for (unsigned group = 0; group < GROUPS; group++) {
      const unsigned stage = turn * GROUPS + group, slot = stage % STAGES;
      barrier_wait(FULL + 8 * slot, stage / STAGES % 2);
      announce_copies();
      const unsigned long long a = panels<PANEL>(slot * STAGE_BYTES) + (TOGETHER ? team * BM : 0);
#pragma unroll 1
      for (unsigned piece = 0; piece < PIECES; piece++) {
        const unsigned step = stage * PIECES + piece, held = RING ? step % HELD : group * PIECES + piece;
        barrier_wait(READY + 8 * held, RING ? step / HELD % 2 : 0);
        const unsigned long long b = panels<BN * 16>(WEIGHTS + held * PIECE_BYTES);
        begin_products();
#pragma unroll
        for (unsigned tap = 0; tap < PIECE; tap++) {
          const unsigned y0 = (piece * (PIECE / KERNEL_W) + tap / KERNEL_W) * DILATION_Y, x = tap % KERNEL_W * DILATION_X;
#pragma unroll
          for (unsigned i = 0; i < CHUNKS / 2; i++)
#pragma unroll
            for (unsigned m = 0; m < ROWS * SIDE; m++) {
              const unsigned y = y0 + m % SIDE;
              const unsigned phase = y % STRIDE_Y * STRIDE_X + x % STRIDE_X, far = y / STRIDE_Y * PITCH + x / STRIDE_X;
              MULTIPLY(sums[m], a + (phase * (PHASE_BYTES / 16) + far + i * (PANEL / 8) + m / SIDE * 64),
                       b + (tap * CHUNKS + i * 2) * BN);
            }
        }
        commit_products();
        products_wait<1>();  // those before are done: what they read may be replaced
        if (RING && (group || piece) && lane == 0) barrier_arrive(USED + 8 * ((step - 1) % HELD));
        if (piece == 0 && group && lane == 0) barrier_arrive(EMPTY + 8 * ((stage - 1) % STAGES));
      }
    }
    if (!TOGETHER && CONSUMERS > 1 && lane == 0) barrier_arrive(TURN + 8 * ((team + 1) % CONSUMERS));
    products_wait<0>();
    const unsigned stages = (turn + 1) * GROUPS;
    if (RING && lane == 0) barrier_arrive(USED + 8 * ((stages * PIECES - 1) % HELD));
    if (lane == 0) barrier_arrive(EMPTY + 8 * ((stages - 1) % STAGES));
#if SPLIT > 1
    team_sync(1, MULTIPLYING);  // nobody needs anything any more: the sums take its place
#pragma unroll
    for (unsigned m = 0; m < ROWS * SIDE; m++) {
      const unsigned position = team * BM + m / SIDE * 64 + warp % 4 * 16 + lane / 4;
      Sum* const to = (Sum*)shared + (position * SIDE + m % SIDE) * ALL_PITCH + lane % 4 * 2;
#pragma unroll
      for (unsigned n = 0; n < BN / 8; n++) {
        *(Two*)(to + n * 8) = Two{sums[m][n][0], sums[m][n][1]};
        *(Two*)(to + 8 * SIDE * ALL_PITCH + n * 8) = Two{sums[m][n][2], sums[m][n][3]};
      }
    }
    auto pixel_of = [&](unsigned result) { return pixel_at(tile_at(first) * TILE + result * SIDE); };
    add_up<TILE * SIDE, ALL_PITCH, MULTIPLYING>(
        part, column * (BN / 4), CORRECTIONS,
        [&](unsigned result, unsigned quad) { return pixel_of(result) < PIXELS && quad < QUADS; }, [](Four&, unsigned) {},
        [&](unsigned result, unsigned quad, Four total) {
          STORE(pixel_of(result), quad, total, constants, STORE_OPERANDS(pixel_of(result), quad));
        });
#else
    const unsigned own = tile_at(first + turn * WALKERS) * TILE + (TOGETHER ? team * BM : 0) + warp % 4 * 16;
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++) {
#if SIDE > 1
      // Of two lanes whose positions are neighbours each stores those of one half of the rows.
      const unsigned half = lane / 4 % 2, pixel = pixel_at(own + m * 64 + lane / 4 + half * 8);
      Sum most[BN / 8][4];
#pragma unroll
      for (unsigned n = 0; n < BN / 8; n++)
#pragma unroll
        for (unsigned i = 0; i < 2; i++) {
          const Sum low = larger(sums[m * 2][n][i], sums[m * 2 + 1][n][i]);
          const Sum high = larger(sums[m * 2][n][i + 2], sums[m * 2 + 1][n][i + 2]);
          most[n][i] = larger(half ? high : low, __shfl_xor_sync(~0u, half ? low : high, 4));
        }
#pragma unroll
      for (unsigned run = 0; run < RUNS; run++) {
        const Plain plain;
        const unsigned quad = quad_of(column * (BN / 4), lane, run);
        store_run(channels, run * RUN_QUADS, Row{}, most + run * RUN_QUADS * 2, 0, result_at(places, pixel, quad),
                  pixel < PIXELS && quad < QUADS, plain, 0);
      }
#elif defined(RUN)
      const unsigned pixels[2] = {pixel_at(own + m * 64 + lane / 4), pixel_at(own + m * 64 + lane / 4 + 8)};
      Row rows[2][RUNS];
      load_rows(rows, places, lane, column * (BN / 4), pixels);
      store_runs(places, channels, rows, sums[m], lane, column * (BN / 4), pixels);
#else
      unsigned pixels[4];
#pragma unroll
      for (unsigned i = 0; i < 4; i++) pixels[i] = pixel_at(own + m * 64 + lane / 8 + i * 4);
#pragma unroll
      for (unsigned part = 0; part < BN / 32; part++) {
        Sum* const to = totals + lane / 4 * SUMS_PITCH + lane % 4 * 2;
#pragma unroll
        for (unsigned n = 0; n < 4; n++) {
          const Sum(&four)[4] = sums[m][part * 4 + n];
          *(Two*)(to + n * 8) = Two{four[0], four[1]};
          *(Two*)(to + 8 * SUMS_PITCH + n * 8) = Two{four[2], four[3]};
        }
        __syncwarp();
        const unsigned quad = column * (BN / 4) + part * 8 + lane % 8;
        if (quad < QUADS) {
          const auto more = CORRECTION(quad);
          const Sum* const at = totals + lane / 8 * SUMS_PITCH + lane % 8 * 4;
#define TOTAL(i) corrected(*(const Four*)(at + i * 4 * SUMS_PITCH), more)
          STORE(pixels[0], pixels[1], pixels[2], pixels[3], quad, TOTAL(0), TOTAL(1), TOTAL(2), TOTAL(3));
        }
        __syncwarp();
      }
#endif
    }
#endif
  }
}
