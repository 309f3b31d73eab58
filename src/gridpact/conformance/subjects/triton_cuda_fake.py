"""Upstream Triton's frontend and its own C launcher for CUDA, on a driver that only keeps what it was asked.

It needs no GPU. Kernels are compiled for compute capability 9.0; what a driver call can answer is asked of it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.metadata
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from gridpact import native
from gridpact.conformance.check import launch, poisoned
from gridpact.conformance.model import Violated
from gridpact.conformance.script import Language
from gridpact.conformance.subjects import UNOBSERVED, DriverCall, Observed, Ranges
from gridpact.conformance.subjects.triton_active import UpstreamTriton
from gridpact.conformance.subjects.triton_interpreter import Tensor

__all__ = ["Tensor", "TritonCudaFake", "activate", "driver_calls"]

_PARAMETERS: Final = 256
_PARAMETER_BYTES: Final = 128


_folder: Final = tempfile.TemporaryDirectory(prefix="gridpact-fake-cuda-", ignore_cleanup_errors=True)
NOTE: Final = "device 0, its default stream and its compute capability are stand-ins, where Triton asks torch for them"


class _Call(ctypes.Structure):
    """`gridpact_call` of fake_cuda.cpp."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("cooperative", ctypes.c_uint32),
        ("programmatic", ctypes.c_uint32),
        ("stream", ctypes.c_uint64),
        ("function", ctypes.c_uint64),
        ("digest", ctypes.c_uint64),
        ("count", ctypes.c_int32),
        ("sizes", ctypes.c_int32 * _PARAMETERS),
        ("parameters", (ctypes.c_uint8 * _PARAMETER_BYTES) * _PARAMETERS),
    )


@cache
def activate() -> ctypes.CDLL:
    """Load the driver that runs nothing in the real one's place, and make Triton's CUDA driver the active one.

    Raises
    ------
    RuntimeError
        The installed Triton is older than 3.6, whose launcher has another form.
    """
    try:
        version = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        version = "0.0"
    if tuple(map(int, version.split(".")[:2])) < (3, 6):
        raise RuntimeError("triton: expected upstream 3.6 or newer, which needs an environment of its own")
    folder = Path(_folder.name)
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")  # fresh: what others compiled is not asked
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # what 3.9 does unless told, with a warning
    os.environ["TRITON_LIBCUDA_PATH"] = str(folder)
    import triton
    from triton.backends.nvidia import driver as nvidia

    include = Path(nvidia.__file__).parent / "include"
    built = native.library("fake_cuda.cpp", include, [], [version], ["-Wl,-soname,libcuda.so.1"])
    (folder / "libcuda.so.1").symlink_to(built)
    library = ctypes.CDLL(str(built), ctypes.RTLD_GLOBAL)  # who opens libcuda.so.1 from now on gets this one
    triton.runtime.driver.set_active(_driver_class(nvidia)())
    return library


def _driver_class(nvidia: Any) -> Any:
    """Give Triton's CUDA driver, without what it asks torch for before 3.9: the device and its current stream."""
    if hasattr(nvidia.CudaDriver, "_get_current_device"):
        return nvidia.CudaDriver

    class Driver(nvidia.CudaDriver):  # type: ignore[misc]
        def __init__(self) -> None:
            self.utils = nvidia.CudaUtils()
            self.launcher_cls = nvidia.CudaLauncher
            self.get_current_device = lambda: 0
            self.set_current_device = lambda index: None
            self.get_current_stream = lambda index: 0
            self.get_device_capability = lambda index: (9, 0)

    return Driver


def driver_calls() -> list[DriverCall]:
    """Give the driver calls that were made, and not given before."""
    library, taken, found = activate(), _Call(), []
    while library.gridpact_take(ctypes.byref(taken)):
        grid, block, cluster = (tuple(each) for each in (taken.grid, taken.block, taken.cluster))
        found.append(
            DriverCall(
                grid,
                block,
                cluster,
                taken.shared_bytes,
                taken.stream,
                taken.function,
                f"{taken.digest:016x}",
                tuple(bytes(taken.parameters[i][: taken.sizes[i]]) for i in range(taken.count)),
                frozenset(name for name in ("cooperative", "programmatic") if getattr(taken, name)),
            )
        )
    return found


