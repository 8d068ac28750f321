// libcuda and libamdhip64 of the emulated GPUs: the functions that load and launch kernels. Python finds a kernel by its
// binary, and executes launches.
//
// Structures, constants and rules are those of cuda.h and hip_runtime_api.h. library.py mirrors the structures that are
// passed to Python.
#include <elf.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define MAX_PARAMETERS 256

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_IMAGE = 200, INVALID_CONTEXT = 201,
       INVALID_HANDLE = 400, NOT_FOUND = 500, LAUNCH_FAILED = 719, NOT_SUPPORTED = 801 };

typedef struct {
  int32_t number;  // index in Python's list of kernels
  int32_t n_parameters, static_shared, max_threads, registers, scratch;
  uint32_t offset[MAX_PARAMETERS], size[MAX_PARAMETERS];
} Kernel;

typedef struct {
  uint32_t grid[3], block[3], cluster[3], shared_bytes;
  uint32_t cooperative, overlaps;
  uint64_t stream;
  uint32_t n_bytes;
  uint8_t arguments[8 * MAX_PARAMETERS];
} Launch;

// A recorded result of a launch, which is written to memory instead of executing the launch.
typedef struct {
  uint64_t launch;     // number of the launch
  uint32_t parameter;  // the parameter that contains the address
  uint32_t unused;
  int64_t distance;  // from that address to the bytes
  uint64_t size;
  const void *bytes;
} Answer;

typedef int (*Find)(const void *image, uint64_t size, const char *name, Kernel *found);
typedef int (*Execute)(int32_t number, const Launch *launch);

static Find find_kernel;
static Execute execute;
static char failure[1024];
static int is_initialized;

API void emulator_connect(Find find, Execute run) { find_kernel = find, execute = run; }

API void emulator_describe(const char *text) {
  strncpy(failure, text, sizeof failure - 1);
}

API int emulator_layout(int which) { return which == 0 ? sizeof(Kernel) : which == 1 ? sizeof(Launch) : sizeof(Answer); }

static int is_silent;
static const Answer *answers;
static uint64_t n_answers, next_answer, next_launch;

// Makes launches write recorded results in order, or do nothing without any, instead of being executed.
API void emulator_answer(const Answer *given, uint64_t count) {
  is_silent = 1, answers = given, n_answers = count, next_answer = next_launch = 0;
}

API void emulator_execute_again(void) { is_silent = 0; }

static void answer(const Kernel *kernel, void **parameters) {
  for (; next_answer < n_answers && answers[next_answer].launch == next_launch; next_answer++) {
    const Answer *a = &answers[next_answer];
    if (a->parameter < (uint32_t)kernel->n_parameters)
      memcpy((char *)*(void **)parameters[a->parameter] + a->distance, a->bytes, a->size);
  }
  next_launch++;
}

// --- common to both drivers

typedef struct {
  uint64_t size;
  uint8_t image[];
} Module;

typedef struct {
  Kernel kernel;
  uint32_t dynamic_shared;  // maximum size in bytes of the dynamic shared memory of a launch
  int32_t widest_cluster;
} Function;

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

static uint64_t image_bytes(const void *image) {
  const Elf64_Ehdr *elf = image;
  if (!image || memcmp(elf->e_ident, ELFMAG, SELFMAG) || elf->e_ident[EI_CLASS] != ELFCLASS64) return 0;
  uint64_t end = later(elf->e_shoff + (uint64_t)elf->e_shnum * elf->e_shentsize,
                       elf->e_phoff + (uint64_t)elf->e_phnum * elf->e_phentsize);
  const Elf64_Shdr *section = (const void *)((const char *)image + elf->e_shoff);
  for (int i = 0; i < elf->e_shnum; i++)
    if (section[i].sh_type != SHT_NOBITS) end = later(end, section[i].sh_offset + section[i].sh_size);
  return end;
}

static int load(Module **module, const void *image) {
  uint64_t size = image_bytes(image);
  if (!size) return INVALID_IMAGE;
  *module = malloc(sizeof **module + size);
  (*module)->size = size;
  memcpy((*module)->image, image, size);
  return SUCCESS;
}

