/* Copies to pinned memory that a device reads next. */

#include "native.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>

#define STEP 256
#define FAR 2048 /* bytes ahead */
#define LEAST (16 << 10)

/* Past the caches, in whole lines: the device has not to fetch them from there. On an Intel Xeon of 2023 an inference
   with 0.6 MB is 22 us shorter, to copy 6 and on the device 16. */
__attribute__((target("avx512f"))) static void stream(char *to, const char *from, size_t bytes) {
  size_t at = 0;
  for (; at + STEP <= bytes; at += STEP) {
    __m512i part[STEP / 64];
    for (int i = 0; i < STEP / 64; i++) _mm_prefetch(from + at + FAR + 64 * i, _MM_HINT_T0);
    for (int i = 0; i < STEP / 64; i++) part[i] = _mm512_loadu_si512((const void *)(from + at + 64 * i));
    for (int i = 0; i < STEP / 64; i++) _mm512_stream_si512((void *)(to + at + 64 * i), part[i]);
  }
  memcpy(to + at, from + at, bytes - at);
  _mm_sfence();
}

void litegpu_stage(void *to, const void *from, size_t bytes) {
  if (bytes >= LEAST && (uintptr_t)to % 64 == 0 && __builtin_cpu_supports("avx512f")) {
    stream(to, from, bytes);
  } else {
    memcpy(to, from, bytes);
  }
}
#else
void litegpu_stage(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
#endif
