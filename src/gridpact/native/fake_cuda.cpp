// A CUDA driver that runs nothing: it judges each launch as an H200's driver did, and keeps what it was asked for.
// Built against the cuda.h that Triton's wheel ships, with the soname of the real library, so that whoever opens
// libcuda.so.1 in this process gets this one.
//
// Numbers, refusals and their words were read on an H200 (driver of CUDA 13.0, 2026-11-29). Not judged: registers, and
// with them how many blocks of a kernel fit; a cooperative grid is held against the device's threads and blocks alone.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <cuda.h>
#include <dlfcn.h>

#define API extern "C" __attribute__((visibility("default")))

namespace {

constexpr int kMaxParameters = 256;
constexpr int kMaxParameterBytes = 128;  // of one parameter: a tensor map is the largest
constexpr int kMaxThreads = 1024, kMaxThreadsZ = 64;
constexpr int kSharedBytes = 49152, kMaxSharedBytes = 232448;  // of a block: as it is, and where asked for
constexpr int kMaxCluster = 8, kMaxClusterAllowed = 16;
constexpr int kProcessors = 132, kThreadsOfProcessor = 2048, kBlocksOfProcessor = 32;
constexpr size_t kMaxCalls = 4096;  // that nobody has taken

struct Kernel {
  std::string name;
  uint64_t digest = 0;            // FNV-1a of the module's bytes
  std::vector<int> sizes, offsets;  // bytes of each parameter and where it lies, as the module itself declares them
  uint32_t block[3] = {0, 0, 0};  // that the module requires, x first; 0 if it requires none
  int max_cluster = kMaxCluster, max_shared_bytes = kSharedBytes;  // more once the launcher has asked for it
};

struct Module {
  const char *image;
  size_t bytes;
  std::map<std::string, Kernel> kernels;
};

std::mutex guard;
std::deque<Module> modules;  // never freed: handles stay good, as functions of a context that lives on
thread_local CUcontext current = nullptr;
thread_local std::vector<CUcontext> below;  // of the current one

// ------------------------------------------------------------------------------------------- the module's own words

template <class T>
T at(const char *image, size_t offset) {
  T value;
  std::memcpy(&value, image + offset, sizeof value);
  return value;
}

struct Section {
  uint32_t name, kind;
  uint64_t offset, bytes;
};

// ELF-64: e_shoff at 0x28, e_shentsize, e_shnum and e_shstrndx from 0x3a.
std::vector<Section> sections_of(const char *image) {
  std::vector<Section> found;
  const auto table = at<uint64_t>(image, 0x28);
  const auto entry = at<uint16_t>(image, 0x3a), count = at<uint16_t>(image, 0x3c);
  for (uint64_t i = 0; i < count; ++i) {
    const size_t begin = table + i * entry;
    found.push_back({at<uint32_t>(image, begin), at<uint32_t>(image, begin + 4), at<uint64_t>(image, begin + 0x18),
                     at<uint64_t>(image, begin + 0x20)});
  }
  return found;
}

// In .nv.info.<kernel> stand records: 0x17 (EIATTR_KPARAM_INFO) for each parameter, with index, ordinal (16 bits), offset
// (16 bits) and a word with the size from bit 18 up; 0x10 (EIATTR_REQNTID) with the block.
void read_info(Kernel &kernel, const char *image, const Section &section) {
  std::map<int, std::pair<int, int>> parameters;  // by ordinal: bytes, offset
  for (uint64_t p = section.offset, end = p + section.bytes; p + 4 <= end;) {
    const auto format = at<uint8_t>(image, p), attribute = at<uint8_t>(image, p + 1);
    const auto bytes = at<uint16_t>(image, p + 2);
    p += 4;
    if (format != 4) continue;  // the value stands in the record's head
    if (attribute == 0x17)
      parameters[at<uint16_t>(image, p + 4)] = {at<uint32_t>(image, p + 8) >> 18, at<uint16_t>(image, p + 6)};
    if (attribute == 0x10) std::memcpy(kernel.block, image + p, sizeof kernel.block);
    p += bytes;
  }
  for (const auto &[ordinal, parameter] : parameters) {
    kernel.sizes.push_back(parameter.first);
    kernel.offsets.push_back(parameter.second);
  }
}

void read_module(Module &module) {
  const auto sections = sections_of(module.image);
  const uint64_t names = sections.at(at<uint16_t>(module.image, 0x3e)).offset;
  const std::string prefix = ".nv.info.";
  module.bytes = at<uint64_t>(module.image, 0x28) + sections.size() * at<uint16_t>(module.image, 0x3a);
  for (const auto &section : sections)
    if (section.kind != 8)  // SHT_NOBITS takes no room
      module.bytes = std::max<size_t>(module.bytes, section.offset + section.bytes);
  uint64_t digest = 14695981039346656037ULL;
  for (size_t i = 0; i < module.bytes; ++i) digest = (digest ^ uint8_t(module.image[i])) * 1099511628211ULL;
  for (const auto &section : sections) {
    const std::string name = module.image + names + section.name;
    if (name.compare(0, prefix.size(), prefix) != 0) continue;
    Kernel &kernel = module.kernels[name.substr(prefix.size())];
    kernel.name = name.substr(prefix.size());
    kernel.digest = digest;
    read_info(kernel, module.image, section);
  }
}

}  // namespace

