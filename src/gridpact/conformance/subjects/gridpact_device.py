"""Our own launcher on one of our devices: `gridpact:reference`, `gridpact:sycl:cpu`."""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import Any, Final

import numpy as np

import gridpact
from gridpact import launch as path
from gridpact import learned, native, toolchain
from gridpact.conformance.check import poisoned
from gridpact.conformance.model import Violated
from gridpact.conformance.script import Language
from gridpact.conformance.subjects import UNOBSERVED, Observed, Ranges, Subject
from gridpact.conformance.subjects.streams import OWN_STREAMS, GridpactStream, TorchXpu
from gridpact.conformance.subjects.triton_active import observed_by_triton
from gridpact.grid import canonical_grid

__all__ = [
    "HOOKS_TEXT",
    "PYTHON_PATH",
    "GridpactDevice",
    "by_definition",
    "geometry_from",
    "opencl_geometry",
    "recording",
    "reference",
    "sycl_cpu",
    "sycl_cpu_python",
]


PYTHON_PATH: Final = ":python"
"""Ending of the name of a subject whose launches take the Python path."""


class GridpactDevice(Subject):
    """`kernel[grid](...)` of gridpact on a device."""

    is_own = True

    def __init__(self, device: str, programs: str) -> None:
        super().__init__()
        self.opened = gridpact.open_device(device)
        self.name = f"gridpact:{device}"
        self.programs = importlib.import_module(programs)
        status = gridpact.backends.device_status(device)
        self.device = status.facts["device"]
        self.driver = status.facts.get("driver", "")
        self.limits = self.opened.limits.programs
        self.most_threads = self.opened.limits.threads

    @property
    def versions(self) -> dict[str, str]:
        return {**super().versions, "gridpact": gridpact.__version__}

    def jit(self, function: FunctionType, **options: Any) -> Any:
        kernel = gridpact.jit(function, **{**getattr(function, "options", {}), **options})
        return _On(kernel, self.opened.name)

    def helper(self, function: FunctionType) -> Any:
        return gridpact.jit(function) if self.opened.compiles else function

    @contextmanager
    def explained(self, told: list[list[str]]) -> Iterator[None]:
        with gridpact.hooks.observe(compiled=lambda compiled: told.append([*map(str, compiled.changes)])):
            yield

    @property
    def launch_options(self) -> frozenset[str]:
        return frozenset(self.opened.options)

    def synchronize(self) -> None:
        self.opened.synchronize()

    def identity(self, compiled: Any) -> str:
        return str(compiled.hash)

    @contextmanager
    def observed(self, enter: Callable[[Any], None] | None, exit: Callable[[Any], None] | None) -> Iterator[None]:
        with self.asked.script.watched(enter, exit), gridpact.hooks.observe(enter, exit):
            yield

    @contextmanager
    def recording(self, records: list[dict[str, Any]]) -> Iterator[None]:
        with recording(self.opened, records):
            yield

    def from_triton(self, program: str, described: Callable[..., Any]) -> Any:
        """Give a new kernel that `triton.jit` made and ours took over, with a metadata function; with `from_triton`."""
        import triton

        source = self.source(program)
        theirs = triton.jit(source, launch_metadata=described, **getattr(source, "options", {}))
        return _On(gridpact.jit(theirs), self.opened.name)

    @contextmanager
    def observed_by_triton(
        self, enter: Callable[[Any], None] | None, exit: Callable[[Any], None] | None
    ) -> Iterator[None]:
        """Register launch hooks with Triton, in its own way; with `from_triton`."""
        import triton

        with observed_by_triton(triton, enter, exit):
            yield

    def geometry(
        self, grid: tuple[int, ...], wait: bool = True, observed: Observed = UNOBSERVED, **options: Any
    ) -> Ranges:
        if "geometry" not in self.abilities:
            return super().geometry(grid, wait, **options)
        told: dict[str, Any] = {} if observed.metadata is None else {"launch_metadata": lambda *_: observed.metadata}
        kernel = self.jit(self.source("coordinates"), **told).kernel  # its own: it remembers launches of the probe
        seen = poisoned(16, "i8")
        args, given = (self.tensor(seen), 1, 1), {**options, "device": self.opened.name}
        call = path.bind(kernel, args, given)
        compiled = path.compiled_for(call)
        probe = gridpact.CompiledKernel(kernel, compiled.key, self.geometry_program(compiled.metadata), self.opened)
        programs = canonical_grid(grid, call.meta, self.opened.limits)
        probe.check_launch(programs)
        stream = None if wait else self.opened.accept_stream(gridpact.Stream(self.opened.name))
        with gridpact.hooks.observe(observed.enter, observed.exit):
            learned.finish(args, given, probe, call, programs, stream)
        return self.geometry_seen(seen)

    def geometry_program(self, metadata: gridpact.KernelMetadata) -> toolchain.Binary:
        """Give a probe in the driver's own language with another kernel's launch metadata."""
        return opencl_geometry(metadata)

    def geometry_seen(self, seen: np.ndarray[Any, Any]) -> Ranges:
        """Give what the probe's first work-item writes."""
        table = getattr(getattr(self.opened, "route", None), "native_table", 0)
        in_flight = bool(getattr(self.opened, "_flights", ())) or bool(native.path and native.path.in_flight(table))
        return geometry_from(seen, limit_s=30 if in_flight else 0.1)


