/* The turn: who of those that want Python's lock back may ask for it.

   To wake a thread that sleeps takes 20 to 50 us on a virtual machine, and Python's lock puts all who wait for it to
   sleep, so that it is free, but nobody's, for longer than it is used. Here those who want it back wait for a turn
   first, and ask Python only when they have it and the lock is free, as far as is known; then Python neither sleeps nor
   wakes. Of those who wait for the turn a few are awake; the others sleep in a queue, and are woken ahead, while there
   are still some awake whose turns come before theirs. Who comes back while the turn is free takes it at once, so that
   the same few threads work on and on; every QUANTUM one of the sleepers joins them, for whom another falls asleep.
   Who is away for less than SHORT keeps lock and turn for a QUANTUM. Where threads wait, and all are of this kind, it
   lasts a LONG_TURN, beside which a change is little; or shorter, so that a ROUND of many threads does not take longer.
   At its end the next one wakes up on the same processor, as the thread whose turn it was falls asleep: another one
   would be slow at first, and its caches would have to fill. Afterwards it may run where it could before. Who sleeps, or
   waits for a file, for most of the time between such calls does not keep the turn, as the lock is nobody's then. Nobody
   waits awake meanwhile, which would slow down a core's other half; the first in the queue looks whether the turn is
   kept, after a GLANCE, and then the more seldom the longer it has been, up to LAST_GLANCE, until it is GRACE past its
   end. Who was woken for a turn that another one got, and keeps, sleeps on in front of the others.

   While the device works, who keeps the turn lends it to the first in the queue, if that is of the same kind: it is woken
   on this processor, as above, the lender falls asleep in front of the others, and gets the turn back when that one lends
   it in its turn. So two threads work by turns on one processor. That pays where the device takes long, and Python little,
   as what Python has in the caches is driven out; so it is tried: for a WINDOW turns are lent, or not, whichever had more
   calls in the same time, and every RETRY windows the other one has its chance.

   Nothing here decides who holds Python's lock: Python does, and what is known of it here is a guess. It may be wrong
   without harm but for time: code that knows nothing of turns takes the lock and lets go of it (a sleep, a file, the end
   of a thread). So all waits end:

   - who is awake and sees one turn last PATIENCE, or SHORT_PATIENCE if whoever has it has slept before its call, asks
     Python, and waits there: one thread at a time, as that is a turn;
   - who has been awake for LONGEST without a turn asks Python all the same;
   - who sleeps wakes up when the turn has not changed for NAP, and asks Python after MOST_SLEEP.

   Those who wait in Python's lock itself, which they do where code knows nothing of turns, get it when it is free and
   they are awake: if letting go took so long that somebody was woken, the turn rests for REST, once per QUANTUM. */

#define _GNU_SOURCE
#include "native.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define US INT64_C(1000)
#define MS (1000 * US)

#define PATIENCE (400 * US)
#define SHORT_PATIENCE (50 * US)
#define LONGEST (8 * MS)
#define NAP (50 * MS)
#define MOST_SLEEP (500 * MS)
#define QUANTUM (5 * MS)
#define LONG_TURN (10 * MS)
#define ROUND (160 * MS)
#define GRACE (150 * US)
#define GLANCE (500 * US)
#define LAST_GLANCE (4 * MS)
#define SHORT (30 * US)
#define LONG (100 * US)
#define REST (60 * US)
#define SLOW_SAVE (3 * US / 2)
#define LEAST_IDLE (3 * US)
#define WINDOW (20 * MS)
#define PAUSE (2 * MS)
#define RETRY 16

/* The turn: a number that grows with every change, times four, and what it is. */
enum { FREE, ASKING, HELD, RESTING, STATES = 4 };

/* Somebody asleep, from the eldest on. */
typedef struct sleeper {
  struct sleeper *next;
  _Atomic uint32_t state;
  pid_t thread;
  int is_alike; /* its call is short, and it works between its calls: the turn may be lent to it */
  int is_moved; /* to `here`, the processor of who woke it, until it runs; it may run on `processors` */
  cpu_set_t here, processors;
} sleeper;

enum { ASLEEP, WOKEN, NUDGED };

