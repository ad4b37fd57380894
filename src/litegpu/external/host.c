/* The official runtime's external-delegate entry points, in front of Python functions.

   Nothing is decided here. The runtime calls; Python, which litegpu_start() got to know, answers; and what Python asks
   of the runtime goes through the litegpu_... functions. Python's C API is given as pointers, so that no header of
   Python's is needed and one library serves every version. The runtime's structures are declared as far as they are
   used; layout.py tries them against the installed runtime, in a process of its own, before they are trusted. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define PUBLIC __declspec(dllexport)
#else
#define PUBLIC __attribute__((visibility("default")))
#endif

/* ------------------------------------------------------------------------------------------ the runtime's structures */

enum { OK = 0, ERROR = 1 };
enum { IN_ARENA = 2 }; /* allocation_type */
enum { ALLOW_DYNAMIC_TENSORS = 1 };

typedef struct { int size; int data[]; } int_array;

typedef struct tensor {
  int type;
  void *data;
  int_array *dims;
  struct { float scale; int32_t zero_point; } old_quantization;
  int allocation_type;
  size_t bytes;
  const void *allocation;
  const char *name;
  struct delegate *delegate;
  int buffer_handle;
  bool data_is_stale, is_variable;
  struct { int type; void *params; } quantization;
  void *sparsity;
  const int_array *dims_signature;
} tensor;

typedef struct node {
  int_array *inputs, *outputs, *intermediates, *temporaries;
  void *user_data, *builtin_data;
  const void *custom_initial_data;
  int custom_initial_data_size;
  struct delegate *delegate;
  bool might_have_side_effect;
} node;

struct context;

typedef struct registration {
  void *(*init)(struct context *, const char *, size_t);
  void (*free)(struct context *, void *);
  int (*prepare)(struct context *, node *);
  int (*invoke)(struct context *, node *);
  const char *(*profiling_string)(const struct context *, const node *);
  int32_t builtin_code;
  const char *custom_name;
  int version;
  void *registration_external;
  void *async_kernel;
  uint64_t inplace_operator;
} registration;

typedef struct params {
  struct delegate *delegate;
  int_array *nodes, *inputs, *outputs;
} params;

typedef struct context {
  size_t tensors_size;
  int (*GetExecutionPlan)(struct context *, int_array **);
  tensor *tensors;
  void *impl;
  int (*ResizeTensor)(struct context *, tensor *, int_array *);
  void (*ReportError)(struct context *, const char *, ...);
  int (*AddTensors)(struct context *, int, int *);
  int (*GetNodeAndRegistration)(struct context *, int, node **, registration **);
  int (*ReplaceNodeSubsetsWithDelegateKernels)(struct context *, registration, const int_array *, struct delegate *);
  int recommended_num_threads;
  void *(*GetExternalContext)(struct context *, int);
  void (*SetExternalContext)(struct context *, int, void *);
  bool allow_fp32_relax_to_fp16;
  void *profiler;
  void *(*AllocatePersistentBuffer)(struct context *, size_t);
  int (*AllocateBufferForEval)(struct context *, size_t, void **);
  int (*RequestScratchBufferInArena)(struct context *, size_t, int *);
  void *(*GetScratchBuffer)(struct context *, int);
  int (*ResizeTensorExplicit)(struct context *, tensor *, int, const int *);
  int (*PreviewDelegatePartitioning)(struct context *, const int_array *, params **, int *);
} context;

typedef struct delegate {
  void *data;
  int (*Prepare)(struct context *, struct delegate *);
  void *CopyFromBufferHandle, *CopyToBufferHandle, *FreeBufferHandle;
  int64_t flags;
  void *opaque_delegate_builder;
} delegate;

/* -------------------------------------------------------------------------------------------------- Python's functions */

typedef struct object object; /* a PyObject */

static struct python {
  int (*ensure)(void);
  void (*release)(int);
  object *(*call_nothing)(object *);
  object *(*call_one)(object *, object *);
  object *(*from_pointer)(void *);
  const char *(*as_text)(object *);
  int (*is_callable)(object *);
  void (*incref)(object *);
  void (*decref)(object *);
  void (*fetch)(object **, object **, object **);
  void (*restore)(object *, object *, object *);
  int (*add_pending)(int (*)(void *), void *);
  object *none;
  object *create; /* address of a `creation` -> a function that prepares graphs, or a text: what is wrong */
  object *finalizing; /* -> None, or something else where Python prints and drops what is raised */
} python;

static volatile int started = 0;

/* The arguments of tflite_plugin_create_delegate(). */
typedef struct creation { char **keys, **values; size_t count; } creation;

/* A delegate of ours. `prepare` takes the address of a `preparation` and gives None or a text. */
typedef struct { delegate head; object *prepare; } own_delegate;

