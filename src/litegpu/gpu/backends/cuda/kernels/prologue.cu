// What a 1x1 convolution does with its input before it multiplies: clamp(x * scale + shift) * gate, with a scale and a
// shift of each channel and a gate of each image and channel. Threads do so to what they have copied to shared memory
// themselves, before they tell others that it is there: to floats, or to pairs of halves (HALVES), where factors are two
// halves each, one for the digits that the other has not.
//
// Constants from the host: SCALED (there are scales and shifts, of FACTORS channels); CLAMPED LOWEST HIGHEST; POSITIVE
// (clamped at zero alone); GATED, and then GATE (the type), LOAD_GATE(value), GATE_CHANNELS, GATE_OFFSET GATE_PITCH_B
// GATE_PITCH_C (elements), GATE_QUADS (whether four lie side by side); IMAGE (output pixels of an image) and PIXELS (of
// all). PROLOGUE is what the kernel got, as a Prologue: of floats all scales and then all shifts; of halves for eight
// channels their scales, what these lack, their shifts, and what these lack, which are copied to shared memory at FACTORS_AT.
#if !GATED
typedef float GATE_TYPE;
#else
typedef GATE GATE_TYPE;
#endif
struct Prologue { const float* factors; const GATE_TYPE* gate; };

// Gates of `count` channels from `channel` on, for the image that an output pixel is in; those past the last pixel are in
// the last one.
INLINE unsigned image_of(unsigned pixel) { return (pixel < PIXELS ? pixel : PIXELS - 1) / IMAGE; }
template <unsigned count> INLINE void load_gates(Prologue p, unsigned image, unsigned channel, float (&gates)[count]) {
#if GATED
  const GATE_TYPE* const from = p.gate + (image * GATE_PITCH_B + GATE_OFFSET);
#if GATE_QUADS
  if constexpr (count % 4 == 0) {
#pragma unroll
    for (unsigned i = 0; i < count; i += 4) {
      const float4 a = channel + i < GATE_CHANNELS ? *(const float4*)(from + channel + i) : float4{0, 0, 0, 0};
      gates[i] = a.x, gates[i + 1] = a.y, gates[i + 2] = a.z, gates[i + 3] = a.w;
    }
    return;
  }
#endif
#pragma unroll
  for (unsigned i = 0; i < count; i++)
    gates[i] = channel + i < GATE_CHANNELS ? LOAD_GATE(from[(channel + i) * GATE_PITCH_C]) : 0.0f;
#endif
}

#if HALVES
// Of two pairs of halves; a NaN stays.
#ifdef __CUDA_ARCH__
#define OF_PAIRS(name, instruction) \
  INLINE unsigned name(unsigned a, unsigned b) { \
    unsigned word; \
    asm("{" instruction " %0, %1, %2;}" : "=r"(word) : "r"(a), "r"(b)); \
    return word; \
  }
OF_PAIRS(multiply_pairs, "mul.rn.f16x2")
INLINE unsigned add_multiple(unsigned a, unsigned b, unsigned c) {
  unsigned word;
  asm("{fma.rn.f16x2 %0, %1, %2, %3;}" : "=r"(word) : "r"(a), "r"(b), "r"(c));
  return word;
}
INLINE unsigned add_pairs(unsigned a, unsigned b, bool positive) {
  unsigned word;
#if __CUDA_ARCH__ >= 800
  if (positive)
    asm("{fma.rn.relu.f16x2 %0, %1, %2, %3;}" : "=r"(word) : "r"(a), "r"(0x3c003c00u), "r"(b));
  else
    asm("{add.rn.f16x2 %0, %1, %2;}" : "=r"(word) : "r"(a), "r"(b));
#else
  asm("{add.rn.f16x2 %0, %1, %2;}" : "=r"(word) : "r"(a), "r"(b));
  if (positive) word &= ~((word >> 15 & 0x10001u) * 0xffffu);  // no NaN that a sum gives has a sign
#endif
  return word;
}
#endif
#if __CUDA_ARCH__ >= 800
OF_PAIRS(larger_of_pairs, "max.NaN.f16x2")
OF_PAIRS(smaller_of_pairs, "min.NaN.f16x2")
#else
template <class F> INLINE unsigned of_pairs(unsigned a, unsigned b, F f) {
  return pack_half2(f(half_to_float((unsigned short)a), half_to_float((unsigned short)b)),
                    f(half_to_float((unsigned short)(a >> 16)), half_to_float((unsigned short)(b >> 16))));
}
INLINE unsigned larger_of_pairs(unsigned a, unsigned b) {
  return of_pairs(a, b, [](float x, float y) { return x < y ? y : x; });
}
INLINE unsigned smaller_of_pairs(unsigned a, unsigned b) {
  return of_pairs(a, b, [](float x, float y) { return x > y ? y : x; });
}
#endif
#ifndef __CUDA_ARCH__
INLINE unsigned multiply_pairs(unsigned a, unsigned b) { return of_pairs(a, b, [](float x, float y) { return x * y; }); }
INLINE unsigned add_multiple(unsigned a, unsigned b, unsigned c) {
  return pack_half2(fmaf(half_to_float((unsigned short)a), half_to_float((unsigned short)b), half_to_float((unsigned short)c)),
                    fmaf(half_to_float((unsigned short)(a >> 16)), half_to_float((unsigned short)(b >> 16)),
                         half_to_float((unsigned short)(c >> 16))));
}
INLINE unsigned add_pairs(unsigned a, unsigned b, bool positive) {
  return of_pairs(a, b, [=](float x, float y) { return positive && x + y < 0 ? 0.0f : x + y; });
}
#endif