static struct {
  _Atomic uint64_t turn;
  _Atomic int64_t rested; /* when it began to rest last */
  _Atomic int64_t woke;   /* when somebody was woken last */
  _Atomic int64_t since;  /* when the thread that has the turn got it */
  _Atomic int64_t beat;   /* when it was seen last, if it keeps it */
  _Atomic int64_t patience; /* how long others wait for it */
  _Atomic int awake;      /* who wait for the turn awake */
  _Atomic int busy;       /* threads that wait for anything awake */
  _Atomic int asleep;     /* in the queue */
  _Atomic int waking;     /* out of the queue, and not awake yet */
  _Atomic int others;     /* who wait for the turn, and would not keep it or were woken for one in vain */
  pthread_mutex_t lock;   /* of the queue */
  sleeper *first, **last;
  int processors;
} baton;

/* Of the thread: whether its call is one that keeps turns, as far as they last; whether it sleeps between its calls, and
   that was looked at for this one; when it was here last, and, unless its calls are close together, how long it had used a
   processor then, else -1. */
static _Thread_local int is_short, is_idle, has_looked;
static _Thread_local int hands_over; /* its turn has ended, and who is next wakes up when this call has */
static _Thread_local int64_t began;  /* when the turn began that it has, or has lent */
static _Thread_local int64_t was_here, had_used = -1;

/* Whether turns are lent: what a call takes without and with that, nanoseconds, in the last window of each; of the present
   one when it began, when its last call was, how many it has had; how many there were. Python's lock is held. */
static struct {
  int lends;
  int64_t took[2], begin, last;
  unsigned calls, windows;
} trial;

static _Atomic int64_t counts[COUNTS];

static void count(int what) { atomic_fetch_add_explicit(&counts[what], 1, memory_order_relaxed); }

int64_t litegpu_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000 * MS + time.tv_nsec;
}

int litegpu_awake(void) {
  if (atomic_fetch_add(&baton.busy, 1) + 1 < baton.processors) return 1;
  atomic_fetch_sub(&baton.busy, 1);
  return 0;
}

void litegpu_sleepy(void) { atomic_fetch_sub(&baton.busy, 1); }

/* Whether the turn was this, and is now in another state. */
static int pass(uint64_t turn, int state) {
  return atomic_compare_exchange_strong(&baton.turn, &turn, (turn / STATES + 1) * STATES + (unsigned)state);
}

/* Ask Python, as the turn says that one does, and say that we have the lock then. `again`: it is a turn that was lent. */
static void ask(void *state, int again) {
  python.restore(state);
  uint64_t turn = atomic_load(&baton.turn);
  if (!again) began = litegpu_now();
  atomic_store_explicit(&baton.since, began, memory_order_relaxed);
  atomic_store_explicit(&baton.patience, is_idle ? SHORT_PATIENCE : PATIENCE, memory_order_relaxed);
  while (!atomic_compare_exchange_weak(&baton.turn, &turn, (turn / STATES + 1) * STATES + HELD)) {}
}

static int64_t within(int64_t least, int64_t wanted, int64_t most) {
  return wanted < least ? least : wanted > most ? most : wanted;
}

/* How long a turn may be kept. */
static int64_t turn_length(void) {
  int waiting = atomic_load(&baton.asleep) + atomic_load(&baton.waking) + atomic_load(&baton.awake);
  if (waiting == 0 || atomic_load(&baton.others) > 0) return QUANTUM;
  return within(QUANTUM, ROUND / (waiting + 1), LONG_TURN);
}

/* Whether somebody keeps the turn, and will wake who is next. */
static int is_kept(int64_t now) {
  return atomic_load(&baton.turn) % STATES == HELD && now - atomic_load(&baton.beat) < PATIENCE &&
         now - atomic_load(&baton.since) < turn_length() + GRACE;
}

/* When the first in the queue looks again: it has waited half as long as the one at work has worked, or less. */
static int64_t glance(int64_t now) { return within(GLANCE, now - atomic_load(&baton.since), LAST_GLANCE); }

static void futex(_Atomic uint32_t *word, int what, uint32_t value, int64_t most) {
  struct timespec time = {most / (1000 * MS), most % (1000 * MS)};
  syscall(SYS_futex, (uint32_t *)word, what | FUTEX_PRIVATE_FLAG, value, &time, NULL, 0);
}

/* Have the eldest sleeper look about; with the lock. */
static void nudge(void) {
  uint32_t asleep = ASLEEP;
  if (baton.first != NULL && atomic_compare_exchange_strong(&baton.first->state, &asleep, NUDGED)) {
    futex(&baton.first->state, FUTEX_WAKE, 1, 0);
  }
}

