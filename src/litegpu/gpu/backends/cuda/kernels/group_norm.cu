// Groups of channels of an image normalised over its pixels, all in one kernel: a cluster of SPLIT workgroups (compute capability
// 9.0; elsewhere one) has whole groups, SPAN channels, of an image, and divides its pixels. Threads keep their quads in registers. A
// workgroup finds the mean of what it has, then the sum of the squares of what is left; and each puts together what all have.
//
// Constants from the host: HALF SOURCE, OFFSET PITCH_B PITCH_Y PITCH_X (elements, of x's view; or NUMBERS(pixel, quad) reads it), WIDTH
// PIXELS (of an image); QUADS (of a span), SPANS (of a pixel, then images), EACH (channels of a group); SPLIT, PART (pixels of a workgroup; the last one may have fewer);
// THREADS, ROWS (pixels side by side, at most THREADS / QUADS), ITEMS (quads of a thread); EPSILON.
#if HALF
typedef uint2 Quad;
#else
typedef float4 Quad;
#endif
constexpr unsigned UNIT = EACH % 4 == 0 ? 4 : 1;  // channels that a thread adds up by itself
constexpr unsigned COLUMNS = 4 * QUADS / UNIT, SUMMED = EACH / UNIT, GROUPS = 4 * QUADS / EACH, WARPS = THREADS / 32;
// Threads of a warp that have the same quad add up theirs first.
constexpr bool MEETS = QUADS < 32 && 32 % QUADS == 0 && ROWS * QUADS == THREADS;
constexpr unsigned LINES = MEETS ? WARPS : ROWS;
// In shared memory: what threads add up; of each workgroup of the cluster the mean, and the sum of the squares of what is left, of each
// group; and the mean and the factor of each group.
constexpr unsigned TOLD_AT = (LINES * COLUMNS + 1) / 2 * 2, FOUND_AT = TOLD_AT + SPLIT * GROUPS * 2;  // floats
static_assert((FOUND_AT + GROUPS * 2) * 4 <= SHARED_BYTES && ROWS * QUADS <= THREADS && 4 * QUADS % EACH == 0, "whole groups");

