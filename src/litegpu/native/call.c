/* One inference of a session whose inputs and outputs are plain arrays, without Python's lock: inputs to pinned memory,
   the session's graph, a wait that is short, outputs from there. call.py says what it stands for. */

#include "native.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

/* CUDA's */
enum { SUCCESS = 0, NOT_READY = 600 };

/* What a call comes to, besides errors of CUDA, which are given as their numbers below zero. */
enum { DONE, NOT_DONE, NOT_FINITE, NOT_TAKEN };

/* An input or output. `memory`: pinned, of the session's. `place`: where one is on the device whose array the device can
   read or write itself, so that it is copied between these two; else 0. `sent`: where one is on the device that goes there
   piece by piece, each as soon as it is in `memory`; else 0. `rounded`: float32, which goes there as float16. */
typedef struct port { void *memory; size_t bytes; uint64_t place, sent, rounded; } port;

typedef struct floats { const uint32_t *first; size_t count; } floats;

typedef struct call {
  int (*push)(void *), (*pop)(void **), (*launch)(void *, void *), (*query)(void *);
  send_function copy_in;
  int (*copy_out)(void *, uint64_t, size_t, void *);
  int (*write)(void *, uint64_t, uint32_t, unsigned); /* cuStreamWriteValue32; NULL: the stream is asked instead */
  void *context, *graph, *stream;
  void *look; /* a graph that writes to `not_finite` whether outputs on the device are; NULL: there is none to look at */
  volatile uint32_t *not_finite;
  volatile uint32_t *ended; /* where the device writes the number of an inference behind it */
  const port *inputs, *outputs;
  const floats *watched; /* results in the session's memory that are looked at */
  int inputs_count, outputs_count, watched_count;
  uint32_t number, reserved;
  int64_t spin; /* nanoseconds that a wait lasts at the most */
  /* Nanoseconds of the last inference: to copy inputs, to launch, to wait, to copy outputs; of all of the one before. */
  int64_t wrote, submitted, waited, read, before;
} call;

/* The head of a Py_buffer, which is part of Python's stable ABI, with room for the rest. */
typedef struct view { void *data; void *owner; ptrdiff_t bytes; void *rest[12]; } view;

/* Nanoseconds that a wait keeps Python's lock at the most. */
#define KEPT 60000

enum { WRITABLE = 1 };
enum { MOST = 32 };

static int is_finite(const floats *values) {
  uint32_t found = 0;
  for (size_t i = 0; i < values->count; i++) found |= (values->first[i] & 0x7f800000u) == 0x7f800000u;
  return !found;
}

/* Whether the last inference is done, SUCCESS, or NOT_READY, or an error. To ask the stream keeps others from it. */
static int looked(call *own) {
  if (own->write == NULL) return own->query(own->stream);
  int done = *own->ended == own->number;
  atomic_thread_fence(memory_order_acquire);
  return done ? SUCCESS : NOT_READY;
}

/* `state`: of who keeps Python's lock, NULL; that is let go of where it takes longer than was expected. `lent`: it was lent
   meanwhile, so that this says nothing of how long the device takes. */
static int waited(call *own, void **state, int lent) {
  int64_t begin = litegpu_now(), passed = 0;
  int awake = litegpu_awake(), error;
  while ((error = looked(own)) == NOT_READY && passed < own->spin) {
    if (awake) {
      litegpu_relax();
    } else {
      struct timespec pause = {0, 20000};
      nanosleep(&pause, NULL);
    }
    passed = litegpu_now() - begin;
    if (*state == NULL && passed > KEPT) *state = litegpu_leave();
  }
  if (awake) litegpu_sleepy();
  if (error == NOT_READY) error = own->query(own->stream);
  if (!lent) own->waited = litegpu_now() - begin;
  return error;
}

static int begun(call *own, const view *given) {
  int64_t begin = litegpu_now(), copied;
  int error = SUCCESS;
  own->number = *own->ended + 1; /* other calls of the session number their inferences by the same word */
  for (int i = 0; i < own->inputs_count; i++) {
    const port *one = &own->inputs[i];
    if (given[i].data == NULL || one->place != 0) continue;
    if (one->sent == 0) {
      litegpu_stage_large(one->memory, given[i].data, one->bytes, (int)one->rounded);
    } else if (error == SUCCESS) {
      error = litegpu_send_large(one->memory, given[i].data, one->bytes, (int)one->rounded, own->copy_in, one->sent, own->stream);
    }
  }
  own->wrote = (copied = litegpu_now()) - begin;
  if (own->look != NULL) *own->not_finite = 0;
  for (int i = 0; error == SUCCESS && i < own->inputs_count; i++) {
    const port *one = &own->inputs[i];
    if (one->place != 0) error = own->copy_in(one->place, given[i].data, one->bytes, own->stream);
  }
  if (error == SUCCESS) error = own->launch(own->graph, own->stream);
  if (error == SUCCESS && own->look != NULL) error = own->launch(own->look, own->stream);
  for (int i = 0; error == SUCCESS && i < own->outputs_count; i++) {
    const port *one = &own->outputs[i];
    if (one->place == 0) continue;
    error = own->copy_out(given[own->inputs_count + i].data, one->place, one->bytes, own->stream);
  }
  if (error == SUCCESS && own->write != NULL) {
    error = own->write(own->stream, (uint64_t)(uintptr_t)own->ended, own->number, 0);
  }
  own->submitted = litegpu_now() - copied;
  return error;
}

