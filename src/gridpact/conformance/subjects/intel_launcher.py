"""The launcher that Intel's Triton backend generates, on the CPU: its own text, built with the machine's compiler.

From the installed backend come its launcher, its driver class and how it asks torch for the stream; from Triton the
frontend. Ours are what these need around them where there is no Intel GPU: the build, declarations of Level Zero, a
stand-in for torch whose streams are real SYCL queues, a loader for the CPU, and one early return in the launcher's
text, which `NOTE` tells in every record.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np

import gridpact
from gridpact import cache, native, spirv, toolchain
from gridpact.backends.sycl import installed_file
from gridpact.conformance.check import poisoned
from gridpact.conformance.script import Language
from gridpact.conformance.subjects import UNOBSERVED, Observed, Ranges, triton_interpreter
from gridpact.conformance.subjects.streams import DpctlQueue
from gridpact.conformance.subjects.triton_active import UpstreamTriton
from gridpact.errors import BackendError, UnsupportedError

__all__ = ["IntelLauncher", "Stream", "Tensor", "activate", "current"]

NOTE: Final = "its check that pointers are Level-Zero device memory left out; loader and streams are stand-ins"

# Those of Triton's own build of it, so that what the language leaves undefined shows as it does there.
_FLAGS: Final = ("-std=c++17", "-O3", "-shared", "-fPIC", "-Wno-psabi")
_CAPSULE: Final = b"kernel"  # the name that the launcher asks for; capsules point to it
_OURS: Final = Path(native.__file__).parent


# ------------------------------------------------------------------------------------------------------------ the text


def _edited(source: str) -> str:
    """Let the launcher take any pointer: it asks Level Zero whose memory it is, and there is none.

    Backends after 3.3 have another form, one `driver.c` for all signatures; what they need belongs here.
    """
    check = r"(\bvoid checkDevicePointer\([^)]*\)\s*\{)"
    edited, count = re.subn(check, r"\1 return;", source)
    if count != 1:
        raise _other_form(f"its check of pointers is there {count} times")
    return edited


def _other_form(why: str) -> UnsupportedError:
    return UnsupportedError(
        "intel:launcher",
        f"the launcher of Triton {toolchain.installed().full_version} has another form than that of 3.3: {why}",
        capability="launcher",
    )


# ----------------------------------------------------------------------------------------------------------- the build


_building: Final = threading.Lock()


@functools.cache
def _compiler() -> tuple[str, str]:
    """Find the C++ compiler, and what it calls itself."""
    chosen = native.compiler()
    if chosen is None:
        raise UnsupportedError(
            "intel:launcher", "no C++ compiler is installed", remedy="Install g++.", capability="compiler"
        )
    said = subprocess.run([chosen, "--version"], capture_output=True, text=True, check=True).stdout
    return chosen, said.partition("\n")[0]


@functools.cache
def _command() -> tuple[str, ...]:
    """Give what each call of the compiler begins with."""
    include = installed_file("intel-sycl-rt", "include/sycl/sycl.hpp").parent.parent
    folders = (_OURS, include, sysconfig.get_paths()["include"], np.get_include())
    return (_compiler()[0], *_FLAGS, *(f"-I{folder}" for folder in folders))


def _built(name: str, ending: str, source: str, *words: str) -> Path:
    """Give what the compiler makes of a text, from the per-user cache if it is there."""
    level_zero = (_OURS / "level_zero" / "ze_api.h").read_bytes()
    facts = (source, words, level_zero, _compiler(), _command(), np.__version__, version("intel-sycl-rt"))
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:24]
    place = cache.folder("native") / f"intel-{Path(name).stem}-{digest}{ending}"
    with _building:  # threads that meet at a first launch would each build the same
        if cache.take(place) is not None:
            return place
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            text, made = Path(folder) / name, Path(folder) / "made"
            text.write_text(source)
            command = [*_command(), str(text), "-o", str(made), *words]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode:
                raise BackendError("intel:launcher", command[0], f"exit code {ran.returncode}", ran.stderr[-4000:])
            cache.publish(made, place)
    return place


def _library(source: str) -> Path:
    """Give the shared library of a launcher's text.

    What all texts begin with, down to the last include, is compiled once: SYCL's headers are three quarters of a build.
    """
    headers = _built("headers.h", ".h.gch", source[: source.index("\n", source.rindex("#include")) + 1])
    sycl = installed_file("intel-sycl-rt", "/libsycl.so")
    return _built("launcher.cpp", ".so", source, "-include", str(headers.with_suffix("")), str(sycl))


# ---------------------------------------------------------------------------------------------------------- the driver


class Tensor(triton_interpreter.Tensor):
    """A NumPy array as an argument of a launch; printing it waits for what was launched, as printing torch's does."""

    def __getitem__(self, part: Any) -> Any:
        """Give a part; an element as it is now, without a wait."""
        return Tensor(self.array[part]) if isinstance(part, slice) else self.array[part]

    def __setitem__(self, part: Any, value: Any) -> None:
        self.array[part] = value

    def __str__(self) -> str:
        _queue().wait()
        return str(self.array)


