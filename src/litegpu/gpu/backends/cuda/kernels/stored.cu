// Elements of the input on their way to pairs of halves. Constants from the host: SOURCE and LOAD(value); of bytes perhaps
// BYTE_BITS, with which each is 1024 and a number from 0 on, BYTE_MINUS, which is added then (both for two halves, the zero
// point is in it), and BYTE_ZERO, the zero point's byte.
#ifdef BYTE_BITS
typedef unsigned Stored;
#define OUTSIDE BYTE_ZERO
INLINE Stored stored(SOURCE value) { return (unsigned char)value; }
INLINE unsigned half_pair(Stored a, Stored b) {
#ifdef __CUDA_ARCH__
  unsigned word = (a | b << 16) ^ BYTE_BITS;
  asm("add.f16x2 %0, %0, %1;" : "+r"(word) : "r"(BYTE_MINUS));
  return word;
#else
  return pack_half2(LOAD(a), LOAD(b));
#endif
}
#else
typedef float Stored;
#define OUTSIDE 0.0f
INLINE Stored stored(SOURCE value) { return LOAD(value); }
INLINE unsigned half_pair(Stored a, Stored b) { return pack_half2(a, b); }
#endif

