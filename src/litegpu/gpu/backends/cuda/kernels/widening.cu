// A 1x1 convolution that widens its input, the depthwise convolution that reads it, and the 1x1 convolution behind that, of
// few pixels: the SPLIT workgroups of a cluster have the same BY x BX output pixels, and OWN of the wide channels each
// (compute capability 9.0). Their weights are in shared memory before their inputs exist. Each sends its part of the sums
// of a row of results to the workgroup that adds these up. Of bytes (WHOLE) sums are int, and become signed bytes by
// EXPANDED_* and MIDDLE_*.
//
// Constants from the host: SPLIT BY BX WARPS; OWN (a multiple of 16), DEEP (the same in whole products), DEPTH (channels of
// the packed weights of the expansion, in whole products), OUT (outputs, a multiple of 16), BM (BY x BX in whole 16s, a
// multiple of SPLIT); TILES_Y TILES_X; QUADS; OUT_H OUT_W; H W CHANNELS; KERNEL_H KERNEL_W STRIDE_* PADDING_* (of the
// window); OFFSET PITCH_* (elements, of the input's view); VECTOR (channels that are copied at once); EXPANDED(float4),
// MIDDLE(float4): what is done to sums with their bias; of bytes *_LOW *_HIGH (limits of scaled sums), *_OFFSET (added to
// the numbers nearest to these), *_NEAR (whether sums begin with the bits of MAGIC), OUTSIDE (a word of what is outside of
// the picture of wide channels), UNSIGNED (the input), for windows of up to four columns.
#if WHOLE
typedef signed char Element;
typedef int Sum;
typedef int2 Two;
typedef int4 Four;
typedef unsigned Words;  // four channels
#if UNSIGNED
#define MULTIPLY_INPUT multiply_unsigned
#else
#define MULTIPLY_INPUT multiply
#endif
#define MORE_BUFFERS , const float* scale, const float4* middle_scale, const int4* corrections
typedef const int* Bias;
typedef const int4* Biases;
#else
typedef unsigned short Element;
typedef float Sum;
typedef float2 Two;
typedef float4 Four;
typedef uint2 Words;
#define MULTIPLY_INPUT multiply
#define MORE_BUFFERS
typedef const float* Bias;
typedef const float4* Biases;
#endif
constexpr unsigned SIZE = sizeof(Element), THREADS = 32 * WARPS, PER_CHUNK = 16 / SIZE;
constexpr unsigned X_PITCH = DEPTH * SIZE + 16, E_PITCH = DEEP * SIZE + 16;  // bytes; odd numbers of 16: different banks
constexpr unsigned ROWS = (BY - 1) * STRIDE_Y + KERNEL_H, COLUMNS = (BX - 1) * STRIDE_X + KERNEL_W, PLACES = ROWS * COLUMNS;
constexpr unsigned TILES = (PLACES + 15) / 16, ACROSS = OWN / 16, CHUNKS = OWN / 4;
constexpr unsigned X_AT = 0, E_AT = X_AT + TILES * 16 * X_PITCH, D_AT = E_AT + TILES * 16 * E_PITCH;
constexpr unsigned W_AT = D_AT + BM * E_PITCH, P_AT = W_AT + OWN * X_PITCH, S_AT = P_AT + OUT * E_PITCH;
constexpr unsigned B_AT = S_AT + BM * OUT * 4, LAST = B_AT + OWN * (WHOLE ? 8 : 4) + 16;
constexpr unsigned SENT_AT = LAST - 16;
constexpr unsigned SLOTS = THREADS / CHUNKS, SHARE = BM / SPLIT;
static_assert(LAST == SHARED_BYTES, "the host reckons otherwise");
static_assert(BM % 16 == 0 && BM % SPLIT == 0 && OWN % 16 == 0 && OUT % 16 == 0 && CHUNKS <= THREADS, "block");

