/* Calls of many threads put together into batches, without Python's lock: the quick way of a batcher.

   litegpu_rows_call() of a caller's thread lets go of Python's lock, takes a place in the batch that fills, copies its
   rows there, and waits. The first caller of a batch leads it: it starts the batch when the rules say so, waits for the
   device and tells the others, each of whom copies its own results and comes back to Python. When a batch is started
   rows_rules.c decides; Python gives the numbers. What is not as it should be (an error
   of the driver, a result that is not finite) is handed to Python: it computes the batch again in the ordinary way.

   Times are nanoseconds of CLOCK_MONOTONIC. `lock` is held for well below a microsecond at a time; nobody sleeps and
   nothing of Python's or the driver's is called in it. */

#if defined(__linux__)
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "rows.h"

/* A waiting thread spins so long; a computing one asks the device without a pause so long, and then so often. */
static const int64_t SPIN = 1000000, ASK = 2000000, NAP = 50000;
/* More threads than processors are remembered so long. */
static const int64_t CROWDED = 20000000;
/* A thread that sleeps looks again after so long, whatever it was told. */
static const int64_t LOOK_AGAIN = 1000000;
/* Rows from so many bytes on are copied past the caches. */
enum { STREAMED = 64 << 10 };

void rows_enter(rows *r) {
  for (int i = 0; atomic_flag_test_and_set_explicit(&r->lock, memory_order_acquire); i++) {
    if (i < 2000) litegpu_relax();
    else sched_yield();
  }
}

void rows_leave(rows *r) { atomic_flag_clear_explicit(&r->lock, memory_order_release); }

/* Who waits awake may wait so long: not at all where there have been more threads than processors, as each would then be
   in the way of one that has something to do. */
static int64_t awake_for(rows *r, int64_t now) {
  if (atomic_load(&r->callers) > r->of.processors) atomic_store(&r->crowded, now);
  const int64_t crowded = atomic_load(&r->crowded);
  return crowded && now - crowded < CROWDED ? 0 : SPIN;
}

/* How many threads of a batcher ask for Python's lock at a time: who asks and does not get it soon falls asleep. */
enum { ASKING = 1 };

