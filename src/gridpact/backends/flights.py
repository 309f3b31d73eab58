"""Launches that may not be complete, and what they keep alive until they are."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from gridpact.backends.protocol import Mark
from gridpact.errors import BackendError

__all__ = ["Flights"]


@dataclass(eq=False)
class _Flight:
    """One of them: the point in its stream that ends it, and what its kernel uses."""

    mark: Mark
    keep: tuple[object, ...]

    @property
    def is_over(self) -> bool:
        try:
            return self.mark.is_complete()
        except BackendError:  # its error is told by who waits for the stream
            return True


class Flights:
    """The flights of a device by their stream's handle; those of one stream end in the order of their launches."""

    def __init__(self) -> None:
        self.by_stream: dict[int, deque[_Flight]] = {}
        self._lock = threading.RLock()

    def __contains__(self, stream: int) -> bool:
        with self._lock:
            return stream in self.by_stream

    def __bool__(self) -> bool:
        return bool(self.by_stream)

    def add(self, stream: int, mark: Mark, keep: tuple[object, ...]) -> None:
        """Keep objects alive until a mark of a stream is complete."""
        with self._lock:
            self.by_stream.setdefault(stream, deque()).append(_Flight(mark, keep))

    def marks(self, stream: int | None = None) -> list[Mark]:
        """Give the marks of the flights of a stream, or of all."""
        with self._lock:
            streams = self.by_stream if stream is None else [stream]
            return [flight.mark for handle in streams for flight in self.by_stream.get(handle, ())]

    def let_go(self, streams: Iterable[int] | None = None) -> None:
        """Let go of what flights that are over have kept alive, on some streams or on all; streams are among it."""
        over: list[_Flight] = []  # dropped after the lock is: destructors are the users' code, and may launch
        with self._lock:
            for stream in list(self.by_stream if streams is None else streams):
                flights = self.by_stream.get(stream)
                while flights and (first := flights[0]).is_over:
                    if flights and flights[0] is first:  # nobody got in between
                        over.append(flights.popleft())
                if flights is not None and not flights and self.by_stream.get(stream) is flights:
                    del self.by_stream[stream]