#if WHOLE
// a, b, c, d are four columns of four channels; v[i] those of channel i.
INLINE void turn_about(unsigned a, unsigned b, unsigned c, unsigned d, int (&v)[4]) {
  const unsigned ab = __byte_perm(a, b, 0x5140), cd = __byte_perm(c, d, 0x5140);
  const unsigned more = __byte_perm(a, b, 0x7362), last = __byte_perm(c, d, 0x7362);
  v[0] = (int)__byte_perm(ab, cd, 0x5410), v[1] = (int)__byte_perm(ab, cd, 0x7632);
  v[2] = (int)__byte_perm(more, last, 0x5410), v[3] = (int)__byte_perm(more, last, 0x7632);
}
// A sum that began with MAGIC's bits (NEAR) is those of MAGIC and the sum; a float that MAGIC is added to is rounded, and its
// bits end in the whole number. Conversions take four times as long.
constexpr float MAGIC = 12582912.0f;
template <bool near> INLINE unsigned whole(int sum, float scale, float low, float high) {
  const float exact = near ? __int_as_float(sum) - MAGIC : (float)sum;
  return (unsigned)__float_as_int(fminf(fmaxf(exact * scale, low), high) + MAGIC);
}
INLINE unsigned expanded_byte(int sum, float scale) {
  return whole<EXPANDED_NEAR>(sum, scale, EXPANDED_LOW, EXPANDED_HIGH) + EXPANDED_OFFSET & 255;
}
INLINE unsigned middle_byte(int sum, float scale) {
  return whole<MIDDLE_NEAR>(sum, scale, MIDDLE_LOW, MIDDLE_HIGH) + MIDDLE_OFFSET & 255;
}
#else
INLINE void unpack_four(uint2 a, float (&v)[4]) {
  v[0] = half_to_float((unsigned short)a.x), v[1] = half_to_float((unsigned short)(a.x >> 16));
  v[2] = half_to_float((unsigned short)a.y), v[3] = half_to_float((unsigned short)(a.y >> 16));
}
#endif

