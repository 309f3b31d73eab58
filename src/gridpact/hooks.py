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
    from gridpact.compiles import Compile
    from gridpact.jit import Kernel
    from gridpact.metadata import LaunchMetadata

__all__ = ["Observer", "launched_under", "observe", "observers_of", "own_observers_of", "tell_of_compile"]

Hook = Callable[["LaunchMetadata"], Any]

# Replaced as a whole and never changed in place, so that a launch keeps the tuple that it began with (HOOK-5).
_observers: tuple[Observer, ...] = ()
_of_compiles: tuple[Observer, ...] = ()
_lock = threading.Lock()


class Observer:
    """Hooks that were registered together; `remove()` or the end of its `with` block takes them away."""

    __slots__ = ("compiled", "enter", "exit", "kernel")

    def __init__(
        self,
        enter: Hook | None,
        exit: Hook | None,
        kernel: object,
        compiled: Callable[[Compile], Any] | None = None,
    ) -> None:
        self.enter = enter
        self.exit = exit
        self.kernel = kernel
        self.compiled = compiled

    def remove(self) -> None:
        """Take the hooks away; a launch that already began still calls them. Removing twice does nothing."""
        global _observers, _of_compiles
        with _lock:
            _observers = tuple(o for o in _observers if o is not self)
            _of_compiles = tuple(o for o in _of_compiles if o is not self)
            native.use("observers", _observers)

    def __enter__(self) -> Observer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def observe(
    enter: Hook | None = None,
    exit: Hook | None = None,
    *,
    compiled: Callable[[Compile], Any] | None = None,
    kernel: object = None,
) -> Observer:
    """Register hooks that see each launch, or each new binary, from now on.

    Parameters
    ----------
    enter, exit
        Called with the launch's `LaunchMetadata` before and after the driver call; either may be missing.
    compiled
        Called with a `Compile` when a kernel was compiled, or its binary read from disk: which fact was new (KEY-4).
    kernel
        Watch this kernel only, also where `triton.autotune` or `triton.heuristics` wrap it; all kernels if not given.

    Returns
    -------
    An `Observer`, to be used as a context manager or removed by hand.
    """
    global _observers, _of_compiles
    added = Observer(enter, exit, None if kernel is None else _watched(kernel), compiled)
    with _lock:
        if compiled is not None:
            _of_compiles = (*_of_compiles, added)
        if compiled is None or enter is not None or exit is not None:
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
    failed: list[tuple[Callable[..., Any], BaseException]] = []
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
    _raise_first(failed, launched)


def tell_of_compile(kernel: Kernel, compiled: Compile) -> None:
    """Tell who watches that a kernel has a new binary.

    Raises
    ------
    HookError
        HOOK-5: a hook raised; the binary stands, and nothing was launched.
    """
    failed: list[tuple[Callable[..., Any], BaseException]] = []
    for observer in _of_compiles:
        if observer.compiled is not None and observer.kernel in (None, kernel):
            _returned(observer.compiled, compiled, failed)
    _raise_first(failed, launched=False)


def _returned(hook: Callable[..., Any], told: object, failed: list[tuple[Callable[..., Any], BaseException]]) -> bool:
    try:
        hook(told)
    except BaseException as error:  # raised by `_raise_first`, after the other hooks had their turn
        failed.append((hook, error))
        return False
    return True


def _raise_first(failed: list[tuple[Callable[..., Any], BaseException]], launched: bool) -> None:
    if failed:
        hook, error = failed[0]
        if not isinstance(error, Exception):
            raise error  # an interrupt is the user's, not the hook's
        name = getattr(hook, "__qualname__", None) or type(hook).__qualname__
        raise HookError(name, launched, error, len(failed) - 1) from error
