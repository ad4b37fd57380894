// CUDA's device language for a C++ compiler of the host: enough for the kernels that litegpu prints. The threads of a
// warp take turns, as contexts that switch at every shuffle and product; a warp runs until all its threads wait at a
// barrier of the workgroup, so that one that is missing shows; workgroups run one after the other. Shared memory begins
// as NaN, half of the copies to it are done at once and half as late as may be; a write past its end is an error.
#pragma once
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <tuple>
#include <ucontext.h>
#include <utility>
#include <vector>

struct uint3 { unsigned x, y, z; };
#define VECTOR(name, type, size) struct alignas(2 * sizeof(type)) name##2 { type x, y; }; \
  struct alignas(4 * sizeof(type)) name##4 { type x, y, z, w; };
VECTOR(float, float, 4)
VECTOR(int, int, 4)
VECTOR(uint, unsigned, 4)

#define __global__
#define __device__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) alignas(n)
#define __shared__ static

extern "C" bool emulated_waited;
bool emulated_waited = false;  // whether this kernel has waited for those in front of it
#define launch_dependents()
#define wait_for_predecessors() (emulated_waited = true)

typedef unsigned long long cudaGraphConditionalHandle;
#define __cudart_builtin__
#define CUDARTAPI
extern "C" inline void cudaGraphSetConditional(cudaGraphConditionalHandle handle, unsigned value) {
  *(unsigned*)handle = value;
}

namespace emulator {
constexpr unsigned char NOTHING_YET = 0xff;  // of shared memory: four such bytes are NaN
struct Copy { unsigned at; const void* from; unsigned size, group; bool real; };
enum State { RUNNING, AT_BARRIER, AT_TEAM, AT_SIGNAL, AT_CLUSTER, ENDED };
struct Signal { unsigned arrivals, pending, bytes, phase; };  // a barrier of pipeline.cu
struct Thread {
  ucontext_t context;
  jmp_buf place;
  std::vector<char> stack;
  uint3 id;
  unsigned rank, groups;  // of its workgroup in the cluster; of copies that it has committed
  State state;
  bool started, arrived;
  int line;  // of the barrier that it waits at
  unsigned signal, parity, team, members;  // what else it waits for
  std::vector<Copy> copies;
};
constexpr unsigned MOST_THREADS = 8 << 10;  // of a cluster
inline std::vector<Thread> threads;
inline jmp_buf scheduler;
inline Thread* current;
inline uint3 group, grid;
inline uint64_t slots[MOST_THREADS];

inline uint3 block() { return {group.x + current->rank, group.y, group.z}; }
inline void pause() {
  if (!_setjmp(current->place)) _longjmp(scheduler, 1);
}
inline void fail(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what);
  std::abort();
}
inline void barrier(int line) {
  current->state = AT_BARRIER;
  current->line = line;
  pause();
}

template <class T> T shuffle(unsigned mask, T value, unsigned to) {
  const unsigned self = current - threads.data(), first = self & ~31u;
  std::memcpy(&slots[self], &value, sizeof(T));
  pause();
  T result = value;
  if (to < 32 && first + to < threads.size() && (mask >> to & 1)) std::memcpy(&result, &slots[first + to], sizeof(T));
  pause();
  return result;
}
inline unsigned lane() { return (current - threads.data()) & 31u; }
}  // namespace emulator

#define threadIdx (emulator::current->id)
#define blockIdx (emulator::block())
#define gridDim (emulator::grid)
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
#define __syncthreads() emulator::barrier(__LINE__)
template <class T> T __shfl_sync(unsigned mask, T v, unsigned from) { return emulator::shuffle(mask, v, from); }
template <class T> T __shfl_xor_sync(unsigned mask, T v, unsigned by) {
  return emulator::shuffle(mask, v, emulator::lane() ^ by);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned by) {
  return emulator::shuffle(mask, v, emulator::lane() + by);
}
inline unsigned __ballot_sync(unsigned mask, bool v) {
  unsigned found = 0;
  for (unsigned i = 0; i < 32; i++) found |= (unsigned)(emulator::shuffle(mask, (int)v, i) != 0) << i;
  return found;
}
inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }

