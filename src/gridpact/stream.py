"""Streams: where launches of one device run in order.

A stream passes through the frontend untouched, by identity; only the backend knows what its handle is. A bare integer
is never a stream: a raw handle comes in through `Stream.from_handle`, which says whose it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gridpact.errors import ContractTypeError, ContractValueError

__all__ = ["Stream", "current_stream", "stream"]

_current: ContextVar[object] = ContextVar("gridpact_stream", default=None)


class Stream:
    """An ordered queue of launches on one device.

    Parameters
    ----------
    device
        Name of the device, such as `sycl:cpu`; the current one if not given.
    in_order
        Whether each launch waits for the one before it (default). Without it only the caller orders launches.

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
            raise ContractValueError("stream", "expected an open stream", self, clause="STREAM-5")

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else hex(self.handle)
        return f"<Stream {state} on {self.device}>"


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
