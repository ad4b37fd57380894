// What byte_inverted.cu does, of images so small that a workgroup takes whole rows of one, and all channels, or one of SPLIT
// parts of these that are a cluster (compute capability 9.0). Each warp expands sixteen channels of all places to planes of its
// own, and goes through them with the window, without waiting for others; what leaves the window is requantized to rows
// in shared memory, pixels of all channels, which are the left factor of the projection. The workgroups of a cluster fetch
// from each other what they do not have of these, and each computes its share of the outputs. Places outside of the
// picture are written once, and not expanded.
//
// Constants from the host: those of byte_stages.cu; BY (rows of outputs), BANDS (of an image), MOST_ROWS (of the input, of a
// band, that there are); FOLD (2: eight columns of a unit are four of TY rows and four of the next TY); DEPTH, VECTOR and
// CHANNELS as in byte_inverted.cu; GROUPS (sixteens of channels of a part), OUT_SIXTEENS (of outputs of a part); M_EACH, N_EACH
// (sixteens of pixels and of outputs that a warp projects at a time); QUADS; WARPS; SHARED_BYTES.
constexpr unsigned THREADS = 32 * WARPS, STEPS = (DEPTH + 31) / 32;
constexpr unsigned X_PITCH = DEPTH / 16 % 2 ? DEPTH : DEPTH + 16;  // rows begin in different banks
constexpr unsigned UNIT_ROWS = TY * FOLD, BANDS_OF_UNITS = (BY + UNIT_ROWS - 1) / UNIT_ROWS;
constexpr unsigned LINES = (BANDS_OF_UNITS * UNIT_ROWS - 1) * STRIDE_Y + KERNEL_H;
constexpr unsigned COLUMNS = (OUT_W - 1) * STRIDE_X + KERNEL_W, LINE = (COLUMNS + 1) / 2 * 2;
constexpr unsigned STRIPS = (OUT_W + STRIP / FOLD - 1) / (STRIP / FOLD), UNITS = STRIPS * BANDS_OF_UNITS;
constexpr unsigned READ = STRIPS * 16 / FOLD + 2 * PAIRS - 2;  // columns that are read, perhaps behind the last one
constexpr unsigned PLANE_PLACES = LINES * LINE + (READ > LINE ? READ - LINE : 0);
constexpr unsigned PLANE = (PLANE_PLACES + 7) / 16 * 128 + 64;  // bytes; an odd number of 64: different banks
constexpr unsigned TILES = (MOST_ROWS * W + 15) / 16;           // tiles of 16 places
constexpr unsigned PIXELS = BY * OUT_W, M_TILES = (PIXELS + 15) / 16;
constexpr unsigned ROW = (SPLIT * GROUPS + 1) / 2 * 32, ROW_PITCH = ROW + 16, OUT_STEPS = ROW / 32;
constexpr unsigned PLANES = TILES * 16 * X_PITCH, ROWS_AT = PLANES + WARPS * 2 * PLANE, WEIGHTS = ROWS_AT + M_TILES * 16 * ROW_PITCH;
constexpr unsigned WEIGHT_BYTES = OUT_STEPS * OUT_SIXTEENS * 512;
constexpr unsigned M_BLOCKS = (M_TILES + M_EACH - 1) / M_EACH, N_BLOCKS = (OUT_SIXTEENS + N_EACH - 1) / N_EACH;
static_assert(WEIGHTS + WEIGHT_BYTES == SHARED_BYTES && PLANE < 65536, "the host reckons otherwise");
static_assert(FOLD == 1 || STRIPS == 1, "folded rows");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
#if SPLIT > 1
__cluster_dims__(SPLIT, 1, 1)
#endif
NAME(const SOURCE* x, const unsigned* __restrict__ taps, const int4* __restrict__ middle_bias,
     const uint4* __restrict__ expansion, const int4* __restrict__ bias, const float4* __restrict__ scale,
     const float4* __restrict__ middle_scale, const uint4* __restrict__ projection, const int4* __restrict__ corrections
     EPILOGUE_BUFFERS) {
  const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, q = lane % 4;
  const unsigned part = SPLIT > 1 ? cluster_part() : 0, band = blockIdx.x / SPLIT;
  const unsigned image = band / BANDS, y0 = band % BANDS * BY;
  const int iy0 = (int)(y0 * STRIDE_Y) - PADDING_Y;
  // Rows of the picture that the band reads, and places of these.
  const int first = iy0 < 0 ? 0 : iy0, last = iy0 + (int)((BY - 1) * STRIDE_Y + KERNEL_H), end = last < (int)H ? last : (int)H;
  const unsigned count = end > first ? (unsigned)(end - first) * W : 0;
  const unsigned own = PLANES + warp * (2 * PLANE);

  uint4 held[STEPS];
  int4 biases, middle_biases;
  float4 scales, middle_scales;
  unsigned words[2][TAP_WORDS];
  auto fetch_expansion = [&](unsigned sixteen) {
    biases = bias[sixteen * 4 + q], scales = scale[sixteen * 4 + q];
#pragma unroll
    for (unsigned k = 0; k < STEPS; k++) held[k] = expansion[(sixteen * STEPS + k) * 32 + lane];
  };
  auto fetch_taps = [&](unsigned sixteen) {
#pragma unroll
    for (unsigned c = 0; c < 2; c++)
#pragma unroll
      for (unsigned j = 0; j < TAP_WORDS; j++) words[c][j] = taps[(((sixteen * 2 + c) * TAP_WORDS + j) * 2 + q / 2) * 8 + g];
    middle_biases = middle_bias[sixteen * 4 + q], middle_scales = middle_scale[sixteen * 4 + q];
  };
  if (warp < GROUPS) fetch_expansion(part * GROUPS + warp);
  wait_for_predecessors();
  launch_dependents();

  constexpr unsigned CHUNK = VECTOR ? VECTOR : 4, CHUNKS = (CHANNELS + CHUNK - 1) / CHUNK;
#pragma unroll 4
  for (unsigned item = thread; item < count * CHUNKS; item += THREADS) {
    const unsigned place = item / CHUNKS, channel = item % CHUNKS * CHUNK, to = place * X_PITCH + channel;
    const unsigned from = image * PITCH_B + (first + place / W) * PITCH_Y + place % W * PITCH_X + channel * PITCH_C + OFFSET;
    if (VECTOR == 0) {
      unsigned word = 0;
#pragma unroll
      for (unsigned e = 0; e < 4; e++)
        word |= channel + e < CHANNELS ? (unsigned)(unsigned char)x[from + e * PITCH_C] << 8 * e : 0;
      *(unsigned*)(shared + to) = word;
    } else if (CHUNK == 16) {
      copy16(to, x + from, true);
    } else if (CHUNK == 8) {
      copy8(to, x + from, true);
    } else {
      copy4(to, x + from, true);
    }
  }
  copies_commit();
  // The weights of the projection, which are needed last.
  for (unsigned item = thread; item < WEIGHT_BYTES / 16; item += THREADS)
    copy16(WEIGHTS + item * 16, projection + part * (WEIGHT_BYTES / 16) + item, true);
  copies_commit();
  // Outside of the picture all bytes are the same, of all channels.
  for (unsigned at = lane * 16; at < 2 * PLANE; at += 512) {
    constexpr unsigned zero = (EXPANDED_OFFSET & 255) * 0x1010101u;
    *(uint4*)(shared + own + at) = uint4{zero, zero, zero, zero};
  }
  // Where this lane's two rows of each tile belong in a plane, 16 bits each.
  unsigned places[TILES];
#pragma unroll
  for (unsigned t = 0; t < TILES; t++) {
    places[t] = 0;
#pragma unroll
    for (unsigned h = 0; h < 2; h++) {
      const unsigned place = t * 16 + h * 8 + g;
      const unsigned at = ((unsigned)(first - iy0) + place / W) * LINE + place % W + PADDING_X;
      places[t] |= (place < count ? at * 8 : 0xffffu) << 16 * h;
    }
  }
  unsigned selectors[4];
  select_taps(selectors, lane);
  copies_wait<1>();
  __syncthreads();

#pragma unroll 1
  for (unsigned group = warp; group < GROUPS; group += WARPS) {
    const unsigned sixteen = part * GROUPS + group;
    fetch_taps(sixteen);
    int4 begin[1][2], middle_begin[2];
    begin_stage<EXPANDED_NEAR, EXPANDED_FUSED>(begin[0], biases, scales);
#pragma unroll
    for (unsigned t = 0; t < TILES; t++) {
      if (t * 16 >= count) break;
      int sums[1][2][4];
      expand<DEPTH>(sums, (t * 16 + lane % 16) * X_PITCH, lane, begin, [&](unsigned k, unsigned) { return held[k]; });
      const unsigned to = own + q / 2 * PLANE + q % 2 * 4;
#pragma unroll
      for (unsigned h = 0; h < 2; h++) {
        const int(&low)[4] = sums[0][0], (&high)[4] = sums[0][1];
        const unsigned word = expanded_bytes(int4{low[2 * h], low[2 * h + 1], high[2 * h], high[2 * h + 1]}, biases, scales);
        const unsigned at = places[t] >> 16 * h & 0xffff;
        if (at != 0xffff) *(unsigned*)(shared + to + at) = word;
      }
    }
    if (group + WARPS < GROUPS) fetch_expansion(sixteen + WARPS);  // under way while the window is multiplied
    __syncwarp();
    unsigned weights[2][TAPS_ALL];
    spread_taps(weights, words, selectors);
    begin_stage<MIDDLE_NEAR, MIDDLE_FUSED>(middle_begin, middle_biases, middle_scales);
#pragma unroll 1
    for (unsigned unit = 0; unit < UNITS; unit++) {
      const unsigned strip = unit % STRIPS, top = unit / STRIPS * UNIT_ROWS + (FOLD == 2 ? lane % 8 / 4 * TY : 0);
      const unsigned row = top * STRIDE_Y + lane / 8 % 2 * BETWEEN, column = strip * 8 + (FOLD == 2 ? lane % 4 : lane % 8);
      int sums[TY / 2][TURNS][2][4];
      multiply_window<LINE, PLANE, EXPANDED_POSITIVE>(sums, own + (row * (LINE / 2) + column) * 16, weights, middle_begin);
      // This lane's pixels, two columns or one.
      const unsigned ox = (strip * 8 + (FOLD == 2 ? g % 4 : g)) * TURNS, oy = unit / STRIPS * UNIT_ROWS + (FOLD == 2 ? g / 4 * TY : 0);
      const unsigned to = ROWS_AT + (oy * OUT_W + ox) * ROW_PITCH + sixteen * 16 + q * 4;
#pragma unroll
      for (unsigned w = 0; w < TURNS; w++)
#pragma unroll
        for (unsigned p = 0; p < TY; p++) {
          const int(&low)[4] = sums[product_of(p)][w][0], (&high)[4] = sums[product_of(p)][w][1];
          const unsigned h = half_of_rows(p) * 2;
          const unsigned word = middle_bytes(int4{low[h], low[h + 1], high[h], high[h + 1]}, middle_biases, middle_scales);
          if (ox + w < OUT_W && oy + p < BY) *(unsigned*)(shared + to + (p * OUT_W + w) * ROW_PITCH) = word;
        }
    }
    __syncwarp();  // others are done with the planes
  }
  copies_wait<0>();
#if SPLIT > 1
  cluster_sync();
  for (unsigned item = thread; item < PIXELS * (SPLIT - 1) * GROUPS; item += THREADS) {
    const unsigned pixel = item / ((SPLIT - 1) * GROUPS), other = item % ((SPLIT - 1) * GROUPS);
    const unsigned from = (part + 1 + other / GROUPS) % SPLIT;
    const unsigned at = ROWS_AT + pixel * ROW_PITCH + (from * GROUPS + other % GROUPS) * 16;
    *(uint4*)(shared + at) = cluster_read(at, from);
  }
  cluster_sync();
#else
  __syncthreads();
#endif

#pragma unroll 1
  for (unsigned block = warp; block < M_BLOCKS * N_BLOCKS; block += WARPS) {
    const unsigned m0 = block / N_BLOCKS * M_EACH, n0 = block % N_BLOCKS * N_EACH;
    int totals[M_EACH][N_EACH][2][4] = {};
#pragma unroll 2
    for (unsigned k = 0; k < OUT_STEPS; k++) {
      uint4 right[N_EACH];
#pragma unroll
      for (unsigned n = 0; n < N_EACH; n++) {
        const unsigned column = OUT_SIXTEENS % N_EACH && n0 + n >= OUT_SIXTEENS ? 0 : n0 + n;
        right[n] = *(const uint4*)(shared + WEIGHTS + ((k * OUT_SIXTEENS + column) * 32 + lane) * 16);
      }
#pragma unroll
      for (unsigned m = 0; m < M_EACH; m++) {
        if (M_TILES % M_EACH && m0 + m >= M_TILES) break;
        unsigned left[4];
        load_matrices(left, ROWS_AT + ((m0 + m) * 16 + lane % 16) * ROW_PITCH + lane / 16 * 16 + k * 32);
#pragma unroll
        for (unsigned n = 0; n < N_EACH; n++)
#pragma unroll
          for (unsigned c = 0; c < 2; c++) {
            int(&total)[4] = totals[m][n][c];
            multiply_bytes_onto<MIDDLE_POSITIVE>(total, int4{total[0], total[1], total[2], total[3]}, left,
                                                 c ? right[n].z : right[n].x, c ? right[n].w : right[n].y);
          }
      }
    }
#pragma unroll
    for (unsigned n = 0; n < N_EACH; n++) {
      const unsigned quad = (part * OUT_SIXTEENS + n0 + n) * 4 + q;
      if (n0 + n >= OUT_SIXTEENS || quad >= QUADS) break;
      const int4 more = corrections[quad];
#pragma unroll
      for (unsigned m = 0; m < M_EACH; m++)
#pragma unroll
        for (unsigned h = 0; h < 2; h++) {
          const unsigned pixel = (m0 + m) * 16 + h * 8 + g;
          if (pixel >= PIXELS || y0 + pixel / OUT_W >= OUT_H) continue;
          const int(&low)[4] = totals[m][n][0], (&high)[4] = totals[m][n][1];
          STORE((image * OUT_H + y0) * OUT_W + pixel, quad,
                (int4{low[2 * h] + more.x, low[2 * h + 1] + more.y, high[2 * h] + more.z, high[2 * h + 1] + more.w}));
        }
    }
  }
}
