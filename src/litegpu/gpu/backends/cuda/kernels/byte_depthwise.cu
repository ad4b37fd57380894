// Depthwise convolution of bytes by products of four at once: windows of up to five columns. A thread computes four
// channels of TY x TX neighbouring output pixels. It loads all its inputs, words of four channels, at once; four columns of
// a row, turned about, are four words of a channel's taps each, which serve SHARING outputs, with the weights further
// up in their word. Of five columns (WIDE) the taps are in two words, of which each output has its part in two fours that
// lie side by side. What the epilogue does is as in runs.cu, with runs of four channels.
//
// Constants from the host: those of runs.cu (RUN 4, BN 16); UNSIGNED and OUTSIDE (the input's bytes; a word of what is
// outside of it, signed); TX TY; WC WX WY (threads of a workgroup: along quads of channels, then blocks of pixels), GROUPS_C
// GROUPS_X GROUPS_Y (workgroups along these, then images); OUT_H OUT_W H W; KERNEL_H SHARING STRIDE_* PADDING_*; OFFSET
// PITCH_* (elements, of the input's view). RESTS, if there are any: F(quad, channel of it, KY, KX, rest) for each tap that no
// signed byte holds (byte_rests.py). SUMS_AT, perhaps: where in sums_of, [images][COPIES][channels], the sums of all pixels
// of each channel of a result are added up, with SUMS_UNSIGNED of bytes without a sign.
constexpr bool WIDE = KERNEL_W > 4;
constexpr int LAST = (TX - 1) * STRIDE_X + KERNEL_W;  // columns that count
constexpr int ROWS = (TY - 1) * STRIDE_Y + KERNEL_H, FOURS = WIDE ? (LAST + 3) / 4 : (TX + SHARING - 1) / SHARING;  // of the input
constexpr int NEXT = WIDE ? 4 : SHARING * STRIDE_X, COLUMNS = (FOURS - 1) * NEXT + 4;  // from four to four, and of all
static_assert(KERNEL_W <= 5, "taps in two words");

// a, b, c, d are four columns of four channels; v[i] those of channel i.
INLINE void turn_about(unsigned a, unsigned b, unsigned c, unsigned d, int (&v)[4]) {
  const unsigned ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
  const unsigned more = __byte_perm(a, b, 0x7362), last = __byte_perm(c, d, 0x7362);
  v[0] = (int)__byte_perm(ab, cd, 0x5410), v[1] = (int)__byte_perm(ab, cd, 0x7632);
  v[2] = (int)__byte_perm(more, last, 0x5410), v[3] = (int)__byte_perm(more, last, 0x7632);
}

INLINE int4 multiplied(const int (&v)[4], int4 w, int4 sum) {
  return {__dp4a(v[0], w.x, sum.x), __dp4a(v[1], w.y, sum.y), __dp4a(v[2], w.z, sum.z), __dp4a(v[3], w.w, sum.w)};
}
// What two words of taps have in the first or the second of two fours, where they begin so many bits up in the first.
INLINE int placed(int low, int high, int up, bool second) {
  const unsigned long long both = (unsigned long long)(unsigned)high << 32 | (unsigned)low;
  return (int)(unsigned)(both << up >> (second ? 32 : 0));
}

#ifdef SUMS_AT
#define MORE_SUMS , int* sums_of
#else
#define MORE_SUMS
#endif

// A byte of a word.
INLINE int byte_of(unsigned word, int place) { return (int)(word << (24 - 8 * place)) >> 24; }
INLINE int& part_of(int4& sum, int place) { return place == 0 ? sum.x : place == 1 ? sum.y : place == 2 ? sum.z : sum.w; }

extern "C" __global__ void __launch_bounds__(WC * WX * WY)
NAME(const unsigned* x, const int4* w, const int4* corrections MORE_SUMS EPILOGUE_BUFFERS) {
  const unsigned thread = threadIdx.x, group = blockIdx.x;
#ifdef SUMS_AT
  __shared__ int totals[WC * 4];
  for (unsigned i = thread; i < WC * 4; i += WC * WX * WY) totals[i] = 0;
  __syncthreads();
  const unsigned own_quad = group % GROUPS_C * WC + thread % WC, quad = own_quad < QUADS ? own_quad : 0;
#else
  const unsigned quad = group % GROUPS_C * WC + thread % WC;
#endif
  const unsigned ox0 = (group / GROUPS_C % GROUPS_X * WX + thread / WC % WX) * TX;
  const unsigned oy0 = (group / (GROUPS_C * GROUPS_X) % GROUPS_Y * WY + thread / (WC * WX)) * TY;
  const unsigned image = group / (GROUPS_C * GROUPS_X * GROUPS_Y);
#ifdef SUMS_AT
  const bool real_block = own_quad < QUADS && ox0 < OUT_W && oy0 < OUT_H;  // all threads reach the barriers
  int4 stored = {};  // the sums of what this thread stores
#else
  constexpr bool real_block = true;
  if (quad >= QUADS || ox0 >= OUT_W || oy0 >= OUT_H) return;
#endif
  int4 taps[KERNEL_H], others[WIDE ? KERNEL_H : 1];  // of four channels
  // The weights are nobody's output: they may come while the kernel before this one still runs.
#pragma unroll
  for (int ky = 0; ky < KERNEL_H; ky++) {
    taps[ky] = w[ky * QUADS + quad];
    if (WIDE) others[WIDE ? ky : 0] = w[(KERNEL_H + ky) * QUADS + quad];
  }
  wait_for_predecessors();
  launch_dependents();
  const Places places PLACES;
  Channels own;
  load_channels(own, places, corrections, 0, quad);

  const int iy0 = (int)(oy0 * STRIDE_Y) - PADDING_Y, ix0 = (int)(ox0 * STRIDE_X) - PADDING_X;
  const unsigned* const first = x + (((long long)image * PITCH_B + (long long)iy0 * PITCH_Y + (long long)ix0 * PITCH_X + OFFSET) / 4 + quad);
  unsigned inputs[ROWS][COLUMNS];
#pragma unroll
  for (int i = 0; i < ROWS; i++)
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
      const bool real = j < LAST && (unsigned)(iy0 + i) < H && (unsigned)(ix0 + j) < W;
      inputs[i][j] = real ? first[i * (PITCH_Y / 4) + j * (PITCH_X / 4)] ^ (UNSIGNED ? 0x80808080u : 0u) : OUTSIDE;
    }

  int4 sums[TY][TX];
