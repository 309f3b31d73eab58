// SYCL behind a C boundary: queues, loading of SPIR-V and of cached device binaries, the nd_range<3> launch, events.
//
// Built with any C++17 compiler against the headers of the installed SYCL runtime at first use; called through ctypes. Every
// function catches: on failure it returns null or -1 and gp_error() tells why, per thread. Handles that a function returns are
// owned by the caller and given back to the matching gp_*_free. Ranges are in SYCL's order (z, y, x), the caller reverses.

#include <sycl/sycl.hpp>

#include <CL/cl.h>

#include "launch_abi.h"

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace {

// What gp_kernel_load is given; as in backends/sycl.py.
enum Kind { kSpirv = 0, kDeviceBinary = 1, kBundle = 2, kSource = 3 };

thread_local std::string last_error;

template <typename F, typename R>
R guarded(R failed, F body) noexcept {
  try {
    last_error.clear();
    return body();
  } catch (const std::exception &e) {
    try { last_error = e.what(); } catch (...) {}
  } catch (...) {
    try { last_error = "unknown C++ exception"; } catch (...) {}
  }
  return failed;
}

struct Failure : std::exception {
  std::string text;
  explicit Failure(std::string t) : text(std::move(t)) {}
  const char *what() const noexcept override { return text.c_str(); }
};

void check(cl_int code, const char *call) {
  if (code != CL_SUCCESS) throw Failure(std::string(call) + ": OpenCL error " + std::to_string(code));
}

struct Program {  // releases on every path
  cl_program value = nullptr;
  ~Program() { if (value) clReleaseProgram(value); }
};

struct Kernel {
  cl_kernel value = nullptr;
  ~Kernel() { if (value) clReleaseKernel(value); }
};

sycl::kernel load_opencl(const sycl::queue &queue, const unsigned char *data, size_t size, int kind, const char *name,
                         const char *flags, std::vector<unsigned char> *made) {
  auto context = queue.get_context();
  cl_context cl_ctx = sycl::get_native<sycl::backend::opencl>(context);
  cl_device_id device = sycl::get_native<sycl::backend::opencl>(queue.get_device());
  cl_int code = CL_SUCCESS, status = CL_SUCCESS;
  Program program;
  if (kind == kDeviceBinary) {
    program.value = clCreateProgramWithBinary(cl_ctx, 1, &device, &size, &data, &status, &code);
    check(code, "clCreateProgramWithBinary");
    check(status, "clCreateProgramWithBinary (binary status)");
  } else if (kind == kSource) {
    const char *text = reinterpret_cast<const char *>(data);
    program.value = clCreateProgramWithSource(cl_ctx, 1, &text, &size, &code);
    check(code, "clCreateProgramWithSource");
  } else {
    program.value = clCreateProgramWithIL(cl_ctx, data, size, &code);
    check(code, "clCreateProgramWithIL");
  }
  code = clBuildProgram(program.value, 1, &device, flags, nullptr, nullptr);
  if (code != CL_SUCCESS) {
    size_t length = 0;
    clGetProgramBuildInfo(program.value, device, CL_PROGRAM_BUILD_LOG, 0, nullptr, &length);
    std::string log(length, '\0');
    if (length) clGetProgramBuildInfo(program.value, device, CL_PROGRAM_BUILD_LOG, length, &log[0], nullptr);
    while (!log.empty() && (log.back() == '\0' || log.back() == '\n')) log.pop_back();
    throw Failure("clBuildProgram: OpenCL error " + std::to_string(code) + "\n" + log);
  }
  if (made) {
    size_t length = 0;
    check(clGetProgramInfo(program.value, CL_PROGRAM_BINARY_SIZES, sizeof length, &length, nullptr), "clGetProgramInfo");
    made->resize(length);
    unsigned char *target = made->data();
    check(clGetProgramInfo(program.value, CL_PROGRAM_BINARIES, sizeof target, &target, nullptr), "clGetProgramInfo");
  }
  Kernel kernel;
  kernel.value = clCreateKernel(program.value, name, &code);
  check(code, "clCreateKernel");
  return sycl::make_kernel<sycl::backend::opencl>(kernel.value, context);  // takes a reference of its own
}

// Any other backend of SYCL (Level Zero), and the OpenCL one where asked: no build log, no binary to keep.
sycl::kernel load_bundle(const sycl::queue &queue, const unsigned char *data, size_t size, const char *name) {
  namespace syclex = sycl::ext::oneapi::experimental;
  std::vector<std::byte> words(size);
  std::memcpy(words.data(), data, size);
  auto source = syclex::create_kernel_bundle_from_source(queue.get_context(), syclex::source_language::spirv, words);
  auto bundle = syclex::build(source, std::vector<sycl::device>{queue.get_device()});
  return bundle.ext_oneapi_get_kernel(name);
}

void set_argument(sycl::handler &handler, int index, uint8_t kind, const uint64_t &bits) {
  switch (kind) {
    case 0: handler.set_arg(index, reinterpret_cast<void *>(bits)); break;
    case 1: handler.set_arg(index, static_cast<uint8_t>(bits)); break;
    case 2: handler.set_arg(index, static_cast<uint16_t>(bits)); break;
    case 4: handler.set_arg(index, static_cast<uint32_t>(bits)); break;
    case 8: handler.set_arg(index, bits); break;
    default: throw Failure("argument " + std::to_string(index) + ": no kind " + std::to_string(kind));
  }
}

sycl::event submit(sycl::queue &queue, const sycl::kernel &kernel, const sycl::nd_range<3> &range, uint64_t local_bytes, int count,
                   const uint8_t *kinds, const uint64_t *bits) {
  return queue.submit([&](sycl::handler &handler) {
    for (int i = 0; i < count; ++i) set_argument(handler, i, kinds[i], bits[i]);
    if (local_bytes) handler.set_arg(count, sycl::local_accessor<uint8_t, 1>(sycl::range<1>(local_bytes), handler));
    handler.parallel_for(range, kernel);
  });
}

// A launch of the native path: programs become work-groups, x fastest.
sycl::event submit(const gridpact_launch *l) {
  const size_t threads = l->threads;
  const sycl::nd_range<3> range({l->programs[2], l->programs[1], l->programs[0] * threads}, {1, 1, threads});
  return submit(*reinterpret_cast<sycl::queue *>(l->stream), *reinterpret_cast<sycl::kernel *>(l->kernel), range, l->shared_bytes,
                static_cast<int>(l->count), l->sizes, l->bits);
}

int launch(void *, gridpact_launch *l) {
  return guarded(-1, [&] {
    auto event = submit(l);
    if (l->flags & GRIDPACT_WAIT) event.wait_and_throw();
    else l->event = new sycl::event(event);
    return 0;
  });
}

int repeat(void *, const gridpact_launch *l, uint64_t times) {
  return guarded(-1, [&] {
    for (uint64_t i = 0; i < times; ++i) {
      auto event = submit(l);
      if (l->flags & GRIDPACT_WAIT) event.wait_and_throw();
    }
    return 0;
  });
}

int wait(void *event) {
  return guarded(-1, [&] {
    static_cast<sycl::event *>(event)->wait_and_throw();
    return 0;
  });
}

int is_complete(void *event) {
  return guarded(-1, [&] {
    auto status = static_cast<sycl::event *>(event)->get_info<sycl::info::event::command_execution_status>();
    return static_cast<int>(status == sycl::info::event_command_status::complete);
  });
}

void release(void *event) { delete static_cast<sycl::event *>(event); }

const std::vector<sycl::device> &devices() {  // the runtime makes its list once, too
  static const auto found = sycl::device::get_devices(sycl::info::device_type::all);
  return found;
}

}  // namespace

