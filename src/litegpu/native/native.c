/* What loading.py calls at the beginning, and what tests and benchmarks ask. */

#include "native.h"

#include <stddef.h>

struct python python;

PUBLIC int litegpu_start(const struct python *functions, size_t size, int processors) {
  if (size != sizeof python) return 1;
  python = *functions;
  litegpu_baton_start(processors);
  litegpu_copy_start(processors);
  return 0;
}

/* Wait awake for so many nanoseconds, as a native call does for the device: without Python's lock, or with it if `keeps`
   and turns allow; `lends`: another one may have it meanwhile. With Python's lock held. */
PUBLIC void litegpu_work(int64_t nanoseconds, int keeps, int lends) {
  void *state = keeps && litegpu_keep(nanoseconds) ? NULL : litegpu_leave();
  int64_t begin = litegpu_now();
  if (state == NULL && lends) litegpu_lend(nanoseconds);
  while (litegpu_now() - begin < nanoseconds) litegpu_relax();
  if (state != NULL) litegpu_come_back(state);
}
