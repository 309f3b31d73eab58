"""Streams as cases handle them: whatever library made one, it is current for a while, marked, waited for."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np

import gridpact

__all__ = ["OWN_STREAMS", "DpctlQueue", "GridpactStream", "Stream", "TorchStream", "TorchTensor", "TorchXpu", "Usm"]


class Stream(ABC):
    """A stream of a case.

    Attributes
    ----------
    given
        The stream as its library's users hold it.
    handle
        As the backend has it: a number of the driver, or the address of a queue.
    is_for_all_memory
        Once it is current, memory of whatever library is launched on it.
    follows_current
        Memory of its library is launched on whatever stream is current there; else it keeps the stream it was made on.
    imported, made, current_text, library_text, recorded, waited, ended, remembered
        How a program makes one, launches inside it, makes it current in its library, marks it with an event, lets it
        wait for one, waits for what was launched on it, and makes memory of this module whose library launches on it;
        `{}` is its name.
    graphed, captured_text, replayed
        How a program makes a graph, captures launches into it, and runs it.
    """

    is_for_all_memory: bool = True
    follows_current: bool = False

    imported: str = ""
    made: str
    current_text: str = "with gridpact.stream({}):"
    library_text: str = "with {}:"
    recorded: str = "{}.record()"
    waited: str = "{}.wait(event)"
    ended: str = "{}.synchronize()"
    remembered: str = ""
    graphed: str = ""
    captured_text: str = ""
    replayed: str = ""
    given: Any
    handle: int

    def current(self) -> AbstractContextManager[Any]:
        """Make it the current stream of launches in the block."""
        return gridpact.stream(self.given)

    def in_library(self) -> AbstractContextManager[Any]:
        """Make it the current stream of its own library in the block; of streams with `follows_current`."""
        return self.current()

    @abstractmethod
    def record(self) -> Any:
        """Mark the point that it has come to with an event."""

    @abstractmethod
    def wait_for(self, event: Any) -> None:
        """Let what comes later on it wait for an event; the host does not wait."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until all that was launched on it is complete."""

    def memory(self) -> tuple[Any, np.ndarray[Any, Any]]:
        """Give an integer of memory whose library launches on this stream if no other is named, also as an array."""
        raise NotImplementedError

    def capturing(self) -> AbstractContextManager[Any]:
        """Capture what is launched in the block, on this stream, into a graph."""
        raise NotImplementedError

    def replay(self, graph: Any) -> None:
        """Run a graph on this stream."""
        raise NotImplementedError


class GridpactStream(Stream):
    """`gridpact.Stream`; without an order of its own, only events order its launches."""

    def __init__(self, device: str, in_order: bool = True) -> None:
        self.given = gridpact.Stream(device, in_order=in_order)
        self.handle = self.given.handle
        self.made = f"gridpact.Stream({device!r}{'' if in_order else ', in_order=False'})"

    def record(self) -> Any:
        """Mark it with an event of ours."""
        return self.given.record()

    def wait_for(self, event: Any) -> None:
        """Let it wait for one."""
        self.given.wait(event)

    def wait(self) -> None:
        """Wait for it."""
        self.given.synchronize()


_DPCTL: Final = "import dpctl\n\ngridpact.open_device('sycl:cpu')  # before dpctl asks for devices"


class DpctlQueue(Stream):
    """A queue of dpctl that keeps its order."""

    imported = _DPCTL
    made = "dpctl.SyclQueue('opencl:cpu', property='in_order')"
    recorded, waited, ended = "{}.submit_barrier()", "{}.submit_barrier([event])", "{}.wait()"
    remembered = "Usm({})"

    def __init__(self) -> None:
        import dpctl

        self.given = self.queue = dpctl.SyclQueue("opencl:cpu", property="in_order")
        self.handle = self.queue.addressof_ref()

    def record(self) -> Any:
        """Mark it with an event of SYCL's."""
        return self.queue.submit_barrier()

    def wait_for(self, event: Any) -> None:
        """Let it wait for one."""
        self.queue.submit_barrier([event])

    def wait(self) -> None:
        """Wait for it."""
        self.queue.wait()

    def memory(self) -> tuple[Any, np.ndarray[Any, Any]]:
        """Give USM of the queue."""
        memory = Usm(self.queue)
        return memory, memory.array


