// What kernels share whose products are rows of pixels times columns of channels, by warpgroups (compute capability 9.0):
// the rows' inputs on their way into shared memory, and sums on their way out of registers.
//
// Constants from the host: BYTES (of an element: 4, floats; 2, halves; 1, bytes); BM BN BK; COPYING (threads that copy); AT_ONCE (rows
// that a lane stores at once, 4 or 8); PIXELS QUADS (of the output); OUT_H OUT_W; H W (of the input); VECTOR (channels that
// are copied at once); CHANNELS KERNEL_W TAPS; STRIDE_*, DILATION_*, PADDING_*; OFFSET PITCH_B PITCH_Y PITCH_X (elements, of
// the input's view); those of elements.cu. POOL rows that follow one another are a square: OUT_H and OUT_W are those of
// all sums, PIXELS and numbers of pixels those of what is stored.
constexpr unsigned PER_CHUNK = 16 / BYTES, ROW_BYTES = BK * BYTES, CHUNKS = ROW_BYTES / 16;
constexpr unsigned APART = COPYING / CHUNKS, COPIES = BM / APART;  // rows between the copies of a thread, and these
constexpr unsigned TAP_CHUNKS = (CHANNELS + PER_CHUNK - 1) / PER_CHUNK, PIECES = PER_CHUNK / VECTOR;  // of a chunk
static_assert(BM % APART == 0 && CHANNELS % VECTOR == 0 && TAPS <= 32, "tile");

// Where 16 bytes of a tile's row lie: as matrix() expects them.
INLINE unsigned place(unsigned row, unsigned chunk) {
  const unsigned turn = CHUNKS >= 8 ? row % 8 : row / (8 / CHUNKS) % CHUNKS;
  return row * ROW_BYTES + (chunk ^ turn) * 16;
}
INLINE unsigned least(unsigned a, unsigned b) { return a < b ? a : b; }

#ifdef FETCHED  // the input's rows are moved first
#define ROW_OF(pixel) ((pixel) < PIXELS ? FETCHED(pixel) : (pixel))
#else
#define ROW_OF(pixel) (pixel)
#endif

// What a thread copies of BM rows from number `row0` on.
struct Window {
  int from[COPIES];       // where the window of a row's pixel begins
  unsigned taps[COPIES];  // those that are inside of the image
  unsigned row, chunk;

  __device__ __forceinline__ Window(unsigned thread, unsigned row0) : row(thread / CHUNKS), chunk(thread % CHUNKS) {
    constexpr bool points = TAPS == 1 && SIDE == 1 && STRIDE_Y == 1 && STRIDE_X == 1 && PADDING_Y == 0 && PADDING_X == 0 && OUT_H == H &&
                            OUT_W == W && PITCH_Y == W * PITCH_X && PITCH_B == H * PITCH_Y;
#pragma unroll
    for (unsigned i = 0; i < COPIES; i++) {
      const unsigned pixel = ROW_OF((row0 + row + i * APART) / POOL), part = (row0 + row + i * APART) % POOL;
      if (points) {
        from[i] = (int)(pixel * PITCH_X) + OFFSET;
        taps[i] = pixel < PIXELS;
        continue;
      }
      const unsigned line = pixel / (OUT_W / SIDE), image = line / (OUT_H / SIDE);
      const int y = (int)((line % (OUT_H / SIDE) * SIDE + part / SIDE) * STRIDE_Y) - PADDING_Y;
      const int x0 = (int)((pixel % (OUT_W / SIDE) * SIDE + part % SIDE) * STRIDE_X) - PADDING_X;
      from[i] = (int)(image * PITCH_B) + y * (int)PITCH_Y + x0 * (int)PITCH_X + OFFSET;
      taps[i] = 0;
#pragma unroll
      for (unsigned tap = 0; tap < TAPS; tap++) {
        const int iy = y + (int)(tap / KERNEL_W * DILATION_Y), ix = x0 + (int)(tap % KERNEL_W * DILATION_X);
        taps[i] |= (unsigned)(pixel < PIXELS && (unsigned)iy < H && (unsigned)ix < W) << tap;
      }
    }
  }