// 16 rows of one tile times 16 of another, `steps` of 32 bytes deep: sums of twice eight columns.
template <unsigned steps, class Multiply>
INLINE void product(unsigned left, unsigned left_pitch, unsigned right, unsigned right_pitch, Sum (&sums)[2][4], Multiply multiply) {
  const unsigned lane = threadIdx.x % 32;
  left += lane % 16 * left_pitch + lane / 16 * 16;
  right += (lane % 8 + lane / 16 * 8) * right_pitch + lane / 8 % 2 * 16;
#pragma unroll
  for (unsigned k = 0; k < steps; k++) {
    unsigned a[4], b[4];
    load_matrices(a, left + k * 32);
    load_matrices(b, right + k * 32);
    multiply(sums[0], a, b[0], b[1]);
    multiply(sums[1], a, b[2], b[3]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
#if SPLIT > 1
__cluster_dims__(SPLIT, 1, 1)
#endif
NAME(const SOURCE* x, const Element* __restrict__ w, Bias bias, const uint2* taps, Biases middle_bias,
     const Element* __restrict__ projection MORE_BUFFERS EPILOGUE_BUFFERS) {
  const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread / 32, part = SPLIT > 1 ? cluster_part() : 0;
  const unsigned tile = blockIdx.x / SPLIT, image = tile / (TILES_X * TILES_Y);
  const unsigned y0 = tile / TILES_X % TILES_Y * BY, x0 = tile % TILES_X * BX;
  const int iy0 = (int)(y0 * STRIDE_Y) - PADDING_Y, ix0 = (int)(x0 * STRIDE_X) - PADDING_X;

  // The weights are nobody's output: they may come while the kernel before this one still runs.
#if SPLIT > 1
  if (thread == 0) {
    barrier_init(SENT_AT, 1);
    barriers_ready();
    barrier_expect(SENT_AT, BM * OUT * 4);
  }
  __syncwarp();
  cluster_arrive();  // nobody's shared memory is written before its own workgroup has begun
#endif
  for (unsigned i = thread; i < OWN * (DEPTH / PER_CHUNK); i += THREADS)
    copy16(W_AT + i / (DEPTH / PER_CHUNK) * X_PITCH + i % (DEPTH / PER_CHUNK) * 16, w + (part * OWN * DEPTH + i * PER_CHUNK), true);
  for (unsigned i = thread; i < OUT * (DEEP / PER_CHUNK); i += THREADS)
    copy16(P_AT + i / (DEEP / PER_CHUNK) * E_PITCH + i % (DEEP / PER_CHUNK) * 16, projection + (part * OUT * DEEP + i * PER_CHUNK), true);
  for (unsigned i = thread; i < OWN; i += THREADS) {
    ((Sum*)(shared + B_AT))[i] = bias[part * OWN + i];
#if WHOLE
    ((float*)(shared + B_AT))[OWN + i] = scale[part * OWN + i];
#endif
  }
  const unsigned chunk = thread % CHUNKS, slot = thread / CHUNKS;
#if WHOLE
  int4 factors[KERNEL_H];
#pragma unroll
  for (unsigned ky = 0; ky < KERNEL_H; ky++) factors[ky] = ((const int4*)taps)[(part * KERNEL_H + ky) * CHUNKS + chunk];
  const float4 middle_scales = middle_scale[part * CHUNKS + chunk];
#else
  uint2 factors[KERNEL_H][KERNEL_W];
#pragma unroll
  for (unsigned ky = 0; ky < KERNEL_H; ky++)
#pragma unroll
    for (unsigned kx = 0; kx < KERNEL_W; kx++) factors[ky][kx] = taps[((part * KERNEL_H + ky) * KERNEL_W + kx) * CHUNKS + chunk];
#endif
  const Four middle_biases = middle_bias[part * CHUNKS + chunk];
  // What is stored at last, where a thread stores one quad.
  constexpr bool ONCE = SHARE * QUADS <= THREADS;
  auto pixel_of = [&](unsigned item, bool& real) {
    const unsigned row = part * SHARE + item / QUADS, oy = y0 + row / BX, ox = x0 + row % BX;
    real = item < SHARE * QUADS && row < BY * BX && oy < OUT_H && ox < OUT_W;
    return real ? (image * OUT_H + oy) * OUT_W + ox : 0;
  };
  bool stores;
  const unsigned own_pixel = pixel_of(thread, stores), own_quad = thread % QUADS;
  const STORE_CONSTANTS_TYPE constants = ONCE ? STORE_CONSTANTS(own_quad) : STORE_CONSTANTS_TYPE{};
#if WHOLE
  const Four correction = ONCE ? corrections[own_quad] : Four{};
#endif
  wait_for_predecessors();
  launch_dependents();

  constexpr unsigned PIECES = DEPTH / VECTOR;
  for (unsigned i = thread; i < PLACES * PIECES; i += THREADS) {
    const unsigned at = i / PIECES, channel = i % PIECES * VECTOR;
    const int iy = iy0 + (int)(at / COLUMNS), ix = ix0 + (int)(at % COLUMNS);
    const bool real = (unsigned)iy < H && (unsigned)ix < W && channel < CHANNELS;
    const SOURCE* const from = x + (real ? (long long)image * PITCH_B + iy * PITCH_Y + ix * PITCH_X + channel + OFFSET : 0);
    const unsigned to = X_AT + at * X_PITCH + channel * SIZE;
    if (VECTOR * SIZE == 16) copy16(to, from, real); else copy8(to, from, real);
  }
  copies_commit();
  const STORE_OPERANDS_TYPE operands = ONCE ? STORE_OPERANDS(own_pixel, own_quad) : STORE_OPERANDS_TYPE{};
  copies_wait<0>();
  __syncthreads();

  for (unsigned item = warp; item < TILES * ACROSS; item += WARPS) {
    const unsigned m = item % TILES * 16, n = item / TILES * 16, column = n + lane % 4 * 2;
    const Sum* const own = (const Sum*)(shared + B_AT) + column;
    Sum sums[2][4] = {{own[0], own[1], own[0], own[1]}, {own[8], own[9], own[8], own[9]}};
    product<DEPTH * SIZE / 32>(X_AT + m * X_PITCH, X_PITCH, W_AT + n * X_PITCH, X_PITCH, sums,
                               [](Sum(&d)[4], const unsigned(&a)[4], unsigned b0, unsigned b1) { MULTIPLY_INPUT(d, a, b0, b1); });
#if WHOLE
    const float* const scales = (const float*)(shared + B_AT) + OWN + column;
#endif
#pragma unroll
    for (unsigned h = 0; h < 2; h++) {
      const unsigned at = m + lane / 4 + h * 8;
      const bool real = (unsigned)(iy0 + (int)(at / COLUMNS)) < H && (unsigned)(ix0 + (int)(at % COLUMNS)) < W;
      unsigned char* const to = shared + E_AT + at * E_PITCH + column * SIZE;
#if WHOLE
#pragma unroll
      for (unsigned c = 0; c < 2; c++) {
        const unsigned pair = expanded_byte(sums[c][2 * h], scales[c * 8]) | expanded_byte(sums[c][2 * h + 1], scales[c * 8 + 1]) << 8;
        *(unsigned short*)(to + c * 8) = (unsigned short)(real ? pair : OUTSIDE);
      }
#else
      const float4 v = EXPANDED((float4{sums[0][2 * h], sums[0][2 * h + 1], sums[1][2 * h], sums[1][2 * h + 1]}));
      *(unsigned*)to = real ? pack_half2(v.x, v.y) : 0;
      *(unsigned*)(to + 16) = real ? pack_half2(v.z, v.w) : 0;
#endif
    }
  }
  __syncthreads();

  if (slot < SLOTS) {
    for (unsigned row = slot; row < BM; row += SLOTS) {
      Words result = {};
      if (BM == BY * BX || row < BY * BX) {
        const unsigned at = E_AT + (row / BX * STRIDE_Y * COLUMNS + row % BX * STRIDE_X) * E_PITCH + chunk * (4 * SIZE);
#if WHOLE
        int4 sum = middle_biases;
#pragma unroll
        for (unsigned ky = 0; ky < KERNEL_H; ky++) {
          unsigned columns[4] = {};
          int v[4];
#pragma unroll
          for (unsigned kx = 0; kx < KERNEL_W; kx++) columns[kx] = *(const unsigned*)(shared + at + (ky * COLUMNS + kx) * E_PITCH);
          turn_about(columns[0], columns[1], columns[2], columns[3], v);
          sum = int4{__dp4a(v[0], factors[ky].x, sum.x), __dp4a(v[1], factors[ky].y, sum.y),
                     __dp4a(v[2], factors[ky].z, sum.z), __dp4a(v[3], factors[ky].w, sum.w)};
        }
        result = middle_byte(sum.x, middle_scales.x) | middle_byte(sum.y, middle_scales.y) << 8 |
                 middle_byte(sum.z, middle_scales.z) << 16 | middle_byte(sum.w, middle_scales.w) << 24;
#else
        float sums[4] = {middle_biases.x, middle_biases.y, middle_biases.z, middle_biases.w};
#pragma unroll
        for (unsigned ky = 0; ky < KERNEL_H; ky++)
#pragma unroll
          for (unsigned kx = 0; kx < KERNEL_W; kx++) {
            float v[4], factor[4];
            unpack_four(*(const uint2*)(shared + at + (ky * COLUMNS + kx) * E_PITCH), v), unpack_four(factors[ky][kx], factor);
#pragma unroll
            for (unsigned e = 0; e < 4; e++) sums[e] = fmaf(v[e], factor[e], sums[e]);
          }
        const float4 v = MIDDLE((float4{sums[0], sums[1], sums[2], sums[3]}));
        result = uint2{pack_half2(v.x, v.y), pack_half2(v.z, v.w)};
#endif
      }
      *(Words*)(shared + D_AT + row * E_PITCH + chunk * (4 * SIZE)) = result;
    }
  }
#if SPLIT > 1
  __syncwarp();
  cluster_wait();  // all have begun
#endif
  __syncthreads();

  for (unsigned item = warp; item < BM / 16 * (OUT / 16); item += WARPS) {
    const unsigned m = item % (BM / 16) * 16, n = item / (BM / 16) * 16, column = n + lane % 4 * 2;
    Sum sums[2][4] = {};
    product<DEEP * SIZE / 32>(D_AT + m * E_PITCH, E_PITCH, P_AT + n * E_PITCH, E_PITCH, sums,
                              [](Sum(&d)[4], const unsigned(&a)[4], unsigned b0, unsigned b1) { multiply(d, a, b0, b1); });
#pragma unroll
    for (unsigned h = 0; h < 2; h++) {
      const unsigned row = m + lane / 4 + h * 8, at = S_AT + ((part * SHARE + row % SHARE) * OUT + column) * 4;
#pragma unroll
      for (unsigned c = 0; c < 2; c++) {
        const Two two = {sums[c][2 * h], sums[c][2 * h + 1]};
#if SPLIT > 1
        cluster_send(at + c * 32, SENT_AT, row / SHARE, *(const uint2*)&two);
#else
        *(Two*)(shared + at + c * 32) = two;
#endif
      }
    }
  }
#if SPLIT > 1
  barrier_wait(SENT_AT, 0);
#else
  __syncthreads();
#endif

  auto total_of = [&](unsigned item, Four total) {
#pragma unroll
    for (unsigned p = 0; p < SPLIT; p++) {
      const Four more = *(const Four*)(shared + S_AT + ((p * SHARE + item / QUADS) * OUT + item % QUADS * 4) * 4);
      total = Four{total.x + more.x, total.y + more.y, total.z + more.z, total.w + more.w};
    }
    return total;
  };
#if !WHOLE
  constexpr Four correction = {};
#endif
  if (ONCE) {
    if (stores) STORE(own_pixel, own_quad, total_of(thread, correction), constants, operands);
    return;
  }
  for (unsigned i = thread; i < SHARE * QUADS; i += THREADS) {
    bool real;
    const unsigned pixel = pixel_of(i, real), quad = i % QUADS;
    if (!real) continue;
#if WHOLE
    const Four first = corrections[quad];
#else
    constexpr Four first = {};
#endif
    STORE(pixel, quad, total_of(i, first), STORE_CONSTANTS(quad), STORE_OPERANDS(pixel, quad));
  }
}
