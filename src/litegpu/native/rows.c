/* Calls of many threads put together into batches, without Python's lock: the quick way of a batcher.

   litegpu_rows_call() of a caller's thread lets go of Python's lock, takes a place in the batch that fills, copies its
   rows there, and waits. The first caller of a batch leads it: it starts the batch when the rules say so, waits for the
   device and tells the others, each of whom copies its own results and comes back to Python. When a batch is started
   rows_rules.c decides; Python gives the numbers. What is not as it should be (an error
   of the driver, a result that is not finite) is handed to Python: it computes the batch again in the ordinary way.

   Times are nanoseconds of CLOCK_MONOTONIC. `lock` is held for well below a microsecond at a time; nobody sleeps and
   nothing of Python's or the driver's is called in it. */

#if defined(__linux__)
#include <string.h>

#include "rows.h"

/* A thread that sleeps looks again after so long, whatever it was told. */
static const int64_t LOOK_AGAIN = 1000000;

/* Until the call's batch has ended, or `until`. */
static int await(rows *r, call *c, int64_t until) {
  slab *s = c->slab;
  int64_t now = litegpu_now();
  vigil own = {.until = now + rows_awake_for(r, now)};
  bool leads = false;
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
    if (busy || rows_wake(&own, now)) continue;
    int64_t ns = leads ? LOOK_AGAIN : 20 * LOOK_AGAIN;
    if (until && until - now < ns) ns = until - now;
    const int64_t left = leads ? rows_due(r, s) - now : 0;
    if (left > 0 && left < ns) ns = left;
    rows_doze(&s->word, seen, &s->sleepers, ns);
  }
  rows_sleepy(&own);
  if (leads && (found == PENDING || found == HANDED)) {
    atomic_store(&s->leader, NULL);
    rows_tell(&s->word, &s->sleepers);
    posts_tell(r);
  }
  return found;
}

/* A place for the rows, if there is one; locked. A batch that is large enough and has a lane takes no more from now on:
   its leader may still copy for long, and what comes meanwhile would be in it, and not in the next lane. */
int rows_place(rows *r, call *c, int64_t now) {
  const int found = r->off ? OFF : r->closed ? CLOSED : rows_offer(r, c, now);
  if (found == FULL && r->of.raises) r->refused++;
  if (found == DONE) rows_start(r, c->slab, now);
  return found;
}

/* The same, when there is one. */
static int placed(rows *r, call *c, int64_t until) {
  for (;;) {
    const unsigned seen = atomic_load(&r->room);
    int64_t now = litegpu_now();
    rows_enter(r);
    const int found = rows_place(r, c, now);
    rows_leave(r);
    if (found != FULL || r->of.raises) return found;
    if (until && now >= until) return PENDING;
    int64_t ns = 20 * LOOK_AGAIN;
    if (until && until - now < ns) ns = until - now;
    rows_doze(&r->room, seen, &r->room_sleepers, ns);
  }
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
    for (int i = 0; i < ins; i++) c->in[i] = in[i].buf;
    if (found == DONE) rows_give(r, c);
  }
  if (found == DONE) found = await(r, c, until);
  if (found == PENDING && c->deadline && litegpu_now() >= c->deadline) {
    found = LATE;
    c->told = c->slab != NULL;
  }
  if (c->slab && found != PENDING && found != HANDED && found != LATE) {
    slab *s = c->slab;
    for (int i = 0; i < outs; i++) c->out[i] = out[i].buf;
    if (found == DONE) rows_get(r, c);
    rows_enter(r);
    rows_let_go(r, s);
    rows_leave(r);
    if (atomic_load(&r->room_sleepers)) rows_tell(&r->room, &r->room_sleepers);
    c->slab = NULL;
  }
  if (!c->slab && found != PENDING && found != NEEDS_SLAB) c->arrived = 0;
  rows_come_back(r, state);
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

/* Nobody waits for the call any more. Whether that could be: the last one of a batch that runs has to be called on, and
   so has one whose rows Python computes with. */
PUBLIC int litegpu_rows_abandon(rows *r, call *c) {
  slab *s = c->slab;
  if (s) {
    int handed = IS_HANDED; /* Python may have been interrupted before it took it */
    atomic_compare_exchange_strong(&s->handed, &handed, NOT_HANDED);
    rows_enter(r);
    const bool kept = s->state == RUNNING && (s->waiters == 1 || s->handed == TAKEN);
    if (!kept) {
      s->members[c->index] = NULL;
      rows_let_go(r, s);
    }
    rows_leave(r);
    rows_tell(&s->word, &s->sleepers);
    posts_tell(r);
    if (kept) return 0;
    if (atomic_load(&r->room_sleepers)) rows_tell(&r->room, &r->room_sleepers);
  }
  c->slab = NULL;
  c->arrived = 0;
  return 1;
}

PUBLIC size_t litegpu_rows_call_size(void) { return sizeof(call); }

#endif