// Brings the factors of `count` channels from `channel` on, both multiples of eight, to shared memory, by `threads` threads.
INLINE void copy_factors(Prologue p, unsigned channel, unsigned count, unsigned thread, unsigned threads) {
#if SCALED
  for (unsigned i = thread; i < count / 2; i += threads)
    copy16(FACTORS_AT + channel * 8 + i * 16, (const unsigned char*)p.factors + channel * 8 + i * 16, true);
#endif
}

// Eight neighbouring channels: their factors, and gates of one image at a time.
struct Pairs {
  uint4 scale, less_scale, shift, less_shift;
  unsigned gates[4], less_gates[4], first, image;
  float fetched[8];

  __device__ __forceinline__ void load(unsigned channel) {
#if SCALED
    const uint4* const from = (const uint4*)(shared + FACTORS_AT + channel * 8);
    scale = from[0], less_scale = from[1], shift = from[2], less_shift = from[3];
#endif
  }
  // Loads the gates of a pixel's image, which take() waits for.
  __device__ __forceinline__ void fetch(Prologue p, unsigned channel, unsigned pixel) {
#if GATED
    first = channel, image = image_of(pixel);
    load_gates(p, image, channel, fetched);
#endif
  }
  __device__ __forceinline__ void take() {
#if GATED
#pragma unroll
    for (unsigned i = 0; i < 4; i++) {
      const float a = fetched[2 * i], b = fetched[2 * i + 1];
      gates[i] = pack_half2(a, b);
      less_gates[i] = pack_half2(a - half_to_float((unsigned short)gates[i]), b - half_to_float((unsigned short)(gates[i] >> 16)));
    }
#endif
  }
  // The gates of that pixel's image, if they are not those that are here.
  __device__ __forceinline__ void follow(Prologue p, unsigned pixel) {
#if GATED
    if (image_of(pixel) != image) fetch(p, first, pixel), take();
#endif
  }
  __device__ __forceinline__ unsigned prepared(unsigned x, unsigned i, unsigned a, unsigned less_a, unsigned b, unsigned less_b) const {
#if SCALED
    x = add_pairs(add_multiple(x, a, b), add_multiple(x, less_a, less_b), POSITIVE);
#elif POSITIVE
    x = larger_of_pairs(x, 0);
#endif
#if CLAMPED && !POSITIVE
    x = smaller_of_pairs(larger_of_pairs(x, pack_half2(LOWEST, LOWEST)), pack_half2(HIGHEST, HIGHEST));
#endif
#if GATED
    x = add_multiple(x, gates[i], multiply_pairs(x, less_gates[i]));
#endif
    return x;
  }
  __device__ __forceinline__ void apply(void* at) const {
    uint4* const place = (uint4*)at;
    const uint4 v = *place;
    *place = uint4{prepared(v.x, 0, scale.x, less_scale.x, shift.x, less_shift.x),
                   prepared(v.y, 1, scale.y, less_scale.y, shift.y, less_shift.y),
                   prepared(v.z, 2, scale.z, less_scale.z, shift.z, less_shift.z),
                   prepared(v.w, 3, scale.w, less_scale.w, shift.w, less_shift.w)};
  }
};
#endif

// `count` neighbouring channels, as floats.
template <unsigned count> struct Channels {
  float scale[count], shift[count], gates[count];

  // What is constant, and may be read before the kernel in front of this one has ended.
  __device__ __forceinline__ void load(Prologue p, unsigned channel) {
#if SCALED
    if constexpr (count % 4 == 0) {
#pragma unroll
      for (unsigned i = 0; i < count; i += 4) {
        const float4 a = __ldg((const float4*)(p.factors + channel + i));
        const float4 b = __ldg((const float4*)(p.factors + FACTORS + channel + i));
        scale[i] = a.x, scale[i + 1] = a.y, scale[i + 2] = a.z, scale[i + 3] = a.w;
        shift[i] = b.x, shift[i + 1] = b.y, shift[i + 2] = b.z, shift[i + 3] = b.w;
      }
    } else {
#pragma unroll
      for (unsigned i = 0; i < count; i++)
        scale[i] = __ldg(p.factors + channel + i), shift[i] = __ldg(p.factors + FACTORS + channel + i);
    }
#endif
  }
  __device__ __forceinline__ void open(Prologue p, unsigned channel, unsigned pixel) {
    load_gates(p, image_of(pixel), channel, gates);
  }
  __device__ __forceinline__ float prepared(float x, unsigned i) const {
#if SCALED
    x = fmaf(x, scale[i], shift[i]);
#endif
#if CLAMPED
    x = x < LOWEST ? LOWEST : x;
    x = x > HIGHEST ? HIGHEST : x;
#endif
#if GATED
    x *= gates[i];
#endif
    return x;
  }
  // 16 bytes of a row in shared memory.
  __device__ __forceinline__ void apply(void* at) const {
    float4* const place = (float4*)at;
    const float4 v = *place;
    *place = float4{prepared(v.x, 0), prepared(v.y, 1), prepared(v.z, 2), prepared(v.w, 3)};
  }
};