#pragma unroll
  for (int p = 0; p < TY * TX; p++) sums[p / TX][p % TX] = own.first[0];
#pragma unroll
  for (int i = 0; i < ROWS; i++) {
#pragma unroll
    for (int four = 0; four < FOURS; four++) {
      const unsigned(&row)[COLUMNS] = inputs[i];
      int v[4];
      turn_about(row[four * NEXT], row[four * NEXT + 1], row[four * NEXT + 2], row[four * NEXT + 3], v);
#pragma unroll
      for (int ky = 0; ky < KERNEL_H; ky++) {
        const int oy = (i - ky) / STRIDE_Y;
        if (i < ky || (i - ky) % STRIDE_Y || oy >= TY) continue;
#pragma unroll
        for (int ox = 0; ox < (WIDE ? TX : 0); ox++) {
          const int from = ox * STRIDE_X / 4, up = ox * STRIDE_X % 4 * 8;
          const bool second = four == from + 1;
          if ((four != from && !second) || (second && up + 8 * KERNEL_W <= 32)) continue;
          const int4 low = taps[ky], high = others[WIDE ? ky : 0];
          const int4 part = {placed(low.x, high.x, up, second), placed(low.y, high.y, up, second),
                             placed(low.z, high.z, up, second), placed(low.w, high.w, up, second)};
          sums[oy][ox] = multiplied(v, part, sums[oy][ox]);
        }
#pragma unroll
        for (int share = 0; share < (WIDE ? 0 : SHARING); share++) {
          if (four * SHARING + share >= TX) continue;
          int4& sum = sums[oy][four * SHARING + share];
          const int up = 8 * share * STRIDE_X;
          const int4 part = {(int)((unsigned)taps[ky].x << up), (int)((unsigned)taps[ky].y << up),
                             (int)((unsigned)taps[ky].z << up), (int)((unsigned)taps[ky].w << up)};
          sum = multiplied(v, part, sum);
        }
      }
    }
    // the row of outputs for which this was the last one
    const int oy = (i - (KERNEL_H - 1)) / STRIDE_Y;
    if (i < KERNEL_H - 1 || (i - (KERNEL_H - 1)) % STRIDE_Y) continue;
#pragma unroll
    for (int ox = 0; ox < TX; ox++) {
      if (!real_block || (OUT_H % TY && oy0 + oy >= OUT_H) || (OUT_W % TX && ox0 + ox >= OUT_W)) continue;
#ifdef RESTS
#define F(QUAD, CHANNEL, KY, KX, REST) \
  if (quad == QUAD) part_of(sums[oy][ox], CHANNEL) += byte_of(inputs[i - (KERNEL_H - 1) + KY][ox * STRIDE_X + KX], CHANNEL) * REST;
      RESTS
#undef F
#endif
      Row row = {};
      Quad quads;
      FINISH(own, 0, row, 0, sums[oy][ox], &quads);
      places.results[((image * OUT_H + oy0 + oy) * OUT_W + ox0 + ox) * RESULT_PITCH + RESULT_OFFSET + quad] = quads;
#ifdef SUMS_AT
      stored = byte_sums<SUMS_UNSIGNED>(quads, stored);
#endif
    }
  }
#ifdef SUMS_AT
  if (real_block) {
    int* const own_totals = totals + thread % WC * 4;
    atomicAdd(own_totals, stored.x), atomicAdd(own_totals + 1, stored.y);
    atomicAdd(own_totals + 2, stored.z), atomicAdd(own_totals + 3, stored.w);
  }
  __syncthreads();
  int* const added = sums_of + SUMS_AT + (image * COPIES + group / GROUPS_C % COPIES) * (QUADS * 4) + group % GROUPS_C * (WC * 4);
  for (unsigned i = thread; i < WC * 4; i += WC * WX * WY)
    if (group % GROUPS_C * (WC * 4) + i < QUADS * 4) atomicAdd(added + i, totals[i]);
#endif
}
