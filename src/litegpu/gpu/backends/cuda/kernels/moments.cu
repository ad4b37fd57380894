// Moments of parts of an image, or of several channels, become those of all of them: the mean, and the sum of the squares of
// what is left, for each channel its share of it. TEAM threads, a warp or a whole workgroup, have a group of channels of an
// image.
//
// Constants from the host: PARTS, PART LAST (pixels of a part, and of the last one), CHANNELS (of a group), GROUPS IMAGES, THREADS
// (of a workgroup) TEAM; FROM FROM_B FROM_Y FROM_X, TO TO_B TO_X (offsets and pitches of both values, in elements).
constexpr unsigned TERMS = PARTS * CHANNELS;

INLINE float total(float sum) {
#pragma unroll
  for (unsigned by = 16; by; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
#if TEAM > 32
  __shared__ float sums[TEAM / 32];
  __syncthreads();  // until those of before have been read
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
#pragma unroll
  for (unsigned i = 0; i < TEAM / 32; ++i) sum += sums[i];
#endif
  return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const float* moments, float* joined EPILOGUE_BUFFERS) {
  const unsigned lane = threadIdx.x % TEAM, item = blockIdx.x * (THREADS / TEAM) + threadIdx.x / TEAM;
  wait_for_predecessors();
  launch_dependents();
  if (item >= GROUPS * IMAGES) return;
  const unsigned image = item / GROUPS, first = item % GROUPS * CHANNELS;
  const float* from = moments + FROM + (unsigned long long)image * FROM_B + first;
  float sum = 0;
#pragma unroll 4
  for (unsigned i = lane; i < TERMS; i += TEAM) {
    const unsigned part = i / CHANNELS;
    sum += from[part * FROM_Y + i % CHANNELS] * (part + 1 < PARTS ? (float)PART : (float)LAST);
  }
  constexpr float PIXELS = (float)PART * (PARTS - 1) + LAST;
  const float mean = total(sum) / (PIXELS * CHANNELS);
  sum = 0;
#pragma unroll 4
  for (unsigned i = lane; i < TERMS; i += TEAM) {
    const unsigned part = i / CHANNELS, at = part * FROM_Y + i % CHANNELS;
    const float left = from[at] - mean;
    sum += from[at + FROM_X] + left * left * (part + 1 < PARTS ? (float)PART : (float)LAST);
  }
  const float share = total(sum) / CHANNELS;
  float* to = joined + TO + (unsigned long long)image * TO_B + first;
  for (unsigned i = lane; i < CHANNELS; i += TEAM) to[i] = mean, to[i + TO_X] = share;
}
