/* What rows*.c and posts.c share: a batcher's batches, and the calls in them. */

#ifndef LITEGPU_ROWS_H
#define LITEGPU_ROWS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "native.h"

/* What a call gives. */
enum { DONE, PENDING, FAILED, CLOSED, FULL, NEEDS_SLAB, NOT_PLAIN, LATE, HANDED, OFF };
/* Of a slab; and whether Python is to compute its batch, and does. */
enum { FREE, WAITING, RUNNING, ENDED };
enum { NOT_HANDED, IS_HANDED, TAKEN };
enum { MOST_PORTS = 16, MOST_RANK = 8, LATEST = 10000, NOT_READY = 600 };
/* ------------------------------------------------------------------------------------------ Python's buffers */

typedef struct view { /* a Py_buffer */
  void *buf;
  object *obj;
  ssize_t len, itemsize;
  int readonly, ndim;
  char *format;
  ssize_t *shape, *strides, *suboffsets;
  void *internal;
} view;

enum { WRITABLE = 1, FORMAT = 4, C_CONTIGUOUS = 0x38 };
enum { FASTCALL = 0x80, CACHE_LINE = 64 };

/* ------------------------------------------------------------------------------------------ what Python gives */

/* The driver's functions; each gives 0, or the number of an error. */
typedef struct driver {
  int (*push)(void *context);
  int (*pop)(void **context);
  int (*launch)(void *graph, void *stream);
  int (*copy_in)(uint64_t device, const void *host, size_t bytes, void *stream);
  int (*copy_out)(void *host, uint64_t device, size_t bytes, void *stream);
  int (*fill)(uint64_t device, unsigned char value, size_t bytes, void *stream);
  int (*query)(void *stream);
  int (*write)(void *stream, uint64_t place, uint32_t value, unsigned flags); /* NULL: the stream is asked instead */
  int (*wait_event)(void *stream, void *event, unsigned flags);
  int (*record)(void *event, void *stream);
} driver;

/* How a lane computes batches of one size: inputs to these places of the device, the graph, results from those. */
typedef struct recipe {
  void *context, *stream, *graph;
  volatile uint32_t *ended; /* where the device writes a number behind a batch */
  void *event; /* behind the graph, which begins when that of the batch before has ended; NULL: it does not wait */
  int watched; /* whether results are to be looked at for what is not finite */
  uint64_t in[MOST_PORTS], out[MOST_PORTS];
} recipe;

/* A row of an input or output: its bytes, and those that it has in slabs and on the device; half as many where float32
   become float16. */
typedef struct form {
  int64_t bytes, staged;
  char format[8]; /* of a Py_buffer's elements */
  int rank;       /* with the batch */
  int64_t shape[MOST_RANK];
  int floats; /* whether it is of float32 */
} form;

/* `large`: batches of so many rows, and more, are computed one after the other. */
typedef struct setup {
  driver driver;
  int inputs, outputs, lanes, sizes, most, most_slabs, waiting, raises, large, processors;
  int64_t delay;
  const form *forms;  /* inputs, then outputs */
  const int *homes;   /* of lanes */
  const int *batches; /* the sizes, ascending */
  const recipe *recipes;
} setup;

/* ------------------------------------------------------------------------------------------ state */

typedef struct call call;

/* Memory for a batch's rows and results, and the batch that is in it. Threads in `waiters` still look at it. `leader`:
   the one that starts it, and asks the device; any of them, if it is nobody. `launched`: when that was, 0 if it failed.
   `asked`: when the stream was asked last; what the device writes when it has ended. */
typedef struct slab {
  struct call *posted; /* calls that nobody waits for in a thread */
  struct slab *next;   /* whose posted calls are to be answered */
  char *in[MOST_PORTS], *out[MOST_PORTS];
  int home, number, tag;
  int64_t *arrivals;
  struct call **members; /* the calls, but for those that have left */
  /* What waiters look at all the time, and what callers write, are apart in the processors' caches. */
  _Alignas(CACHE_LINE) atomic_int state;
  atomic_int handed, sleepers;
  atomic_uint word; /* changes with whatever waiters may wait for */
  _Atomic(call *) leader;
  _Alignas(CACHE_LINE) atomic_int rows;
  atomic_int copying;
  _Atomic int64_t latest;
  int64_t opened, begun, launched, asked;
  uint32_t number_on_device;
  atomic_bool sealed;
  int waiters, calls, lane, size, outcome;
  uint64_t serial;
} slab;

