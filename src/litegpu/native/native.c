/* What library.py calls at the beginning, and what tests and benchmarks ask. */

#include "native.h"

#include <stddef.h>

struct python python;

PUBLIC int litegpu_start(const struct python *functions, size_t size, int processors) {
  if (size != sizeof python) return 1;
  python = *functions;
  litegpu_baton_start(processors);
  litegpu_copy_start();
  return 0;
}

/* Let go of Python's lock and compute for so many nanoseconds, as a native call does. With Python's lock held. */
PUBLIC void litegpu_work(int64_t nanoseconds) {
  void *state = litegpu_leave();
  int64_t begin = litegpu_now();
  while (litegpu_now() - begin < nanoseconds) litegpu_relax();
  litegpu_come_back(state);
}
