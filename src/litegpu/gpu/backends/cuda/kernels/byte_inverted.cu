// What inverted.cu does, of bytes: a 1x1 convolution that widens its input (the expansion), the depthwise convolution that
// reads it, and with PROJECTS the 1x1 convolution behind that. What is expanded lies in shared memory as bytes, requantized
// as the CPU does, with the byte of zero outside of the picture, in planes of eight channels. The depthwise products are
// done from there on tensor cores: half a left factor's depth is a pair of columns of a plane, the other half the next
// pair, so that a row of a window of three takes one product. The right factor has each channel's weights for the columns,
// and zeros else. Pairs begin with even columns: of stride 1, pixels in even and in odd ones take the same left factor and
// different right ones. Without EXPANDS the input itself is what the window reads. With STEM what widens is a network's first
// layer, a convolution of few channels: its input comes as it is, and of that rows of the product's left factor are made,
// the window's bytes of each place.
//
// Constants from the host: those of inverted.cu, but that VECTOR is the bytes copied at once (16, 8, 4 or 0) and DEPTH those
// of an input place, a multiple of 16; UNSIGNED and OUTSIDE (without EXPANDS a word of what is outside); *_NEAR: whether sums
// stay so small that they are the last bits of a float; *_LIMITS: what of *_LOW and *_HIGH is not left to the saturation:
// nothing (0), the upper one (1), both (2); *_OFFSET: what makes a signed byte of the nearest whole number, or 0 if that
// is an unsigned one, none being below zero (*_POSITIVE). With STEM: STEM_H STEM_W STEM_STRIDE_* STEM_PADDING_*; IN_H IN_W
// (of the input; H and W are those of what is expanded); PIXEL (bytes from pixel to pixel as they are copied). DEPTH has the
// whole words of each row of its window, and then one byte more of each, if there is one. *_RESTS, if there are any: F(...)
// for each weight that no byte holds, as byte_rests.py lists them.
//
// The planes of 16 channels have those 4i and 4i + 1, and 4i + 2 and 4i + 3, so that the products leave four of them that
// follow one another in one lane; without EXPANDS they are as they come, and the lane has 2i, 2i + 1, 8 + 2i and 9 + 2i.
constexpr unsigned THREADS = 32 * WARPS, STEPS = (DEPTH + 31) / 32, SIXTEENS = SLICE / 16;
constexpr unsigned X_PITCH = DEPTH / 16 % 2 ? DEPTH : DEPTH + 16;  // rows begin in different banks
constexpr unsigned ROWS = (BY - 1) * STRIDE_Y + KERNEL_H;
constexpr unsigned COLUMNS = ((BX < OUT_W ? BX : OUT_W) - 1) * STRIDE_X + KERNEL_W, LINE = (COLUMNS + 1) / 2 * 2;
constexpr unsigned PLACES = ROWS * LINE, TILES = (PLACES + 15) / 16;  // tiles of 16 places
constexpr unsigned EACH = (TILES + WARPS - 1) / WARPS;                // of a warp
constexpr unsigned STRIPS = (BX + STRIP - 1) / STRIP, UNITS = STRIPS * (BY / TY), UNITS_EACH = (UNITS + WARPS - 1) / WARPS;
constexpr unsigned READ = STRIPS * 16 + 2 * PAIRS - 2;  // columns that are read, perhaps behind the last one
constexpr unsigned PLANE_PLACES = PLACES + (READ > LINE ? READ - LINE : 0) > TILES * 16 ? PLACES + READ - LINE : TILES * 16;
constexpr unsigned PLANE = (PLANE_PLACES + 7) / 16 * 128 + 64;  // bytes; an odd number of 64: different banks
constexpr unsigned X_BYTES = EXPANDS ? TILES * 16 * X_PITCH : 0, E_BYTES = SLICE / 8 * PLANE;
#if STEM
// Of a row of the first layer's window; of the input's rows, which lie where later the planes do.
constexpr unsigned RUN_BYTES = STEM_W * PIXEL, RUN_WORDS = RUN_BYTES / 4, ONE_MORE = RUN_BYTES % 4, CHUNK = VECTOR ? VECTOR : 4;
constexpr unsigned RAW_ROWS = (ROWS - 1) * STEM_STRIDE_Y + STEM_H;
constexpr unsigned RAW_CHUNKS = (((LINE - 1) * STEM_STRIDE_X + STEM_W) * PIXEL + 2 * CHUNK - 2) / CHUNK, RAW_PITCH = RAW_CHUNKS * CHUNK;
constexpr unsigned RAW_BYTES = (RAW_ROWS * RAW_PITCH + 4 + 15) / 16 * 16;
static_assert(ONE_MORE < 2 && (STEM_H * RUN_WORDS + ONE_MORE) * 4 <= DEPTH && STEM_H <= 4, "window of the first layer");
#else
constexpr unsigned CHUNK = VECTOR == 0 ? 4 : EXPANDS || VECTOR < 8 ? VECTOR : 8, RAW_BYTES = 0;
#endif
constexpr unsigned E_ALL = BUFFERS * E_BYTES > RAW_BYTES ? BUFFERS * E_BYTES : RAW_BYTES;
// Steps of the expansion whose weights stay in registers.
constexpr unsigned HELD = STEPS <= 2 || (SLICES == 1 && STEPS * SIXTEENS <= 12) ? STEPS : 1;
constexpr bool WINDOW_UNSIGNED = EXPANDS ? EXPANDED_POSITIVE : UNSIGNED;
static_assert(BY % TY == 0 && SLICE % 16 == 0 && EACH <= 32, "block");
static_assert(X_BYTES + E_ALL == SHARED_BYTES, "the host reckons otherwise");

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
NAME(const SOURCE* x, const unsigned* __restrict__ taps, const int4* __restrict__ middle_bias
#if EXPANDS
     , const uint4* __restrict__ expansion, const int4* __restrict__ bias, const float4* __restrict__ scale
#endif
#if PROJECTS
     , const float4* __restrict__ middle_scale, const uint2* __restrict__ projection, const int4* __restrict__ corrections
#endif
     EPILOGUE_BUFFERS) {
  const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, q = lane % 4;
  const unsigned part = blockIdx.x % PARTS, tile = blockIdx.x / PARTS;
  const unsigned image = tile / (TILES_X * TILES_Y), y0 = tile / TILES_X % TILES_Y * BY, x0 = tile % TILES_X * BX;
  const int iy0 = (int)(y0 * STRIDE_Y) - PADDING_Y, ix0 = (int)(x0 * STRIDE_X) - PADDING_X;
  // Whether a place is inside of the picture, and where it is.
  auto find = [&](unsigned place, int& iy, int& ix) {
    iy = iy0 + (int)(place / LINE), ix = ix0 + (int)(place % LINE);
    return place < PLACES && (unsigned)iy < H && (unsigned)ix < W;
  };
#if EXPANDS
  // Of the places of this lane in the tiles of the warp, two for each: those of two tiles are a bit of each byte.
  unsigned real[(EACH + 15) / 16] = {};
#pragma unroll(EACH > 16 ? EACH : 1)
  for (unsigned i = 0; i < EACH; i += 2) {
    int iy, ix;
    const bool inside = find((warp + (i + lane / 16) * WARPS) * 16 + lane % 16, iy, ix);
    real[i / 16] |= (__ballot_sync(~0u, inside) >> g & 0x01010101) << i / 2 % 8;
  }
#endif
#if EXPANDS
  int4 biases[SIXTEENS];
  float4 scales[SIXTEENS];
  int4 begins[SIXTEENS][2];
  uint4 held[HELD][SIXTEENS];  // of a shallow product, for all tiles
  auto fetch_slice = [&](unsigned slice) {
#pragma unroll
    for (unsigned n = 0; n < SIXTEENS; n++) {
      biases[n] = bias[(slice * SIXTEENS + n) * 4 + q], scales[n] = scale[(slice * SIXTEENS + n) * 4 + q];
#pragma unroll
      for (unsigned k = 0; k < HELD; k++) held[k][n] = expansion[((slice * STEPS + k) * SIXTEENS + n) * 32 + lane];
    }
  };
#endif
  // The weights that are needed next are under way while something else is computed, or awaited.
  unsigned words[2][TAP_WORDS];
  int4 middle_biases;
#if PROJECTS
  float4 middle_scales;
#endif
  auto fetch_taps = [&](unsigned sixteen) {
#pragma unroll
    for (unsigned c = 0; c < 2; c++)
#pragma unroll
      for (unsigned j = 0; j < TAP_WORDS; j++) words[c][j] = taps[(((sixteen * 2 + c) * TAP_WORDS + j) * 2 + q / 2) * 8 + g];
    middle_biases = middle_bias[sixteen * 4 + q];
#if PROJECTS
    middle_scales = middle_scale[sixteen * 4 + q];
#endif
  };
  // The first ones are nobody's output: they may come while the kernel before this one still runs.
#if EXPANDS
  fetch_slice(part * SLICES);
  if (SLICES == 1) fetch_taps(part * SLICES * SIXTEENS);
#endif
  wait_for_predecessors();
  launch_dependents();

#if STEM
  const int first_byte = (ix0 * STEM_STRIDE_X - STEM_PADDING_X) * PIXEL, copied_from = first_byte & ~(int)(CHUNK - 1);
  const int top = iy0 * STEM_STRIDE_Y - STEM_PADDING_Y;
#pragma unroll 4
  for (unsigned item = thread; item < RAW_ROWS * RAW_CHUNKS; item += THREADS) {
    const unsigned row = item / RAW_CHUNKS, to = X_BYTES + row * RAW_PITCH + item % RAW_CHUNKS * CHUNK;
    const int y = top + (int)row, byte = copied_from + (int)(item % RAW_CHUNKS * CHUNK);
    const bool line = (unsigned)y < IN_H, real = line && (unsigned)byte < IN_W * PIXEL;
    const unsigned from = line ? image * PITCH_B + y * PITCH_Y + OFFSET : 0;
    if (VECTOR == 0) {
      unsigned word = 0;
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const int at = byte + e;
        const bool there = line && (unsigned)at < IN_W * PIXEL;
        word |= (there ? (unsigned)(unsigned char)x[from + at / PIXEL * PITCH_X + at % PIXEL * PITCH_C] : 0) << 8 * e;
      }
      *(unsigned*)(shared + to) = word;
    } else if (CHUNK == 16) {
      copy16(to, x + (real ? from + byte : 0), real);
    } else if (CHUNK == 8) {
      copy8(to, x + (real ? from + byte : 0), real);
    } else {
      copy4(to, x + (real ? from + byte : 0), real);
    }
  }
  copies_commit();
  copies_wait<0>();
  __syncthreads();
