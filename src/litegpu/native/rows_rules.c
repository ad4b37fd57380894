/* Which rows run together, and when: the rules of batching/collector.py, which says why, for calls in C. A test has both
   decide the same. Every function is called in the rows' lock, and knows no clock but the time that it is given. */

#if defined(__linux__)
#include <limits.h>
#include <string.h>

#include "rows.h"

/* How much the last run counts for the time that a run is expected to take. */
static const double NEWEST = 0.25;

int64_t rows_patience(const rows *r) { return r->seconds ? r->seconds : r->of.delay; }

static bool rows_is_late(const rows *r, slab *s, int64_t now) {
  return now - atomic_load(&s->latest) >= rows_patience(r) || now - s->opened >= r->of.delay;
}

/* Whether the slab's batch is to be run when it has a lane and its rows are copied. */
bool rows_is_due(const rows *r, slab *s, int64_t now) {
  return s->sealed || atomic_load(&s->rows) >= r->expected || rows_is_late(r, s, now);
}

static void expect(rows *r) {
  int most = 0;
  for (int i = 0; i < r->around_count; i++) most = r->around[i] > most ? r->around[i] : most;
  int share = (most + r->of.lanes - 1) / r->of.lanes, size = 0;
  share = share < 1 ? 1 : share > r->of.most ? r->of.most : share;
  while (r->batches[size] < share) size++;
  const int full = r->batches[size];
  r->expected = full >= r->of.large && full <= most ? full : share;
}

/* A slab for a new batch, at the home with the least to do; NULL if none is free, with whether one may be added, and
   where. */
static slab *free_slab(rows *r, bool *more, int64_t *home) {
  int best = r->lanes[0].home, least = INT_MAX;
  for (int l = 0; l < r->of.lanes; l++) {
    int load = 0;
    for (int i = 0; i < r->queued; i++) load += r->queue[i]->home == r->lanes[l].home ? r->queue[i]->rows : 0;
    for (int i = 0; i < r->runs; i++) load += r->running[i]->home == r->lanes[l].home ? r->running[i]->rows : 0;
    if (load < least) least = load, best = r->lanes[l].home;
  }
  slab *other = NULL;
  for (int i = 0; i < r->slabs_count; i++) {
    if (r->slabs[i]->state != FREE) continue;
    if (r->slabs[i]->home == best) return r->slabs[i];
    other = r->slabs[i];
  }
  *more = r->slabs_count < r->of.most_slabs;
  *home = best;
  return *more ? NULL : other;
}

/* A place for a call's rows: DONE, FULL, or NEEDS_SLAB with its home. */
int rows_offer(rows *r, call *c, int64_t now) {
  const int waiting = r->inside + r->outside;
  if (waiting && waiting + c->rows > r->of.waiting) return FULL;
  slab *s = r->queued ? r->queue[r->queued - 1] : NULL;
  if (s && s->rows + c->rows > r->of.most) s->sealed = true;
  if (!s || s->sealed) {
    bool more = false;
    s = free_slab(r, &more, &c->told);
    if (!s) return more ? NEEDS_SLAB : FULL;
    s->opened = now;
    s->sealed = false;
    s->rows = s->copying = s->calls = s->waiters = s->handed = 0;
    s->leader = NULL;
    s->posted = NULL;
    s->serial = ++r->serial;
    s->outcome = DONE;
    s->state = WAITING;
    r->queue[r->queued++] = s;
  }
  c->slab = s;
  c->serial = (int64_t)s->serial;
  c->start = s->rows;
  s->arrivals[s->calls] = c->arrived;
  s->members[c->index = s->calls++] = c;
  s->rows += c->rows;
  r->inside += c->rows;
  s->copying++;
  s->waiters++;
  s->latest = now;
  s->sealed = s->rows == r->of.most;
  return DONE;
}

void rows_out_of_queue(rows *r, int at) {
  r->inside -= r->queue[at]->rows;
  memmove(r->queue + at, r->queue + at + 1, (--r->queued - at) * sizeof *r->queue);
}

/* Start the slab's batch, if it is due and has a lane: whether that is so. From when it has one no further rows come, and
   it is started when they are copied. Batches in front of it come first. */
bool rows_start(rows *r, slab *s, int64_t now) {
  int at = 0, before = 0, lane = -1;
  for (int i = 0; i < r->queued; i++) r->queue[i]->sealed |= rows_is_late(r, r->queue[i], now);
  if (s->state != WAITING || !rows_is_due(r, s, now)) return false;
  for (; r->queue[at] != s; at++) before += r->queue[at]->home == s->home && rows_is_due(r, r->queue[at], now);
  for (int l = 0; l < r->of.lanes && lane < 0; l++)
    if (r->lanes[l].home == s->home && !r->lanes[l].busy && !r->lanes[l].wanted && before-- == 0) lane = l;
  if (lane < 0) return false;
  s->sealed = true;
  if (s->copying) return false;
  s->lane = lane;
  s->size = 0;
  while (r->batches[s->size] < s->rows) s->size++;
  r->lanes[lane].busy = 1;
  atomic_fetch_sub(&r->free_lanes, 1);
  rows_out_of_queue(r, at);
  r->running[r->runs++] = s;
  s->begun = now;
  s->state = RUNNING;
  return true;
}

/* The batch has ended, and its lane is free. */
void rows_ended(rows *r, slab *s, int64_t now) {
  int around = r->inside;
  for (int i = 0; i < r->runs; i++) around += r->running[i]->rows;
  r->around[r->around_at++ % (2 * r->of.lanes)] = around;
  if (r->around_count < 2 * r->of.lanes) r->around_count++;
  expect(r);
  const int64_t seconds = now - s->begun;
  r->seconds = r->seconds ? r->seconds + (int64_t)(NEWEST * (seconds - r->seconds)) : seconds;
  for (int i = 0; i < r->runs; i++)
    if (r->running[i] == s) {
      r->running[i] = r->running[--r->runs];
      break;
    }
}

/* One thread less looks at the slab. */
void rows_let_go(rows *r, slab *s) {
  if (--s->waiters || s->state == RUNNING) return;
  if (s->state == WAITING) /* nobody is left to lead it */
    for (int i = 0; i < r->queued; i++)
      if (r->queue[i] == s) {
        rows_out_of_queue(r, i);
        break;
      }
  s->state = FREE;
}

#endif
