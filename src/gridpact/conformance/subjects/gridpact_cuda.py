"""Our own launcher on an NVIDIA GPU, and the same on a driver that runs nothing."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np

import gridpact
from gridpact import toolchain
from gridpact.conformance.check import poisoned
from gridpact.conformance.model import Violated
from gridpact.conformance.script import Language
from gridpact.conformance.subjects import UNOBSERVED, Observed, Ranges, Subject
from gridpact.conformance.subjects.cuda_memory import CudaCoreStream, CudaMemory, CupyStream, TorchCuda, TorchHandle
from gridpact.conformance.subjects.fake_driver import FakeDriver, load, number
from gridpact.conformance.subjects.gridpact_device import HOOKS_TEXT, GridpactDevice, by_definition
from gridpact.conformance.subjects.streams import GridpactStream, Stream

__all__ = ["GridpactCuda", "GridpactCudaFake", "activate", "cuda_0", "cuda_0_python", "ptx_geometry", "ranges_from"]

_ABILITIES: Final = frozenset(
    {"num_warps", "shared", "hooks", "options", "binaries", "compiled", "geometry", "limits", "scratch", "clusters"}
    | {"cooperative", "stream_option", "records", "from_triton", "capture", "variants"}
)
_OWN: Final = frozenset({"state", "explained", "classes"})
_IMPORTS: Final = "import numpy as np\nimport gridpact\nimport triton.language as tl\n"
_LANES: Final = "a warp has 32 threads"


# ------------------------------------------------------------------------------------------------- a probe of geometry

# PTX ISA 8: special registers. %cluster_nctaid needs sm_90 and PTX 7.8.
_GEOMETRY: Final = """
.version {version}
.target sm_{capability}
.address_size 64
.visible .entry geometry(.param .u64 memory, .param .u32 width, .param .u32 height)
{{
  .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %seen, %wide;
  mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ctaid.y; or.b32 %r0, %r0, %r1;
  mov.u32 %r1, %ctaid.z; or.b32 %r0, %r0, %r1; mov.u32 %r1, %tid.x; or.b32 %r0, %r0, %r1;
  setp.ne.u32 %p, %r0, 0;
  @%p ret;
  ld.param.u64 %seen, [memory];
{stores}
  membar.sys;
  mov.u64 %wide, 1;
  st.global.u64 [%seen+72], %wide;
  ret;
}}
"""


def ptx_geometry(metadata: gridpact.KernelMetadata, capability: int) -> toolchain.Binary:
    """Give a probe in PTX with another kernel's launch metadata; its first thread writes what it was given, x first."""
    registers = {3: "%ntid", 6: "%nctaid", **({10: "%cluster_nctaid"} if capability >= 90 else {})}
    stores = "\n".join(
        f"  mov.u32 %r2, {name}.{axis}; cvt.u64.u32 %wide, %r2; st.global.u64 [%seen+{8 * (at + i)}], %wide;"
        for at, name in registers.items()
        for i, axis in enumerate("xyz")
    )
    text = _GEOMETRY.format(version="7.8" if capability >= 90 else "6.3", capability=min(capability, 90), stores=stores)
    bare = dataclasses.replace(metadata, name="geometry", shared=0)
    return toolchain.Binary({"ptx": text}, "ptx", bare)


def ranges_from(seen: np.ndarray[Any, Any]) -> Ranges:
    """Read what the probe wrote; CUDA counts no threads of a whole grid, so that number is their product."""
    if seen[9] != 1:
        raise Violated("a probe kernel in PTX", "what its first thread saw", "nothing")
    numbers = tuple(int(n) for n in seen[:13])
    local, groups = numbers[3:6], numbers[6:9]
    threads = tuple(count * size for count, size in zip(groups, local, strict=True))
    return {"global": threads, "local": local, "groups": groups, "cluster": numbers[10:13]}


# ------------------------------------------------------------------------------------------------------------ subjects


class _OnCuda(GridpactDevice):
    """Our launcher on CUDA, whatever the driver is."""

    def __init__(self, device: str) -> None:
        super().__init__(device, "gridpact.contract.triton_programs")

    @contextmanager
    def allocating(self, sizes: list[int]) -> Iterator[None]:
        """Note the driver's allocations in the order of a stream."""
        from gridpact.backends import cuda

        ask = cuda._ask

        def asked(call: str, *arguments: Any) -> Any:
            if call == "cuMemAllocAsync":
                sizes.append(int(arguments[0]))
            return ask(call, *arguments)

        cuda._ask = asked
        try:
            yield
        finally:
            cuda._ask = ask


