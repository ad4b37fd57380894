// Convolution in groups on tensor cores. A workgroup copies the inputs of TY x TX output pixels for BUNDLES bundles of
// groups to shared memory, once for all taps. A warp then multiplies 16 pixels at a time by 8 outputs of a bundle, whose
// weights stay in its registers; the depth are the taps times the bundle's inputs, 16 at a time. Sums are float.
//
// Constants from the host: IN OUT (channels of a bundle, multiples of 8); ALL (bundles); BUNDLES TY TX WARPS; GROUPS_C
// GROUPS_X GROUPS_Y (workgroups); SLICES (parts of the pixels that warps take); OUT_H OUT_W; H W; KERNEL_H KERNEL_W;
// STRIDE_*, DILATION_*, PADDING_*; OFFSET PITCH_B PITCH_Y PITCH_X (elements, of the input's view).

constexpr unsigned CHUNKS = IN / 8, DEPTH = KERNEL_H * KERNEL_W * CHUNKS, STEPS = (DEPTH + 1) / 2, COLUMNS_N = OUT / 8;
constexpr unsigned ROWS = (TY - 1) * STRIDE_Y + (KERNEL_H - 1) * DILATION_Y + 1;
constexpr unsigned COLUMNS = (TX - 1) * STRIDE_X + (KERNEL_W - 1) * DILATION_X + 1;
constexpr unsigned ACROSS = BUNDLES * CHUNKS;  // 16 bytes each, of a pixel
constexpr unsigned PITCH = ACROSS | 1;         // odd, so that neighbouring pixels lie in different banks
constexpr unsigned FIRST = 16;                 // behind a chunk of zeros
constexpr unsigned PIXELS = TY * TX, TILES = (PIXELS + 15) / 16, THREADS = 32 * WARPS;
constexpr unsigned AHEAD = STEPS < 5 ? STEPS : 5;  // steps whose inputs are loaded together

// Where chunk number `chunk` of the depth lies, from the first tap of a pixel on.
INLINE constexpr unsigned place(unsigned chunk) {
  const unsigned tap = chunk / CHUNKS;
  return ((tap / KERNEL_W * DILATION_Y * COLUMNS + tap % KERNEL_W * DILATION_X) * PITCH + chunk % CHUNKS) * 16;
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const unsigned short* x, const uint2* w EPILOGUE_BUFFERS) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = blockIdx.x;
  const unsigned bundle0 = group % GROUPS_C * BUNDLES, ox0 = group / GROUPS_C % GROUPS_X * TX;
  const unsigned oy0 = group / (GROUPS_C * GROUPS_X) % GROUPS_Y * TY, image = group / (GROUPS_C * GROUPS_X * GROUPS_Y);
  if (threadIdx.x == 0) *(uint4*)shared = uint4{0, 0, 0, 0};
  wait_for_predecessors();
  launch_dependents();

  const int iy0 = (int)(oy0 * STRIDE_Y) - PADDING_Y, ix0 = (int)(ox0 * STRIDE_X) - PADDING_X;
  const unsigned short* const first =
      x + ((long long)image * PITCH_B + (long long)iy0 * PITCH_Y + (long long)ix0 * PITCH_X + bundle0 * IN + OFFSET);
#pragma unroll 4
  for (unsigned i = threadIdx.x; i < ROWS * COLUMNS * ACROSS; i += THREADS) {
    const unsigned chunk = i % ACROSS, column = i / ACROSS % COLUMNS, row = i / (ACROSS * COLUMNS);
    const bool real = (unsigned)(iy0 + (int)row) < H && (unsigned)(ix0 + (int)column) < W &&
                      (ALL % BUNDLES == 0 || bundle0 * CHUNKS + chunk < ALL * CHUNKS);
    copy16(FIRST + (i / ACROSS * PITCH + chunk) * 16,
           real ? first + ((long long)row * PITCH_Y + column * PITCH_X + chunk * 8) : x, real);
  }
  copies_commit();
  copies_wait<0>();
  __syncthreads();

  for (unsigned unit = warp; unit < BUNDLES * COLUMNS_N * SLICES; unit += WARPS) {
    const unsigned bundle = unit % BUNDLES, n = unit / BUNDLES % COLUMNS_N, slice = unit / (BUNDLES * COLUMNS_N);
    if (ALL % BUNDLES != 0 && bundle0 + bundle >= ALL) continue;
    uint2 right[STEPS];
#pragma unroll
    for (unsigned s = 0; s < STEPS; s++) right[s] = w[(((bundle0 + bundle) * COLUMNS_N + n) * STEPS + s) * 32 + lane];
#pragma unroll 2
    for (unsigned tile = slice; tile < TILES; tile += SLICES) {
      const unsigned mine = tile * 16 + lane % 16, pixel = mine < PIXELS ? mine : PIXELS - 1;
      const unsigned from =
          FIRST + ((pixel / TX * STRIDE_Y * COLUMNS + pixel % TX * STRIDE_X) * PITCH + bundle * CHUNKS) * 16;
      float sums[4] = {};
#pragma unroll
      for (unsigned s0 = 0; s0 < STEPS; s0 += AHEAD) {
        unsigned left[AHEAD][4];
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++) {
          const unsigned chunk = 2 * (s0 + i);
          if (chunk >= DEPTH) continue;
          load_matrices(left[i], lane < 16 ? from + place(chunk) : chunk + 1 < DEPTH ? from + place(chunk + 1) : 0);
        }
#pragma unroll
        for (unsigned i = 0; i < AHEAD; i++)
          if (s0 + i < STEPS) multiply(sums, left[i], right[s0 + i].x, right[s0 + i].y);
      }
      // A lane has two columns of two rows; with its neighbour's it has four of one of them.
      const bool odd = lane % 2;
      const float send0 = odd ? sums[0] : sums[2], send1 = odd ? sums[1] : sums[3];
      const float other0 = __shfl_xor_sync(0xffffffffu, send0, 1), other1 = __shfl_xor_sync(0xffffffffu, send1, 1);
      const unsigned p = tile * 16 + lane / 4 + (odd ? 8 : 0), oy = oy0 + p / TX, ox = ox0 + p % TX;
      if (p < PIXELS && (OUT_H % TY == 0 || oy < OUT_H) && (OUT_W % TX == 0 || ox < OUT_W))
        STORE((image * OUT_H + oy) * OUT_W + ox, ((bundle0 + bundle) * OUT + n * 8) / 4 + lane % 4 / 2,
              (odd ? float4{other0, other1, sums[2], sums[3]} : float4{sums[0], sums[1], other0, other1}));
    }
  }
}
