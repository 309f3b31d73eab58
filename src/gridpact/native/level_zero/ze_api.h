// The few Level-Zero declarations that Intel's launcher of Triton kernels names, for machines without Level Zero.
//
// Names and values are those of the oneAPI Level Zero specification 1.x. Nothing has to be linked: the one function says that
// it cannot. See conformance/subjects/intel_launcher.py.

#pragma once

#include <cstdint>

typedef struct _ze_context_handle_t *ze_context_handle_t;  // declared alike by sycl.hpp
typedef struct _ze_device_handle_t *ze_device_handle_t;

enum ze_result_t { ZE_RESULT_SUCCESS = 0, ZE_RESULT_ERROR_UNSUPPORTED_FEATURE = 0x78000003 };
enum ze_structure_type_t { ZE_STRUCTURE_TYPE_MEMORY_ALLOCATION_PROPERTIES = 0x17 };
enum ze_memory_type_t { ZE_MEMORY_TYPE_UNKNOWN, ZE_MEMORY_TYPE_HOST, ZE_MEMORY_TYPE_DEVICE, ZE_MEMORY_TYPE_SHARED };

struct ze_memory_allocation_properties_t {
  ze_structure_type_t stype;
  void *pNext;
  ze_memory_type_t type;
  uint64_t id;
  uint64_t pageSize;
};

static inline ze_result_t zeMemGetAllocProperties(ze_context_handle_t, const void *, ze_memory_allocation_properties_t *,
                                                  ze_device_handle_t *) {
  return ZE_RESULT_ERROR_UNSUPPORTED_FEATURE;
}