#pragma unroll 1
  for (unsigned place = thread; place < PLACES; place += THREADS) {
    int iy, ix;
    if (!find(place, iy, ix)) continue;  // what is expanded of that is not kept
    unsigned words[DEPTH / 4] = {};
    const int y0 = iy * STEM_STRIDE_Y - STEM_PADDING_Y, x0 = ix * STEM_STRIDE_X - STEM_PADDING_X;
    const unsigned from = X_BYTES + (unsigned)(y0 - top) * RAW_PITCH + (unsigned)(x0 * PIXEL - copied_from);
    const bool edge = x0 < 0 || x0 + STEM_W > IN_W;
#pragma unroll
    for (int ky = 0; ky < STEM_H; ky++) {
      unsigned found[RUN_WORDS + 1];
      const unsigned at = from + ky * RAW_PITCH, turn = at % 4 * 8;
      const unsigned* const row = (const unsigned*)(shared + (at & ~3u));
#pragma unroll
      for (unsigned n = 0; n <= RUN_WORDS; n++) found[n] = row[n];
#pragma unroll
      for (unsigned n = 0; n <= RUN_WORDS; n++)
        found[n] = (unsigned)(((unsigned long long)(n < RUN_WORDS ? found[n + 1] : 0) << 32 | found[n]) >> turn);
      const bool line = (unsigned)(y0 + ky) < IN_H;
      if (edge || !line) {
#pragma unroll
        for (int b = 0; b < (int)RUN_BYTES; b++)
          if (!line || (unsigned)(x0 + b / PIXEL) >= IN_W)
            found[b / 4] = (found[b / 4] & ~(255u << b % 4 * 8)) | (OUTSIDE & 255u << b % 4 * 8);
      }
#pragma unroll
      for (unsigned n = 0; n < RUN_WORDS; n++) words[ky * RUN_WORDS + n] = found[n];
      if (ONE_MORE) words[STEM_H * RUN_WORDS] |= (found[RUN_WORDS] & 255) << 8 * ky;
    }
#pragma unroll
    for (unsigned n = 0; n < DEPTH / 16; n++)
      *(uint4*)(shared + place * X_PITCH + n * 16) = uint4{words[n * 4], words[n * 4 + 1], words[n * 4 + 2], words[n * 4 + 3]};
  }
