/* Batches on the device: how one is put there, and asked for; and what callers give to it and get. */

#if defined(__linux__)
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "rows.h"

/* A computing thread asks the device without a pause so long, and then so often. */
static const int64_t ASK = 2000000, NAP = 50000;
/* The stream is asked so often, for errors, where the device says by itself when a batch has ended. */
static const int64_t SELDOM = 200000;

void rows_told_all(rows *r) { /* that a lane is free, or room: locked or not, as slabs are never freed */
  for (int i = 0; i < r->slabs_count; i++)
    if (r->slabs[i]->state == WAITING) rows_tell(&r->slabs[i]->word, &r->slabs[i]->sleepers);
  rows_tell(&r->room, &r->room_sleepers);
  posts_tell(r);
}

void rows_give_back(rows *r, int l) {
  r->lanes[l].busy = 0;
  atomic_fetch_add(&r->free_lanes, 1);
}

static const recipe *recipe_of(const rows *r, const slab *s) { return r->recipes + s->lane * r->of.sizes + s->size; }

static turn *turn_of(rows *r, const slab *s) {
  turn *t = r->turns + s->home;
  while (atomic_flag_test_and_set_explicit(&t->lock, memory_order_acquire)) litegpu_relax();
  return t;
}

static void leave_turn(turn *t) { atomic_flag_clear_explicit(&t->lock, memory_order_release); }

/* The graph, behind that of the batch before, for which its inputs need not wait. Where several large batches are computed
   at once they all end late, and at one time; then the device waits for all of their callers, and these for it. */
static int launch_in_turn(rows *r, const slab *s, const recipe *how) {
  const driver *d = &r->of.driver;
  if (!how->event) return d->launch(how->graph, how->stream);
  turn *t = turn_of(r, s);
  int error = t->last ? d->wait_event(how->stream, t->last, 0) : 0;
  error = error ? error : d->launch(how->graph, how->stream);
  error = error ? error : d->record(how->event, how->stream);
  if (!error) t->last = how->event;
  leave_turn(t);
  return error;
}

/* Nobody comes behind the batch any more: its session may be closed. */
static void end_turn(rows *r, const slab *s) {
  const recipe *how = recipe_of(r, s);
  if (!how->event) return;
  turn *t = turn_of(r, s);
  if (t->last == how->event) t->last = NULL;
  leave_turn(t);
}

static void finish(rows *r, slab *s, int outcome) {
  end_turn(r, s);
  rows_enter(r);
  const int64_t now = litegpu_now();
  rows_ended(r, s, now);
  rows_give_back(r, s->lane);
  s->outcome = outcome;
  if (outcome == DONE) {
    r->size_counts[s->size]++;
    r->calls += s->calls;
    r->rows += s->rows;
    for (int i = 0; i < s->calls; i++) {
      r->waits[r->calls_told % LATEST] = (s->begun - s->arrivals[i]) * 1e-9;
      r->latencies[r->calls_told++ % LATEST] = (now - s->arrivals[i]) * 1e-9;
    }
    r->run_times[r->runs_told++ % LATEST] = (now - s->begun) * 1e-9;
  } else {
    r->failed += s->calls;
  }
  s->state = s->waiters ? ENDED : FREE;
  posts_ended(r, s);
  rows_leave(r);
  rows_tell(&s->word, &s->sleepers);
  rows_told_all(r);
}

/* Put the batch on the device; whether that worked. */
static bool launch(rows *r, slab *s) {
  const recipe *how = recipe_of(r, s);
  const driver *d = &r->of.driver;
  const int rows = s->rows, missing = r->batches[s->size] - rows;
  int error = d->push(how->context);
  if (error) return false;
  for (int i = 0; i < r->of.inputs; i++) {
    const int64_t bytes = r->forms[i].staged;
    error = error ? error : d->copy_in(how->in[i], s->in[i], rows * bytes, how->stream);
    if (missing) error = error ? error : d->fill(how->in[i] + rows * bytes, 0, missing * bytes, how->stream);
  }
  error = error ? error : launch_in_turn(r, s, how);
  for (int i = 0; i < r->of.outputs; i++)
    error = error ? error : d->copy_out(s->out[i], how->out[i], rows * r->forms[r->of.inputs + i].bytes, how->stream);
  s->number_on_device = *how->ended + 1; /* other inferences of the session number themselves by the same word */
  if (d->write) error = error ? error : d->write(how->stream, (uintptr_t)how->ended, s->number_on_device, 0);
  void *popped;
  d->pop(&popped);
  s->asked = litegpu_now();
  return !error;
}

static bool is_finite(const rows *r, const slab *s) {
  for (int i = 0; i < r->of.outputs; i++) {
    const form *f = r->forms + r->of.inputs + i;
    if (!f->floats) continue;
    const uint32_t *words = (const uint32_t *)s->out[i];
    const int64_t count = s->rows * f->bytes / 4;
    uint32_t odd = 0;
    for (int64_t k = 0; k < count; k++) odd |= (words[k] & 0x7f800000u) == 0x7f800000u;
    if (odd) return false;
  }
  return true;
}