class GridpactCuda(CudaMemory, _OnCuda):
    """`kernel[grid](...)` of gridpact on a GPU, with torch's tensors."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.lanes = 32
        self.language = Language(
            _IMPORTS + "import torch\nfrom gridpact.conformance.subjects.cuda_memory import Pinned, Shared\n",
            jit="gridpact.jit",
            tensor=f"torch.from_numpy({{}}).to({device!r})",
            hooks=HOOKS_TEXT,
        )
        self.abilities = _ABILITIES | _OWN | {"streams", "held", "owners", "descriptors"}
        self.lacks = {
            "lanes": _LANES,
            "stream_handles": "its driver makes the handles: no number can be chosen",
        }
        self.streams: dict[str, Callable[[], Stream]] = {
            "gridpact": partial(GridpactStream, device),
            "torch": TorchCuda,
            "cupy": CupyStream,
            "cuda_core": CudaCoreStream,
            "handle": TorchHandle,
        }
        self.graphs = {"torch": TorchCuda, "cuda_core": CudaCoreStream}

    def geometry_program(self, metadata: gridpact.KernelMetadata) -> toolchain.Binary:
        device: Any = self.opened
        return ptx_geometry(metadata, device.target.arch)

    def geometry_seen(self, seen: np.ndarray[Any, Any]) -> Ranges:
        self.synchronize()
        return ranges_from(seen)


def cuda_0() -> Subject:
    """Open `gridpact:cuda:0`."""
    return GridpactCuda("cuda:0")


def cuda_0_python() -> Subject:
    """Open `gridpact:cuda:0:python`."""
    return by_definition(cuda_0)


_entered: Final[list[Any]] = []  # a block that is never left


def activate() -> None:
    """Put the driver that runs nothing in the real one's place, and make its device the current one."""
    load()
    _entered.append(gridpact.device("cuda:0"))
    _entered[-1].__enter__()


class _FakeStream(GridpactStream):
    """A stream of the driver that runs nothing."""

    captured_text = "with gridpact.stream({}):"

    def __init__(self) -> None:
        super().__init__("cuda:0")

    @contextmanager
    def capturing(self) -> Iterator[Any]:
        """Forbid what capture forbids."""
        library, stream, graph = load(), ctypes.c_void_p(self.given.handle), ctypes.c_void_p()
        library.cuStreamBeginCapture_v2(stream, 0)
        try:
            with gridpact.stream(self.given):
                yield graph
        finally:
            library.cuStreamEndCapture(stream, ctypes.byref(graph))


class GridpactCudaFake(FakeDriver, _OnCuda):
    """`kernel[grid](...)` of gridpact, up to the driver call."""

    def __init__(self) -> None:
        load()
        super().__init__("cuda:0")
        self.name, self.device = "gridpact:cuda:fake", FakeDriver.device
        self.driver = "our own libcuda.so.1"
        nothing = "no kernel runs"
        self.abilities = _ABILITIES | _OWN | {"stream_handles"}
        self.lacks = {"lanes": _LANES, **dict.fromkeys(("streams", "held", "owners"), nothing)}
        self.lacks |= {"descriptors": "Triton's own launcher packs them, which needs a GPU"}
        if toolchain.installed().version < (3, 6):
            self.abilities -= {"scratch"}
            self.lacks |= {"scratch": "Triton 3.3 makes no descriptors on the device"}
        self.graphs = {"driver": _FakeStream}
        self.language = Language(
            f"{_IMPORTS}from gridpact.conformance.subjects.fake_driver import driver_calls\n"
            "from gridpact.conformance.subjects.gridpact_cuda import activate\n\n"
            "activate()  # a driver that runs nothing, and keeps what it was asked for\n",
            jit="gridpact.jit",
            finish="print(*driver_calls() or ['no driver call'], sep='\\n')\n",
            hooks=HOOKS_TEXT,
        )

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        self.asked.memory.append(array)
        return array

    @contextmanager
    def current_handle(self, handle: int) -> Iterator[None]:
        with gridpact.stream(gridpact.Stream.from_handle(handle, "cuda:0", None)):
            yield

    def passed(self, result: Any) -> dict[str, Any]:
        kinds = ("argument", "constexpr")
        facts = {name.partition(" ")[2]: fact for name, fact in result.key.facts if name.partition(" ")[0] in kinds}
        types = [(name, fact[0]) for name, fact in facts.items() if fact[0] != "constexpr"]
        parts = self.last_call().parameters
        found = {name: number(kind.replace("*k", "*"), part) for (name, kind), part in zip(types, parts, strict=False)}
        built_in = {name: fact[1][-1] for name, fact in facts.items() if fact[0] == "constexpr"}
        return {name: found.get(name, built_in.get(name)) for name in facts}

    def geometry(
        self, grid: tuple[int, ...], wait: bool = True, observed: Observed = UNOBSERVED, **options: Any
    ) -> Ranges:
        self.driver_calls()
        told: dict[str, Any] = {} if observed.metadata is None else {"launch_metadata": lambda *_: observed.metadata}
        kernel = self.kernel("coordinates", **told)
        with gridpact.hooks.observe(observed.enter, observed.exit):
            self.launch("coordinates", grid, poisoned(16, "i8"), 1, 1, kernel=kernel, **options)
        return self.ranges()
