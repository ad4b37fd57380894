// Softmax of rows of bytes as the CPU does it: d is how far a number is from the largest of its row, parts t[d] are added
// up in float32 from the first to the last, and each is multiplied by the inverse of the sum.
//
// A warp has a row, a lane EACH parts of it that lie side by side. A thousand additions one after the other, each of which
// rounds, take 4000 cycles. But as long as a sum stays between two powers of two, what adding a part rounds to depends on
// one thing of it, whether its last bit is set, for a part may lie half-way between two floats. So each lane adds up its
// parts from an even and from an odd number there, and lanes that follow each other are joined by a scan. Where a lane's
// sums pass a power of two, or might, it adds to what is there when its turn comes: a few lanes do.
//
// Constants from the host: ROWS, CHANNELS, EACH (a multiple of four), WARPS (of a workgroup), QUADS (that a row is stored
// as), SCALE (of what is stored).
constexpr unsigned ALL = 0xffffffffu;

// What a run of additions adds to the bits of a sum that is even, or odd.
struct Run {
  unsigned even, odd;
  bool begins;  // with a sum of its own: nothing before it counts
};
INLINE Run joined(Run a, Run b) {
  return b.begins ? b : Run{a.even + (a.even & 1 ? b.odd : b.even), a.odd + (a.odd & 1 ? b.even : b.odd), a.begins};
}
INLINE Run from_lane(Run run, unsigned lane) {
  return {__shfl_sync(ALL, run.even, lane), __shfl_sync(ALL, run.odd, lane), __shfl_sync(ALL, (int)run.begins, lane) != 0};
}

INLINE float added(float sum, const float (&parts)[EACH]) {
#pragma unroll
  for (unsigned i = 0; i < EACH; i++) sum = __fadd_rn(sum, parts[i]);
  return sum;
}

// The sum of all lanes' parts in order. 2^-10 of a sum is more than rounding takes from one of 2048 numbers.
INLINE float sum_of(const float (&parts)[EACH], unsigned lane) {
  float about = added(0.0f, parts);
  const float own = about;
  for (unsigned by = 1; by < 32; by *= 2) {
    const float before = __shfl_sync(ALL, about, lane - by & 31);
    if (lane >= by) about += before;
  }
  const float before = __shfl_sync(ALL, about, lane - 1 & 31), first = lane ? before : 0.0f;
  const unsigned power = __float_as_uint(first * (1 - 0x1p-10f)) >> 23;
  const bool passes = power != __float_as_uint(about * (1 + 0x1p-10f)) >> 23;

  const unsigned least = power << 23;
  Run run{__float_as_uint(added(__uint_as_float(least), parts)) - least,
          __float_as_uint(added(__uint_as_float(least | 1), parts)) - (least | 1), false};
  if (passes) run = {0, 0, true};
  for (unsigned by = 1; by < 32; by *= 2) {
    const Run before = from_lane(run, lane - by & 31);
    if (lane >= by) run = joined(before, run);
  }

  unsigned sum = 0;
  for (unsigned left = __ballot_sync(ALL, passes); left; left &= left - 1) {
    const unsigned turn = __ffs(left) - 1;
    if (turn) sum += __shfl_sync(ALL, sum & 1 ? run.odd : run.even, turn - 1);
    sum = __shfl_sync(ALL, __float_as_uint(turn ? added(__uint_as_float(sum), parts) : own), turn);
  }
  return __uint_as_float(sum + __shfl_sync(ALL, sum & 1 ? run.odd : run.even, 31));
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) NAME(const float* __restrict__ table EPILOGUE_BUFFERS) {
  __shared__ float known[256];
  for (unsigned i = threadIdx.x; i < 256; i += 32 * WARPS) known[i] = table[i];
  wait_for_predecessors();
  launch_dependents();
  const unsigned lane = threadIdx.x & 31, row = blockIdx.x * WARPS + threadIdx.x / 32, begin = lane * EACH;
  const bool real = row < ROWS;
  int all[EACH], largest = -256;
#pragma unroll
  for (unsigned q = 0; q < EACH / 4; q++) {
    int4 quad{};
    if (real && begin + 4 * q < CHANNELS) quad = NUMBERS(row, begin / 4 + q);
    all[4 * q] = quad.x, all[4 * q + 1] = quad.y, all[4 * q + 2] = quad.z, all[4 * q + 3] = quad.w;
  }
#pragma unroll
  for (unsigned i = 0; i < EACH; i++)
    if (begin + i < CHANNELS && all[i] > largest) largest = all[i];
  for (unsigned by = 16; by; by /= 2) {
    const int other = __shfl_xor_sync(ALL, largest, by);
    if (other > largest) largest = other;
  }
  __syncthreads();
  float parts[EACH];
#pragma unroll
  for (unsigned i = 0; i < EACH; i++) parts[i] = real && begin + i < CHANNELS ? known[largest - all[i] & 255] : 0.0f;
  const float share = 1.0f / (sum_of(parts, lane) * SCALE);
#pragma unroll
  for (unsigned q = 0; q < EACH / 4; q++)
    if (real && begin / 4 + q < QUADS) {
      int found[4];
#pragma unroll
      for (unsigned j = 0; j < 4; j++) found[j] = (int)floorf(__fadd_rn(parts[4 * q + j] * share, 0.5f));
      STORE(row, begin / 4 + q, (int4{found[0], found[1], found[2], found[3]}));
    }
}
