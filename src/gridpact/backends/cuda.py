"""Triton kernels on NVIDIA GPUs, through the driver API alone: no runtime library, and no torch.

A program is one block, or one cluster of `num_ctas` blocks: then the driver's grid counts blocks, and x is the longer
by them. The context is each device's primary one, which torch, CuPy and all users of the runtime API share.

Calls are named as in the CUDA Driver API reference; `cuda.bindings` gives them, and releases the GIL around each.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from types import ModuleType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from gridpact import backends, toolchain
from gridpact.arguments import SIZES, Classified, Leaf, Pointer
from gridpact.backends.ending import free_with, gate, gated
from gridpact.backends.flights import Flights
from gridpact.backends.protocol import Device, DeviceStatus, LaunchDesc, Limits, Mark, NativeCalls, StreamRef
from gridpact.errors import (
    BackendError,
    ContractTypeError,
    ContractValueError,
    LaunchError,
    ResourceError,
    UnsupportedError,
)
from gridpact.identity import Typed
from gridpact.metadata import KernelMetadata, Option, Policy, lacking_resources, option_table, power_of_two
from gridpact.state import Source
from gridpact.stream import Exported, Stream, TorchCurrent

__all__ = ["FIELDS", "LARGEST_CLUSTER", "PORTABLE_CLUSTER", "device_names", "open_device", "options_of", "status"]

# CUDA C++ Programming Guide, "Thread Block Clusters": 8 blocks are portable; more has to be allowed, 16 on an H200.
PORTABLE_CLUSTER, LARGEST_CLUSTER = 8, 16
_PLAIN_SHARED_BYTES: Final = 48 * 1024  # of a block; more has to be asked for (the same guide, "Shared Memory")
_LEGACY_STREAMS: Final = (0, 1)  # the default stream, and CU_STREAM_LEGACY, which is its other name
_MOST_DROPPED: Final = 64  # modules of kernels that are gone, before a load waits for the device to unload them
_PER_THREAD_STREAM: Final = 2  # CU_STREAM_PER_THREAD
_HOST_MEMORY: Final = 1  # CU_MEMORYTYPE_HOST: page-locked

_Handle = int
_P = ParamSpec("_P")
_T = TypeVar("_T")


# -------------------------------------------------------------------------------------------------------- the driver


@lru_cache(maxsize=1)
def _driver() -> tuple[ModuleType, int]:
    """Open the driver, and give it with the process that it was opened in: a forked child cannot use it."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise UnsupportedError(
            "cuda", "cuda-bindings is not installed", remedy="Run: pip install 'gridpact[cuda]'.", capability="cuda"
        ) from error
    try:
        (code,) = driver.cuInit(0)
    except RuntimeError as error:  # no libcuda.so.1, or one without what these bindings ask for
        raise UnsupportedError("cuda", "no NVIDIA driver can be opened", capability="cuda") from error
    if code:
        raise UnsupportedError("cuda", f"the NVIDIA driver found no GPU to use ({code.name})", capability="cuda")
    return driver, os.getpid()


def _ask(call: str, *arguments: object) -> Any:
    """Call the driver, and give what it gives beside its code."""
    driver, opened_in = _driver()
    if os.getpid() != opened_in:
        remedy = "Start the child with the 'spawn' method, or use the device in the child only."
        reason = "this process was forked after its parent opened the driver, which does not work in a child"
        raise BackendError("cuda", call, reason, remedy=remedy)
    try:
        code, *results = getattr(driver, call)(*arguments)
    except RuntimeError as error:  # the bindings know a call that this driver lacks
        raise BackendError("cuda", call, str(error)) from error
    if code:
        raise _error(call, code)
    return results[0] if len(results) == 1 else results


def _error(call: str, code: Any) -> BackendError:
    _, text = _driver()[0].cuGetErrorString(code)
    told = text.decode() if isinstance(text, bytes) else str(text)
    return BackendError("cuda", call, f"{told} ({code.name})")


def _failed(code: int) -> None:
    """Raise the error of a launch that the native path made."""
    raise _error("cuLaunchKernelEx", _driver()[0].CUresult(code))


