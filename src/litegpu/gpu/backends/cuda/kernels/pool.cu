// The largest of windows of bytes. A thread has CHUNK bytes of neighbouring channels (16, 8 or 4) of ACROSS outputs side
// by side, and takes the largest of each column of inputs once. What is outside is read as the pixel at the edge, which
// the window has anyhow; where something else is OUTSIDE, it is compared with at the end.
//
// Two bytes are compared by one instruction for two numbers of 16 bits, by their upper halves: those of a word as it is
// are its odd bytes, and those of the word shifted its even ones. What is in the lower halves does not matter.
//
// Constants from the host: UNSIGNED; CHUNKS (of a pixel), BLOCKS (of a row of outputs), ROWS (of outputs), THREADS; H W
// (of the input) OUT_W OUT_H; KERNEL_*, STRIDE_*, PADDING_*; OUTSIDE (four times a byte, if defined); FROM_* and TO_*
// (bytes from image to image, row to row, pixel to pixel, and OFFSET, of input and result).
#if CHUNK == 16
typedef uint4 Chunk;
#elif CHUNK == 8
typedef uint2 Chunk;
#else
typedef unsigned Chunk;
#endif
constexpr unsigned WORDS = CHUNK / 4, COLUMNS = (ACROSS - 1) * STRIDE_X + KERNEL_W;

union Bytes {
  Chunk chunk;
  unsigned words[WORDS];
};
#if UNSIGNED
INLINE unsigned larger(unsigned a, unsigned b) { return __vmaxu2(a, b); }
#else
INLINE unsigned larger(unsigned a, unsigned b) { return __vmaxs2(a, b); }
#endif
INLINE unsigned within(int i, int size) { return i < 0 ? 0 : i < size ? i : size - 1; }

struct Largest {
  unsigned odd[WORDS], even[WORDS];
  __device__ __forceinline__ void begin(const Bytes& bytes) {
#pragma unroll
    for (unsigned w = 0; w < WORDS; w++) odd[w] = bytes.words[w], even[w] = bytes.words[w] << 8;
  }
  __device__ __forceinline__ void add(const Bytes& bytes) {
#pragma unroll
    for (unsigned w = 0; w < WORDS; w++) {
      odd[w] = larger(odd[w], bytes.words[w]);
      even[w] = larger(even[w], bytes.words[w] << 8);
    }
  }
  __device__ __forceinline__ void add(const Largest& other) {
#pragma unroll
    for (unsigned w = 0; w < WORDS; w++) odd[w] = larger(odd[w], other.odd[w]), even[w] = larger(even[w], other.even[w]);
  }
  __device__ __forceinline__ Chunk bytes() const {
    Bytes found;
#pragma unroll
    for (unsigned w = 0; w < WORDS; w++) found.words[w] = __byte_perm(even[w], odd[w], 0x7351);
    return found.chunk;
  }
};

extern "C" __global__ void __launch_bounds__(THREADS) NAME(const signed char* x EPILOGUE_BUFFERS) {
  wait_for_predecessors();
  launch_dependents();
  const unsigned number = blockIdx.x * THREADS + threadIdx.x, channel = number % CHUNKS * CHUNK, block = number / CHUNKS;
  const unsigned row = block / BLOCKS, first = block % BLOCKS * ACROSS, image = row / OUT_H, y = row % OUT_H;
  if (row >= ROWS) return;
  const int y0 = (int)(y * STRIDE_Y) - PADDING_Y, x0 = (int)(first * STRIDE_X) - PADDING_X;
  Largest found[ACROSS];
#pragma unroll
  for (unsigned j = 0; j < COLUMNS; j++) {
    Largest column;
#pragma unroll
    for (unsigned ky = 0; ky < KERNEL_H; ky++) {
      const unsigned iy = within(y0 + (int)ky, H), ix = within(x0 + (int)j, W);
      Bytes bytes;
      bytes.chunk = *(const Chunk*)(x + (FROM_OFFSET + image * FROM_B + iy * FROM_Y + ix * FROM_X + channel));
      if (ky == 0) column.begin(bytes);
      else column.add(bytes);
    }
#pragma unroll
    for (unsigned p = 0; p < ACROSS; p++) {
      if (j == p * STRIDE_X) found[p] = column;
      else if (j > p * STRIDE_X && j < p * STRIDE_X + KERNEL_W) found[p].add(column);
    }
  }
#pragma unroll
  for (unsigned p = 0; p < ACROSS; p++) {
    if (first + p >= OUT_W) break;
#ifdef OUTSIDE
    const int left = x0 + (int)(p * STRIDE_X);
    Bytes outside;
#pragma unroll
    for (unsigned w = 0; w < WORDS; w++) outside.words[w] = OUTSIDE;
    if (y0 < 0 || y0 + KERNEL_H > H || left < 0 || left + KERNEL_W > W) found[p].add(outside);
#endif
    *(Chunk*)(results + (TO_OFFSET + image * TO_B + y * TO_Y + (first + p) * TO_X + channel)) = found[p].bytes();
  }
}
