// Sums that the SPLIT workgroups of a cluster have of the same results, each of a part of the depth (compute capability
// 9.0): in shared memory, PITCH of them a row, POOL rows for each result. Each workgroup adds up, and stores, some of `rows`.
//
// real(result, quad): whether there are such; finish(total, result); store(result, quad, total).
template <unsigned rows, unsigned pitch, unsigned threads, class Real, class Finish, class Store>
INLINE void add_up(unsigned part, unsigned quad0, const int4* corrections, Real real, Finish finish, Store store) {
  constexpr unsigned SHARE = rows / (SPLIT * POOL), QUADS_ACROSS = BN / 4, ITEMS = SHARE * QUADS_ACROSS;
  constexpr unsigned EACH = (ITEMS + threads - 1) / threads;  // of a thread
  static_assert(rows % (SPLIT * POOL) == 0, "shares");
  cluster_sync();
  Four totals[EACH] = {};
#pragma unroll
  for (unsigned n = 0; n < EACH; n++) {
    const unsigned i = threadIdx.x + n * threads, result = part * SHARE + i / QUADS_ACROSS, quad = quad0 + i % QUADS_ACROSS;
    if (i >= ITEMS || !real(result, quad)) continue;
#pragma unroll
    for (unsigned r = 0; r < POOL; r++) {
      Four total = {};
#if BYTES == 1
      total = corrections[quad];
#endif
#pragma unroll
      for (unsigned p = 0; p < SPLIT; p++) {
        const uint4 bits = cluster_read(((result * POOL + r) * pitch + i % QUADS_ACROSS * 4) * 4, p);
        const Four v = *(const Four*)&bits;
        total = Four{total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w};
      }
      totals[n] = r ? larger(totals[n], total) : total;
    }
    finish(totals[n], result);
  }
  cluster_arrive();  // what the others have is read
#pragma unroll
  for (unsigned n = 0; n < EACH; n++) {
    const unsigned i = threadIdx.x + n * threads, result = part * SHARE + i / QUADS_ACROSS, quad = quad0 + i % QUADS_ACROSS;
    if (i < ITEMS && real(result, quad)) store(result, quad, totals[n]);
  }
  cluster_wait();
}