  // Those of a step along the depth, to the tile at `to`.
  __device__ __forceinline__ void copy(const Element* x, const Element* outside, unsigned step, unsigned to) const {
    const unsigned depth = step * CHUNKS + chunk, tap = depth / TAP_CHUNKS, channel = depth % TAP_CHUNKS * PER_CHUNK;
    const int offset = tap / KERNEL_W * DILATION_Y * PITCH_Y + tap % KERNEL_W * DILATION_X * PITCH_X + channel;
    const unsigned bit = tap < TAPS ? 1u << tap : 0;
    to += place(row, chunk);
#pragma unroll
    for (unsigned i = 0; i < COPIES; i++) {
      const bool inside = taps[i] & bit;
#if PADDED
      if (!inside && bit) {  // all the same: from the second cache it would come as slowly as one by one
        copy_again(to + i * (APART * ROW_BYTES), outside);
        continue;
      }
#endif
#pragma unroll
      for (unsigned piece = 0; piece < PIECES; piece++) {
        const bool real = inside && (PIECES == 1 || channel + piece * VECTOR < CHANNELS);
        copy_piece<VECTOR * BYTES>(to + i * (APART * ROW_BYTES) + piece * (VECTOR * BYTES),
                                   x + (real ? from[i] + offset + (int)(piece * VECTOR) : 0), real);
      }
    }
  }
};

// The largest sums of POOL rows at `from`.
template <unsigned pitch> INLINE Four largest(const Sum* from) {
  Four most = *(const Four*)from;
#pragma unroll
  for (unsigned i = 1; i < POOL; i++) most = larger(most, *(const Four*)(from + i * pitch));
  return most;
}
// What a lane stores of the 16 rows of a warp whose first is `row0`, and of `columns` columns: neighbouring lanes store
// neighbouring channels.
template <unsigned columns> struct LaneRows {
  static constexpr unsigned ACROSS = columns / 4 < 32 ? columns / 4 : 32, DOWN = 32 / ACROSS;  // lanes
  static constexpr bool ONCE = columns / 4 <= 32 && 16 / POOL <= AT_ONCE * DOWN;  // one quad, and all of its rows at once
  unsigned pixel0, all, first, last;
  bool real;  // whether there are any

  __device__ __forceinline__ LaneRows(unsigned lane, unsigned row0) {
    pixel0 = row0 / POOL, all = least(16 / POOL, PIXELS - pixel0), first = lane / ACROSS;
    real = pixel0 < PIXELS && first < least(all, DOWN);
    last = first + (all - 1 - first) / DOWN * DOWN;
  }
  // The i-th of them from number `row` on. None is past the last one: that one is stored again, by the lane that has it and at
  // once with itself, as results may lie where the epilogue reads.
  __device__ __forceinline__ unsigned row(unsigned row, unsigned i) const { return least(row + i * DOWN, last); }
};
// Stores the sums that a warp has of 16 rows and `columns` columns, from row `row0` and quad `quad0` on, by way of
// `totals`, which is the warp's own, AT_ONCE rows at once by store(rows, quad, totals).
template <unsigned columns, class Store>
INLINE void store_rows(Sum* totals, const Sum (*sums)[4], unsigned lane, unsigned row0, unsigned quad0,
                       const int4* corrections, Store store) {
  constexpr unsigned pitch = columns + 8;  // so that the rows of a store lie in different banks
  Sum* const to = totals + lane / 4 * pitch + lane % 4 * 2;
#pragma unroll
  for (unsigned n = 0; n < columns / 8; n++) {
    *(Two*)(to + n * 8) = Two{sums[n][0], sums[n][1]};
    *(Two*)(to + 8 * pitch + n * 8) = Two{sums[n][2], sums[n][3]};
  }
  __syncwarp();
  typedef LaneRows<columns> Lanes;
  const Lanes own(lane, row0);
  for (unsigned q = lane % Lanes::ACROSS; q < columns / 4; q += Lanes::ACROSS) {
    if (quad0 + q >= QUADS || !own.real) continue;
    const auto more = CORRECTION(quad0 + q);
#pragma unroll 1
    for (unsigned row = own.first; row < own.all; row += AT_ONCE * Lanes::DOWN) {
      unsigned rows[AT_ONCE];
      Four found[AT_ONCE];
#pragma unroll
      for (unsigned i = 0; i < AT_ONCE; i++) {
        const unsigned at = own.row(row, i);
        rows[i] = own.pixel0 + at;
        found[i] = corrected(largest<pitch>(totals + at * (POOL * pitch) + q * 4), more);
      }
      store(rows, quad0 + q, found);
    }
  }
  __syncwarp();
}
#if AT_ONCE == 8
#define STORE_ROWS(p, quad, v, ...)                                                                                        \
  STORE(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], quad, v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], ##__VA_ARGS__)
#define STORE_ROWS_OPERANDS(p, quad) STORE_OPERANDS(p[0], p[1], p[2], p[3], p[4], p[5], p[6], p[7], quad)
#else
#define STORE_ROWS(p, quad, v, ...) STORE(p[0], p[1], p[2], p[3], quad, v[0], v[1], v[2], v[3], ##__VA_ARGS__)
#define STORE_ROWS_OPERANDS(p, quad) STORE_OPERANDS(p[0], p[1], p[2], p[3], quad)
#endif
