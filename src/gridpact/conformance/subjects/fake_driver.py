"""A CUDA driver that runs nothing and keeps what it was asked for, in the real one's place: it needs no GPU.

Kernels are compiled for compute capability 9.0; what a driver call can answer is asked of it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from gridpact import native
from gridpact.conformance.check import Asked
from gridpact.conformance.model import Violated
from gridpact.conformance.subjects import DriverCall, Ranges, Subject

__all__ = ["FOLDER", "FakeDriver", "driver_calls", "load", "number"]

_PARAMETERS: Final = 256
_PARAMETER_BYTES: Final = 128

_folder: Final = tempfile.TemporaryDirectory(prefix="gridpact-fake-cuda-", ignore_cleanup_errors=True)
FOLDER: Final = Path(_folder.name)
"""Where the library lies as `libcuda.so.1`."""


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
def load() -> ctypes.CDLL:
    """Load the driver that runs nothing: who opens libcuda.so.1 in this process from now on gets this one."""
    found = importlib.util.find_spec("triton")  # its wheel ships cuda.h; not imported yet
    if found is None or found.origin is None:
        raise RuntimeError("triton: expected an installed one, whose headers the driver is built against")
    include = Path(found.origin).parent / "backends" / "nvidia" / "include"
    digest = str((include / "cuda.h").stat().st_size)
    built = native.library("fake_cuda.cpp", include, [], [digest], ["-Wl,-soname,libcuda.so.1"])
    (FOLDER / "libcuda.so.1").symlink_to(built)
    return ctypes.CDLL(str(built), ctypes.RTLD_GLOBAL)


def driver_calls() -> list[DriverCall]:
    """Give the driver calls that were made, and not given before."""
    library, taken, found = load(), _Call(), []
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


class FakeDriver(Subject):
    """What subjects on this driver share: a launch is judged by its driver call."""

    runs = False
    lanes = 32
    limits, most_threads = (2**31 - 1, 65535, 65535), 1024
    device = "no device: driver calls are judged as one of compute capability 9.0 would, and kept; nothing runs"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._calls: list[DriverCall] = []  # not given yet
        self._last: DriverCall | None = None
        self._binaries: dict[int, str] = {}  # by function, of all driver calls

    def begin(self, asked: Asked) -> None:
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

    @contextmanager
    def recording(self, records: list[dict[str, Any]]) -> Iterator[None]:
        self.driver_calls()
        yield
        records += map(dataclasses.asdict, self.driver_calls())

    def ranges(self) -> Ranges:
        """Give the geometry of the one driver call that was made."""
        calls = self.driver_calls()
        if len(calls) != 1:
            raise Violated(self.asked.script.line, "one driver call", f"{len(calls)} driver calls and no error")
        (call,) = calls
        threads = tuple(count * size for count, size in zip(call.grid, call.block, strict=True))
        further = {"cluster": call.cluster, "shared": (call.shared_bytes,), "stream": (call.stream,)}
        return {"groups": call.grid, "local": call.block, "global": threads, **further}


_NUMPY: Final = {"fp16": "f2", "fp32": "f4", "f32": "f4", "fp64": "f8"}


def number(kind: str, part: bytes) -> Any:
    """Read a parameter of one of Triton's types."""
    if kind.startswith("*"):
        return int.from_bytes(part, "little")
    if kind in ("i1", "u1"):
        return part[0] & 1  # the kernel sees this bit
    if kind == "bf16":
        return np.frombuffer(b"\0\0" + part, "<f4")[0]
    name = _NUMPY.get(kind) or f"{kind[0]}{int(kind[1:]) // 8}"
    return np.frombuffer(part, f"<{name}")[0]