typedef struct preparation { context *context; delegate *delegate; } preparation;

/* A partition: its inputs, then its outputs. Tensors that the runtime plans itself, in its arena, may be `lent` memory
   of the kernel's own, so that nothing is copied: inputs from the first inference on, outputs after each. */
typedef struct kernel {
  int count, inputs, first;
  bool taken;
  int *tensors;
  void **memory; /* of inputs, where the runtime had them at the last bind; of lent tensors, where it has room for them */
  void **lent;   /* written by Python; NULL: of inputs, none is lent, of outputs, there is nothing yet */
  context *context;
  object *prepare, *bind, *invoke, *close;
} kernel;

/* What litegpu_replace() of this thread offers to kernel_init(), which the runtime calls in between. */
static _Thread_local struct { kernel **made; int count; } offered;

/* Not in a finalizer, which the garbage collector may happen to run in between, but as soon as that has ended. */
static int raise_later(void *box) {
  object **carried = box, *finalizing = python.call_nothing(python.finalizing);
  bool waits = finalizing != NULL && finalizing != python.none;
  if (finalizing != NULL) python.decref(finalizing);
  if (waits && python.add_pending(raise_later, box) == 0) return 0;
  python.restore(carried[0], carried[1], carried[2]);
  free(carried);
  return -1;
}

/* What came through Python's own handlers, such as Ctrl-C in the first instruction of a function: type, value, trace. */
static _Thread_local object *error[3];

static void interrupted(void) {
  for (int i = 0; i < 3; i++) {
    if (error[i] != NULL) python.decref(error[i]);
  }
  python.fetch(&error[0], &error[1], &error[2]);
}

/* Gives Python's lock back. What interrupted is raised in the main thread as soon as the runtime has returned to it: the
   runtime itself knows nothing but statuses. Not before the very end, as other functions of Python's that are called
   here would swallow it. */
static void leave(int state) {
  if (error[0] != NULL) {
    object **box = calloc(3, sizeof *box);
    if (box != NULL) {
      memcpy(box, error, sizeof error);
      if (python.add_pending(raise_later, box) != 0) free(box);
    }
    memset(error, 0, sizeof error);
  }
  python.release(state);
}

/* Calls with an address, or with nothing if that is NULL. A new reference, or NULL after an interruption. */
static object *call(object *function, void *argument) {
  object *result = NULL, *boxed = NULL;
  if (argument == NULL) {
    result = python.call_nothing(function);
  } else if ((boxed = python.from_pointer(argument)) != NULL) {
    result = python.call_one(function, boxed);
    python.decref(boxed);
  }
  if (result == NULL) interrupted();
  return result;
}

static const char *text_of(object *result) {
  const char *text = result == NULL ? "it was interrupted" : python.as_text(result);
  return text == NULL ? "a text that is no text" : text;
}

/* The status of a function that gives None, or a text, which is reported. With Python's lock held. */
static int status(context *context, object *function, void *argument) {
  int found = ERROR;
  object *result = call(function, argument);
  if (result == python.none) {
    found = OK;
  } else {
    context->ReportError(context, "litegpu: %s\n", text_of(result));
  }
  if (result != NULL) python.decref(result);
  return found;
}

static int ended(context *context) {
  context->ReportError(context, "litegpu: Python has ended\n");
  return ERROR;
}

/* ----------------------------------------------------------------------------------------------------------- kernels */

static void *kernel_init(context *context, const char *buffer, size_t length) {
  const params *given = (const params *)(const void *)buffer;
  (void)context, (void)length;
  for (int i = 0; i < offered.count; i++) {
    kernel *one = offered.made[i];
    if (!one->taken && given->nodes->size > 0 && given->nodes->data[0] == one->first) {
      int state = python.ensure();
      python.incref(one->prepare), python.incref(one->bind), python.incref(one->invoke), python.incref(one->close);
      leave(state);
      one->taken = true;
      return one;
    }
  }
  return NULL;
}

static void lend(kernel *own, int i) {
  tensor *one = &own->context->tensors[own->tensors[i]];
  if (own->lent[i] == NULL || one->data == own->lent[i]) return;
  if (one->allocation_type == IN_ARENA) {
    own->memory[i] = one->data;
    one->data = own->lent[i];
  } else if (i >= own->inputs && one->data != NULL) {
    memcpy(one->data, own->lent[i], one->bytes);
  }
}

/* The tensors are the runtime's own again: in a process that was forked, where the lent memory is perhaps out of reach,
   and when the kernel ends. */
PUBLIC void litegpu_reclaim(kernel *own) {
  for (int i = 0; own->context != NULL && i < own->count; i++) {
    tensor *one = &own->context->tensors[own->tensors[i]];
    if (own->lent[i] != NULL && one->data == own->lent[i]) one->data = own->memory[i];
    own->lent[i] = own->memory[i] = NULL; /* to be bound again */
  }
}