/* Have a sleeper wake up on the processor that we are on, where it may be: whether it will. */
static int move_here(sleeper *one) {
  int here = sched_getcpu();
  if (here < 0 || here >= CPU_SETSIZE) return 0;
  if (sched_getaffinity(one->thread, sizeof one->processors, &one->processors)) return 0;
  if (!CPU_ISSET(here, &one->processors)) return 0;
  CPU_ZERO(&one->here);
  CPU_SET(here, &one->here);
  return one->is_moved = sched_setaffinity(one->thread, sizeof one->here, &one->here) == 0;
}

/* We run: from now on anywhere that we might before, unless somebody has had another wish meanwhile. */
static void move_freely(const sleeper *own) {
  cpu_set_t now;
  if (sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, &own->here)) {
    sched_setaffinity(0, sizeof own->processors, &own->processors);
  }
}

/* With the lock: join the queue, in front of all others or behind them. */
static void line_up(sleeper *own, int ahead) {
  own->next = ahead ? baton.first : NULL;
  if (own->next == NULL) {
    *baton.last = own;
    baton.last = &own->next;
  } else {
    baton.first = own;
  }
  atomic_fetch_add(&baton.asleep, 1);
}

/* With the lock: take the first one out, who is about to wake up. */
static void call_up(sleeper *one) {
  baton.first = one->next;
  if (baton.first == NULL) baton.last = &baton.first;
  atomic_fetch_sub(&baton.asleep, 1);
  atomic_fetch_add(&baton.waking, 1);
}

/* Wake the eldest sleeper, if there is one. `here`: on the processor that we are on, which we are about to leave. */
static void wake(int here) {
  pthread_mutex_lock(&baton.lock);
  sleeper *one = baton.first;
  if (one != NULL) {
    if (here) move_here(one);
    call_up(one);
    atomic_store(&one->state, WOKEN);
    futex(&one->state, FUTEX_WAKE, 1, 0); /* in the lock: afterwards it may be gone */
    nudge();
  }
  pthread_mutex_unlock(&baton.lock);
}

static void take_out(sleeper *own) {
  for (sleeper **at = &baton.first; *at != NULL; at = &(*at)->next) {
    if (*at != own) continue;
    *at = own->next;
    if (own->next == NULL) baton.last = at;
    atomic_fetch_sub(&baton.asleep, 1);
    nudge();
    return;
  }
}

static int is_first(const sleeper *own) {
  pthread_mutex_lock(&baton.lock);
  int first = baton.first == own;
  pthread_mutex_unlock(&baton.lock);
  return first;
}

/* In the queue, until somebody wakes us, or nothing changes for NAP, but not past `last`. */
static void sleep_on(sleeper *own, int64_t last) {
  uint64_t seen = atomic_load(&baton.turn);
  int64_t now, end = litegpu_now() + NAP;
  while (atomic_load(&own->state) != WOKEN) {
    uint64_t turn = atomic_load(&baton.turn);
    now = litegpu_now();
    if (turn != seen) seen = turn, end = now + NAP;
    if (now >= end || now >= last) break;
    uint32_t nudged = NUDGED;
    atomic_compare_exchange_strong(&own->state, &nudged, ASLEEP);
    int first = is_first(own);
    /* Who let go before we were in the queue has woken nobody, and if nobody is awake, nobody will. */
    if (first && atomic_load(&baton.awake) + atomic_load(&baton.waking) == 0 && !is_kept(now)) break;
    futex(&own->state, FUTEX_WAIT, ASLEEP, first && end - now > glance(now) ? glance(now) : end - now);
  }
  pthread_mutex_lock(&baton.lock);
  if (own->state != WOKEN) take_out(own);
  pthread_mutex_unlock(&baton.lock);
  if (own->is_moved) move_freely(own);
  if (own->state == WOKEN) atomic_fetch_sub(&baton.waking, 1);
}

static void fall_asleep(int ahead, int is_alike, int64_t last) {
  sleeper own = {.state = ASLEEP, .thread = (pid_t)syscall(SYS_gettid), .is_alike = is_alike};
  count(SLEPT);
  pthread_mutex_lock(&baton.lock);
  line_up(&own, ahead);
  pthread_mutex_unlock(&baton.lock);
  sleep_on(&own, last);
}

