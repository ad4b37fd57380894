// A 1x1 convolution that widens its input (the expansion), the depthwise convolution that reads it, and with PROJECTS the
// 1x1 convolution behind that: a workgroup computes BY x BX output pixels. Their inputs lie in shared memory; SLICE
// channels at a time are expanded there, with the halo that the window needs, rounded to halves and zero outside of the
// picture. The depthwise products are done from there on tensor cores, each tap being a diagonal matrix: they read halves,
// and a matrix of eight pixels and eight channels serves several taps. Their results are stored, or, as they lie in
// registers, are the left factor of the projection. Without EXPANDS the input itself is what the window reads.
//
// Constants from the host: BY BX WARPS TY (rows of a unit: a strip of eight columns); SLICE (a multiple of 16), SLICES (of
// a workgroup), PARTS (workgroups that share the channels), BUFFERS (of slices: 1 or 2); DEPTH (channels of the packed
// weights of the expansion, a multiple of 16); OUT_TILES (eights of outputs of the projection, an even number); TILES_Y
// TILES_X; QUADS; OUT_H OUT_W; H W CHANNELS; KERNEL_H KERNEL_W STRIDE_* PADDING_* (of the window); OFFSET PITCH_*
// (elements, of the input's view); VECTOR as in separable.cu; EXPANDED(value), MIDDLE(value): what is done to the sums of
// the expansion, and with PROJECTS of the window, bias and all; EXPANDED_BOUND, MIDDLE_BOUND: instead of that, unless 0, the
// bits of two halves at which positive numbers end.
//
// Of each 16 channels, in shared memory and in all packed weights, those of the quad 4q to 4q+3 lie at 2q, 2q+1, 8+2q and
// 8+2q+1: where the products of two times eight columns leave them in one lane.
constexpr unsigned THREADS = 32 * WARPS, STEPS = DEPTH / 16, EIGHTS = SLICE / 8;
constexpr unsigned X_PITCH = DEPTH * 2 + 16, E_PITCH = SLICE * 2 + 16;  // bytes; odd numbers of 16: different banks
constexpr unsigned ROWS = (BY - 1) * STRIDE_Y + KERNEL_H;
constexpr unsigned COLUMNS = ((BX < OUT_W ? BX : OUT_W) - 1) * STRIDE_X + KERNEL_W;
// The columns that a tap needs for neighbouring pixels lie side by side.
constexpr unsigned APART = (COLUMNS + STRIDE_X - 1) / STRIDE_X, LINE = APART * STRIDE_X;
constexpr unsigned PLACES = ROWS * LINE, TILES = (PLACES + 15) / 16;  // tiles of 16 places
constexpr unsigned EACH = (TILES + WARPS - 1) / WARPS;                // of a warp
constexpr unsigned X_BYTES = EXPANDS ? TILES * 16 * X_PITCH : 0, E_BYTES = (TILES * 16 + 8) * E_PITCH;
constexpr unsigned STRIPS = (BX + 7) / 8, UNITS = STRIPS * (BY / TY), UNITS_EACH = (UNITS + WARPS - 1) / WARPS;
// The 16 rows of a depthwise product are eight pixels of two output rows: neighbours, or of stride 1 every other one, so
// that what two such products read are the same quadruples of input rows.
constexpr unsigned TOGETHER = STRIDE_Y == 1 && TY % 4 == 0 ? 2 : 1, BETWEEN = TOGETHER == 2 ? 2 : STRIDE_Y;
constexpr unsigned QUADS_DOWN = (KERNEL_H + TOGETHER) / 2;
constexpr bool HALF_LAST = (KERNEL_H + TOGETHER) % 2 == 0;  // of the last quadruple only a pair is needed
// Steps of the expansion whose weights stay in registers.
constexpr unsigned HELD = STEPS <= 2 || (SLICES == 1 && STEPS * (EIGHTS / 2) <= 12) ? STEPS : 1;
constexpr unsigned TAP_WORDS = (KERNEL_H * KERNEL_W + 1) / 2;
static_assert(BY % TY == 0 && TY % 2 == 0 && SLICE % 16 == 0 && EACH <= 32, "block");
static_assert(X_BYTES + BUFFERS * E_BYTES == SHARED_BYTES, "the host reckons otherwise");

