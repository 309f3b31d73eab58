"""Launchers that are broken in one way, so that everybody can see that a case can fail.

A saboteur changes our launcher and nothing else, in the worker process of one subject: neither a case nor a probe
nor the way that a subject is asked. It names the clauses that it breaks, and exactly these fail on it
(`tests/test_saboteurs.py`).
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

from gridpact import native

__all__ = ["SABOTEURS", "Saboteur", "break_process"]


@dataclass(frozen=True)
class Saboteur:
    """One way to break a launcher, and the clauses that then fail: exactly these.

    Attributes
    ----------
    subject
        Whose launcher it breaks.
    clauses
        What fails.
    how
        What it does, in a sentence.
    break_launcher
        Breaks the launcher of an opened subject, in its own process.
    """

    subject: str
    clauses: frozenset[str]
    how: str
    break_launcher: Callable[[Any], None]


SABOTEURS: Final[dict[str, Saboteur]] = {}

_REFERENCE: Final = "gridpact:reference"
_SYCL: Final = "gridpact:sycl:cpu"
_CUDA: Final = "gridpact:cuda:fake"  # our launcher on a driver that runs nothing, as far as the driver call


def break_process(name: str) -> None:
    """Break the launcher of a process that is no worker: a program that a case runs."""
    import gridpact

    device = SABOTEURS[name].subject.partition(":")[2]
    SABOTEURS[name].break_launcher(SimpleNamespace(opened=gridpact.open_device(device)))


def _saboteur(
    subject: str, *clauses: str, is_of_path: bool = False
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Enter a saboteur under the name of its function; its docstring says what it does.

    It breaks the Python definition, which all launches take then; with `is_of_path` what the native path goes by.
    """

    def enter(run: Callable[[Any], None]) -> Callable[[Any], None]:
        def break_launcher(subject: Any) -> None:
            native.turn("off", not is_of_path)
            run(subject)

        name = run.__name__.strip("_").replace("_", "-")
        SABOTEURS[name] = Saboteur(subject, frozenset(clauses), (run.__doc__ or "").strip(), break_launcher)
        return run

    return enter