class Stream:
    """A stream as Intel's driver knows them from torch: `sycl_queue` is the address of a `sycl::queue`."""

    def __init__(self) -> None:
        import dpctl

        self.queue = dpctl.SyclQueue("opencl:cpu", property="in_order")

    @property
    def sycl_queue(self) -> int:
        return int(self.queue.addressof_ref())


@functools.cache
def _torch() -> ModuleType:
    """Make what stands in for torch in this process: one stream, which is current on every thread."""
    stream = Stream()
    torch = ModuleType("torch", "Stands in for torch: gridpact.conformance.subjects.intel_launcher.")
    torch.xpu = SimpleNamespace(current_stream=lambda device=None: stream)  # type: ignore[attr-defined]
    return torch


def _queue() -> Any:
    """Give the queue of the current stream."""
    return sys.modules["torch"].xpu.current_stream().queue


@contextmanager
def current(stream: Stream) -> Iterator[None]:
    """Make a stream the one that torch has as its current one."""
    xpu = sys.modules["torch"].xpu
    before = xpu.current_stream
    xpu.current_stream = lambda device=None: stream
    try:
        yield
    finally:
        xpu.current_stream = before


class _TorchStream(DpctlQueue):
    """A stream of the stand-in for torch, as cases handle it."""

    made, current_text = "Stream()", "with current({}):"
    recorded, waited, ended = "{}.queue.submit_barrier()", "{}.queue.submit_barrier([event])", "{}.queue.wait()"
    imported = ""

    def __init__(self) -> None:
        self.given = Stream()
        self.queue = self.given.queue

    def current(self) -> AbstractContextManager[None]:
        """Make it the current one."""
        return current(self.given)


class _Utils:
    """What Intel's driver takes from its `driver.c`, which insists on Level Zero."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def get_current_device(self) -> int:
        return 0

    def get_device_properties(self, index: int) -> dict[str, int]:
        return {"max_shared_mem": self.device.limits.shared_bytes}

    def load_binary(self, name: str, code: bytes, shared: int, flags: str, index: int) -> tuple[Any, ...]:
        """Give the kernel, the same as the launcher takes it, and no counts of registers and spills."""
        from dpctl.program import SyclProgramCompilationError, create_program_from_spirv

        try:
            program = create_program_from_spirv(_queue(), spirv.for_cpu(bytes(code)), flags)
        except SyclProgramCompilationError as error:
            remedy = "Set DPCTL_VERBOSITY=warning to see the reason."
            raise BackendError(
                f"kernel {name!r}", "building it for the CPU", "no reason is told", "", remedy
            ) from error
        kernel = program.get_sycl_kernel(name)
        return kernel, _capsule(kernel), 0, 0


# Kept for good, as Intel's own loader keeps them: hooks and other threads hold a capsule longer than its owner.
_kernels: Final[list[Any]] = []


def _capsule(kernel: Any) -> Any:
    """Give a kernel of dpctl as the launcher takes one."""
    _kernels.append(kernel)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(kernel.addressof_ref(), _CAPSULE, None)


def activate() -> Any:
    """Make Triton launch through Intel's launcher, on the CPU, in this process; gives the active driver.

    From then on `torch` is a stand-in that knows nothing but the current stream, and tensors are `Tensor(array)`.

    Raises
    ------
    UnsupportedError
        The installed Triton has no such launcher, or the device or a compiler is missing.
    """
    ours = gridpact.triton.driver("sycl:cpu")  # opens the runtime, and adds Intel's compiler for the CPU
    import triton
    from triton.backends.intel import driver as intel

    if not hasattr(intel, "make_launcher"):
        raise _other_form("no text is generated for a signature")
    _library(_edited(intel.make_launcher({}, {})))  # what cannot be built is told here, not by the first launch

    def built(source: str, name: str) -> Any:
        return intel.TritonLauncher(str(_library(_edited(source))))

    class OnCpu(intel.XPUDriver):  # type: ignore[misc]
        """Intel's driver; its launcher and how it finds the stream are its own."""

        def __init__(self) -> None:
            super().__init__()
            self.utils = _Utils(ours.device)

        def get_current_target(self) -> Any:
            return ours.get_current_target()

    intel.compile_module_from_src = built  # as a module of this process: Triton's cache on disk sees nothing of it
    sys.modules["torch"] = _torch()
    active = OnCpu()
    triton.runtime.driver.set_active(active)
    return active


