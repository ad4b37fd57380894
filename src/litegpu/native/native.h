/* What the library's own sources share. */

#ifndef LITEGPU_NATIVE_H
#define LITEGPU_NATIVE_H

#include "baton.h"

#include <stddef.h>
#include <stdint.h>

typedef struct object object; /* a PyObject */

/* A PyMethodDef. */
struct definition { const char *name; void *function; int flags; const char *text; };

/* Python's functions, as no header of Python's is needed then and one library serves every version. */
struct python {
  void *(*save)(void);     /* PyEval_SaveThread */
  void (*restore)(void *); /* PyEval_RestoreThread */
  int (*get_buffer)(object *, void *, int);
  void (*release_buffer)(void *);
  void (*clear)(void); /* PyErr_Clear */
  object *(*from_long)(long);
  object *(*from_pointer)(void *);
  void *(*as_pointer)(object *);
  object *(*new_function)(struct definition *, object *, object *); /* PyCFunction_NewEx */
  void (*decref)(object *);
  object *none;
};

extern struct python python;

/* memcpy(), of memory that the device reads next. */
void litegpu_stage(void *to, const void *from, size_t bytes);

/* The same with so many bytes of float32, of which float16 is made, to the nearest: whether some of them are infinite
   there. litegpu_rounds() says whether that can be done here. */
int litegpu_stage_rounded(void *to, const void *from, size_t bytes);
PUBLIC int litegpu_rounds(void);

/* The one or the other, by several threads where that is quicker. */
void litegpu_stage_large(void *to, const void *from, size_t bytes, int rounded);

/* As cuMemcpyHtoDAsync: device address, host address, bytes, stream; 0 if that worked. */
typedef int (*send_function)(uint64_t, const void *, size_t, void *);

/* The same, piece by piece on to `device`, each as soon as it is there; what `send` answered first that was not 0. */
int litegpu_send_large(void *to, const void *from, size_t bytes, int rounded, send_function send, uint64_t device,
                       void *stream);

/* As loading.py gets to know it: `processors` that this process may use. Once more in the child of a fork, where the
   threads of the parent do not wait. */
void litegpu_baton_start(int processors);

/* The same for copies. */
void litegpu_copy_start(int processors);

/* How often a thread asked Python after it had waited; asked, as one turn lasted long; fell asleep; let others in; lent the
   turn. */
enum { ASKED, STOLEN, SLEPT, RESTED, LENT, COUNTS };

#endif
