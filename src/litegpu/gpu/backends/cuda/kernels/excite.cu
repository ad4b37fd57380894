// What squeeze-and-excite ends with: parts of the first layer's sums are added up, its activation, the second layer and its
// activation, and each channel of x times its gate. Each workgroup computes the gates of its own channels for some of the
// pixels, from weights that it loads before the inputs exist; what is computed several times is little.
//
// Constants from the host: SOURCE, OFFSET PITCH_* (elements, of x's view); PIXELS QUADS (of x, of an image) WIDTH (pixels of a
// line); RESULTS (of the first layer, SUMMED and zeros to a multiple of four), PARTS; TILE_QUADS (of a workgroup, a power of
// two), TILE_PIXELS, GROUPS_C GROUPS_P (workgroups along these, then images); THREADS; EACH (weights of a thread, an even number); ROWS (of
// threads that add up parts).
#if HALF
typedef uint2 Quad;
#else
typedef float4 Quad;
#endif
constexpr unsigned LANES = THREADS / (4 * TILE_QUADS);  // that compute a gate
constexpr unsigned ITEMS = (TILE_QUADS * TILE_PIXELS + THREADS - 1) / THREADS;
constexpr unsigned COLUMNS = RESULTS / 4, LOADS = (PARTS + ROWS - 1) / ROWS;
static_assert(LANES >= 1 && LANES <= 32 && EACH * LANES >= RESULTS && ROWS * COLUMNS <= THREADS, "a gate belongs to a warp");

extern "C" __global__ void __launch_bounds__(THREADS)
NAME(const SOURCE* x, const float4* parts, const float* inner_bias, const unsigned* weights, const float* bias EPILOGUE_BUFFERS) {
  __shared__ float4 summed[ROWS * COLUMNS];
  __shared__ float inside[EACH * LANES], gates[4 * TILE_QUADS];
  const unsigned thread = threadIdx.x, slice = blockIdx.x % GROUPS_C, image = blockIdx.x / (GROUPS_C * GROUPS_P);
  const unsigned first = blockIdx.x / GROUPS_C % GROUPS_P * TILE_PIXELS;
  const unsigned last = first + TILE_PIXELS < PIXELS ? first + TILE_PIXELS : PIXELS;

  unsigned factors[EACH / 2];
#pragma unroll
  for (unsigned i = 0; i < EACH / 2; i++) factors[i] = weights[(slice * (EACH / 2) + i) * THREADS + thread];
  const float own_bias = bias[slice * (4 * TILE_QUADS) + thread / LANES], first_bias = thread < SUMMED ? inner_bias[thread] : 0;
  wait_for_predecessors();
  launch_dependents();

  float4 sums[LOADS];
  const bool adds = thread < ROWS * COLUMNS;
#pragma unroll
  for (unsigned i = 0; i < LOADS; i++)
    sums[i] = adds && (PARTS % ROWS == 0 || thread / COLUMNS + i * ROWS < PARTS)
                  ? parts[(unsigned long long)image * PARTS * COLUMNS + thread + i * (ROWS * COLUMNS)]
                  : float4{};
  Quad values[ITEMS];
#pragma unroll
  for (unsigned i = 0; i < ITEMS; i++) {
    const unsigned item = thread + i * THREADS, pixel = first + item / TILE_QUADS, quad = slice * TILE_QUADS + item % TILE_QUADS;
    if (pixel < last && quad < QUADS)
      values[i] = *(const Quad*)(x + (OFFSET + (long long)image * PITCH_B + pixel / WIDTH * PITCH_Y + pixel % WIDTH * PITCH_X +
                                      4 * quad));
  }
#pragma unroll
  for (unsigned i = 1; i < LOADS; i++)
    sums[0].x += sums[i].x, sums[0].y += sums[i].y, sums[0].z += sums[i].z, sums[0].w += sums[i].w;
  if (adds) summed[thread] = sums[0];
  __syncthreads();
  for (unsigned result = thread; result < EACH * LANES; result += THREADS) {
    float sum = 0;
    if (result < SUMMED) {
      sum = result == thread ? first_bias : inner_bias[result];
#pragma unroll
      for (unsigned row = 0; row < ROWS; row++) sum += ((const float*)summed)[row * RESULTS + result];
      sum = INNER(sum);
    }
    inside[result] = sum;
  }
  __syncthreads();
  float second = 0;
#pragma unroll
  for (unsigned i = 0; i < EACH; i++)
    second = fmaf(half_to_float((unsigned short)(factors[i / 2] >> i % 2 * 16)), inside[i * LANES + thread % LANES], second);
#pragma unroll
  for (unsigned by = LANES / 2; by > 0; by /= 2) second += __shfl_xor_sync(0xffffffffu, second, by);
  if (thread % LANES == 0) gates[thread / LANES] = GATE(second + own_bias);
  __syncthreads();
#pragma unroll
  for (unsigned i = 0; i < ITEMS; i++) {
    const unsigned item = thread + i * THREADS, pixel = first + item / TILE_QUADS, quad = slice * TILE_QUADS + item % TILE_QUADS;
    if (pixel >= last || quad >= QUADS) continue;
    float value[4];
    unpack(values[i], value);
    const float4 by = ((const float4*)gates)[item % TILE_QUADS];
    STORE(image * PIXELS + pixel, quad, (float4{value[0] * by.x, value[1] * by.y, value[2] * by.z, value[3] * by.w}));
  }
}
