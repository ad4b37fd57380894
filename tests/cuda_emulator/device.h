// CUDA's device language for a C++ compiler of the host: enough for the kernels that litegpu prints. The threads of a
// workgroup take turns, as contexts that switch at every barrier and shuffle; workgroups run one after the other.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
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
#define __launch_bounds__(n)
#define __align__(n) alignas(n)
#define __shared__ static

namespace emulator {
struct Thread { ucontext_t context; std::vector<char> stack; uint3 id; bool ended; unsigned rank; };
inline std::vector<Thread> threads;
inline ucontext_t scheduler;
inline Thread* current;
inline uint3 group;
inline uint64_t slots[8192];

inline uint3 block() { return {group.x + current->rank, group.y, group.z}; }
inline void pause() { swapcontext(&current->context, &scheduler); }

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
inline void __syncthreads() { emulator::pause(); }
template <class T> T __shfl_sync(unsigned mask, T v, unsigned from) { return emulator::shuffle(mask, v, from); }
template <class T> T __shfl_xor_sync(unsigned mask, T v, unsigned by) {
  return emulator::shuffle(mask, v, emulator::lane() ^ by);
}
template <class T> T __shfl_down_sync(unsigned mask, T v, unsigned by) {
  return emulator::shuffle(mask, v, emulator::lane() + by);
}

template <class T> T __ldg(const T* p) { return *p; }
template <class To, class From> To bits(From x) { To y; std::memcpy(&y, &x, sizeof(y)); return y; }
inline unsigned __float_as_uint(float x) { return bits<unsigned>(x); }
inline int __float_as_int(float x) { return bits<int>(x); }
inline float __uint_as_float(unsigned x) { return bits<float>(x); }
inline float __int_as_float(int x) { return bits<float>(x); }
inline int __float2int_rz(float x) {
  return x != x ? 0 : x >= 2147483648.0f ? 2147483647 : x <= -2147483648.0f ? -2147483647 - 1 : (int)x;
}
inline float rsqrtf(float x) { return (float)(1.0 / std::sqrt((double)x)); }

inline float half_to_float(unsigned short x) { return bits<_Float16>(x); }
inline unsigned short float_to_half(float x) { return bits<unsigned short>((_Float16)x); }
inline unsigned pack_half2(float x, float y) { return float_to_half(x) | (unsigned)float_to_half(y) << 16; }

// What device.cu and warpgroup.cu of src/litegpu/gpu/kernels/cuda define by PTX. Copies are done at once.
alignas(1024) inline unsigned char shared[228 << 10];
inline void copy16(unsigned at, const void* from, bool real) {
  if (real) std::memcpy(shared + at, from, 16); else std::memset(shared + at, 0, 16);
}
inline void copy8(unsigned at, const void* from, bool real) {
  if (real) std::memcpy(shared + at, from, 8); else std::memset(shared + at, 0, 8);
}
inline void copies_commit() {}
template <int pending> void copies_wait() {}

// And cluster.cu: the workgroups of a cluster have their shared memory one behind the other. A barrier of one is a
// barrier of all, as is every switch between threads.
#define __cluster_dims__(x, y, z)
inline unsigned cluster_rank() { return emulator::current->rank; }
inline float* own_shared(unsigned bytes) { return (float*)(shared + emulator::current->rank * bytes); }
inline void cluster_arrive() {}
inline void cluster_wait() { emulator::pause(); }
inline void cluster_store(float* at, unsigned rank, float value, unsigned bytes) {
  const size_t own = (unsigned char*)at - shared - emulator::current->rank * bytes;
  std::memcpy(shared + rank * bytes + own, &value, 4);
}

namespace emulator {
struct Operands { unsigned a[4], b[2]; };
inline Operands operands[1024];
inline unsigned addresses[1024];
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

inline void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned self = emulator::current - emulator::threads.data(), first = self & ~31u, lane = self & 31u;
  emulator::operands[self] = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  emulator::pause();
  for (unsigned i = 0; i < 4; i++) {
    const unsigned row = lane / 4, column = lane % 4 * 2 + i % 2;
    for (unsigned k = 0; k < 16; k++) {
      const auto& left = emulator::operands[first + row * 4 + k % 8 / 2];
      const auto& right = emulator::operands[first + column * 4 + k % 8 / 2];
      d[i] += emulator::half_of(left.a[i / 2 + k / 8 * 2], k % 2) * emulator::half_of(right.b[k / 8], k % 2);
    }
  }
  emulator::pause();
}

// A tile for four warps: where it begins, eight of its rows (both in units of 16 bytes), and how chunks are permuted.
template <unsigned row_bytes> unsigned long long matrix(unsigned at) {
  return at / 16 | (unsigned long long)row_bytes / 2 << 32 | (row_bytes == 128 ? 1ull : row_bytes == 64 ? 2 : 3) << 62;
}
inline void announce_copies() {}
inline void begin_products() {}
inline void end_products() {}

namespace emulator {
inline float element(unsigned long long matrix, unsigned row, unsigned k) {
  const unsigned eight = (matrix >> 32 & 0x3fff) * 16, turns = 16 >> (matrix >> 62);  // chunks that change places
  const unsigned at = (matrix & 0x3fff) * 16 + row / 8 * eight + row % 8 * (eight / 8) + k * 2;
  unsigned short bits;
  std::memcpy(&bits, shared + (at ^ (at / 128 % turns * 16)), 2);
  return half_to_float(bits);
}
}  // namespace emulator

template <size_t columns> void multiply(float (&d)[columns][4], unsigned long long a, unsigned long long b) {
  const unsigned self = emulator::current - emulator::threads.data(), lane = self & 31u, warp = self / 32 % 4;
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
  current->ended = true;
  pause();
}

inline void run_group(uint3 size) {
  const unsigned each = size.x * size.y * size.z;
  size_t running = threads.size();
  for (unsigned i = 0; i < threads.size(); i++) {
    Thread& t = threads[i];
    t.id = {i % each % size.x, i % each / size.x % size.y, i % each / size.x / size.y};
    t.rank = i / each;
    t.ended = false;
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.data();
    t.context.uc_stack.ss_size = t.stack.size();
    t.context.uc_link = nullptr;
    makecontext(&t.context, enter, 0);
  }
  while (running)
    for (Thread& t : threads)
      if (!t.ended) {
        current = &t;
        swapcontext(&scheduler, &t.context);
        running -= t.ended;
      }
}

// Runs the whole grid. `switching`: the kernel has barriers or shuffles, so that each thread needs a stack of its own.
// `cluster` neighbouring workgroups run at the same time.
inline void launch(void (*kernel)(void**), void** p, uint3 groups, uint3 size, bool switching, unsigned cluster) {
  body = kernel;
  arguments = p;
  threads.resize(size.x * size.y * size.z * cluster);
  if (switching)
    for (Thread& t : threads) t.stack.resize(64 << 10);
  for (unsigned z = 0; z < groups.z; z++)
    for (unsigned y = 0; y < groups.y; y++)
      for (unsigned x = 0; x < groups.x; x += cluster) {
        group = {x, y, z};
        if (switching) {
          run_group(size);
          continue;
        }
        current = threads.data();
        for (current->id.z = 0; current->id.z < size.z; current->id.z++)
          for (current->id.y = 0; current->id.y < size.y; current->id.y++)
            for (current->id.x = 0; current->id.x < size.x; current->id.x++) kernel(p);
      }
}
}  // namespace emulator
