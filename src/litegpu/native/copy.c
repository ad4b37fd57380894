/* Large pieces of the host's memory, copied or made present by several threads and without Python's lock; on request
   each part that is copied goes on to the device at once, while others still are. */

#define _GNU_SOURCE
#include "native.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>

#define HELPERS 15
#define MOST_PARTS 256
#define LEAST_PART ((size_t)128 << 10)
#define SHARE ((size_t)512 << 10) /* of a copy in an inference that is short, for each thread */
#define LEAST_SENT ((size_t)2 << 20) /* a copy of the device's takes 4 us before it moves anything */
#define PAGE 4096
#define INFINITE -1 /* in place of an error, which is a number above zero */
#define PATIENCE 2000 /* steps of waiting awake, before others get the processor */

/* `source`: NULL to write to each page of the target. `size`: bytes of the source, of which the target gets a `share`-th
   part: half where float32 becomes float16. */
typedef struct job {
  char *target;
  const char *source;
  size_t size, part, share;
  int count, helpers, most_helpers;
  _Atomic int next, infinite; /* of float16, if some of it is */
  _Atomic unsigned char done[MOST_PARTS];
  struct job *following;
} job;

static struct {
  pthread_mutex_t lock; /* of everything here, and of each job's `helpers` */
  pthread_cond_t work;
  job *jobs;
  int helpers, processors;
  _Atomic int copies; /* under way */
} pool;

void litegpu_copy_start(int processors) {
  pool.jobs = NULL;
  pool.copies = 0;
  pool.helpers = 0;
  pool.processors = processors;
  pthread_mutex_init(&pool.lock, NULL);
  pthread_cond_init(&pool.work, NULL);
}

/* Do the next part; whether there was one. */
static int do_part(job *own) {
  int i = atomic_fetch_add(&own->next, 1);
  if (i >= own->count) return 0;
  size_t begin = (size_t)i * own->part, left = own->size - begin;
  size_t size = left < own->part ? left : own->part;
  if (own->share == 2) {
    if (litegpu_stage_rounded(own->target + begin / 2, own->source + begin, size)) own->infinite = 1;
  } else if (own->source != NULL) {
    litegpu_stage(own->target + begin, own->source + begin, size);
  } else {
    for (size_t at = 0; at < size; at += PAGE) ((volatile char *)own->target)[begin + at] = 0;
  }
  atomic_store_explicit(&own->done[i], 1, memory_order_release);
  return 1;
}

/* Wake two, who wake two each, as to wake somebody takes a while; with the lock held. */
static void wake_some(job *one) {
  for (int i = 0; i < 2 && one->helpers + i < one->most_helpers; i++) pthread_cond_signal(&pool.work);
}

static void *help(void *unused) {
  (void)unused;
  pthread_mutex_lock(&pool.lock);
  for (;;) {
    job *one = pool.jobs;
    while (one != NULL && (atomic_load(&one->next) >= one->count || one->helpers >= one->most_helpers)) {
      one = one->following;
    }
    if (one == NULL) {
      pthread_cond_wait(&pool.work, &pool.lock);
      continue;
    }
    one->helpers++;
    wake_some(one);
    pthread_mutex_unlock(&pool.lock);
    while (do_part(one)) {}
    pthread_mutex_lock(&pool.lock);
    one->helpers--;
  }
  return NULL;
}

/* Have so many helpers, as far as the system gives them; with the lock held. */
static void employ(int wanted) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for threads of Python */
  while (pool.helpers < wanted && pool.helpers < HELPERS) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, help, NULL) != 0) break;
    pthread_detach(thread);
    pool.helpers++;
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void publish(job *own) {
  pthread_mutex_lock(&pool.lock);
  employ(own->most_helpers);
  own->following = pool.jobs;
  pool.jobs = own;
  wake_some(own);
  pthread_mutex_unlock(&pool.lock);
}

/* Return when no helper knows of it any more. */
static void withdraw(job *own) {
  pthread_mutex_lock(&pool.lock);
  job **at = &pool.jobs;
  while (*at != own) at = &(*at)->following;
  *at = own->following;
  while (own->helpers > 0) {
    pthread_mutex_unlock(&pool.lock);
    sched_yield();
    pthread_mutex_lock(&pool.lock);
  }
  pthread_mutex_unlock(&pool.lock);
}

/* `threads`: as many as pay, of which each of the copies under way gets its part. */
static int run(void *target, const void *source, size_t size, int threads, send_function send, uint64_t device,
               void *stream, int rounded) {
  job own = {.target = target, .source = source, .size = size, .share = rounded ? 2 : 1};
  size_t part = size / MOST_PARTS + 1;
  if (part < LEAST_PART) part = LEAST_PART;
  own.part = (part + PAGE - 1) / PAGE * PAGE;
  own.count = (int)((size + own.part - 1) / own.part);
  int copies = atomic_fetch_add(&pool.copies, 1) + 1, mine = pool.processors / copies;
  if (threads > mine) threads = mine > 1 ? mine : 1;
  own.most_helpers = (threads < own.count ? threads : own.count) - 1;
  if (own.most_helpers > 0) publish(&own);
  int ready = 0, error = 0, waited = 0;
  size_t sent = 0, share = own.share;
  while (sent < size) {
    while (ready < own.count && atomic_load_explicit(&own.done[ready], memory_order_acquire)) ready++, waited = 0;
    size_t end = ready < own.count ? (size_t)ready * own.part : size;
    if (end == size || (send != NULL && (end - sent) / share >= LEAST_SENT)) {
      if (send != NULL && error == 0) {
        error = send(device + sent / share, own.target + sent / share, (end - sent) / share, stream);
      }
      sent = end;
    } else if (!do_part(&own)) {
      litegpu_relax();
      if (++waited > PATIENCE) sched_yield();
    }
  }
  if (own.most_helpers > 0) withdraw(&own);
  atomic_fetch_sub(&pool.copies, 1);
  return error ? error : own.infinite ? INFINITE : 0;
}

int litegpu_send_large(void *to, const void *from, size_t bytes, int rounded, send_function send, uint64_t device,
                       void *stream) {
  int error = run(to, from, bytes, HELPERS + 1, send, device, stream, rounded);
  return error == INFINITE ? 0 : error;
}

void litegpu_stage_large(void *to, const void *from, size_t bytes, int rounded) {
  int threads = bytes / SHARE < (size_t)pool.processors ? (int)(bytes / SHARE) : pool.processors;
  if (threads > 1) {
    run(to, from, bytes, threads, NULL, 0, NULL, rounded);
  } else if (rounded) {
    litegpu_stage_rounded(to, from, bytes);
  } else {
    litegpu_stage(to, from, bytes);
  }
}

/* Copy `size` bytes with so many threads, this one among them; or, without a `source`, have the pages of the target
   there, whose content is anything then, which takes longer than to write to them. `rounded`: the source is float32, and
   the target gets float16. With `send`, all of them are put on
   the stream as well, by this thread, from where they were copied to: to `device` on. What `send` answered first that
   was not 0; then not all is sent. INFINITE: all is done, and some of the float16 is infinite. With Python's lock held,
   which it lets go of. */
PUBLIC int litegpu_copy(void *target, const void *source, size_t size, int threads, send_function send, uint64_t device,
                        void *stream, int rounded) {
  void *state = litegpu_leave();
  int error = run(target, source, size, threads, send, device, stream, rounded);
  litegpu_come_back(state);
  return error;
}