class Usm:
    """USM of a queue of dpctl's as one 32-bit integer, 0: dpctl's own objects are bytes."""

    dtype = np.dtype("i4")

    def __init__(self, queue: Any) -> None:
        from dpctl.memory import MemoryUSMShared

        self.memory = MemoryUSMShared(4, queue=queue)
        self.array = np.asarray(self.memory).view("i4")
        self.array[:] = 0

    @property
    def __sycl_usm_array_interface__(self) -> dict[str, Any]:
        bare = self.memory.__sycl_usm_array_interface__
        return {**bare, "typestr": "<i4", "shape": (1,), "strides": None}

    def __repr__(self) -> str:
        return f"Usm({self.array})"


class UnorderedQueue(DpctlQueue):
    """A queue of dpctl as it makes them unless asked: without an order of its own."""

    made = "dpctl.SyclQueue('opencl:cpu')"

    def __init__(self) -> None:
        import dpctl

        self.given = self.queue = dpctl.SyclQueue("opencl:cpu")
        self.handle = self.queue.addressof_ref()


class Handle(GridpactStream):
    """A raw handle with its owner."""

    imported = _DPCTL

    def __init__(self) -> None:
        queue = DpctlQueue().queue
        self.given = gridpact.Stream.from_handle(queue.addressof_ref(), "sycl:cpu", queue)
        self.handle = self.given.handle
        self.made = (
            f"(lambda queue: gridpact.Stream.from_handle(queue.addressof_ref(), 'sycl:cpu', queue))({DpctlQueue.made})"
        )


class TorchXpu(DpctlQueue):
    """A stream of torch for XPU: a stand-in where there is no such torch, around a real queue."""

    imported = "from gridpact.conformance.subjects.streams import TorchXpu"
    made, current_text, library_text = "TorchXpu()", "with {}.current():", "with {}.current():"
    is_for_all_memory, follows_current = False, True

    def __init__(self) -> None:
        super().__init__()
        self.given = TorchStream(self.queue)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make it what torch says when it is asked for its current stream."""
        torch = ModuleType("torch")
        torch.xpu = SimpleNamespace(current_stream=lambda index: self.given)  # type: ignore[attr-defined]
        torch._C = SimpleNamespace()  # type: ignore[attr-defined]
        before = sys.modules.get("torch")
        sys.modules["torch"] = torch
        try:
            yield
        finally:
            del sys.modules["torch"]
            if before is not None:
                sys.modules["torch"] = before

    def memory(self) -> tuple[Any, np.ndarray[Any, Any]]:
        """Give what stands in for a tensor; whose stream is current decides where it is launched on."""
        array = np.zeros(1, "i4")
        return TorchTensor(array, "xpu", 0), array


class TorchStream:
    """A stream as torch has them for XPU."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue

    @property
    def sycl_queue(self) -> int:
        """Give the address of the queue."""
        return int(self.queue.addressof_ref())


TorchStream.__module__ = "torch.xpu.streams"


class TorchTensor:
    """A tensor as torch has them, as far as a launcher looks at it."""

    def __init__(self, array: np.ndarray[Any, Any], kind: str, index: int) -> None:
        self.array, self.dtype = array, f"torch.{array.dtype.name}"
        self.device = SimpleNamespace(type=kind, index=index)

    def data_ptr(self) -> int:
        """Give the address of the first element."""
        return int(self.array.ctypes.data)


OWN_STREAMS: Final[dict[str, Callable[[], Stream]]] = {
    "gridpact": partial(GridpactStream, "sycl:cpu"),
    "unordered": partial(GridpactStream, "sycl:cpu", in_order=False),
    "dpctl": DpctlQueue,
    "dpctl_unordered": UnorderedQueue,
    "handle": Handle,
}
"""Kind -> streams that `gridpact.stream` makes current on the CPU."""