def _attribute(device: object, name: str) -> int:
    kinds = _driver()[0].CUdevice_attribute
    return int(_ask("cuDeviceGetAttribute", getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{name}"), device))


@contextmanager
def _current(context: int) -> Iterator[None]:
    """Make calls of the block in a context, on any thread; the thread's own one comes back."""
    if int(_ask("cuCtxGetCurrent")) == context:
        yield
        return
    _ask("cuCtxPushCurrent", context)
    try:
        yield
    finally:
        _ask("cuCtxPopCurrent")


@contextmanager
def _beside_captures() -> Iterator[None]:
    """Let the block make calls that would end a capture which another stream is in; they are none of its launches."""
    modes = _driver()[0].CUstreamCaptureMode
    before = _ask("cuThreadExchangeStreamCaptureMode", modes.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        yield
    finally:
        _ask("cuThreadExchangeStreamCaptureMode", before)


def _free_with(owner: object, context: int, call: str, handle: _Handle) -> None:
    """Free a handle when its owner is gone; not in a forked child. Streams and events end after what they are in."""
    opened_in = os.getpid()

    def free() -> None:
        if os.getpid() == opened_in:
            with suppress(BackendError), _current(context):  # nobody is there to be told
                _ask(call, handle)

    free_with(owner, free)


# --------------------------------------------------------------------------------------------------- launch options

_APPLIED: Final[tuple[Policy, str]] = ("applied", "")
# What becomes of each option of NVIDIA's backend in Triton 3.3, 3.6 and 3.9; one that is not here is refused unless
# default.
_POLICIES: Final[dict[str, tuple[Policy, str]]] = {
    **dict.fromkeys(
        (
            "num_warps", "num_ctas", "num_stages", "enable_fp_fusion", "launch_cooperative_grid", "launch_pdl",
            "supported_fp8_dtypes", "deprecated_fp8_dtypes", "deprecated_fp8_dot_operand_dtypes",
            "default_dot_input_precision", "allowed_dot_input_precisions", "extern_libs", "debug", "sanitize_overflow",
            "maxnreg", "ptx_version", "ptx_options", "enable_reflect_ftz", "sched4reg", "min_shared_mem", "clc",
        ),
        _APPLIED,
    ),
    "arch": ("default only", "the target says it"),
    "backend_name": ("default only", "it is not a choice"),
    "instrumentation_mode": ("default only", "sanitizers need Triton's own launcher"),
    "fpsan_homomorphic_casts": ("irrelevant", "it takes effect under instrumentation_mode alone"),
    "cluster_dims": ("default only", "the compiler makes it of num_ctas"),
    "warp_size": ("default only", "a warp has 32 lanes"),
    "ir_override": ("default only", "gridpact compiles the kernel's own source"),
    "max_num_imprecise_acc_default": ("default only", "the backend sets it by the architecture"),
}  # fmt: skip

_PROFILER: Final = "a profiler that writes from inside kernels needs Triton's own launcher"
FIELDS: Final[Mapping[str, Option]] = {
    "name": Option("", "applied"),
    "shared": Option(0, "applied"),
    "cluster_dims": Option((1, 1, 1), "applied"),
    "global_scratch_size": Option(0, "applied"),
    "global_scratch_align": Option(1, "irrelevant", "the driver aligns scratch memory to 256 bytes, which is enough"),
    "profile_scratch_size": Option(0, "default only", _PROFILER),
    "profile_scratch_align": Option(1, "irrelevant", _PROFILER),
    "tensordesc_meta": Option((), "default only", "gridpact does not pack tensor descriptors yet"),
    "tmem_size": Option(0, "irrelevant", "the kernel allocates its tensor memory itself"),
    "base_arch": Option("", "irrelevant", "it is arch again"),
    "target": Option(None, "irrelevant", "it is what the binary was compiled for, and part of its identity"),
    "hash": Option("", "irrelevant", "gridpact has an identity of its own"),
    "triton_version": Option("", "irrelevant", "the toolchain is part of the binary's identity"),
}
"""Metadata fields besides the options, of each version of the toolchain, and what becomes of each."""


def options_of(target: toolchain.Target) -> dict[str, Option]:
    """Give the launch options of an architecture; needs no device."""
    capability, policies = cast("int", target.arch), dict(_POLICIES)
    if capability < 90:
        policies["num_ctas"] = ("default only", "clusters need compute capability 9.0")
        policies["launch_pdl"] = ("default only", "programmatic launch needs compute capability 9.0")
    if capability < 100:
        policies["clc"] = ("default only", "it needs compute capability 10.0")
    return option_table(toolchain.option_defaults(target), policies, {"num_ctas": power_of_two})


# ------------------------------------------------------------------------------------------------------- the device


class _Stream:
    """Owns a stream of the current context."""

    def __init__(self, context: int) -> None:
        kinds = _driver()[0].CUstream_flags
        # As torch's: it does not wait for the default stream, nor the default stream for it.
        self.handle = int(_ask("cuStreamCreate", kinds.CU_STREAM_NON_BLOCKING.value))
        _free_with(self, context, "cuStreamDestroy", self.handle)


class _Event:
    """Owns an event: a point in a stream of the current context."""

    def __init__(self, context: int, stream: _Handle) -> None:
        kinds = _driver()[0].CUevent_flags
        self.context = context
        self.handle = int(_ask("cuEventCreate", kinds.CU_EVENT_DISABLE_TIMING.value))
        _free_with(self, context, "cuEventDestroy", self.handle)
        _ask("cuEventRecord", self.handle, stream)

    @gated
    def wait(self) -> None:
        with _current(self.context):
            _ask("cuEventSynchronize", self.handle)

    @gated
    def is_complete(self) -> bool:
        with _current(self.context):
            try:
                _ask("cuEventQuery", self.handle)
            except BackendError as error:
                if "CUDA_ERROR_NOT_READY" in str(error):
                    return False
                raise
        return True


@dataclass(eq=False)
class _Kernel:
    """Owns a loaded module, and has its kernel.

    Attributes
    ----------
    handle
        Of the function.
    sizes
        Bytes of each parameter, as the binary itself declares them.
    """

    handle: _Handle
    sizes: tuple[int, ...]


def _in_context(call: Callable[Concatenate[CudaDevice, _P], _T]) -> Callable[Concatenate[CudaDevice, _P], _T]:
    """Make a method's calls of the driver in the device's context."""

    @wraps(call)
    def inside(device: CudaDevice, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with _current(device.context):
            return call(device, *args, **kwargs)

    return gated(inside)


class CudaDevice:
    """One GPU; see `backends.protocol.Device` for what its methods mean."""

    compiles = True
    fields = FIELDS

    def __init__(self, name: str, ordinal: int) -> None:
        self.name, self.ordinal = name, ordinal
        device = _ask("cuDeviceGet", ordinal)
        self.context = int(_ask("cuDevicePrimaryCtxRetain", device))  # for as long as the process lives
        self.product = _ask("cuDeviceGetName", 256, device).split(b"\0")[0].decode()
        major, minor = (_attribute(device, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR"))
        x, y, z = (_attribute(device, f"MAX_GRID_DIM_{axis}") for axis in "XYZ")
        threads = _attribute(device, "MAX_THREADS_PER_BLOCK")
        shared = _attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.limits = Limits(name, (x, y, z), threads, shared, x * y * z * threads)
        self.processors = _attribute(device, "MULTIPROCESSOR_COUNT")
        self.memory_bytes = int(_ask("cuDeviceTotalMem", device))
        able = {  # as the driver says it
            "clusters": _attribute(device, "CLUSTER_LAUNCH"),
            "cooperative": _attribute(device, "COOPERATIVE_LAUNCH"),
            "pageable_memory": _attribute(device, "PAGEABLE_MEMORY_ACCESS"),
        }
        self.capabilities = frozenset({"fp16", "fp64", *(capability for capability, has in able.items() if has)})
        self.target = toolchain.Target("cuda", 10 * major + minor, 32)
        self._options: dict[str, Option] | None = None
        self._loaded: weakref.WeakKeyDictionary[toolchain.Binary, _Kernel] = weakref.WeakKeyDictionary()
        self._dropped: list[_Handle] = []  # modules that no binary needs any more
        self._captured: set[_Kernel] = set()  # graphs hold their functions for as long as they please
        self._flights = Flights()
        self._lock = threading.RLock()
        atexit.register(self._end)

    @property
    def options(self) -> Mapping[str, Option]:
        if self._options is None:
            self._options = options_of(self.target)
        return self._options

    def _end(self) -> None:
        """Let the interpreter end: nobody comes in any more, and kernels in flight are done with their memory."""
        if os.getpid() == _driver()[1]:
            gate.shut()
            with suppress(BackendError):  # a kernel's fault was told to whoever waited for it
                self.synchronize()

    # -- binaries

    def identity(self, options: Mapping[str, Any]) -> tuple[tuple[str, Typed], ...]:
        return toolchain.facts_of(self.target, options)

    @gated  # the compiler's own threads and locks do not bear it that the interpreter ends under them
    def compile(self, source: Source, arguments: Classified, options: Mapping[str, Any], name: Any) -> toolchain.Binary:
        return toolchain.compile_kernel(source, arguments, self.target, options, name=name)

    @_in_context
    def load(self, binary: toolchain.Binary, leaves: Sequence[Leaf], stream: StreamRef) -> _Kernel:
        kernel = self._loaded.get(binary)
        if kernel is None:
            self.check_may_load(stream, repr(binary.metadata.name))
            with self._lock, _beside_captures():
                kernel = self._loaded.get(binary)
                if kernel is None:
                    kernel = self._loaded[binary] = self._load(binary, leaves)
        return kernel

    def _load(self, binary: toolchain.Binary, leaves: Sequence[Leaf]) -> _Kernel:
        """Hand a binary to the driver, which may wait until the device is idle."""
        metadata = binary.metadata
        subject = f"kernel {metadata.name!r}"
        if len(self._dropped) > _MOST_DROPPED:
            self._unload()
        code = binary.code if binary.kind != "ptx" else binary.code + b"\0"
        module = int(_ask("cuModuleLoadData", code))
        function = int(_ask("cuModuleGetFunction", module, metadata.name.encode()))
        sizes = tuple(_parameter_sizes(function))
        kernel = _Kernel(function, sizes)
        free_with(kernel, lambda: self._dropped.append(module))
        packed = tuple(8 if leaf.pointer is not None else SIZES[leaf.kind] for leaf in leaves)
        if binary.kind == "cubin":  # the toolchain's own, which adds pointers
            packed += (8,) * toolchain.hidden_pointers()
        if packed != sizes:
            reason = f"the binary declares parameters of {sizes} bytes, the launch packs {packed}"
            raise BackendError(subject, "matching its parameters", reason)
        kinds = _driver()[0].CUfunction_attribute
        if metadata.shared > _PLAIN_SHARED_BYTES:
            kind = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _ask("cuFuncSetAttribute", function, kind, metadata.shared)
        if "clusters" in self.capabilities:
            kind = kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            _ask("cuFuncSetAttribute", function, kind, 1)
        return kernel

    def _unload(self) -> None:
        """Unload the modules of kernels that are gone, once the device is idle: theirs may be in flight."""
        with self._lock:
            dropped, self._dropped = self._dropped, []
        _ask("cuCtxSynchronize")
        for module in dropped:
            _ask("cuModuleUnload", module)

    # -- checks

    def check_reach(self, subject: str, pointer: Pointer) -> None:
        if pointer.device != self.name and pointer.tensor is not None and not self._reaches(pointer):
            raise backends.out_of_reach(subject, self.name, backends.owner_of(pointer))

    @_in_context
    def _reaches(self, pointer: Pointer) -> bool:
        """Whether kernels here can follow a pointer: the driver knows what is mapped in this context, or by a peer."""
        owner = pointer.device.partition(":")[0]
        if owner in ("host", "any") and "pageable_memory" in self.capabilities:
            return True
        try:
            is_reached = int(_address_attribute("DEVICE_POINTER", pointer.address)) == pointer.address
        except BackendError:
            is_reached = not pointer.address  # of an array without elements
        return is_reached and owner in ("host", "any", "cuda")

    def is_host_memory(self, pointer: Pointer) -> bool:
        return self._reads_as_host(pointer.address) if pointer.device == "any" else pointer.device == "host"

    @_in_context
    def _reads_as_host(self, address: int) -> bool:
        """Whether the host reads memory of nobody in particular: all but what is on a GPU alone."""
        try:
            is_host = int(_address_attribute("MEMORY_TYPE", address)) == _HOST_MEMORY
            return is_host or bool(_address_attribute("IS_MANAGED", address))
        except BackendError:  # no memory of the driver's
            return True

    def check_resources(self, metadata: KernelMetadata, subject: str) -> None:
        for error in lacking_resources(metadata, self.limits, subject):
            raise error
        blocks = math.prod(metadata.cluster)
        if blocks > LARGEST_CLUSTER:
            raise _cluster_too_large(subject, blocks, LARGEST_CLUSTER)

    @_in_context
    def check_may_load(self, stream: StreamRef, subject: str) -> None:
        if _is_capturing(stream.handle) or _torch_is_capturing():
            raise ContractValueError(
                "stream",
                f"{subject} is not loaded yet, and while a stream is captured nothing can be loaded",
                remedy="Launch it once, with arguments of the same types and classes, before the capture.",
                clause="CAPTURE-1",
            )

    @_in_context
    def check_fits(self, desc: LaunchDesc, subject: str) -> None:
        if desc.is_waited_for and (_is_capturing(desc.stream.handle) or _torch_is_capturing()):
            raise ContractValueError(
                "stream",
                f"{subject} is given host memory, whose results are waited for, and a capture cannot wait",
                remedy="Name the stream with stream=, or pass device memory.",
                clause="CAPTURE-1",
            )
        blocks = desc.x * desc.y * desc.z * math.prod(desc.cluster)
        if blocks * desc.scratch_bytes > self.memory_bytes:
            need, remedy = blocks * desc.scratch_bytes, "Launch fewer programs at a time."
            raise ResourceError(f"scratch memory of {subject}", need, self.memory_bytes, "bytes", remedy)
        if desc.cluster != (1, 1, 1):
            most = int(_ask("cuOccupancyMaxPotentialClusterSize", desc.kernel.handle, self._config(desc)))
            if math.prod(desc.cluster) > most:
                raise _cluster_too_large(subject, math.prod(desc.cluster), most)
        if desc.is_cooperative:
            at_once = self._at_once(desc)
            if blocks > at_once:
                remedy = "Launch fewer programs, each of which loops."
                raise ResourceError(f"programs at once of cooperative {subject}", blocks, at_once, "programs", remedy)

    @_in_context
    def _at_once(self, desc: LaunchDesc) -> int:
        """How many blocks of a kernel fit on the device at once."""
        call = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        return int(_ask(call, desc.kernel.handle, desc.threads, desc.shared_bytes)) * self.processors

    # -- streams

    @_in_context
    def accept_stream(self, stream: object) -> StreamRef:
        if isinstance(stream, Stream):
            owner, handle = stream.owner, stream.handle  # first: another thread may close it, and then it says so
            stream.check_open()
            if stream.device not in (self.name, "cuda" if self.ordinal == 0 else ""):
                raise ContractValueError("stream", f"expected one of {self.name}", stream, clause="STREAM-5")
            return StreamRef(handle, owner)
        if isinstance(stream, TorchCurrent) and stream.kind == "cuda":
            stream = TorchCurrent("cuda", self.ordinal)  # of the launch device, also for memory of a peer (STREAM-1)
        taken = _taken(stream)
        if taken is None:
            remedy = "Wrap a raw handle with gridpact.Stream.from_handle." if isinstance(stream, int) else ""
            rule = "expected a gridpact.Stream, or one of torch, CuPy, cuda.core or another that has __cuda_stream__"
            raise ContractTypeError("stream", rule, stream, remedy, "STREAM-5")
        if taken.ordinal_beside(self.ordinal) != self.ordinal:
            raise ContractValueError("stream", f"expected one of {self.name}", stream, clause="STREAM-5")
        return StreamRef(taken.handle, taken.owner)

    def default_stream(self) -> StreamRef:
        return StreamRef(0)

    @_in_context
    def create_stream(self, *, in_order: bool) -> tuple[int, object]:
        if not in_order:
            raise UnsupportedError("in_order", "only True on CUDA, whose streams keep their order", False)
        stream = _Stream(self.context)
        return stream.handle, stream

    def is_same_stream(self, stream: StreamRef, other: StreamRef) -> bool:
        handles = stream.handle, other.handle
        return handles[0] == handles[1] or all(handle in _LEGACY_STREAMS for handle in handles)

    @_in_context
    def record(self, stream: StreamRef) -> _Event:
        return _Event(self.context, stream.handle)

    @_in_context
    def wait_for(self, stream: StreamRef, mark: Mark) -> None:
        _ask("cuStreamWaitEvent", stream.handle, cast("_Event", mark).handle, 0)

    # -- launch

    @_in_context
    def launch(self, desc: LaunchDesc) -> None:
        stream = desc.stream.handle
        blocks = (desc.x * desc.cluster[0]) * (desc.y * desc.cluster[1]) * (desc.z * desc.cluster[2])
        scratch = int(_ask("cuMemAllocAsync", blocks * desc.scratch_bytes, stream)) if desc.scratch_bytes else 0
        try:
            _ask("cuLaunchKernelEx", self._config(desc), desc.kernel.handle, _packed(desc, scratch), 0)
        finally:
            if scratch:
                _ask("cuMemFreeAsync", scratch, stream)  # in the stream's order: after the kernel
        if _is_capturing(desc.stream.handle):
            self._captured.add(desc.kernel)  # what is replayed later keeps its memory by the rules of its library
        else:
            self.hold(desc.leaves, desc.stream)
        if desc.is_waited_for:
            with _beside_captures():
                _ask("cuStreamSynchronize", stream)

    def _config(self, desc: LaunchDesc) -> Any:
        driver = _driver()[0]
        config = driver.CUlaunchConfig()
        x, y, z = desc.cluster
        config.gridDimX, config.gridDimY, config.gridDimZ = desc.x * x, desc.y * y, desc.z * z
        config.blockDimX, config.blockDimY, config.blockDimZ = desc.threads, 1, 1
        config.sharedMemBytes, config.hStream = desc.shared_bytes, desc.stream.handle
        kinds, attributes = driver.CUlaunchAttributeID, []
        if desc.cluster != (1, 1, 1):
            cluster = driver.CUlaunchAttribute()
            cluster.id = kinds.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            size = cluster.value.clusterDim
            size.x, size.y, size.z = desc.cluster
            attributes.append(cluster)
        if desc.is_cooperative:
            cooperative = driver.CUlaunchAttribute()
            cooperative.id = kinds.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            cooperative.value.cooperative = 1
            attributes.append(cooperative)
        if desc.is_programmatic:
            programmatic = driver.CUlaunchAttribute()
            programmatic.id = kinds.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            programmatic.value.programmaticStreamSerializationAllowed = 1
            attributes.append(programmatic)
        config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def hold(self, leaves: Sequence[Leaf], stream: StreamRef) -> None:
        """Keep memory until what was launched on a stream is done with it.

        Torch's on torch's current stream is left to torch, as its own operators leave it: kept by every launch in a
        long queue, it could not be used again.
        """
        pointers = [leaf.pointer for leaf in leaves if leaf.pointer is not None]
        keep = tuple((p.tensor, p.export) for p in pointers if not self._is_left_to_torch(p, stream))
        self._fly(stream.handle, (*keep, stream.keep) if keep else ())

    @_in_context
    def _fly(self, stream: _Handle, keep: tuple[object, ...]) -> None:
        """Keep objects, if there are any, until a stream is done with what was launched; let go of what is over."""
        with _beside_captures():
            if keep:
                self._flights.add(stream, _Event(self.context, stream), keep)
            if self._flights:
                self._flights.let_go()

    def native_calls(self, desc: LaunchDesc) -> NativeCalls | None:
        if desc.scratch_bytes:
            return None
        return NativeCalls(
            failed=_failed,
            hold=partial(self._hold_used, desc.kernel),
            flights=self._flights.by_stream,
            let_go=partial(self._fly, 0, ()),
            guard=(lambda: not _torch_is_capturing()) if desc.is_waited_for else None,
            context=self.context,
            hidden=len(desc.kernel.sizes) - len(desc.leaves),
            most_programs=self._at_once(desc) // math.prod(desc.cluster) if desc.is_cooperative else 2**128,
        )

    def _hold_used(self, kernel: _Kernel, stream: _Handle, is_captured: int, used: tuple[object, ...]) -> None:
        """Keep what a launch of the native path uses, as `launch` does."""
        if is_captured:
            self._captured.add(kernel)
        else:
            self._fly(stream, tuple(value for value in used if not self._is_current_of_torch(value, stream)))

    def _is_current_of_torch(self, value: object, stream: _Handle) -> bool:
        """Whether a value is a tensor of torch's on the stream that is torch's current one."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor) or value.device.type != "cuda":
            return False
        return bool(value.device.index == self.ordinal and TorchCurrent("cuda", self.ordinal).handle()[0] == stream)

    def _is_left_to_torch(self, pointer: Pointer, stream: StreamRef) -> bool:
        current = pointer.stream
        is_of_this_device = isinstance(current, TorchCurrent) and current.index == self.ordinal
        return is_of_this_device and cast("TorchCurrent", current).handle()[0] == stream.handle

    @_in_context
    def synchronize(self, stream: object = None) -> None:
        if stream is None:
            self._unload()
        else:
            _ask("cuStreamSynchronize", self.accept_stream(stream).handle)
        self._flights.let_go()


def _cluster_too_large(subject: str, need: int, most: int) -> ResourceError:
    return ResourceError(f"cluster of {subject}", need, most, "blocks", "Lower num_ctas.")


def _parameter_sizes(function: _Handle) -> list[int]:
    """Read the binary's own parameter table, bytes of each; the driver has no count of them."""
    sizes: list[int] = []
    with suppress(BackendError):
        while True:
            sizes.append(int(_ask("cuFuncGetParamInfo", function, len(sizes))[1]))
    return sizes


def _packed(desc: LaunchDesc, scratch: int) -> Any:
    """Lay out a kernel's parameters: the addresses of their values, hidden pointers last."""
    values = [leaf.bits for leaf in desc.leaves]
    hidden = len(desc.kernel.sizes) - len(values)
    bits = (ctypes.c_uint64 * len(desc.kernel.sizes))(*values, *([scratch] + [0] * hidden)[:hidden])
    start = ctypes.addressof(bits)
    addresses = (ctypes.c_void_p * len(bits))(*(start + 8 * i for i in range(len(bits))))
    addresses.values = bits  # type: ignore[attr-defined]  # keeps them alive
    return addresses


def _address_attribute(kind: str, address: int) -> Any:
    kinds = _driver()[0].CUpointer_attribute
    return _ask("cuPointerGetAttribute", getattr(kinds, f"CU_POINTER_ATTRIBUTE_{kind}"), address)


def ordinal_of_memory(address: int) -> int:
    """Give the ordinal of the GPU that has memory at an address, as the driver knows it; 0 where it knows nothing."""
    try:
        with _current(cast("CudaDevice", open_device("cuda:0")).context):
            return int(_address_attribute("DEVICE_ORDINAL", address))
    except LaunchError:
        return 0


@dataclass(frozen=True)
class _Taken:
    """A stream of another library: its handle, what keeps that valid, and the GPU where the library tells it."""

    handle: _Handle
    owner: object
    ordinal: int | None = None

    def ordinal_beside(self, usual: int) -> int:
        """Give the ordinal of its GPU; the usual one for default streams, which each GPU has.

        A stream that is captured may not be asked: there the launch itself finds a wrong one out.
        """
        if self.ordinal is not None:
            return self.ordinal
        if self.handle <= _PER_THREAD_STREAM or _is_capturing(self.handle):
            return usual
        try:
            return int(_ask("cuStreamGetDevice", self.handle))
        except BackendError:  # a driver before CUDA 12.8 does not tell
            return usual


def _taken(stream: object) -> _Taken | None:
    """Take another library's stream; None for anything else.

    This is the one place that knows whose streams are CUDA's. Older versions of torch and CuPy lack `__cuda_stream__`,
    which cuda.core documents.
    """
    if isinstance(stream, TorchCurrent):
        return _Taken(*stream.handle(), stream.index) if stream.kind == "cuda" else None
    if isinstance(stream, Exported):
        return _Taken(stream.handle, stream.owner)
    given: Any = stream
    for kind in type(stream).__mro__:
        library = kind.__module__.partition(".")[0]
        if library == "torch" and hasattr(kind, "cuda_stream"):
            return _Taken(int(given.cuda_stream), stream, given.device.index)
        if kind.__module__ == "cupy.cuda.stream" and "Stream" in kind.__name__:
            known = getattr(given, "device_id", -1)
            return _Taken(int(given.ptr), stream, known if known >= 0 else None)
    if hasattr(type(stream), "__cuda_stream__"):
        return _Taken(int(given.__cuda_stream__()[1]), stream)
    return None


def _torch_is_capturing() -> bool:
    """Whether torch captures on this thread: then it is no time to load or to wait, on whatever stream."""
    devices = getattr(sys.modules.get("torch"), "cuda", None)
    return devices is not None and devices.is_available() and bool(devices.is_current_stream_capturing())


def _is_capturing(handle: _Handle) -> bool:
    if handle in _LEGACY_STREAMS:  # cannot be captured, and to ask is an error while another stream is
        return False
    none = _driver()[0].CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
    return bool(_ask("cuStreamIsCapturing", handle) != none)


# --------------------------------------------------------------------------------------------------------- the names


@gated
def device_of(stream: object) -> str | None:
    taken = _taken(stream)
    if taken is None:
        return None
    try:
        with _current(cast("CudaDevice", open_device("cuda:0")).context):
            return f"cuda:{taken.ordinal_beside(0)}"
    except LaunchError:  # no driver: whoever launches there is told so
        return f"cuda:{taken.ordinal or 0}"


def device_names() -> list[str]:
    try:
        return [f"cuda:{ordinal}" for ordinal in range(int(_ask("cuDeviceGetCount")))] or ["cuda:0"]
    except LaunchError:
        return ["cuda:0"]


_opening: Final = threading.Lock()


@lru_cache(maxsize=64)
def _opened(name: str) -> CudaDevice:
    _driver()
    names = device_names()
    if name not in names:
        raise ContractValueError("device", f"expected one of {', '.join(names)}", name, clause="DEVICE-1")
    return CudaDevice(name, int(name.partition(":")[2]))


def open_device(name: str) -> Device:
    with _opening:
        return _opened("cuda:0" if name == "cuda" else name)


def status(name: str) -> DeviceStatus:
    try:
        device = cast("CudaDevice", open_device(name))
        toolchain.installed()
    except LaunchError as error:
        return DeviceStatus(name, False, str(error))
    version = int(_ask("cuDriverGetVersion"))
    x, y, z = device.limits.programs
    return DeviceStatus(
        name,
        True,
        facts={
            "device": device.product,
            "driver": f"CUDA {version // 1000}.{version % 1000 // 10}",
            "via": "driver API",
            "programs per axis": f"{x:,}, {y:,}, {z:,}",
            "threads per program": f"{device.limits.threads:,}",
            "shared memory": f"{device.limits.shared_bytes:,} bytes",
            "capabilities": ", ".join(sorted(device.capabilities)),
            "toolchain": f"{toolchain.installed().distribution} {toolchain.installed().full_version}",
        },
    )
