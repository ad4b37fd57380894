// Bulk copies to shared memory that one thread begins and a barrier (pipeline.cu) tells of: of rows by a tensor map, and of
// one workgroup for all of its cluster (compute capability 9.0).

// What the driver makes of a RowMap, a constant of the kernel.
struct __align__(64) TensorMap { unsigned long long words[16]; };

INLINE void fetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// A box of the map, from `element` of row number `row` on, to where tiles of 128 bytes a row lie as matrix() expects them; zeros
// stand for what is outside.
INLINE void copy_rows(unsigned at, unsigned to, const TensorMap* map, unsigned element, unsigned row) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
                   shared_address(to)),
               "l"(map), "r"(element), "r"(row), "r"(shared_address(at))
               : "memory");
}
// `bytes` to the same place of each of `count` workgroups of the cluster, whose barriers at the same place are told.
template <unsigned count> INLINE void copy_for_all(unsigned at, unsigned to, const void* from, unsigned bytes) {
  if constexpr (count == 1)
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(at))
                 : "memory");
  else
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(at)), "h"((unsigned short)((1u << count) - 1))
                 : "memory");
}
// As barrier_arrive(), at the barrier of workgroup number `part` of `count`: products that read have been awaited, and nothing that
// was written is told of (released to a cluster, an arrival would wait for all stores, a thousand cycles).
template <unsigned count> INLINE void cluster_barrier_arrive(unsigned at, unsigned part) {
  if constexpr (count == 1)
    barrier_arrive(at);
  else
    asm volatile("{.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [there];}" ::"r"(shared_address(at)), "r"(part)
                 : "memory");
}
// Tells those who wait with team_sync(barrier, threads), without waiting.
INLINE void team_arrive(unsigned barrier, unsigned threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
