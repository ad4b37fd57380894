/* Calls of a batcher that no thread waits for, as asyncio's tasks do: threads of this library copy their rows, lead
   batches that nobody else leads, copy results, and tell the event loop through a file that it watches. None of them
   ever holds Python's lock. A posted call counts as one waiter of its slab; so does a thread of these that leads it. */

#if defined(__linux__)
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "rows.h"

enum { MOST_THREADS = 8 };
static const int64_t SPIN = 500000, LOOK_AGAIN = 1000000, LONG = 1000000000;

/* What an event loop is to be told: calls that have come to `told`. `file`: an eventfd. */
typedef struct inbox {
  int file;
  atomic_flag lock;
  call *first;
} inbox;

/* `todo`: calls whose rows are to be copied, and `done`: slabs whose calls are to be answered; under the rows' lock. */
typedef struct posts {
  rows *of;
  call *todo, **todo_end;
  slab *done;
  bool ends;
  atomic_uint word;
  atomic_int sleepers;
  pthread_t threads[MOST_THREADS];
  int count;
} posts;

void posts_tell(rows *r) {
  posts *p = r->posts;
  if (p) rows_tell(&p->word, &p->sleepers);
}

void posts_ended(rows *r, slab *s) {
  if (!s->posted) return;
  s->next = r->posts->done;
  r->posts->done = s;
}

bool posts_busy(const rows *r) { return r->posts && (r->posts->todo || r->posts->done); }

static void ring(inbox *to) {
  const uint64_t one = 1;
  if (write(to->file, &one, sizeof one) < 0) return; /* it is full of what was not read yet, or nobody reads any more */
}

static void send(call *c) {
  inbox *to = c->inbox;
  while (atomic_flag_test_and_set(&to->lock)) litegpu_relax();
  const bool first = !to->first;
  c->next = to->first;
  to->first = c;
  if (first) ring(to); /* in the lock: afterwards it may be gone */
  atomic_flag_clear(&to->lock);
}

static void answer(rows *r, slab *s) {
  call *calls = s->posted;
  int count = 0;
  for (call *c = calls; c; c = c->other, count++) {
    c->told = s->outcome;
    if (s->outcome == DONE) rows_get(r, c);
  }
  rows_enter(r);
  s->posted = NULL;
  while (count--) rows_let_go(r, s);
  rows_leave(r);
  if (atomic_load(&r->room_sleepers)) rows_tell(&r->room, &r->room_sleepers);
  for (call *c = calls; c;) {
    call *other = c->other;
    c->slab = NULL;
    send(c);
    c = other;
  }
}

/* A batch with posted calls that nobody leads: of those that wait the first, as others have to wait for it. */
static slab *leaderless(rows *r, call *me) {
  slab *found = NULL;
  rows_enter(r);
  for (int i = 0; i < r->queued + r->runs && !found; i++) {
    slab *s = i < r->queued ? r->queue[i] : r->running[i - r->queued];
    call *nobody = NULL;
    if (!s->posted || s->handed) continue;
    if (atomic_compare_exchange_strong(&s->leader, &nobody, me)) found = s;
  }
  if (found) found->waiters++;
  rows_leave(r);
  return found;
}

static void lead_no_more(rows *r, slab *s, call *me) {
  rows_enter(r);
  if (s->handed == IS_HANDED && s->posted) ring(s->posted->inbox); /* Python looks for it there */
  call *leader = me;
  atomic_compare_exchange_strong(&s->leader, &leader, NULL);
  rows_let_go(r, s);
  rows_leave(r);
}

static void *work(void *given) {
  posts *p = given;
  rows *r = p->of;
  call me = {0};
  slab *mine = NULL;
  vigil own = {0};
  for (;;) {
    const unsigned seen = atomic_load(&p->word);
    rows_enter(r);
    call *c = p->todo;
    slab *s = c ? NULL : p->done;
    if (c && !(p->todo = c->next)) p->todo_end = &p->todo;
    if (s) p->done = s->next;
    const bool ends = p->ends && !c && !s && !mine;
    rows_leave(r);
    if (ends) break;
    if (c) {
      rows_give(r, c);
      posts_tell(r);
    }
    if (s) answer(r, s);
    if (!mine) mine = leaderless(r, &me);
    const int64_t now = litegpu_now();
    bool busy = c || s;
    int64_t ns = LONG;
    if (mine) {
      if (mine->state != ENDED && !mine->handed) busy |= rows_lead(r, mine, now);
      const int64_t left = rows_due(r, mine) - now;
      ns = left > 0 && left < LOOK_AGAIN ? left : LOOK_AGAIN;
      if (mine->state != RUNNING || mine->handed) { /* what waits is looked for afresh each time */
        busy |= mine->state != WAITING;
        lead_no_more(r, mine, &me);
        mine = NULL;
      }
    }
    if (busy) own.until = now + SPIN;
    if (busy || rows_wake(&own, now)) continue;
    rows_doze(&p->word, seen, &p->sleepers, ns);
  }
  rows_sleepy(&own);
  return NULL;
}