@contextmanager
def recording(device: Any, records: list[dict[str, Any]]) -> Iterator[None]:
    """Note what reaches a device of ours by either path: handles as numbers, without what it keeps alive."""

    def launch(desc: Any) -> None:
        records.append(
            {
                "grid": (desc.x, desc.y, desc.z),
                "threads": desc.threads,
                "shared_bytes": desc.shared_bytes,
                "cluster": desc.cluster,
                "is_cooperative": desc.is_cooperative,
                "is_programmatic": desc.is_programmatic,
                "scratch_bytes": desc.scratch_bytes,
                "stream": desc.stream.handle,
                "is_fenced": desc.stream.is_fenced,
                "kernel": getattr(desc.kernel, "handle", id(desc.kernel)),
                "arguments": [(leaf.kind, leaf.bits) for leaf in desc.leaves],
                "is_waited_for": desc.is_waited_for,
            }
        )
        type(device).launch(device, desc)

    def tap(told: Any) -> None:
        info = told["info"]
        records.append(
            {
                "grid": told["grid"],
                "threads": info["threads"],
                "shared_bytes": info["shared_bytes"],
                "cluster": info["cluster"],
                "is_cooperative": bool(info["flags"] & 1),
                "is_programmatic": bool(info["flags"] & 2),
                "scratch_bytes": 0,
                "stream": told["stream"],
                "is_fenced": False,
                "kernel": told["kernel"],
                "arguments": list(zip(info["kinds"], told["bits"], strict=True)),
                "is_waited_for": bool(told["is_waited_for"]),
            }
        )

    device.launch = launch
    native.use("tap", tap)
    try:
        yield
    finally:
        native.use("tap", None)
        del device.launch


class _On:
    """A kernel that is launched on one device, whatever the current one is."""

    def __init__(self, kernel: Any, device: str) -> None:
        self.kernel, self.device = kernel, device

    def __getitem__(self, grid: object) -> Callable[..., Any]:
        bound = self.kernel[grid]
        return lambda *args, **kwargs: bound(*args, device=self.device, **kwargs)

    def warmup(self, *args: object, **kwargs: object) -> Any:
        return self.kernel.warmup(*args, device=self.device, **kwargs)


_GEOMETRY: Final = """
kernel void geometry(global long *seen, int width, int height) {
  if (get_global_id(0) || get_global_id(1) || get_global_id(2)) return;
  for (int i = 0; i < 3; ++i) {
    seen[i] = get_global_size(i);
    seen[3 + i] = get_local_size(i);
    seen[6 + i] = get_num_groups(i);
  }
  mem_fence(CLK_GLOBAL_MEM_FENCE);
  seen[9] = 1;
}
"""


