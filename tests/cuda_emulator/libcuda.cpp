// A libcuda without a GPU: memory is the host's, streams do everything at once, graphs keep a list of what was
// captured, and modules are shared libraries for the host (the image of a module is the path of one). What a test could
// do wrong with the real driver is refused: no current context, unknown handles, memory that was not allocated.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

typedef int CUresult;
typedef void* Handle;
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, INVALID_IMAGE = 200,
       INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_PERMITTED = 800, CAPTURE_INVALID = 901 };
typedef std::vector<std::function<CUresult()>> Work;

namespace {
std::recursive_mutex lock;
thread_local std::vector<Handle> contexts;
char primary;  // its address is the context
std::map<uintptr_t, size_t> device_memory, host_memory;
struct Stream { bool capturing = false; Work captured; unsigned flags; };
struct Graph { Work work; };
struct Event { std::chrono::steady_clock::time_point at; };
struct Function { void (*launch)(void**, const unsigned*, const unsigned*, unsigned); bool* waited; };
struct Module { void* library; std::vector<Function*> functions; };
std::set<Handle> alive, bodies;

bool inside(const std::map<uintptr_t, size_t>& memory, uintptr_t p, size_t n) {
  auto after = memory.upper_bound(p);
  if (after == memory.begin()) return false;
  auto [base, size] = *--after;
  return p + n <= base + size;
}
template <class T> CUresult make(Handle* out, T* made) { alive.insert(made); *out = made; return SUCCESS; }
template <class T> CUresult destroy(Handle h) {
  if (!alive.erase(h)) return INVALID_HANDLE;
  delete (T*)h;
  return SUCCESS;
}
CUresult enqueue(Handle stream, std::function<CUresult()> what) {
  if (uintptr_t(stream) <= 2) return what();
  if (!alive.count(stream)) return INVALID_HANDLE;
  Stream* s = (Stream*)stream;
  if (!s->capturing) return what();
  s->captured.push_back(what);
  return SUCCESS;
}
}  // namespace

#define API extern "C" CUresult
#define IN_CONTEXT std::lock_guard guard(lock); if (contexts.empty() || !contexts.back()) return INVALID_CONTEXT
#define ALIVE(h) if (!alive.count(h)) return INVALID_HANDLE
#define ALIVE_STREAM(s) if (uintptr_t(s) > 2) ALIVE(s)  // 0 to 2 are the default streams

API cuInit(unsigned) { return getenv("CUDA_VISIBLE_DEVICES") && !*getenv("CUDA_VISIBLE_DEVICES") ? 100 : SUCCESS; }
API cuDriverGetVersion(int* v) { *v = getenv("EMULATED_DRIVER") ? atoi(getenv("EMULATED_DRIVER")) : 13000; return SUCCESS; }
API cuDeviceGetCount(int* n) { *n = 2; return SUCCESS; }
API cuDeviceGet(int* d, int i) { *d = i; return i < 2 ? SUCCESS : 101; }
API cuDeviceGetName(char* name, int n, int d) { snprintf(name, n, "Emulated GPU %c", 'A' + d); return SUCCESS; }
API cuDeviceGetUuid(unsigned char* uuid, int d) { for (int i = 0; i < 16; i++) uuid[i] = 16 * d + i; return SUCCESS; }
API cuDeviceTotalMem(size_t* n, int) { *n = size_t(8) << 30; return SUCCESS; }
constexpr int MULTIPROCESSOR_SHARED = 228 << 10, RESERVED_SHARED = 1 << 10;  // bytes; the latter of each workgroup
API cuDeviceGetAttribute(int* v, int which, int) {
  const int capability = getenv("EMULATED_CAPABILITY") ? atoi(getenv("EMULATED_CAPABILITY")) : 90;
  *v = which == 75 ? capability / 10 : which == 76 ? capability % 10 : which == 1 ? 1024 : which == 16 ? 132
     : which == 81 ? MULTIPROCESSOR_SHARED : which == 97 ? MULTIPROCESSOR_SHARED - RESERVED_SHARED : which == 111 ? RESERVED_SHARED : 0;
  return SUCCESS;
}
API cuDevicePrimaryCtxRetain(Handle* c, int) { *c = &primary; return SUCCESS; }
API cuCtxPushCurrent(Handle c) { contexts.push_back(c); return SUCCESS; }
API cuCtxPopCurrent(Handle* c) {
  if (contexts.empty()) return INVALID_CONTEXT;
  *c = contexts.back();
  contexts.pop_back();
  return SUCCESS;
}
API cuCtxGetCurrent(Handle* c) { *c = contexts.empty() ? nullptr : contexts.back(); return SUCCESS; }

