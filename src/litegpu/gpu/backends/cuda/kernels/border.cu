// What a convolution finds outside of its input: zeros, or the input mirrored at its edge. BORDER is one of:
#define ZERO 0
#define REFLECT 1    // the edge is not repeated
#define SYMMETRIC 2  // the edge is repeated

// The input position of position i of an axis that has n elements after each was repeated `upsample` times; where it
// stands for a zero, `real` becomes false.
INLINE int inside(int i, int n, int upsample, bool& real) {
  if (BORDER == ZERO) {
    real = real && (unsigned)i < (unsigned)n;
  } else {
    const int repeated = BORDER == SYMMETRIC;
    i = i < 0 ? -i - repeated : i;
    i = i >= n ? 2 * n - 2 + repeated - i : i;
    i = i < 0 ? 0 : i >= n ? n - 1 : i;  // of a pixel that is not stored
  }
  return i / upsample;
}