// --------------------------------------------------------------------------------------------- what it was asked for

struct gridpact_call {
  uint32_t grid[3], block[3], cluster[3], shared_bytes, cooperative, programmatic;
  uint64_t stream, function, digest;
  int32_t count, sizes[kMaxParameters];
  uint8_t parameters[kMaxParameters][kMaxParameterBytes];
};

namespace {

std::deque<gridpact_call> calls;
bool is_keeping = true;

uint64_t blocks_of_processor(uint64_t threads) {
  return std::min<uint64_t>(kBlocksOfProcessor, kThreadsOfProcessor / threads);
}

// Refuse what the driver of an H200 refuses, in its order.
CUresult judged(const Kernel &kernel, const gridpact_call &call) {
  const uint32_t limits[3] = {2147483647u, 65535u, 65535u};
  uint64_t threads = 1, cluster = 1, blocks = 1;
  for (int i = 0; i < 3; ++i) {
    if (call.grid[i] > limits[i]) return CUDA_ERROR_INVALID_VALUE;
    threads *= call.block[i];
    cluster *= call.cluster[i];
    blocks *= call.grid[i];
  }
  for (int i = 0; i < 3; ++i)
    if (call.cluster[i] == 0 || call.grid[i] % call.cluster[i] != 0) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  if (cluster > uint64_t(kernel.max_cluster)) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  if (blocks == 0 || threads == 0 || threads > kMaxThreads || call.block[2] > kMaxThreadsZ)
    return CUDA_ERROR_INVALID_VALUE;
  if (kernel.block[0] && std::memcmp(kernel.block, call.block, sizeof call.block) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (call.shared_bytes > uint32_t(kernel.max_shared_bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (call.cooperative && blocks > uint64_t(kProcessors) * blocks_of_processor(threads)) return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  return calls.size() < kMaxCalls ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

// Take the oldest call that was not taken yet; 0 if there is none.
API int gridpact_take(gridpact_call *out) {
  std::lock_guard<std::mutex> lock(guard);
  if (calls.empty()) return 0;
  *out = calls.front();
  calls.pop_front();
  return 1;
}

// Whether calls are kept; without it they are judged alone, for benchmarks.
API void gridpact_keep(int is) { is_keeping = is; }

struct Stream {
  bool is_captured = false;
};

namespace {

std::deque<Stream> streams;
int captured = 0;  // how many are, on whatever thread: they forbid what might wait, to each thread alike

thread_local CUstreamCaptureMode mode_of_thread = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUresult unless_captured() {
  const bool is_forbidden = captured && mode_of_thread != CU_STREAM_CAPTURE_MODE_RELAXED;
  return is_forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

// Any number is a stream here; only those that were made can be captured.
bool is_captured(CUstream asked) {
  std::lock_guard<std::mutex> lock(guard);
  return std::any_of(streams.begin(), streams.end(), [asked](const Stream &stream) {
    return reinterpret_cast<CUstream>(const_cast<Stream *>(&stream)) == asked && stream.is_captured;
  });
}

}  // namespace

API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **) {
  if (!current) return CUDA_ERROR_INVALID_CONTEXT;
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  std::lock_guard<std::mutex> lock(guard);
  const auto &kernel = *reinterpret_cast<Kernel *>(function);
  gridpact_call call{};
  call.grid[0] = config->gridDimX;
  call.grid[1] = config->gridDimY;
  call.grid[2] = config->gridDimZ;
  call.block[0] = config->blockDimX;
  call.block[1] = config->blockDimY;
  call.block[2] = config->blockDimZ;
  for (auto &size : call.cluster) size = 1;
  call.shared_bytes = config->sharedMemBytes;
  call.stream = reinterpret_cast<uint64_t>(config->hStream);
  call.function = reinterpret_cast<uint64_t>(function);
  call.digest = kernel.digest;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute &attribute = config->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) {
      call.cluster[0] = attribute.value.clusterDim.x;
      call.cluster[1] = attribute.value.clusterDim.y;
      call.cluster[2] = attribute.value.clusterDim.z;
    } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
      call.cooperative = attribute.value.cooperative;
    } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      call.programmatic = attribute.value.programmaticStreamSerializationAllowed;
    }
  }
  if (const CUresult refusal = judged(kernel, call); refusal != CUDA_SUCCESS) return refusal;
  if (!is_keeping) return CUDA_SUCCESS;
  call.count = std::min<int>(kernel.sizes.size(), kMaxParameters);
  for (int i = 0; i < call.count; ++i) {
    call.sizes[i] = std::min(kernel.sizes[i], kMaxParameterBytes);
    std::memcpy(call.parameters[i], parameters[i], call.sizes[i]);
  }
  calls.push_back(call);
  return CUDA_SUCCESS;
}

// ------------------------------------------------------------------------------------------------- modules, functions

API CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  if (const CUresult refusal = unless_captured(); refusal != CUDA_SUCCESS) return refusal;
  if (std::memcmp(image, "\177ELF", 4) != 0) return CUDA_ERROR_INVALID_IMAGE;
  std::lock_guard<std::mutex> lock(guard);
  modules.push_back({static_cast<const char *>(image), 0, {}});
  read_module(modules.back());
  *out = reinterpret_cast<CUmodule>(&modules.back());
  return CUDA_SUCCESS;
}

