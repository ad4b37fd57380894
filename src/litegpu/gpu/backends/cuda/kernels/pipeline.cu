// Copies that barriers in shared memory tell of (compute capability 9.0): some warps copy, others multiply, and neither
// waits for more than it needs. A barrier is eight bytes at `at`; it completes a phase, and begins the next, when all
// its arrivals have come and all announced bytes are there. Phases are told apart by their parity, 0 first.
INLINE void barrier_init(unsigned at, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(at)), "r"(arrivals) : "memory");
}
INLINE void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
INLINE void barrier_arrive(unsigned at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(at)) : "memory");
}
// Arrives once all copies that this thread has begun (copy16) are there.
INLINE void barrier_arrive_copied(unsigned at) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(at)) : "memory");
}
// 16, 8 or 4 bytes, as copy16.
template <unsigned bytes> INLINE void copy_piece(unsigned at, const void* from, bool real) {
  if constexpr (bytes == 16) {
    copy16(at, from, real);
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared_address(at)), "l"(from), "r"(real ? bytes : 0),
                 "n"(bytes)
                 : "memory");
  }
}
INLINE void barrier_wait(unsigned at, unsigned parity) {
  asm volatile("{.reg .pred done;\n"
               "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@!done bra again;}" ::"r"(shared_address(at)), "r"(parity)
               : "memory");
}
// Arrives, announces `bytes` and copies them from global memory (all in multiples of 16).
INLINE void barrier_copy(unsigned at, unsigned to, const void* from, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(at)), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(at))
               : "memory");
}
// Waits for `threads` threads of the workgroup, which name the same one of 15 barriers.
INLINE void team_sync(unsigned barrier, unsigned threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// A warpgroup gives up registers, or takes those that others gave up: from now on it has so many for each thread.
template <unsigned count> INLINE void registers_drop() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count)); }
template <unsigned count> INLINE void registers_take() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count)); }
// Workgroups of a cluster, which run at the same time: the number of this one, all threads of all of them (what each did
// before, all see afterwards), and 16 bytes of the shared memory of one.
INLINE unsigned cluster_part() {
  unsigned part;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(part));
  return part;
}
INLINE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
INLINE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
INLINE void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}
INLINE uint4 cluster_read(unsigned at, unsigned part) {
  unsigned there;
  uint4 v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(part));
  asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(there)
               : "memory");
  return v;
}