/* What the stream says: 0, NOT_READY or an error. To ask holds up who launches other batches. */
static int asked(const rows *r, slab *s, int64_t now) {
  const recipe *how = recipe_of(r, s);
  s->asked = now;
  int error = r->of.driver.push(how->context);
  if (error) return error;
  error = r->of.driver.query(how->stream);
  void *popped;
  r->of.driver.pop(&popped);
  return error;
}

/* Whether a launched batch has ended: DONE, PENDING, or HANDED if Python is to compute it again. */
static int looked(const rows *r, slab *s, int64_t now) {
  const recipe *how = recipe_of(r, s);
  const bool writes = r->of.driver.write;
  const bool ended = writes && *how->ended == s->number_on_device;
  atomic_thread_fence(memory_order_acquire);
  if (!ended) {
    const int error = writes && now - s->asked < SELDOM ? NOT_READY : asked(r, s, now);
    if (error) return error == NOT_READY ? PENDING : HANDED;
  }
  return how->watched && !is_finite(r, s) ? HANDED : DONE;
}

/* Start the batch, or ask the device for it: whether there may be something new at once. */
bool rows_lead(rows *r, slab *s, int64_t now) {
  if (s->state == RUNNING) {
    const int how = s->launched ? looked(r, s, now) : HANDED;
    if (how == DONE) finish(r, s, DONE);
    else if (how == HANDED) atomic_store(&s->handed, IS_HANDED);
    else if (now - s->launched > ASK) nanosleep(&(struct timespec){0, NAP}, NULL);
    else for (int i = 0; i < 30; i++) litegpu_relax();
    return true;
  }
  if (atomic_load(&r->free_lanes) < 1 || !rows_is_due(r, s, now)) return false;
  if (atomic_load(&s->copying) && s->sealed) return false;
  rows_enter(r);
  const bool started = rows_start(r, s, now);
  rows_leave(r);
  if (!started) return false;
  s->launched = launch(r, s) ? s->asked : 0;
  if (atomic_load(&r->room_sleepers)) rows_tell(&r->room, &r->room_sleepers);
  return true;
}

/* When a leader that sleeps has to look at the clock. */
int64_t rows_due(const rows *r, slab *s) {
  const int64_t late = atomic_load(&s->latest) + rows_patience(r), last = s->opened + r->of.delay;
  return late < last ? late : last;
}

/* Copy a call's rows to its slab, and tell that. */
void rows_give(rows *r, call *c) {
  slab *s = c->slab;
  for (int i = 0; i < r->of.inputs; i++) {
    const form *f = r->forms + i;
    char *to = s->in[i] + c->start * f->staged;
    if (f->staged < f->bytes) litegpu_stage_rounded(to, c->in[i], c->rows * f->bytes);
    else litegpu_stage(to, c->in[i], c->rows * f->bytes);
  }
  atomic_fetch_sub(&s->copying, 1);
  rows_tell(&s->word, &s->sleepers);
}

/* Copy its results to where they are to be. */
void rows_get(const rows *r, const call *c) {
  for (int i = 0; i < r->of.outputs; i++) {
    const int64_t bytes = r->forms[r->of.inputs + i].bytes;
    memcpy(c->out[i], c->slab->out[i] + c->start * bytes, c->rows * bytes);
  }
}

/* ------------------------------------------------------------------------------------------ what Python computes */

/* Whether Python is to compute the batch in a slab, and nobody else does; with its lane, size, the slab's tag, and the
   batch's number. */
PUBLIC int litegpu_rows_take(rows *r, int number, int64_t *told) {
  slab *s = r->slabs[number];
  int handed = IS_HANDED;
  rows_enter(r); /* whose callers leave before that, or stay until the batch has ended */
  const bool taken = atomic_compare_exchange_strong(&s->handed, &handed, TAKEN);
  rows_leave(r);
  if (!taken) return 0;
  told[0] = s->lane, told[1] = r->batches[s->size], told[2] = s->tag, told[3] = (int64_t)s->serial;
  return 1;
}

/* Copy the rows of a batch that was taken, as its callers have given them, to an address for each input. Rows of callers
   that have left stay as they are there. */
PUBLIC void litegpu_rows_given(const rows *r, int number, char *const *memory) {
  const slab *s = r->slabs[number];
  for (int k = 0; k < s->calls; k++)
    for (int i = 0; s->members[k] && i < r->of.inputs; i++) {
      const call *c = s->members[k];
      const int64_t bytes = r->forms[i].bytes;
      memcpy(memory[i] + c->start * bytes, c->in[i], c->rows * bytes);
    }
}

/* Python has computed it, and the results are in the slab; or not. */
PUBLIC void litegpu_rows_finish(rows *r, int slab_number, int worked) {
  finish(r, r->slabs[slab_number], worked ? DONE : FAILED);
}

PUBLIC void litegpu_rows_watch(rows *r, int watched) {
  for (int i = 0; i < r->of.lanes * r->of.sizes; i++) r->recipes[i].watched = watched;
}
#endif
