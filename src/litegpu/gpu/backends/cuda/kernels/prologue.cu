// What a 1x1 convolution does with its input before it multiplies: clamp(x * scale + shift) * gate, in float, with a scale
// and a shift of each channel and a gate of each image and channel. Threads do so to what they have copied to shared
// memory themselves, before they tell others that it is there.
//
// Constants from the host: SCALED (there are scales and shifts, FACTORS of either one behind the other); CLAMPED LOWEST
// HIGHEST; POSITIVE (clamped at zero alone); GATED, and then GATE (the type), LOAD_GATE(value), GATE_CHANNELS, GATE_OFFSET
// GATE_PITCH_B GATE_PITCH_C (elements), GATE_QUADS (whether four lie side by side); IMAGE (output pixels of an image) and
// PIXELS (of all). PROLOGUE is what the kernel got, as a Prologue.
#if !GATED
typedef float GATE_TYPE;
#else
typedef GATE GATE_TYPE;
#endif
struct Prologue { const float* factors; const GATE_TYPE* gate; };

// Two floats as halves, negative ones as zero; a NaN stays.
INLINE unsigned pack_positive(float x, float y) {
#ifdef __CUDA_ARCH__
  unsigned word;
  asm("{cvt.rn.relu.f16x2.f32 %0, %1, %2;}" : "=r"(word) : "f"(y), "f"(x));
  return word;
#else
  return pack_half2(x < 0 ? 0.0f : x, y < 0 ? 0.0f : y);
#endif
}

// `count` neighbouring channels: their factors, and gates of one image at a time.
template <unsigned count> struct Channels {
  float scale[count], shift[count], gates[count];
  unsigned first, image;

  // What is constant, and may be read before the kernel in front of this one has ended.
  __device__ __forceinline__ void load(Prologue p, unsigned channel) {
    first = channel;
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

  // The gates of the image that an output pixel is in; those past the last pixel are in the last one.
  __device__ __forceinline__ void open(Prologue p, unsigned pixel) {
#if GATED
    image = (pixel < PIXELS ? pixel : PIXELS - 1) / IMAGE;
    const GATE_TYPE* const from = p.gate + (image * GATE_PITCH_B + GATE_OFFSET);
#if GATE_QUADS
    if constexpr (count % 4 == 0) {
#pragma unroll
      for (unsigned i = 0; i < count; i += 4) {
        const float4 a = first + i < GATE_CHANNELS ? *(const float4*)(from + first + i) : float4{0, 0, 0, 0};
        gates[i] = a.x, gates[i + 1] = a.y, gates[i + 2] = a.z, gates[i + 3] = a.w;
      }
      return;
    }
#endif
#pragma unroll
    for (unsigned i = 0; i < count; i++)
      gates[i] = first + i < GATE_CHANNELS ? LOAD_GATE(from[(first + i) * GATE_PITCH_C]) : 0.0f;
#endif
  }
  // The same, if that image is not open.
  __device__ __forceinline__ void follow(Prologue p, unsigned pixel) {
#if GATED
    if ((pixel < PIXELS ? pixel : PIXELS - 1) / IMAGE != image) open(p, pixel);
#endif
  }

  template <bool clamps> __device__ __forceinline__ float prepared(float x, unsigned i) const {
#if SCALED
    x = fmaf(x, scale[i], shift[i]);
#endif
#if CLAMPED
    if (clamps) {
      x = x < LOWEST ? LOWEST : x;
      x = x > HIGHEST ? HIGHEST : x;
    }
#endif
#if GATED
    x *= gates[i];
#endif
    return x;
  }

  // 16 bytes of a row in shared memory: halves, or floats.
  __device__ __forceinline__ void apply(void* at) const {
    if constexpr (count == 8) {
      uint4* const place = (uint4*)at;
      const uint4 v = *place;
      unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (unsigned i = 0; i < 4; i++) {
        const float low = half_to_float((unsigned short)words[i]), high = half_to_float((unsigned short)(words[i] >> 16));
#if POSITIVE && !GATED
        words[i] = pack_positive(prepared<false>(low, 2 * i), prepared<false>(high, 2 * i + 1));
#else
        words[i] = pack_half2(prepared<true>(low, 2 * i), prepared<true>(high, 2 * i + 1));
#endif
      }
      *place = uint4{words[0], words[1], words[2], words[3]};
    } else {
      float4* const place = (float4*)at;
      const float4 v = *place;
      *place = float4{prepared<true>(v.x, 0), prepared<true>(v.y, 1), prepared<true>(v.z, 2), prepared<true>(v.w, 3)};
    }
  }
};
