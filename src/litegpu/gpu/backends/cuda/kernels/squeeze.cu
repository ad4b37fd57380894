// What squeeze-and-excite begins with: a depthwise convolution, unless x exists (STORES 0, a window of one), and products of its
// mean over the pixels with weights. The mean is a sum and the products are linear: a workgroup multiplies the sums of its own
// pixels and channels, and writes a part of the result, of which all parts have to be added up. Nobody waits for anybody.
//
// Constants from the host beside those of depthwise_sums.cu: STORES; WC WX WY (threads of a workgroup: along chunks, a power of
// two, then blocks of pixels), GROUPS_C GROUPS_X GROUPS_Y (workgroups along these, then images); RESULTS (of the products, a
// multiple of four), SCALE (of means); PARTS (of an image, at least as many as workgroups: others are zeros).
constexpr unsigned THREADS = WC * WX * WY, WARPS = THREADS / 32, WIDE = WC * LANES;
constexpr unsigned OWN = (RESULTS + THREADS - 1) / THREADS;  // results of a thread
static_assert(THREADS % 32 == 0 && 32 % WC == 0, "lanes of a warp with the same chunk add up");

extern "C" __global__ void __launch_bounds__(THREADS)
NAME(const SOURCE* x, const float4* w, const float4* bias, const uint2* weights, float* parts EPILOGUE_BUFFERS) {
  __shared__ float4 totals[WARPS][WIDE / 4], whole[WIDE / 4];
  const unsigned thread = threadIdx.x, group = blockIdx.x;
  const unsigned chunk = group % GROUPS_C * WC + thread % WC;
  const unsigned ox0 = (group / GROUPS_C % GROUPS_X * WX + thread / WC % WX) * TX;
  const unsigned oy0 = (group / (GROUPS_C * GROUPS_X) % GROUPS_Y * WY + thread / (WC * WX)) * TY;
  const unsigned image = group / (GROUPS_C * GROUPS_X * GROUPS_Y);
  const bool real = chunk < CHUNKS && ox0 < OUT_W && oy0 < OUT_H;

  // As the taps, these are nobody's output.
  uint2 factors[OWN][WIDE / 4];
  float4 biases[LANES / 4];
#pragma unroll
  for (unsigned n = 0; n < OWN; n++)
#pragma unroll
    for (unsigned i = 0; i < WIDE / 4; i++) {
      const unsigned result = thread + n * THREADS;
      factors[n][i] = result < RESULTS ? weights[(group % GROUPS_C * (WIDE / 4) + i) * RESULTS + result] : uint2{};
    }
#pragma unroll
  for (unsigned q = 0; q < LANES / 4; q++) biases[q] = STORES && real ? bias[chunk * (LANES / 4) + q] : float4{};
  float sums[TY][TX][LANES] = {};
  add_products(x, w, real ? chunk : 0, image, real ? oy0 : 0, real ? ox0 : 0, sums);

  float4 total[LANES / 4] = {};
#pragma unroll
  for (unsigned p = 0; p < TY * TX; p++) {
    const unsigned oy = oy0 + p / TX, ox = ox0 + p % TX;
    if (!real || (OUT_H % TY && oy >= OUT_H) || (OUT_W % TX && ox >= OUT_W)) continue;
    const float(&sum)[LANES] = sums[p / TX][p % TX];
#pragma unroll
    for (unsigned q = 0; q < LANES / 4; q++) {
      float4 value = {sum[4 * q] + biases[q].x, sum[4 * q + 1] + biases[q].y, sum[4 * q + 2] + biases[q].z,
                      sum[4 * q + 3] + biases[q].w};
#if STORES
      value = ACTIVATED(value);
      STORE((image * OUT_H + oy) * OUT_W + ox, chunk * (LANES / 4) + q, value);
#endif
      total[q].x += value.x, total[q].y += value.y, total[q].z += value.z, total[q].w += value.w;
    }
  }
#pragma unroll
  for (unsigned by = 16; by >= WC; by /= 2)
#pragma unroll
    for (unsigned q = 0; q < LANES / 4; q++) {
      total[q].x += __shfl_xor_sync(0xffffffffu, total[q].x, by), total[q].y += __shfl_xor_sync(0xffffffffu, total[q].y, by);
      total[q].z += __shfl_xor_sync(0xffffffffu, total[q].z, by), total[q].w += __shfl_xor_sync(0xffffffffu, total[q].w, by);
    }
  if (thread % 32 < WC)
#pragma unroll
    for (unsigned q = 0; q < LANES / 4; q++) totals[thread / 32][thread % 32 * (LANES / 4) + q] = total[q];
  __syncthreads();
  if (thread < WIDE) {
    float sum = ((const float*)totals)[thread];
#pragma unroll
    for (unsigned warp = 1; warp < WARPS; warp++) sum += ((const float*)totals)[warp * WIDE + thread];
    ((float*)whole)[thread] = sum;
  }
  __syncthreads();
  constexpr unsigned EACH = GROUPS_C * GROUPS_X * GROUPS_Y;
#pragma unroll
  for (unsigned n = 0; n < OWN; n++) {
    const unsigned result = thread + n * THREADS;
    if (result >= RESULTS) return;
    float part = 0;
#pragma unroll
    for (unsigned i = 0; i < WIDE / 4; i++) {
      float factor[4];
      unpack(factors[n][i], factor);
      const float4 sum = whole[i];
      part = fmaf(factor[0], sum.x, fmaf(factor[1], sum.y, fmaf(factor[2], sum.z, fmaf(factor[3], sum.w, part))));
    }
    float* own = parts + (unsigned long long)image * PARTS * RESULTS + result;
    own[group % EACH * RESULTS] = part * SCALE;
    for (unsigned other = EACH + group % EACH; other < PARTS; other += EACH) own[other * RESULTS] = 0;
  }
}
