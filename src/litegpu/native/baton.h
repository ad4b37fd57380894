/* Python's lock, handed from thread to thread without anybody falling asleep in it. See baton.c. */

#ifndef LITEGPU_BATON_H
#define LITEGPU_BATON_H

#include <stdint.h>

#define PUBLIC __attribute__((visibility("default")))

/* Let go of Python's lock, as PyEval_SaveThread() does: what comes back is for litegpu_come_back(). In between the
   thread must not touch Python. */
void *litegpu_leave(void);

/* Have Python's lock again, as after PyEval_RestoreThread(): waits for the turn, awake if it comes soon. */
void litegpu_come_back(void *state);

/* Whether to keep Python's lock during native code that takes about so many nanoseconds, instead: where that is short, to
   change threads takes longer, as what Python works with has to move from processor to processor. */
int litegpu_keep(int64_t expected);

/* Where the lock is kept, and nothing is to be done for so many nanoseconds but to wait for the device: lend it to another
   thread of this kind, if one waits, and more is done that way. Whether it was lent; the lock is there again then. */
int litegpu_lend(int64_t idle);

/* Nanoseconds of a clock that only goes forward. */
int64_t litegpu_now(void);

/* Whether one more thread may wait awake: there are processors for it. Ends with litegpu_sleepy(). */
int litegpu_awake(void);
void litegpu_sleepy(void);

/* One step of waiting awake. */
static inline void litegpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

#endif
