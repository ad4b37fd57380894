// Softmax of rows of bytes as the CPU does it: d is how far a number is from the largest of its row, parts t[d] are added
// up in float32 from the first to the last, and each is multiplied by the inverse of the sum.
//
// TEAM warps have a row, a lane EACH parts of it that lie side by side. A thousand additions one after the other, each of
// which rounds, take 4000 cycles. But as long as a sum stays between two powers of two, what adding a part rounds to depends
// on one thing of it, whether its last bit is set, for a part may lie half-way between two floats. So each lane adds up its
// parts from an even and from an odd number there, and lanes that follow each other are joined by a scan. Where a lane's
// sums pass a power of two, or might, its parts are added to what is there when its turn comes: those of a few lanes are.
//
// Constants from the host: ROWS, CHANNELS, EACH (a multiple of four), WARPS (of a workgroup), TEAM, QUADS (that a row is
// stored as), SCALE (of what is stored).
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

constexpr unsigned LANES = 32 * TEAM;

INLINE float added(float sum, const float (&parts)[EACH]) {
#pragma unroll
  for (unsigned i = 0; i < EACH; i++) sum = __fadd_rn(sum, parts[i]);
  return sum;
}

// What the lanes of a row tell each other.
struct Row {
  float4 parts[LANES][EACH / 4];
  unsigned even[LANES], odd[LANES], passes[TEAM];
  float totals[TEAM], share;
  int largest[TEAM];
};

// The sum of all lanes' parts in order, by the first warp of the row. Runs are from the beginning of a warp, or from the
// last lane of it that had its turn.
INLINE float sum_of(const Row& row) {
  unsigned sum = 0;
#pragma unroll
  for (unsigned warp = 0; warp < TEAM; warp++) {
    const unsigned lane0 = warp * 32;
    for (unsigned left = row.passes[warp]; left; left &= left - 1) {
      const unsigned turn = lane0 + __ffs(left) - 1;
      float parts[EACH];
#pragma unroll
      for (unsigned q = 0; q < EACH / 4; q++) {
        const float4 quad = row.parts[turn][q];
        parts[4 * q] = quad.x, parts[4 * q + 1] = quad.y, parts[4 * q + 2] = quad.z, parts[4 * q + 3] = quad.w;
      }
      if (turn > lane0) sum += sum & 1 ? row.odd[turn - 1] : row.even[turn - 1];
      sum = __float_as_uint(added(__uint_as_float(sum), parts));
    }
    sum += sum & 1 ? row.odd[lane0 + 31] : row.even[lane0 + 31];
  }
  return __uint_as_float(sum);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) NAME(const float* __restrict__ table EPILOGUE_BUFFERS) {
  __shared__ float known[256];
  __shared__ Row rows[WARPS / TEAM];
  for (unsigned i = threadIdx.x; i < 256; i += 32 * WARPS) known[i] = table[i];
  wait_for_predecessors();
  launch_dependents();
  const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32 % TEAM, place = threadIdx.x % LANES;
  const unsigned number = blockIdx.x * (WARPS / TEAM) + threadIdx.x / LANES, begin = place * EACH;
  const bool real = number < ROWS;
  Row& row = rows[threadIdx.x / LANES];
  int all[EACH], largest = -256;
#pragma unroll
  for (unsigned q = 0; q < EACH / 4; q++) {
    int4 quad{};
    if (real && begin + 4 * q < CHANNELS) quad = NUMBERS(number, begin / 4 + q);
    all[4 * q] = quad.x, all[4 * q + 1] = quad.y, all[4 * q + 2] = quad.z, all[4 * q + 3] = quad.w;
  }
#pragma unroll
  for (unsigned i = 0; i < EACH; i++)
    if (begin + i < CHANNELS && all[i] > largest) largest = all[i];
  for (unsigned by = 16; by; by /= 2) {
    const int other = __shfl_xor_sync(ALL, largest, by);
    if (other > largest) largest = other;
  }
  if (lane == 0) row.largest[warp] = largest;
  __syncthreads();
#pragma unroll
  for (unsigned w = 0; w < TEAM; w++)
    if (row.largest[w] > largest) largest = row.largest[w];

  float parts[EACH];
#pragma unroll
  for (unsigned i = 0; i < EACH; i++) parts[i] = real && begin + i < CHANNELS ? known[largest - all[i] & 255] : 0.0f;
#pragma unroll
  for (unsigned q = 0; q < EACH / 4; q++)
    row.parts[place][q] = float4{parts[4 * q], parts[4 * q + 1], parts[4 * q + 2], parts[4 * q + 3]};
  float about = added(0.0f, parts);
  for (unsigned by = 1; by < 32; by *= 2) {
    const float before = __shfl_sync(ALL, about, lane - by & 31);
    if (lane >= by) about += before;
  }
  if (lane == 31) row.totals[warp] = about;
  __syncthreads();
  const float before = __shfl_sync(ALL, about, lane - 1 & 31);
  float first = lane ? before : 0.0f;
#pragma unroll
  for (unsigned w = 0; w + 1 < TEAM; w++)
    if (w < warp) first += row.totals[w], about += row.totals[w];

  // 2^-10 of a sum is more than rounding takes from one of 2048 numbers.
  const unsigned power = __float_as_uint(first * (1 - 0x1p-10f)) >> 23;
  const bool passes = power != __float_as_uint(about * (1 + 0x1p-10f)) >> 23;
  const unsigned least = power << 23;
  Run run{__float_as_uint(added(__uint_as_float(least), parts)) - least,
          __float_as_uint(added(__uint_as_float(least | 1), parts)) - (least | 1), false};
  if (passes) run = {0, 0, true};
  for (unsigned by = 1; by < 32; by *= 2) {
    const Run other = from_lane(run, lane - by & 31);
    if (lane >= by) run = joined(other, run);
  }
  row.even[place] = run.even, row.odd[place] = run.odd;
  const unsigned turns = __ballot_sync(ALL, passes);
  if (lane == 0) row.passes[warp] = turns;
  __syncthreads();
  if (warp == 0) {
    const float share = 1.0f / (sum_of(row) * SCALE);
    if (lane == 0) row.share = share;
  }
  __syncthreads();
  const float share = row.share;
#pragma unroll
  for (unsigned q = 0; q < EACH / 4; q++)
    if (real && begin / 4 + q < QUADS) {
      int found[4];
#pragma unroll
      for (unsigned j = 0; j < 4; j++) found[j] = (int)floorf(__fadd_rn(parts[4 * q + j] * share, 0.5f));
      STORE(number, begin / 4 + q, (int4{found[0], found[1], found[2], found[3]}));
    }
}
