// What convolutions by warpgroup products multiply: halves with float sums, or (BYTES 4) floats, or (BYTES 1) bytes with int
// sums, of which the input may be UNSIGNED, and what is outside of it not zero (PADDED). With SIDE, of squares of that side, of
// POOL sums, the largest one alone is stored.
#ifndef SIDE
#define SIDE 1
#endif
constexpr unsigned POOL = SIDE * SIDE;
#if BYTES == 1
typedef signed char Element;
typedef int Sum;
typedef int2 Two;
typedef int4 Four;
// x: what is outside of the input, 16 times; corrections: what is to be added to the sums of each column.
#define MORE_BUFFERS , const Element* outside, const int4* corrections
#define MORE outside
#define CORRECTIONS corrections
#define CORRECTION(quad) corrections[quad]
INLINE int larger(int a, int b) { return a > b ? a : b; }
INLINE int4 corrected(int4 v, int4 more) { return int4{v.x + more.x, v.y + more.y, v.z + more.z, v.w + more.w}; }
#else
#if BYTES == 4
typedef float Element;
#else
typedef unsigned short Element;
#endif
typedef float Sum;
typedef float2 Two;
typedef float4 Four;
#define MORE_BUFFERS
#define MORE x
#define PADDED 0
#define CORRECTIONS nullptr
#define CORRECTION(quad) 0
INLINE float larger(float a, float b) { return fmaxf(a, b); }
INLINE float4 corrected(float4 v, int) { return v; }
#endif
INLINE Four larger(Four a, Four b) { return Four{larger(a.x, b.x), larger(a.y, b.y), larger(a.z, b.z), larger(a.w, b.w)}; }
#if BYTES == 1 && UNSIGNED
#define MULTIPLY multiply_unsigned
#else
#define MULTIPLY multiply
#endif