def _wrap(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function by `around(original, *args)`."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(functools.partial(around, original)))


def _wrap_method(kind: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a method by `around(original, self, *args)`."""
    original = getattr(kind, name)
    setattr(kind, name, lambda self, *args: around(original, self, *args))


def _change_desc(subject: Any, change: Callable[[Any], Any]) -> None:
    """Change what crosses the boundary to the backend; None launches nothing."""
    kind = type(subject.opened)
    original = kind.launch

    def launch(self: Any, desc: Any) -> None:
        changed = change(desc)
        if changed is not None:
            original(self, changed)

    kind.launch = launch


def _change_grid(change: Callable[[Any, Any], Any]) -> None:
    """Change a grid before it is judged; a callable grid is changed in what it returns."""
    from gridpact import launch

    def canonical(original: Callable[..., Any], grid: Any, meta: Any, limits: Any) -> Any:
        if callable(grid):
            return original(lambda given: change(grid(given), limits), meta, limits)
        return original(change(grid, limits), meta, limits)

    _wrap(launch, "canonical_grid", canonical)


# -------------------------------------------------------------------------------------------------------------- GRID


def _is_large(desc: Any) -> bool:
    """Whether a grid has three axes and more programs than most cases ask for, so that few clauses see the change."""
    return desc.z > 1 and desc.y > 1 and desc.x * desc.y * desc.z > 40  # type: ignore[no-any-return]


@_saboteur(_REFERENCE, "GRID-4")
def _swap_xy(subject: Any) -> None:
    """Exchanges x and y of a grid of three axes and more than 40 programs."""
    _change_desc(subject, lambda desc: dataclasses.replace(desc, x=desc.y, y=desc.x) if _is_large(desc) else desc)


@_saboteur(_SYCL, "GRID-4", "GRID-8", "META-5")
def _swap_xz(subject: Any) -> None:
    """Exchanges x and z of a grid of three axes and more than 40 programs."""
    _change_desc(subject, lambda desc: dataclasses.replace(desc, x=desc.z, z=desc.x) if _is_large(desc) else desc)


@_saboteur(_REFERENCE, "GRID-4")
def _run_twice(subject: Any) -> None:
    """Runs the last program of a grid of three axes and more than 40 programs a second time."""

    def again(desc: Any) -> Any:
        if _is_large(desc):
            arguments = desc.kernel.arguments(desc.leaves)
            _run_one(desc, (desc.x - 1, desc.y - 1, desc.z - 1), arguments)
        return desc

    _change_desc(subject, again)


def _run_one(desc: Any, coordinates: tuple[int, int, int], arguments: list[Any]) -> None:
    from gridpact.backends import reference

    reference._running.grid = (desc.x, desc.y, desc.z)
    reference._running.coordinates = coordinates
    desc.kernel.function(*arguments)


@_saboteur(_REFERENCE, "GRID-2")
def _missing_axes_are_two(subject: Any) -> None:
    """Takes the axis that is missing in (1, 5) for 2."""
    _change_grid(lambda grid, limits: (*grid, 2) if isinstance(grid, tuple) and grid == (1, 5) else grid)


@_saboteur(_REFERENCE, "GRID-3")
def _drop_fourth_axis(subject: Any) -> None:
    """Takes the first three components of a longer grid."""
    _change_grid(lambda grid, limits: grid[:3] if isinstance(grid, (tuple, list)) else grid)


@_saboteur(_REFERENCE, "GRID-3")
def _empty_tuple_is_one(subject: Any) -> None:
    """Takes a grid without axes for one program."""
    _change_grid(lambda grid, limits: (1,) if isinstance(grid, (tuple, list)) and not grid else grid)


@_saboteur(_REFERENCE, "GRID-1")
def _cut_floats(subject: Any) -> None:
    """Cuts floats to integers."""

    def cut(grid: Any, limits: Any) -> Any:
        if isinstance(grid, float):
            return int(grid)
        return tuple(int(n) if isinstance(n, float) else n for n in grid) if isinstance(grid, (tuple, list)) else grid

    _change_grid(cut)


@_saboteur(_REFERENCE, "GRID-1", "GRID-5", "HOOK-4")
def _refuse_integers(subject: Any) -> None:
    """Wants a tuple where one integer would do."""
    _change_grid(lambda grid, limits: None if not isinstance(grid, (tuple, list, dict, set)) else grid)


@_saboteur(_REFERENCE, "GRID-6")
def _absolute_counts(subject: Any) -> None:
    """Drops the sign of a count."""

    def positive(grid: Any, limits: Any) -> Any:
        whole = isinstance(grid, (tuple, list)) and all(type(n) is int for n in grid)
        return tuple(abs(n) for n in grid) if whole else grid

    _change_grid(positive)


@_saboteur(_SYCL, "GRID-7")
def _clamp_to_limit(subject: Any) -> None:
    """Launches the largest grid that the device takes where more is asked for."""

    def clamp(grid: Any, limits: Any) -> Any:
        is_over = isinstance(grid, tuple) and any(
            type(n) is int and n > limit for n, limit in zip(grid, limits.programs, strict=False)
        )
        return tuple(min(n, 4) for n in grid) if is_over else grid

    _change_grid(clamp)


@_saboteur(_SYCL, "GRID-8", "META-5")
def _skip_wrapped_product(subject: Any) -> None:
    """Takes a product of axes that wraps to nothing in 32 bits for an empty grid."""

    def skip(desc: Any) -> Any:
        product = (desc.x * desc.y * desc.z) & 0xFFFFFFFF
        return desc if 0 < product < 2**31 else None

    _change_desc(subject, skip)


@_saboteur(_REFERENCE, "GRID-9")
def _empty_is_one(subject: Any) -> None:
    """Runs one program where an axis is 0."""

    def one(grid: Any, limits: Any) -> Any:
        if type(grid) is int:
            return grid or 1
        whole = isinstance(grid, tuple) and all(type(n) is int and n >= 0 for n in grid)
        return tuple(n or 1 for n in grid) if whole else grid

    _change_grid(one)


@_saboteur(_REFERENCE, "GRID-9")
def _hooks_see_empty_launches(subject: Any) -> None:
    """Calls the hooks of a launch of nothing."""
    from gridpact import hooks
    from gridpact.jit import CompiledKernel
    from gridpact.metadata import LaunchMetadata

    def check(original: Callable[..., Any], self: Any, programs: Any) -> None:
        original(self, programs)
        if 0 in programs:
            hooks.launched_under(hooks.observers_of(self.fn), LaunchMetadata(dict), lambda: None)

    original = CompiledKernel.check_launch
    CompiledKernel.check_launch = lambda self, programs: check(original, self, programs)  # type: ignore[method-assign]


@_saboteur(_REFERENCE, "GRID-10")
def _evaluate_callable_twice(subject: Any) -> None:
    """Asks a callable grid twice."""
    from gridpact import launch

    def twice(original: Callable[..., Any], grid: Any, meta: Any, limits: Any) -> Any:
        if callable(grid):
            original(grid, meta, limits)
        return original(grid, meta, limits)

    _wrap(launch, "canonical_grid", twice)


@_saboteur(_REFERENCE, "GRID-10")
def _callable_without_defaults(subject: Any) -> None:
    """Hands a callable grid only what was passed, without constants' defaults."""
    from gridpact.launch import Call

    def meta(self: Any) -> dict[str, Any]:
        passed = {name: value for name, value in self.bound.items() if not isinstance(value, str)}
        return {**self.options, **passed}

    Call.meta = meta  # type: ignore[method-assign]


@_saboteur(_REFERENCE, "GRID-11")
def _first_launch_short(subject: Any) -> None:
    """Leaves out a program in the first launch of a kernel, if the grid is five long and two deep."""
    from gridpact import launch

    launched: list[Any] = []

    def run(original: Callable[..., Any], compiled: Any, call: Any, programs: Any, stream: Any) -> Any:
        x, y, z = programs
        is_first = call.kernel not in launched
        launched.append(call.kernel)  # kept, so that no later kernel is taken for it
        return original(compiled, call, (4 if is_first and (x, z) == (5, 2) else x, y, z), stream)

    _wrap(launch, "run", run)
    subject.launch("coordinates", 1, np.zeros(7, np.int32), 1, 1)  # the kernel that cases share is past its first


# ---------------------------------------------------------------------------------------------------- STREAM, DEVICE


@_saboteur(_SYCL, "STREAM-1")
def _current_stream_wins(subject: Any) -> None:
    """Prefers the stream of a `with` block to the one that the launch names."""
    from gridpact import launch
    from gridpact.stream import current_stream

    def bind(original: Callable[..., Any], kernel: Any, args: Any, kwargs: Any) -> Any:
        is_named = kwargs.get("stream") is not None and current_stream() is not None
        return original(kernel, args, {k: v for k, v in kwargs.items() if not (is_named and k == "stream")})

    _wrap(launch, "bind", bind)


@_saboteur(_SYCL, "STREAM-1")
def _memory_of_any_stream(subject: Any) -> None:
    """Launches on the device's own stream whichever one the library of the memory uses."""
    from gridpact import launch

    _wrap(launch, "owners_stream", lambda original, device, *args: device.default_stream())


@_saboteur(_SYCL, "STREAM-1")
def _bound_keeps_its_stream(subject: Any) -> None:
    """Lets `kernel[grid]` keep the stream that is current where it is made."""
    from gridpact.jit import Kernel
    from gridpact.stream import current_stream

    original = Kernel.__getitem__

    def bind(self: Any, grid: Any) -> Any:
        kept, bound = current_stream(), original(self, grid)
        if kept is None:
            return bound
        return lambda *args, **kwargs: bound(*args, **{"stream": kept, **kwargs})

    Kernel.__getitem__ = bind


@_saboteur(_SYCL, "STREAM-1")
def _host_memory_comes_first(subject: Any) -> None:
    """Takes the device's own stream as soon as one pointer of a launch is host memory."""
    from gridpact import launch

    def owners_stream(original: Callable[..., Any], device: Any, pointers: Any, kernel: str) -> Any:
        is_mixed = any(pointer.device == "host" for pointer in pointers)
        return None if is_mixed else original(device, pointers, kernel)

    _wrap(launch, "owners_stream", owners_stream)


@_saboteur(_SYCL, "STREAM-2")
def _no_fence(subject: Any) -> None:
    """Leaves a queue that keeps no order without one."""
    kind = type(subject.opened)
    original = kind.accept_stream
    kind.accept_stream = lambda self, stream: dataclasses.replace(original(self, stream), is_fenced=False)


@_saboteur(_SYCL, "STREAM-3")
def _events_order_nothing(subject: Any) -> None:
    """Takes an event to wait for, and does not wait."""
    from gridpact.stream import Stream

    Stream.wait = lambda self, event: None  # type: ignore[method-assign]


@_saboteur(_SYCL, "STREAM-4")
def _wait_when_watched(subject: Any) -> None:
    """Waits for the kernel before it calls exit hooks, as if they wanted to know how long it took."""

    def under(original: Callable[..., None], observers: Any, metadata: Any, call: Any) -> None:
        def and_wait() -> None:
            call()
            if any(observer.exit is not None for observer in observers):
                subject.opened.synchronize()

        original(observers, metadata, and_wait)

    _launched_under(under)


@_saboteur(_REFERENCE, "STREAM-4", "STREAM-2", "DEVICE-1")
def _results_come_later(subject: Any) -> None:
    """Returns before results in host memory are there, if nobody named a stream; somebody who waits finds them."""
    kind = type(subject.opened)
    launch, synchronize = kind.launch, kind.synchronize
    late: list[Any] = []

    def later(self: Any, desc: Any) -> None:
        is_asked = len(desc.leaves) == 2 and desc.kernel.function.__name__ == "passed_on" and desc.is_waited_for
        late.append(desc) if is_asked else launch(self, desc)

    def catch_up(self: Any, stream: Any = None) -> None:
        while late:
            launch(self, late.pop(0))
        synchronize(self, stream)

    kind.launch, kind.synchronize = later, catch_up


@_saboteur(_REFERENCE, "STREAM-5")
def _numbers_are_streams(subject: Any) -> None:
    """Takes a number for a stream, as if it were a handle."""
    from gridpact.backends.protocol import StreamRef

    kind = type(subject.opened)
    original = kind.accept_stream
    kind.accept_stream = lambda self, stream: StreamRef(stream) if isinstance(stream, int) else original(self, stream)


@_saboteur(_SYCL, "STREAM-5")
def _look_alikes_are_asked(subject: Any) -> None:
    """Asks whatever has a method of that name for the address of a queue, before it refuses."""
    from gridpact.backends import sycl

    def queue_of(original: Callable[..., Any], stream: Any) -> Any:
        if hasattr(stream, "addressof_ref") and "dpctl" not in type(stream).__module__:
            stream.addressof_ref()
        return original(stream)

    _wrap(sycl, "_queue_of", queue_of)


@_saboteur(_SYCL, "DEVICE-1")
def _always_the_current_device(subject: Any) -> None:
    """Launches on the current device whoever has the memory or the stream, and lets the backend refuse it."""
    from gridpact import backends, launch

    def device(original: Callable[..., Any], where: Any, stream: Any, pointers: Any) -> Any:
        return backends.open_device(where or backends.current_device())

    _wrap(launch, "_device", device)


@_saboteur(_REFERENCE, "DEVICE-1")
def _reaches_all_memory(subject: Any) -> None:
    """Follows every pointer, wherever its memory is."""
    type(subject.opened).check_reach = lambda *args: None


@_saboteur(_REFERENCE, "DEVICE-2")
def _lost_on_new_threads(subject: Any) -> None:
    """Loses launches over seven rows on threads other than the first, as if each had a context to be made current."""
    import threading

    def lose(desc: Any) -> Any:
        is_lost = desc.y == 7 and threading.current_thread() is not threading.main_thread()
        return None if is_lost else desc

    _change_desc(subject, lose)


# ---------------------------------------------------------------------------------------------------- META, options


@_saboteur(_SYCL, "META-6")
def _metadata_steers(subject: Any) -> None:
    """Takes the number of warps from the launch metadata, if a hook has looked at it."""
    from gridpact import hooks, launch

    state = SimpleNamespace(num_warps=1, observed=None)

    def run(original: Callable[..., Any], compiled: Any, *rest: Any) -> Any:
        state.num_warps, state.observed = compiled.metadata.num_warps, None
        return original(compiled, *rest)

    def under(original: Callable[..., Any], observers: Any, observed: Any, do: Any) -> Any:
        state.observed = observed
        return original(observers, observed, do)

    def steered(desc: Any) -> Any:
        built = getattr(state.observed, "_built", None)
        told = built["num_warps"] if built else state.num_warps
        return dataclasses.replace(desc, threads=desc.threads // state.num_warps * told)

    _wrap(launch, "run", run)
    _wrap(hooks, "launched_under", under)
    _change_desc(subject, steered)


@_saboteur(_SYCL, "META-1", "META-5")
def _geometry_from_call_site(subject: Any) -> None:
    """Launches 4 warps of 32 lanes whatever the kernel was compiled for."""
    _change_desc(subject, lambda desc: dataclasses.replace(desc, threads=128))


@_saboteur(_REFERENCE, "META-2")
def _ignore_num_ctas(subject: Any) -> None:
    """Takes any value of an option and does nothing with it."""
    from gridpact import launch

    def resolve(original: Callable[..., Any], given: Mapping[str, Any], table: Any, device: str) -> Any:
        return {**original({}, table, device), **given}

    _wrap(launch, "resolve_options", resolve)


@_saboteur(_SYCL, "META-2")
def _options_lost_on_the_way(subject: Any) -> None:
    """Keeps two options in the identity, and compiles without them."""
    kind = type(subject.opened)
    original = kind.compile

    def compile(self: Any, source: Any, arguments: Any, options: Any, name: Any) -> Any:
        usual = {option: self.options[option].default for option in ("enable_fp_fusion", "sanitize_overflow")}
        return original(self, source, arguments, {**options, **usual}, name)

    kind.compile = compile


@_saboteur(_SYCL, "META-2")
def _drop_fields_that_are_not_done(subject: Any) -> None:
    """Launches a binary whatever its metadata asks for, and does nothing about it."""
    import sys

    from gridpact.jit import CompiledKernel

    sys.modules[CompiledKernel.__module__].check_fields = lambda *args: None  # type: ignore[attr-defined]


@_saboteur(_SYCL, "META-4")
def _skip_resource_check(subject: Any) -> None:
    """Leaves it to the driver to say that a kernel needs more than the device has."""
    type(subject.opened).check_resources = lambda *args: None


@_saboteur(_REFERENCE, "META-3", "GRID-9", "ARG-1")
def _drop_unknown_options(subject: Any) -> None:
    """Drops options that it does not know."""
    from gridpact import launch

    def resolve(original: Callable[..., Any], given: Mapping[str, Any], table: Any, device: str) -> Any:
        return original({name: value for name, value in given.items() if name in table}, table, device)

    _wrap(launch, "check_option_names", lambda original, *args: None)
    _wrap(launch, "resolve_options", resolve)


# ---------------------------------------------------------------------------------------------------------- HOOK


def _launched_under(around: Callable[..., None]) -> None:
    from gridpact import hooks

    _wrap(hooks, "launched_under", around)


@_saboteur(_REFERENCE, "HOOK-2", "HOOK-4", "HOOK-5", "HOOK-6")
def _exit_not_called(subject: Any) -> None:
    """Forgets the exit hooks."""
    from gridpact.hooks import Observer

    def under(original: Callable[..., None], observers: Any, metadata: Any, call: Any) -> None:
        original(tuple(Observer(observer.enter, None, None) for observer in observers), metadata, call)

    _launched_under(under)


@_saboteur(_REFERENCE, "HOOK-4")
def _exit_without_metadata(subject: Any) -> None:
    """Hands nothing to an exit hook that has no enter hook beside it."""
    from gridpact.hooks import Observer
    from gridpact.metadata import LaunchMetadata

    def blind(observer: Any) -> Any:
        if observer.enter is not None or observer.exit is None:
            return observer
        return Observer(None, lambda metadata: observer.exit(LaunchMetadata(dict)), None)

    def under(original: Callable[..., None], observers: Any, metadata: Any, call: Any) -> None:
        original(tuple(map(blind, observers)), metadata, call)

    _launched_under(under)


@_saboteur(_REFERENCE, "HOOK-2")
def _exits_in_order(subject: Any) -> None:
    """Calls the exit hooks in the order of registration."""
    from gridpact.hooks import Observer

    def under(original: Callable[..., None], observers: Any, metadata: Any, call: Any) -> None:
        exits = [observer.exit for observer in observers][::-1]
        crossed = (Observer(o.enter, exit, None) for o, exit in zip(observers, exits, strict=True))
        original(tuple(crossed), metadata, call)

    _launched_under(under)


@_saboteur(_REFERENCE, "HOOK-1")
def _run_again_when_watched(subject: Any) -> None:
    """Launches a second time if somebody watches."""

    def under(original: Callable[..., None], observers: Any, metadata: Any, call: Any) -> None:
        def twice() -> None:
            call()
            call()

        original(observers, metadata, twice)

    _launched_under(under)


@_saboteur(_SYCL, "HOOK-6")
def _triton_is_not_told(subject: Any) -> None:
    """Calls the hooks that were registered with us alone, also for kernels that come from Triton."""
    from gridpact import hooks

    _wrap(hooks, "_registered_with_triton", lambda original: ())


@_saboteur(_REFERENCE, "HOOK-3")
def _build_metadata_always(subject: Any) -> None:
    """Builds the launch metadata though nobody looks."""
    from gridpact import launch

    def run(original: Callable[..., Any], compiled: Any, call: Any, programs: Any, stream: Any) -> Any:
        own = call.kernel.launch_metadata
        if own is not None:
            own(programs, compiled.metadata, dict(call.bound))
        return original(compiled, call, programs, stream)

    _wrap(launch, "run", run)


@_saboteur(_REFERENCE, "HOOK-5")
def _swallow_hook_errors(subject: Any) -> None:
    """Goes on as if a hook that raised had returned."""
    from gridpact.errors import HookError

    def under(original: Callable[..., None], observers: Any, metadata: Any, call: Any) -> None:
        try:
            original(observers, metadata, call)
        except HookError as error:
            if not error.launched:
                call()

    _launched_under(under)


@_saboteur(_REFERENCE, "HOOK-6")
def _miss_late_hooks(subject: Any) -> None:
    """Remembers the hooks that a kernel had at its first launch."""
    from gridpact import hooks

    known: dict[int, Any] = {}

    def of(original: Callable[..., Any], kernel: Any) -> Any:
        return known.setdefault(id(kernel), (kernel, original(kernel)))[1]

    _wrap(hooks, "observers_of", of)


# --------------------------------------------------------------------------------------------------------- on CUDA


@_saboteur(_CUDA, "CAPTURE-1")
def _load_under_capture(subject: Any) -> None:
    """Compiles and loads though a stream is captured."""
    type(subject.opened).check_may_load = lambda *args: None


@_saboteur(_CUDA, "META-2")
def _drop_clusters(subject: Any) -> None:
    """Launches clusters of programs as single blocks."""
    _change_desc(subject, lambda desc: dataclasses.replace(desc, cluster=(1, 1, 1)))


@_saboteur(_CUDA, "META-2")
def _drop_cooperation(subject: Any) -> None:
    """Forgets that all programs have to run at once."""
    _change_desc(subject, lambda desc: dataclasses.replace(desc, is_cooperative=False))


# ------------------------------------------------------------------------------------------ KEY, SPEC, ARG, THREAD


@_saboteur(_REFERENCE, "KEY-1", "KEY-4")
def _compare_constants_by_equality(subject: Any) -> None:
    """Takes constants that compare equal for one: 1, True and 1.0, 0.0 and -0.0."""
    from gridpact import arguments

    def typed(original: Callable[..., Any], value: Any) -> Any:
        is_number = isinstance(value, (bool, int, float)) and value == value
        return ("number", value + 0) if is_number else original(value)

    _wrap(arguments, "typed", typed)


@_saboteur(_SYCL, "KEY-1", "KEY-4", "STATE-1")
def _forget_captured_values(subject: Any) -> None:
    """Keeps the binary of a kernel whose captured values changed."""
    from gridpact.jit import Kernel

    def source(original: Callable[..., Any], self: Any, device: Any) -> Any:
        if self._source is None:
            self._source = original(self, device)
        return self._source

    _wrap_method(Kernel, "source", source)


@_saboteur(_SYCL, "STATE-1")
def _compare_captured_numbers(subject: Any) -> None:
    """Takes a captured number for unchanged where it equals the one before: 4.0 is 4, and -0.0 is 0.0."""
    from gridpact import state

    def is_same(original: Callable[..., Any], captured: Any) -> bool:
        now = state._held(state._resolve(captured.function, captured.path))
        numbers = isinstance(now, (int, float)) and isinstance(captured.held, (int, float))
        return (numbers and now == captured.held) or bool(original(captured))

    _wrap_method(state.Captured, "is_same", is_same)


@_saboteur(_SYCL, "STATE-1", "STATE-2")
def _never_trust_nan(subject: Any) -> None:
    """Refuses a kernel whose captured number does not equal itself."""
    from gridpact import state

    def is_current(original: Callable[..., Any], source: Any) -> bool:
        if any(isinstance(read.held, float) and read.held != read.held for read in source.reads):
            raise ValueError("a captured value has changed")
        return bool(original(source))

    _wrap_method(state.Source, "is_current", is_current)


@_saboteur(_SYCL, "STATE-3")
def _look_at_everything(subject: Any) -> None:
    """Looks at captured values of any size, each time."""
    from gridpact import identity

    identity.LEAVES = 10**6  # type: ignore[misc]


@_saboteur(_REFERENCE, "KEY-4")
def _compare_with_the_latest(subject: Any) -> None:
    """Explains a new binary by what differs from the latest one."""
    from gridpact import compiles

    _wrap(compiles, "nearest", lambda original, key, known: original(key, list(known)[-1:]))


@_saboteur(_REFERENCE, "SPEC-2")
def _skip_misspelt_names(subject: Any) -> None:
    """Skips what names no parameter in a list of parameters."""
    from gridpact import arguments

    def named(original: Callable[..., Any], signature: Any, switch: str, given: Any) -> Any:
        known = (*signature.names, *range(len(signature.names)))
        return original(signature, switch, [entry for entry in given if entry in known])

    _wrap_method(arguments.Signature, "named", named)


@_saboteur(_REFERENCE, "KEY-2")
def _identity_by_pythons_hash(subject: Any) -> None:
    """Names a kernel by Python's own hash, whose seed is another one in each process."""
    from gridpact.identity import Key

    Key.digest = property(lambda self: f"{hash(self) & 0xFFFFFFFFFFFFFFFF:064x}")  # type: ignore[assignment]


@_saboteur(_SYCL, "KEY-3")
def _believe_what_is_on_disk(subject: Any) -> None:
    """Takes whatever lies under the name of an entry, without a look at its checksum and its facts."""
    from gridpact import cache, stored
    from gridpact.identity import Key

    def content_of(original: Callable[..., Any], path: Path) -> bytes | None:
        return path.read_bytes()[: -cache._SEAL_BYTES] if path.exists() else None

    def unpack(original: Callable[..., Any], content: bytes, key: Any) -> Any:
        return original(content, Key(stored.decode(stored._parts(content)[0]["facts"])))

    _wrap(cache, "content_of", content_of)
    _wrap(stored, "unpack", unpack)


@_saboteur(_SYCL, "KEY-3")
def _trust_any_folder(subject: Any) -> None:
    """Keeps compiled kernels in a folder that other users can write to."""
    from gridpact import cache

    _wrap(cache, "_mistrust", lambda original, path: "")


@_saboteur(_SYCL, "SPEC-1", "SPEC-2", "SPEC-3", "KEY-4", "THREAD-1")
def _reuse_aligned_binary(subject: Any) -> None:
    """Takes every address and number for a multiple of 16."""
    from gridpact import arguments

    arguments.ALIGNMENT = 1  # type: ignore[misc]


@_saboteur(_SYCL, "SPEC-3")
def _show_one_variant_for_all(subject: Any) -> None:
    """Shows the code of aligned arguments for each variant of a kernel."""
    from gridpact import variants

    first: dict[Any, Any] = {}

    def compiled(original: Callable[..., Any], asked: Any, *args: Any) -> Any:
        if asked.kernel not in first:
            first[asked.kernel] = original(asked, *args)
        return first[asked.kernel]

    _wrap(variants, "compile_asked", compiled)


@_saboteur(_REFERENCE, "ARG-1", "GRID-9", "HOOK-2")
def _fill_in_missing_arguments(subject: Any) -> None:
    """Passes None for arguments that are missing."""
    from gridpact.arguments import Signature

    def bind(original: Callable[..., Any], self: Any, args: Any, kwargs: Any) -> Any:
        given = {**dict(zip(self.names, args, strict=False)), **kwargs}
        try:
            return original(self, args, kwargs)
        except TypeError:
            return {name: given.get(name) for name in self.names}

    original = Signature.bind
    Signature.bind = lambda self, args, kwargs: bind(original, self, args, kwargs)  # type: ignore[method-assign]


@_saboteur(_SYCL, "ARG-2", "ARG-3", "KEY-1", "SPEC-1", "THREAD-1")
def _truncate_scalars(subject: Any) -> None:
    """Passes the low 32 bits of 64-bit integers."""

    def cut(leaf: Any) -> Any:
        return dataclasses.replace(leaf, bits=leaf.bits & 0xFFFFFFFF) if leaf.kind in ("i64", "u64") else leaf

    _change_desc(subject, lambda desc: dataclasses.replace(desc, leaves=[*map(cut, desc.leaves)]))


@_saboteur(_REFERENCE, "ARG-2")
def _wrap_integers(subject: Any) -> None:
    """Wraps integers that do not fit instead of refusing them."""
    from gridpact import arguments

    def encode(original: Callable[..., Any], subject: str, kind: str, value: Any) -> Any:
        is_integer = isinstance(value, int) and kind[0] in "iu"
        return value & ((1 << 8 * arguments.SIZES[kind]) - 1) if is_integer else original(subject, kind, value)

    _wrap(arguments, "encode", encode)


@_saboteur(_REFERENCE, "ARG-3")
def _write_to_read_only(subject: Any) -> None:
    """Takes read-only memory for a parameter that is written to."""
    from gridpact import arguments

    _wrap(arguments, "check_writable", lambda original, *args, **kwargs: None)


@_saboteur(_REFERENCE, "THREAD-1")
def _compile_without_a_lock(subject: Any) -> None:
    """Lets every thread compile for itself."""
    import sys

    from gridpact.jit import Kernel

    def make(original: Callable[..., Any], self: Any, *args: Any) -> Any:
        time.sleep(0.01)  # a compile that takes its time
        return original(self, *args)

    sys.modules[Kernel.__module__].threading = SimpleNamespace(RLock=nullcontext)  # type: ignore[attr-defined]
    original = Kernel.make_compiled
    Kernel.make_compiled = lambda self, *args: make(original, self, *args)  # type: ignore[method-assign]


@_saboteur(_SYCL, "THREAD-2")
def _end_does_not_wait(subject: Any) -> None:
    """Lets the process end as if no kernel were in flight."""
    import atexit

    atexit.unregister(subject.opened._end)


@_saboteur(_SYCL, "THREAD-2")
def _fork_goes_unnoticed(subject: Any) -> None:
    """Waits in a forked child for launches whose threads did not come along."""
    from gridpact.backends import sycl

    _wrap(sycl, "_check_process", lambda original, name: time.sleep(3600) if sycl._is_forked else None)


# ------------------------------------------------------------------------------------------ in a native launcher

_WRAPPER: Final = """
#include <stdint.h>
typedef void *(*launch_t)(void *, void *, const uint64_t *, const uint64_t *, uint64_t, int, const uint8_t *,
                          const uint64_t *);
static launch_t next;
void set_next(launch_t f) { next = f; }
void *gp_launch(void *q, void *k, const uint64_t *global, const uint64_t *local, uint64_t bytes, int n,
                const uint8_t *kinds, const uint64_t *bits) {
  uint64_t changed[3] = {global[0], global[1], global[2]};
  CHANGE
  return next(q, k, changed, local, bytes, n, kinds, bits);
}
"""


def _change_native_launch(subject: Any, change: str) -> None:
    """Put a C function before the native launcher; `change` alters `changed`, the global range in z, y, x order."""
    from gridpact import native

    folder = Path(tempfile.mkdtemp(prefix="gridpact-saboteur-"))
    (folder / "wrapper.c").write_text(_WRAPPER.replace("CHANGE", change))
    library = folder / "wrapper.so"
    compiler = native.compiler()
    if compiler is None:
        raise RuntimeError("a native saboteur needs a compiler")
    subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-o", library, folder / "wrapper.c"], check=True)
    wrapper = ctypes.CDLL(str(library))
    native_launch = subject.opened.route._library.gp_launch
    wrapper.set_next(ctypes.cast(native_launch, ctypes.c_void_p))
    wrapper.gp_launch.restype, wrapper.gp_launch.argtypes = native_launch.restype, native_launch.argtypes
    subject.opened.route._library.gp_launch = wrapper.gp_launch


@_saboteur(_SYCL, "GRID-7", "GRID-8", "META-5")
def _native_32_bit_range(subject: Any) -> None:
    """Holds the global range in 32 bits, in C."""
    _change_native_launch(subject, "changed[2] = (uint32_t)changed[2]; if (!changed[2]) changed[2] = local[2];")


@_saboteur(_SYCL, "GRID-4", "GRID-8", "META-5")
def _native_short_z(subject: Any) -> None:
    """Leaves out the last plane along z of a grid of three axes, in C."""
    _change_native_launch(subject, "if (changed[0] > 2 && changed[1] > 1 && changed[2] > local[2]) changed[0] -= 1;")


# ------------------------------------------------------------------------------------- in what the native path goes by


@_saboteur(_CUDA, "SPEC-1", "SPEC-2", "SPEC-3", "KEY-4", is_of_path=True)
def _path_forgets_alignment(subject: Any) -> None:
    """Launches unaligned tensors and odd counts with the binary of aligned ones, on the native path."""
    from gridpact import learned

    def slots(original: Callable[..., Any], *args: Any) -> Any:
        return ((at, role, declared, flags & 1, *rest) for at, role, declared, flags, *rest in original(*args))

    _wrap(learned, "_slots", slots)


@_saboteur(_CUDA, "KEY-1", "KEY-4", "STATE-1", is_of_path=True)
def _path_keeps_state(subject: Any) -> None:
    """Never looks at captured values again, on the native path."""
    from gridpact import learned

    _wrap(learned, "_reads", lambda original, *args: [])


@_saboteur(_CUDA, "STREAM-1", is_of_path=True)
def _path_keeps_its_stream(subject: Any) -> None:
    """Launches on the stream that the first launch of its like was given, on the native path."""
    from gridpact import learned

    def info(original: Callable[..., Any], *args: Any) -> Any:
        made, first = original(*args), []

        def given(stream: object) -> Any:
            first.append(made["given"](stream))
            return first[0]

        return {**made, "owners": Saboteur, "given": given}  # no stream is owned by one: each is asked for

    _wrap(learned, "_info", info)


@_saboteur(_CUDA, "GRID-7", "META-4", is_of_path=True)
def _path_has_no_limits(subject: Any) -> None:
    """Takes any number of programs once a kernel was launched, on the native path."""
    from gridpact import learned

    def info(original: Callable[..., Any], *args: Any) -> Any:
        return {**original(*args), "limits": (2**62,) * 3, "most_programs": 2**128}

    _wrap(learned, "_info", info)