#else
  // So many chunks of each place, from a channel on.
  auto copy_places = [&](unsigned channel0, unsigned chunks, unsigned at) {
#pragma unroll 4
    for (unsigned item = thread; item < PLACES * chunks; item += THREADS) {
      const unsigned place = item / chunks, first = item % chunks * CHUNK, channel = channel0 + first;
      int iy, ix;
      const bool inside = find(place, iy, ix);
      const unsigned from = inside ? image * PITCH_B + iy * PITCH_Y + ix * PITCH_X + channel * PITCH_C + OFFSET : 0;
      if (channel >= CHANNELS) continue;  // whose weights are zero
#if EXPANDS
      const unsigned to = at + place * X_PITCH + first;
#else
      const unsigned to = at + first / 8 * PLANE + place * 8 + first % 8;
      if (!inside) {
#pragma unroll
        for (unsigned e = 0; e < CHUNK; e += 4) *(unsigned*)(shared + to + e) = OUTSIDE;
        continue;
      }
#endif
      if (VECTOR == 0) {
        unsigned word = 0;
#pragma unroll
        for (unsigned e = 0; e < 4; e++)
          word |= inside && channel + e < CHANNELS ? (unsigned)(unsigned char)x[from + e * PITCH_C] << 8 * e : 0;
        *(unsigned*)(shared + to) = word;
      } else if (CHUNK == 16) {
        copy16(to, x + from, inside);
      } else if (CHUNK == 8) {
        copy8(to, x + from, inside);
      } else {
        copy4(to, x + from, inside);
      }
    }
    copies_commit();
  };
