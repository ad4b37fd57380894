// Sums of products, a bias and perhaps a residual whose rows are normalised before they are stored (compute capability
// 9.0, behind runs.cu): a row's columns are those of NORM_PARTS workgroups, a cluster, which tell each other its sum
// and that of its squares.
//
// Constants from the host: NORM_PARTS; RESIDUAL (there is one), RESIDUAL_PITCH RESIDUAL_OFFSET (in quads); CENTRED (the
// mean counts); NORM_DEPTH (numbers of a row); EPSILON.

// Adds to the sums that a warp has of 16 rows, from number `pixel0` on, their bias and residual, and sums up.
INLINE void add_behind(float (&sums)[BN / 8][4], const float4* bias, const uint2* residual, unsigned lane, unsigned quad0,
                       unsigned pixel0, float2 (&moments)[2]) {
#pragma unroll
  for (unsigned run = 0; run < RUNS; run++) {
    const unsigned quad = quad_of(quad0, lane, run);
    float4 own[RUN_QUADS];
#pragma unroll
    for (unsigned q = 0; q < RUN_QUADS; q++) own[q] = __ldg(bias + quad + q);
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
      uint2 more[RUN_QUADS] = {};
#if RESIDUAL
      const unsigned pixel = pixel0 + lane / 4 + half * 8;
      take(more, pixel < PIXELS ? *(const Run*)(residual + (pixel * RESIDUAL_PITCH + RESIDUAL_OFFSET + quad)) : Run{});
#endif
#pragma unroll
      for (unsigned q = 0; q < RUN_QUADS; q++) {
        const unsigned words[2] = {more[q].x, more[q].y};
        const float biases[4] = {own[q].x, own[q].y, own[q].z, own[q].w};
#pragma unroll
        for (unsigned i = 0; i < 4; i++) {
          float& sum = sums[(run * RUN_QUADS + q) * 2 + i / 2][half * 2 + i % 2];
          sum += biases[i];
          if (RESIDUAL) sum += half_to_float((unsigned short)(words[i / 2] >> i % 2 * 16));
          moments[half].x += sum;
          moments[half].y = fmaf(sum, sum, moments[half].y);
        }
      }
    }
  }
}

// Normalises the sums of `rows` times 64 rows of a warpgroup, one of those of `threads` threads; a warp's first one is number `row0` of the workgroup's,
// and `pixel0` of all. Those who wait for the last cluster barrier are told of it here.
template <unsigned rows, unsigned threads>
INLINE void normalise_behind(float (&sums)[rows][BN / 8][4], const float4* bias, const uint2* residual, unsigned lane,
                             unsigned quad0, unsigned row0, unsigned pixel0) {
  float2 moments[rows][2] = {};
#pragma unroll
  for (unsigned m = 0; m < rows; m++) {
    add_behind(sums[m], bias, residual, lane, quad0, pixel0 + m * 64, moments[m]);
#pragma unroll
    for (unsigned half = 0; half < 2; half++)
#pragma unroll
      for (unsigned by = 1; by < 4; by *= 2) {
        moments[m][half].x += __shfl_xor_sync(~0u, moments[m][half].x, by);
        moments[m][half].y += __shfl_xor_sync(~0u, moments[m][half].y, by);
      }
  }
#if NORM_PARTS > 1
  team_sync(1, threads);  // nobody needs the tiles any more: what rows sum up to takes their place
#pragma unroll
  for (unsigned m = 0; m < rows; m++)
#pragma unroll
    for (unsigned half = 0; half < 2; half++)
      if (lane % 4 == 0) *(float4*)(shared + (row0 + m * 64 + lane / 4 + half * 8) * 16) = float4{moments[m][half].x, moments[m][half].y, 0.0f, 0.0f};
  cluster_sync();
#pragma unroll
  for (unsigned m = 0; m < rows; m++)
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
      float2 all = {};
#pragma unroll
      for (unsigned p = 0; p < NORM_PARTS; p++) {
        const uint4 bits = cluster_read((row0 + m * 64 + lane / 4 + half * 8) * 16, p);
        all.x += __uint_as_float(bits.x), all.y += __uint_as_float(bits.y);
      }
      moments[m][half] = all;
    }
  cluster_arrive();  // what the others have is read
#endif
#pragma unroll
  for (unsigned m = 0; m < rows; m++)
#pragma unroll
    for (unsigned half = 0; half < 2; half++) {
      const float mean = CENTRED ? moments[m][half].x * (1.0f / NORM_DEPTH) : 0.0f;
      const float variance = fmaf(-mean, mean, moments[m][half].y * (1.0f / NORM_DEPTH));
      // What was rounded must not make it negative; a NaN stays.
      const float factor = rsqrtf((variance < 0.0f ? 0.0f : variance) + EPSILON);
#pragma unroll
      for (unsigned n = 0; n < BN / 8; n++)
#pragma unroll
        for (unsigned e = half * 2; e < half * 2 + 2; e++) sums[m][n][e] = (sums[m][n][e] - mean) * factor;
    }
}
