/* What stands for a GPU's driver where a batcher's native code is tested: the device's memory is the host's, a graph is
   a function of the test's, and a stream is ready after so many questions. */

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define PUBLIC __attribute__((visibility("default")))

/* `begun` and `done`: how many graphs; `behind` another stream, until so many are done there. */
typedef struct stream {
  volatile int64_t left;
  volatile uint32_t *place;
  uint32_t value, begun, done, until;
  struct stream *behind;
} stream;
typedef struct event { stream *of; uint32_t begun; } event;
typedef struct graph { int (*launch)(void); } graph;

PUBLIC int push(void *context) { return context == NULL; }
PUBLIC int pop(void **context) { return *context = NULL, 0; }
PUBLIC int launch(graph *g, stream *s) { return s->begun++, g->launch(); }

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int asked(stream *s) {
  if (s->behind && s->behind->done < s->until && asked(s->behind)) return 600;
  s->behind = NULL;
  if (s->left > 0) return s->left--, 600;
  s->done = s->begun;
  if (s->place) *s->place = s->value;
  return s->place = NULL, 0;
}

/* What is written comes when the stream is ready. */
PUBLIC int query(stream *s) {
  pthread_mutex_lock(&lock);
  const int found = asked(s);
  pthread_mutex_unlock(&lock);
  return found;
}

PUBLIC int write_number(stream *s, uint64_t place, uint32_t value, unsigned flags) {
  pthread_mutex_lock(&lock);
  s->place = (volatile uint32_t *)(uintptr_t)place, s->value = value;
  if (s->left == 0) asked(s);
  pthread_mutex_unlock(&lock);
  return (int)flags;
}

/* What is behind a stream that is not ready is not either. */
PUBLIC int wait_event(stream *s, const event *e, unsigned flags) {
  pthread_mutex_lock(&lock);
  s->behind = e->of, s->until = e->begun;
  pthread_mutex_unlock(&lock);
  return (int)flags;
}

PUBLIC int record_event(event *e, stream *s) { return e->of = s, e->begun = s->begun, 0; }

PUBLIC int copy_in(uint64_t device, const void *host, size_t bytes, stream *s) {
  memcpy((void *)(uintptr_t)device, host, bytes);
  return (void)s, 0;
}

PUBLIC int copy_out(void *host, uint64_t device, size_t bytes, stream *s) {
  memcpy(host, (const void *)(uintptr_t)device, bytes);
  return (void)s, 0;
}

PUBLIC int fill(uint64_t device, unsigned char value, size_t bytes, stream *s) {
  memset((void *)(uintptr_t)device, value, bytes);
  return (void)s, 0;
}