static int get_function(Function **function, const Module *module, const char *name, uint32_t dynamic_shared) {
  if (!module || !find_kernel) return INVALID_HANDLE;
  *function = calloc(1, sizeof **function);
  (*function)->dynamic_shared = dynamic_shared, (*function)->widest_cluster = 8;
  return find_kernel(module->image, module->size, name, &(*function)->kernel);
}

static int launch(const Function *function, Launch *made, void **parameters, void **extra) {
  if (!function || !execute) return INVALID_HANDLE;
  if (extra || (!parameters && function->kernel.n_parameters)) return INVALID_VALUE;
  uint64_t threads = (uint64_t)made->block[0] * made->block[1] * made->block[2];
  if (!threads || threads > (uint64_t)function->kernel.max_threads) return INVALID_VALUE;
  for (int i = 0; i < 3; i++)
    if (!made->grid[i] || made->grid[i] > (i ? 65535u : 2147483647u)) return INVALID_VALUE;
  if (made->shared_bytes > function->dynamic_shared) return INVALID_VALUE;
  if (is_silent) {
    answer(&function->kernel, parameters);
    return SUCCESS;
  }
  for (int i = 0; i < function->kernel.n_parameters; i++) {
    uint32_t offset = function->kernel.offset[i], size = function->kernel.size[i];
    if (offset + size > sizeof made->arguments) return INVALID_IMAGE;
    memcpy(made->arguments + offset, parameters[i], size);
    made->n_bytes = later(made->n_bytes, offset + size);
  }
  return execute(function->kernel.number, made);
}

static const char *error_name(int code) {
  switch (code) {
    case SUCCESS: return "SUCCESS";
    case INVALID_VALUE: return "ERROR_INVALID_VALUE";
    case NOT_INITIALIZED: return "ERROR_NOT_INITIALIZED";
    case INVALID_IMAGE: return "ERROR_INVALID_IMAGE";
    case INVALID_CONTEXT: return "ERROR_INVALID_CONTEXT";
    case INVALID_HANDLE: return "ERROR_INVALID_HANDLE";
    case NOT_FOUND: return "ERROR_NOT_FOUND";
    case LAUNCH_FAILED: return "ERROR_LAUNCH_FAILED";
    case NOT_SUPPORTED: return "ERROR_NOT_SUPPORTED";
    default: return NULL;
  }
}

static const char *error_text(int code) { return code == LAUNCH_FAILED && *failure ? failure : error_name(code); }

// --- libcuda

#define CUDA_VERSION 13000
#define SHARED_DEFAULT 49152
#define SHARED_OPTIN 166912

typedef struct {
  uint32_t grid[3], block[3], shared_bytes;
  void *stream;
  const void *attributes;
  uint32_t n_attributes;
} CudaConfig;

typedef struct {
  uint32_t id, unused;
  uint32_t value[16];
} CudaAttribute;

static __thread void *context;

API int cuInit(unsigned flags) {
  is_initialized = 1;
  return flags ? INVALID_VALUE : SUCCESS;
}

API int cuDriverGetVersion(int *version) {
  *version = CUDA_VERSION;
  return SUCCESS;
}

API int cuGetErrorName(int code, const char **name) {
  *name = error_name(code);
  return *name ? SUCCESS : INVALID_VALUE;
}

API int cuGetErrorString(int code, const char **text) {
  *text = error_text(code);
  return *text ? SUCCESS : INVALID_VALUE;
}

API int cuDeviceGet(int *device, int number) {
  *device = number;
  return is_initialized ? SUCCESS : NOT_INITIALIZED;
}

API int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  if (attribute != 97) return INVALID_VALUE;
  *value = SHARED_OPTIN;
  return SUCCESS;
}

API int cuCtxGetCurrent(void **current) {
  *current = context;
  return is_initialized ? SUCCESS : NOT_INITIALIZED;
}

API int cuCtxSetCurrent(void *given) {
  context = given;
  return SUCCESS;
}

API int cuDevicePrimaryCtxRetain(void **primary, int device) {
  static char one;
  (void)device;
  *primary = &one;
  return SUCCESS;
}

API int cuModuleLoadData(Module **module, const void *image) {
  return context ? load(module, image) : INVALID_CONTEXT;
}

API int cuModuleGetFunction(Function **function, const Module *module, const char *name) {
  return context ? get_function(function, module, name, SHARED_DEFAULT) : INVALID_CONTEXT;
}

