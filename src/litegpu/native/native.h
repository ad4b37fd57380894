/* What the library's own sources share. */

#ifndef LITEGPU_NATIVE_H
#define LITEGPU_NATIVE_H

#include "baton.h"

/* Python's functions, as no header of Python's is needed then and one library serves every version. */
struct python {
  void *(*save)(void);     /* PyEval_SaveThread */
  void (*restore)(void *); /* PyEval_RestoreThread */
};

extern struct python python;

/* As library.py gets to know it: `processors` that this process may use. Once more in the child of a fork, where the
   threads of the parent do not wait. */
void litegpu_baton_start(int processors);

/* The same for copies. */
void litegpu_copy_start(void);

/* How often a thread asked Python after it had waited; asked, as one turn lasted long; fell asleep; let others in. */
enum { ASKED, STOLEN, SLEPT, RESTED, COUNTS };

#endif
