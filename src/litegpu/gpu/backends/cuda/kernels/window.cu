// Convolution with a window of several taps, on tensor cores: a workgroup keeps the weights of BN outputs in shared
// memory, and walks over blocks of BY x BX output pixels. The input pixels that a block needs are copied once, while the
// block before it is computed; the tensor cores read every tap from there.
//
// Constants from the host: BY BX BN; WARPS_M WARPS_N; TILES_N TILES_Y TILES_X BATCH GROUPS (workgroups for each BN);
// QUADS; OUT_H OUT_W; H W (of the input, upsampled); UPSAMPLE_*, BORDER (border.cu); CHANNELS TAPS KERNEL_W; STRIDE_*,
// DILATION_*, PADDING_*; OFFSET PITCH_* (elements, of the input's view);
// DEPTH (of the packed weights, a multiple of 32); VECTOR: channels copied at once, 8 or 4, or 0 for one by one.

constexpr unsigned TAP_CHUNKS = (CHANNELS + 7) / 8;            // 16 bytes each
constexpr unsigned PIXEL_BYTES = (TAP_CHUNKS | 1) * 16;        // odd: neighbours begin in different banks
constexpr unsigned HALO_Y = (BY - 1) * STRIDE_Y + ((TAPS - 1) / KERNEL_W) * DILATION_Y + 1;
constexpr unsigned HALO_X = (BX - 1) * STRIDE_X + (KERNEL_W - 1) * DILATION_X + 1;
constexpr unsigned HALO_BYTES = HALO_Y * HALO_X * PIXEL_BYTES;
constexpr unsigned WEIGHT_BYTES = (DEPTH / 8 | 1) * 16;        // of a row
constexpr unsigned OFFSETS = 2 * HALO_BYTES, WEIGHTS = (OFFSETS + DEPTH / 8 * 4 + 15) / 16 * 16;
constexpr unsigned THREADS = 32 * WARPS_M * WARPS_N, TILES = BATCH * TILES_Y * TILES_X;
constexpr unsigned ROWS = BY * BX / WARPS_M / 16, COLUMNS = BN / WARPS_N / 8;  // products of a warp
static_assert(WEIGHTS + BN * WEIGHT_BYTES == SHARED_BYTES, "the host reckons otherwise");

struct Block { unsigned image, y, x; };  // of output pixels

INLINE Block block_at(unsigned turn) {
  const unsigned tile = in_turn(turn, TILES), row = tile / TILES_X;
  return {row / TILES_Y, row % TILES_Y * BY, tile % TILES_X * BX};
}