INLINE float of_warp(float sum) {
#pragma unroll
  for (unsigned by = 16; by; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  return sum;
}

// The sum of each group over the workgroup, of what each thread has of its quad: tell(group, sum), by one thread.
template <class Tell> INLINE void add_up(float4 quad, Tell tell) {
  float* const lines = own_shared(SHARED_BYTES);
  float v[4] = {quad.x, quad.y, quad.z, quad.w};
  if (UNIT == 4) v[0] = (v[0] + v[1]) + (v[2] + v[3]);
  if (MEETS) {
#pragma unroll
    for (unsigned by = 16; by >= QUADS; by /= 2)
#pragma unroll
      for (unsigned i = 0; i < 4 / UNIT; i++) v[i] += __shfl_xor_sync(~0u, v[i], by);
  }
  if (MEETS ? threadIdx.x % 32 < QUADS : threadIdx.x < ROWS * QUADS) {
    const unsigned line = MEETS ? threadIdx.x / 32 : threadIdx.x / QUADS;
#pragma unroll
    for (unsigned i = 0; i < 4 / UNIT; i++) lines[line * COLUMNS + threadIdx.x % QUADS * (4 / UNIT) + i] = v[i];
  }
  __syncthreads();
  for (unsigned group = threadIdx.x / 32; group < GROUPS; group += WARPS) {
    float sum = 0;
#pragma unroll 4
    for (unsigned i = threadIdx.x % 32; i < LINES * SUMMED; i += 32) sum += lines[i / SUMMED * COLUMNS + group * SUMMED + i % SUMMED];
    sum = of_warp(sum);
    if (threadIdx.x % 32 == 0) tell(group, sum);
  }
  __syncthreads();
}

// Where a pixel of an image lies.
INLINE unsigned place_of(unsigned pixel) {
  return PITCH_Y == WIDTH * PITCH_X ? pixel * PITCH_X : pixel / WIDTH * PITCH_Y + pixel % WIDTH * PITCH_X;
}

extern "C" __global__ void __launch_bounds__(THREADS)
#if SPLIT > 1
    __cluster_dims__(SPLIT, 1, 1)
#endif
    NAME(const SOURCE* x EPILOGUE_BUFFERS) {
#if SPLIT > 1
  const unsigned part = cluster_rank();
#else
  const unsigned part = 0;
#endif
  const unsigned span = blockIdx.x / SPLIT % SPANS, image = blockIdx.x / (SPLIT * SPANS);
  const unsigned first = part * PART, pixels = SPLIT * PART == PIXELS || part + 1 < SPLIT ? PART : PIXELS - (SPLIT - 1) * PART;
  const unsigned own = threadIdx.x % QUADS, row = threadIdx.x / QUADS, quad = span * QUADS + own;
  const STORE_CONSTANTS_TYPE constants = STORE_CONSTANTS(quad);
#if SPLIT > 1
  cluster_arrive_first();
#endif
  wait_for_predecessors();
  launch_dependents();

  Quad kept[ITEMS];
#pragma unroll
  for (unsigned i = 0; i < ITEMS; i++) {
    const unsigned pixel = first + row + i * ROWS;
    kept[i] = Quad{};
    if (row < ROWS && row + i * ROWS < pixels)
#ifdef NUMBERS
      kept[i] = NUMBERS(image * PIXELS + pixel, quad);
#else
      kept[i] = *(const Quad*)(x + (OFFSET + (long long)image * PITCH_B + place_of(pixel) + 4 * quad));
#endif
  }
  STORE_OPERANDS_TYPE operands[ITEMS];
#pragma unroll
  for (unsigned i = 0; i < ITEMS; i++)
    if (row < ROWS && row + i * ROWS < pixels) operands[i] = STORE_OPERANDS((image * PIXELS + first + row + i * ROWS), quad);
  float2* const told = (float2*)(own_shared(SHARED_BYTES) + TOLD_AT) + part * GROUPS;
  float2* const found = (float2*)(own_shared(SHARED_BYTES) + FOUND_AT);
  const float count = (float)(pixels * EACH);

  float4 sum = {};
#pragma unroll
  for (unsigned i = 0; i < ITEMS; i++) {
    float v[4];
    unpack(kept[i], v);
    sum = float4{sum.x + v[0], sum.y + v[1], sum.z + v[2], sum.w + v[3]};
  }
  add_up(sum, [&](unsigned group, float all) { told[group].x = all / count; });
  float mean[4];
#pragma unroll
  for (unsigned i = 0; i < 4; i++) mean[i] = told[(4 * own + i) / EACH].x;
  sum = float4{};
#pragma unroll
  for (unsigned i = 0; i < ITEMS; i++) {
    float v[4];
    unpack(kept[i], v);
    if (row >= ROWS || row + i * ROWS >= pixels) continue;
#pragma unroll
    for (unsigned c = 0; c < 4; c++) v[c] -= mean[c];
    sum = float4{fmaf(v[0], v[0], sum.x), fmaf(v[1], v[1], sum.y), fmaf(v[2], v[2], sum.z), fmaf(v[3], v[3], sum.w)};
  }
#if SPLIT > 1
  cluster_wait();  // all have begun
  add_up(sum, [&](unsigned group, float all) {
    const float own_mean = told[group].x;
#pragma unroll
    for (unsigned p = 0; p < SPLIT; p++) {
      cluster_store(&told[group].x, p, own_mean, SHARED_BYTES);
      cluster_store(&told[group].y, p, all, SHARED_BYTES);
    }
  });
  cluster_arrive();
  cluster_wait();
  for (unsigned group = threadIdx.x; group < GROUPS; group += THREADS) {
    constexpr float ALL = (float)PIXELS * EACH, LAST = (float)(PIXELS - (SPLIT - 1) * PART) * EACH;
    const float2* const all = (const float2*)(own_shared(SHARED_BYTES) + TOLD_AT) + group;
    float whole = 0, squares = 0;
#pragma unroll
    for (unsigned p = 0; p < SPLIT; p++) whole = fmaf(all[p * GROUPS].x, p + 1 < SPLIT ? (float)PART * EACH : LAST, whole);
    whole /= ALL;
#pragma unroll
    for (unsigned p = 0; p < SPLIT; p++) {
      const float left = all[p * GROUPS].x - whole;
      squares += fmaf(left * left, p + 1 < SPLIT ? (float)PART * EACH : LAST, all[p * GROUPS].y);
    }
    found[group] = float2{whole, rsqrtf(squares / ALL + EPSILON)};
  }
  __syncthreads();
#else
  add_up(sum, [&](unsigned group, float all) { found[group] = float2{told[group].x, rsqrtf(all / count + EPSILON)}; });
#endif
  float factor[4];
#pragma unroll
  for (unsigned c = 0; c < 4; c++) {
    const float2 one = found[(4 * own + c) / EACH];
    mean[c] = one.x, factor[c] = one.y;
  }
#pragma unroll
  for (unsigned i = 0; i < ITEMS; i++) {
    if (row >= ROWS || row + i * ROWS >= pixels) continue;
    float v[4];
    unpack(kept[i], v);
#pragma unroll
    for (unsigned c = 0; c < 4; c++) v[c] = (v[c] - mean[c]) * factor[c];
    const unsigned pixel = image * PIXELS + first + row + i * ROWS;
    STORE(pixel, quad, (float4{v[0], v[1], v[2], v[3]}), constants, operands[i]);
  }
}