API CUresult cuModuleUnload(CUmodule) { return unless_captured(); }

API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  std::lock_guard<std::mutex> lock(guard);
  auto &kernels = reinterpret_cast<Module *>(module)->kernels;
  const auto found = kernels.find(name);
  if (found == kernels.end()) return CUDA_ERROR_NOT_FOUND;
  *out = reinterpret_cast<CUfunction>(&found->second);
  return CUDA_SUCCESS;
}

API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes) {
  const auto &kernel = *reinterpret_cast<Kernel *>(function);
  if (index >= kernel.sizes.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = kernel.offsets[index];
  *bytes = kernel.sizes[index];
  return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, CUfunction, int threads, size_t) {
  *out = int(blocks_of_processor(threads));
  return CUDA_SUCCESS;
}

API CUresult cuOccupancyMaxPotentialClusterSize(int *out, CUfunction function, const CUlaunchConfig *) {
  *out = reinterpret_cast<Kernel *>(function)->max_cluster;
  return CUDA_SUCCESS;
}

API CUresult cuFuncGetAttribute(int *out, CUfunction_attribute attribute, CUfunction) {
  *out = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? kMaxThreads : 0;
  return CUDA_SUCCESS;
}

API CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  std::lock_guard<std::mutex> lock(guard);
  auto &kernel = *reinterpret_cast<Kernel *>(function);
  if (attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED)
    kernel.max_cluster = value ? kMaxClusterAllowed : kMaxCluster;
  if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
    if (value < 0 || value > kMaxSharedBytes) return CUDA_ERROR_INVALID_VALUE;
    kernel.max_shared_bytes = value;
  }
  return CUDA_SUCCESS;
}

API CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }

// ------------------------------------------------------------------------------------------------ device and context

API CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

// Give a function by name, its newest form; one that is not here is not found, and fails when it is called.
API CUresult cuGetProcAddress_v2(const char *name, void **out, int, cuuint64_t, CUdriverProcAddressQueryResult *told) {
  for (const char *form : {"_v2", ""}) {
    *out = dlsym(RTLD_DEFAULT, (std::string(name) + form).c_str());
    if (*out) break;
  }
  if (told) *told = *out ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuDriverGetVersion(int *out) {
  *out = 13000;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *out) {
  *out = 1;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *out, int ordinal) {
  if (ordinal != 0) return CUDA_ERROR_INVALID_DEVICE;
  *out = 0;
  return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice) {
  *out = size_t(150754820096);
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *out, int length, CUdevice) {
  std::strncpy(out, "a driver that runs nothing", length);
  return CUDA_SUCCESS;
}

API CUresult cuDeviceGetAttribute(int *out, CUdevice_attribute attribute, CUdevice) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *out = 9; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *out = 0; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *out = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *out = 2147483647; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y: *out = 65535; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *out = 65535; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *out = kMaxThreads; break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: *out = 1; break;
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH: *out = 1; break;
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS: *out = 1; break;  // all memory is the device's here
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *out = kProcessors; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *out = kMaxSharedBytes; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *out = 233472; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *out = 65536; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *out = 1980000; break;                 // kHz
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *out = 3201000; break;          // kHz
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *out = 6016; break;       // bits
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *out) {
  *out = current;
  return CUDA_SUCCESS;
}