/* Have Python's lock again, of which many want it at once when a batch has ended: those behind wait awake. */
static void come_back(rows *r, void *state) {
  bool mine = false;
  const int64_t now = litegpu_now(), spin = awake_for(r, now);
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

/* ------------------------------------------------------------------------------------------ computing */

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

static void finish(rows *r, slab *s, int outcome) {
  rows_enter(r);
  const int64_t now = litegpu_now();
  rows_ended(r, s, now);
  rows_give_back(r, s->lane);
  s->outcome = outcome;
  if (outcome == DONE) {
    r->size_counts[s->size]++;
    const int64_t took = now - s->launched, least = r->least[s->size]; /* which is forgotten in the end */
    if (s->handed == NOT_HANDED) r->least[s->size] = !least || took < least ? took : least + least / 64;
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

static const recipe *recipe_of(const rows *r, const slab *s) { return r->recipes + s->lane * r->of.sizes + s->size; }

/* Put the batch on the device; whether that worked. */
static bool launch(rows *r, slab *s) {
  const recipe *how = recipe_of(r, s);
  const driver *d = &r->of.driver;
  const int rows = s->rows, missing = r->batches[s->size] - rows;
  int error = d->push(how->context);
  if (error) return false;
  for (int i = 0; i < r->of.inputs; i++) {
    const int64_t bytes = r->forms[i].bytes;
    error = error ? error : d->copy_in(how->in[i], s->in[i], rows * bytes, how->stream);
    if (missing) error = error ? error : d->fill(how->in[i] + rows * bytes, 0, missing * bytes, how->stream);
  }
  error = error ? error : d->launch(how->graph, how->stream);
  for (int i = 0; i < r->of.outputs; i++)
    error = error ? error : d->copy_out(s->out[i], how->out[i], rows * r->forms[r->of.inputs + i].bytes, how->stream);
  void *popped;
  d->pop(&popped);
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

/* Whether a launched batch has ended: DONE, PENDING, or HANDED if Python is to compute it again. */
static int asked(rows *r, slab *s) {
  const recipe *how = recipe_of(r, s);
  if (r->of.driver.push(how->context)) return HANDED;
  const int error = r->of.driver.query(how->stream);
  void *popped;
  r->of.driver.pop(&popped);
  if (error == NOT_READY) return PENDING;
  return error || (how->watched && !is_finite(r, s)) ? HANDED : DONE;
}

/* ------------------------------------------------------------------------------------------ waiting */

/* Start the batch, or ask the device for it: whether there may be something new at once. */
bool rows_lead(rows *r, slab *s, int64_t now) {
  if (s->state == RUNNING) {
    /* not before it may be: to ask holds up who launches */
    const bool soon = s->launched && now - s->launched < atomic_load(&r->least[s->size]) / 2;
    const int how = soon ? PENDING : s->launched ? asked(r, s) : HANDED;
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
  s->launched = launch(r, s) ? litegpu_now() : 0;
  if (atomic_load(&r->room_sleepers)) rows_tell(&r->room, &r->room_sleepers);
  return true;
}

/* When a leader that sleeps has to look at the clock. */
int64_t rows_due(const rows *r, slab *s) {
  const int64_t late = atomic_load(&s->latest) + rows_patience(r), last = s->opened + r->of.delay;
  return late < last ? late : last;
}

/* Until the call's batch has ended, or `until`. */
static int await(rows *r, call *c, int64_t until) {
  slab *s = c->slab;
  int64_t now = litegpu_now();
  const int64_t spin = awake_for(r, now), calm = now + spin;
  bool spins = spin && litegpu_awake(), leads = false;
  int found = PENDING;
  for (;; now = litegpu_now()) {
    const unsigned seen = atomic_load(&s->word);
    if (atomic_load(&s->state) == ENDED) {
      found = s->outcome;
      break;
    }
    if (!leads && !atomic_load(&s->handed)) {
      call *nobody = NULL;
      leads = atomic_compare_exchange_strong(&s->leader, &nobody, c);
      /* who has led meanwhile may have handed it over */
    }
    const bool busy = leads && !atomic_load(&s->handed) && rows_lead(r, s, now);
    if (busy && atomic_load(&s->handed)) {
      c->told = s->number;
      found = HANDED;
      break;
    }
    if (until && now >= until) break;
    if (busy) continue;
    if (spins && now >= calm) {
      spins = false;
      litegpu_sleepy();
    }
    if (spins) {
      for (int i = 0; i < 20; i++) litegpu_relax();
      continue;
    }
    int64_t ns = leads ? LOOK_AGAIN : 20 * LOOK_AGAIN;
    if (until && until - now < ns) ns = until - now;
    const int64_t left = leads ? rows_due(r, s) - now : 0;
    if (left > 0 && left < ns) ns = left;
    rows_doze(&s->word, seen, &s->sleepers, ns);
  }
  if (spins) litegpu_sleepy();
  if (leads && (found == PENDING || found == HANDED)) {
    atomic_store(&s->leader, NULL);
    rows_tell(&s->word, &s->sleepers);
    posts_tell(r);
  }
  return found;
}

/* A place for the rows, when there is one. */
static int placed(rows *r, call *c, int64_t until) {
  for (;;) {
    const unsigned seen = atomic_load(&r->room);
    int64_t now = litegpu_now();
    rows_enter(r);
    int found = r->off ? OFF : r->closed ? CLOSED : rows_offer(r, c, now);
    if (found == FULL && r->of.raises) r->refused++;
    rows_leave(r);
    if (found != FULL || r->of.raises) return found;
    if (until && now >= until) return PENDING;
    int64_t ns = 20 * LOOK_AGAIN;
    if (until && until - now < ns) ns = until - now;
    rows_doze(&r->room, seen, &r->room_sleepers, ns);
  }
}

/* Past the caches: the device reads it from memory, and what another processor has is slow to get. */
void rows_copy(char *to, const char *from, size_t bytes) {
#if defined(__x86_64__)
  if (bytes >= STREAMED) {
    const size_t head = -(uintptr_t)to % 64;
    memcpy(to, from, head);
    to += head, from += head, bytes -= head;
    for (; bytes >= 64; bytes -= 64, to += 64, from += 64) {
      const __m128i *f = (const __m128i *)from;
      __m128i a = _mm_loadu_si128(f), b = _mm_loadu_si128(f + 1), c = _mm_loadu_si128(f + 2), d = _mm_loadu_si128(f + 3);
      _mm_stream_si128((__m128i *)to, a), _mm_stream_si128((__m128i *)to + 1, b);
      _mm_stream_si128((__m128i *)to + 2, c), _mm_stream_si128((__m128i *)to + 3, d);
    }
    _mm_sfence();
  }
#endif
  memcpy(to, from, bytes);
}

static void put(rows *r, call *c, const view *views) {
  for (int i = 0; i < r->of.inputs; i++) {
    const int64_t bytes = r->forms[i].bytes;
    rows_copy(c->slab->in[i] + c->start * bytes, views[i].buf, c->rows * bytes);
  }
  atomic_fetch_sub(&c->slab->copying, 1);
  rows_tell(&c->slab->word, &c->slab->sleepers);
}

/* ------------------------------------------------------------------------------------------ what Python calls */

static bool fits(const form *f, const view *v, int64_t rows) {
  if (v->ndim != f->rank || strcmp(v->format ? v->format : "B", f->format) || v->shape[0] != rows) return false;
  for (int i = 1; i < f->rank; i++)
    if (v->shape[i] != f->shape[i]) return false;
  return true;
}

/* Views of a call's arrays, as far as they are plain and of the right form: how many. They are to be released. Of inputs
   the first tells the number of rows. */
int rows_views(const rows *r, call *c, object *const *arrays, view *views, int count, bool inputs) {
  const form *forms = r->forms + (inputs ? 0 : r->of.inputs);
  for (int i = 0; i < count; i++) {
    view *v = views + i;
    if (python.get_buffer(arrays[i], v, C_CONTIGUOUS | (inputs ? FORMAT : WRITABLE))) {
      python.clear();
      return i;
    }
    if (inputs && !i) c->rows = v->ndim > 0 && v->shape[0] <= r->of.most ? (int)v->shape[0] : 0;
    if (c->rows < 1 || (inputs ? !fits(forms + i, v, c->rows) : v->len != c->rows * forms[i].bytes)) {
      python.release_buffer(v);
      return i;
    }
  }
  return count;
}

/* One call with these arrays, or the rest of one that is PENDING or HANDED. */
static int called(rows *r, call *c, object *const *inputs, object *const *outputs) {
  view in[MOST_PORTS], out[MOST_PORTS];
  int ins = 0, outs = 0, found = NOT_PLAIN;
  if (!c->slab) {
    ins = rows_views(r, c, inputs, in, r->of.inputs, true);
    if (ins < r->of.inputs) goto end;
  }
  outs = rows_views(r, c, outputs, out, r->of.outputs, false);
  if (outs < r->of.outputs) goto end;
  void *state = litegpu_leave();
  atomic_fetch_add(&r->callers, 1);
  const int64_t now = litegpu_now();
  int64_t until = now + c->slice;
  if (c->deadline && c->deadline < until) until = c->deadline;
  found = DONE;
  if (!c->slab) {
    if (!c->arrived) c->arrived = now;
    found = placed(r, c, until);
    if (found == DONE) put(r, c, in);
  }
  if (found == DONE) found = await(r, c, until);
  if (found == PENDING && c->deadline && litegpu_now() >= c->deadline) {
    found = LATE;
    c->told = c->slab != NULL;
  }
  if (c->slab && found != PENDING && found != HANDED && found != LATE) {
    slab *s = c->slab;
    if (found == DONE)
      for (int i = 0; i < r->of.outputs; i++) {
        const int64_t bytes = r->forms[r->of.inputs + i].bytes;
        memcpy(out[i].buf, s->out[i] + c->start * bytes, c->rows * bytes);
      }
    rows_enter(r);
    rows_let_go(r, s);
    rows_leave(r);
    if (atomic_load(&r->room_sleepers)) rows_tell(&r->room, &r->room_sleepers);
    c->slab = NULL;
  }
  if (!c->slab && found != PENDING && found != NEEDS_SLAB) c->arrived = 0;
  come_back(r, state);
  atomic_fetch_sub(&r->callers, 1);
end:
  while (ins) python.release_buffer(in + --ins);
  while (outs) python.release_buffer(out + --outs);
  return found;
}

static object *call_one(object *self, object *const *args, ssize_t count) {
  rows *r = python.as_pointer(self);
  call *c = count == 1 + r->of.inputs + r->of.outputs ? python.as_pointer(args[0]) : NULL;
  return python.from_long(c ? called(r, c, args + 1, args + 1 + r->of.inputs) : NOT_PLAIN);
}

static struct definition call_definition = {"rows", (void *)call_one, FASTCALL, NULL};

/* A function of Python's: of the address of a call, the arrays of the inputs, and those for the outputs. It makes the
   call, or goes on with one that was PENDING or HANDED, and gives what it has come to. `r` outlives it. */
PUBLIC object *litegpu_rows_caller(rows *r) {
  object *self = python.from_pointer(r);
  if (!self) return NULL;
  object *made = python.new_function(&call_definition, self, NULL);
  python.decref(self);
  return made;
}

/* Nobody waits for the call any more. Whether that could be: the last one of a batch that runs has to be called on. */
PUBLIC int litegpu_rows_abandon(rows *r, call *c) {
  slab *s = c->slab;
  if (s) {
    int handed = IS_HANDED; /* Python may have been interrupted before it took it */
    atomic_compare_exchange_strong(&s->handed, &handed, NOT_HANDED);
    rows_enter(r);
    const bool last = s->waiters == 1 && s->state == RUNNING && s->handed != TAKEN;
    if (!last) rows_let_go(r, s);
    rows_leave(r);
    rows_tell(&s->word, &s->sleepers);
    posts_tell(r);
    if (last) return 0;
    if (atomic_load(&r->room_sleepers)) rows_tell(&r->room, &r->room_sleepers);
  }
  c->slab = NULL;
  c->arrived = 0;
  return 1;
}

PUBLIC size_t litegpu_rows_call_size(void) { return sizeof(call); }

/* Whether Python is to compute the batch in a slab, and nobody else does; with its lane, size, the slab's tag, the
   batch's number, and its rows. */
PUBLIC int litegpu_rows_take(rows *r, int number, int64_t *told) {
  slab *s = r->slabs[number];
  int handed = IS_HANDED;
  if (!atomic_compare_exchange_strong(&s->handed, &handed, TAKEN)) return 0;
  told[0] = s->lane, told[1] = r->batches[s->size], told[2] = s->tag, told[4] = s->rows, told[3] = (int64_t)s->serial;
  return 1;
}

/* Python has computed it, and the results are in the slab; or not. */
PUBLIC void litegpu_rows_finish(rows *r, int slab_number, int worked) {
  finish(r, r->slabs[slab_number], worked ? DONE : FAILED);
}

PUBLIC void litegpu_rows_watch(rows *r, int watched) {
  for (int i = 0; i < r->of.lanes * r->of.sizes; i++) r->recipes[i].watched = watched;
}
#endif