/* Wait awake for the turn, for `most` at the longest, or until somebody keeps it; whether we may ask Python. */
static int watch(int64_t most) {
  int64_t begin = litegpu_now(), seen = begin, now;
  uint64_t last = atomic_load(&baton.turn);
  for (unsigned step = 0;; step++) {
    uint64_t turn = atomic_load_explicit(&baton.turn, memory_order_acquire);
    int state = turn % STATES;
    if (state == FREE && pass(turn, ASKING)) return 1;
    litegpu_relax();
    if (step % 16 && turn == last) continue; /* the clock is asked now and then */
    now = litegpu_now();
    if (turn != last) last = turn, seen = now;
    if (state == RESTING && now - atomic_load(&baton.rested) > REST && pass(turn, ASKING)) return 1;
    int64_t patience = atomic_load(&baton.patience);
    if (state == HELD && now - seen > patience && now - atomic_load(&baton.beat) > patience && pass(turn, ASKING)) {
      count(STOLEN);
      return 1;
    }
    if (now - begin > most || is_kept(now)) return 0;
  }
}

static int64_t used(void) {
  struct timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return (int64_t)time.tv_sec * 1000 * MS + time.tv_nsec;
}

/* At the end of a call. */
static void end_call(void) {
  was_here = litegpu_now();
  if (had_used >= 0) had_used = used();
}

/* At its beginning: see whether the thread has slept for most of the time since the last, if that is LONG ago. */
static void begin_call(int64_t now) {
  int64_t away = now - was_here, before = had_used;
  was_here = now;
  had_used = away < LONG ? -1 : used();
  is_idle = before >= 0 && had_used >= 0 && 2 * (had_used - before) < away;
}

/* What is known of a thread that waits for the turn. */
typedef struct waiting {
  int other;    /* it would not keep the turn, or was woken for one in vain */
  int woken;    /* it was in the queue */
  int again;    /* it has lent the turn */
  int64_t last; /* when it asks Python in any case */
} waiting;

/* Awake for a while, or asleep, until the turn is ours, and then ask Python. */
static void wait_for_turn(void *state, waiting own) {
  int most = baton.processors > 11 ? 4 : baton.processors > 3 ? 2 : 1, is_alike = !own.other && !is_idle;
  int64_t now, end = litegpu_now() + LONGEST;
  while ((now = litegpu_now()) < end) {
    int room = (atomic_fetch_add(&baton.awake, 1) < most || own.woken) && litegpu_awake();
    int found = room && watch(own.woken ? LONGEST : PATIENCE);
    if (room) litegpu_sleepy();
    atomic_fetch_sub(&baton.awake, 1);
    if (found || now > own.last) break;
    if (!own.woken || is_kept(litegpu_now())) {
      if (own.woken && !own.other) own.other = 1, atomic_fetch_add(&baton.others, 1);
      fall_asleep(own.woken, is_alike, own.last);
      own.woken = 1;
      end = litegpu_now() + LONGEST;
    } else if (!room) {
      break;
    }
  }
  count(ASKED);
  ask(state, own.again);
  atomic_fetch_sub(&baton.others, own.other);
  end_call();
}

void litegpu_come_back(void *state) {
  uint64_t turn = atomic_load_explicit(&baton.turn, memory_order_acquire);
  waiting own = {.other = !is_short};
  int over = hands_over && atomic_load(&baton.asleep) > 0 && atomic_load(&baton.waking) == 0;
  is_short = hands_over = 0;
  if (!over && turn % STATES == FREE && pass(turn, ASKING)) {
    ask(state, 0);
    end_call();
    return;
  }
  atomic_fetch_add(&baton.others, own.other);
  int64_t now = litegpu_now();
  own.last = now + MOST_SLEEP;
  if (over) {
    atomic_store(&baton.woke, now);
    wake(1);
    fall_asleep(0, !own.other && !is_idle, own.last);
    own.woken = 1;
  }
  wait_for_turn(state, own);
}

