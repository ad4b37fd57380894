// Workgroups of a cluster, which run at the same time and see each other's shared memory (PTX, compute capability 9.0).
extern __shared__ __align__(128) unsigned char shared[];

// The shared memory of this workgroup, `bytes` of it.
INLINE float* own_shared(unsigned bytes) { return (float*)shared; }

INLINE unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of the cluster: what each did before it arrived is seen by all after they waited.
INLINE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// The same of a thread that has done nothing yet that others have to see.
INLINE void cluster_arrive_first() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
INLINE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Store in the shared memory of workgroup number `rank`, where `at` is in this one's, which has `bytes`.
INLINE void cluster_store(float* at, unsigned rank, float value, unsigned bytes) {
  const unsigned own = (unsigned)__cvta_generic_to_shared(at);
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
}