/* One call; zero before the first. It is Python's memory, which reads `told`: after NEEDS_SLAB the home, after HANDED
   the number of the slab, after LATE whether there was room; and the batch's number. And it writes: nanoseconds after
   which the call comes back, but for what the driver takes; and when it is LATE, or 0. */
struct call {
  int64_t told, serial, slice, deadline;
  slab *slab;
  int start, rows;
  int64_t arrived;
  int index; /* among the slab's */
  char *in[MOST_PORTS], *out[MOST_PORTS]; /* its arrays */
  /* Of one that is posted: what comes behind it, and where it is answered. */
  call *next, *other;
  struct inbox *inbox;
};

typedef struct lane { int home; atomic_int busy; atomic_int wanted; } lane;

/* The batch of a home whose graph is the last one that others come behind: its event, or NULL. */
typedef struct turn { _Alignas(CACHE_LINE) atomic_flag lock; void *last; } turn;

typedef struct rows {
  atomic_int outside, inside; /* rows that wait in Python, which it writes here, and those that wait here */
  setup of;
  form *forms;
  int *batches;
  recipe *recipes;
  lane *lanes;
  turn *turns; /* by home */
  slab **slabs, **queue, **running;
  atomic_int slabs_count; /* which slabs there are may be looked at without the lock */
  int queued, runs, around_at, around_count, *around;
  atomic_int expected;
  atomic_int free_lanes, room_sleepers;
  atomic_uint room;
  bool closed, off;
  _Atomic int64_t seconds; /* that a run is expected to take; 0 before the first */
  uint64_t serial, calls, rows, refused, failed, *size_counts, runs_told, calls_told;
  double *waits, *latencies, *run_times;
  struct posts *posts; /* NULL before the first */
  _Alignas(CACHE_LINE) atomic_flag lock;
  _Alignas(CACHE_LINE) atomic_int asking;  /* threads that ask for Python's lock */
  _Alignas(CACHE_LINE) atomic_int callers; /* threads that make calls */
  _Atomic int64_t crowded;                 /* when they were more than processors last */
} rows;

/* ------------------------------------------------------------------------------------------ rows_rules.c; locked */

int64_t rows_patience(const rows *);
bool rows_is_due(const rows *, slab *, int64_t now);
int rows_offer(rows *, call *, int64_t now);
bool rows_start(rows *, slab *, int64_t now);
void rows_ended(rows *, slab *, int64_t now);
void rows_out_of_queue(rows *, int at);
void rows_let_go(rows *, slab *);

/* ------------------------------------------------------------------------------------------ rows_wait.c */

/* A thread's own waiting awake: whether it does, and until when it may. */
typedef struct vigil { bool awake; int64_t until; } vigil;

void rows_enter(rows *);
void rows_leave(rows *);
/* Who waits awake may wait so long: not at all where there have been more threads than processors, as each would then be
   in the way of one that has something to do. */
int64_t rows_awake_for(rows *, int64_t now);
/* Wait awake for a moment, if that may be: whether it was. In the end the thread is sleepy. */
bool rows_wake(vigil *, int64_t now);
void rows_sleepy(vigil *);
void rows_doze(atomic_uint *word, unsigned seen, atomic_int *sleepers, int64_t ns);
void rows_tell(atomic_uint *word, atomic_int *sleepers);
void rows_come_back(rows *, void *state);

/* ------------------------------------------------------------------------------------------ rows_run.c */

void rows_told_all(rows *);
void rows_give_back(rows *, int lane);
bool rows_lead(rows *, slab *, int64_t now);
int64_t rows_due(const rows *, slab *);
void rows_give(rows *, call *);
void rows_get(const rows *, const call *);

/* ------------------------------------------------------------------------------------------ rows.c and posts.c */

int rows_place(rows *, call *, int64_t now);
int rows_views(const rows *, call *, object *const *arrays, view *views, int count, bool inputs);

/* posts.c: a batch has ended, perhaps with posted calls (in the lock); there may be something to do for those who lead
   batches with such; whether they have something to do. */
void posts_ended(rows *, slab *);
void posts_tell(rows *);
bool posts_busy(const rows *);

#endif
