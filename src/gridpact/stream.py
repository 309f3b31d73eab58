"""Streams: where launches of one device run in order.

A stream passes through the frontend untouched, by identity; only the backend knows what its handle is. A bare integer
is never a stream: a raw handle comes in through `Stream.from_handle`, which says whose it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gridpact import native
from gridpact.errors import ContractTypeError, ContractValueError

if TYPE_CHECKING:
    from gridpact.backends.protocol import Mark

__all__ = ["Event", "Exported", "Stream", "TorchCurrent", "current_stream", "stream"]

_current: ContextVar[object] = ContextVar("gridpact_stream", default=None)
native.use("stream_var", _current)


class Stream:
    """An ordered queue of launches on one device.

    Parameters
    ----------
    device
        Name of the device, such as `sycl:cpu`; the current one if not given.
    in_order
        Whether each launch waits for the one before it (default, STREAM-2). Without it only events order launches;
        CUDA has no such streams.

    Notes
    -----
    `Stream("sycl:cpu")` makes a new one; `Stream.from_handle` takes one that something else owns. The stream object
    keeps the native one alive: it is released when the object is closed or dropped, after the launches in flight.
    """

    def __init__(self, device: str | None = None, *, in_order: bool = True) -> None:
        from gridpact import backends

        opened = backends.open_device(device or backends.current_device())
        self.device = opened.name
        self.handle: int
        self.owner: object
        self.handle, self.owner = opened.create_stream(in_order=in_order)
        self.is_closed = False

    @classmethod
    def from_handle(cls, value: int, device: str, owner: object) -> Stream:
        """Take a raw stream handle of the driver.

        Parameters
        ----------
        value
            The handle: for SYCL the address of a `sycl::queue`. 0 is a real stream on CUDA.
        device
            Name of the device that the stream belongs to.
        owner
            The object that keeps the handle valid; it is kept alive as long as this stream and every launch given it.
        """
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ContractTypeError("stream handle", "expected an address as an int", value, clause="STREAM-5")
        taken = cls.__new__(cls)
        taken.device, taken.handle, taken.owner, taken.is_closed = device, value, owner, False
        return taken

    def record(self) -> Event:
        """Mark the point that this stream has come to, for other streams to wait for (STREAM-3).

        On a stream without an order of its own, what is launched later waits for all before the mark, too.
        """
        from gridpact import backends

        opened = backends.open_device(self.device)
        return Event(self.device, opened.record(opened.accept_stream(self)))

    def wait(self, event: Event) -> None:
        """Let launches given to this stream from now on wait for an event; the caller does not wait.

        Raises
        ------
        ContractError
            STREAM-5: no event, or one of another device; `event.synchronize()` serves there.
        """
        from gridpact import backends

        if not isinstance(event, Event):
            raise ContractTypeError("event", "expected what Stream.record gave", event, clause="STREAM-5")
        if event.device != self.device:
            remedy = "Wait for it on the host, with event.synchronize()."
            raise ContractValueError("event", f"expected one of {self.device}", event, remedy, "STREAM-5")
        opened = backends.open_device(self.device)
        opened.wait_for(opened.accept_stream(self), event.mark)

    def synchronize(self) -> None:
        """Wait until every launch given to this stream is complete."""
        from gridpact import backends

        self.check_open()
        backends.open_device(self.device).synchronize(self)

    def close(self) -> None:
        """Wait for the launches in flight and let the native stream go; a closed stream is refused (STREAM-5)."""
        if not self.is_closed:
            self.synchronize()
            self.is_closed = True
            self.owner = None

    def check_open(self) -> None:
        """Refuse a closed stream."""
        if self.is_closed:
            raise ContractValueError("stream", "expected an open stream", self, "Make a new one.", "STREAM-5")

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else hex(self.handle)
        return f"<Stream {state} on {self.device}>"


native.use("stream_type", Stream)


@dataclass(frozen=True)
class Event:
    """A point in a stream, made by `Stream.record`: complete when all that was launched before it is.

    Attributes
    ----------
    device
        Name of the stream's device.
    mark
        The backend's own object.
    """

    device: str
    mark: Mark

    @property
    def is_complete(self) -> bool:
        """Whether all before it is complete."""
        return self.mark.is_complete()

    def synchronize(self) -> None:
        """Wait until all before it is complete."""
        self.mark.wait()


@dataclass(frozen=True)
class TorchCurrent:
    """Whatever stream torch has as its current one on a device when it is asked, which each launch does (STREAM-1).

    Attributes
    ----------
    kind
        `cuda` or `xpu`.
    index
        Of the device, as torch counts.
    """

    kind: str
    index: int

    def handle(self) -> tuple[int, object]:
        """Give the handle of the driver's stream, or the address of the `sycl::queue`, and what keeps it valid."""
        torch = sys.modules["torch"]
        raw = getattr(torch._C, f"_{self.kind}_getCurrentRawStream", None)  # spares a Python object, where torch has it
        if raw is not None:
            return int(raw(self.index)), torch  # torch's streams come from a pool that lives as long as the process
        current = getattr(torch, self.kind).current_stream(self.index)
        return int(current.sycl_queue if self.kind == "xpu" else current.cuda_stream), current


@dataclass(frozen=True)
class Exported:
    """The stream that an array names in its `__cuda_array_interface__`: where its library works on it.

    Attributes
    ----------
    handle
        1 is the legacy default stream, 2 the one of each thread.
    owner
        The array.
    """

    handle: int
    owner: object


@contextmanager
def stream(given: object) -> Iterator[object]:
    """Make a stream the current one of this thread or task: launches inside that name no stream go to it (STREAM-1)."""
    if isinstance(given, int):
        raise ContractTypeError(
            "stream",
            "expected a stream object",
            given,
            "Wrap a raw handle with gridpact.Stream.from_handle.",
            "STREAM-5",
        )
    token = _current.set(given)
    try:
        yield given
    finally:
        _current.reset(token)


def current_stream() -> object:
    """Give the stream of the innermost `with gridpact.stream(s)`, or None."""
    return _current.get()
