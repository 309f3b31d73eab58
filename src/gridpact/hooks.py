"""Observers of launches: who watches cannot steer, and while nobody watches nothing is built.

The enter side is called once before the driver call in the order of registration, the exit side once after it in
reverse order. An exit is called for each observer whose enter returned, also when the launch or another hook fails,
as `with` does it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import zip_longest
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gridpact import native
from gridpact.errors import ContractTypeError, HookError

if TYPE_CHECKING:
    from gridpact.jit import Kernel
    from gridpact.metadata import LaunchMetadata

__all__ = ["Observer", "launched_under", "observe", "observers_of", "own_observers_of"]

Hook = Callable[["LaunchMetadata"], Any]

# Replaced as a whole and never changed in place, so that a launch keeps the tuple that it began with (HOOK-5).
_observers: tuple[Observer, ...] = ()
_lock = threading.Lock()


class Observer:
    """A registered pair of hooks; `remove()` or the end of its `with` block takes it away."""

    __slots__ = ("enter", "exit", "kernel")

    def __init__(self, enter: Hook | None, exit: Hook | None, kernel: object) -> None:
        self.enter = enter
        self.exit = exit
        self.kernel = kernel

    def remove(self) -> None:
        """Take the hooks away; a launch that already began still calls them. Removing twice does nothing."""
        global _observers
        with _lock:
            _observers = tuple(o for o in _observers if o is not self)
            native.use("observers", _observers)

    def __enter__(self) -> Observer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def observe(enter: Hook | None = None, exit: Hook | None = None, *, kernel: object = None) -> Observer:
    """Register hooks that see each launch from now on.

    Parameters
    ----------
    enter, exit
        Called with the launch's `LaunchMetadata` before and after the driver call; either may be missing.
    kernel
        Watch this kernel only, also where `triton.autotune` or `triton.heuristics` wrap it; all kernels if not given.

    Returns
    -------
    An `Observer`, to be used as a context manager or removed by hand.
    """
    global _observers
    added = Observer(enter, exit, None if kernel is None else _watched(kernel))
    with _lock:
        _observers = (*_observers, added)
        native.use("observers", _observers)
    return added


def _watched(kernel: object) -> object:
    """Find the kernel under the decorators of Triton."""
    from gridpact.jit import Kernel

    inner = kernel
    while not isinstance(inner, Kernel) and hasattr(inner, "fn"):
        inner = inner.fn
    if not isinstance(inner, Kernel):
        raise ContractTypeError("kernel", "expected a kernel made by gridpact.jit", kernel, clause="HOOK-6")
    return inner


def observers_of(kernel: Kernel) -> tuple[Observer, ...]:
    """Give the observers of a kernel in order of registration; an empty tuple if nobody watches.

    Those who registered with Triton come first, and see kernels that come from Triton.
    """
    theirs = _registered_with_triton() if kernel.origin is not None else ()
    return (*theirs, *own_observers_of(kernel)) if _observers else theirs


def own_observers_of(kernel: Kernel) -> tuple[Observer, ...]:
    """Give the observers of a kernel but for those who registered with Triton, which calls them itself."""
    return tuple(o for o in _observers if o.kernel is None or o.kernel is kernel)


def _registered_with_triton() -> tuple[Observer, ...]:
    """Give the launch hooks in Triton's knobs, a chain a side; 3.3 has a slot a side, at its compiled kernels."""
    triton = sys.modules["triton"]
    holder = triton.knobs.runtime if hasattr(triton, "knobs") else triton.compiler.CompiledKernel
    # A tool registers both sides at once; a chain calls its exits in reverse, as `launched_under` does.
    sides = zip_longest(_chain(holder.launch_enter_hook), _chain(holder.launch_exit_hook))
    return tuple(Observer(enter, exit, None) for enter, exit in sides)


def _chain(hook: Any) -> tuple[Hook, ...]:
    if hook is None:
        return ()
    return tuple(hook.calls) if hasattr(hook, "calls") else (hook,)


def launched_under(observers: tuple[Observer, ...], metadata: LaunchMetadata, driver_call: Callable[[], None]) -> None:
    """Make the driver call between the enter and exit hooks of the observers.

    Raises
    ------
    HookError
        HOOK-5: a hook raised. From enter: the driver call was not made. From exit: it was.
    """
    entered: list[Observer] = []
    failed: list[tuple[Hook, BaseException]] = []
    for observer in observers:
        if observer.enter is None or _returned(observer.enter, metadata, failed):
            entered.append(observer)
    launched = not failed
    try:
        if launched:
            driver_call()
    finally:
        for observer in reversed(entered):
            if observer.exit is not None:
                _returned(observer.exit, metadata, failed)
    if failed:
        hook, error = failed[0]
        if not isinstance(error, Exception):
            raise error  # an interrupt is the user's, not the hook's
        name = getattr(hook, "__qualname__", None) or type(hook).__qualname__
        raise HookError(name, launched, error, len(failed) - 1) from error


def _returned(hook: Hook, metadata: LaunchMetadata, failed: list[tuple[Hook, BaseException]]) -> bool:
    try:
        hook(metadata)
    except BaseException as error:  # reported by launched_under, after the other hooks had their turn
        failed.append((hook, error))
        return False
    return True