extern "C" __global__ void __launch_bounds__(THREADS)
NAME(const SOURCE* x, const unsigned short* __restrict__ w EPILOGUE_BUFFERS) {
  const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const unsigned warp_m = warp % WARPS_M, warp_n = warp / WARPS_M;
  const unsigned column0 = blockIdx.x % TILES_N * BN;

  for (unsigned i = thread; i < BN * DEPTH / 8; i += THREADS) {
    const unsigned row = i / (DEPTH / 8), chunk = i % (DEPTH / 8);
    copy16(WEIGHTS + row * WEIGHT_BYTES + chunk * 16, w + (column0 + row) * DEPTH + chunk * 8, true);
  }
  int* const offsets = (int*)(shared + OFFSETS);  // from a pixel to the chunks that it is multiplied with
  for (unsigned i = thread; i < DEPTH / 8; i += THREADS) {
    const unsigned tap = i / TAP_CHUNKS < TAPS ? i / TAP_CHUNKS : 0;  // weights past the last tap are zero
    offsets[i] = (tap / KERNEL_W * DILATION_Y * HALO_X + tap % KERNEL_W * DILATION_X) * PIXEL_BYTES + i % TAP_CHUNKS * 16;
  }
  auto copy_halo = [&](unsigned tile, unsigned slot) {
    const Block block = block_at(tile);
    const int y0 = (int)(block.y * STRIDE_Y) - PADDING_Y, x0 = (int)(block.x * STRIDE_X) - PADDING_X;
    for (unsigned i = thread; i < HALO_Y * HALO_X * TAP_CHUNKS; i += THREADS) {
      const unsigned pixel = i / TAP_CHUNKS, channel = i % TAP_CHUNKS * 8;
      bool real = true;
      const int iy = inside(y0 + (int)(pixel / HALO_X), H, UPSAMPLE_Y, real);
      const int ix = inside(x0 + (int)(pixel % HALO_X), W, UPSAMPLE_X, real);
      const unsigned to = slot * HALO_BYTES + pixel * PIXEL_BYTES + channel * 2;
      const unsigned from = block.image * PITCH_B + iy * PITCH_Y + ix * PITCH_X + channel * PITCH_C + OFFSET;
#if VECTOR == 8
      copy16(to, x + (real ? from : 0), real);
#elif VECTOR == 4
      const bool second = real && channel + 4 < CHANNELS;
      copy8(to, x + (real ? from : 0), real);
      copy8(to + 8, x + (second ? from + 4 : 0), second);
#else
      float values[8];
#pragma unroll
      for (unsigned e = 0; e < 8; e++) values[e] = real && channel + e < CHANNELS ? LOAD(x[from + e * PITCH_C]) : 0.0f;
      *(uint4*)(shared + to) = uint4{pack_half2(values[0], values[1]), pack_half2(values[2], values[3]),
                                     pack_half2(values[4], values[5]), pack_half2(values[6], values[7])};
#endif
    }
  };

  unsigned a_at[ROWS];  // the first tap of this lane's pixel
#pragma unroll
  for (unsigned m = 0; m < ROWS; m++) {
    const unsigned row = (warp_m * ROWS + m) * 16 + lane % 16;
    a_at[m] = (row / BX * STRIDE_Y * HALO_X + row % BX * STRIDE_X) * PIXEL_BYTES;
  }
  const unsigned b_at = WEIGHTS + (warp_n * COLUMNS * 8 + lane % 8) * WEIGHT_BYTES + lane / 8 * 16;

  wait_for_predecessors();
  launch_dependents();
  unsigned tile = blockIdx.x / TILES_N, slot = 0;
  copy_halo(tile, 0);
  copies_commit();
  for (; tile < TILES; tile += GROUPS, slot ^= 1) {
    if (tile + GROUPS < TILES) copy_halo(tile + GROUPS, slot ^ 1);
    copies_commit();
    copies_wait<1>();
    __syncthreads();
    float sums[ROWS][COLUMNS][4] = {};
    for (unsigned chunk = 0; chunk < DEPTH / 8; chunk += 4) {
      unsigned b[COLUMNS][4];
#pragma unroll
      for (unsigned n = 0; n < COLUMNS; n++) load_matrices(b[n], b_at + n * 8 * WEIGHT_BYTES + chunk * 16);
#pragma unroll
      for (unsigned half = 0; half < 2; half++) {
        const unsigned tap = slot * HALO_BYTES + offsets[chunk + half * 2 + lane / 16];
#pragma unroll
        for (unsigned m = 0; m < ROWS; m++) {
          unsigned a[4];
          load_matrices(a, tap + a_at[m]);
#pragma unroll
          for (unsigned n = 0; n < COLUMNS; n++) multiply(sums[m][n], a, b[n][half * 2], b[n][half * 2 + 1]);
        }
      }
    }
    // A lane has two channels of two pixels; with its neighbour it exchanges one for the other's, and has a quad of one.
    const Block block = block_at(tile);
    const bool odd = lane % 2;
#pragma unroll
    for (unsigned m = 0; m < ROWS; m++)
#pragma unroll
      for (unsigned n = 0; n < COLUMNS; n++) {
        const float* s = sums[m][n];
        const float first = __shfl_xor_sync(0xffffffffu, odd ? s[0] : s[2], 1);
        const float second = __shfl_xor_sync(0xffffffffu, odd ? s[1] : s[3], 1);
        const float4 total = odd ? float4{first, second, s[2], s[3]} : float4{s[0], s[1], first, second};
        const unsigned row = (warp_m * ROWS + m) * 16 + lane / 4 + odd * 8;
        const unsigned oy = block.y + row / BX, ox = block.x + row % BX;
        const unsigned quad = (column0 + (warp_n * COLUMNS + n) * 8) / 4 + lane % 4 / 2;
        if (oy < OUT_H && ox < OUT_W && quad < QUADS) STORE((block.image * OUT_H + oy) * OUT_W + ox, quad, total);
      }
    __syncthreads();  // the next but one block is copied over this one
  }
}