#if EXPANDS
  copy_places(0, (CHANNELS + CHUNK - 1) / CHUNK, 0);
#else
  copy_places(part * SLICES * SLICE, SLICE / CHUNK, 0);
#endif
#endif
  unsigned selectors[4];
  select_taps(selectors, lane);
#if PROJECTS
  int totals[UNITS_EACH][TY / 2][TURNS][OUT_TILES][4] = {};
#endif
#if EXPANDS
  copies_wait<0>();
  __syncthreads();
#endif

#pragma unroll 1
  for (unsigned s = 0; s < SLICES; s++) {
    const unsigned slice = part * SLICES + s, e0 = X_BYTES + s % BUFFERS * E_BYTES;
#if EXPANDS
    if (s > 0) fetch_slice(slice);
#pragma unroll
    for (unsigned n = 0; n < SIXTEENS; n++) begin_stage<EXPANDED_NEAR, EXPANDED_FUSED>(begins[n], biases[n], scales[n]);
    const uint4* const factors = expansion + slice * (STEPS * SIXTEENS * 32) + lane;
#pragma unroll 2
    for (unsigned i = 0; i < EACH; i++) {
      const unsigned t = warp + i * WARPS;
      if (TILES % WARPS != 0 && t >= TILES) break;
      int sums[SIXTEENS][2][4];
      expand<DEPTH>(sums, (t * 16 + lane % 16) * X_PITCH, lane, begins, [&](unsigned k, unsigned n) {
        return k < HELD ? held[k < HELD ? k : 0][n] : factors[(k * SIXTEENS + n) * 32];
      });
#ifdef EXPANSION_RESTS
#define F(SIXTEEN, Q, E, INPUT, REST) \
  if (slice == SIXTEEN / SIXTEENS && q == Q) { \
    sums[SIXTEEN % SIXTEENS][E / 2][E % 2] += REST * byte_at<UNSIGNED>((t * 16 + g) * X_PITCH + INPUT); \
    sums[SIXTEEN % SIXTEENS][E / 2][E % 2 + 2] += REST * byte_at<UNSIGNED>((t * 16 + 8 + g) * X_PITCH + INPUT); \
  }
      EXPANSION_RESTS
#undef F
#endif
      const unsigned to = e0 + q / 2 * PLANE + (t * 16 + g) * 8 + q % 2 * 4;
#pragma unroll
      for (unsigned h = 0; h < 2; h++) {
        const bool here = (EACH > 16 && i >= 16 ? real[EACH > 16] : real[0]) >> i / 2 % 8 >> (i % 2 * 16 + h * 8) & 1;
#pragma unroll
        for (unsigned n = 0; n < SIXTEENS; n++) {
          const int(&low)[4] = sums[n][0], (&high)[4] = sums[n][1];
          const int4 v = {low[2 * h], low[2 * h + 1], high[2 * h], high[2 * h + 1]};
          const unsigned word = expanded_bytes(v, biases[n], scales[n]);
          *(unsigned*)(shared + to + h * 64 + n * 2 * PLANE) = here ? word : (EXPANDED_OFFSET & 255) * 0x1010101u;
        }
      }
    }
#else
    if (BUFFERS == 1 && s > 0) copy_places(slice * SLICE, SLICE / CHUNK, 0);
    copies_wait<0>();
#endif
    if (!EXPANDS || SLICES > 1) fetch_taps(slice * SIXTEENS);
    __syncthreads();
#if !EXPANDS
    if (BUFFERS == 2 && s + 1 < SLICES) copy_places((slice + 1) * SLICE, SLICE / CHUNK, (s + 1) % 2 * E_BYTES);
#endif

#pragma unroll
    for (unsigned group = 0; group < SIXTEENS; group++) {
      const unsigned sixteen = slice * SIXTEENS + group;
      unsigned weights[2][TAPS_ALL];
      spread_taps(weights, words, selectors);
      int4 more = middle_biases, middle_begin[2] = {};
#if PROJECTS
      const float4 scaling = middle_scales;
      begin_stage<MIDDLE_NEAR, MIDDLE_FUSED>(middle_begin, more, scaling);
#endif
      if (group + 1 < SIXTEENS) fetch_taps(sixteen + 1);
#if PROJECTS
      uint2 outwards[OUT_TILES / 2];
#pragma unroll
      for (unsigned n = 0; n < OUT_TILES / 2; n++) outwards[n] = projection[(sixteen * (OUT_TILES / 2) + n) * 32 + lane];
#pragma unroll
#else
#pragma unroll 1
#endif
      for (unsigned u = 0; u < UNITS_EACH; u++) {
        const unsigned unit = warp + u * WARPS, strip = unit % STRIPS, band = unit / STRIPS * TY;
        if (UNITS % WARPS != 0 && unit >= UNITS) break;
        const unsigned row = band * STRIDE_Y + lane / 8 % 2 * BETWEEN;
        const unsigned from = e0 + (row * (LINE / 2) + strip * 8 + lane % 8) * 16 + group * 2 * PLANE;
        int sums[TY / 2][TURNS][2][4];
        multiply_window<LINE, PLANE, WINDOW_UNSIGNED>(sums, from, weights, middle_begin);
#ifdef WINDOW_RESTS
        const unsigned corner = e0 + (band * STRIDE_Y * LINE + (strip * STRIP + g * TURNS) * STRIDE_X) * 8 + group * 2 * PLANE;
#define F(SIXTEEN, Q, E, KY, KX, REST) \
  if (sixteen == SIXTEEN && q == Q) \
    add_window_rest<LINE, WINDOW_UNSIGNED, E>(sums, corner + E / 2 * PLANE + (KY * LINE + KX) * 8 + 2 * Q + E % 2, REST);
        WINDOW_RESTS
#undef F
#endif
#pragma unroll
        for (unsigned w = 0; w < TURNS; w++) {
#if PROJECTS
#pragma unroll
          for (unsigned m = 0; m < TY / 2; m++) {
            const int(&low)[4] = sums[m][w][0], (&high)[4] = sums[m][w][1];
            unsigned left[2];
#pragma unroll
            for (unsigned h = 0; h < 2; h++)
              left[h] = middle_bytes(int4{low[2 * h], low[2 * h + 1], high[2 * h], high[2 * h + 1]}, more, scaling);
#pragma unroll
            for (unsigned n = 0; n < OUT_TILES; n++) {
              int(&total)[4] = totals[u][m][w][n];
              multiply_half_onto<MIDDLE_POSITIVE>(total, int4{total[0], total[1], total[2], total[3]}, left[0], left[1],
                                                  n % 2 ? outwards[n / 2].y : outwards[n / 2].x);
            }
#ifdef PROJECTION_RESTS
#define F(SIXTEEN, Q, E, TILE, COLUMN, I, REST) \
  if (sixteen == SIXTEEN) { \
    const unsigned upper = __shfl_sync(~0u, left[0], lane / 4 * 4 + Q), lower = __shfl_sync(~0u, left[1], lane / 4 * 4 + Q); \
    if (q == COLUMN) { \
      totals[u][m][w][TILE][I] += REST * byte_of<MIDDLE_POSITIVE>(upper >> 8 * E); \
      totals[u][m][w][TILE][I + 2] += REST * byte_of<MIDDLE_POSITIVE>(lower >> 8 * E); \
    } \
  }
            PROJECTION_RESTS
#undef F
#endif
          }
#else
#pragma unroll
          for (unsigned p = 0; p < TY; p++) {
            const unsigned column = strip * STRIP + g * TURNS + w, oy = y0 + band + p, ox = x0 + column, quad = sixteen * 4 + q;
            const int(&low)[4] = sums[product_of(p)][w][0], (&high)[4] = sums[product_of(p)][w][1];
            const unsigned h = half_of_rows(p) * 2;
            if (oy < OUT_H && ox < OUT_W && (BX % STRIP == 0 || column < BX) && quad < QUADS)
              STORE((image * OUT_H + oy) * OUT_W + ox, quad,
                    (int4{low[h] + more.x, low[h + 1] + more.y, high[h] + more.z, high[h + 1] + more.w}),
                    STORE_CONSTANTS(quad), STORE_OPERANDS((image * OUT_H + oy) * OUT_W + ox, quad));
          }
#endif
        }
      }
    }
    if (BUFFERS == 1) __syncthreads();
  }
