"""Upstream's own `JITFunction.run` on whatever driver the installed Triton has: what a backend engineer runs.

On a machine without a GPU it is given our SYCL driver, and is recorded by its device: `triton:sycl:cpu`,
`triton:cuda:0`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import numpy as np

from gridpact.conformance.check import Asked, poisoned
from gridpact.conformance.model import Unsupported
from gridpact.conformance.script import Language
from gridpact.conformance.subjects import UNOBSERVED, Observed, Ranges, Subject
from gridpact.conformance.subjects.streams import OWN_STREAMS


class UpstreamTriton(Subject):
    """What Triton's own frontend is asked through, whatever runs its kernels: `@triton.jit`, Triton's hooks."""

    triton: Any

    @property
    def hooks_text(self) -> tuple[str, str]:
        """Lines that register a launch hook with this version of Triton, and remove it."""
        has_knobs = hasattr(self.triton, "knobs")
        slot = ("triton.knobs.runtime" if has_knobs else "triton.compiler.CompiledKernel") + ".launch_{side}_hook"
        if has_knobs and hasattr(self.triton.knobs.runtime.launch_enter_hook, "add"):
            return f"{slot}.add({{side}})", f"{slot}.remove({{side}})"
        return f"{slot} = {{side}}", f"{slot} = None"

    def jit(self, function: FunctionType, **options: Any) -> Any:
        return self.triton.jit(function, **{**getattr(function, "options", {}), **options})

    @property
    def launch_options(self) -> frozenset[str]:
        from gridpact import toolchain

        return frozenset(toolchain.option_defaults(toolchain.Target("cuda", 90, 32)))

    def identity(self, compiled: Any) -> str:
        return str(compiled.hash)

    @contextmanager
    def observed(self, enter: Callable[[Any], None] | None, exit: Callable[[Any], None] | None) -> Iterator[None]:
        with self.asked.script.watched(enter, exit), observed_by_triton(self.triton, enter, exit):
            yield

    scratch_text: str = ""
    """How a program makes the scratch memory of a launch, `size` bytes."""

    def scratch(self, size: int, alignment: int) -> Any:
        """Give the scratch memory of a launch; of subjects with `scratch`."""
        raise NotImplementedError

    @contextmanager
    def allocating(self, sizes: list[int]) -> Iterator[None]:
        """Set Triton's allocator."""

        def allocate(size: int, alignment: int, stream: object) -> Any:
            sizes.append(size)
            return self.scratch(size, alignment)

        self.asked.script.write(
            "def allocate(size, alignment, stream):\n    print('asked for', size, 'bytes of scratch memory')\n"
            f"    return {self.scratch_text}\n\n\ntriton.set_allocator(allocate)"
        )
        self.triton.set_allocator(allocate)
        try:
            yield
        finally:
            from triton.runtime._allocation import NullAllocator

            self.triton.set_allocator(NullAllocator())


@contextmanager
def observed_by_triton(
    triton: Any, enter: Callable[[Any], None] | None, exit: Callable[[Any], None] | None
) -> Iterator[None]:
    """Register launch hooks with Triton: chains in its knobs, or one slot per hook in 3.3."""
    holder = triton.knobs.runtime if hasattr(triton, "knobs") else triton.compiler.CompiledKernel
    hooks = {"launch_enter_hook": enter, "launch_exit_hook": exit}
    before = {name: getattr(holder, name) for name in hooks}
    chained = {name: hook for name, hook in hooks.items() if hasattr(before[name], "add")}
    for name, hook in hooks.items():
        if name not in chained:
            setattr(holder, name, hook)
        elif hook is not None:
            before[name].add(hook)
    try:
        yield
    finally:
        for name, hook in hooks.items():
            if name not in chained:
                setattr(holder, name, before[name])
            elif hook is not None:
                before[name].remove(hook)


