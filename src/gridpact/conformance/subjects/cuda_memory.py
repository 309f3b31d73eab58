"""Memory and streams of subjects on an NVIDIA GPU: torch's tensors, and memory that host and GPU see at once."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import gridpact
from gridpact.conformance.subjects.streams import GridpactStream, Stream
from gridpact.conformance.subjects.torch_memory import TorchMemory

__all__ = ["CudaCoreStream", "CudaMemory", "CupyStream", "Pinned", "Shared", "TorchCuda", "TorchHandle"]


class Shared(np.ndarray[Any, Any]):
    """An array in managed memory, which kernels and the host see while kernels run.

    Pinned memory does not serve for a flag: on an H200 a kernel that waits in a loop does not see it change.

    Attributes
    ----------
    tensor
        A torch tensor of the same memory, for launches.
    """

    tensor: Any

    def __new__(cls, array: np.ndarray[Any, Any]) -> Shared:
        """Copy an array into managed memory; it lives as long as the process."""
        import torch
        from cuda.bindings import driver

        torch.cuda.init()
        torch.zeros(1, device="cuda")  # makes the context
        code, address = driver.cuMemAllocManaged(max(array.nbytes, 1), driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL)
        if code:
            raise RuntimeError(f"cuMemAllocManaged: {code.name}")
        raw = np.ctypeslib.as_array((ctypes.c_byte * array.nbytes).from_address(int(address)))
        made: Shared = raw.view(array.dtype).view(cls)
        made[...] = array
        made.tensor = torch.as_tensor(_Exported(int(address), made), device="cuda")
        return made


class Pinned(np.ndarray[Any, Any]):
    """An array in page-locked memory of the host, which kernels reach.

    Attributes
    ----------
    tensor
        The tensor of torch, on the CPU, whose memory it is.
    """

    tensor: Any

    def __new__(cls, array: np.ndarray[Any, Any]) -> Pinned:
        """Copy an array into page-locked memory."""
        import torch

        tensor = torch.from_numpy(np.array(array)).pin_memory()
        made: Pinned = tensor.numpy().view(cls)
        made.tensor = tensor
        return made


class _Exported:
    """Says to torch where memory is."""

    def __init__(self, address: int, array: np.ndarray[Any, Any]) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False), "typestr": array.dtype.str, "shape": array.shape, "version": 3,
        }  # fmt: skip


class CudaMemory(TorchMemory):
    """Beside copies, memory that host and GPU share."""

    def tensor(self, array: np.ndarray[Any, Any]) -> Any:
        return array.tensor if isinstance(array, (Shared, Pinned)) else super().tensor(array)

    def descriptor(self, array: np.ndarray[Any, Any], shape: tuple[int, int], block: tuple[int, int]) -> Any:
        """Give a matrix as a tensor descriptor of Triton's."""
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor.from_tensor(self.tensor(array).reshape(shape), list(block))

    def shared(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return Shared(array)

    def raise_flag(self, flag: np.ndarray[Any, Any]) -> None:
        """Set it on the GPU: a write of the host to managed memory was seen now at once, now after half a minute."""
        import torch

        with torch.cuda.stream(torch.cuda.Stream()):
            self.tensor(flag).fill_(1)

    def host(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return Pinned(array)

    def wait_default(self) -> None:
        import torch

        torch.cuda.current_stream().synchronize()


# ---------------------------------------------------------------------------------------------------------- streams


class TorchCuda(Stream):
    """A stream of torch."""

    imported = "import torch"
    made = "torch.cuda.Stream()"
    current_text = library_text = "with torch.cuda.stream({}):"
    recorded, waited = "{}.record_event()", "{}.wait_event(event)"
    graphed, captured_text = "graph = torch.cuda.CUDAGraph()", "with torch.cuda.graph(graph, stream={}):"
    replayed = "graph.replay()\ntorch.cuda.synchronize()"
    follows_current = True

    def __init__(self) -> None:
        import torch

        self.torch = torch
        self.given = torch.cuda.Stream()
        self.handle = self.given.cuda_stream

    def current(self) -> Any:
        """Make it torch's current stream."""
        return self.torch.cuda.stream(self.given)

    def record(self) -> Any:
        """Mark it with an event of torch."""
        return self.given.record_event()

    def wait_for(self, event: Any) -> None:
        """Let it wait for one."""
        self.given.wait_event(event)

    def wait(self) -> None:
        """Wait for it."""
        self.given.synchronize()

    @contextmanager
    def capturing(self) -> Iterator[Any]:
        """Capture into a graph of torch, which makes the stream its current one."""
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=self.given):
            yield graph

    def replay(self, graph: Any) -> None:
        """Run a graph."""
        with self.torch.cuda.stream(self.given):
            graph.replay()

    def memory(self) -> tuple[Any, np.ndarray[Any, Any]]:
        """Give a tensor: whose stream is current decides where it is launched on."""
        array = Shared(np.zeros(1, "i4"))
        return array.tensor, array


class CupyStream(Stream):
    """A stream of CuPy."""

    imported, made = "import cupy", "cupy.cuda.Stream(non_blocking=True)"
    recorded, waited = "{}.record()", "{}.wait_event(event)"
    follows_current = True

    def __init__(self) -> None:
        import cupy

        self.cupy = cupy
        self.given = cupy.cuda.Stream(non_blocking=True)
        self.handle = self.given.ptr

    @contextmanager
    def in_library(self) -> Iterator[None]:
        """Make it CuPy's current stream."""
        with self.given:
            yield

    def record(self) -> Any:
        """Mark it with an event of CuPy."""
        return self.given.record()

    def wait_for(self, event: Any) -> None:
        """Let it wait for one."""
        self.given.wait_event(event)

    def wait(self) -> None:
        """Wait for it."""
        self.given.synchronize()

    def memory(self) -> tuple[Any, np.ndarray[Any, Any]]:
        """Give an array of CuPy: whose stream is current decides where it is launched on."""
        array = Shared(np.zeros(1, "i4"))
        return self.cupy.asarray(array.tensor), array


class CudaCoreStream(Stream):
    """A stream of cuda.core."""

    imported = "from cuda.core import Device\n\nDevice(0).set_current()"
    made, recorded, waited, ended = "Device(0).create_stream()", "{}.record()", "{}.wait(event)", "{}.sync()"
    graphed = "builder = {}.create_graph_builder().begin_building()"
    captured_text = "with gridpact.stream({}):"
    replayed = "graph = builder.end_building().complete()\ngraph.launch({})"

    def __init__(self) -> None:
        from cuda.core import Device

        device = Device(0)
        device.set_current()
        self.given = device.create_stream()
        self.handle = int(self.given.handle)

    @contextmanager
    def capturing(self) -> Iterator[Any]:
        """Capture into a graph of cuda.core."""
        builder = self.given.create_graph_builder().begin_building()
        graphs: list[Any] = []
        try:
            with gridpact.stream(self.given):
                yield graphs
        finally:
            builder.end_building()
        graphs.append(builder.complete())

    def replay(self, graph: Any) -> None:
        """Run a graph."""
        graph[0].launch(self.given)

    def record(self) -> Any:
        """Mark it with an event of cuda.core."""
        return self.given.record()

    def wait_for(self, event: Any) -> None:
        """Let it wait for one."""
        self.given.wait(event)

    def wait(self) -> None:
        """Wait for it."""
        self.given.sync()


class TorchHandle(GridpactStream):
    """A raw handle with its owner."""

    imported = "import torch"

    def __init__(self) -> None:
        stream = TorchCuda().given
        self.given = gridpact.Stream.from_handle(stream.cuda_stream, "cuda:0", stream)
        self.handle = self.given.handle
        self.made = (
            f"(lambda stream: gridpact.Stream.from_handle(stream.cuda_stream, 'cuda:0', stream))({TorchCuda.made})"
        )