static int kernel_prepare(context *context, node *node) {
  kernel *own = node->user_data;
  if (!started) return ended(context);
  if (own == NULL) return ERROR;
  int state = python.ensure();
  own->context = context;
  int found = status(context, own->prepare, context);
  leave(state);
  return found;
}

static int kernel_invoke(context *context, node *node) {
  kernel *own = node->user_data;
  bool moved = false;
  if (!started) return ended(context);
  own->context = context;
  for (int i = 0; i < own->inputs; i++) {
    void *data = context->tensors[own->tensors[i]].data;
    if (data != (own->lent[i] != NULL ? own->lent[i] : own->memory[i])) moved = true;
  }
  int state = python.ensure(), found = OK;
  if (moved) {
    for (int i = 0; i < own->inputs; i++) own->memory[i] = context->tensors[own->tensors[i]].data;
    if ((found = status(context, own->bind, NULL)) == OK) {
      for (int i = 0; i < own->inputs; i++) lend(own, i);
    } else {
      for (int i = 0; i < own->inputs; i++) own->memory[i] = own->lent[i] = NULL; /* to bind again */
    }
  }
  if (found == OK) found = status(context, own->invoke, NULL);
  for (int i = own->inputs; found == OK && i < own->count; i++) lend(own, i);
  leave(state);
  return found;
}

/* One that the runtime did not take. */
PUBLIC void litegpu_kernel_free(kernel *own) {
  free(own->tensors), free(own->memory), free(own->lent);
  free(own);
}

static void kernel_free(context *context, void *buffer) {
  kernel *own = buffer;
  (void)context;
  if (own == NULL) return;
  litegpu_reclaim(own);
  if (started) {
    int state = python.ensure();
    object *result = call(own->close, NULL);
    if (result != NULL) python.decref(result);
    python.decref(own->prepare), python.decref(own->bind), python.decref(own->invoke), python.decref(own->close);
    leave(state);
  }
  litegpu_kernel_free(own);
}

/* A partition whose first node is `first`, with `count` tensors, of which `inputs` are inputs. prepare(address of the
   context), bind(), after inputs have moved, and invoke() give None or a text; close() comes last. They are Python's
   until the runtime takes the kernel. NULL if there is no memory. */
PUBLIC kernel *litegpu_kernel_new(int first, int count, int inputs, const int *tensors, object *prepare, object *bind,
                                  object *invoke, object *close) {
  kernel *own = calloc(1, sizeof *own);
  if (own == NULL) return NULL;
  own->tensors = calloc((size_t)count + 1, sizeof *own->tensors);
  own->memory = calloc((size_t)count + 1, sizeof *own->memory);
  own->lent = calloc((size_t)count + 1, sizeof *own->lent);
  if (own->tensors == NULL || own->memory == NULL || own->lent == NULL) {
    free(own->tensors), free(own->memory), free(own->lent), free(own);
    return NULL;
  }
  memcpy(own->tensors, tensors, (size_t)count * sizeof *tensors);
  own->first = first, own->count = count, own->inputs = inputs;
  own->prepare = prepare, own->bind = bind, own->invoke = invoke, own->close = close;
  return own;
}

/* ------------------------------------------------------------------------------- what Python asks of the runtime */

typedef struct { void *data; const char *name; int *shape; size_t bytes; int rank, type, allocation, variable; } told_tensor;

typedef struct {
  int *inputs, *outputs;
  const char *custom;
  int inputs_count, outputs_count, code, delegated;
} told_node;

typedef struct { int *nodes, *inputs, *outputs; int nodes_count, inputs_count, outputs_count; } told_subset;

static int count_of(const int_array *list) { return list == NULL ? 0 : list->size; }

static int *data_of(int_array *list) { return list == NULL ? NULL : list->data; }

static int_array *list_of(int count, const int *values) {
  int_array *list = malloc(sizeof *list + (size_t)count * sizeof *values);
  if (list == NULL) return NULL;
  list->size = count;
  memcpy(list->data, values, (size_t)count * sizeof *values);
  return list;
}

/* A function of the runtime's, which tells whose runtime this is. */
PUBLIC void *litegpu_runtime(context *context) { return (void *)(uintptr_t)context->GetExecutionPlan; }

PUBLIC size_t litegpu_tensors_count(context *context) { return context->tensors_size; }

PUBLIC int litegpu_threads(context *context) { return context->recommended_num_threads; }

PUBLIC void litegpu_tensor(context *context, int index, told_tensor *told) {
  tensor *one = &context->tensors[index];
  *told = (told_tensor){one->data, one->name, data_of(one->dims), one->bytes, count_of(one->dims), one->type,
                        one->allocation_type, one->is_variable};
}