template <class T> T __ldg(const T* p) { return *p; }
template <class T> void __stcs(T* p, T v) { *p = v; }
template <class To, class From> To bits(From x) { To y; std::memcpy(&y, &x, sizeof(y)); return y; }
inline unsigned __float_as_uint(float x) { return bits<unsigned>(x); }
inline int __float_as_int(float x) { return bits<int>(x); }
inline float __uint_as_float(unsigned x) { return bits<float>(x); }
inline float __int_as_float(int x) { return bits<float>(x); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = (uint64_t)y << 32 | x;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; i++) result |= (unsigned)(both >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
  return result;
}
template <class T> unsigned larger_halves(unsigned a, unsigned b) {
  const T low = (T)a > (T)b ? (T)a : (T)b, high = (T)(a >> 16) > (T)(b >> 16) ? (T)(a >> 16) : (T)(b >> 16);
  return (unsigned)(uint16_t)high << 16 | (uint16_t)low;
}
inline unsigned __vmaxs2(unsigned a, unsigned b) { return larger_halves<int16_t>(a, b); }
inline unsigned __vmaxu2(unsigned a, unsigned b) { return larger_halves<uint16_t>(a, b); }
inline int __float2int_rz(float x) {
  return x != x ? 0 : x >= 2147483648.0f ? 2147483647 : x <= -2147483648.0f ? -2147483647 - 1 : (int)x;
}
inline int __float2int_rn(float x) { return __float2int_rz(std::rint(x)); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fadd_rd(float x, float y) {  // rounded down, of numbers whose sum a double holds
  const double sum = (double)x + y;
  const float near = (float)sum;
  return near > sum ? std::nextafter(near, -INFINITY) : near;
}
inline float __fmul_rn(float x, float y) { volatile float z = x * y; return z; }  // never part of an fma
inline float __int2float_rn(int x) { return (float)x; }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 32; i += 8) c = (int)((unsigned)c + (unsigned)((int)(signed char)(a >> i) * (int)(signed char)(b >> i)));
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 32; i += 8) c += (a >> i & 255) * (b >> i & 255);
  return c;
}
inline int atomicAdd(int* at, int more) { return __atomic_fetch_add(at, more, __ATOMIC_RELAXED); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float rsqrtf(float x) { return (float)(1.0 / std::sqrt((double)x)); }

inline float rough_exp2(float x) { return exp2f(x); }
inline float rough_reciprocal(float x) { return 1.0f / x; }
inline float half_to_float(unsigned short x) { return bits<_Float16>(x); }
inline unsigned short float_to_half(float x) { return bits<unsigned short>((_Float16)x); }
inline unsigned pack_half2(float x, float y) { return float_to_half(x) | (unsigned)float_to_half(y) << 16; }

// What device.cu and warpgroup.cu of src/litegpu/gpu/backends/cuda/kernels define by PTX.
namespace emulator {
alignas(1024) inline unsigned char memory[8 * (228 << 10)];  // of the workgroups of a cluster, one behind the other
inline unsigned memory_each;
inline unsigned char* memory_of(unsigned rank) { return memory + (size_t)rank * memory_each; }
inline void perform(const Copy& c) {
  if (c.real) std::memcpy(memory + c.at, c.from, c.size); else std::memset(memory + c.at, 0, c.size);
}
inline void copy(unsigned at, const void* from, unsigned size, bool real) {
  if (at % size || (uintptr_t)from % size) fail("a copy to shared memory is not aligned");
  const Copy c = {at + current->rank * memory_each, from, size, current->groups, real};
  if ((current - threads.data()) % 2) current->copies.push_back(c); else perform(c);
}
}  // namespace emulator
#define shared (emulator::memory_of(emulator::current->rank))
inline void copy16(unsigned at, const void* from, bool real) { emulator::copy(at, from, 16, real); }
inline void copy16_of_line(unsigned at, const void* from, bool real) { emulator::copy(at, from, 16, real); }
inline void copy8(unsigned at, const void* from, bool real) { emulator::copy(at, from, 8, real); }
inline void copy4(unsigned at, const void* from, bool real) { emulator::copy(at, from, 4, real); }
inline void copies_commit() { emulator::current->groups++; }
template <int pending> void copies_wait() {
  std::vector<emulator::Copy> left;
  for (const emulator::Copy& c : emulator::current->copies)
    if (c.group + pending < emulator::current->groups) emulator::perform(c); else left.push_back(c);
  emulator::current->copies = left;
}

// And cluster.cu: the workgroups of a cluster have their shared memory one behind the other.
#define __cluster_dims__(x, y, z)
inline unsigned cluster_rank() { return emulator::current->rank; }
inline float* own_shared(unsigned bytes) { return (float*)shared; }
inline void cluster_arrive() { emulator::current->arrived = true; }
inline void cluster_arrive_first() { cluster_arrive(); }
inline void cluster_wait() {
  if (!emulator::current->arrived) emulator::fail("a thread waits for a cluster without having arrived");
  emulator::current->arrived = false;
  emulator::current->state = emulator::AT_CLUSTER;
  emulator::pause();
}
inline void cluster_store(float* at, unsigned rank, float value, unsigned bytes) {
  std::memcpy(emulator::memory_of(rank) + ((unsigned char*)at - shared), &value, 4);
}

namespace emulator {
struct Operands { unsigned a[4], b[2]; };
inline Operands operands[MOST_THREADS];
inline unsigned addresses[MOST_THREADS];
inline float half_of(unsigned word, unsigned i) { return half_to_float((unsigned short)(word >> 16 * i)); }
}  // namespace emulator

inline void load_matrices(unsigned (&r)[4], unsigned at) {
  const unsigned self = emulator::current - emulator::threads.data(), first = self & ~31u, lane = self & 31u;
  emulator::addresses[self] = at;
  emulator::pause();
  for (unsigned i = 0; i < 4; i++)
    std::memcpy(&r[i], shared + emulator::addresses[first + i * 8 + lane / 4] + lane % 4 * 4, 4);
  emulator::pause();
}

inline void load_matrices_turned(unsigned (&r)[4], unsigned at) {
  const unsigned self = emulator::current - emulator::threads.data(), first = self & ~31u, lane = self & 31u;
  emulator::addresses[self] = at;
  emulator::pause();
  for (unsigned i = 0; i < 4; i++) {
    unsigned short pair[2];
    for (unsigned j = 0; j < 2; j++)
      std::memcpy(&pair[j], shared + emulator::addresses[first + i * 8 + lane % 4 * 2 + j] + lane / 4 * 2, 2);
    r[i] = pair[0] | (unsigned)pair[1] << 16;
  }
  emulator::pause();
}

namespace emulator {
// The products of a warp, of words with EACH elements: left(word, i) and right(word, i) are those of the two factors.
template <unsigned EACH, class Sum, class Left, class Right>
void multiply_warp(Sum (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, Left left, Right right) {
  const unsigned self = current - threads.data(), first = self & ~31u, lane = self & 31u;
  operands[self] = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  pause();
  for (unsigned i = 0; i < 4; i++) {
    const unsigned row = lane / 4, column = lane % 4 * 2 + i % 2;
    for (unsigned k = 0; k < 8 * EACH; k++) {
      const unsigned there = k % (4 * EACH) / EACH, word = k / (4 * EACH);
      d[i] += left(operands[first + row * 4 + there].a[i / 2 + word * 2], k % EACH) *
              right(operands[first + column * 4 + there].b[word], k % EACH);
    }
  }
  pause();
}
}  // namespace emulator

inline void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  emulator::multiply_warp<2>(d, a, b0, b1, emulator::half_of, emulator::half_of);
}

// And tf32.cu.
namespace emulator {
inline float cut(unsigned word, unsigned = 0) { return __uint_as_float(word & 0xffffe000u); }
}  // namespace emulator
inline void multiply_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  emulator::multiply_warp<1>(d, a, b0, b1, emulator::cut, emulator::cut);
}

