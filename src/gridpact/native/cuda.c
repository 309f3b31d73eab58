// Launches through the CUDA driver. The library is opened at run time, and no header of it is needed: the few types that
// a launch takes are written down here, as the CUDA Driver API reference has them.

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "native.h"

typedef struct {  // CUlaunchAttribute: a kind, and 64 bytes for its value
  int kind;
  char pad[4];
  union {
    char bytes[64];
    void *align;
    int number;
    uint32_t cluster[3];
  } value;
} Attribute;

typedef struct {  // CUlaunchConfig
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
  Attribute *attributes;
  unsigned count;
} Config;

enum { COOPERATIVE = 2, CLUSTER = 4, PROGRAMMATIC = 6 };  // CUlaunchAttributeID
enum { RELAXED = 2 };                                    // CUstreamCaptureMode

static struct {
  int (*launch)(const Config *, void *function, void **parameters, void **extra);
  int (*current)(void **context);
  int (*push)(void *context);
  int (*pop)(void **context);
  int (*is_capturing)(void *stream, int *status);
  int (*synchronize)(void *stream);
  int (*exchange_mode)(int *mode);  // CUstreamCaptureMode of the thread
} cu;

typedef struct {  // what the driver copies before it returns
  void *parameters[GRIDPACT_MOST_PARAMETERS + GRIDPACT_MOST_HIDDEN];
  Attribute attributes[3];
  Config config;
} Packed;

static void add_attribute(Packed *p, int kind, int number) {
  Attribute *attribute = &p->attributes[p->config.count++];
  memset(attribute, 0, sizeof *attribute);
  attribute->kind = kind;
  attribute->value.number = number;
}

static void pack(Packed *p, const gridpact_launch *l) {
  const uint32_t count = l->count + l->hidden, *cluster = l->cluster;
  for (uint32_t i = 0; i < count; ++i) p->parameters[i] = &l->bits[i];
  // Blocks fit in 32 bits: the path checks programs against the device's limits, divided by the cluster.
  p->config = (Config){
      {(unsigned)(l->programs[0] * cluster[0]), (unsigned)(l->programs[1] * cluster[1]), (unsigned)(l->programs[2] * cluster[2])},
      {l->threads, 1, 1},
      l->shared_bytes,
      (void *)(uintptr_t)l->stream,
      p->attributes,
      0,
  };
  if (cluster[0] != 1 || cluster[1] != 1 || cluster[2] != 1) {
    add_attribute(p, CLUSTER, 0);
    memcpy(p->attributes[0].value.cluster, cluster, 3 * sizeof *cluster);
  }
  if (l->flags & GRIDPACT_COOPERATIVE) add_attribute(p, COOPERATIVE, 1);
  if (l->flags & GRIDPACT_PROGRAMMATIC) add_attribute(p, PROGRAMMATIC, 1);
}

static int launch(void *context, gridpact_launch *l) {
  Packed packed;
  pack(&packed, l);
  void *current = NULL, *popped;
  int code = cu.current(&current);
  const int is_elsewhere = current != context;
  if (!code && is_elsewhere) code = cu.push(context);
  if (code) return code;
  code = cu.launch(&packed.config, (void *)(uintptr_t)l->kernel, packed.parameters, NULL);
  int status = 0;
  // The default stream (0, and 1 by its other name) cannot be captured; to ask is an error while another stream is.
  if (!code && l->stream > 1) code = cu.is_capturing(packed.config.stream, &status);
  l->is_captured = status != 0;
  if (!code && l->flags & GRIDPACT_WAIT) {  // allowed while another stream is captured: it is none of its launches
    int mode = RELAXED;
    cu.exchange_mode(&mode);
    code = cu.synchronize(packed.config.stream);
    cu.exchange_mode(&mode);
  }
  if (is_elsewhere) cu.pop(&popped);
  return code;
}

static int repeat(void *context, const gridpact_launch *l, uint64_t times) {
  Packed packed;
  pack(&packed, l);
  void *popped;
  int code = cu.push(context);
  if (code) return code;
  for (uint64_t i = 0; !code && i < times; ++i)
    code = cu.launch(&packed.config, (void *)(uintptr_t)l->kernel, packed.parameters, NULL);
  cu.pop(&popped);
  return code;
}

int gridpact_cuda_driver(uint64_t context, gridpact_driver *out) {
  if (!cu.launch) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    const struct { const char *name; void **place; } calls[] = {
        {"cuCtxGetCurrent", (void **)&cu.current},           {"cuCtxPushCurrent_v2", (void **)&cu.push},
        {"cuCtxPopCurrent_v2", (void **)&cu.pop},            {"cuStreamIsCapturing", (void **)&cu.is_capturing},
        {"cuStreamSynchronize", (void **)&cu.synchronize},   {"cuThreadExchangeStreamCaptureMode", (void **)&cu.exchange_mode},
        {"cuLaunchKernelEx", (void **)&cu.launch},
    };
    for (size_t i = 0; library && i < sizeof calls / sizeof *calls; ++i) {
      void *found = dlsym(library, calls[i].name);
      if (!found) break;
      *calls[i].place = found;
    }
    if (!cu.launch) return -1;  // the last of them
  }
  out->version = GRIDPACT_LAUNCH_ABI;
  out->bytes = sizeof *out;
  out->context = (void *)(uintptr_t)context;
  out->launch = launch;
  out->repeat = repeat;
  out->wait = NULL;
  out->is_complete = NULL;
  out->release = NULL;
  return 0;
}