#if PROJECTS
#pragma unroll
  for (unsigned n = 0; n < OUT_TILES; n += 2) {
    const unsigned quad = n * 2 + q, real_quad = quad < QUADS ? quad : QUADS - 1;
    const int4 more = corrections[real_quad];
    const STORE_CONSTANTS_TYPE constants = STORE_CONSTANTS(real_quad);
#pragma unroll
    for (unsigned u = 0; u < UNITS_EACH; u++) {
      const unsigned unit = warp + u * WARPS, strip = unit % STRIPS, band = unit / STRIPS * TY;
      if (UNITS % WARPS != 0 && unit >= UNITS) break;
      // What the epilogue reads of all pixels is under way before the first one is stored; where there is none, that of
      // one that there is.
      STORE_OPERANDS_TYPE operands[TURNS][TY];
#pragma unroll
      for (unsigned w = 0; w < TURNS; w++)
#pragma unroll
        for (unsigned p = 0; p < TY; p++) {
          const unsigned oy = y0 + band + p, ox = x0 + strip * STRIP + g * TURNS + w;
          operands[w][p] = STORE_OPERANDS(
              ((image * OUT_H + (oy < OUT_H ? oy : OUT_H - 1)) * OUT_W + (ox < OUT_W ? ox : OUT_W - 1)), real_quad);
        }
#pragma unroll
      for (unsigned w = 0; w < TURNS; w++)
#pragma unroll
        for (unsigned p = 0; p < TY; p++) {
          const unsigned column = strip * STRIP + g * TURNS + w, oy = y0 + band + p, ox = x0 + column;
          if (quad >= QUADS || oy >= OUT_H || ox >= OUT_W || (BX % STRIP != 0 && column >= BX)) continue;
          const unsigned m = product_of(p), h = half_of_rows(p) * 2;
          const int(&low)[4] = totals[u][m][w][n], (&high)[4] = totals[u][m][w][n + 1];
          STORE((image * OUT_H + oy) * OUT_W + ox, quad,
                (int4{low[h] + more.x, low[h + 1] + more.y, high[h] + more.z, high[h + 1] + more.w}), constants, operands[w][p]);
        }
    }
  }
#endif
}
