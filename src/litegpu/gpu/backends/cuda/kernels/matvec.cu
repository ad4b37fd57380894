// Convolution with few output pixels, at most eight: every weight is needed once for each of them, so what takes time is
// to load the weights. LANES threads compute four outputs of all pixels, each at every LANES-th chunk (16 bytes) of the
// depth, which is the taps of the window times the input channels; EARLY chunks of each output are under way at once,
// the first of them before the inputs exist. Sums are float.
// With a PROLOGUE (prologue.cu) inputs are made ready as they are loaded.
//
// Constants from the host: WEIGHTS (INT8, FLOAT16 or FLOAT32); LANES (8 to 32, or a multiple of 32), THREADS, EARLY; ROWS (output pixels),
// QUADS; CHUNKS (of the depth; DEPTH elements); PIECE (channels of the input that are loaded at once: 8, 4 or 1, which
// divide CHANNELS); OUT_H OUT_W; H W (of the input, upsampled); UPSAMPLE_*, BORDER (border.cu); CHANNELS KERNEL_W TAPS;
// STRIDE_*, DILATION_*, PADDING_*; OFFSET PITCH_* (elements, of the input's view); PARTS (of
// the input, of one pixel: as many pixels are added up, and SUMMED says what is done with the sums, if anything is).
#define INT8 1
#define FLOAT16 2
#define FLOAT32 4
#if WEIGHTS == FLOAT32
typedef float4 Chunk;
#else
typedef uint4 Chunk;
#endif
#if PIECE == 8
typedef uint4 Piece;
#elif PIECE == 4 && HALF_SOURCE
typedef uint2 Piece;
#elif PIECE == 4
typedef float4 Piece;
#else
typedef SOURCE Piece;
INLINE void unpack(Piece a, float (&v)[1]) { v[0] = LOAD(a); }
#endif

constexpr unsigned PER_CHUNK = 16 / WEIGHTS, STEPS = (CHUNKS + LANES - 1) / LANES;
constexpr unsigned WIDTH = LANES < 32 ? LANES : 32, WARPS = LANES / WIDTH;        // that compute the same outputs
constexpr unsigned PLACES = ROWS > 4 ? 8 : ROWS > 2 ? 4 : ROWS;                   // for rows: a power of two
static_assert(PLACES <= WIDTH && THREADS % 32 == 0 && THREADS % LANES == 0, "each row's sum ends in a lane of its own");

// The inputs that chunk number `chunk` of an output's weights belongs to, for output pixel number `row`.
INLINE void load_inputs(const SOURCE* x PROLOGUE_PARAMETER, unsigned row, unsigned chunk, float (&values)[PER_CHUNK]) {
  const unsigned image = row / (OUT_W * OUT_H);
  const int y0 = (int)(row / OUT_W % OUT_H * STRIDE_Y) - PADDING_Y, x0 = (int)(row % OUT_W * STRIDE_X) - PADDING_X;
#pragma unroll
  for (unsigned i = 0; i < PER_CHUNK / PIECE; i++) {
    const unsigned k = chunk * PER_CHUNK + i * PIECE, tap = TAPS == 1 ? 0 : k / CHANNELS, channel = k - tap * CHANNELS;
    bool real = k < DEPTH;
    const int iy = inside(y0 + (int)(tap / KERNEL_W * DILATION_Y), H, UPSAMPLE_Y, real);
    const int ix = inside(x0 + (int)(tap % KERNEL_W * DILATION_X), W, UPSAMPLE_X, real);
    const unsigned from = image * PITCH_B + iy * PITCH_Y + ix * PITCH_X + channel * PITCH_C + OFFSET;
    float piece[PIECE] = {};
    if (real) unpack(*(const Piece*)(x + from), piece);
#if PARTS > 1
#pragma unroll
    for (unsigned part = 1; part < PARTS; part++) {
      float more[PIECE] = {};
      if (real) unpack(*(const Piece*)(x + from + part * PITCH_X), more);
#pragma unroll
      for (unsigned e = 0; e < PIECE; e++) piece[e] += more[e];
    }
#endif
#ifdef SUMMED
#pragma unroll
    for (unsigned e = 0; e < PIECE; e++) piece[e] = SUMMED(piece[e]);  // beyond the depth, weights are zero
#endif
#ifdef PROLOGUE
    if (real) {
      Channels<PIECE> channels;
      channels.load(prologue, channel);
      channels.open(prologue, channel, row);
#pragma unroll
      for (unsigned e = 0; e < PIECE; e++) piece[e] = channels.prepared(piece[e], e);
    }
#endif
#pragma unroll
    for (unsigned e = 0; e < PIECE; e++) values[i * PIECE + e] = piece[e];
  }
}

