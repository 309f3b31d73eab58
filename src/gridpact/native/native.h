// What the parts of the native path share.

#ifndef GRIDPACT_NATIVE_H
#define GRIDPACT_NATIVE_H

#include "launch_abi.h"

enum {
  GRIDPACT_MOST_PARAMETERS = 256,  // of one kernel; more take the Python path
  GRIDPACT_MOST_HIDDEN = 8         // pointers that follow them
};

/// Fills in the table of calls for a context of the CUDA driver; -1 if there is no such driver.
int gridpact_cuda_driver(uint64_t context, gridpact_driver *out);

#endif
