"""Upstream Triton on an NVIDIA GPU, `triton:cuda:0`: its frontend and its own launcher."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gridpact.conformance.check import poisoned
from gridpact.conformance.script import Language
from gridpact.conformance.subjects import UNOBSERVED, Observed, Ranges
from gridpact.conformance.subjects.cuda_memory import CudaMemory, TorchCuda
from gridpact.conformance.subjects.gridpact_cuda import ptx_geometry, ranges_from
from gridpact.conformance.subjects.triton_active import TritonGpu

__all__ = ["TritonCuda"]


class TritonCuda(CudaMemory, TritonGpu):
    """`@triton.jit` kernels on a GPU, with torch's tensors."""

    def __init__(self) -> None:
        super().__init__()
        import torch

        major, minor = torch.cuda.get_device_capability()
        self.capability = 10 * major + minor
        self.driver = f"cuda {torch.version.cuda}"
        # CUDA C++ programming guide, technical specifications per compute capability
        self.limits, self.most_threads, self.lanes = (2**31 - 1, 65535, 65535), 1024, 32
        self.abilities |= {"limits", "geometry", "streams", "held", "records", "owners"}
        self.abilities |= {"scratch", "capture", "cooperative", "descriptors"}
        self.abilities |= {"clusters"} if self.capability >= 90 else set()
        self.unwritten = {}
        self.lacks = {
            **self.lacks,
            "stream_option": "Triton takes the stream that is current",
            "stream_handles": "its driver makes the handles: no number can be chosen",
        }
        self.streams = {"torch": TorchCuda}
        self.graphs = {"torch": TorchCuda}
        self.language = Language(
            "import numpy as np\nimport torch\nimport triton\nimport triton.language as tl\n"
            "from gridpact.conformance.subjects.cuda_memory import Pinned, Shared\n",
            tensor="torch.from_numpy({}).to('cuda:0')",
            hooks=self.hooks_text,
        )

    def geometry(
        self, grid: tuple[int, ...], wait: bool = True, observed: Observed = UNOBSERVED, **options: Any
    ) -> Ranges:
        """Launch a probe in PTX by the launcher of a compiled kernel, as Triton's frontend does."""
        from cuda.bindings import driver

        import gridpact

        seen = poisoned(16, "i8")
        memory = self.tensor(seen)
        compiled = self.kernel("coordinates").warmup(memory, 1, 1, grid=(1,), **options)
        metadata = gridpact.KernelMetadata("geometry", compiled.metadata.num_warps, 32)
        code, module = driver.cuModuleLoadData(ptx_geometry(metadata, self.capability).code + b"\0")
        if code:
            raise RuntimeError(f"cuModuleLoadData: {code.name}")
        _, function = driver.cuModuleGetFunction(module, b"geometry")
        x, y, z = (*grid, 1, 1)[:3]
        compiled._init_handles()
        stream = self.triton.runtime.driver.active.get_current_stream(0)
        compiled.run(x, y, z, stream, int(function), compiled.packed_metadata, *observed, memory, 1, 1)
        self.synchronize()
        driver.cuModuleUnload(module)
        return ranges_from(seen)

    scratch_text = "torch.empty(size, dtype=torch.int8, device='cuda')"

    def scratch(self, size: int, alignment: int) -> Any:
        import torch

        return torch.empty(max(size, 1), dtype=torch.int8, device="cuda")

    @contextmanager
    def recording(self, records: list[dict[str, Any]]) -> Iterator[None]:
        """Note what the launcher is called with, tensors as addresses, without what is there for observers."""
        launcher = self.triton.runtime.driver.active.launcher_cls
        original = launcher.__call__

        def call(launching: Any, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> Any:
            packed, (_, _, _, *arguments) = rest[0], rest[1:]
            records.append(
                {
                    "grid": (x, y, z),
                    "stream": stream,
                    "kernel": function,
                    "packed": tuple(packed),
                    "arguments": [arg.data_ptr() if hasattr(arg, "data_ptr") else arg for arg in arguments],
                }
            )
            return original(launching, x, y, z, stream, function, *rest)

        launcher.__call__ = call
        try:
            yield
        finally:
            launcher.__call__ = original