INLINE float4 add(float4 a, float4 b) { return float4{a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w}; }
INLINE float4 exchange(float4 a, unsigned by) {
  return float4{__shfl_xor_sync(0xffffffffu, a.x, by), __shfl_xor_sync(0xffffffffu, a.y, by),
                __shfl_xor_sync(0xffffffffu, a.z, by), __shfl_xor_sync(0xffffffffu, a.w, by)};
}

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const SOURCE* x, const Chunk* w PROLOGUE_BUFFERS EPILOGUE_BUFFERS) {
  const unsigned lane = threadIdx.x % LANES, quad = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;

  Chunk weights[EARLY][4];
  auto load_weights = [&](unsigned slot, unsigned step) {
    const unsigned chunk = step * LANES + lane;
    const bool real = quad < QUADS && (CHUNKS % LANES == 0 || chunk < CHUNKS);
#pragma unroll
    for (unsigned o = 0; o < 4; o++) weights[slot][o] = real ? w[(quad * 4 + o) * CHUNKS + chunk] : Chunk{};
  };
  // The weights are nobody's output: they may come while the kernel before this one still runs. (By plain loads: the
  // compiler moves those of __ldg behind the wait.)
#pragma unroll
  for (unsigned slot = 0; slot < EARLY; slot++) load_weights(slot, slot);
  const STORE_CONSTANTS_TYPE constants = STORE_CONSTANTS((quad < QUADS ? quad : 0));
  wait_for_predecessors();
  launch_dependents();

  float sums[ROWS][4] = {};
#pragma unroll 1
  for (unsigned first = 0; first < STEPS; first += EARLY)
#pragma unroll
    for (unsigned slot = 0; slot < EARLY; slot++) {
      const unsigned step = first + slot;
      if (STEPS % EARLY && step >= STEPS) break;
      float factors[4][PER_CHUNK];
#pragma unroll
      for (unsigned o = 0; o < 4; o++) unpack(weights[slot][o], factors[o]);
      if (step + EARLY < STEPS) load_weights(slot, step + EARLY);
#pragma unroll
      for (unsigned row = 0; row < ROWS; row++) {
        float inputs[PER_CHUNK];
        load_inputs(x PROLOGUE_ARGUMENT, row, step * LANES + lane, inputs);
#pragma unroll
        for (unsigned e = 0; e < PER_CHUNK; e++)
#pragma unroll
          for (unsigned o = 0; o < 4; o++) sums[row][o] = fmaf(inputs[e], factors[o][e], sums[row][o]);
      }
    }

  // Lanes that have the same rows halve them between each other until each has one, then add up what is left of it.
  float4 totals[PLACES] = {};
#pragma unroll
  for (unsigned row = 0; row < ROWS; row++) totals[row] = float4{sums[row][0], sums[row][1], sums[row][2], sums[row][3]};
  unsigned row = 0;  // that this lane ends up with
#pragma unroll
  for (unsigned i = 1; i < WIDTH; i *= 2) {
    const unsigned by = WIDTH / 2 / i, rest = PLACES / 2 / i;
    const bool upper = lane & by;
    if (rest) {
      row += upper ? rest : 0;
#pragma unroll
      for (unsigned r = 0; r < rest; r++)
        totals[r] = add(upper ? totals[rest + r] : totals[r], exchange(upper ? totals[r] : totals[rest + r], by));
    } else {
      totals[0] = add(totals[0], exchange(totals[0], by));
    }
  }
#if LANES > 32
  __shared__ float4 parts[THREADS / 32][PLACES];
  if (lane % (32 / PLACES) == 0) parts[threadIdx.x / 32][row] = totals[0];
  __syncthreads();
  if (lane >= ROWS || quad >= QUADS) return;
  row = lane;
  totals[0] = parts[threadIdx.x / LANES * WARPS][row];
#pragma unroll
  for (unsigned i = 1; i < WARPS; i++) totals[0] = add(totals[0], parts[threadIdx.x / LANES * WARPS + i][row]);
#else
  if (lane % (WIDTH / PLACES) || row >= ROWS || quad >= QUADS) return;
#endif
  STORE(row, quad, totals[0], constants, STORE_OPERANDS(row, quad));
}