// And diagonal.cu.
inline void multiply_onto(float (&d)[4], float4 c, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  d[0] = c.x, d[1] = c.y, d[2] = c.z, d[3] = c.w;
  multiply(d, a, b0, b1);
}
inline void multiply_eight_onto(float (&d)[4], float4 c, unsigned a0, unsigned a1, unsigned b) {
  const unsigned left[4] = {a0, a1, 0, 0};
  multiply_onto(d, c, left, b, 0);
}
inline unsigned pack_positive(float x, float y) { return pack_half2(x < 0 ? 0 : x, y < 0 ? 0 : y); }
inline unsigned lesser_halves(unsigned a, unsigned b) {
  unsigned word = 0;
  for (unsigned i = 0; i < 2; i++) {
    const float x = emulator::half_of(a, i), y = emulator::half_of(b, i);
    word |= (unsigned)float_to_half(x != x || x < y ? x : y) << 16 * i;
  }
  return word;
}

namespace emulator {
template <class T> int byte_in(unsigned word, unsigned i) { return (T)(word >> i * 8); }
}  // namespace emulator
inline void multiply(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  emulator::multiply_warp<4>(d, a, b0, b1, emulator::byte_in<signed char>, emulator::byte_in<signed char>);
}
inline void multiply_unsigned(int (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  emulator::multiply_warp<4>(d, a, b0, b1, emulator::byte_in<unsigned char>, emulator::byte_in<signed char>);
}

// And diagonal_bytes.cu.
template <bool is_unsigned> void multiply_bytes_onto(int (&d)[4], int4 c, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  d[0] = c.x, d[1] = c.y, d[2] = c.z, d[3] = c.w;
  if (is_unsigned) multiply_unsigned(d, a, b0, b1); else multiply(d, a, b0, b1);
}
template <bool is_unsigned> void multiply_half_onto(int (&d)[4], int4 c, unsigned a0, unsigned a1, unsigned b) {
  const unsigned left[4] = {a0, a1, 0, 0};
  multiply_bytes_onto<is_unsigned>(d, c, left, b, 0);
}
inline void load_two_matrices(unsigned (&r)[4], unsigned at) {
  unsigned four[4];
  load_matrices(four, (threadIdx.x & 31) < 16 ? at : 0);
  r[0] = four[0], r[1] = four[1];
}

// A tile for four warps: where it begins, eight of its rows (both in units of 16 bytes), and how chunks are permuted.
template <unsigned row_bytes> unsigned long long matrix(unsigned at) {
  return at / 16 | (unsigned long long)row_bytes / 2 << 32 | (row_bytes == 128 ? 1ull : row_bytes == 64 ? 2 : 3) << 62;
}
// And panels.cu: not permuted; the distance of panels instead of that of rows.
template <unsigned panel> unsigned long long panels(unsigned at) { return at / 16 | (unsigned long long)panel / 16 << 16; }
inline void announce_copies() {}
inline void pin(float&) {}
inline void pin(int&) {}
inline void begin_products() {}
inline void commit_products() {}
template <int pending> void products_wait() { emulator::pause(); }  // a warp's threads together
inline void end_products() {}

// And pipeline.cu. The signals are kept aside: shared memory has zeros in their places.
namespace emulator {
inline std::map<unsigned, Signal> signals;
struct Late {
  unsigned signal, at;
  const void* from;
  unsigned bytes;
  std::vector<Copy> copies;
  std::function<void()> rows;  // in place of `from`
};
inline std::vector<Late> late;  // copies that tell a signal
inline unsigned here(unsigned at) { return at + current->rank * memory_each; }  // in all of the memory
inline Signal& signal_at(unsigned at) {  // of all of the memory, as below
  const auto found = signals.find(at);
  if (found == signals.end()) fail("a barrier is used that was not made");
  return found->second;
}
inline void settle(Signal& s) {
  if (s.pending || s.bytes) return;
  s.phase++;
  s.pending = s.arrivals;
}
inline void arrive(unsigned at) {
  Signal& s = signal_at(at);
  if (!s.pending) fail("more threads arrive at a barrier than it counts");
  s.pending--;
  settle(s);
}
inline void perform(const Late& l) {
  for (const Copy& c : l.copies) perform(c);
  if (l.from || l.rows) {
    if (l.rows) l.rows(); else std::memcpy(memory + l.at, l.from, l.bytes);
    signal_at(l.signal).bytes -= l.bytes;
    settle(signal_at(l.signal));
  } else {
    arrive(l.signal);
  }
}
}  // namespace emulator
inline void barrier_init(unsigned at, unsigned arrivals) {
  if (at % 8) emulator::fail("a barrier is not aligned");
  std::memset(shared + at, 0, 8);
  emulator::signals[emulator::here(at)] = {arrivals, arrivals, 0, 0};
}
inline void barriers_ready() {}
inline void barrier_arrive(unsigned at) { emulator::arrive(emulator::here(at)); }
inline void barrier_arrive_copied(unsigned at) {
  emulator::Late l = {emulator::here(at), 0, nullptr, 0, emulator::current->copies};
  emulator::current->copies.clear();
  if (l.copies.empty()) emulator::perform(l); else emulator::late.push_back(l);
}
inline void copy_again(unsigned at, const void* from) { emulator::copy(at, from, 16, true); }
template <unsigned bytes> void copy_piece(unsigned at, const void* from, bool real) { emulator::copy(at, from, bytes, real); }
inline void barrier_wait(unsigned at, unsigned parity) {
  while (emulator::signal_at(emulator::here(at)).phase % 2 == parity) {  // the phase of that parity has not completed
    emulator::current->state = emulator::AT_SIGNAL;
    emulator::current->signal = emulator::here(at);
    emulator::current->parity = parity;
    emulator::pause();
  }
}
inline void barrier_copy(unsigned at, unsigned to, const void* from, unsigned bytes) {
  if (to % 16 || bytes % 16 || (uintptr_t)from % 16) emulator::fail("a bulk copy is not aligned");
  emulator::signal_at(emulator::here(at)).bytes += bytes;
  emulator::arrive(emulator::here(at));
  emulator::late.push_back({emulator::here(at), emulator::here(to), from, bytes, {}});
}
namespace emulator {
inline std::map<std::pair<unsigned, unsigned>, unsigned> told;  // of a workgroup's barriers: those who do not wait
}
inline void team_arrive(unsigned barrier, unsigned threads) { emulator::told[{emulator::current->rank, barrier}]++; }
inline void team_sync(unsigned barrier, unsigned threads) {
  emulator::current->state = emulator::AT_TEAM;
  emulator::current->team = barrier;
  emulator::current->members = threads;
  emulator::pause();
}
#define __syncwarp() emulator::pause()
inline unsigned cluster_part() { return emulator::current->rank; }
inline void cluster_sync() {
  emulator::current->state = emulator::AT_CLUSTER;
  emulator::pause();
}
inline uint4 cluster_read(unsigned at, unsigned part) { return *(uint4*)(emulator::memory_of(part) + at); }
inline void barrier_expect(unsigned at, unsigned bytes) {
  emulator::signal_at(emulator::here(at)).bytes += bytes;
  barrier_arrive(at);
}
template <class Words> void cluster_send(unsigned at, unsigned barrier, unsigned part, Words words) {
  *(Words*)(emulator::memory_of(part) + at) = words;
  emulator::Signal& s = emulator::signal_at(barrier + part * emulator::memory_each);
  if (s.bytes < sizeof(words)) emulator::fail("more bytes are sent than were announced");
  s.bytes -= sizeof(words);
  emulator::settle(s);
}
template <unsigned count> void registers_drop() {}
template <unsigned count> void registers_take() {}

// And bulk.cu. A map is what libcuda.cpp writes down of it.
struct alignas(64) TensorMap { unsigned long long from, elements, rows, pitch, box_elements, box_rows, size, more[9]; };
inline void fetch_map(const TensorMap*) {}
inline void copy_rows(unsigned at, unsigned to, const TensorMap* map, unsigned element, unsigned row) {
  if (to % 1024) emulator::fail("a tile is not aligned as its chunks are permuted");
  const TensorMap m = *map;
  const unsigned first = emulator::here(to), bytes = m.box_elements * m.size;
  emulator::late.push_back({emulator::here(at), first, nullptr, (unsigned)m.box_rows * bytes, {}, [=] {
    for (unsigned r = 0; r < m.box_rows; r++)
      for (unsigned b = 0; b < bytes; b++) {
        const bool real = row + r < m.rows && element + b / m.size < m.elements;
        emulator::memory[first + r * bytes + (b / 16 ^ r % 8) * 16 + b % 16] =
            real ? ((const unsigned char*)m.from)[(row + r) * m.pitch + element * m.size + b] : 0;
      }
  }});
}
template <unsigned count> void copy_for_all(unsigned at, unsigned to, const void* from, unsigned bytes) {
  if (to % 16 || bytes % 16 || (uintptr_t)from % 16) emulator::fail("a bulk copy is not aligned");
  for (unsigned i = 0; i < count; i++) {
    const unsigned there = (count > 1 ? i : emulator::current->rank) * emulator::memory_each;
    emulator::late.push_back({at + there, to + there, from, bytes, {}, {}});
  }
}
template <unsigned count> void cluster_barrier_arrive(unsigned at, unsigned part) {
  emulator::arrive(at + (count > 1 ? part : emulator::current->rank) * emulator::memory_each);
}

namespace emulator {
inline unsigned place_in(unsigned long long matrix, unsigned row, unsigned byte) {
  const unsigned first = (matrix & 0x3fff) * 16;
  if (matrix >> 62 == 0) return first + byte / 16 * ((matrix >> 16 & 0x3fff) * 16) + row * 16 + byte % 16;
  const unsigned eight = (matrix >> 32 & 0x3fff) * 16, turns = 16 >> (matrix >> 62);  // chunks that change places
  const unsigned at = first + row / 8 * eight + row % 8 * (eight / 8) + byte;
  return at ^ (at / 128 % turns * 16);
}
inline float element(unsigned long long matrix, unsigned row, unsigned k) {
  unsigned short bits;
  std::memcpy(&bits, shared + place_in(matrix, row, k * 2), 2);
  return half_to_float(bits);
}
}  // namespace emulator

// And kept.cu.
template <unsigned row_bytes> unsigned long long turned_matrix(unsigned at, unsigned slab) {
  return matrix<row_bytes>(at) | (unsigned long long)(slab / 16) << 16;
}
namespace emulator {
inline float turned_element(unsigned long long matrix, unsigned column, unsigned k) {
  const unsigned across = (matrix >> 32 & 0x3fff) * 2, turns = 16 >> (matrix >> 62), slab = (matrix >> 16 & 0x3fff) * 16;
  const unsigned at = (matrix & 0x3fff) * 16 + column / (across / 2) * slab + k * across + column % (across / 2) * 2;
  unsigned short bits;
  std::memcpy(&bits, shared + (at ^ (at / 128 % turns * 16)), 2);
  return half_to_float(bits);
}
inline float cut_element(unsigned long long matrix, unsigned row, unsigned k) {
  unsigned word;
  std::memcpy(&word, shared + place_in(matrix, row, k * 4), 4);
  return cut(word);
}
// The products of four warps, of which each has 16 rows in registers, words with EACH elements as above.
template <unsigned EACH, class Left, class Right, size_t columns>
void multiply_rows(float (&d)[columns][4], const unsigned (&a)[4], unsigned long long b, bool more, Left left, Right right) {
  const unsigned self = current - threads.data(), first = self & ~31u, lane = self & 31u;
  operands[self] = {{a[0], a[1], a[2], a[3]}};
  pause();
  for (unsigned j = 0; j < columns; j++)
    for (unsigned i = 0; i < 4; i++) {
      if (!more) d[j][i] = 0.0f;
      for (unsigned k = 0; k < 8 * EACH; k++)
        d[j][i] += left(operands[first + lane / 4 * 4 + k % (4 * EACH) / EACH].a[i / 2 + k / (4 * EACH) * 2], k % EACH) *
                   right(b, j * 8 + lane % 4 * 2 + i % 2, k);
    }
  pause();
}
}  // namespace emulator
template <size_t columns> void multiply_tf32(float (&d)[columns][4], const unsigned (&a)[4], unsigned long long b, int more) {
  emulator::multiply_rows<1>(d, a, b, more, emulator::cut, emulator::cut_element);
}
template <size_t columns> void multiply_kept(float (&d)[columns][4], const unsigned (&a)[4], unsigned long long b, int more) {
  emulator::multiply_rows<2>(d, a, b, more, emulator::half_of, emulator::element);
}
template <size_t columns>
void multiply_kept_turned(float (&d)[columns][4], const unsigned (&a)[4], unsigned long long b, int more) {
  emulator::multiply_rows<2>(d, a, b, more, emulator::half_of, emulator::turned_element);
}

namespace emulator {
template <class T> int byte_of(unsigned long long matrix, unsigned row, unsigned k) {
  return (T)shared[place_in(matrix, row, k)];
}
template <class T, size_t columns> void multiply_bytes(int (&d)[columns][4], unsigned long long a, unsigned long long b) {
  const unsigned self = current->id.x, lane = self & 31u, warp = self / 32 % 4;
  for (unsigned j = 0; j < columns; j++)
    for (unsigned i = 0; i < 4; i++)
      for (unsigned k = 0; k < 32; k++)
        d[j][i] += byte_of<T>(a, warp * 16 + i / 2 * 8 + lane / 4, k) *
                   byte_of<signed char>(b, j * 8 + lane % 4 * 2 + i % 2, k);
}
}  // namespace emulator
template <size_t columns> void multiply(int (&d)[columns][4], unsigned long long a, unsigned long long b) {
  emulator::multiply_bytes<signed char>(d, a, b);
}
template <size_t columns> void multiply_unsigned(int (&d)[columns][4], unsigned long long a, unsigned long long b) {
  emulator::multiply_bytes<unsigned char>(d, a, b);
}
template <size_t columns> void multiply(float (&d)[columns][4], unsigned long long a, unsigned long long b) {
  const unsigned self = emulator::current->id.x, lane = self & 31u, warp = self / 32 % 4;
  for (unsigned j = 0; j < columns; j++)
    for (unsigned i = 0; i < 4; i++)
      for (unsigned k = 0; k < 16; k++)
        d[j][i] += emulator::element(a, warp * 16 + i / 2 * 8 + lane / 4, k) *
                   emulator::element(b, j * 8 + lane % 4 * 2 + i % 2, k);
}

namespace emulator {
template <class... A, size_t... I> void call(void (*f)(A...), void** p, std::index_sequence<I...>) {
  f(*(A*)p[I]...);
}
template <class... A> void call(void (*f)(A...), void** p) { call(f, p, std::index_sequence_for<A...>()); }

inline void (*body)(void**);
inline void** arguments;
inline void enter() {
  body(arguments);
  current->state = ENDED;
  _longjmp(scheduler, 1);
}
inline void resume(Thread& t) {
  current = &t;
  if (_setjmp(scheduler)) return;
  if (t.started) _longjmp(t.place, 1);
  t.started = true;
  setcontext(&t.context);
}

// Run the threads from number `first` on, a warp, until each waits for others or has ended.
inline void run_warp(unsigned first, unsigned count) {
  for (bool running = true; running;) {
    running = false;
    for (unsigned i = first; i < first + count; i++)
      if (threads[i].state == RUNNING) {
        resume(threads[i]);
        running |= threads[i].state == RUNNING;
      }
  }
}

// Let those go on whose signal has come, or that the others of their team have caught up with.
inline bool release_teams() {
  bool released = false;
  for (Thread& t : threads) {
    if (t.state == AT_SIGNAL && signal_at(t.signal).phase % 2 != t.parity) t.state = RUNNING, released = true;
    if (t.state != AT_TEAM) continue;
    unsigned& arrived = told[{t.rank, t.team}];
    unsigned here = arrived;
    for (const Thread& other : threads) here += other.state == AT_TEAM && other.team == t.team && other.rank == t.rank;
    if (here < t.members) continue;
    arrived = 0;
    for (Thread& other : threads)
      if (other.state == AT_TEAM && other.team == t.team && other.rank == t.rank) other.state = RUNNING;
    released = true;
  }
  return released;
}

// Let those go on that all others of their workgroup, or cluster, have caught up with; false if all have ended. Copies
// arrive when nobody can go on without them.
inline bool release(unsigned each) {
  bool all = true, alive = false, released = release_teams();
  if (!released && !late.empty()) {
    const std::vector<Late> now = std::exchange(late, {});
    for (const Late& l : now) perform(l);
    return release(each);
  }
  for (const Thread& t : threads) all &= t.state == AT_CLUSTER, alive |= t.state != ENDED;
  for (unsigned first = 0; first < threads.size(); first += each) {
    const Thread& one = threads[first];
    bool here = true;
    for (unsigned i = first; i < first + each; i++)
      here &= threads[i].state == AT_BARRIER && threads[i].line == one.line;
    for (unsigned i = first; i < first + each && (all || here); i++) threads[i].state = RUNNING, released = true;
  }
  if (alive && !released) fail("only some threads of a workgroup reach a barrier");
  return alive;
}

inline void run_group(uint3 size, unsigned shared_bytes) {
  const unsigned each = size.x * size.y * size.z, warps = (each + 31) / 32;
  for (unsigned i = 0; i < threads.size(); i++) {
    Thread& t = threads[i];
    t.id = {i % each % size.x, i % each / size.x % size.y, i % each / size.x / size.y};
    t.rank = i / each;
    t.state = RUNNING;
    t.started = t.arrived = false;
    t.groups = 0;
    t.copies.clear();
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.data();
    t.context.uc_stack.ss_size = t.stack.size();
    t.context.uc_link = nullptr;
    makecontext(&t.context, enter, 0);
  }
  memory_each = (shared_bytes + 15) / 16 * 16;
  std::memset(memory, NOTHING_YET, sizeof(memory));
  signals.clear();
  late.clear();
  told.clear();
  const unsigned all = warps * (threads.size() / each);
  for (bool backward = false, alive = true; alive; backward = !backward) {
    for (unsigned i = 0; i < all; i++) {
      const unsigned warp = backward ? all - 1 - i : i, first = warp % warps * 32;
      run_warp(warp / warps * each + first, each - first < 32 ? each - first : 32);
    }
    alive = release(each);
  }
  for (const unsigned char* p = memory_of(threads.size() / each); p < memory + sizeof(memory); p++)
    if (*p != NOTHING_YET) fail("a kernel writes past the shared memory that it was given");
}

// Runs the whole grid. `switching`: the kernel has barriers or shuffles, so that each thread needs a stack of its own.
// `cluster` neighbouring workgroups run at the same time.
inline void launch(void (*kernel)(void**), void** p, uint3 groups, uint3 size, unsigned shared_bytes, bool switching,
                   unsigned cluster) {
  body = kernel;
  arguments = p;
  grid = groups;
  threads.resize(size.x * size.y * size.z * cluster);
  if (threads.size() > MOST_THREADS) fail("a cluster has more threads than the emulator has room for");
  if (switching)
    for (Thread& t : threads) t.stack.resize(64 << 10);
  for (unsigned z = 0; z < groups.z; z++)
    for (unsigned y = 0; y < groups.y; y++)
      for (unsigned x = 0; x < groups.x; x += cluster) {
        group = {x, y, z};
        if (switching) {
          run_group(size, shared_bytes);
          continue;
        }
        current = threads.data();
        for (current->id.z = 0; current->id.z < size.z; current->id.z++)
          for (current->id.y = 0; current->id.y < size.y; current->id.y++)
            for (current->id.x = 0; current->id.x < size.x; current->id.x++) kernel(p);
      }
}
}  // namespace emulator
