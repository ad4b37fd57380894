// Depthwise convolution by the sums of depthwise_sums.cu.
//
// Constants from the host beside those: WC WX WY (threads of a workgroup: along chunks, then blocks of pixels), GROUPS_C
// GROUPS_X GROUPS_Y (workgroups along these, then images); RESIDENT (workgroups of a multiprocessor, if all run at once: there
// the compiler need not save registers, and leaves the loads together), else 0. With BEGUN the sums begin with `bias`.
#if RESIDENT
#define BOUNDS __launch_bounds__(WC * WX * WY, RESIDENT)
#else
#define BOUNDS __launch_bounds__(WC * WX * WY)
#endif
#if BEGUN
#define BIAS_BUFFER , const float4* bias
#else
#define BIAS_BUFFER
#endif
extern "C" __global__ void BOUNDS
NAME(const SOURCE* x, const float4* w BIAS_BUFFER EPILOGUE_BUFFERS) {
  const unsigned thread = threadIdx.x, group = blockIdx.x;
  const unsigned chunk = group % GROUPS_C * WC + thread % WC;
  const unsigned ox0 = (group / GROUPS_C % GROUPS_X * WX + thread / WC % WX) * TX;
  const unsigned oy0 = (group / (GROUPS_C * GROUPS_X) % GROUPS_Y * WY + thread / (WC * WX)) * TY;
  const unsigned image = group / (GROUPS_C * GROUPS_X * GROUPS_Y);
  if (chunk >= CHUNKS || ox0 >= OUT_W || oy0 >= OUT_H) return;

  float sums[TY][TX][LANES] = {};
#if BEGUN
#pragma unroll
  for (unsigned q = 0; q < LANES / 4; q++) {
    const float4 own = bias[chunk * (LANES / 4) + q];
#pragma unroll
    for (unsigned p = 0; p < TY * TX; p++) {
      float* const sum = sums[p / TX][p % TX] + 4 * q;
      sum[0] = own.x, sum[1] = own.y, sum[2] = own.z, sum[3] = own.w;
    }
  }
#endif
  STORE_CONSTANTS_TYPE constants[LANES / 4];
#pragma unroll
  for (unsigned q = 0; q < LANES / 4; q++) constants[q] = STORE_CONSTANTS((chunk * (LANES / 4) + q));
  add_products(x, w, chunk, image, oy0, ox0, sums);
#pragma unroll
  for (unsigned p = 0; p < TY * TX; p++) {
    const unsigned oy = oy0 + p / TX, ox = ox0 + p % TX;
    if ((OUT_H % TY && oy >= OUT_H) || (OUT_W % TX && ox >= OUT_W)) continue;
    const float(&sum)[LANES] = sums[p / TX][p % TX];
#pragma unroll
    for (unsigned q = 0; q < LANES / 4; q++)
      STORE((image * OUT_H + oy) * OUT_W + ox, chunk * (LANES / 4) + q,
            (Four{(Number)sum[4 * q], (Number)sum[4 * q + 1], (Number)sum[4 * q + 2], (Number)sum[4 * q + 3]}), constants[q],
            STORE_OPERANDS((image * OUT_H + oy) * OUT_W + ox, chunk * (LANES / 4) + q));
  }
}
