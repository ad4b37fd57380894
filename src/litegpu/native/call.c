/* One inference of a session whose inputs and outputs are plain arrays, without Python's lock: inputs to pinned memory,
   the session's graph, a wait that is short, outputs from there. call.py says what it stands for. */

#include "native.h"

#include <stddef.h>
#include <string.h>
#include <time.h>

/* CUDA's */
enum { SUCCESS = 0, NOT_READY = 600 };

/* What a call comes to, besides errors of CUDA, which are given as their numbers below zero. */
enum { DONE, NOT_DONE, NOT_FINITE, NOT_TAKEN };

/* An input or output. `memory`: pinned, of the session's. `place`: of an output that the device is to copy to the
   caller's array, which is pinned, where that is on the device; else 0. */
typedef struct port { void *memory; size_t bytes; uint64_t place; } port;

typedef struct floats { const uint32_t *first; size_t count; } floats;

typedef struct call {
  int (*push)(void *), (*pop)(void **), (*launch)(void *, void *), (*query)(void *);
  int (*copy_out)(void *, uint64_t, size_t, void *);
  void *context, *graph, *stream;
  void *look; /* a graph that writes to `not_finite` whether outputs on the device are; NULL: there is none to look at */
  volatile uint32_t *not_finite;
  const port *inputs, *outputs;
  const floats *watched; /* results in the session's memory that are looked at */
  int inputs_count, outputs_count, watched_count;
  int64_t spin; /* nanoseconds that a wait lasts at the most */
  /* Nanoseconds of the last inference: to copy inputs, to launch, to wait, to copy outputs. */
  int64_t wrote, submitted, waited, read;
} call;

/* The head of a Py_buffer, which is part of Python's stable ABI, with room for the rest. */
typedef struct view { void *data; void *owner; ptrdiff_t bytes; void *rest[12]; } view;

enum { WRITABLE = 1 };
enum { MOST = 32 };

static int is_finite(const floats *values) {
  uint32_t found = 0;
  for (size_t i = 0; i < values->count; i++) found |= (values->first[i] & 0x7f800000u) == 0x7f800000u;
  return !found;
}

static int waited(call *own) {
  int64_t begin = litegpu_now(), now = begin;
  int awake = litegpu_awake(), error;
  while ((error = own->query(own->stream)) == NOT_READY && (now = litegpu_now()) - begin < own->spin) {
    if (awake) {
      litegpu_relax();
    } else {
      struct timespec pause = {0, 20000};
      nanosleep(&pause, NULL);
    }
  }
  if (awake) litegpu_sleepy();
  own->waited = litegpu_now() - begin;
  return error;
}

static int begun(call *own, const view *given) {
  int64_t begin = litegpu_now(), copied;
  for (int i = 0; i < own->inputs_count; i++) {
    if (given[i].data != NULL) memcpy(own->inputs[i].memory, given[i].data, own->inputs[i].bytes);
  }
  own->wrote = (copied = litegpu_now()) - begin;
  if (own->look != NULL) *own->not_finite = 0;
  int error = own->launch(own->graph, own->stream);
  if (error == SUCCESS && own->look != NULL) error = own->launch(own->look, own->stream);
  for (int i = 0; error == SUCCESS && i < own->outputs_count; i++) {
    const port *one = &own->outputs[i];
    if (one->place == 0) continue;
    error = own->copy_out(given[own->inputs_count + i].data, one->place, one->bytes, own->stream);
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

static object *called(object *self, object *const *arrays, ptrdiff_t count, int first) {
  call *own = python.as_pointer(self);
  view views[MOST];
  int held = 0, result = NOT_TAKEN;
  if (own != NULL && count == own->inputs_count + own->outputs_count && count <= MOST &&
      viewed(own, arrays, views, &held)) {
    void *state = litegpu_leave(), *popped;
    int error = own->push(own->context);
    if (error == SUCCESS) {
      if (first) error = begun(own, views);
      if (error == SUCCESS) error = waited(own);
      own->pop(&popped);
    }
    result = error == NOT_READY ? NOT_DONE : error != SUCCESS ? -error : ended(own, views);
    litegpu_come_back(state);
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
