// Rows that are normalised by what the kernel which stored them has told of them: of each part of a row the sum, and that of
// its squares (behind row_norm.cu and runs.cu). A team of 128 threads reads a tile's BM rows before it multiplies; runs.cu
// finds the row of a thread in shared memory, and asks for what is stored, to tell of that.
//
// Constants from the host: TOLD (1 or 0), TOLD_PARTS, TOLD_PITCH, TOLD_OFFSET (in floats, as all here); TELLS (1 or 0), TELLS_PITCH,
// TELLS_OFFSET; TOLD_AT (where BM rows of each team lie in shared memory).

// Of a tile whose first row is number `pixel0`, once all of the team have done with those of the tile before.
INLINE void read_moments(const float* told, unsigned pixel0, unsigned team, unsigned thread) {
#if TOLD
  team_sync(3 + team, 128);
#pragma unroll
  for (unsigned row = thread; row < BM; row += 128) {
    const unsigned pixel = pixel0 + row;
    float2 all = {};
    if (pixel < PIXELS)
#pragma unroll
      for (unsigned p = 0; p < TOLD_PARTS; p++) {
        const float2 part = *(const float2*)(told + (pixel * TOLD_PITCH + TOLD_OFFSET + p * 2));
        all = float2{all.x + part.x, all.y + part.y};
      }
    if (!CENTRED) all.x = 0.0f;
    *(float2*)(shared + TOLD_AT + (team * BM + row) * 8) = float2{all.x * (1.0f / NORM_DEPTH), row_factor(all)};
  }
  team_sync(3 + team, 128);
#endif
}

// Rows of a thread, of which a warp has 16 of each 64: what runs.cu asks for.
template <unsigned rows> struct ToldRows {
  const unsigned at;  // of the thread's first row, in shared memory
#if TELLS
  float2 moments[rows] = {};
#endif
  __device__ __forceinline__ explicit ToldRows(unsigned row0) : at(TOLD_AT + row0 * 8) {}
  __device__ __forceinline__ void read(Row& row, unsigned i) const {
#if TOLD
    row.norm = *(const float2*)(shared + at + (i / 2 * 64 + i % 2 * 8) * 8);
#endif
  }
  template <unsigned count> __device__ __forceinline__ void stored(const Quad (&quads)[count], unsigned i) {
#if TELLS
#pragma unroll
    for (unsigned q = 0; q < count; q++) {
      const unsigned words[2] = {quads[q].x, quads[q].y};
#pragma unroll
      for (unsigned e = 0; e < 4; e++) {
        const float value = half_to_float((unsigned short)(words[e / 2] >> e % 2 * 16));
        moments[i].x += value;
        moments[i].y = fmaf(value, value, moments[i].y);
      }
    }
#endif
  }
  // Part number `part` of the rows from `pixel0` on, of which a thread's first one is.
  __device__ __forceinline__ void tell(float* tells, unsigned lane, unsigned pixel0, unsigned part) {
#if TELLS
#pragma unroll
    for (unsigned i = 0; i < rows; i++) {
      float2 all = moments[i];
#pragma unroll
      for (unsigned by = 1; by < 4; by *= 2) {
        all.x += __shfl_xor_sync(~0u, all.x, by);
        all.y += __shfl_xor_sync(~0u, all.y, by);
      }
      const unsigned pixel = pixel0 + i / 2 * 64 + i % 2 * 8;
      if (lane % 4 == 0 && pixel < PIXELS) *(float2*)(tells + (pixel * TELLS_PITCH + TELLS_OFFSET + part * 2)) = all;
    }
#endif
  }
};
