"""Upstream Triton's frontend and its own C launcher for CUDA, on a driver that only keeps what it was asked."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import numpy as np

from gridpact.conformance.check import launch, poisoned
from gridpact.conformance.model import Violated
from gridpact.conformance.script import Language
from gridpact.conformance.subjects import UNOBSERVED, Observed, Ranges
from gridpact.conformance.subjects.fake_driver import FOLDER, FakeDriver, driver_calls, load, number
from gridpact.conformance.subjects.triton_active import UpstreamTriton
from gridpact.conformance.subjects.triton_interpreter import Tensor

__all__ = ["Tensor", "TritonCudaFake", "activate", "driver_calls"]

NOTE: Final = "device 0, its default stream and its compute capability are stand-ins, where Triton asks torch for them"


@cache
def activate() -> None:
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
    os.environ["TRITON_CACHE_DIR"] = str(FOLDER / "cache")  # fresh: what others compiled is not asked
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # what 3.9 does unless told, with a warning
    os.environ["TRITON_LIBCUDA_PATH"] = str(FOLDER)
    load()
    import triton
    from triton.backends.nvidia import driver as nvidia

    triton.runtime.driver.set_active(_driver_class(nvidia)())


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


class TritonCudaFake(FakeDriver, UpstreamTriton):
    """`@triton.jit` kernels through Triton's frontend and C launcher, up to the driver call."""

    name = "triton:cuda:fake"
    driver = f"our own libcuda.so.1; {NOTE}"
    abilities = frozenset(
        {
            "num_warps",
            "shared",
            "hooks",
            "options",
            "binaries",
            "compiled",
            "geometry",
            "limits",
            "scratch",
            "clusters",
            "cooperative",
        }
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

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        self.asked.memory.append(array)
        return Tensor(array)

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
            name: number(kind, part)
            for (name, kind), part in zip(types, parts, strict=False)
            if isinstance(kind, str)  # a tuple's parts have no names
        }
        names = list(result.src.signature)
        built_in = {names[path[0]]: value for path, value in result.src.constants.items() if len(path) == 1}
        both = {**built_in, **found}
        return {name: both[name] for name in names if name in both}

    scratch_text = "Tensor(np.zeros(128, 'u1'))"

    def scratch(self, size: int, alignment: int) -> Any:
        return Tensor(np.zeros(max(alignment, 16), "u1"))  # enough for a launch that nothing runs

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
        return self.ranges()