// Which product, and half of its rows, a unit's output row is of.
INLINE constexpr unsigned product_of(unsigned row) { return TOGETHER == 2 ? row / 4 * 2 + row % 2 : row / 2; }
INLINE constexpr unsigned half_of_rows(unsigned row) { return TOGETHER == 2 ? row / 2 % 2 : row % 2; }

// Four sums of a lane, to two words: positions 2q, 2q+1 and 8+2q, 8+2q+1.
#define TO_HALVES(name, bound, function) \
  INLINE void name(float4 v, bool real, unsigned& low, unsigned& high) { \
    if (bound) { \
      const unsigned most = real ? bound : 0; \
      low = lesser_halves(pack_positive(v.x, v.y), most), high = lesser_halves(pack_positive(v.z, v.w), most); \
    } else { \
      const float4 a = function(v); \
      low = real ? pack_half2(a.x, a.y) : 0, high = real ? pack_half2(a.z, a.w) : 0; \
    } \
  }
#if EXPANDS
TO_HALVES(expanded_halves, EXPANDED_BOUND, EXPANDED)
#endif
#if PROJECTS
TO_HALVES(middle_halves, MIDDLE_BOUND, MIDDLE)
#endif

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
NAME(const SOURCE* x, const unsigned* __restrict__ taps
#if EXPANDS
     , const uint4* __restrict__ expansion, const float2* __restrict__ bias
#endif
#if PROJECTS
     , const float2* __restrict__ middle_bias
     , const uint4* __restrict__ projection
#endif
     EPILOGUE_BUFFERS) {
  const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32, g = lane / 4, q = lane % 4;
  const unsigned part = blockIdx.x % PARTS, tile = blockIdx.x / PARTS;
  const unsigned image = tile / (TILES_X * TILES_Y), y0 = tile / TILES_X % TILES_Y * BY, x0 = tile % TILES_X * BX;
  const int iy0 = (int)(y0 * STRIDE_Y) - PADDING_Y, ix0 = (int)(x0 * STRIDE_X) - PADDING_X;
  // Whether a place is inside of the picture, and where it is.
  auto find = [&](unsigned place, int& iy, int& ix) {
    const unsigned column = place % LINE;
    iy = iy0 + (int)(place / LINE), ix = ix0 + (int)(column % APART * STRIDE_X + column / APART);
    return place < PLACES && (unsigned)iy < H && (unsigned)ix < W;
  };
#if EXPANDS
  unsigned real[2] = {};  // of the places of this lane in the tiles of the warp, one bit for each tile
#pragma unroll 1
  for (unsigned i = 0; i < EACH; i++)
#pragma unroll
    for (unsigned h = 0; h < 2; h++) {
      int iy, ix;
      real[h] |= (unsigned)find((warp + i * WARPS) * 16 + h * 8 + g, iy, ix) << i;
    }
#endif
#if EXPANDS
  float2 biases[EIGHTS];
  uint4 held[HELD][EIGHTS / 2];  // of a shallow product, for all tiles
  auto fetch_slice = [&](unsigned slice) {
#pragma unroll
    for (unsigned n = 0; n < EIGHTS; n++) {
      biases[n] = bias[(slice * EIGHTS + n) * 4 + q];
    }
#pragma unroll
    for (unsigned k = 0; k < HELD; k++)
#pragma unroll
      for (unsigned n = 0; n < EIGHTS / 2; n++)
        held[k][n] = expansion[((slice * STEPS + k) * (EIGHTS / 2) + n) * 32 + lane];
  };
#endif
  // The weights that are needed next are under way while something else is computed, or awaited.
  unsigned words[2][TAP_WORDS];
  float2 middle_biases[2] = {};  // without a projection the epilogue adds it
  auto fetch_taps = [&](unsigned sixteen) {
#pragma unroll
    for (unsigned c = 0; c < 2; c++) {
#pragma unroll
      for (unsigned j = 0; j < TAP_WORDS; j++) words[c][j] = taps[((sixteen * 2 + c) * TAP_WORDS + j) * 8 + g];
#if PROJECTS
      middle_biases[c] = middle_bias[sixteen * 8 + c * 4 + q];
#endif
    }
  };
  // Those of a single slice are nobody's output: they may come while the kernel before this one still runs.
#if EXPANDS
  if (SLICES == 1) {
    fetch_slice(part);
    fetch_taps(part * (SLICE / 16));
  }
#endif
  wait_for_predecessors();
  launch_dependents();

  auto copy_places = [&](unsigned channel0, unsigned chunks, unsigned at, unsigned pitch) {
#pragma unroll 4
  for (unsigned item = thread; item < PLACES * chunks; item += THREADS) {
    const unsigned place = item / chunks, chunk = item % chunks, channel = channel0 + chunk * 8;
    int iy, ix;
    const bool inside = find(place, iy, ix) && channel < CHANNELS;
    const unsigned from = inside ? image * PITCH_B + iy * PITCH_Y + ix * PITCH_X + channel * PITCH_C + OFFSET : 0;
    const unsigned to = at + place * pitch + chunk * 16;
#if VECTOR == 8
    copy16(to, x + from, inside);
#elif VECTOR == 4
    const bool more = inside && channel + 4 < CHANNELS;
    copy8(to, x + from, inside);
    copy8(to + 8, x + (more ? from + 4 : 0), more);
#else
    float v[8];
#pragma unroll
    for (unsigned e = 0; e < 8; e++) v[e] = inside && channel + e < CHANNELS ? LOAD(x[from + e * PITCH_C]) : 0.0f;
    *(uint2*)(shared + to) = uint2{pack_half2(v[0], v[1]), pack_half2(v[2], v[3])};
    *(uint2*)(shared + to + 8) = uint2{pack_half2(v[4], v[5]), pack_half2(v[6], v[7])};
#endif
  }
  copies_commit();
  };
#if EXPANDS
  copy_places(0, DEPTH / 8, 0, X_PITCH);
#else
  copy_places(0, EIGHTS, 0, E_PITCH);
#endif
  // The diagonal of a tap for eight channels: lanes whose column is one of their two rows have its weight.
  const unsigned half = g % 2 ? 0x1044u : 0x4410u, other = g % 2 ? 0x3244u : 0x4432u;
  const unsigned first_tap = q == g / 2 ? half : 0x4444u, second_tap = q == g / 2 ? other : 0x4444u;
#if PROJECTS
  float totals[UNITS_EACH][TY / 2][OUT_TILES][4] = {};
#endif
#if EXPANDS
  copies_wait<0>();
  __syncthreads();
#endif

#pragma unroll 1
  for (unsigned s = 0; s < SLICES; s++) {
    const unsigned slice = part * SLICES + s, e0 = X_BYTES + s % BUFFERS * E_BYTES;
#if EXPANDS
    if (SLICES > 1) fetch_slice(slice);
    float4 before[EIGHTS];  // the products
#pragma unroll
    for (unsigned n = 0; n < EIGHTS; n++) before[n] = float4{biases[n].x, biases[n].y, biases[n].x, biases[n].y};
    const uint4* const factors = expansion + slice * (STEPS * (EIGHTS / 2) * 32) + lane;
#pragma unroll 2
    for (unsigned i = 0; i < EACH; i++) {
      const unsigned t = warp + i * WARPS;
      if (TILES % WARPS != 0 && t >= TILES) break;
      float sums[EIGHTS][4];
      const unsigned from = (t * 16 + lane % 16) * X_PITCH + lane / 16 * 16;
#pragma unroll
      for (unsigned k = 0; k < STEPS; k++) {
        unsigned left[4];
        load_matrices(left, from + k * 32);
#pragma unroll
        for (unsigned n = 0; n < EIGHTS / 2; n++) {
          const uint4 right = k < HELD ? held[k < HELD ? k : 0][n] : factors[(k * (EIGHTS / 2) + n) * 32];
          if (k == 0) {
            multiply_onto(sums[2 * n], before[2 * n], left, right.x, right.y);
            multiply_onto(sums[2 * n + 1], before[2 * n + 1], left, right.z, right.w);
          } else {
            multiply(sums[2 * n], left, right.x, right.y);
            multiply(sums[2 * n + 1], left, right.z, right.w);
          }
        }
      }
      const unsigned to = e0 + (t * 16 + g) * E_PITCH + q * 4;
#pragma unroll
      for (unsigned h = 0; h < 2; h++) {
        const bool here = real[h] >> i & 1;
#pragma unroll
        for (unsigned n = 0; n < EIGHTS; n += 2) {
          unsigned low, high;
          const float4 v = {sums[n][2 * h], sums[n][2 * h + 1], sums[n + 1][2 * h], sums[n + 1][2 * h + 1]};
          expanded_halves(v, here, low, high);
          *(unsigned*)(shared + to + h * 8 * E_PITCH + n * 16) = low;
          *(unsigned*)(shared + to + h * 8 * E_PITCH + n * 16 + 16) = high;
        }
      }
    }
#else
    if (BUFFERS == 1 && s > 0) copy_places(s * SLICE, EIGHTS, 0, E_PITCH);
    copies_wait<0>();
#endif
    if (!EXPANDS || SLICES > 1) fetch_taps(slice * (SLICE / 16));
    __syncthreads();
#if !EXPANDS
    if (BUFFERS == 2 && s + 1 < SLICES) copy_places((s + 1) * SLICE, EIGHTS, (s + 1) % 2 * E_BYTES, E_PITCH);
#endif

#pragma unroll 1
    for (unsigned group = 0; group < SLICE / 16; group++) {
      const unsigned sixteen = slice * (SLICE / 16) + group;
      unsigned weights[2 * TAP_WORDS][2];
#pragma unroll
      for (unsigned c = 0; c < 2; c++)
#pragma unroll
        for (unsigned j = 0; j < TAP_WORDS; j++) {
          weights[2 * j][c] = __byte_perm(words[c][j], 0, first_tap);
          weights[2 * j + 1][c] = __byte_perm(words[c][j], 0, second_tap);
        }
      float4 middle_before[2];
#pragma unroll
      for (unsigned c = 0; c < 2; c++)
        middle_before[c] = float4{middle_biases[c].x, middle_biases[c].y, middle_biases[c].x, middle_biases[c].y};
      if (group + 1 < SLICE / 16) fetch_taps(sixteen + 1);
#if PROJECTS
      uint4 outwards[OUT_TILES / 2];
#pragma unroll
      for (unsigned n = 0; n < OUT_TILES / 2; n++) outwards[n] = projection[(sixteen * (OUT_TILES / 2) + n) * 32 + lane];
#pragma unroll
#else
#pragma unroll 1
#endif
      for (unsigned u = 0; u < UNITS_EACH; u++) {
        const unsigned unit = warp + u * WARPS, strip = unit % STRIPS, band = unit / STRIPS * TY;
        if (UNITS % WARPS != 0 && unit >= UNITS) break;
        const unsigned from = e0 + (band * STRIDE_Y * LINE + strip * 8 + lane % 8 + lane / 8 % 2 * (BETWEEN * LINE)) * E_PITCH + group * 32;
        const unsigned from_quads = from + lane / 16 * (LINE * E_PITCH), from_pairs = from + lane / 16 * 16;
        float sums[TY / 2][2][4];
#pragma unroll
        for (unsigned kx = 0; kx < KERNEL_W; kx++)
#pragma unroll
          for (unsigned first = 0; first < TY / 2; first += TOGETHER) {
            const unsigned begin = 2 * first * STRIDE_Y, column = (kx % STRIDE_X * APART + kx / STRIDE_X) * E_PITCH;
            unsigned inputs[2][QUADS_DOWN][4];  // rows r, r + BETWEEN, r + 1, r + 1 + BETWEEN of twice eight channels
#pragma unroll
            for (unsigned t = 0; t < QUADS_DOWN; t++) {
              const unsigned at = (begin + 2 * t) * (LINE * E_PITCH) + column;
              if (HALF_LAST && t + 1 == QUADS_DOWN) {
                unsigned four[4];
                load_matrices(four, from_pairs + at);
                inputs[0][t][0] = four[0], inputs[0][t][1] = four[1], inputs[1][t][0] = four[2], inputs[1][t][1] = four[3];
              } else {
                load_matrices(inputs[0][t], from_quads + at);
                load_matrices(inputs[1][t], from_quads + at + 16);
              }
            }
#pragma unroll
            for (unsigned ky = 0; ky < KERNEL_H; ky++)
#pragma unroll
              for (unsigned i = 0; i < TOGETHER; i++)
#pragma unroll
                for (unsigned c = 0; c < 2; c++) {
                  const unsigned tap = kx * KERNEL_H + ky, t = i + ky;
                  float(&sum)[4] = sums[first + i][c];
                  const float4 before = kx + ky > 0 ? float4{sum[0], sum[1], sum[2], sum[3]} : middle_before[c];
                  const unsigned(&four)[4] = inputs[c][t / 2];
                  if (t % 2 == 0 && ky + 1 < KERNEL_H)
                    multiply_onto(sum, before, four, weights[tap][c], weights[tap + 1][c]);
                  else if (t % 2 == 0)
                    multiply_eight_onto(sum, before, four[0], four[1], weights[tap][c]);
                  else if (ky == 0)
                    multiply_eight_onto(sum, before, four[2], four[3], weights[tap][c]);
                }
          }
#if PROJECTS
#pragma unroll
        for (unsigned m = 0; m < TY / 2; m++) {
          unsigned left[4];
#pragma unroll
          for (unsigned h = 0; h < 2; h++) {
            const float4 v = {sums[m][0][2 * h], sums[m][0][2 * h + 1], sums[m][1][2 * h], sums[m][1][2 * h + 1]};
            middle_halves(v, true, left[h], left[2 + h]);
          }
#pragma unroll
          for (unsigned n = 0; n < OUT_TILES / 2; n++) {
            multiply(totals[u][m][2 * n], left, outwards[n].x, outwards[n].y);
            multiply(totals[u][m][2 * n + 1], left, outwards[n].z, outwards[n].w);
          }
        }
#else
#pragma unroll
        for (unsigned p = 0; p < TY; p++) {
          const unsigned oy = y0 + band + p, ox = x0 + strip * 8 + g, quad = sixteen * 4 + q, m = product_of(p), h = half_of_rows(p) * 2;
          if (oy < OUT_H && ox < OUT_W && (BX % 8 == 0 || strip * 8 + g < BX) && quad < QUADS)
            STORE((image * OUT_H + oy) * OUT_W + ox, quad,
                  (float4{sums[m][0][h], sums[m][0][h + 1], sums[m][1][h], sums[m][1][h + 1]}));
        }
#endif
      }
    }
    if (BUFFERS == 1) __syncthreads();
  }
#if PROJECTS
#pragma unroll
  for (unsigned u = 0; u < UNITS_EACH; u++) {
    const unsigned unit = warp + u * WARPS, strip = unit % STRIPS, band = unit / STRIPS * TY;
    if (UNITS % WARPS != 0 && unit >= UNITS) break;
#pragma unroll
    for (unsigned p = 0; p < TY; p++) {
      const unsigned oy = y0 + band + p, ox = x0 + strip * 8 + g, m = product_of(p), h = half_of_rows(p) * 2;
      if (oy >= OUT_H || ox >= OUT_W || (BX % 8 != 0 && strip * 8 + g >= BX)) continue;
#pragma unroll
      for (unsigned n = 0; n < OUT_TILES; n += 2) {
        const unsigned quad = n * 2 + q;
        const float(&low)[4] = totals[u][m][n], (&high)[4] = totals[u][m][n + 1];
        if (quad < QUADS)
          STORE((image * OUT_H + oy) * OUT_W + ox, quad, (float4{low[h], low[h + 1], high[h], high[h + 1]}));
      }
    }
  }
#endif
}