# --------------------------------------------------------------------------------------------------------- the subject


class IntelLauncher(UpstreamTriton):
    """`@triton.jit` kernels through Triton's frontend and Intel's launcher."""

    name = "intel:launcher"
    abilities = frozenset(
        {"num_warps", "lanes", "shared", "hooks", "options", "binaries", "compiled", "geometry", "limits"}
        | {"streams", "held"}
    )
    limits = (2**31 - 1,) * 3  # program_id is 32 bits wide

    def __init__(self) -> None:
        super().__init__()
        # Its kernels, fresh in each process, so that no case finds another's.
        self._cache = tempfile.TemporaryDirectory(prefix="gridpact-intel-")
        os.environ["TRITON_CACHE_DIR"] = self._cache.name
        self.active = activate()
        import triton

        from gridpact.contract import triton_programs

        self.triton, self.programs = triton, triton_programs
        self.language = Language(
            "import numpy as np\nimport triton\nimport triton.language as tl\n"
            "from gridpact.conformance.subjects.intel_launcher import Stream, Tensor, activate, current\n\n"
            "activate()\n",
            tensor="Tensor({})",
            hooks=self.hooks_text,
        )
        self.lacks = {
            "processes": "each process makes its launchers ready for half a minute, and keeps Triton's own cache",
            "stream_option": "Triton takes the stream that torch has as its current one",
            "owners": "its check of pointers is left out",
        }
        self.streams = {"torch": _TorchStream}
        facts = gridpact.backends.device_status("sycl:cpu").facts
        self.device = facts["device"]  # its most threads are not asked: the loader that may refuse them is a stand-in
        self.driver = f"OpenCL {facts['driver']}; launcher built by {_compiler()[1]}, {NOTE}"

    @property
    def versions(self) -> dict[str, str]:
        return {**super().versions, "dpctl": version("dpctl")}

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        return Tensor(array)

    def synchronize(self) -> None:
        _queue().wait()

    def wait_default(self) -> None:
        _queue().wait()

    def geometry(
        self, grid: tuple[int, ...], wait: bool = True, observed: Observed = UNOBSERVED, **options: Any
    ) -> Ranges:
        from dpctl import event_status_type
        from dpctl.program import create_program_from_source

        from gridpact.conformance.subjects.gridpact_device import geometry_from, opencl_geometry

        self.show(
            "counted", self.kernel("counted"), grid, (np.zeros(1, "i4"),), options
        )  # by hand: how many programs run
        seen = poisoned(16, "i8")
        compiled = self.kernel("coordinates").warmup(Tensor(seen), 1, 1, grid=(1,), **options)
        queue = _queue()
        probe = create_program_from_source(queue, opencl_geometry(gridpact.KernelMetadata("")).code.decode())
        kernel = probe.get_sycl_kernel("geometry")
        x, y, z = (*grid, 1, 1)[:3]
        stream = self.active.get_current_stream(0)
        compiled.run(x, y, z, stream, _capsule(kernel), compiled.packed_metadata, *observed, Tensor(seen), 1, 1)
        if wait:
            queue.wait()
            return geometry_from(seen, 0)
        after = queue.submit_barrier()
        end = time.monotonic() + 30
        while seen[9] != 1 and after.execution_status != event_status_type.complete and time.monotonic() < end:
            time.sleep(0.001)
        return geometry_from(seen, 0)