API int cuFuncGetAttribute(int *value, int attribute, const Function *function) {
  if (!function) return INVALID_HANDLE;
  switch (attribute) {
    case 0: *value = function->kernel.max_threads; return SUCCESS;
    case 1: *value = function->kernel.static_shared; return SUCCESS;
    case 3: *value = function->kernel.scratch; return SUCCESS;
    case 4: *value = function->kernel.registers; return SUCCESS;
    default: return INVALID_VALUE;
  }
}

API int cuFuncSetAttribute(Function *function, int attribute, int value) {
  if (!function) return INVALID_HANDLE;
  if (attribute == 8 && value >= 0 && value + function->kernel.static_shared <= SHARED_OPTIN)
    function->dynamic_shared = value;
  else if (attribute == 14)
    function->widest_cluster = value ? 16 : 8;
  else
    return INVALID_VALUE;
  return SUCCESS;
}

API int cuFuncSetCacheConfig(Function *function, int preference) {
  return !function ? INVALID_HANDLE : preference < 0 || preference > 3 ? INVALID_VALUE : SUCCESS;
}

API int cuLaunchKernelEx(const CudaConfig *config, const Function *function, void **parameters, void **extra) {
  if (!context) return INVALID_CONTEXT;
  Launch made = {.cluster = {1, 1, 1}, .shared_bytes = config->shared_bytes, .stream = (uint64_t)config->stream};
  memcpy(made.grid, config->grid, sizeof made.grid);
  memcpy(made.block, config->block, sizeof made.block);
  const CudaAttribute *attribute = config->attributes;
  for (uint32_t i = 0; i < config->n_attributes; i++, attribute++) {
    switch (attribute->id) {
      case 2: made.cooperative = attribute->value[0]; break;
      case 4: memcpy(made.cluster, attribute->value, sizeof made.cluster); break;
      case 5: break;
      case 6: made.overlaps = attribute->value[0]; break;
      default: return INVALID_VALUE;
    }
  }
  if (function && made.cluster[0] * made.cluster[1] * made.cluster[2] > (uint32_t)function->widest_cluster)
    return INVALID_VALUE;
  for (int i = 0; i < 3; i++)
    if (!made.cluster[i] || made.grid[i] % made.cluster[i]) return INVALID_VALUE;
  return launch(function, &made, parameters, extra);
}

// --- libamdhip64

#define HIP_VERSION 70051831
#define SHARED_OF_AMD 65536

API int hipInit(unsigned flags) { return cuInit(flags); }

API int hipDriverGetVersion(int *version) {
  *version = HIP_VERSION;
  return SUCCESS;
}

API const char *hipGetErrorName(int code) { return error_name(code); }

API const char *hipGetErrorString(int code) { return error_text(code); }

API int hipDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  if (attribute != 74) return INVALID_VALUE;
  *value = SHARED_OF_AMD;
  return SUCCESS;
}

API int hipModuleLoadData(Module **module, const void *image) { return load(module, image); }

API int hipModuleGetFunction(Function **function, const Module *module, const char *name) {
  return get_function(function, module, name, SHARED_OF_AMD);
}

API int hipFuncGetAttribute(int *value, int attribute, const Function *function) {
  return cuFuncGetAttribute(value, attribute, function);
}

static int launch_on_amd(const Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                         unsigned bz, unsigned shared_bytes, void *stream, void **parameters, void **extra,
                         unsigned cooperative) {
  Launch made = {{gx, gy, gz}, {bx, by, bz}, {1, 1, 1}, .shared_bytes = shared_bytes, .cooperative = cooperative,
                 .stream = (uint64_t)stream};
  if ((uint64_t)gx * bx > 4294967295u) return INVALID_VALUE;
  return launch(function, &made, parameters, extra);
}

API int hipModuleLaunchKernel(const Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared_bytes, void *stream, void **parameters, void **extra) {
  return launch_on_amd(function, gx, gy, gz, bx, by, bz, shared_bytes, stream, parameters, extra, 0);
}

API int hipModuleLaunchCooperativeKernel(const Function *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                         unsigned by, unsigned bz, unsigned shared_bytes, void *stream,
                                         void **parameters) {
  return launch_on_amd(function, gx, gy, gz, bx, by, bz, shared_bytes, stream, parameters, NULL, 1);
}
