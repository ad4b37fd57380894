// What workgroups of a cluster send to each other's shared memory (PTX, compute capability 9.0).
// Arrives at the workgroup's own barrier `at` (pipeline.cu), and announces that so many bytes will be sent.
INLINE void barrier_expect(unsigned at, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(at)), "r"(bytes) : "memory");
}
// 8 bytes to the shared memory of workgroup number `part`, whose barrier at `barrier` counts them.
INLINE void cluster_send(unsigned at, unsigned barrier, unsigned part, uint2 v) {
  unsigned there, told;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(part));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(told) : "r"(shared_address(barrier)), "r"(part));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];" ::"r"(there), "r"(v.x),
               "r"(v.y), "r"(told)
               : "memory");
}
// The same of 16 bytes.
INLINE void cluster_send(unsigned at, unsigned barrier, unsigned part, uint4 v) {
  unsigned there, told;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(part));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(told) : "r"(shared_address(barrier)), "r"(part));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(told)
               : "memory");
}
