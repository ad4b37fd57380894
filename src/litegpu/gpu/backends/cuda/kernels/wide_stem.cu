// Convolution of one to four channels, as a network's first layer has them, by warpgroup products (compute capability 9.0).
// A workgroup walks over blocks of BY rows of output pixels, whole rows. Their input, whole lines, comes in bulk; 128
// threads make positions of it, one for each output column and as many more as a window reaches over: the four channels
// of the pixels that begin there, 16 bytes, as they are multiplied. So the pixels of a line of the window are chunks of
// neighbouring positions, and eight output pixels that lie side by side are eight neighbouring positions: what a product
// reads, without any being copied for it. The lines that stand STRIDE_Y apart (a phase) follow one another, so that 64
// positions may begin in one row and end in the next; sums of positions that stand for no output are dropped. Each of the
// CONSUMERS warpgroups has its share of the block's 64s, and stores as runs.cu does.
//
// Constants from the host: those of runs.cu and elements.cu; SOURCE LOAD (of an element of the input); BN; BY DOWN (blocks of
// an image) BLOCKS WALKERS; LINES LINE_BYTES (of the input of a block, as it comes) BESIDE_BYTES (behind it); PITCH (positions of a row) SPAN (of a
// phase); PAIRS PLACES_OF_CHUNKS (positions, ascending); TILES_N; CONSUMERS; OUTSIDE (four bytes); OUT_H OUT_W H W; CHANNELS;
// AS_THEY_ARE (the input is halves, four for each pixel); STRIDE_* PADDING_*; OFFSET PITCH_B PITCH_Y (elements, of the input's view); SHARED_BYTES. BATCH.
constexpr unsigned AT_ONCE = 4 / BYTES;  // pixels of a position
constexpr unsigned RAW_BYTES = LINES * LINE_BYTES + BESIDE_BYTES, FORM_BYTES = STRIDE_Y * SPAN * 16;
constexpr unsigned RAW = 128, FORMS = RAW + 2 * RAW_BYTES, WEIGHTS = FORMS + 2 * FORM_BYTES, WEIGHT_BYTES = PAIRS * 2 * BN * 16;
constexpr unsigned CAME = WEIGHTS + WEIGHT_BYTES, FULL = CAME + 16, EMPTY = FULL + 16, READY = EMPTY + 16;  // barriers
constexpr unsigned FORMING = 128, THREADS = 128 * CONSUMERS + FORMING;
constexpr unsigned TILES = (BY * PITCH + 63) / 64;
static_assert(READY + 16 == SHARED_BYTES && RAW_BYTES % 16 == 0, "the host reckons otherwise");

// The input lines of a block that there are.
struct Lines { int first, begin, end; };
INLINE Lines lines_of(unsigned block) {
  const int first = (int)(block % DOWN * (BY * STRIDE_Y)) - PADDING_Y, end = first + (int)LINES;
  return {first, first < 0 ? 0 : first, end > (int)H ? (int)H : end};
}

INLINE void fetch(const SOURCE* x, unsigned block, unsigned slot) {
  const Lines lines = lines_of(block);
  const SOURCE* const from = x + (block / DOWN * PITCH_B + lines.begin * PITCH_Y + OFFSET);
  barrier_copy(CAME + 8 * slot, RAW + slot * RAW_BYTES, from, (unsigned)(lines.end - lines.begin) * LINE_BYTES);
}

// The chunk of a position whose first pixel is column x of a line that `exists`, or else of one that does not count. What is
// read beside the line is another one or BESIDE it, and does not count either: no thread has to go another way.
INLINE uint4 chunk_of(const SOURCE* line, int x, bool exists) {
  bool inside[AT_ONCE];
#pragma unroll
  for (int i = 0; i < (int)AT_ONCE; i++) inside[i] = exists && (unsigned)(x + i) < W;
#if BYTES == 1
  unsigned v[4];
#if CHANNELS == 3
  const int at = x * 3, word = at >> 2, turn = (at & 3) * 8;
  const unsigned* const from = (const unsigned*)line + word;
  const unsigned long long low = (unsigned long long)from[1] << 32 | from[0], high = (unsigned long long)from[3] << 32 | from[2];
  const unsigned a = (unsigned)(low >> turn), b = (unsigned)((low >> 32 | high << 32) >> turn), c = (unsigned)(high >> turn);
  v[0] = a, v[1] = a >> 24 | b << 8, v[2] = b >> 16 | c << 16, v[3] = c >> 8;  // whose fourth bytes no weight is for
#else
#pragma unroll
  for (int i = 0; i < 4; i++) {
    v[i] = 0;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) v[i] |= (unsigned)(unsigned char)line[(x + i) * CHANNELS + c] << 8 * c;
  }
#endif
#pragma unroll
  for (int i = 0; i < 4; i++) v[i] = inside[i] ? v[i] : OUTSIDE;
  return uint4{v[0], v[1], v[2], v[3]};
#elif AS_THEY_ARE
  const uint2 a = *(const uint2*)(line + x * 4), b = *(const uint2*)(line + x * 4 + 4);
  return uint4{inside[0] ? a.x : 0, inside[0] ? a.y : 0, inside[1] ? b.x : 0, inside[1] ? b.y : 0};