/* Whether turns are lent at present; once for each call that might. */
static int lends(void) {
  int64_t now = litegpu_now(), took;
  if (now - trial.last > PAUSE) trial.begin += now - trial.last; /* there was other work, or none */
  trial.last = now;
  if (++trial.calls > 1 && (took = now - trial.begin) > WINDOW) {
    trial.took[trial.lends] = took / (trial.calls - 1);
    int better = trial.took[0] == 0 ? 0 : trial.took[1] == 0 || trial.took[1] < trial.took[0];
    trial.lends = ++trial.windows % RETRY == 0 ? !better : better;
    trial.begin = now, trial.calls = 1;
  }
  return trial.lends;
}

int litegpu_lend(int64_t idle) {
  uint64_t turn = atomic_load_explicit(&baton.turn, memory_order_relaxed);
  if (!is_short || is_idle || turn % STATES != HELD || atomic_load(&baton.asleep) == 0) return 0;
  if (atomic_load(&baton.awake) + atomic_load(&baton.waking) + atomic_load(&baton.others) > 0) return 0;
  if (idle < LEAST_IDLE || !lends()) return 0;
  sleeper own = {.state = ASLEEP, .thread = (pid_t)syscall(SYS_gettid), .is_alike = 1};
  pthread_mutex_lock(&baton.lock);
  sleeper *one = baton.first;
  if (one == NULL || !one->is_alike || !move_here(one)) {
    pthread_mutex_unlock(&baton.lock);
    return 0;
  }
  count(LENT);
  call_up(one);
  line_up(&own, 1);
  void *state = python.save();
  pass(turn, FREE);
  atomic_store(&one->state, WOKEN);
  futex(&one->state, FUTEX_WAKE, 1, 0); /* in the lock: afterwards it may be gone */
  pthread_mutex_unlock(&baton.lock);
  int64_t last = litegpu_now() + MOST_SLEEP;
  sleep_on(&own, last);
  wait_for_turn(state, (waiting){.woken = 1, .again = 1, .last = last});
  return 1;
}

void *litegpu_leave(void) {
  uint64_t turn = atomic_load_explicit(&baton.turn, memory_order_relaxed); /* while the lock is ours */
  int64_t begin = litegpu_now();
  if (!has_looked) begin_call(begin);
  has_looked = 0;
  void *state = python.save();
  int64_t now = litegpu_now();
  if (turn % STATES == HELD) {
    int rest = now - begin > SLOW_SAVE && now - atomic_load(&baton.rested) > QUANTUM;
    if (rest) {
      atomic_store(&baton.rested, now);
      count(RESTED);
    }
    pass(turn, rest ? RESTING : FREE);
  }
  if (!hands_over && atomic_load(&baton.asleep) > 0 && atomic_load(&baton.waking) == 0 &&
      (atomic_load(&baton.awake) == 0 || now - atomic_load(&baton.woke) > QUANTUM)) {
    atomic_store(&baton.woke, now);
    wake(0);
  }
  return state;
}

static int keeps(int64_t now) {
  uint64_t turn = atomic_load_explicit(&baton.turn, memory_order_relaxed); /* the lock is ours, whatever this says */
  if (turn % STATES == ASKING) return 0;
  atomic_store_explicit(&baton.beat, now, memory_order_relaxed);
  if (turn % STATES != HELD) {
    began = now;
    atomic_store_explicit(&baton.since, now, memory_order_relaxed);
    return pass(turn, HELD);
  }
  int64_t age = now - atomic_load_explicit(&baton.since, memory_order_relaxed), length;
  if (age < QUANTUM || age < (length = turn_length())) return 1;
  hands_over = atomic_load(&baton.awake) == 0; /* nobody waits awake, so that somebody has to be woken */
  return 0;
}

int litegpu_keep(int64_t expected) {
  int64_t now = litegpu_now();
  begin_call(now);
  is_short = 0 < expected && expected <= SHORT;
  int found = is_short && (is_idle || keeps(now)); /* who sleeps keeps the lock for the call, not the turn */
  has_looked = !found; /* litegpu_leave() is next, then */
  return found;
}

void litegpu_baton_start(int processors) {
  memset(&baton, 0, sizeof baton);
  pthread_mutex_init(&baton.lock, NULL);
  baton.last = &baton.first;
  baton.processors = processors;
  baton.patience = PATIENCE;
  memset(&trial, 0, sizeof trial);
}

PUBLIC void litegpu_counts(int64_t found[COUNTS]) {
  for (int i = 0; i < COUNTS; i++) found[i] = atomic_load(&counts[i]);
}