def opencl_geometry(metadata: gridpact.KernelMetadata) -> toolchain.Binary:
    """Give a probe in OpenCL C with another kernel's launch metadata; its dimension 0 is x."""
    bare = dataclasses.replace(metadata, name="geometry", shared=0, build_flags="")
    return toolchain.Binary({"cl": _GEOMETRY}, "cl", bare)


def geometry_from(seen: np.ndarray[Any, Any], limit_s: float = 30) -> Ranges:
    """Wait until the probe's first work-item has written what it saw, and give it."""
    end = time.monotonic() + limit_s
    while seen[9] != 1:
        if time.monotonic() > end:
            raise Violated(
                "a probe kernel in the driver's language", "what its first work-item saw", f"nothing in {limit_s:g} s"
            )
        time.sleep(0.001)
    numbers = tuple(int(n) for n in seen[:9])
    return {"global": numbers[:3], "local": numbers[3:6], "groups": numbers[6:]}


HOOKS_TEXT: Final = (
    "{side}s = gridpact.hooks.observe({side}={side})\n{side}s.__enter__()",
    "{side}s.__exit__(None, None, None)",
)
_HANDLES: Final = "its driver makes the handles: no number can be chosen"
_IMPORTS: Final = "import numpy as np\nimport gridpact\n"


def reference() -> Subject:
    """Open `gridpact:reference`."""
    subject = GridpactDevice("reference", "gridpact.contract.reference_programs")
    subject.abilities = frozenset({"hooks", "options", "binaries", "compiled", "streams", "stream_option", "records"})
    subject.streams = {"gridpact": partial(GridpactStream, "reference")}
    loop = "a program is one call of a Python function"
    subject.lacks = dict.fromkeys(
        ("num_warps", "lanes", "shared", "geometry", "scratch", "clusters", "cooperative", "variants"), loop
    )
    subject.lacks["limits"] = "it has none"
    subject.lacks["stream_handles"] = _HANDLES
    subject.lacks["from_triton"] = "its kernels are Python functions"
    subject.lacks["capture"] = "there is no stream to capture"
    subject.lacks["descriptors"] = "its kernels are Python functions"
    subject.lacks["held"] = "a launch runs to its end before it returns"
    subject.lacks["owners"] = "host memory is all that it reaches"
    subject.language = Language(
        f"{_IMPORTS}from gridpact.backends.reference import num_programs, program_id\n\n"
        'device = gridpact.device("reference")\ndevice.__enter__()\n',
        jit="gridpact.jit",
        hooks=HOOKS_TEXT,
    )
    subject.abilities |= {"explained", "classes"}
    subject.lacks["state"] = "its kernels read what they capture as they run"
    subject.programs_in_case = 20_000
    subject.limits = None
    return subject


def by_definition(open_subject: Callable[[], Subject]) -> Subject:
    """Open a subject whose launches all take the Python path, `gridpact:sycl:cpu:python`."""
    native.turn("off", True)
    subject = open_subject()
    subject.name += PYTHON_PATH
    return subject


def sycl_cpu_python() -> Subject:
    """Open `gridpact:sycl:cpu:python`."""
    return by_definition(sycl_cpu)


def sycl_cpu() -> Subject:
    """Open `gridpact:sycl:cpu`."""
    subject = GridpactDevice("sycl:cpu", "gridpact.contract.triton_programs")
    subject.language = Language(f"{_IMPORTS}import triton.language as tl\n", jit="gridpact.jit", hooks=HOOKS_TEXT)
    subject.lacks = {
        "scratch": "kernels of Triton 3.3 take no scratch memory on SYCL",
        "clusters": "SYCL has no clusters of work-groups",
        "stream_handles": _HANDLES,
        "capture": "command graphs of SYCL are not taken up",
        "cooperative": "the runtime promises no forward progress between work-groups",
        "descriptors": "Triton 3.3 lowers none on SYCL",
    }
    subject.abilities = frozenset(
        {"num_warps", "lanes", "shared", "hooks", "options", "binaries", "compiled", "geometry", "limits"}
        | {"streams", "held", "stream_option", "records", "owners", "from_triton", "variants"}
    )
    subject.abilities |= {"state", "explained", "classes"}
    subject.streams = {**OWN_STREAMS, "torch": TorchXpu}
    return subject