// A page that nobody may touch lies right behind device memory, and one in front of the pages that it takes. What is
// freed may not be touched either. ALIGNMENT is what kernels' vectors and bulk copies need, less than a GPU's 256, so
// that little behind the end goes unseen; what is written there, or in front, is seen when the memory is freed.
namespace {
constexpr size_t ALIGNMENT = 16, PAGE = 4096;
constexpr unsigned char UNWRITTEN = 0xa5;
struct sigaction before_us;

size_t pages_of(size_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

void outside(int signal, siginfo_t* info, void* context) {
  uintptr_t at = (uintptr_t)info->si_addr;
  auto after = device_memory.upper_bound(at);
  char text[200];
  if (after != device_memory.begin()) {
    auto [base, size] = *std::prev(after);
    if (at >= base + size && at < base + size + 2 * PAGE) {
      int length = snprintf(text, sizeof text, "emulated GPU: a kernel or copy touches byte %zu of a buffer of %zu\n",
                            size_t(at - base), size);
      if (write(2, text, length)) {}
    }
  }
  if (after != device_memory.end() && after->first - at < 2 * PAGE) {
    int length = snprintf(text, sizeof text, "emulated GPU: a kernel or copy touches %zu bytes before a buffer of %zu\n",
                          size_t(after->first - at), after->second);
    if (write(2, text, length)) {}
  }
  sigaction(signal, &before_us, nullptr);  // the instruction is tried again, and ends the process as it used to
}

bool untouched(const unsigned char* from, const unsigned char* to) {
  while (from < to)
    if (*from++ != UNWRITTEN) return false;
  return true;
}
}  // namespace

API cuMemAlloc(uintptr_t* p, size_t n) {
  IN_CONTEXT;
  if (n > size_t(8) << 30) return OUT_OF_MEMORY;
  if (!n) return INVALID_VALUE;
  static const int watched = [] {
    struct sigaction ours = {};
    ours.sa_sigaction = outside;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    return sigaction(SIGSEGV, &ours, &before_us);
  }();
  const size_t size = pages_of(n);
  char* memory = (char*)mmap(nullptr, size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return OUT_OF_MEMORY;
  if (watched || mprotect(memory + PAGE, size, PROT_READ | PROT_WRITE)) return OUT_OF_MEMORY;
  memset(memory + PAGE, UNWRITTEN, size);
  *p = (uintptr_t)memory + PAGE + size - (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  device_memory[*p] = n;
  return SUCCESS;
}
API cuMemFree(uintptr_t p) {
  IN_CONTEXT;
  auto found = device_memory.find(p);
  if (found == device_memory.end()) return INVALID_VALUE;
  const size_t n = found->second;
  unsigned char *first = (unsigned char*)(p / PAGE * PAGE), *end = first + pages_of(n);
  if (!untouched(first, (unsigned char*)p) || !untouched((unsigned char*)p + n, end)) {
    fprintf(stderr, "emulated GPU: something was written beside a buffer of %zu bytes\n", n);
    abort();
  }
  device_memory.erase(found);
  munmap(first - PAGE, end - first + 2 * PAGE);
  return SUCCESS;
}
API cuMemHostAlloc(void** p, size_t n, unsigned) {
  IN_CONTEXT;
  if (posix_memalign(p, 4096, n)) return OUT_OF_MEMORY;
  memset(*p, 0xa5, n);
  host_memory[(uintptr_t)*p] = n;
  return SUCCESS;
}
API cuMemFreeHost(void* p) {
  IN_CONTEXT;
  if (!host_memory.erase((uintptr_t)p)) return INVALID_VALUE;
  free(p);
  return SUCCESS;
}
API cuMemHostRegister(void* p, size_t n, unsigned) {
  IN_CONTEXT;
  auto after = host_memory.lower_bound((uintptr_t)p);
  if (after != host_memory.end() && after->first < (uintptr_t)p + n) return 712;
  if (inside(host_memory, (uintptr_t)p, 1)) return 712;
  host_memory[(uintptr_t)p] = n;
  return SUCCESS;
}
API cuMemHostUnregister(void* p) {
  IN_CONTEXT;
  return host_memory.erase((uintptr_t)p) ? SUCCESS : 713;
}
API cuMemGetInfo(size_t* free_, size_t* total) { *free_ = size_t(7) << 30; *total = size_t(8) << 30; return SUCCESS; }
API cuMemsetD8Async(uintptr_t p, unsigned char v, size_t n, Handle s) {
  IN_CONTEXT;
  if (!inside(device_memory, p, n)) return INVALID_VALUE;
  return enqueue(s, [=] { memset((void*)p, v, n); return SUCCESS; });
}
API cuStreamWriteValue32(Handle s, uintptr_t p, unsigned v, unsigned) {
  IN_CONTEXT;
  if (!inside(device_memory, p, 4) && !inside(host_memory, p, 4)) return INVALID_VALUE;
  return enqueue(s, [=] { *(unsigned*)p = v; return SUCCESS; });
}
API cuMemcpyHtoDAsync(uintptr_t to, const void* from, size_t n, Handle s) {
  IN_CONTEXT;
  if (!inside(device_memory, to, n)) return INVALID_VALUE;
  return enqueue(s, [=] { memcpy((void*)to, from, n); return SUCCESS; });
}
API cuMemcpyDtoHAsync(void* to, uintptr_t from, size_t n, Handle s) {
  IN_CONTEXT;
  if (!inside(device_memory, from, n) || !inside(host_memory, (uintptr_t)to, n)) return INVALID_VALUE;
  return enqueue(s, [=] { memcpy(to, (void*)from, n); return SUCCESS; });
}
API cuMemcpyDtoDAsync(uintptr_t to, uintptr_t from, size_t n, Handle s) {
  IN_CONTEXT;
  if (!inside(device_memory, from, n) || !inside(device_memory, to, n)) return INVALID_VALUE;
  return enqueue(s, [=] { memcpy((void*)to, (void*)from, n); return SUCCESS; });
}
API cuPointerGetAttribute(void* value, int which, uintptr_t p) {
  IN_CONTEXT;
  if (which != 9 || !inside(device_memory, p, 1)) return INVALID_VALUE;
  *(int*)value = 0;
  return SUCCESS;
}

API cuModuleLoadData(Handle* m, const char* path) {
  IN_CONTEXT;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  return library ? make(m, new Module{library, {}}) : INVALID_IMAGE;
}
API cuModuleUnload(Handle m) {
  IN_CONTEXT;
  ALIVE(m);
  for (Function* f : ((Module*)m)->functions) destroy<Function>(f);
  return destroy<Module>(m);  // the library stays: others may have loaded it as well
}
API cuModuleGetFunction(Handle* f, Handle m, const char* name) {
  IN_CONTEXT;
  ALIVE(m);
  void* entry = dlsym(((Module*)m)->library, name);
  void* launch = dlsym(((Module*)m)->library, "emulated_launch");
  if (!entry || !launch) return NOT_FOUND;
  bool* waited = (bool*)dlsym(((Module*)m)->library, "emulated_waited");
  Function* made = new Function{(void (*)(void**, const unsigned*, const unsigned*, unsigned))launch, waited};
  ((Module*)m)->functions.push_back(made);
  return make(f, made);
}
API cuFuncGetAttribute(int* v, int which, Handle f) { IN_CONTEXT; ALIVE(f); *v = which == 0 ? 1024 : 0; return SUCCESS; }
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, Handle f, int threads, size_t shared) {
  IN_CONTEXT;
  ALIVE(f);
  const int fitting = MULTIPROCESSOR_SHARED / ((int)shared + RESERVED_SHARED);
  *n = 2048 / threads < fitting ? 2048 / threads : fitting;
  return SUCCESS;
}
API cuFuncSetAttribute(Handle f, int, int) { IN_CONTEXT; ALIVE(f); return SUCCESS; }

struct Config { unsigned grid[3], block[3], shared; Handle stream; void* attributes; unsigned count; };
struct Window { uintptr_t at; size_t size; float ratio; int hit, miss; };
struct Attribute { unsigned id, padding; union { int value; Window window; char bytes[64]; }; };
API cuLaunchKernelEx(const Config* c, Handle f, void** params, void**) {
  IN_CONTEXT;
  ALIVE(f);
  Config config = *c;
  bool early = false;
  for (unsigned i = 0; i < config.count; i++) {
    const Attribute& one = ((const Attribute*)config.attributes)[i];
    if (one.id == 6 && one.value == 1) early = true;
    else if (one.id != 1 || one.window.ratio != 1 || one.window.hit != 1 || !inside(device_memory, one.window.at, one.window.size))
      return INVALID_VALUE;  // the other one that is known: streaming, of memory of the device
  }
  Function* function = (Function*)f;
  return enqueue(config.stream, [=] {
    *function->waited = false;
    function->launch(params, config.grid, config.block, config.shared);
    // started early without waiting: on a GPU it may have read what was not written yet
    return early && !*function->waited ? NOT_PERMITTED : SUCCESS;
  });
}

// What device.h reads: the address, elements and rows, the pitch, the box, bytes of an element.
API cuTensorMapEncodeTiled(uint64_t* map, int kind, unsigned rank, void* from, const uint64_t* sizes, const uint64_t* pitches,
                           const unsigned* box, const unsigned* steps, int interleave, int permuted, int, int) {
  const uint64_t size = kind == 0 ? 1 : kind == 6 ? 2 : 0;
  if (!size || rank != 2 || interleave != 0 || permuted != 3 || steps[0] != 1 || steps[1] != 1) return INVALID_VALUE;
  if ((uintptr_t)from % 16 || pitches[0] % 16 || box[0] * size != 128 || box[1] > 256 || !sizes[0] || !sizes[1]) return INVALID_VALUE;
  const uint64_t all[] = {(uint64_t)from, sizes[0], sizes[1], pitches[0], box[0], box[1], size};
  memcpy(map, all, sizeof(all));
  return SUCCESS;
}

API cuStreamCreate(Handle* s, unsigned flags) { IN_CONTEXT; return make(s, new Stream{false, {}, flags}); }
API cuStreamDestroy(Handle s) { IN_CONTEXT; return destroy<Stream>(s); }
API cuStreamSynchronize(Handle s) { IN_CONTEXT; ALIVE_STREAM(s); return uintptr_t(s) > 2 && ((Stream*)s)->capturing ? CAPTURE_INVALID : SUCCESS; }
API cuStreamQuery(Handle s) { IN_CONTEXT; ALIVE_STREAM(s); return uintptr_t(s) > 2 && ((Stream*)s)->capturing ? CAPTURE_INVALID : SUCCESS; }
API cuStreamBeginCapture(Handle s, int) { IN_CONTEXT; ALIVE(s); ((Stream*)s)->capturing = true; return SUCCESS; }
API cuStreamEndCapture(Handle s, Handle* g) {
  IN_CONTEXT;
  ALIVE(s);
  Stream* stream = (Stream*)s;
  stream->capturing = false;
  return make(g, new Graph{std::move(stream->captured)});
}
API cuGraphCreate(Handle* g, unsigned) { IN_CONTEXT; return make(g, new Graph); }
API cuGraphAddChildGraphNode(Handle* node, Handle g, const Handle* after, size_t count, Handle child) {
  IN_CONTEXT;
  ALIVE(g);
  ALIVE(child);
  if (count != !((Graph*)g)->work.empty()) return INVALID_VALUE;  // nodes come one behind the other
  Work work = ((Graph*)child)->work;
  ((Graph*)g)->work.push_back([=] {
    for (auto& one : work)
      if (CUresult error = one()) return error;
    return (CUresult)SUCCESS;
  });
  *node = g;
  return SUCCESS;
}
API cuGraphConditionalHandleCreate(uint64_t* handle, Handle g, Handle context, unsigned value, unsigned) {
  IN_CONTEXT;
  ALIVE(g);
  *handle = (uint64_t) new unsigned(value);  // which cudaGraphSetConditional() writes
  return SUCCESS;
}
struct ConditionalNode { int node, reserved[3]; uint64_t handle; int kind; unsigned size; Handle* bodies; Handle context; };
API cuGraphAddNode(Handle* node, Handle g, const Handle* after, const void*, size_t count, ConditionalNode* params) {
  IN_CONTEXT;
  ALIVE(g);
  if (params->node != 13 || params->size != 1 || params->kind > 1 || !params->handle || params->context != &primary)
    return INVALID_VALUE;
  if (count != !((Graph*)g)->work.empty()) return INVALID_VALUE;
  Graph* body = new Graph;  // of the driver's, for as long as the process lives
  alive.insert(body);
  bodies.insert(body);
  params->bodies = new Handle[1]{body};
  unsigned* condition = (unsigned*)params->handle;
  bool loops = params->kind == 1;
  ((Graph*)g)->work.push_back([=] {
    while (*condition) {
      for (auto& one : body->work)
        if (CUresult error = one()) return error;
      if (!loops) break;
    }
    return (CUresult)SUCCESS;
  });
  *node = g;
  return SUCCESS;
}
API cuGraphInstantiateWithFlags(Handle* e, Handle g, unsigned long long) {
  IN_CONTEXT;
  ALIVE(g);
  return make(e, new Graph(*(Graph*)g));
}
API cuGraphUpload(Handle e, Handle s) { IN_CONTEXT; ALIVE(e); ALIVE(s); return SUCCESS; }
API cuGraphLaunch(Handle e, Handle s) {
  IN_CONTEXT;
  ALIVE(e);
  ALIVE_STREAM(s);
  for (auto& one : ((Graph*)e)->work)
    if (CUresult error = one()) return error;
  return SUCCESS;
}
API cuGraphExecDestroy(Handle e) { IN_CONTEXT; return destroy<Graph>(e); }
API cuGraphDestroy(Handle g) { IN_CONTEXT; return destroy<Graph>(g); }

API cuEventCreate(Handle* e, unsigned) { IN_CONTEXT; return make(e, new Event); }
API cuEventDestroy(Handle e) { IN_CONTEXT; return destroy<Event>(e); }
API cuEventRecord(Handle e, Handle s) {
  IN_CONTEXT;
  ALIVE(e);
  ALIVE_STREAM(s);
  ((Event*)e)->at = std::chrono::steady_clock::now();
  return SUCCESS;
}
API cuStreamWaitEvent(Handle s, Handle e, unsigned) { IN_CONTEXT; ALIVE_STREAM(s); ALIVE(e); return SUCCESS; }
API cuEventSynchronize(Handle e) { IN_CONTEXT; ALIVE(e); return SUCCESS; }
API cuEventQuery(Handle e) { IN_CONTEXT; ALIVE(e); return SUCCESS; }
API cuEventElapsedTime(float* ms, Handle a, Handle b) {
  IN_CONTEXT;
  *ms = std::chrono::duration<float, std::milli>(((Event*)b)->at - ((Event*)a)->at).count();
  return SUCCESS;
}

API cuGetErrorName(CUresult e, const char** text) {
  static char name[32];
  snprintf(name, sizeof name, "CUDA_ERROR_%d", e);
  *text = name;
  return SUCCESS;
}
API cuGetErrorString(CUresult, const char** text) { *text = "emulated"; return SUCCESS; }

// How many objects and bytes are held, for tests that look for leaks.
extern "C" size_t emulated_objects() { return alive.size() - bodies.size() + device_memory.size() + host_memory.size(); }

// As CUDA 12.2 has it, which knows nothing of conditional nodes.
API emulated_add_plain_node(Handle*, Handle, const Handle*, size_t, void*) { return INVALID_VALUE; }
// As CUDA 12.3 has it, without data of the edges.
API emulated_add_node(Handle* node, Handle g, const Handle* after, size_t count, ConditionalNode* params) {
  return cuGraphAddNode(node, g, after, nullptr, count, params);
}

// `version`: of CUDA, whose function of this name is asked for; what is newer than the driver is not there.
API cuGetProcAddress_v2(const char* name, void** f, int version, uint64_t, int*) {
  int present = 0;
  cuDriverGetVersion(&present);
  *f = nullptr;
  if (!strcmp(name, "cuGraphAddNode") && version < 12030) {
    if (present < version) return NOT_FOUND;
    *f = present < 12030 ? (void*)&emulated_add_plain_node : (void*)&emulated_add_node;
    return SUCCESS;
  }
  if (present < version) return NOT_FOUND;
  static void* self = [] { Dl_info info; dladdr((void*)&cuInit, &info); return dlopen(info.dli_fname, RTLD_NOW); }();
  *f = dlsym(self, name);
  return *f ? SUCCESS : NOT_FOUND;
}
