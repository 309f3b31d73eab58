"""Triton kernels through SYCL: the CPU by way of OpenCL, and Intel GPUs by way of Level Zero, with the same code.

A program becomes a work-group of a `sycl::nd_range<3>`. This is the only file that knows the device's order of axes:
SYCL's last dimension is the fastest, so (x, y, z) programs become the range (z, y, x * threads), and names in that
order end in `_zyx`.

The CPU runtime checks little: zero sizes, partial groups and wrapped counts pass in silence. So everything is checked
here or before. An Intel GPU takes the same path without the CPU's filter and with its own loader; that part could not
be run here.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import importlib.metadata
import os
import platform
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, Protocol, cast

from gridpact import backends, cache, native, spirv, toolchain
from gridpact.arguments import SIZES, Classified, Leaf, Pointer
from gridpact.backends.ending import free_with, gate, gated
from gridpact.backends.flights import Flights
from gridpact.backends.protocol import Device, DeviceStatus, LaunchDesc, Limits, Mark, NativeCalls, StreamRef
from gridpact.errors import (
    BackendError,
    ContractTypeError,
    ContractValueError,
    LaunchError,
    UnsupportedError,
)
from gridpact.identity import Typed
from gridpact.metadata import KernelMetadata, Option, Policy, lacking_resources, nearest_name, option_table
from gridpact.state import Source
from gridpact.stream import Stream, TorchCurrent

__all__ = [
    "FIELDS",
    "PROGRAMS_PER_AXIS",
    "THREADS_IN_LAUNCH",
    "device_names",
    "open_device",
    "options_of",
    "ranges_zyx",
    "status",
    "target_of",
]

PROGRAMS_PER_AXIS: Final = 2**31 - 1  # program_id is a signed 32-bit number in the kernel; SYCL itself has no limit
THREADS_IN_LAUNCH: Final = 2**64 - 1  # sycl::range counts in size_t
_TOOLCHAIN_SUB_GROUPS: Final = (16, 32)  # the sizes that Intel's backend plans its layouts for
_OPENCL_DRIVER: Final = "libintelocl.so"
# Opened by path and in this order before ours, so that no search path or rpath is needed.
_LIBRARIES: Final = ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so", "libOpenCL.so.1")

_Handle = int


# ------------------------------------------------------------------------------------------- the runtime, two routes


@dataclass(frozen=True)
class _Found:
    """A device as the runtime lists it."""

    index: int
    kind: str
    via: str
    product: str
    driver: str
    threads: int
    local_bytes: int
    compute_units: int
    has_fp64: bool
    has_fp16: bool
    reaches_host_memory: bool
    sub_group_sizes: tuple[int, ...]


class _Route(Protocol):
    """A way to the SYCL runtime. Handles are addresses; whoever receives one gives it back to its `free_*`."""

    name: str
    threads_in_launch: int
    keeps_binaries: bool
    native_table: int  # address of its table of calls for the native path, 0 without

    def failed(self, code: int) -> None: ...

    def devices(self) -> list[_Found]: ...
    def new_queue(self, index: int, in_order: bool) -> _Handle: ...
    def free_queue(self, queue: _Handle) -> None: ...
    def wait_queue(self, queue: _Handle) -> None: ...
    def is_in_order(self, queue: _Handle) -> bool: ...
    def is_same(self, queue: _Handle, other: _Handle) -> bool: ...
    def barrier(self, queue: _Handle, event: _Handle | None) -> _Handle: ...
    def context_of(self, queue: _Handle) -> int: ...
    def is_on(self, queue: _Handle, index: int) -> bool: ...
    def load(self, queue: _Handle, code: bytes, kind: int, name: str, flags: str) -> tuple[_Handle, bytes]: ...
    def free_kernel(self, kernel: _Handle) -> None: ...
    def submit(
        self,
        queue: _Handle,
        kernel: _Handle,
        global_zyx: tuple[int, int, int],
        local_zyx: tuple[int, int, int],
        local_bytes: int,
        leaves: Sequence[Leaf],
    ) -> _Handle: ...
    def wait(self, event: _Handle) -> None: ...
    def is_complete(self, event: _Handle) -> bool: ...
    def free_event(self, event: _Handle) -> None: ...


_SPIRV, _DEVICE_BINARY, _BUNDLE, _SOURCE = 0, 1, 2, 3  # what `load` is given; as in native/sycl.cpp
_Three = ctypes.c_uint64 * 3


class _Native:
    """Our own library over `sycl::queue`, built at first use: build logs, device binaries, 64-bit ranges."""

    name = "native"
    threads_in_launch = THREADS_IN_LAUNCH
    keeps_binaries = True

    def __init__(self, include: Path, folder: Path) -> None:
        sycl = _libsycl(folder)
        versions = [importlib.metadata.version("intel-sycl-rt")]
        built = native.library("sycl.cpp", include, [sycl, folder / "libOpenCL.so.1"], versions)
        ctypes.CDLL(str(sycl))
        library = ctypes.CDLL(str(built))
        address, integer, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
        table: dict[str, tuple[Any, list[Any]]] = {
            "gp_error": (ctypes.c_char_p, []),
            "gp_device_count": (integer, []),
            "gp_device_text": (integer, [integer, ctypes.c_char_p, size]),
            "gp_device_numbers": (integer, [integer, address, integer]),
            "gp_queue_new": (address, [integer, integer]),
            "gp_queue_free": (None, [address]),
            "gp_queue_wait": (integer, [address]),
            "gp_queue_is_in_order": (integer, [address]),
            "gp_queue_is_same": (integer, [address, address]),
            "gp_queue_barrier": (address, [address, address]),
            "gp_queue_context": (ctypes.c_uint64, [address]),
            "gp_queue_is_on": (integer, [address, integer]),
            "gp_kernel_load": (
                address,
                [address, ctypes.c_char_p, size, integer, ctypes.c_char_p, ctypes.c_char_p, address, address],
            ),
            "gp_bytes_free": (None, [address]),
            "gp_kernel_free": (None, [address]),
            "gp_launch": (
                address,
                [address, address, _Three, _Three, ctypes.c_uint64, integer, address, address],
            ),
            "gp_event_wait": (integer, [address]),
            "gp_event_is_complete": (integer, [address]),
            "gp_event_free": (None, [address]),
            "gp_native_table": (address, []),
        }
        for name, (result, arguments) in table.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library
        self.native_table = int(library.gp_native_table())

    def failed(self, code: int) -> None:
        """Raise the error of a launch that the native path made, on the thread that made it."""
        raise self._failed("sycl::queue::submit")

    def _failed(self, call: str) -> BackendError:
        text = (self._library.gp_error() or b"").decode(errors="replace")
        reason, _, log = text.partition("\n")
        return BackendError("sycl", call, reason, log)

    def devices(self) -> list[_Found]:
        count = self._library.gp_device_count()
        if count < 0:
            raise self._failed("sycl::device::get_devices")
        found = []
        for index in range(count):
            text, numbers = ctypes.create_string_buffer(1024), (ctypes.c_uint64 * 64)()
            if self._library.gp_device_text(index, text, len(text)) < 0:
                raise self._failed("sycl::device::get_info")
            written = self._library.gp_device_numbers(index, numbers, len(numbers))
            if written < 0:
                raise self._failed("sycl::device::get_info")
            kind, via, product, driver = text.value.decode(errors="replace").split("\t")
            threads, local, units, fp64, fp16, host, *sizes = numbers[:written]
            found.append(
                _Found(
                    index,
                    kind,
                    via,
                    product,
                    driver,
                    threads,
                    local,
                    units,
                    bool(fp64),
                    bool(fp16),
                    bool(host),
                    tuple(sizes),
                )
            )
        return found

    def new_queue(self, index: int, in_order: bool) -> _Handle:
        queue: int | None = self._library.gp_queue_new(index, in_order)
        if not queue:
            raise self._failed("sycl::queue")
        return queue

    def free_queue(self, queue: _Handle) -> None:
        self._library.gp_queue_free(queue)

    def wait_queue(self, queue: _Handle) -> None:
        if self._library.gp_queue_wait(queue):
            raise self._failed("sycl::queue::wait_and_throw")

    def is_in_order(self, queue: _Handle) -> bool:
        answer = self._library.gp_queue_is_in_order(queue)
        if answer < 0:
            raise self._failed("sycl::queue::is_in_order")
        return bool(answer)

    def is_same(self, queue: _Handle, other: _Handle) -> bool:
        answer = self._library.gp_queue_is_same(queue, other)
        if answer < 0:
            raise self._failed("sycl::queue::operator==")
        return bool(answer)

    def barrier(self, queue: _Handle, event: _Handle | None) -> _Handle:
        made: int | None = self._library.gp_queue_barrier(queue, event)
        if not made:
            raise self._failed("sycl::queue::ext_oneapi_submit_barrier")
        return made

    def context_of(self, queue: _Handle) -> int:
        context: int = self._library.gp_queue_context(queue)
        if not context:
            raise self._failed("sycl::queue::get_context")
        return context

    def is_on(self, queue: _Handle, index: int) -> bool:
        answer = self._library.gp_queue_is_on(queue, index)
        if answer < 0:
            raise self._failed("sycl::queue::get_device")
        return bool(answer)

    def load(self, queue: _Handle, code: bytes, kind: int, name: str, flags: str) -> tuple[_Handle, bytes]:
        made, made_size = ctypes.c_void_p(), ctypes.c_size_t()
        wants = kind == _SPIRV
        kernel: int | None = self._library.gp_kernel_load(
            queue, code, len(code), kind, name.encode(), flags.encode(),
            ctypes.byref(made) if wants else None, ctypes.byref(made_size) if wants else None,
        )  # fmt: skip
        if not kernel:
            raise self._failed("loading the kernel")
        if not made.value:
            return kernel, b""
        binary = ctypes.string_at(made.value, made_size.value)
        self._library.gp_bytes_free(made)
        return kernel, binary

    def free_kernel(self, kernel: _Handle) -> None:
        self._library.gp_kernel_free(kernel)

    def submit(
        self,
        queue: _Handle,
        kernel: _Handle,
        global_zyx: tuple[int, int, int],
        local_zyx: tuple[int, int, int],
        local_bytes: int,
        leaves: Sequence[Leaf],
    ) -> _Handle:
        count = len(leaves)
        kinds = (ctypes.c_uint8 * count)(*(0 if leaf.pointer is not None else SIZES[leaf.kind] for leaf in leaves))
        bits = (ctypes.c_uint64 * count)(*(leaf.bits for leaf in leaves))
        event: int | None = self._library.gp_launch(
            queue, kernel, _Three(*global_zyx), _Three(*local_zyx), local_bytes, count, kinds, bits
        )
        if not event:
            raise self._failed("sycl::queue::submit")
        return event

    def wait(self, event: _Handle) -> None:
        if self._library.gp_event_wait(event):
            raise self._failed("sycl::event::wait_and_throw")

    def is_complete(self, event: _Handle) -> bool:
        answer = self._library.gp_event_is_complete(event)
        if answer < 0:
            raise self._failed("sycl::event::get_info")
        return bool(answer)

    def free_event(self, event: _Handle) -> None:
        self._library.gp_event_free(event)


_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


class _LocalAccessor(ctypes.Structure):
    """dpctl's `MDLocalAccessor`: dimensions, element type, three extents."""

    _fields_ = [
        ("dimensions", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("extents", ctypes.c_size_t * 3),
    ]


class _Dpctl:
    """dpctl's C library, where there is no compiler: no build log, no device binaries, less than 2^31 threads."""

    name = "dpctl"
    threads_in_launch = 2**31 - 1  # its build of the runtime's headers refuses ids past int
    keeps_binaries = False
    native_table = 0
    _TYPES: Final = {1: 1, 2: 3, 4: 5, 8: 7}  # size -> DPCTL_UINT8_T, ...; dpctl_sycl_enum_types.h
    _VOID_PTR, _LOCAL_ACCESSOR, _COMPLETE = 10, 11, 3

    def __init__(self, folder: Path) -> None:
        import dpctl
        import dpctl.program

        self._dpctl = dpctl
        library = ctypes.CDLL(str(Path(dpctl.__file__).with_name("libDPCTLSyclInterface.so")))
        address, size = ctypes.c_void_p, ctypes.c_size_t
        table: dict[str, tuple[Any, list[Any]]] = {
            "DPCTLQueue_SubmitNDRange": (
                address,
                [address, address, address, address, size, _Three, _Three, size, address, size],
            ),
            "DPCTLQueue_Wait": (None, [address]),
            "DPCTLQueue_AreEq": (ctypes.c_bool, [address, address]),
            "DPCTLQueue_IsInOrder": (ctypes.c_bool, [address]),
            "DPCTLQueue_SubmitBarrier": (address, [address]),
            "DPCTLQueue_SubmitBarrierForEvents": (address, [address, address, size]),
            "DPCTLEvent_Wait": (None, [address]),
            "DPCTLEvent_GetCommandExecutionStatus": (ctypes.c_int, [address]),
            "DPCTLEvent_Delete": (None, [address]),
        }
        for name, (result, arguments) in table.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        self._library = library
        self._owned: dict[_Handle, Any] = {}  # dpctl's objects behind the handles that were given out

    def devices(self) -> list[_Found]:
        return [
            _Found(
                index,
                device.device_type.name,
                device.backend.name,
                device.name,
                device.driver_version,
                device.max_work_group_size,
                device.local_mem_size,
                device.max_compute_units,
                device.has_aspect_fp64,
                device.has_aspect_fp16,
                device.has_aspect_usm_system_allocations,
                tuple(device.sub_group_sizes),
            )
            for index, device in enumerate(self._dpctl.get_devices())
        ]

    def new_queue(self, index: int, in_order: bool) -> _Handle:
        device = self._dpctl.get_devices()[index]
        queue = self._dpctl.SyclQueue(device, property="in_order") if in_order else self._dpctl.SyclQueue(device)
        return self._own(queue)

    def _own(self, thing: Any) -> _Handle:
        handle: int = thing.addressof_ref()
        self._owned[handle] = thing
        return handle

    def free_queue(self, queue: _Handle) -> None:
        self._owned.pop(queue, None)

    def wait_queue(self, queue: _Handle) -> None:
        self._library.DPCTLQueue_Wait(queue)

    def is_in_order(self, queue: _Handle) -> bool:
        return bool(self._library.DPCTLQueue_IsInOrder(queue))

    def is_same(self, queue: _Handle, other: _Handle) -> bool:
        return bool(self._library.DPCTLQueue_AreEq(queue, other))

    def barrier(self, queue: _Handle, event: _Handle | None) -> _Handle:
        made: int | None
        if event is None:
            made = self._library.DPCTLQueue_SubmitBarrier(queue)
        else:
            made = self._library.DPCTLQueue_SubmitBarrierForEvents(queue, (ctypes.c_void_p * 1)(event), 1)
        if not made:
            raise BackendError("sycl", "DPCTLQueue_SubmitBarrier", "it returned null")
        return made

    def failed(self, code: int) -> None:
        """No launch comes here by the native path."""

    def _queue(self, queue: _Handle) -> Any:
        owned = self._owned.get(queue)
        if owned is not None:
            return owned
        return self._dpctl.SyclQueue(_new_capsule(queue, b"SyclQueueRef", None))  # makes a copy, which it owns

    def context_of(self, queue: _Handle) -> int:
        return hash(self._queue(queue).sycl_context) | 1

    def is_on(self, queue: _Handle, index: int) -> bool:
        return bool(self._queue(queue).sycl_device == self._dpctl.get_devices()[index])

    def load(self, queue: _Handle, code: bytes, kind: int, name: str, flags: str) -> tuple[_Handle, bytes]:
        try:
            if kind == _SOURCE:
                program = self._dpctl.program.create_program_from_source(self._queue(queue), code.decode(), flags)
            else:
                program = self._dpctl.program.create_program_from_spirv(self._queue(queue), code, flags)
            return self._own(program.get_sycl_kernel(name)), b""
        except Exception as error:  # its own class is not public under one name
            remedy = "Install g++ to have the runtime's build log."
            raise BackendError("sycl", "create_program_from_spirv", str(error), remedy=remedy) from error

    def free_kernel(self, kernel: _Handle) -> None:
        self._owned.pop(kernel, None)

    def submit(
        self,
        queue: _Handle,
        kernel: _Handle,
        global_zyx: tuple[int, int, int],
        local_zyx: tuple[int, int, int],
        local_bytes: int,
        leaves: Sequence[Leaf],
    ) -> _Handle:
        count = len(leaves) + bool(local_bytes)
        values, kinds = (ctypes.c_void_p * count)(), (ctypes.c_int * count)()
        bits = (ctypes.c_uint64 * len(leaves))(*(leaf.bits for leaf in leaves))
        for i, leaf in enumerate(leaves):
            if leaf.pointer is not None:
                values[i], kinds[i] = leaf.bits, self._VOID_PTR
            else:
                values[i] = ctypes.addressof(bits) + i * ctypes.sizeof(ctypes.c_uint64)
                kinds[i] = self._TYPES[SIZES[leaf.kind]]
        local = _LocalAccessor(1, self._TYPES[1], (local_bytes, 1, 1))
        if local_bytes:
            values[count - 1], kinds[count - 1] = ctypes.addressof(local), self._LOCAL_ACCESSOR
        event: int | None = self._library.DPCTLQueue_SubmitNDRange(
            kernel, queue, values, kinds, count, _Three(*global_zyx), _Three(*local_zyx), 3, None, 0
        )
        if not event:
            remedy = "Set DPCTL_VERBOSITY=warning to see the reason."
            raise BackendError("sycl", "DPCTLQueue_SubmitNDRange", "it returned null", remedy=remedy)
        return event

    def wait(self, event: _Handle) -> None:
        self._library.DPCTLEvent_Wait(event)

    def is_complete(self, event: _Handle) -> bool:
        return bool(self._library.DPCTLEvent_GetCommandExecutionStatus(event) == self._COMPLETE)

    def free_event(self, event: _Handle) -> None:
        self._library.DPCTLEvent_Delete(event)


def _libsycl(folder: Path) -> Path:
    """Give the runtime by its full soname: `libsycl.so` alone would be a second copy beside dpctl's."""
    return next(path for path in sorted(folder.glob("libsycl.so.?")))


def installed_file(distribution: str, ending: str) -> Path:
    for file in importlib.metadata.files(distribution) or ():
        if str(file).endswith(ending):
            return Path(str(file.locate())).resolve()
    raise BackendError("sycl", f"looking for {ending} of {distribution}", "the distribution lacks it")


_opening = threading.RLock()


@lru_cache(maxsize=1)
def _runtime() -> tuple[_Route, list[_Found]]:
    """Open the SYCL runtime that pip installed, without any variable set by the user, and list its devices.

    It must happen before the process asks the runtime for devices for the first time: the list is made once.
    """
    try:
        header = installed_file("intel-sycl-rt", "include/sycl/sycl.hpp")
        driver = installed_file("intel-opencl-rt", f"/{_OPENCL_DRIVER}")
    except importlib.metadata.PackageNotFoundError as error:
        machine = "" if platform.machine() == "x86_64" else f" (Intel publishes none for {platform.machine()})"
        raise UnsupportedError(
            "sycl",
            f"{error.name} is not installed{machine}",
            remedy="Run: pip install 'gridpact[sycl]'.",
            capability="sycl_runtime",
        ) from error
    folder = installed_file("intel-sycl-rt", "/libsycl.so").parent
    drivers = [path for path in os.environ.get("OCL_ICD_FILENAMES", "").split(":") if path]
    if str(driver) not in drivers:
        os.environ["OCL_ICD_FILENAMES"] = ":".join([*drivers, str(driver)])
    _watch_forks()
    for name in _LIBRARIES:
        ctypes.CDLL(str(folder / name))
    route: _Route = _Native(header.parent.parent, folder) if native.compiler() else _Dpctl(folder)
    return route, route.devices()


_is_forked = False


@lru_cache(maxsize=1)
def _watch_forks() -> None:
    """Tell children from now on: one that is forked while the runtime is being opened has half of it."""
    libc = ctypes.CDLL(None)  # looked up now: a child may find the linker's lock held by a thread that is gone
    os.register_at_fork(after_in_child=partial(_after_fork, libc.on_exit, libc._exit))


def _after_fork(on_exit: Callable[..., int], leave: Callable[..., None]) -> None:
    """Refuse the runtime in a child, and let it leave without the runtime's own end, which may wait for lost threads.

    glibc calls what `on_exit` was given last first, before destructors of libraries, and with the exit code.
    """
    global _is_forked
    _is_forked = True
    on_exit(leave, None)


def _check_process(name: str) -> None:
    if _is_forked:
        raise BackendError(
            name,
            "using the SYCL runtime",
            "this process was forked after its parent opened the runtime, whose threads did not come along",
            remedy="Start the child with the 'spawn' method, or open the device in the child only.",
        )


# --------------------------------------------------------------------------------------------------- launch options


_NO_CLUSTERS: Final = "SYCL has no clusters of work-groups"
_HARDWARE: Final = "it needs an Intel GPU's matrix and block instructions"
# What becomes of each option of Intel's backend; one that is not here is refused unless default.
_POLICIES: Final[dict[str, tuple[Policy, str]]] = {
    "num_ctas": ("default only", _NO_CLUSTERS),
    "cluster_dims": ("default only", _NO_CLUSTERS),
    "launch_cooperative_grid": ("default only", "the runtime promises no forward progress between work-groups"),
    "grf_mode": ("default only", "it chooses register files that only Intel GPUs have"),
    "generate_native_code": ("default only", "it needs Intel's offline GPU compiler"),
    "advanced_path": ("default only", _HARDWARE),
    "one_matrix_per_load_for_bt": ("default only", _HARDWARE),
    "backend_name": ("default only", "it is not a choice"),
    "max_num_imprecise_acc_default": ("irrelevant", "it concerns NVIDIA's sm_90 alone"),
    "allow_fp8e4nv": ("default only", "the backend always allows it"),
    **dict.fromkeys(
        (
            "num_warps", "num_stages", "threads_per_warp", "optimize_epilogue", "enable_fp_fusion",
            "supported_fp8_dtypes", "deprecated_fp8_dtypes", "default_dot_input_precision",
            "allowed_dot_input_precisions", "allow_fp8e4b15", "extern_libs", "debug", "sanitize_overflow",
        ),
        ("applied", ""),
    ),
}  # fmt: skip


_NO_SCRATCH: Final = "launches pass no scratch memory"
FIELDS: Final[Mapping[str, Option]] = {
    "name": Option("", "applied"),
    "shared": Option(0, "applied"),
    "build_flags": Option("", "applied"),
    "target": Option(None, "irrelevant", "it is what the binary was compiled for, and part of its identity"),
    "hash": Option("", "irrelevant", "gridpact has an identity of its own"),
    "triton_version": Option("", "irrelevant", "the toolchain is part of the binary's identity"),
    "warp_size": Option(32, "irrelevant", "compiling makes threads_per_warp of it, which launches use"),
    "global_scratch_size": Option(0, "default only", _NO_SCRATCH),
    "global_scratch_align": Option(1, "irrelevant", _NO_SCRATCH),
    "profile_scratch_size": Option(0, "default only", _NO_SCRATCH),
    "profile_scratch_align": Option(1, "irrelevant", _NO_SCRATCH),
    "tmem_size": Option(0, "default only", "tensor memory is NVIDIA's"),
    "maxnreg": Option(None, "default only", "the compiler of the device chooses registers"),
    "launch_pdl": Option(False, "default only", "SYCL has no programmatic dependent launch"),
}
"""Metadata fields besides the options, of this and of other versions of the toolchain, and what becomes of each."""


def options_of(target: toolchain.Target, sub_group_sizes: tuple[int, ...]) -> dict[str, Option]:
    """Give the launch options of a device with these sub-group sizes; needs no device."""

    def lanes(value: object) -> str | None:
        return None if value in sub_group_sizes else f"expected a sub-group size of the device {sub_group_sizes}"

    return option_table(toolchain.option_defaults(target), _POLICIES, {"threads_per_warp": lanes})


def target_of(
    name: str, threads: int, has_fp64: bool, sub_group_sizes: tuple[int, ...], *, inlines_all: bool
) -> toolchain.Target:
    """Give what the binaries of a device with these properties are made for; needs no device."""
    arch = {
        "name": name,
        "has_fp64": has_fp64,
        "max_work_group_size": threads,
        "max_num_sub_groups": threads // max(sub_group_sizes),
        "sub_group_sizes": tuple(size for size in _TOOLCHAIN_SUB_GROUPS if size in sub_group_sizes),
    }
    return toolchain.Target("xpu", tuple(sorted(arch.items())), 32, inlines_all=inlines_all)


def ranges_zyx(x: int, y: int, z: int, threads: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Give the global and the local range of a launch of (x, y, z) programs, as SYCL has them: z first."""
    return (z, y, x * threads), (1, 1, threads)


# ------------------------------------------------------------------------------------------------------- the device


def _free_with(owner: object, free: Callable[[_Handle], None], handle: _Handle) -> None:
    """Free a handle when its owner is gone; not in a forked child, whose runtime is lost."""

    def unless_forked() -> None:
        if not _is_forked:
            free(handle)

    free_with(owner, unless_forked)


class _Queue:
    """Owns a queue; freed when the last stream or launch that uses it is gone."""

    def __init__(self, route: _Route, index: int, in_order: bool) -> None:
        self.handle = route.new_queue(index, in_order)
        _free_with(self, route.free_queue, self.handle)


class _Event:
    """Owns an event: a point in a queue."""

    def __init__(self, route: _Route, handle: _Handle) -> None:
        self.handle = handle
        self._route = route
        _free_with(self, route.free_event, handle)

    @gated
    def wait(self) -> None:
        _check_process("event")
        self._route.wait(self.handle)

    @gated
    def is_complete(self) -> bool:
        _check_process("event")
        return self._route.is_complete(self.handle)


class _Kernel:
    """Owns a loaded kernel; freed with the binary that it was loaded from, after the launches in flight."""

    def __init__(self, route: _Route, handle: _Handle) -> None:
        self.handle = handle
        _free_with(self, route.free_kernel, handle)


class SyclDevice:
    """One SYCL device; see `backends.protocol.Device` for what its methods mean."""

    compiles = True
    fields = FIELDS

    def __init__(self, name: str, route: _Route, found: _Found) -> None:
        self.name = name
        self.route = route
        self.found = found
        self.is_cpu = found.kind == "cpu"
        self.limits = Limits(
            name,
            (PROGRAMS_PER_AXIS,) * 3,
            found.threads,
            found.local_bytes,
            route.threads_in_launch,
        )
        able = {"fp64": found.has_fp64, "fp16": found.has_fp16, "host_memory": found.reaches_host_memory}
        self.capabilities = frozenset(capability for capability, has in able.items() if has)
        product = "cpu" if self.is_cpu else found.product
        self.target = target_of(product, found.threads, found.has_fp64, found.sub_group_sizes, inlines_all=self.is_cpu)
        self._options: dict[str, Option] | None = None
        self._default: _Queue | None = None
        self._loaded: weakref.WeakKeyDictionary[toolchain.Binary, dict[int, _Kernel]] = weakref.WeakKeyDictionary()
        self._flights = Flights()
        self._lock = threading.RLock()
        atexit.register(self._end)

    @property
    def options(self) -> Mapping[str, Option]:
        if self._options is None:
            self._options = options_of(self.target, self.found.sub_group_sizes)
        return self._options

    def _end(self) -> None:
        """Let the interpreter end: nobody comes in any more, and kernels in flight are done with their memory."""
        if not _is_forked:
            gate.shut()
            self.synchronize()

    # -- binaries

    def identity(self, options: Mapping[str, Any]) -> tuple[tuple[str, Typed], ...]:
        return toolchain.facts_of(self.target, options)

    @gated  # the compiler's own threads and locks do not bear it that the interpreter ends under them
    def compile(self, source: Source, arguments: Classified, options: Mapping[str, Any], name: Any) -> toolchain.Binary:
        return toolchain.compile_kernel(source, arguments, self.target, options, name=name)

    @gated
    def load(self, binary: toolchain.Binary, leaves: Sequence[Leaf], stream: StreamRef) -> _Kernel:
        _check_process(self.name)
        context = self.route.context_of(stream.handle)
        with self._lock:
            loaded = self._loaded.setdefault(binary, {})
            kernel = loaded.get(context)
            if kernel is None:
                if binary.kind == "spv":  # a kernel in OpenCL C says nothing of its parameters
                    self._check_parameters(binary, leaves)
                kernel = loaded[context] = _Kernel(self.route, self._load(binary, stream.handle))
        return kernel

    def _check_parameters(self, binary: toolchain.Binary, leaves: Sequence[Leaf]) -> None:
        """Compare how arguments are packed with what the module declares: a mismatch would be silent corruption."""
        entry = spirv.entry_of(binary.code)
        subject = f"kernel {binary.metadata.name!r}"
        if entry.has_inline_assembly and self.is_cpu:
            raise UnsupportedError(
                subject,
                "inline assembly does not run on the CPU, which would compute something else in silence",
                remedy="Write the operation in tl, or with tl.extra.libdevice.",
                capability="inline_assembly",
            )
        if entry.has_calls and self.is_cpu:
            raise UnsupportedError(
                subject,
                "calls of noinline functions do not run on the CPU, whose vectoriser would abort the process",
                remedy="Drop noinline=True from the helper.",
                capability="calls",
            )
        packed = tuple(0 if leaf.pointer is not None else SIZES[leaf.kind] for leaf in leaves)
        declared = entry.parameters[: len(entry.parameters) - entry.has_local]
        if packed != declared or entry.has_local != bool(binary.metadata.shared):
            raise BackendError(
                subject,
                "matching its parameters",
                f"the module declares sizes {declared} and local memory: {entry.has_local}, the launch packs {packed} "
                f"and {binary.metadata.shared} bytes of it",
            )

    def _load(self, binary: toolchain.Binary, queue: _Handle) -> _Handle:
        name, flags = binary.metadata.name, binary.metadata.build_flags
        try:
            if binary.kind == "cl":
                return self.route.load(queue, binary.code, _SOURCE, name, flags)[0]
            if self.found.via != "opencl":
                return self.route.load(queue, binary.code, _BUNDLE, name, flags)[0]
            code = spirv.for_cpu(binary.code) if self.is_cpu else binary.code
            if not self.route.keeps_binaries:
                return self.route.load(queue, code, _SPIRV, name, flags)[0]
            facts = (code, flags, self.found.product, self.found.driver, platform.machine())
            key = hashlib.sha256(repr(facts).encode()).hexdigest()
            kept = cache.read("device", key)
            if kept is not None:
                try:
                    return self.route.load(queue, kept, _DEVICE_BINARY, name, flags)[0]
                except BackendError:  # made for another CPU of the same name: a miss
                    pass
            kernel, made = self.route.load(queue, code, _SPIRV, name, flags)
            cache.write("device", key, made)
            return kernel
        except BackendError as error:
            raise BackendError(
                f"kernel {name!r}", error.call, str(error).partition("failed: ")[2], error.log
            ) from error

    # -- checks

    @gated
    def check_reach(self, subject: str, pointer: Pointer) -> None:
        if pointer.device == "any" or (pointer.device == "host" and self.found.reaches_host_memory):
            return
        owner = backends.owner_of(pointer)
        if owner != self.name:
            raise backends.out_of_reach(subject, self.name, owner)

    def is_host_memory(self, pointer: Pointer) -> bool:
        return pointer.device in ("host", "any")

    def check_resources(self, metadata: KernelMetadata, subject: str) -> None:
        for error in lacking_resources(metadata, self.limits, subject):
            raise error

    def check_may_load(self, stream: StreamRef, subject: str) -> None:
        """No queue is ever recorded here."""

    def check_fits(self, desc: LaunchDesc, subject: str) -> None:
        """There are no clusters, and no programs that have to run at once."""

    # -- streams

    @gated
    def accept_stream(self, stream: object) -> StreamRef:
        _check_process(self.name)
        if isinstance(stream, Stream):
            owner, handle = stream.owner, stream.handle  # first: another thread may close it, and then it says so
            stream.check_open()
            if stream.device not in (self.name, "sycl" if self.is_cpu else ""):
                raise ContractValueError("stream", f"expected one of {self.name}", stream, clause="STREAM-5")
            if not handle:
                raise ContractValueError("stream", "expected the address of a sycl::queue", stream, clause="STREAM-5")
            is_ours = isinstance(owner, _Queue)  # made in order, or without an order because the user wants none
            return StreamRef(handle, owner, not is_ours and not self.route.is_in_order(handle))
        taken = _queue_of(stream)
        if taken is None:
            remedy = "Wrap a raw handle with gridpact.Stream.from_handle." if isinstance(stream, int) else ""
            rule = "expected a gridpact.Stream, a dpctl.SyclQueue or a torch.xpu.Stream"
            raise ContractTypeError("stream", rule, stream, remedy, "STREAM-5")
        handle, owner = taken
        if not self.route.is_on(handle, self.found.index):
            raise ContractValueError("stream", f"expected a queue of {self.name}", stream, clause="STREAM-5")
        return StreamRef(handle, owner, not self.route.is_in_order(handle))

    @gated
    def default_stream(self) -> StreamRef:
        _check_process(self.name)
        with self._lock:
            if self._default is None:
                self._default = _Queue(self.route, self.found.index, in_order=True)
        return StreamRef(self._default.handle, self._default)

    @gated
    def create_stream(self, *, in_order: bool) -> tuple[int, object]:
        _check_process(self.name)
        self._flights.let_go()  # streams that were dropped, too
        queue = _Queue(self.route, self.found.index, in_order)
        return queue.handle, queue

    @gated
    def is_same_stream(self, stream: StreamRef, other: StreamRef) -> bool:
        return stream.handle == other.handle or self.route.is_same(stream.handle, other.handle)

    @gated
    def record(self, stream: StreamRef) -> _Event:
        return _Event(self.route, self.route.barrier(stream.handle, None))

    @gated
    def wait_for(self, stream: StreamRef, mark: Mark) -> None:
        self.route.free_event(self.route.barrier(stream.handle, cast(_Event, mark).handle))

    # -- launch

    @gated
    def launch(self, desc: LaunchDesc) -> None:
        handle = desc.stream.handle
        is_new = handle not in self._flights
        try:
            with self._lock if desc.stream.is_fenced else nullcontext():  # no other launch between the two barriers
                if desc.stream.is_fenced:
                    self.record(desc.stream)
                event = self._submit(desc)
                if desc.stream.is_fenced:
                    self.record(desc.stream)
            if desc.is_waited_for or gate.is_shut:  # nobody would wait for a launch that is made as the process ends
                event.wait()
                return
            self._flights.add(handle, event, (desc.leaves, *desc.keep, desc.kernel, desc.stream.keep))
        except BaseException:  # an interrupt, too: what was submitted uses memory that is about to be dropped
            with suppress(BackendError):
                self.route.wait_queue(handle)
            raise
        self._flights.let_go(None if is_new else [handle])  # on a new stream: of streams that came before, too

    def native_calls(self, desc: LaunchDesc) -> NativeCalls | None:
        if not self.route.native_table:
            return None
        return NativeCalls(
            failed=self.route.failed,
            flights=self._flights.by_stream,
            let_go=self._flights.let_go,
            table=self.route.native_table,
            stream_owners=_Queue,  # in the default context; another's may have a context of its own, and no order
        )

    def _submit(self, desc: LaunchDesc) -> _Event:
        ranges = ranges_zyx(desc.x, desc.y, desc.z, desc.threads)
        stream, kernel = desc.stream.handle, desc.kernel.handle
        return _Event(self.route, self.route.submit(stream, kernel, *ranges, desc.shared_bytes, desc.leaves))

    @gated
    def synchronize(self, stream: object = None) -> None:
        _check_process(self.name)
        ref = None if stream is None else self.accept_stream(stream)
        errors: list[BackendError] = []
        for mark in self._flights.marks(None if ref is None else ref.handle):
            try:
                mark.wait()
            except BackendError as error:  # told when all are waited for: their memory is in use until then
                errors.append(error)
        try:
            native.land(self.route.native_table, None if ref is None else ref.handle, self.route.failed)
        except BackendError as error:
            errors.append(error)
        if ref is not None:
            self.route.wait_queue(ref.handle)  # also what others put there
        self._flights.let_go()
        if errors:
            raise errors[0]


def _queue_of(stream: object) -> tuple[_Handle, object] | None:
    """Give the `sycl::queue` of another library's stream, and what keeps it valid; None for anything else.

    This is the one place that knows whose streams are queues of SYCL. dpctl's other objects give addresses, too.
    """
    if isinstance(stream, TorchCurrent):
        return stream.handle() if stream.kind == "xpu" else None
    for kind in type(stream).__mro__:
        library = kind.__module__.partition(".")[0]
        if library == "dpctl" and kind.__name__ == "SyclQueue":
            return stream.addressof_ref(), stream  # type: ignore[attr-defined]
        if library == "torch" and hasattr(kind, "sycl_queue"):
            return int(stream.sycl_queue), stream  # type: ignore[attr-defined]
    return None


@gated
def device_of(stream: object) -> str | None:
    taken = _queue_of(stream)
    if taken is None:
        return None
    _check_process("sycl")
    named, (route, _) = _named_devices(), _runtime()
    return next((name for name, found in named.items() if route.is_on(taken[0], found.index)), None)


def _named_devices() -> dict[str, _Found]:
    """Name what the runtime lists: one CPU, and the GPUs that Level Zero has, in its order."""
    with _opening:
        _, found = _runtime()
    cpus = [device for device in found if device.kind == "cpu" and device.via == "opencl"]
    gpus = [device for device in found if device.kind == "gpu" and device.via == "level_zero"]
    named = {f"sycl:gpu:{i}": gpu for i, gpu in enumerate(gpus)}
    return {"sycl:cpu": cpus[0], **named} if cpus else named


def device_names() -> list[str]:
    try:
        _check_process("sycl")
        return ["sycl:cpu", *(name for name in _named_devices() if name != "sycl:cpu")]
    except LaunchError:
        return ["sycl:cpu"]


@lru_cache(maxsize=64)
def _opened(name: str) -> SyclDevice:
    named = _named_devices()
    if name not in named:
        if name == "sycl:cpu":
            raise UnsupportedError(
                name,
                "the SYCL runtime lists no CPU device",
                remedy="Open a gridpact device before other code of the process asks the runtime for its devices, and "
                "check ONEAPI_DEVICE_SELECTOR.",
                capability="device",
            )
        raise ContractValueError(
            "device", "expected a device that the SYCL runtime lists", name, nearest_name(name, named), "DEVICE-1"
        )
    return SyclDevice(name, _runtime()[0], named[name])


def open_device(name: str) -> Device:
    _check_process(name)
    if name == "sycl":
        name = "sycl:cpu"
    with _opening:
        return _opened(name)


def status(name: str) -> DeviceStatus:
    try:
        _check_process(name)
        with _opening:
            device = _opened(name)
        toolchain.installed()
    except LaunchError as error:
        return DeviceStatus(name, False, str(error))
    found = device.found
    return DeviceStatus(
        name,
        True,
        facts={
            "device": found.product,
            "driver": found.driver,
            "via": f"{found.via}, {device.route.name} launcher",
            "programs per axis": f"{PROGRAMS_PER_AXIS:,}",
            "threads per program": f"{found.threads:,}",
            "threads per launch": f"{device.limits.threads_in_launch:,}",
            "shared memory": f"{found.local_bytes:,} bytes",
            "lanes": ", ".join(map(str, found.sub_group_sizes)),
            "capabilities": ", ".join(sorted(device.capabilities)),
            "toolchain": f"{toolchain.installed().distribution} {toolchain.installed().full_version}",
        },
    )