extern "C" {

/// Why the last call of this thread failed; borrowed until the next call.
const char *gp_error() { return last_error.c_str(); }

/// How many SYCL devices there are, or -1.
int gp_device_count() {
  return guarded(-1, [] { return static_cast<int>(devices().size()); });
}

/// A line of text about a device: type, backend, name, driver version, tab separated. Writes at most `size` bytes.
int gp_device_text(int index, char *text, size_t size) {
  return guarded(-1, [&] {
    auto device = devices().at(index);
    std::string kind = device.is_cpu() ? "cpu" : device.is_gpu() ? "gpu" : "other";
    auto backend = device.get_backend();
    std::string via = backend == sycl::backend::opencl                    ? "opencl"
                      : backend == sycl::backend::ext_oneapi_level_zero ? "level_zero"
                                                                          : "other";
    std::string line = kind + "\t" + via + "\t" + device.get_info<sycl::info::device::name>() + "\t" +
                       device.get_info<sycl::info::device::driver_version>();
    if (line.size() + 1 > size) throw Failure("device text does not fit");
    std::memcpy(text, line.c_str(), line.size() + 1);
    return 0;
  });
}

/// Numbers of a device: threads per group, local memory in bytes, compute units, fp64, fp16, system USM; then the sub-group
/// sizes. `numbers` has room for `room`; gives how many were written, or -1.
int gp_device_numbers(int index, uint64_t *numbers, int room) {
  return guarded(-1, [&] {
    auto device = devices().at(index);
    std::vector<uint64_t> found = {
        device.get_info<sycl::info::device::max_work_group_size>(),
        device.get_info<sycl::info::device::local_mem_size>(),
        device.get_info<sycl::info::device::max_compute_units>(),
        device.has(sycl::aspect::fp64),
        device.has(sycl::aspect::fp16),
        device.has(sycl::aspect::usm_system_allocations),
    };
    for (size_t size : device.get_info<sycl::info::device::sub_group_sizes>()) found.push_back(size);
    if (found.size() > static_cast<size_t>(room)) throw Failure("device numbers do not fit");
    std::copy(found.begin(), found.end(), numbers);
    return static_cast<int>(found.size());
  });
}

/// A new queue on a device, in its default context.
void *gp_queue_new(int index, int in_order) {
  return guarded(static_cast<void *>(nullptr), [&]() -> void * {
    auto device = devices().at(index);
    return in_order ? new sycl::queue(device, sycl::property::queue::in_order()) : new sycl::queue(device);
  });
}

void gp_queue_free(void *queue) { delete static_cast<sycl::queue *>(queue); }

/// Waits for all launches of a queue and reports their asynchronous errors.
int gp_queue_wait(void *queue) {
  return guarded(-1, [&] {
    static_cast<sycl::queue *>(queue)->wait_and_throw();
    return 0;
  });
}

/// Whether a queue itself runs what it is given in order: 1, 0, or -1 on failure.
int gp_queue_is_in_order(void *queue) {
  return guarded(-1, [&] { return static_cast<int>(static_cast<sycl::queue *>(queue)->is_in_order()); });
}

/// Whether two addresses are of one queue: 1, 0, or -1 on failure. A copy of a `sycl::queue` is the same queue.
int gp_queue_is_same(void *queue, void *other) {
  return guarded(-1, [&] { return static_cast<int>(*static_cast<sycl::queue *>(queue) == *static_cast<sycl::queue *>(other)); });
}

/// Puts a barrier into a queue: what comes later waits for `event`, or, if null, for all that came before. Gives the barrier's
/// event, or null on failure.
void *gp_queue_barrier(void *queue, void *event) {
  return guarded(static_cast<void *>(nullptr), [&]() -> void * {
    auto &q = *static_cast<sycl::queue *>(queue);
    return new sycl::event(event ? q.ext_oneapi_submit_barrier({*static_cast<sycl::event *>(event)})
                                 : q.ext_oneapi_submit_barrier());
  });
}

/// A number that two queues share exactly when they have one context; 0 on failure.
uint64_t gp_queue_context(void *queue) {
  return guarded(uint64_t{0}, [&] {
    return static_cast<uint64_t>(std::hash<sycl::context>()(static_cast<sycl::queue *>(queue)->get_context())) | 1;
  });
}

/// Whether a queue runs on the device of that index: 1, 0, or -1 on failure.
int gp_queue_is_on(void *queue, int index) {
  return guarded(-1, [&] { return static_cast<int>(static_cast<sycl::queue *>(queue)->get_device() == devices().at(index)); });
}

/// Loads SPIR-V (kSpirv: through OpenCL, with a build log; kBundle: as a kernel bundle), a device binary that kSpirv made
/// before, or OpenCL C. With `made`, kSpirv gives the device binary, to be freed with gp_bytes_free. Null on failure.
void *gp_kernel_load(void *queue, const unsigned char *data, size_t size, int kind, const char *name, const char *flags,
                     unsigned char **made, size_t *made_size) {
  return guarded(static_cast<void *>(nullptr), [&]() -> void * {
    auto &q = *static_cast<sycl::queue *>(queue);
    if (kind == kBundle) return new sycl::kernel(load_bundle(q, data, size, name));
    std::vector<unsigned char> binary;
    auto kernel = std::make_unique<sycl::kernel>(
        load_opencl(q, data, size, kind, name, flags, made ? &binary : nullptr));
    if (made) {
      auto copy = std::make_unique<unsigned char[]>(binary.size());
      std::memcpy(copy.get(), binary.data(), binary.size());
      *made = copy.release();
      *made_size = binary.size();
    }
    return kernel.release();
  });
}

void gp_bytes_free(unsigned char *bytes) { delete[] bytes; }

void gp_kernel_free(void *kernel) { delete static_cast<sycl::kernel *>(kernel); }

/// Submits one nd_range<3>. `kinds[i]` is 0 for a pointer, else the scalar's size in bytes; `bits[i]` holds it in its low bytes.
/// A local accessor of `local_bytes` is the last argument if not 0. Gives an event, or null on failure.
void *gp_launch(void *queue, void *kernel, const uint64_t *global_zyx, const uint64_t *local_zyx, uint64_t local_bytes,
                int count, const uint8_t *kinds, const uint64_t *bits) {
  return guarded(static_cast<void *>(nullptr), [&]() -> void * {
    const sycl::nd_range<3> range({global_zyx[0], global_zyx[1], global_zyx[2]}, {local_zyx[0], local_zyx[1], local_zyx[2]});
    auto event = submit(*static_cast<sycl::queue *>(queue), *static_cast<sycl::kernel *>(kernel), range, local_bytes, count, kinds, bits);
    return new sycl::event(event);
  });
}

/// Waits for a launch and reports its error.
int gp_event_wait(void *event) { return wait(event); }

/// Whether a launch is complete: 1, 0, or -1 on failure.
int gp_event_is_complete(void *event) { return is_complete(event); }

/// The table of calls that the native path takes (launch_abi.h); lives as long as the library.
const gridpact_driver *gp_native_table() {
  static const gridpact_driver table = {GRIDPACT_LAUNCH_ABI, sizeof(gridpact_driver), nullptr, launch, repeat, wait, is_complete, release};
  return &table;
}

void gp_event_free(void *event) { release(event); }

}  // extern "C"