API CUresult cuCtxSetCurrent(CUcontext context) {
  current = context;
  return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext context) {
  below.push_back(current);
  current = context;
  return CUDA_SUCCESS;
}

API CUresult cuCtxPopCurrent_v2(CUcontext *out) {
  if (below.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *out = current;
  current = below.back();
  below.pop_back();
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *out) {
  *out = 0;
  return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice) {
  static int context;
  *out = reinterpret_cast<CUcontext>(&context);
  return CUDA_SUCCESS;
}

API CUresult cuCtxGetLimit(size_t *out, CUlimit) {
  *out = 1 << 20;
  return CUDA_SUCCESS;
}

API CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }

// ------------------------------------------------------------------------------------------------- streams and events

API CUresult cuStreamCreate(CUstream *out, unsigned) {
  std::lock_guard<std::mutex> lock(guard);
  streams.emplace_back();
  *out = reinterpret_cast<CUstream>(&streams.back());
  return CUDA_SUCCESS;
}

API CUresult cuStreamDestroy_v2(CUstream) { return CUDA_SUCCESS; }

API CUresult cuStreamSynchronize(CUstream stream) {
  return is_captured(stream) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

API CUresult cuStreamGetDevice(CUstream, CUdevice *out) {
  *out = 0;
  return CUDA_SUCCESS;
}

API CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *out) {
  *out = is_captured(stream) ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

API CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode) {
  std::lock_guard<std::mutex> lock(guard);
  reinterpret_cast<Stream *>(stream)->is_captured = true;
  ++captured;
  return CUDA_SUCCESS;
}

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *out) {
  std::lock_guard<std::mutex> lock(guard);
  reinterpret_cast<Stream *>(stream)->is_captured = false;
  --captured;
  *out = nullptr;
  return CUDA_SUCCESS;
}

API CUresult cuEventCreate(CUevent *out, unsigned) {
  static int event;
  *out = reinterpret_cast<CUevent>(&event);
  return CUDA_SUCCESS;
}

API CUresult cuEventDestroy_v2(CUevent) { return CUDA_SUCCESS; }
API CUresult cuEventRecord(CUevent, CUstream) { return CUDA_SUCCESS; }
API CUresult cuEventQuery(CUevent) { return unless_captured(); }
API CUresult cuEventSynchronize(CUevent) { return unless_captured(); }

API CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  std::swap(*mode, mode_of_thread);
  return CUDA_SUCCESS;
}
API CUresult cuStreamWaitEvent(CUstream, CUevent, unsigned) { return CUDA_SUCCESS; }
API CUresult cuCtxSynchronize() { return captured ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS; }

// ------------------------------------------------------------------------------------------------------------- memory

API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream) {
  if (bytes > size_t(150754820096)) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = 0x7f0000000000;  // nothing runs: nobody follows it
  return CUDA_SUCCESS;
}

API CUresult cuMemFreeAsync(CUdeviceptr, CUstream) { return CUDA_SUCCESS; }

// All memory is the device's here.
API CUresult cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr pointer) {
  const int device = 0;
  const unsigned kind = CU_MEMORYTYPE_DEVICE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: std::memcpy(out, &pointer, sizeof pointer); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: std::memcpy(out, &kind, sizeof kind); break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: std::memcpy(out, &device, sizeof device); break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: std::memcpy(out, &device, sizeof(bool)); break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

API CUresult cuGetErrorString(CUresult error, const char **out) {
  switch (error) {
    case CUDA_SUCCESS: *out = "no error"; break;
    case CUDA_ERROR_INVALID_VALUE: *out = "invalid argument"; break;
    case CUDA_ERROR_INVALID_DEVICE: *out = "invalid device ordinal"; break;
    case CUDA_ERROR_INVALID_IMAGE: *out = "device kernel image is invalid"; break;
    case CUDA_ERROR_INVALID_CONTEXT: *out = "invalid device context"; break;
    case CUDA_ERROR_INVALID_HANDLE: *out = "invalid resource handle"; break;
    case CUDA_ERROR_NOT_FOUND: *out = "named symbol not found"; break;
    case CUDA_ERROR_INVALID_CLUSTER_SIZE: *out = "a kernel launch error has occurred due to cluster misconfiguration"; break;
    case CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: *out = "too many blocks in cooperative launch"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *out = "out of memory"; break;
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: *out = "operation not permitted when stream is capturing"; break;
    default: *out = "unknown error";
  }
  return CUDA_SUCCESS;
}
