// Convolution as a matrix product: rows are output pixels, columns output channels, and the depth is the taps of the
// window times the input channels. A workgroup computes BM x BN of it in steps of BK along the depth; copies of the
// next steps run while the tensor cores (HALF, TF32) or plain multiplications (float) work on this one. Sums are float, those of
// bytes (WHOLE) int.
// With a PROLOGUE (prologue.cu) each thread does with what it has copied of the input what is to be done before that is
// multiplied.
// With MEANS nothing is stored but a part of each channel's mean over all pixels, SCALE times what ACTIVATE(sums) gives, which
// knows four numbers of each of OPERANDS constants as own[i]: as many parts as there are tiles along the rows. FINISHED(mean) is
// what becomes of the only one.
//
// Constants from the host: HALF; BM BN BK STAGES; WARPS_M WARPS_N WARPS_K (warps along rows, columns and depth);
// WARPGROUPS; TILES_N; PIXELS QUADS (of the output); OUT_H OUT_W; H W (of the input, upsampled); UPSAMPLE_*, BORDER (border.cu); CHANNELS KERNEL_W TAPS; STRIDE_*, DILATION_*, PADDING_*;
// OFFSET PITCH_B PITCH_Y PITCH_X PITCH_C (elements, of the input's view); DEPTH (of the packed weights); of bytes UNSIGNED
// (the input) and PADDED (what is outside of it is not zero); AHEAD (what the epilogue reads comes before the products: each
// thread stays with its quad, and stores a few), then perhaps BEGUN (the sums begin with `bias`); ACCESS, one of:
#define POINTS 0  // 1x1, and pixel p lies at p * PITCH_X: rows are copied as they are
#define WINDOW 1  // copies of VECTOR channels of one tap each
#define GATHER 2  // any layout or number of channels: element by element, through registers
#define FLOATS 3  // as POINTS, of floats, which become halves in registers: loaded a step ahead, beside the products

#if WHOLE
// outside: what is outside of the input, 16 times; corrections: what is to be added to the sums of each column.
#define MORE_BUFFERS , const Element* outside, const int4* corrections
typedef int Loaded;
#define LOADED(value) LOAD(value)
#else
#ifdef MEANS
#define MORE_BUFFERS , const float4* channelwise, float4* parts
#elif BEGUN
#define MORE_BUFFERS , const float4* bias
#else
#define MORE_BUFFERS
#endif
#define PADDED 0
typedef Stored Loaded;
#define LOADED(value) stored(value)
#endif
constexpr unsigned A_BYTES = BM * ROW_BYTES, STAGE_BYTES = (BM + B_ROWS) * ROW_BYTES, STEPS = DEPTH / BK;
constexpr unsigned A_COPIES = (BM * CHUNKS + THREADS - 1) / THREADS, B_COPIES = (B_ROWS * CHUNKS + THREADS - 1) / THREADS;
constexpr unsigned TAP_CHUNKS = (CHANNELS + PER_CHUNK - 1) / PER_CHUNK;
// Steps whose copies are under way before the first products: all of them, if there is a place for each.
constexpr unsigned EARLY = STEPS <= STAGES ? STEPS : STAGES - 1;
static_assert(DEPTH % BK == 0, "the host pads the weights");

#if WHOLE
INLINE unsigned four_bytes(const int* v) {
  return (unsigned)(v[0] & 255) | (unsigned)(v[1] & 255) << 8 | (unsigned)(v[2] & 255) << 16 | (unsigned)v[3] << 24;
}
#endif
// The input position of the first tap of an output pixel, and where its image begins.
struct Pixel { unsigned image; int y, x; bool real; };

INLINE Pixel find(unsigned pixel) {
  const unsigned row = pixel / OUT_W;
  return {row / OUT_H * PITCH_B, (int)(row % OUT_H * STRIDE_Y) - PADDING_Y, (int)(pixel % OUT_W * STRIDE_X) - PADDING_X,
          pixel < PIXELS};
}

