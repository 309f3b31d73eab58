"""The end of the process: who may still be inside a driver's runtime, and what is freed no more."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from gridpact import native

__all__ = ["free_with", "gate", "gated"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Gate:
    """Keeps threads out of the runtime while the process ends: its destructors run whoever is still inside.

    Only daemon threads are left by then. One that is inside goes on until it is done, and keeps alive what it must; one
    that wants in ends, and lets go of its locks on the way. The main thread goes on.
    """

    def __init__(self) -> None:
        self._inside: list[int] = []  # idents of threads, once for each call; appending and removing are atomic
        self.is_shut = False

    def enter(self) -> bool:
        """Go in; False where the gate is shut for this thread."""
        thread = threading.get_ident()
        self._inside.append(thread)
        if self.is_shut and thread != threading.main_thread().ident and self._inside.count(thread) == 1:
            self._inside.remove(thread)
            return False
        return True

    def leave(self) -> None:
        """Go out."""
        self._inside.remove(threading.get_ident())

    def forget_others(self) -> None:
        """Forget the threads that a fork left behind in its parent: they are not inside here, and will not leave."""
        self._inside = [thread for thread in self._inside if thread == threading.get_ident()]

    def shut(self) -> None:
        """Let nobody in any more, and wait for those who are."""
        self.is_shut = True
        native.turn("shut", True)
        while native.inside() or any(thread != threading.get_ident() for thread in self._inside):
            time.sleep(0.001)


gate: Final = Gate()
os.register_at_fork(after_in_child=gate.forget_others)


def gated(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let an operation go through the gate as a whole: what it keeps alive is known when it is through."""

    @wraps(call)
    def through(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if not gate.enter():
            raise SystemExit  # ends a thread without a word
        try:
            return call(*args, **kwargs)
        finally:
            gate.leave()

    return through


def free_with(owner: object, free: Callable[[], object]) -> None:
    """Free what an object owns when it is gone; not at exit, when threads and kernels may be using it."""
    alive = weakref.ref(owner)

    def freed() -> None:
        if alive() is None and gate.enter():  # at exit it is called with its owner still alive
            try:
                free()
            finally:
                gate.leave()

    weakref.finalize(owner, freed)
