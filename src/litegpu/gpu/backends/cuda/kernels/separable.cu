// A depthwise convolution and the 1x1 convolution after it: a workgroup computes the depthwise results of BY x BX output
// pixels in shared memory, all channels, and multiplies them there with BN columns of the 1x1 convolution's weights,
// which arrive meanwhile.
//
// Constants from the host: those of product.cu with HALF 1 and BM = BY * BX; BY BX STAGES; RUN (neighbours that a thread
// computes); TILES_N TILES_Y TILES_X; QUADS; DEPTH (channels of the packed weights); OUT_H OUT_W; H W CHANNELS KERNEL_H
// KERNEL_W STRIDE_* DILATION_* PADDING_*; OFFSET PITCH_* (elements, of the input's view); VECTOR: channels copied at once,
// 8 or 4, or 0 for one by one; INNER(quad, value): what the depthwise convolution does with its sums.
constexpr unsigned LEFT_PITCH = DEPTH * 2 + 16;  // bytes; an odd number of 16, so that rows begin in different banks
constexpr unsigned LEFT_BYTES = BM * LEFT_PITCH, RIGHT_BYTES = BN * ROW_BYTES, STEPS = DEPTH / BK;
constexpr unsigned COPIES = (BN * CHUNKS + THREADS - 1) / THREADS;
constexpr unsigned SPAN = (RUN - 1) * STRIDE_X + (KERNEL_W - 1) * DILATION_X + 1;
static_assert(BM == BY * BX && BX % RUN == 0 && DEPTH % BK == 0, "block");

// Whether a run of pixels needs input number i of its row.
INLINE constexpr bool needed(unsigned i) {
  for (unsigned r = 0; r < RUN; r++)
    for (unsigned k = 0; k < KERNEL_W; k++)
      if (r * STRIDE_X + k * DILATION_X == i) return true;
  return false;
}

INLINE void unpack(uint4 a, float (&v)[8]) {
  const unsigned words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
  for (unsigned i = 0; i < 4; i++) {
    v[2 * i] = half_to_float((unsigned short)words[i]);
    v[2 * i + 1] = half_to_float((unsigned short)(words[i] >> 16));
  }
}

// Eight channels, or zeros unless `real`.
INLINE void load(const SOURCE* x, unsigned from, unsigned channel, bool real, float (&v)[8]) {
#if VECTOR == 8
  unpack(real ? *(const uint4*)(x + from) : uint4{0, 0, 0, 0}, v);
#elif VECTOR == 4
  const uint2 low = real ? *(const uint2*)(x + from) : uint2{0, 0};
  const uint2 high = real && channel + 4 < CHANNELS ? *(const uint2*)(x + from + 4) : uint2{0, 0};
  unpack(uint4{low.x, low.y, high.x, high.y}, v);
#else
#pragma unroll
  for (unsigned e = 0; e < 8; e++) v[e] = real && channel + e < CHANNELS ? LOAD(x[from + e * PITCH_C]) : 0.0f;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
NAME(const SOURCE* x, const unsigned short* __restrict__ taps, const unsigned short* __restrict__ w EPILOGUE_BUFFERS) {
  const unsigned thread = threadIdx.x, column0 = blockIdx.x % TILES_N * BN, tile = blockIdx.x / TILES_N;
  const unsigned image = tile / (TILES_X * TILES_Y), y0 = tile / TILES_X % TILES_Y * BY, x0 = tile % TILES_X * BX;

  auto copy_weights = [&](unsigned step) {
#pragma unroll
    for (unsigned i = 0; i < COPIES; i++) {
      const unsigned row = (thread + i * THREADS) / CHUNKS, chunk = thread % CHUNKS;
      if (BN * CHUNKS % THREADS == 0 || row < BN)
        copy16(LEFT_BYTES + step % STAGES * RIGHT_BYTES + place(row, chunk),
               w + (column0 + row) * DEPTH + step * BK + chunk * PER_CHUNK, true);
    }
  };
#pragma unroll
  for (unsigned s = 0; s < STAGES - 1; s++) {
    if (s < STEPS) copy_weights(s);
    copies_commit();
  }
  wait_for_predecessors();
  launch_dependents();

  for (unsigned item = thread; item < DEPTH / 8 * (BM / RUN); item += THREADS) {
    const unsigned chunk = item % (DEPTH / 8), run = item / (DEPTH / 8), channel = chunk * 8;
    const unsigned row = run / (BX / RUN), column = run % (BX / RUN) * RUN;
    float sums[RUN][8] = {};
    if (channel < CHANNELS) {
      const int iy0 = (int)((y0 + row) * STRIDE_Y) - PADDING_Y, ix0 = (int)((x0 + column) * STRIDE_X) - PADDING_X;
      const unsigned base = image * PITCH_B + channel * PITCH_C + OFFSET;
#pragma unroll
      for (unsigned ky = 0; ky < KERNEL_H; ky++) {
        const int iy = iy0 + (int)(ky * DILATION_Y);
        const bool inside = (unsigned)iy < H;
        float weights[KERNEL_W][8];
#pragma unroll
        for (unsigned kx = 0; kx < KERNEL_W; kx++)
          unpack(__ldg((const uint4*)(taps + (ky * KERNEL_W + kx) * DEPTH + channel)), weights[kx]);
#pragma unroll
        for (unsigned i = 0; i < SPAN; i++) {
          if (!needed(i)) continue;
          const int ix = ix0 + (int)i;
          float v[8];
          load(x, base + iy * PITCH_Y + ix * PITCH_X, channel, inside && (unsigned)ix < W, v);
#pragma unroll
          for (unsigned r = 0; r < RUN; r++)
#pragma unroll
            for (unsigned kx = 0; kx < KERNEL_W; kx++)
              if (r * STRIDE_X + kx * DILATION_X == i)
#pragma unroll
                for (unsigned e = 0; e < 8; e++) sums[r][e] = fmaf(v[e], weights[kx][e], sums[r][e]);
        }
      }
    }
#pragma unroll
    for (unsigned r = 0; r < RUN; r++) {
      uint4 packed = {0, 0, 0, 0};  // past the last channel
      if (channel < CHANNELS) {
        const float4 a = INNER(chunk * 2, (float4{sums[r][0], sums[r][1], sums[r][2], sums[r][3]}));
        packed.x = pack_half2(a.x, a.y), packed.y = pack_half2(a.z, a.w);
      }
      if (channel + 4 < CHANNELS) {
        const float4 a = INNER(chunk * 2 + 1, (float4{sums[r][4], sums[r][5], sums[r][6], sums[r][7]}));
        packed.z = pack_half2(a.x, a.y), packed.w = pack_half2(a.z, a.w);
      }
      *(uint4*)(shared + (row * BX + column + r) * LEFT_PITCH + chunk * 16) = packed;
    }
  }

  Product product;
  for (unsigned step = 0; step < STEPS; step++) {
    copies_wait<STAGES - 2>();
    __syncthreads();
    if (step + STAGES - 1 < STEPS) copy_weights(step + STAGES - 1);
    copies_commit();
    product.add([&](unsigned row, unsigned chunk) { return row * LEFT_PITCH + (step * CHUNKS + chunk) * 16; },
                LEFT_BYTES + step % STAGES * RIGHT_BYTES);
  }
  product.store([&](unsigned row, unsigned column, float4 total, unsigned) {
    const unsigned oy = y0 + row / BX, ox = x0 + row % BX, quad = column0 / 4 + column;
    if (oy < OUT_H && ox < OUT_W && quad < QUADS) STORE((image * OUT_H + oy) * OUT_W + ox, quad, total);
  });
}
