// What crosses from the native path of a launch to a driver: one struct for the launch, one table of calls for the driver.
//
// Both only ever grow at the end, and `version` goes up then; tests/test_native_path.py holds sizes and offsets fast. A driver
// that was built against an older version is refused when its table is taken.

#ifndef GRIDPACT_LAUNCH_ABI_H
#define GRIDPACT_LAUNCH_ABI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GRIDPACT_LAUNCH_ABI 1u

enum {
  GRIDPACT_COOPERATIVE = 1,  // all programs have to run at once
  GRIDPACT_PROGRAMMATIC = 2, // may begin before the kernel ahead of it is over
  GRIDPACT_WAIT = 4          // returns when the results can be read
};

typedef struct gridpact_launch {
  uint64_t programs[3];  // x first; each at least 1
  uint32_t cluster[3];   // blocks of the cluster that runs one program, x first; ones without clusters
  uint32_t threads;      // of one block
  uint32_t shared_bytes; // of one block
  uint32_t flags;
  uint64_t stream, kernel;  // the driver's own handles
  const uint8_t *sizes;     // of each parameter: 0 for a pointer, else bytes of the scalar
  uint64_t *bits;           // each parameter in the low bytes; hidden pointers, null, follow
  uint32_t count, hidden;
  void *event;          // set by the driver: what tells when the kernel is complete; null where it is, or where none was made
  uint32_t is_captured; // set by the driver: the launch went into a graph
  uint32_t reserved;    // 0
} gridpact_launch;

typedef struct gridpact_driver {
  uint32_t version;  // GRIDPACT_LAUNCH_ABI of who filled it in
  uint32_t bytes;    // of this table
  void *context;     // of the device; the first argument of each call
  // Enqueue a launch, on any thread, without Python's lock. 0, or the driver's code.
  int (*launch)(void *context, gridpact_launch *launch);
  // The bare call and nothing around it, so many times: what a launch costs at least. For benchmarks.
  int (*repeat)(void *context, const gridpact_launch *launch, uint64_t times);
  // Of the events that `launch` gives; null where it gives none. 0, or the driver's code.
  int (*wait)(void *event);
  int (*is_complete)(void *event);  // 1 or 0; -1 if the kernel failed, which is told to whoever waits
  void (*release)(void *event);
} gridpact_driver;

#ifdef __cplusplus
}
#endif

#endif
