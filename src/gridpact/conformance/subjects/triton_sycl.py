"""Upstream Triton without a GPU, `triton:sycl:cpu`: its frontend on our SYCL driver."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gridpact
from gridpact.backends import device_status
from gridpact.conformance.check import poisoned
from gridpact.conformance.script import Language
from gridpact.conformance.subjects import UNOBSERVED, Observed, Ranges
from gridpact.conformance.subjects.gridpact_device import geometry_from, opencl_geometry, recording
from gridpact.conformance.subjects.streams import OWN_STREAMS
from gridpact.conformance.subjects.triton_active import TritonActive

__all__ = ["TritonSycl"]


class TritonSycl(TritonActive):
    """`@triton.jit` kernels on the CPU."""

    def __init__(self) -> None:
        import triton

        triton.runtime.driver.set_active(gridpact.triton.driver("sycl:cpu"))
        super().__init__()
        self.name = "triton:sycl:cpu"
        self.language = Language(
            "import numpy as np\nimport gridpact\nimport triton\nimport triton.language as tl\n\n"
            'triton.runtime.driver.set_active(gridpact.triton.driver("sycl:cpu"))\n',
            hooks=self.hooks_text,
        )
        facts = device_status("sycl:cpu").facts
        self.device, self.driver = facts["device"], facts["driver"]
        self.abilities |= {"lanes", "geometry", "limits", "streams", "held", "records", "owners"}
        self.lacks = {**self.lacks, "stream_option": "Triton takes the stream that is current"}
        self.streams = OWN_STREAMS
        limits = gridpact.open_device("sycl:cpu").limits
        self.limits, self.most_threads = limits.programs, limits.threads

    def synchronize(self) -> None:
        gridpact.synchronize("sycl:cpu")

    @contextmanager
    def recording(self, records: list[dict[str, Any]]) -> Iterator[None]:
        with recording(gridpact.open_device("sycl:cpu"), records):
            yield

    def geometry(
        self, grid: tuple[int, ...], wait: bool = True, observed: Observed = UNOBSERVED, **options: Any
    ) -> Ranges:
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
