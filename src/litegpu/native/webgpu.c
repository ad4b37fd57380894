/* An inference of WebGPU, encoded and awaited with a call of Python's each, where Python makes three calls for each
   dispatch and one for each question whether it is done, and lets go of its lock for each of them. The types are those
   of webgpu.h, as far as they matter here. */

#include "native.h"

#include <stdatomic.h>
#include <stddef.h>

/* Of the WebGPU library, in the order of _FUNCTIONS in gpu/backends/webgpu/quick.py. */
struct functions {
  void *(*create_encoder)(void *device, const void *descriptor);
  void *(*begin_pass)(void *encoder, const void *descriptor);
  void (*set_pipeline)(void *pass, void *pipeline);
  void (*set_bind_group)(void *pass, uint32_t index, void *group, size_t count, const uint32_t *offsets);
  void (*dispatch)(void *pass, uint32_t x, uint32_t y, uint32_t z);
  void (*end)(void *pass);
  void (*release_pass)(void *pass);
  void (*copy)(void *encoder, void *source, uint64_t from, void *target, uint64_t to, uint64_t size);
  uint32_t (*poll)(void *device, uint32_t wait, const uint64_t *submission);
};

struct step {
  void *pipeline, *group;
  uint32_t x, y, z, unused;
};

struct copy {
  uint64_t source, target, size;
};

struct inference {
  void *device, *arena, *upload, *download;
  const struct copy *uploads;
  const struct step *steps;
  const struct copy *downloads;
  int64_t upload_count, step_count, download_count;
};

/* An encoder with the commands of one inference. Errors are told to Python by the WebGPU library. */
PUBLIC void *litegpu_webgpu_encode(const struct functions *call, const struct inference *all) {
  void *state = litegpu_leave();
  void *encoder = call->create_encoder(all->device, NULL), *current = NULL;
  for (int64_t i = 0; i < all->upload_count; i++) {
    const struct copy *one = &all->uploads[i];
    call->copy(encoder, all->upload, one->source, all->arena, one->target, one->size);
  }
  if (all->step_count) {
    void *pass = call->begin_pass(encoder, NULL);
    for (int64_t i = 0; i < all->step_count; i++) {
      const struct step *one = &all->steps[i];
      if (one->pipeline != current) call->set_pipeline(pass, current = one->pipeline);
      call->set_bind_group(pass, 0, one->group, 0, NULL);
      call->dispatch(pass, one->x, one->y, one->z);
    }
    call->end(pass);
    call->release_pass(pass);
  }
  for (int64_t i = 0; i < all->download_count; i++) {
    const struct copy *one = &all->downloads[i];
    call->copy(encoder, all->arena, one->source, all->download, one->target, one->size);
  }
  litegpu_come_back(state);
  return encoder;
}

/* Buffers whose mapping was asked for. */
struct answers {
  _Atomic int64_t count; /* that were answered */
  _Atomic int64_t wrong; /* of these */
};

struct text {
  const char *data;
  size_t length;
};

/* The callback of such a request; `answers` outlives it. */
PUBLIC void litegpu_webgpu_mapped(uint32_t status, struct text message, void *answers, void *unused) {
  struct answers *all = answers;
  (void)message, (void)unused;
  if (status != 1) atomic_fetch_add(&all->wrong, 1);
  atomic_fetch_add(&all->count, 1);
}

/* Wait awake, for so many nanoseconds at most, until `count` are answered. Of the threads that wait for one device one
   asks it at a time: `asking` is theirs. */
PUBLIC void litegpu_webgpu_await(
    const struct functions *call, void *device, _Atomic int32_t *asking, struct answers *answers, int64_t count,
    int64_t nanoseconds) {
  void *state = litegpu_leave();
  for (int64_t end = litegpu_now() + nanoseconds; atomic_load(&answers->count) < count;) {
    if (atomic_exchange(asking, 1) == 0) {
      call->poll(device, 0, NULL);
      atomic_store(asking, 0);
    } else {
      for (int i = 0; i < 32; i++) litegpu_relax();
    }
    if (litegpu_now() >= end) break;
  }
  litegpu_come_back(state);
}
