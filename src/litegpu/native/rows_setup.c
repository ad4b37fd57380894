/* How Python makes and ends a batcher's rows, and what it asks of them. */

#if defined(__linux__)
#include <stdlib.h>
#include <string.h>

#include "rows.h"

/* Who sleeps looks again after so long, whatever it was told. */
static const int64_t LOOK_AGAIN = 1000000;

static void *cleared(size_t bytes) {
  void *found = aligned_alloc(CACHE_LINE, (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
  return found ? memset(found, 0, bytes) : NULL;
}

static void *copied(const void *of, size_t bytes) {
  void *found = malloc(bytes ? bytes : 1);
  if (found) memcpy(found, of, bytes);
  return found;
}

PUBLIC void litegpu_rows_free(rows *r) {
  if (!r) return;
  for (int i = 0; i < r->slabs_count; i++) {
    free(r->slabs[i]->arrivals), free(r->slabs[i]->members);
    free(r->slabs[i]);
  }
  free(r->forms), free(r->batches), free(r->recipes), free(r->lanes), free(r->turns), free(r->slabs), free(r->queue), free(r->running);
  free(r->posts), free(r->around), free(r->size_counts), free(r->waits), free(r->latencies), free(r->run_times);
  free(r);
}

/* NULL without memory. */
PUBLIC rows *litegpu_rows_new(const setup *of, size_t size) {
  rows *r = size == sizeof *of ? cleared(sizeof *r) : NULL;
  if (!r) return NULL;
  r->of = *of;
  r->forms = copied(of->forms, (of->inputs + of->outputs) * sizeof *of->forms);
  r->batches = copied(of->batches, of->sizes * sizeof *of->batches);
  r->recipes = copied(of->recipes, (size_t)of->lanes * of->sizes * sizeof *of->recipes);
  r->lanes = calloc(of->lanes, sizeof *r->lanes);
  r->turns = cleared(of->lanes * sizeof *r->turns); /* there are no more homes */
  r->slabs = calloc(of->most_slabs, sizeof *r->slabs);
  r->queue = calloc(of->most_slabs, sizeof *r->queue);
  r->running = calloc(of->most_slabs, sizeof *r->running);
  r->around = calloc(2 * of->lanes, sizeof *r->around);
  r->size_counts = calloc(of->sizes, sizeof *r->size_counts);
  r->waits = calloc(LATEST, sizeof *r->waits);
  r->latencies = calloc(LATEST, sizeof *r->latencies);
  r->run_times = calloc(LATEST, sizeof *r->run_times);
  if (!r->forms || !r->batches || !r->recipes || !r->lanes || !r->turns || !r->slabs || !r->queue || !r->running || !r->around ||
      !r->size_counts || !r->waits || !r->latencies || !r->run_times) {
    litegpu_rows_free(r);
    return NULL;
  }
  for (int l = 0; l < of->lanes; l++) r->lanes[l].home = of->homes[l];
  r->free_lanes = of->lanes;
  r->expected = 1;
  atomic_flag_clear(&r->lock);
  return r;
}

/* Memory for one more batch: an address for each input, then each output. 0 if there is enough. */
PUBLIC int litegpu_rows_add_slab(rows *r, int home, int tag, char *const *memory) {
  slab *s = cleared(sizeof *s);
  int64_t *arrivals = malloc(r->of.most * sizeof *arrivals);
  call **members = malloc(r->of.most * sizeof *members);
  if (s && arrivals && members) {
    s->home = home;
    s->tag = tag;
    s->arrivals = arrivals;
    s->members = members;
    memcpy(s->in, memory, r->of.inputs * sizeof *memory);
    memcpy(s->out, memory + r->of.inputs, r->of.outputs * sizeof *memory);
    rows_enter(r);
    const bool room = r->slabs_count < r->of.most_slabs;
    if (room) {
      s->number = r->slabs_count;
      r->slabs[s->number] = s;
      r->slabs_count++;
    }
    rows_leave(r);
    if (room) {
      rows_tell(&r->room, &r->room_sleepers);
      return 1;
    }
  }
  free(s);
  free(arrivals), free(members);
  return 0;
}

/* End what waits: with CLOSED, or with OFF to be called in the ordinary way. */
static void drop(rows *r, int outcome) {
  rows_enter(r);
  slab *dropped[64];
  while (r->queued) {
    int n = 0;
    for (; n < 64 && r->queued; n++) {
      slab *s = dropped[n] = r->queue[r->queued - 1];
      rows_out_of_queue(r, r->queued - 1);
      s->outcome = outcome;
      posts_ended(r, s);
      s->state = ENDED;
    }
    for (int i = 0; i < n; i++) rows_tell(&dropped[i]->word, &dropped[i]->sleepers);
  }
  rows_leave(r);
}

/* Take no more calls; without `drain` end those whose batch has not begun. */
PUBLIC void litegpu_rows_close(rows *r, int drain) {
  rows_enter(r);
  r->closed = true;
  for (int i = 0; i < r->queued; i++) r->queue[i]->sealed = true;
  rows_leave(r);
  if (!drain) drop(r, CLOSED);
  rows_told_all(r);
}

/* From now on every call gets OFF, and so does what waits. */
PUBLIC void litegpu_rows_turn_off(rows *r) {
  rows_enter(r);
  r->off = true;
  rows_leave(r);
  drop(r, OFF);
  rows_told_all(r);
}

/* Wait, for so many nanoseconds, until no batch waits or runs: whether that is so. */
PUBLIC int litegpu_rows_idle(rows *r, int64_t ns) {
  void *state = litegpu_leave();
  const int64_t end = litegpu_now() + ns;
  bool idle;
  for (;;) {
    const unsigned seen = atomic_load(&r->room);
    rows_enter(r);
    idle = !r->queued && !r->runs && !posts_busy(r);
    rows_leave(r);
    const int64_t left = end - litegpu_now();
    if (idle || left <= 0) break;
    rows_doze(&r->room, seen, &r->room_sleepers, left < LOOK_AGAIN ? left : LOOK_AGAIN);
  }
  litegpu_come_back(state);
  return idle;
}

/* A lane for a batch of Python's own, as soon as it is free; within so many nanoseconds, else 0. */
PUBLIC int litegpu_rows_borrow(rows *r, int l, int64_t ns) {
  rows_enter(r);
  bool got = !r->lanes[l].busy;
  if (got) {
    r->lanes[l].busy = 1;
    atomic_fetch_sub(&r->free_lanes, 1);
  }
  r->lanes[l].wanted = !got;
  rows_leave(r);
  if (got) return 1;
  void *state = litegpu_leave();
  const int64_t end = litegpu_now() + ns;
  while (!got) {
    const unsigned seen = atomic_load(&r->room);
    rows_enter(r);
    got = !r->lanes[l].busy;
    if (got) {
      r->lanes[l].busy = 1;
      atomic_fetch_sub(&r->free_lanes, 1);
      r->lanes[l].wanted = 0;
    }
    rows_leave(r);
    const int64_t left = end - litegpu_now();
    if (got || left <= 0) break;
    rows_doze(&r->room, seen, &r->room_sleepers, left < LOOK_AGAIN ? left : LOOK_AGAIN);
  }
  litegpu_come_back(state);
  return got;
}

PUBLIC void litegpu_rows_give_back(rows *r, int l) {
  rows_enter(r);
  rows_give_back(r, l);
  rows_leave(r);
  rows_told_all(r);
}

/* What is decided at a time that is not now, for comparison with batching/collector.py: 0, the call is offered a place,
   and has copied its rows (0 if there is none); 1, its batch is started, if it is to be; 2, its batch has ended; 3, as 0
   in the way of a caller. */
PUBLIC int litegpu_rows_rehearse(rows *r, int what, call *c, int64_t now) {
  if (what == 0 || what == 3) {
    if (what ? rows_place(r, c, now) : rows_offer(r, c, now)) return 0;
    c->slab->copying--;
    return 1;
  }
  if (what == 1) return rows_start(r, c->slab, now);
  rows_ended(r, c->slab, now);
  rows_give_back(r, c->slab->lane);
  c->slab->waiters = 0;
  c->slab->state = FREE;
  return 1;
}

typedef struct told {
  uint64_t calls, rows, refused, failed, waiting, running, waits_count, runs_count, expected;
} told;

/* Numbers, batches of each size, and what the latest calls waited and took, and batches took, in seconds: three times
   room for LATEST numbers. */
PUBLIC void litegpu_rows_statistics(rows *r, told *t, uint64_t *sizes, double *times) {
  rows_enter(r);
  t->calls = r->calls, t->rows = r->rows, t->refused = r->refused, t->failed = r->failed;
  t->waiting = r->inside;
  t->running = 0;
  for (int i = 0; i < r->runs; i++) t->running += r->running[i]->rows;
  t->waits_count = r->calls_told < LATEST ? r->calls_told : LATEST;
  t->runs_count = r->runs_told < LATEST ? r->runs_told : LATEST;
  t->expected = r->expected;
  memcpy(sizes, r->size_counts, r->of.sizes * sizeof *sizes);
  memcpy(times, r->waits, LATEST * sizeof *times);
  memcpy(times + LATEST, r->latencies, LATEST * sizeof *times);
  memcpy(times + 2 * LATEST, r->run_times, LATEST * sizeof *times);
  rows_leave(r);
}
#endif