static int ended(call *own, const view *given) {
  int64_t begin = litegpu_now();
  if (own->look != NULL && *own->not_finite) return NOT_FINITE;
  for (int i = 0; i < own->watched_count; i++) {
    if (!is_finite(&own->watched[i])) return NOT_FINITE;
  }
  for (int i = 0; i < own->outputs_count; i++) {
    const port *one = &own->outputs[i];
    if (one->place == 0) memcpy(given[own->inputs_count + i].data, one->memory, one->bytes);
  }
  own->read = litegpu_now() - begin;
  return DONE;
}

/* With Python's lock: the arrays' memory. Whether all of them are plain memory of the right size. */
static int viewed(const call *own, object *const *arrays, view *views, int *count) {
  for (int i = 0; i < own->inputs_count + own->outputs_count; i++) {
    int output = i >= own->inputs_count;
    const port *one = output ? &own->outputs[i - own->inputs_count] : &own->inputs[i];
    views[i].data = NULL;
    *count = i;
    if (!output && arrays[i] == python.none) {
      views[i].owner = NULL;
      continue;
    }
    if (python.get_buffer(arrays[i], &views[i], output ? WRITABLE : 0) != 0) {
      python.clear();
      return 0;
    }
    *count = i + 1;
    if ((size_t)views[i].bytes != one->bytes) return 0;
  }
  *count = own->inputs_count + own->outputs_count;
  return 1;
}

/* Nanoseconds: as many as the quicker one of the last two inferences took. A thread's first one after it has slept takes
   longer than those after it, and would end its turn. */
PUBLIC int64_t litegpu_call_expected(call *own) {
  int64_t last = own->wrote + own->submitted + own->waited + own->read, before = own->before;
  own->before = last;
  return 0 < before && before < last ? before : last;
}

static object *called(object *self, object *const *arrays, ptrdiff_t count, int first) {
  call *own = python.as_pointer(self);
  view views[MOST];
  int held = 0, result = NOT_TAKEN;
  if (own != NULL && count == own->inputs_count + own->outputs_count && count <= MOST &&
      viewed(own, arrays, views, &held)) {
    void *state = first && litegpu_keep(litegpu_call_expected(own)) ? NULL : litegpu_leave(), *popped;
    int error = own->push(own->context);
    if (error == SUCCESS) {
      if (first) error = begun(own, views);
      int lent = error == SUCCESS && state == NULL && litegpu_lend(own->waited);
      if (error == SUCCESS) error = waited(own, &state, lent);
      own->pop(&popped);
    }
    result = error == NOT_READY ? NOT_DONE : error != SUCCESS ? -error : ended(own, views);
    if (state != NULL) litegpu_come_back(state);
  }
  for (int i = 0; i < held; i++) {
    if (views[i].owner != NULL) python.release_buffer(&views[i]);
  }
  return python.from_long(result);
}

static object *all(object *self, object *const *arrays, ptrdiff_t count) { return called(self, arrays, count, 1); }

static object *rest(object *self, object *const *arrays, ptrdiff_t count) { return called(self, arrays, count, 0); }

enum { FASTCALL = 0x80 };

static struct definition all_definition = {"all", (void *)all, FASTCALL, NULL};
static struct definition rest_definition = {"rest", (void *)rest, FASTCALL, NULL};

/* A function of Python's: of the arrays of the inputs (None: what the pinned memory has), then of those for the outputs,
   which does all of an inference, or what there is to do after it was waited for elsewhere; it gives what the call comes
   to. `own` outlives it. */
PUBLIC object *litegpu_call(call *own, int first) {
  object *self = python.from_pointer(own), *made;
  if (self == NULL) return NULL;
  made = python.new_function(first ? &all_definition : &rest_definition, self, NULL);
  python.decref(self);
  return made;
}

PUBLIC size_t litegpu_call_size(void) { return sizeof(call); }