/* ------------------------------------------------------------------------------------------ what Python calls */

/* Begin with so many threads, unless that was done. Whether there are any. */
PUBLIC int litegpu_posts_start(rows *r, int threads) {
  if (r->posts) return r->posts->count > 0;
  posts *p = calloc(1, sizeof *p);
  if (!p) return 0;
  p->of = r;
  p->todo_end = &p->todo;
  r->posts = p;
  while (p->count < threads && p->count < MOST_THREADS && !pthread_create(&p->threads[p->count], NULL, work, p))
    p->count++;
  return p->count > 0;
}

/* End the threads, when nothing waits or runs any more. */
PUBLIC void litegpu_posts_stop(rows *r) {
  posts *p = r->posts;
  if (!p) return;
  rows_enter(r);
  p->ends = true;
  rows_leave(r);
  posts_tell(r);
  while (p->count) pthread_join(p->threads[--p->count], NULL);
}

static object *post(object *self, object *const *args, ssize_t count) {
  rows *r = python.as_pointer(self);
  const int inputs = r->of.inputs, outputs = r->of.outputs;
  if (count != 2 + inputs + outputs) return python.from_long(NOT_PLAIN);
  call *c = python.as_pointer(args[0]);
  view in[MOST_PORTS], out[MOST_PORTS];
  int found = NOT_PLAIN;
  const int ins = rows_views(r, c, args + 2, in, inputs, true);
  const int outs = ins == inputs ? rows_views(r, c, args + 2 + inputs, out, outputs, false) : 0;
  if (ins == inputs && outs == outputs) {
    for (int i = 0; i < inputs; i++) c->in[i] = in[i].buf;
    for (int i = 0; i < outputs; i++) c->out[i] = out[i].buf;
    const int64_t now = litegpu_now();
    if (!c->arrived) c->arrived = now;
    c->inbox = python.as_pointer(args[1]);
    rows_enter(r);
    found = rows_place(r, c, now);
    if (found == DONE) {
      c->other = c->slab->posted;
      c->slab->posted = c;
      c->next = NULL;
      *r->posts->todo_end = c;
      r->posts->todo_end = &c->next;
    }
    rows_leave(r);
    if (found == DONE) posts_tell(r);
    else if (found != NEEDS_SLAB && found != FULL) c->arrived = 0;
  }
  for (int i = 0; i < ins; i++) python.release_buffer(in + i);
  for (int i = 0; i < outs; i++) python.release_buffer(out + i);
  return python.from_long(found);
}

static struct definition post_definition = {"post", (void *)post, FASTCALL, NULL};

/* A function of Python's: of the addresses of a call and of an inbox, the arrays of the inputs and those for the outputs,
   all of which have to stay until litegpu_posts_fetch() gives the call. It gives DONE if the call is posted. */
PUBLIC object *litegpu_posts_poster(rows *r) {
  object *self = python.from_pointer(r);
  if (!self) return NULL;
  object *made = python.new_function(&post_definition, self, NULL);
  python.decref(self);
  return made;
}

PUBLIC inbox *litegpu_posts_inbox(int file) {
  inbox *made = calloc(1, sizeof *made);
  if (made) made->file = file;
  return made;
}

PUBLIC void litegpu_posts_free_inbox(inbox *one) { free(one); }

/* At most so many calls that have ended: for each its address, and what it has come to. How many these are. */
PUBLIC int litegpu_posts_fetch(inbox *from, int64_t *found, int most) {
  uint64_t ignored;
  int count = 0;
  while (atomic_flag_test_and_set(&from->lock)) litegpu_relax();
  if (read(from->file, &ignored, sizeof ignored) < 0) ignored = 0; /* it was read before */
  for (; from->first && count < most; count++) {
    call *c = from->first;
    from->first = c->next;
    found[2 * count] = (int64_t)(uintptr_t)c;
    found[2 * count + 1] = c->told;
    c->arrived = 0;
  }
  if (from->first) ring(from);
  atomic_flag_clear(&from->lock);
  return count;
}

/* A slab whose batch Python is to compute, and nobody has taken; -1 without one. */
PUBLIC int litegpu_posts_handed(rows *r) {
  for (int i = 0; i < r->slabs_count; i++)
    if (atomic_load(&r->slabs[i]->handed) == IS_HANDED) return i;
  return -1;
}
#endif
