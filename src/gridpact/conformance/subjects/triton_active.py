"""Upstream's own `JITFunction.run` on whatever driver the installed Triton has: what a backend engineer runs.

On a machine without a GPU it is given our SYCL driver, and is recorded by its device: `triton:sycl:cpu`,
`triton:cuda:0`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

from gridpact.conformance.script import Language
from gridpact.conformance.subjects import Subject
from gridpact.conformance.subjects.torch_memory import TorchMemory

__all__ = ["TritonActive", "TritonGpu", "UpstreamTriton", "observed_by_triton", "triton_active"]


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

    def forget(self) -> None:
        for folder in Path(os.environ["TRITON_CACHE_DIR"]).glob("*"):
            if any(folder.glob("*.ttir")):  # others hold launchers, which take seconds to build
                shutil.rmtree(folder)

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
        driver = triton.runtime.driver.active
        self.target, self.index = driver.get_current_target(), driver.get_current_device()
        self.name = f"triton:{self.target.backend}:{self.index}"
        self.abilities = frozenset({"num_warps", "shared", "hooks", "options", "binaries", "compiled"})
        self.lacks = {"lanes": f"{self.target.backend} has one number of lanes"}


class TritonGpu(TorchMemory, TritonActive):
    """On a GPU that Triton's driver finds, with torch's tensors."""

    def __init__(self) -> None:
        super().__init__()
        driver = self.triton.runtime.driver.active
        place = driver.get_active_torch_device()
        self.kind = place.type
        self.device = driver.get_device_interface().get_device_name(self.index)
        self.language = Language(
            "import numpy as np\nimport torch\nimport triton\nimport triton.language as tl\n",
            tensor=f"torch.from_numpy({{}}).to({str(place)!r})",
            hooks=self.hooks_text,
        )
        self.unwritten = {
            "geometry": "no probe in this driver's language is written yet",
            "limits": "nobody reads this driver's limits yet",
            **dict.fromkeys(("streams", "held", "records", "owners"), "its streams and its memory are not asked yet"),
            "capture": "its streams are not asked yet",
        }


def triton_active() -> Subject:
    """Open upstream Triton on whatever GPU its driver finds, else on our SYCL CPU."""
    import triton

    try:
        target = triton.runtime.driver.active.get_current_target()
    except RuntimeError:  # no GPU
        from gridpact.conformance.subjects.triton_sycl import TritonSycl

        return TritonSycl()
    if target.backend != "cuda":
        return TritonGpu()
    from gridpact.conformance.subjects.triton_cuda import TritonCuda

    return TritonCuda()