/* The nodes in the order in which they run: their number, and at most `room` of them in `plan`; -1: refused. */
PUBLIC int litegpu_plan(context *context, int *plan, int room) {
  int_array *list = NULL;
  if (context->GetExecutionPlan(context, &list) != OK) return -1;
  for (int i = 0; i < list->size && i < room; i++) plan[i] = list->data[i];
  return list->size;
}

PUBLIC int litegpu_node(context *context, int index, told_node *told) {
  node *one = NULL;
  registration *how = NULL;
  if (context->GetNodeAndRegistration(context, index, &one, &how) != OK) return ERROR;
  *told = (told_node){data_of(one->inputs), data_of(one->outputs), how->custom_name, count_of(one->inputs),
                      count_of(one->outputs), how->builtin_code, one->delegate != NULL};
  return OK;
}

/* Into which partitions the runtime would put these nodes: their number, and at most `room` of them; -1: refused. They
   are the runtime's until the next such question. */
PUBLIC int litegpu_preview(context *context, int count, const int *nodes, told_subset *told, int room) {
  int_array *list = list_of(count, nodes);
  params *found = NULL;
  int number = 0;
  if (list == NULL) return -1;
  int result = context->PreviewDelegatePartitioning(context, list, &found, &number);
  free(list);
  if (result != OK) return -1;
  for (int i = 0; i < number && i < room; i++) {
    params *one = &found[i];
    told[i] = (told_subset){data_of(one->nodes), data_of(one->inputs), data_of(one->outputs),
                            count_of(one->nodes), count_of(one->inputs), count_of(one->outputs)};
  }
  return number;
}

/* Have these nodes run by these kernels, which the runtime frees if they are `taken`. */
PUBLIC int litegpu_replace(context *context, delegate *own, int count, const int *nodes, kernel **made, int kernels) {
  registration how = {.init = kernel_init, .free = kernel_free, .prepare = kernel_prepare, .invoke = kernel_invoke,
                      .custom_name = "litegpu", .version = 1};
  int_array *list = list_of(count, nodes);
  if (list == NULL) return ERROR;
  offered.made = made, offered.count = kernels;
  int result = context->ReplaceNodeSubsetsWithDelegateKernels(context, how, list, own);
  offered.made = NULL, offered.count = 0;
  free(list);
  return result;
}

PUBLIC int litegpu_taken(const kernel *own) { return own->taken; }

PUBLIC void **litegpu_memory(const kernel *own) { return own->memory; }

PUBLIC void **litegpu_lent(const kernel *own) { return own->lent; }

PUBLIC int litegpu_resize(context *context, int index, int rank, const int *shape) {
  int_array *list = list_of(rank, shape); /* the runtime's from now on, which frees it as C's memory */
  return list == NULL ? ERROR : context->ResizeTensor(context, &context->tensors[index], list);
}

/* Begin, with `functions` of this size, or (NULL) end: what the runtime then still frees is left to the process. */
PUBLIC int litegpu_start(const struct python *functions, size_t size) {
  if (functions == NULL) {
    started = 0;
    return OK;
  }
  if (size != sizeof python) return ERROR;
  if (!started) python = *functions;
  started = 1;
  return OK;
}

/* --------------------------------------------------------------------------------------------------------- delegates */

static int delegate_prepare(context *context, delegate *own) {
  preparation about = {context, own};
  if (!started) return ended(context);
  int state = python.ensure();
  int found = status(context, ((own_delegate *)own)->prepare, &about);
  leave(state);
  return found;
}

PUBLIC void tflite_plugin_destroy_delegate(delegate *own) {
  if (own == NULL) return;
  if (started) {
    int state = python.ensure();
    python.decref(((own_delegate *)own)->prepare);
    leave(state);
  }
  free(own);
}

PUBLIC delegate *tflite_plugin_create_delegate(char **keys, char **values, size_t count, void (*report)(const char *)) {
  if (!started) {
    if (report != NULL) report("litegpu: this library works in a Python process that has called "
                               "litegpu.external_delegate_path()");
    return NULL;
  }
  own_delegate *own = calloc(1, sizeof *own);
  if (own == NULL) return NULL;
  creation about = {keys, values, (uint32_t)count}; /* Python's official loader gives an int */
  int state = python.ensure();
  object *result = call(python.create, &about);
  if (result != NULL && python.is_callable(result)) {
    own->prepare = result;
    own->head.Prepare = delegate_prepare;
    own->head.flags = ALLOW_DYNAMIC_TENSORS; /* sizes that only a run decides are left to the runtime's own nodes */
  } else {
    if (report != NULL) report(text_of(result));
    if (result != NULL) python.decref(result);
    free(own);
    own = NULL;
  }
  leave(state);
  return own == NULL ? NULL : &own->head;
}