class TritonCudaFake(UpstreamTriton):
    """`@triton.jit` kernels through Triton's frontend and C launcher, up to the driver call."""

    name = "triton:cuda:fake"
    runs = False
    lanes = 32
    limits, most_threads = (2**31 - 1, 65535, 65535), 1024
    device = "no device: driver calls are judged as one of compute capability 9.0 would, and kept; nothing runs"
    driver = f"our own libcuda.so.1; {NOTE}"
    abilities = frozenset(
        {"num_warps", "shared", "hooks", "options", "binaries", "compiled", "geometry", "limits", "scratch", "clusters"}
        | {"stream_handles", "records"}
    )

    def __init__(self) -> None:
        super().__init__()
        activate()
        import triton

        from gridpact.contract import triton_programs

        self.triton, self.programs = triton, triton_programs
        nothing = "no kernel runs"
        self.lacks = {"lanes": "a warp has 32 threads", "streams": nothing, "held": nothing, "owners": nothing}
        self.language = Language(
            "import numpy as np\nimport triton\nimport triton.language as tl\n"
            "from gridpact.conformance.subjects.triton_cuda_fake import Tensor, activate, driver_calls\n\n"
            "activate()  # a driver that runs nothing, and keeps what it was asked for\n",
            tensor="Tensor({})",
            finish="print(*driver_calls() or ['no driver call'], sep='\\n')\n",
            hooks=self.hooks_text,
        )
        self._calls: list[DriverCall] = []  # not given yet
        self._last: DriverCall | None = None
        self._binaries: dict[int, str] = {}  # by function, of all driver calls

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        self.asked.memory.append(array)
        return Tensor(array)

    def begin(self, asked: Any) -> None:
        super().begin(asked)
        self.driver_calls()
        self._last = None

    def launch(self, program: str, grid: Any, *args: Any, **options: Any) -> Any:
        self._look()
        self._last = None
        return super().launch(program, grid, *args, **options)

    def driver_calls(self) -> list[DriverCall]:
        self._look()
        calls, self._calls = self._calls, []
        return calls

    def _look(self) -> None:
        new = driver_calls()
        self._calls += new
        self._last = new[-1] if new else self._last
        self._binaries |= {call.function: call.binary for call in new}

    def last_call(self) -> DriverCall:
        self._look()
        if self._last is None:
            raise Violated(self.asked.script.line, "a driver call", "no driver call and no error")
        return self._last

    def identity(self, compiled: Any) -> str:
        """Name it by Triton's key and by the bytes of the module whose function the driver was called with."""
        self._look()
        if compiled.function not in self._binaries:
            raise Violated(self.asked.script.line, "a driver call of the compiled kernel's function", "none")
        return f"{compiled.hash} {self._binaries[compiled.function]}"

    def passed(self, result: Any) -> dict[str, Any]:
        types = [(name, kind) for name, kind in result.src.signature.items() if kind != "constexpr"]
        parts = self.last_call().parameters
        found = {
            name: _number(kind, part)
            for (name, kind), part in zip(types, parts, strict=False)
            if isinstance(kind, str)  # a tuple's parts have no names
        }
        names = list(result.src.signature)
        built_in = {names[path[0]]: value for path, value in result.src.constants.items() if len(path) == 1}
        return {**built_in, **found}

    @contextmanager
    def allocating(self, sizes: list[int]) -> Iterator[None]:
        """Set Triton's allocator; what it gives is enough for a launch that nothing runs."""

        def allocate(size: int, alignment: int, stream: object) -> Tensor:
            sizes.append(size)
            return Tensor(np.zeros(max(alignment, 16), "u1"))

        self.asked.script.write(
            "def allocate(size, alignment, stream):\n    print('asked for', size, 'bytes of scratch memory')\n"
            "    return Tensor(np.zeros(128, 'u1'))\n\n\ntriton.set_allocator(allocate)"
        )
        self.triton.set_allocator(allocate)
        try:
            yield
        finally:
            from triton.runtime._allocation import NullAllocator

            self.triton.set_allocator(NullAllocator())

    @contextmanager
    def current_handle(self, handle: int) -> Iterator[None]:
        """Say that this is torch's current stream: where Triton asks is a stand-in."""
        active = self.triton.runtime.driver.active
        before = active.get_current_stream
        active.get_current_stream = lambda index: handle
        try:
            yield
        finally:
            active.get_current_stream = before

    @contextmanager
    def recording(self, records: list[dict[str, Any]]) -> Iterator[None]:
        self.driver_calls()
        yield
        records += map(dataclasses.asdict, self.driver_calls())

    def geometry(
        self, grid: tuple[int, ...], wait: bool = True, observed: Observed = UNOBSERVED, **options: Any
    ) -> Ranges:
        self.driver_calls()
        seen = poisoned(16, "i8")
        if observed == UNOBSERVED:
            launch(self, "coordinates", grid, seen, 1, 1, **options)
        else:
            compiled = self.kernel("coordinates").warmup(self.tensor(seen), 1, 1, grid=(1,), **options)
            x, y, z = (*grid, 1, 1)[:3]
            packed = compiled.packed_metadata
            compiled.run(x, y, z, 0, compiled.function, packed, *observed, self.tensor(seen), 1, 1)
        calls = self.driver_calls()
        if len(calls) != 1:
            raise Violated(self.asked.script.line, "one driver call", f"{len(calls)} driver calls and no error")
        (call,) = calls
        threads = tuple(count * size for count, size in zip(call.grid, call.block, strict=True))
        further = {"cluster": call.cluster, "shared": (call.shared_bytes,), "stream": (call.stream,)}
        return {"groups": call.grid, "local": call.block, "global": threads, **further}


_NUMPY: Final = {"fp16": "f2", "fp32": "f4", "f32": "f4", "fp64": "f8"}


def _number(kind: str, part: bytes) -> Any:
    """Read a parameter of one of Triton's types."""
    if kind.startswith("*"):
        return int.from_bytes(part, "little")
    if kind in ("i1", "u1"):
        return part[0] & 1  # the kernel sees this bit
    if kind == "bf16":
        return np.frombuffer(b"\0\0" + part, "<f4")[0]
    name = _NUMPY.get(kind) or f"{kind[0]}{int(kind[1:]) // 8}"
    return np.frombuffer(part, f"<{name}")[0]
