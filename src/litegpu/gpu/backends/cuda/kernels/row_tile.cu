// Whole rows, 64 pixels with all their channels, as a team of four warps keeps them in shared memory to multiply them.
//
// Constants from the host: DEPTH (of a row, in whole slabs), SLAB (numbers of a row that lie together: 32 or 64); COPIED (pixel
// p of the input lies at p * PITCH_X, and eight channels can be copied at once); SOURCE and LOAD(value); those of rows.cu.
constexpr unsigned SLAB_BYTES = SLAB * 2, ROW_CHUNKS = DEPTH / 8, X_BYTES = 64 * DEPTH * 2;
static_assert(DEPTH % SLAB == 0, "whole slabs");

// Where 16 bytes of a row of a tile of `rows` rows lie: slabs one behind the other, each as matrix() expects it.
template <unsigned rows> INLINE unsigned place_in_slab(unsigned row, unsigned chunk) {
  constexpr unsigned chunks = SLAB / 8;
  const unsigned turn = chunks == 8 ? row % 8 : row / 2 % 4;
  return chunk / chunks * (rows * SLAB_BYTES) + row * SLAB_BYTES + (chunk % chunks ^ turn) * 16;
}

// The rows of a block go to `to`, brought by 128 threads, which then wait for copies.
INLINE void bring_rows(const SOURCE* x, unsigned block, unsigned to, unsigned thread) {
#pragma unroll 4
  for (unsigned i = thread; i < 64 * ROW_CHUNKS; i += 128) {
    const unsigned row = i / ROW_CHUNKS, chunk = i % ROW_CHUNKS, pixel = block * 64 + row;
    const bool real = pixel < PIXELS && chunk * 8 < CHANNELS;
#if COPIED
    copy16(to + place_in_slab<64>(row, chunk), x + (real ? pixel * PITCH_X + chunk * 8 + OFFSET : 0), real);
#else
    const unsigned line = pixel / OUT_W;
    const unsigned from = line / OUT_H * PITCH_B + line % OUT_H * PITCH_Y + pixel % OUT_W * PITCH_X + OFFSET;
    float v[8];
#pragma unroll
    for (unsigned e = 0; e < 8; e++)
      v[e] = real && chunk * 8 + e < CHANNELS ? LOAD(x[from + (chunk * 8 + e) * PITCH_C]) : 0.0f;
    *(uint4*)(shared + to + place_in_slab<64>(row, chunk)) =
        uint4{pack_half2(v[0], v[1]), pack_half2(v[2], v[3]), pack_half2(v[4], v[5]), pack_half2(v[6], v[7])};
#endif
  }
}

// d += the 64 rows at `at` times COLUMNS rows of weights at `weights`, in slabs as well.
template <unsigned columns> INLINE void multiply_rows(float (&d)[columns / 8][4], unsigned at, unsigned weights) {
  begin_products();
#pragma unroll
  for (unsigned i = 0; i < DEPTH / 16; i++) {
    const unsigned slab = i * 16 / SLAB, within = i * 32 % SLAB_BYTES;
    multiply(d, matrix<SLAB_BYTES>(at + slab * (64 * SLAB_BYTES) + within),
             matrix<SLAB_BYTES>(weights + slab * (columns * SLAB_BYTES) + within));
  }
  commit_products();
}