class TritonActive(UpstreamTriton):
    """`@triton.jit` kernels through Triton's frontend and the active driver's launcher."""

    def __init__(self) -> None:
        super().__init__()
        self._cache = tempfile.TemporaryDirectory(prefix="gridpact-triton-")
        os.environ["TRITON_CACHE_DIR"] = self._cache.name
        import triton

        from gridpact.contract import triton_programs

        self.triton = triton
        self.programs = triton_programs
        self.copies: list[tuple[np.ndarray[Any, Any], Any]] = []
        self.is_ours = False
        try:
            target = triton.runtime.driver.active.get_current_target()
        except RuntimeError:  # no GPU
            import gridpact

            driver = gridpact.triton.driver("sycl:cpu")
            triton.runtime.driver.set_active(driver)
            target = driver.get_current_target()
            self.is_ours = True
        index = triton.runtime.driver.active.get_current_device()
        where = "cpu" if self.is_ours else str(index)
        self.name = f"triton:{target.backend}:{where}"
        self.device = (
            f"{target.backend} {target.arch if not isinstance(target.arch, dict) else target.arch.get('name')}"
        )
        self.abilities = frozenset({"num_warps", "shared", "hooks", "options", "binaries", "compiled"})
        self.lacks = {"lanes": f"{target.backend} has one number of lanes"}
        self.unwritten = {
            "geometry": "no probe in this driver's language is written yet",
            "limits": "nobody reads this driver's limits yet",
            **dict.fromkeys(("streams", "held", "records", "owners"), "its streams and its memory are not asked yet"),
            "capture": "its streams are not asked yet",
        }
        if self.is_ours:
            self.language = Language(
                "import numpy as np\nimport gridpact\nimport triton\nimport triton.language as tl\n\n"
                'triton.runtime.driver.set_active(gridpact.triton.driver("sycl:cpu"))\n',
                hooks=self.hooks_text,
            )
            from gridpact.backends import device_status

            facts = device_status("sycl:cpu").facts
            self.device, self.driver = facts["device"], facts["driver"]
            self.abilities |= {"lanes", "geometry", "limits", "streams", "held", "records", "owners"}
            self.lacks |= {"stream_option": "Triton takes the stream that is current"}
            self.streams = OWN_STREAMS
            self.unwritten = {}
            limits = gridpact.open_device("sycl:cpu").limits
            self.limits, self.most_threads = limits.programs, limits.threads
        else:
            self._devices = triton.runtime.driver.active.get_device_interface()  # torch.cuda, torch.xpu
            self.device = self._devices.get_device_name(index)
            kind = triton.runtime.driver.active.get_active_torch_device()
            self.language = Language(
                "import numpy as np\nimport torch\nimport triton\nimport triton.language as tl\n",
                tensor=f"torch.from_numpy({{}}).to({str(kind)!r})",
                hooks=self.hooks_text,
            )

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        if self.is_ours:
            return array
        import torch

        skipped = array.ctypes.data % 16 // array.itemsize  # the copy begins as far after a multiple of 16 bytes
        place = self.triton.runtime.driver.active.get_active_torch_device()
        padded = np.concatenate([np.zeros(skipped, array.dtype), array]) if skipped else array
        copy = torch.from_numpy(padded).to(place)[skipped:]
        self.copies.append((array, copy))
        return copy

    def synchronize(self) -> None:
        if self.is_ours:
            import gridpact

            gridpact.synchronize("sycl:cpu")
            return
        for array, copy in self.copies:
            array[...] = copy.cpu().numpy()

    def begin(self, asked: Asked) -> None:
        super().begin(asked)
        self.copies.clear()

    def is_poisoned(self) -> bool:
        if self.is_ours:
            return False
        try:
            self._devices.synchronize()
        except Exception:  # sticky: every later call of the context says the same
            return True
        return False

    @contextmanager
    def recording(self, records: list[dict[str, Any]]) -> Iterator[None]:
        if "records" not in self.abilities:
            raise Unsupported("what reaches its backend is not seen")
        import gridpact
        from gridpact.conformance.subjects.gridpact_device import recording

        with recording(gridpact.open_device("sycl:cpu"), records):
            yield

    def geometry(
        self, grid: tuple[int, ...], wait: bool = True, observed: Observed = UNOBSERVED, **options: Any
    ) -> Ranges:
        if "geometry" not in self.abilities:
            return super().geometry(grid, wait, **options)
        import gridpact
        from gridpact.conformance.subjects.gridpact_device import geometry_from, opencl_geometry

        seen = poisoned(16, "i8")
        compiled = self.kernel("coordinates").warmup(seen, 1, 1, grid=(1,), **options)
        metadata = compiled.metadata
        probe = opencl_geometry(
            gridpact.KernelMetadata(metadata.name, metadata.num_warps, metadata.threads_per_warp, metadata.shared)
        )
        x, y, z = (*grid, 1, 1)[:3]
        stream = None if wait else gridpact.Stream("sycl:cpu")
        compiled.run(x, y, z, stream, probe, compiled.packed_metadata, *observed, seen, 1, 1)
        return geometry_from(seen)


def triton_active() -> Subject:
    """Open upstream Triton on whatever GPU its driver finds, else on our SYCL CPU."""
    import triton

    try:
        target = triton.runtime.driver.active.get_current_target()
    except RuntimeError:  # no GPU
        return TritonActive()
    if target.backend != "cuda":
        return TritonActive()
    from gridpact.conformance.subjects.triton_cuda import TritonCuda

    return TritonCuda()