#else
  float v[2][4] = {};
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) v[i][c] = LOAD(line[(x + i) * CHANNELS + c]);
  const uint2 a = {pack_half2(v[0][0], v[0][1]), pack_half2(v[0][2], v[0][3])};
  const uint2 b = {pack_half2(v[1][0], v[1][1]), pack_half2(v[1][2], v[1][3])};
  return uint4{inside[0] ? a.x : 0, inside[0] ? a.y : 0, inside[1] ? b.x : 0, inside[1] ? b.y : 0};
#endif
}

INLINE void form_blocks(const SOURCE* x, const Element* weights, unsigned first) {
  const unsigned thread = threadIdx.x - 128 * CONSUMERS;
  // The weights are nobody's output: they may come while the kernel before this one still runs.
  if (thread == 0) barrier_copy(READY, WEIGHTS, weights, WEIGHT_BYTES);
  wait_for_predecessors();
  launch_dependents();
  if (thread == 0) fetch(x, in_turn(first, BLOCKS), 0);
  for (unsigned block = first, turn = 0; block < BLOCKS; block += WALKERS, turn++) {
    const unsigned slot = turn % 2, form = FORMS + slot * FORM_BYTES;
    if (thread == 0 && block + WALKERS < BLOCKS) fetch(x, in_turn(block + WALKERS, BLOCKS), slot ^ 1);
    barrier_wait(CAME + 8 * slot, turn / 2 % 2);
    if (turn >= 2) barrier_wait(EMPTY + 8 * slot, turn / 2 % 2 ^ 1);
    const Lines lines = lines_of(in_turn(block, BLOCKS));
#pragma unroll 4
    for (unsigned i = thread; i < LINES * PITCH; i += FORMING) {
      const unsigned line = i / PITCH, position = i % PITCH;
      const int y = lines.first + (int)line;
      const bool exists = y >= lines.begin && y < lines.end;
      const SOURCE* const from = (const SOURCE*)(shared + RAW + slot * RAW_BYTES) + (exists ? y - lines.begin : 0) * (int)PITCH_Y;
      const uint4 chunk = chunk_of(from, (int)(position * STRIDE_X) - PADDING_X, exists);
      *(uint4*)(shared + form + (line % STRIDE_Y * SPAN + line / STRIDE_Y * PITCH + position) * 16) = chunk;
    }
    announce_copies();
    barrier_arrive(FULL + 8 * slot);
    team_sync(1, FORMING);  // what came has been read
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
NAME(const SOURCE* x, const Element* __restrict__ w, const int4* corrections EPILOGUE_BUFFERS) {
  const unsigned column = blockIdx.x % TILES_N, first = blockIdx.x / TILES_N;
  if (threadIdx.x == 0) {
    for (unsigned s = 0; s < 2; s++) {
      barrier_init(CAME + 8 * s, 1);
      barrier_init(FULL + 8 * s, FORMING);
      barrier_init(EMPTY + 8 * s, 4 * CONSUMERS);
    }
    barrier_init(READY, 1);
    barriers_ready();
  }
  __syncthreads();
  const unsigned team = __shfl_sync(~0u, threadIdx.x / 128, 0);  // so that the compiler sees that warps stay together
  if (team == CONSUMERS) {
    form_blocks(x, w + (size_t)column * (WEIGHT_BYTES / BYTES), first);
    return;
  }
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, quad0 = column * (BN / 4);
  const Places places PLACES;
  Channels own;
  wait_for_predecessors();  // what the epilogue reads
  load_channels(own, places, corrections, lane, quad0);
  const unsigned chunks[] = {PLACES_OF_CHUNKS};
  constexpr unsigned CHUNKS = sizeof(chunks) / sizeof(unsigned);
  barrier_wait(READY, 0);
  for (unsigned at = first, turn = 0; at < BLOCKS; at += WALKERS, turn++) {
    const unsigned slot = turn % 2, block = in_turn(at, BLOCKS);
    barrier_wait(FULL + 8 * slot, turn / 2 % 2);
    announce_copies();
    if (team >= TILES && lane == 0) barrier_arrive(EMPTY + 8 * slot);
    for (unsigned tile = team; tile < TILES; tile += CONSUMERS) {
      const unsigned form = FORMS + slot * FORM_BYTES + tile * (64 * 16);
      Sum sums[BN / 8][4] = {};
      begin_sums(sums, own);
      begin_products();
#pragma unroll
      for (unsigned pair = 0; pair < PAIRS; pair++) {
        const unsigned one = pair * 2 + 2 > CHUNKS ? CHUNKS - 2 : pair * 2;  // an odd one has weights of zero in front
        const unsigned long long apart = chunks[one + 1] - chunks[one];
        MULTIPLY(sums, panels<0>(form) + chunks[one] + (apart << 16), panels<BN * 16>(WEIGHTS + pair * (2 * BN * 16)));
      }
      const unsigned here = tile * 64 + warp % 4 * 16 + lane / 4;
      unsigned pixels[2];
#pragma unroll
      for (unsigned half = 0; half < 2; half++) {
        const unsigned row = (here + half * 8) / PITCH, ox = (here + half * 8) % PITCH, oy = block % DOWN * BY + row;
        pixels[half] = row < BY && oy < OUT_H && ox < OUT_W ? (block / DOWN * OUT_H + oy) * OUT_W + ox : PIXELS;
      }
      Row rows[2][RUNS];
      load_rows(rows, places, lane, quad0, pixels);
      end_products();
      if (tile + CONSUMERS >= TILES && lane == 0) barrier_arrive(EMPTY + 8 * slot);
      store_runs(places, own, rows, sums, lane, quad0, pixels);
    }
  }
}