#ifdef FETCHED  // the input's rows are moved first
#define ROW_OF(pixel) ((pixel) < PIXELS ? FETCHED(pixel) : (pixel))
#else
#define ROW_OF(pixel) (pixel)
#endif

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const SOURCE* x, const Element* __restrict__ w MORE_BUFFERS
                                                                PROLOGUE_BUFFERS EPILOGUE_BUFFERS) {
  const unsigned thread = threadIdx.x, chunk = thread % CHUNKS;
  const unsigned column0 = blockIdx.x % TILES_N * BN, pixel0 = blockIdx.x / TILES_N * BM;

  auto copy_weights = [&](unsigned step, unsigned slot) {
#pragma unroll
    for (unsigned i = 0; i < B_COPIES; i++) {
      const unsigned row = (thread + i * THREADS) / CHUNKS;
      if (B_ROWS * CHUNKS % THREADS == 0 || row < B_ROWS)
        copy16(slot * STAGE_BYTES + A_BYTES + place(row, chunk),
               w + (column0 * (B_ROWS / BN) + row) * DEPTH + step * BK + chunk * PER_CHUNK, true);
    }
  };
#if ACCESS == POINTS || ACCESS == FLOATS
  unsigned pixels[A_COPIES];
#else
  Pixel pixels[A_COPIES];
#endif
#pragma unroll
  for (unsigned i = 0; i < A_COPIES; i++) {
    const unsigned pixel = pixel0 + (thread + i * THREADS) / CHUNKS;
#if ACCESS == POINTS || ACCESS == FLOATS
    pixels[i] = ROW_OF(pixel);
#else
    pixels[i] = find(ROW_OF(pixel));
#endif
  }
#if ACCESS == FLOATS
  float4 loaded[A_COPIES][2];
  auto load_pixels = [&](unsigned step) {
    const unsigned channel = (step * CHUNKS + chunk) * PER_CHUNK;
#pragma unroll
    for (unsigned i = 0; i < A_COPIES; i++) {
      const bool real = pixels[i] < PIXELS && (BM * CHUNKS % THREADS == 0 || (thread + i * THREADS) / CHUNKS < BM);
      const float4* const from = (const float4*)(x + pixels[i] * PITCH_X + channel + OFFSET);
      loaded[i][0] = real && channel < CHANNELS ? from[0] : float4{0.0f, 0.0f, 0.0f, 0.0f};
      loaded[i][1] = real && channel + 4 < CHANNELS ? from[1] : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
  };
  auto put_pixels = [&](unsigned slot) {
#pragma unroll
    for (unsigned i = 0; i < A_COPIES; i++) {
      const unsigned row = (thread + i * THREADS) / CHUNKS;
      if (BM * CHUNKS % THREADS && row >= BM) break;
      const float4 a = loaded[i][0], b = loaded[i][1];
      *(uint4*)(shared + slot * STAGE_BYTES + place(row, chunk)) =
          uint4{pack_half2(a.x, a.y), pack_half2(a.z, a.w), pack_half2(b.x, b.y), pack_half2(b.z, b.w)};
    }
  };
#else
  auto copy_pixels = [&](unsigned step, unsigned slot) {
    const unsigned depth = step * CHUNKS + chunk;
#if ACCESS != GATHER
    const unsigned tap = depth / TAP_CHUNKS, channel = depth % TAP_CHUNKS * PER_CHUNK;
    const int dy = tap / KERNEL_W * DILATION_Y, dx = tap % KERNEL_W * DILATION_X;
#endif
#pragma unroll
    for (unsigned i = 0; i < A_COPIES; i++) {
      const unsigned row = (thread + i * THREADS) / CHUNKS, to = slot * STAGE_BYTES + place(row, chunk);
      if (BM * CHUNKS % THREADS && row >= BM) break;
#if ACCESS == GATHER
#if WHOLE
      const Loaded empty = outside[0];
#else
      const Loaded empty = OUTSIDE;
#endif
      Loaded values[PER_CHUNK];
#pragma unroll
      for (unsigned e = 0; e < PER_CHUNK; e++) {
        const unsigned k = depth * PER_CHUNK + e, tap = k / CHANNELS, channel = k % CHANNELS;
        bool real = tap < TAPS && pixels[i].real;
        const int iy = inside(pixels[i].y + (int)(tap / KERNEL_W * DILATION_Y), H, UPSAMPLE_Y, real);
        const int ix = inside(pixels[i].x + (int)(tap % KERNEL_W * DILATION_X), W, UPSAMPLE_X, real);
        const unsigned from = pixels[i].image + iy * PITCH_Y + ix * PITCH_X + channel * PITCH_C + OFFSET;
        values[e] = real ? LOADED(x[from]) : empty;
      }
#if WHOLE
      *(uint4*)(shared + to) = uint4{four_bytes(values), four_bytes(values + 4), four_bytes(values + 8), four_bytes(values + 12)};
#elif HALF
      *(uint4*)(shared + to) = uint4{half_pair(values[0], values[1]), half_pair(values[2], values[3]),
                                     half_pair(values[4], values[5]), half_pair(values[6], values[7])};
#else
      *(float4*)(shared + to) = float4{values[0], values[1], values[2], values[3]};
#endif
#else
#if ACCESS == POINTS
      const bool real = pixels[i] < PIXELS && tap == 0;
      const unsigned from = pixels[i] * PITCH_X + channel + OFFSET;
#else
      bool real = tap < TAPS && pixels[i].real;
      const int iy = inside(pixels[i].y + dy, H, UPSAMPLE_Y, real);
      const int ix = inside(pixels[i].x + dx, W, UPSAMPLE_X, real);
      const unsigned from = pixels[i].image + iy * PITCH_Y + ix * PITCH_X + channel + OFFSET;
#endif
#if PADDED && ACCESS == WINDOW
      if (!real && tap < TAPS && pixels[i].real) {  // all copy the same 16 bytes, but for rows that are not stored
        copy_again(to, outside);
        continue;
      }
#endif
#if WHOLE && VECTOR < 16
#pragma unroll
      for (unsigned piece = 0; piece < 16; piece += VECTOR) {
        const bool some = real && channel + piece < CHANNELS;
        const SOURCE* const at = x + (some ? from + piece : 0);
        if (VECTOR == 8) copy8(to + piece, at, some); else copy4(to + piece, at, some);
      }
#elif VECTOR == 4 && HALF
      const bool second = real && channel + 4 < CHANNELS;
      copy8(to, x + (real ? from : 0), real);
      copy8(to + 8, x + (second ? from + 4 : 0), second);
#else
      copy16(to, x + (real ? from : 0), real);
#endif
#endif
    }
  };
#endif

  // The weights are nobody's output: they may come while the kernel before this one still runs.
#pragma unroll
  for (unsigned s = 0; s < EARLY; s++)
    if (s < STEPS) copy_weights(s, s);
#ifdef PROLOGUE
#if HALF
  Pairs channels;
  copy_factors(PROLOGUE, 0, DEPTH, thread, THREADS);
#else
  Channels<PER_CHUNK> channels;
#endif
#endif
#ifdef MEANS
  constexpr unsigned ACROSS = BN / 4;
  static_assert(32 % ACROSS == 0, "a thread stays with its quad, and lanes of a warp have the same ones");
  const unsigned own_quad = column0 / 4 + thread % ACROSS;
  float4 own[OPERANDS ? OPERANDS : 1];
#pragma unroll
  for (unsigned i = 0; i < OPERANDS; i++) own[i] = own_quad < QUADS ? channelwise[i * QUADS + own_quad] : float4{};
#endif
#if AHEAD
  static_assert(Product::SAME, "a thread stays with its quad");
  const unsigned own_quad = column0 / 4 + thread % Product::QUADS_ACROSS, real_quad = own_quad < QUADS ? own_quad : 0;
  const STORE_CONSTANTS_TYPE constants = STORE_CONSTANTS(real_quad);
#if WHOLE
  const int4 correction = corrections[real_quad];
#endif
#endif
#if BEGUN
  const Four begin = bias[real_quad];
#else
  const Four begin = {};
#endif
  wait_for_predecessors();
  launch_dependents();
#if defined PROLOGUE && HALF
  channels.fetch(PROLOGUE, chunk * PER_CHUNK, pixel0 + thread / CHUNKS);
#endif
#pragma unroll
  for (unsigned s = 0; s < EARLY; s++) {
#if ACCESS == FLOATS
    if (s < STEPS) load_pixels(s), put_pixels(s);
#else
    if (s < STEPS) copy_pixels(s, s);
#endif
    copies_commit();
  }

#if AHEAD
  STORE_OPERANDS_TYPE operands[Product::EACH];
#pragma unroll
  for (unsigned n = 0; n < Product::EACH; n++) {
    const unsigned pixel = pixel0 + Product::row_of(n);
    operands[n] = STORE_OPERANDS((pixel < PIXELS ? pixel : PIXELS - 1), real_quad);
  }
#endif

  Product product;
#if defined PROLOGUE && HALF
  copies_wait<EARLY - 1>();  // the factors, which others have copied
  __syncthreads();
#endif
  for (unsigned step = 0; step < STEPS; step++) {
    copies_wait<EARLY - 1>();
#ifdef PROLOGUE
    const unsigned own = (step * CHUNKS + chunk) * PER_CHUNK;
#if HALF
    channels.load(own);
    channels.take();
#else
    channels.load(PROLOGUE, own);
#endif
#pragma unroll
    for (unsigned i = 0; i < A_COPIES; i++) {
      const unsigned row = (thread + i * THREADS) / CHUNKS;
      if (BM * CHUNKS % THREADS && row >= BM) break;
#if HALF
      channels.follow(PROLOGUE, pixel0 + row);
#else
      channels.open(PROLOGUE, own, pixel0 + row);
#endif
      channels.apply(shared + step % STAGES * STAGE_BYTES + place(row, chunk));
    }
#if HALF
    if (step + 1 < STEPS) channels.fetch(PROLOGUE, own + BK, pixel0 + thread / CHUNKS);  // ahead of time
#endif
#endif
#if WARPGROUPS
    announce_copies();
#endif
    __syncthreads();
    const unsigned next = step + EARLY;
    if (next < STEPS) {
      copy_weights(next, next % STAGES);
#if ACCESS == FLOATS
      load_pixels(next);
#else
      copy_pixels(next, next % STAGES);
#endif
    }
    copies_commit();
    const unsigned tile = step % STAGES * STAGE_BYTES;
    product.add([&](unsigned row, unsigned chunk) { return tile + place(row, chunk); }, tile + A_BYTES);
#if ACCESS == FLOATS
    if (next < STEPS) put_pixels(next % STAGES);
#endif
  }
#ifdef MEANS
  float4 mean = {};
  product.store([&](unsigned row, unsigned, Four total, unsigned) {
    if (pixel0 + row >= PIXELS) return;
    const float4 value = ACTIVATE(total);
    mean = float4{mean.x + value.x, mean.y + value.y, mean.z + value.z, mean.w + value.w};
  });
#pragma unroll
  for (unsigned by = 16; by >= ACROSS; by /= 2)
    mean = float4{mean.x + __shfl_xor_sync(0xffffffffu, mean.x, by), mean.y + __shfl_xor_sync(0xffffffffu, mean.y, by),
                  mean.z + __shfl_xor_sync(0xffffffffu, mean.z, by), mean.w + __shfl_xor_sync(0xffffffffu, mean.w, by)};
  __syncthreads();
  float4* const sums = (float4*)shared;
  if (thread % 32 < ACROSS) sums[thread / 32 * ACROSS + thread % 32] = mean;
  __syncthreads();
  if (thread >= ACROSS || own_quad >= QUADS) return;
#pragma unroll
  for (unsigned warp = 1; warp < THREADS / 32; warp++) {
    const float4 more = sums[warp * ACROSS + thread];
    mean = float4{mean.x + more.x, mean.y + more.y, mean.z + more.z, mean.w + more.w};
  }
  const float4 scaled = float4{mean.x * SCALE, mean.y * SCALE, mean.z * SCALE, mean.w * SCALE};
#ifdef FINISHED
  parts[blockIdx.x / TILES_N * QUADS + own_quad] = FINISHED(scaled);
#else
  parts[blockIdx.x / TILES_N * QUADS + own_quad] = scaled;
#endif
#else
  product.store<BEGUN>([&](unsigned row, unsigned column, Four total, unsigned n) {
    const unsigned pixel = pixel0 + row, quad = column0 / 4 + column;
#if WHOLE
#if !AHEAD
    const int4 correction = corrections[quad];
#endif
    total = int4{total.x + correction.x, total.y + correction.y, total.z + correction.z, total.w + correction.w};
#endif
#if AHEAD
    if (pixel < PIXELS && quad < QUADS) STORE(pixel, quad, total, constants, operands[n]);
#else
    if (pixel < PIXELS && quad < QUADS) STORE(pixel, quad, total);
#endif
  }, begin);
#endif
}
