/* How threads of a batcher wait: for its lock, awake for a while, asleep until they are told, and for Python's lock. */

#if defined(__linux__)
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "rows.h"

/* A waiting thread is awake so long, in all. */
static const int64_t SPIN = 1000000;
/* More threads than processors are remembered so long. */
static const int64_t CROWDED = 20000000;

void rows_enter(rows *r) {
  for (int i = 0; atomic_flag_test_and_set_explicit(&r->lock, memory_order_acquire); i++) {
    if (i < 2000) litegpu_relax();
    else sched_yield();
  }
}

void rows_leave(rows *r) { atomic_flag_clear_explicit(&r->lock, memory_order_release); }

int64_t rows_awake_for(rows *r, int64_t now) {
  if (atomic_load(&r->callers) > r->of.processors) atomic_store(&r->crowded, now);
  const int64_t crowded = atomic_load(&r->crowded);
  return crowded && now - crowded < CROWDED ? 0 : SPIN;
}

bool rows_wake(vigil *v, int64_t now) {
  if (!v->awake && now < v->until) v->awake = litegpu_awake();
  if (now >= v->until) rows_sleepy(v);
  for (int i = 0; v->awake && i < 20; i++) litegpu_relax();
  return v->awake;
}

void rows_sleepy(vigil *v) {
  if (v->awake) litegpu_sleepy();
  v->awake = false;
}

void rows_doze(atomic_uint *word, unsigned seen, atomic_int *sleepers, int64_t ns) {
  struct timespec t = {ns / 1000000000LL, ns % 1000000000LL};
  atomic_fetch_add(sleepers, 1);
  syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, seen, &t, NULL, 0);
  atomic_fetch_sub(sleepers, 1);
}

void rows_tell(atomic_uint *word, atomic_int *sleepers) {
  atomic_fetch_add(word, 1);
  if (atomic_load(sleepers)) syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* How many threads of a batcher ask for Python's lock at a time: who asks and does not get it soon falls asleep. */
enum { ASKING = 1 };

/* Have Python's lock again, of which many want it at once when a batch has ended: those behind wait awake. */
void rows_come_back(rows *r, void *state) {
  bool mine = false;
  const int64_t now = litegpu_now(), spin = rows_awake_for(r, now);
  if (spin && litegpu_awake()) {
    const int64_t end = now + spin;
    for (int step = 1; !mine; step++) {
      int asking = atomic_load_explicit(&r->asking, memory_order_relaxed);
      mine = asking < ASKING && atomic_compare_exchange_strong(&r->asking, &asking, asking + 1);
      for (int i = 0; !mine && i < 5; i++) litegpu_relax();
      if (!mine && step % 64 == 0 && litegpu_now() > end) break;
    }
    litegpu_sleepy();
  }
  litegpu_come_back(state);
  if (mine) atomic_fetch_sub(&r->asking, 1);
}
#endif
