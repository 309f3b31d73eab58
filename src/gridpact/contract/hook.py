"""HOOK: observational metadata, that is, who watches launches and what they see."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any, Final, TypeAlias
from unittest import mock

import numpy as np

from gridpact.conformance.check import (
    POISON,
    Array,
    another_device,
    check_coordinates,
    check_refused,
    check_untouched,
    has_run,
    launch,
    limits_of,
    own_rule,
    poisoned,
    require,
    same,
)
from gridpact.conformance.model import Unsupported, case, clause
from gridpact.conformance.subjects import DriverCall, Subject
from gridpact.errors import HookError

clause(
    "HOOK-1",
    "triton",
    "For a deterministic kernel, a launch with hooks and the same launch without them have byte-identical "
    "outputs, and the same grid, stream, arguments, order and binary, on the default and on a side stream.",
    "A profiler that changes what it measures is worse than none.",
)
clause(
    "HOOK-2",
    "triton",
    "Enter is called once before the driver call, exit once after the driver call returned; in registration order"
    " and reverse order; exit follows every enter that was made, also when the launch or another hook fails, and "
    "one that raises does not stop the others (order and pairing: our own rule).",
    "An enter without its exit leaves a profiler inside a range that never ends.",
)
clause(
    "HOOK-3",
    "gridpact",
    "With no hook registered nothing is built and no metadata function is called.",
    "Metadata that nobody reads costs a third of a launch.",
)
clause(
    "HOOK-4",
    "triton",
    "Enter and exit see the same metadata, whichever of them is registered: kernel name, function handle, stream,"
    " what the kernel's own launch_metadata= function returned, and further (our own rule) binary identity, grid "
    "as three ints, device, num_warps, shared bytes, arguments by name. It is read-only and built on demand.",
    "An observer of ends alone has to know what ended.",
)
clause(
    "HOOK-5",
    "gridpact",
    "A hook that raises: from enter, nothing is launched; from exit, the launch stands; the caller gets the error"
    " with the hook's name. A hook that removes or adds hooks does not disturb the running launch.",
    "A caller who sees an error has to know whether the kernel ran.",
)
clause(
    "HOOK-6",
    "triton",
    "Hooks registered later are seen by the next launch on every path, prepared handles included.",
    "A profiler that is started late sees nothing, and reports that nothing ran.",
)

Hook: TypeAlias = Callable[[Any], Any]


# -------------------------------------------------------------------------------------------------- hooks to register


def _content(metadata: Any) -> dict[str, Any]:
    """Give what a hook can read from its metadata, as Triton's profiler reads it; nothing if it got none."""
    return {} if metadata is None else dict(metadata.get())


def _recorders(calls: list[str], name: str) -> tuple[Hook, Hook]:
    """Give an enter and an exit hook that note their calls."""
    return lambda metadata: calls.append(f"{name} in"), lambda metadata: calls.append(f"{name} out")


def _lies() -> dict[str, Any]:
    """Give entries that are wrong for every launch of the cases."""
    arguments = {"width": 1, "height": 1}
    return {"grid": (1, 1, 1), "stream": 0, "function": None, "num_warps": 1, "shared": 0, "arguments": arguments}


def _lie(metadata: Any) -> tuple[int, int, int]:
    """Try to change the launch through its metadata, and by what the hook returns."""
    attempts: list[Callable[[], object]] = [
        lambda: metadata["arguments"].update(_lies()["arguments"]),
        lambda: metadata.get()["arguments"].update(_lies()["arguments"]),
        lambda: metadata.update(_lies()),
        lambda: metadata.get().update(_lies()),
        lambda: [metadata.__setitem__(name, lie) for name, lie in _lies().items()],
        lambda: setattr(metadata, "data", _lies()),
    ]
    for attempt in attempts:
        with suppress(Exception):  # read-only is as good
            attempt()
    return (1, 1, 1)


def _clear(metadata: Any) -> bool:
    """Try to take away what the launch is made of, and return what might mean 'no'."""
    attempts: list[Callable[[], object]] = [
        lambda: metadata["arguments"].clear(),
        lambda: metadata.clear(),
        lambda: metadata.get().clear(),
    ]
    for attempt in attempts:
        with suppress(Exception):
            attempt()
    return False


def _look(metadata: Any) -> None:
    """Read all that there is."""
    _content(metadata)


def _ignore(metadata: Any) -> None:
    """See a launch and do nothing."""


_WATCHERS: Final[dict[str, Hook]] = {
    "that_do_nothing": _ignore,
    "that_read": _look,
    "that_lie": _lie,
    "that_clear": _clear,
}


def _sides(side: str, hook: Hook) -> tuple[Hook | None, Hook | None]:
    """Give a hook for the side or sides that it is to watch."""
    return (hook if side != "exit" else None), (hook if side != "enter" else None)


def _raise(metadata: Any) -> None:
    raise ValueError("raised by a hook")


def _own(subject: Subject, why: str) -> Any:
    """Give the open device of one of our subjects; leave the case as unsupported on others."""
    require(subject, "hooks")
    if not subject.is_own:
        raise Unsupported(why)
    return subject.opened  # type: ignore[attr-defined]


@contextmanager
def _beside(subject: Subject, stream: str) -> Iterator[None]:
    """Launch on a side stream in the block, or, for `default`, on no stream in particular."""
    if stream == "default":
        yield
    elif "stream_handles" in subject.abilities:
        with subject.current_handle(99):
            yield
    else:
        with subject.on(subject.stream()):
            yield


def _unwritten() -> Array:
    """Make memory for one program of `coordinates`, which counts in its first element."""
    seen = poisoned(7)
    seen[0] = 0
    return seen


def _launched(subject: Subject, **options: Any) -> Array:
    """Launch one program of a kernel that was never launched, and give what it wrote.

    A new one, so that a launcher which forgets hooks that come late breaks HOOK-6 and nothing else.
    """
    seen = _unwritten()
    kernel = subject.kernel("coordinates", fresh=True, **options)
    subject.driver_calls()
    launch(subject, "coordinates", (1,), seen, 1, 1, kernel=kernel)
    return seen


# ------------------------------------------------------------------------------------------------------------ HOOK-1


def _told_of(call: DriverCall) -> str:
    """Give a driver call as text, without the first parameter: each launch has memory of its own."""
    return repr(dataclasses.replace(call, parameters=call.parameters[1:]))


@case("HOOK-1", hooks=_WATCHERS, side=["enter", "exit", "both"], stream=["default", "side"])
def watched_launch_writes_the_same(subject: Subject, hooks: Hook, side: str, stream: str) -> None:
    """With hooks and without, the same programs write the same bytes, on the default stream and on another."""
    require(subject, "hooks")
    with _beside(subject, stream):
        plain = check_coordinates(subject, (3, 2, 1), (3, 2, 1))
        unwatched_call = "" if subject.runs else _told_of(subject.last_call())
        with subject.observed(*_sides(side, hooks)):
            watched = check_coordinates(subject, (3, 2, 1), (3, 2, 1))
    if not subject.runs:
        same(subject, "the driver call with hooks and without", unwatched_call, _told_of(subject.last_call()))
    if "binaries" in subject.abilities:
        same(subject, "the binary that ran", subject.identity(plain), subject.identity(watched))


@case("HOOK-1", hooks=_WATCHERS)
def watched_launch_has_the_same_geometry(subject: Subject, hooks: Hook) -> None:
    """The device is given the same ranges with hooks as without."""
    _own(subject, "its probe is launched beside its hooks")
    require(subject, "geometry")
    plain = subject.geometry((3, 2), **subject.options(num_warps=2))
    with subject.observed(hooks, hooks):
        watched = subject.geometry((3, 2), **subject.options(num_warps=2))
    same(subject, "ranges with hooks and without", str(plain), str(watched))


@case("HOOK-1")
def metadata_function_cannot_steer(subject: Subject) -> None:
    """A kernel's own metadata function may change the mapping that it is given and return lies: outputs stay."""
    require(subject, "hooks")

    def lying(grid: Any, metadata: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        arguments.update(width=1, height=1, seen=None)
        return _lies()

    kernel = subject.kernel("coordinates", fresh=True, launch_metadata=lying)
    with subject.observed(_look, _look):
        check_coordinates(subject, (3, 2, 1), (3, 2, 1), kernel=kernel)


def _steering(subject: Subject, how: str, undone: ExitStack) -> tuple[Hook, Hook]:
    """Give an enter and an exit hook that try to steer the launch; what they leave behind is undone after it."""
    import gridpact

    def enter_stream(metadata: Any) -> None:
        undone.enter_context(_beside(subject, "side"))

    def enter_device(metadata: Any) -> None:
        undone.enter_context(gridpact.device(another_device(subject)))

    def add_hooks(metadata: Any) -> None:
        undone.enter_context(subject.observed(_look, None))

    def remove_hooks(metadata: Any) -> None:
        undone.close()

    launching: list[Any] = []

    def launch_another(metadata: Any) -> None:
        if not launching:  # it is called for the launch that it makes, too
            launching.append(subject.kernel("counted"))
            launching[0][1, 1, 1](subject.tensor(np.zeros(1, "i4")))
            launching.clear()

    sides: dict[str, tuple[Hook, Hook]] = {
        "that_change_the_stream": (enter_stream, _ignore),
        "that_change_the_device": (enter_device, _ignore),
        "that_launch": (launch_another, launch_another),
        "that_add_and_remove_hooks": (add_hooks, remove_hooks),
        "that_raise": (_ignore, _raise),
    }
    return sides[how] if how in sides else (_WATCHERS[how], _WATCHERS[how])


_HOSTILE: Final = [
    "that_lie",
    "that_clear",
    "that_change_the_stream",
    "that_change_the_device",
    "that_launch",
    "that_add_and_remove_hooks",
    "that_raise",
]


@case("HOOK-1", hooks=_HOSTILE, stream=["default", "side"])
def launch_record_is_the_same_field_by_field(subject: Subject, hooks: str, stream: str) -> None:
    """What reaches the backend in two launches, every field of it, is the same whatever hooks try, and so is memory."""
    import gridpact

    for ability in ("hooks", "records"):
        require(subject, ability)
    if hooks == "that_change_the_device":
        _own(subject, "which device is current is kept by another library")
    kernel: Any = subject.kernel("coordinates")
    here: AbstractContextManager[Any] = nullcontext()
    if hooks == "that_change_the_device":
        kernel, here = kernel.kernel, gridpact.device(subject.opened.name)  # type: ignore[attr-defined]
    undone = ExitStack()
    enter, exit = _steering(subject, hooks, undone)
    seen = subject.shared(np.zeros(64, "i4"))  # the same memory in each launch: its address is a field
    outcomes: list[tuple[list[dict[str, Any]], list[int]]] = []
    with here, _beside(subject, stream):
        for watched in (False, True):
            seen[:] = POISON
            records: list[dict[str, Any]] = []
            with subject.recording(records), subject.observed(enter, exit) if watched else nullcontext():
                for grid in ((3, 2, 1), (2, 1, 1)):
                    with undone, suppress(HookError, ValueError) if hooks == "that_raise" else nullcontext():
                        subject.launch("coordinates", grid, seen, 3, 2, kernel=kernel)
            launched = [record for record in records if record["grid"] != (1, 1, 1)]  # without those of a hook
            outcomes.append((launched, np.asarray(seen).tolist() if subject.runs else []))
    (plain, written), (steered, written_watched) = outcomes
    same(subject, "launches that reached the backend", [(3, 2, 1), (2, 1, 1)], [record["grid"] for record in plain])
    same(subject, f"records without hooks and with hooks {hooks}", str(plain), str(steered))
    same(subject, "memory without hooks and with them", str(written), str(written_watched))


# ------------------------------------------------------------------------------------------------------------ HOOK-2


@case("HOOK-2", launches=[1, 3])
def each_side_is_called_once_a_launch(subject: Subject, launches: int) -> None:
    """Each launch of a kernel, the first and later ones, calls enter and exit once, in this order."""
    require(subject, "hooks")
    calls: list[str] = []
    kernel = subject.kernel("coordinates", fresh=True)
    with subject.observed(*_recorders(calls, "a")):
        for _ in range(launches):
            launch(subject, "coordinates", (1,), _unwritten(), 1, 1, kernel=kernel)
    same(subject, f"hooks called in {launches} launches", ["a in", "a out"] * launches, calls)


@case("HOOK-2")
def driver_call_is_between_enter_and_exit(subject: Subject) -> None:
    """Enter, when it has waited, sees memory that nothing has written to; exit sees what the kernel wrote."""
    require(subject, "hooks")
    seen = _unwritten()
    is_run: list[bool] = []

    def look(metadata: Any) -> None:
        subject.synchronize()
        is_run.append(has_run(subject, seen))

    kernel = subject.kernel("coordinates", fresh=True)
    subject.driver_calls()
    with subject.observed(look, look):
        launch(subject, "coordinates", (1,), seen, 1, 1, kernel=kernel)
    same(subject, "whether the kernel has run, as enter and exit see it", [False, True], is_run)


@case("HOOK-2", observers=[2, 5])
def observers_are_called_in_order_and_in_reverse(subject: Subject, observers: int) -> None:
    """Enter hooks are called in the order of registration, exit hooks in reverse."""
    require(subject, "hooks")
    names = "abcde"[:observers]
    calls: list[str] = []
    with own_rule(subject), ExitStack() as registered:
        for name in names:
            registered.enter_context(subject.observed(*_recorders(calls, name)))
        _launched(subject)
        due = [*(f"{name} in" for name in names), *(f"{name} out" for name in reversed(names))]
        same(subject, f"calls of {observers} observers", due, calls)


@case("HOOK-2")
def one_side_alone_keeps_its_place(subject: Subject) -> None:
    """Observers of one side alone are called where they were registered."""
    require(subject, "hooks")
    calls: list[str] = []
    (a, _), (_, b), both = _recorders(calls, "a"), _recorders(calls, "b"), _recorders(calls, "c")
    with own_rule(subject), subject.observed(a, None), subject.observed(None, b), subject.observed(*both):
        _launched(subject)
        same(subject, "calls of three observers", ["a in", "c in", "c out", "b out"], calls)


@case("HOOK-2", broken=["enter", "exit"])
def exit_follows_enter_when_another_hook_raises(subject: Subject, broken: str) -> None:
    """Observers before and after one that raises get their enter and their exit."""
    require(subject, "hooks")
    calls: list[str] = []
    with own_rule(subject), subject.observed(*_recorders(calls, "a")):
        sides = (_raise, None) if broken == "enter" else (None, _raise)
        with subject.observed(*sides), subject.observed(*_recorders(calls, "c")):
            _error_of(subject, _unwritten())
        same(subject, f"calls when an {broken} hook raises", ["a in", "c in", "c out", "a out"], calls)


@contextmanager
def _failing(device: Any) -> Iterator[None]:
    """Let each driver call in the block fail, on either path."""
    from gridpact import native

    def fail(*_: object) -> None:
        raise RuntimeError("the driver said no")

    native.use("tap", fail)
    try:
        with mock.patch.object(device, "launch", fail):
            yield
    finally:
        native.use("tap", None)


@case("HOOK-2", exit=["returns", "raises"])
def exit_follows_enter_when_the_launch_fails(subject: Subject, exit: str) -> None:
    """A driver call that fails is followed by every exit, and its own error is what the caller gets."""
    device = _own(subject, "a driver call that fails cannot be made here")
    calls: list[str] = []
    seen = _unwritten()
    broken = subject.observed(None, _raise if exit == "raises" else None)
    with subject.observed(*_recorders(calls, "a")), broken, _failing(device):
        error = _error_of(subject, seen)
    same(subject, "calls when the driver call fails", ["a in", "a out"], calls)
    same(subject, "the error", "RuntimeError: the driver said no", f"{type(error).__name__}: {error}")
    same(subject, "memory after a driver call that failed", _unwritten(), seen)


@case("HOOK-2", kind="negative", axis=["x", "y"])
def exit_follows_enter_when_the_grid_is_over_a_limit(subject: Subject, axis: str) -> None:
    """Where a launcher leaves it to the driver to refuse a grid, its enter has its exit."""
    require(subject, "hooks")
    x, y, _ = limits_of(subject)
    calls: list[str] = []
    with own_rule(subject), subject.observed(*_recorders(calls, "a")), suppress(Exception):
        subject.launch("counted", (x + 1,) if axis == "x" else (1, y + 1), poisoned(7))
    if not calls:
        raise Unsupported("it refuses before its hooks")
    with own_rule(subject):
        same(subject, "calls of enter and of exit", calls.count("a in"), calls.count("a out"))


@case("HOOK-2", kind="negative")
def refused_launch_calls_no_hook(subject: Subject) -> None:
    """A launch that is refused makes no driver call, and no hook sees it."""
    require(subject, "hooks")
    calls: list[str] = []
    with own_rule(subject), subject.observed(*_recorders(calls, "a")):
        check_refused(subject, TypeError, "ARG-1", lambda seen: subject.launch("coordinates", (2,), seen))
        same(subject, "hooks called by a launch without its arguments", [], calls)


@case("HOOK-2", kind="negative")
def compiling_calls_no_hook(subject: Subject) -> None:
    """A compilation ahead of launches makes no driver call, and no hook sees it."""
    for ability in ("hooks", "compiled"):
        require(subject, ability)
    calls: list[str] = []
    with own_rule(subject), subject.observed(*_recorders(calls, "a")):
        subject.kernel("coordinates", fresh=True).warmup(subject.tensor(poisoned(7)), 1, 1, grid=(1,))
        same(subject, "hooks called by a compilation", [], calls)


# ------------------------------------------------------------------------------------------------------------ HOOK-3


@case("HOOK-3", launches=[1, 3])
def metadata_function_is_not_called_unwatched(subject: Subject, launches: int) -> None:
    """Without hooks a kernel's own metadata function is never called, on its first launch and later."""
    calls: list[str] = []
    kernel = subject.kernel("coordinates", fresh=True, launch_metadata=_described(calls))
    with own_rule(subject):
        for _ in range(launches):
            launch(subject, "coordinates", (1,), _unwritten(), 1, 1, kernel=kernel)
        same(subject, f"calls of the metadata function in {launches} launches without hooks", [], calls)


@case("HOOK-3", side=["enter", "exit", "both"])
def metadata_is_built_for_those_who_look(subject: Subject, side: str) -> None:
    """A hook that never looks at its metadata causes no call of the metadata function either."""
    require(subject, "hooks")
    calls: list[str] = []
    with own_rule(subject), subject.observed(*_sides(side, _ignore)):
        _launched(subject, launch_metadata=_described(calls))
        same(subject, "calls of the metadata function when no hook looks", [], calls)


@case("HOOK-3")
def metadata_is_built_once_a_launch(subject: Subject) -> None:
    """However many hooks look, the metadata function is called once a launch."""
    require(subject, "hooks")
    calls: list[str] = []
    with own_rule(subject), subject.observed(_look, _look):
        _launched(subject, launch_metadata=_described(calls))
        same(subject, "calls of the metadata function when both sides look", ["called"], calls)


# ------------------------------------------------------------------------------------------------------------ HOOK-4


def _described(calls: list[str]) -> Callable[..., dict[str, Any]]:
    """Give a metadata function that notes its calls, and tells what it was given."""

    def described(grid: Any, metadata: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
        calls.append("called")
        return {"flops": 12, "told": [tuple(grid), metadata.name, sorted(arguments), arguments.get("width")]}

    return described


def _seen_by(subject: Subject, side: str, grid: Any = (3, 2, 1), launches: int = 1, **jit: Any) -> list[dict[str, Any]]:
    """Launch a new kernel of `coordinates` and give what the hooks of a side, or of both, read."""
    found: list[dict[str, Any]] = []
    kernel = subject.kernel("coordinates", fresh=True, **jit)
    with subject.observed(*_sides(side, lambda metadata: found.append(_content(metadata)))):
        for _ in range(launches):
            launch(subject, "coordinates", grid, poisoned(64), 3, 2, kernel=kernel)
    return found


def _text(content: Mapping[str, Any], *, but: str = "") -> dict[str, str]:
    """Give metadata as text, without the memory of its arguments."""
    return {name: repr(content[name]) for name in sorted(content) if name not in ("arguments", but)}


@case("HOOK-4", side=["enter", "exit", "both"])
def each_side_sees_the_launch(subject: Subject, side: str) -> None:
    """A hook of either side sees the kernel's name, a function, a stream, and what the metadata function returned."""
    require(subject, "hooks")
    found = [
        {
            "name": content.get("name"),
            "flops": content.get("flops"),
            "function": "function" in content,
            "stream": "stream" in content,
        }
        for content in _seen_by(subject, side, launch_metadata=_described([]))
    ]
    due = {"name": "coordinates", "flops": 12, "function": True, "stream": True}
    same(subject, f"metadata seen by {side}", str([due] * (2 if side == "both" else 1)), str(found))


@case("HOOK-4", alone=["enter", "exit"])
def one_side_alone_sees_the_same(subject: Subject, alone: str) -> None:
    """Whichever side is registered, the metadata is what both sides see together."""
    require(subject, "hooks")
    together = _seen_by(subject, "both", launch_metadata=_described([]))
    same(subject, "sides that see a launch", 2, len(together))
    same(subject, "what enter and exit see", *(str(_text(content)) for content in together))
    single = _seen_by(subject, alone, launch_metadata=_described([]))
    # Another kernel, so another function.
    due = [_text(content, but="function") for content in together[:1]]
    same(subject, f"what {alone} alone sees", str(due), str([_text(content, but="function") for content in single]))


@case("HOOK-4")
def first_launch_tells_the_same(subject: Subject) -> None:
    """The metadata of a kernel's first launch, which compiles and loads, is that of its second."""
    require(subject, "hooks")
    found = _seen_by(subject, "enter", launches=2)
    told = [content.get("function") is not None for content in found]
    same(subject, "the function is told by the first and second launch", [True, True], told)
    first, second = map(_text, found)
    same(subject, "what enter sees of the first and second launch", str(second), str(first))


@case("HOOK-4")
def metadata_function_is_given_the_launch(subject: Subject) -> None:
    """The metadata function is given the grid, the compiled kernel's metadata and the arguments by name."""
    require(subject, "hooks")
    found = [content.get("told") for content in _seen_by(subject, "enter", launch_metadata=_described([]))]
    due = [(3, 2, 1), "coordinates", ["height", "seen", "width"], 3]
    same(subject, "grid, name, names of arguments, value of one", str([due]), str(found))


@case("HOOK-4")
def metadata_function_may_name_the_launch(subject: Subject) -> None:
    """A name that the metadata function returns is what hooks see: Triton's persistent matmul names its launches so."""
    require(subject, "hooks")

    def named(grid: Any, metadata: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": f"{metadata.name} [width={arguments['width']}]"}

    found = [content.get("name") for content in _seen_by(subject, "both", launch_metadata=named)]
    same(subject, "names seen by enter and exit", ["coordinates [width=3]"] * 2, found)


@case("HOOK-4", stream=["default", "side"])
def metadata_tells_what_is_ours(subject: Subject, stream: str) -> None:
    """Our own rule: identity of the binary, device, num_warps, shared bytes, and the stream's handle."""
    device = _own(subject, "further metadata is our own rule")
    found: list[Any] = []
    options: dict[str, Any] = {"stream": subject.stream().given} if stream == "side" else {}
    if "num_warps" in subject.abilities:
        options.update(subject.options(num_warps=2))
    with subject.observed(lambda metadata: found.append(_content(metadata)), None):
        kernel = subject.kernel("shared_coordinates", fresh=True)
        result = launch(subject, "shared_coordinates", (2,), poisoned(64), 3, 2, kernel=kernel, **options)
    due = {
        "hash": subject.identity(result),
        "device": device.name,
        "num_warps": 2 if "num_warps" in subject.abilities else 1,
        "shared": result.metadata.shared,
    }
    if stream == "side":
        due["stream"] = options["stream"].handle
    same(subject, "further metadata", str([due]), str([{name: content.get(name) for name in due} for content in found]))


@case("HOOK-4", grid={"an_int": 7, "a_numpy_int": np.int64(7), "a_list": [7, 1], "a_callable": lambda meta: (7,)})
def grid_is_three_ints(subject: Subject, grid: Any) -> None:
    """Our own rule: however the grid was given, metadata has it as three Python ints."""
    _own(subject, "the grid in the metadata is our own rule")
    found = [content.get("grid") for content in _seen_by(subject, "enter", grid)]
    same(subject, "the grid in the metadata", repr([(7, 1, 1)]), repr(found))


@case("HOOK-4")
def arguments_are_told_by_name(subject: Subject) -> None:
    """Our own rule: metadata has each argument as it was passed, defaults and constants included."""
    _own(subject, "arguments in the metadata are our own rule")
    seen = subject.shared(poisoned(8))
    found: list[Any] = []
    with subject.observed(lambda metadata: found.append(_content(metadata)["arguments"]), None):
        launch(subject, "constant", (1,), seen, C=3, kernel=subject.kernel("constant", fresh=True))
    passed = subject.tensor(seen)
    same(subject, "constants and defaults", str([(3, "default")]), str([(a.get("C"), a.get("D")) for a in found]))
    same(subject, "the tensor is the one that was passed", [True], [a.get("seen") is passed for a in found])


@case("HOOK-4")
def metadata_is_of_its_launch(subject: Subject) -> None:
    """Metadata that a hook kept is looked at after other launches, and still tells of its own."""
    require(subject, "hooks")
    kernel = subject.kernel("coordinates", fresh=True, launch_metadata=_described([]))
    kept: list[Any] = []
    with subject.observed(kept.append, None):
        for x in (2, 3):
            launch(subject, "coordinates", (x, 1, 1), poisoned(64), x, 1, kernel=kernel)
    _launched(subject)
    found = [(told[0], told[3]) for told in (_content(metadata).get("told", [None] * 4) for metadata in kept)]
    same(subject, "grid and width in kept metadata", str([((2, 1, 1), 2), ((3, 1, 1), 3)]), str(found))


@case("HOOK-4", kind="negative", change=["assign", "delete", "replace", "clear"])
def metadata_is_read_only(subject: Subject, change: str) -> None:
    """What one hook does to its metadata, the next does not see."""
    require(subject, "hooks")
    changes: dict[str, Hook] = {
        "assign": lambda metadata: metadata.__setitem__("name", "another"),
        "delete": lambda metadata: metadata.__delitem__("name"),
        "replace": lambda metadata: metadata.get().update(name="another"),
        "clear": lambda metadata: metadata.get().clear(),
    }
    found: list[Any] = []

    def changing(metadata: Any) -> None:
        found.append(_content(metadata).get("name"))
        with suppress(Exception):  # refused is as good
            changes[change](metadata)

    with own_rule(subject), subject.observed(changing, changing):
        _launched(subject)
        same(subject, "names seen by enter and exit", ["coordinates", "coordinates"], found)


# ------------------------------------------------------------------------------------------------------------ HOOK-5


def _error_of(subject: Subject, seen: Array, kernel: Any = None) -> BaseException | None:
    """Launch one program of a kernel that was never launched, and give what the caller gets."""
    subject.driver_calls()
    try:
        subject.launch("coordinates", (1,), seen, 1, 1, kernel=kernel or subject.kernel("coordinates", fresh=True))
    except Unsupported:
        raise
    except BaseException as error:  # an interrupt, too
        return error
    return None


def _check_told(subject: Subject, error: BaseException | None, launched: bool) -> None:
    """Demand that the caller gets the hook's error; ours names the hook and says whether the launch stands."""
    chain = error
    while chain is not None and not isinstance(chain, ValueError):
        chain = chain.__cause__
    same(subject, "the hook's error reaches the caller", "raised by a hook", str(chain))
    if subject.is_own:
        is_told = isinstance(error, HookError) and error.hook == "_raise" and error.launched is launched
        same(subject, f"a HookError that names the hook, launched={launched}", True, is_told)


@case("HOOK-5", kind="control", returned={"a_string": "stop", "false": False, "a_dict": {"grid": (1, 1, 1)}})
def what_hooks_return_changes_nothing(subject: Subject, returned: Any) -> None:
    """Hooks that return something do not prevent the launch."""
    require(subject, "hooks")
    with own_rule(subject), subject.observed(lambda metadata: returned, lambda metadata: returned):
        same(subject, "the kernel has run", True, has_run(subject, _launched(subject)))


@case("HOOK-5", kind="negative")
def enter_that_raises_prevents_the_launch(subject: Subject) -> None:
    """Nothing is launched when an enter hook raises, and the caller gets its error."""
    require(subject, "hooks")
    seen = _unwritten()
    with own_rule(subject):
        with subject.observed(_raise, None):
            error = _error_of(subject, seen)
        check_untouched(subject, "memory after an enter hook raised", _unwritten(), seen)
        _check_told(subject, error, launched=False)


@case("HOOK-5", kind="negative")
def exit_that_raises_lets_the_launch_stand(subject: Subject) -> None:
    """The kernel has run when an exit hook raises, and the caller gets its error."""
    require(subject, "hooks")
    seen = _unwritten()
    with own_rule(subject):
        with subject.observed(_ignore, _raise):
            error = _error_of(subject, seen)
        subject.synchronize()
        same(subject, "the kernel has run", True, has_run(subject, seen))
        _check_told(subject, error, launched=True)


@case("HOOK-5", kind="negative", side=["enter", "exit"])
def metadata_function_that_raises_is_the_hooks_error(subject: Subject, side: str) -> None:
    """A metadata function that raises does so in the hook that looks: from enter nothing is launched."""
    require(subject, "hooks")

    def broken(grid: Any, metadata: Any, arguments: Any) -> None:
        raise ValueError("raised by a hook")

    kernel = subject.kernel("coordinates", fresh=True, launch_metadata=broken)
    seen = _unwritten()
    enter, exit = (_look, _ignore) if side == "enter" else (_ignore, _look)
    with own_rule(subject):
        with subject.observed(enter, exit):
            error = _error_of(subject, seen, kernel)
        subject.synchronize()
        same(subject, "the error reaches the caller", True, error is not None)
        if side == "enter":
            check_untouched(subject, "memory after an enter hook raised", _unwritten(), seen)


@case("HOOK-5", kind="negative", side=["enter", "exit"])
def interrupt_is_the_users(subject: Subject, side: str) -> None:
    """An interrupt that arrives in a hook reaches the caller as it is, and the next launch is not disturbed."""
    require(subject, "hooks")

    def interrupted(metadata: Any) -> None:
        raise KeyboardInterrupt

    with own_rule(subject):
        with subject.observed(*_sides(side, interrupted)):
            error = _error_of(subject, _unwritten())
        same(subject, "what the caller gets", "KeyboardInterrupt", type(error).__name__)
        same(subject, "the next launch has run", True, has_run(subject, _launched(subject)))


@case("HOOK-5", side=["enter", "exit"])
def hook_that_adds_hooks_does_not_disturb(subject: Subject, side: str) -> None:
    """Hooks that a hook registers are called from the next launch on."""
    require(subject, "hooks")
    calls: list[str] = []
    with own_rule(subject), ExitStack() as registered:

        def adding(metadata: Any) -> None:
            if "added" not in calls:
                calls.append("added")
                registered.enter_context(subject.observed(*_recorders(calls, "b")))

        registered.enter_context(subject.observed(*_sides(side, adding)))
        _launched(subject)
        same(subject, "calls in the launch that added hooks", ["added"], calls)
        _launched(subject)
        same(subject, "calls with the next launch", ["added", "b in", "b out"], calls)


@case("HOOK-5")
def hook_that_removes_hooks_does_not_disturb(subject: Subject) -> None:
    """Hooks that a hook removes are called once more, by the launch that runs."""
    require(subject, "hooks")
    calls: list[str] = []
    with own_rule(subject), ExitStack() as registered:
        enter, exit = _recorders(calls, "a")

        def removing(metadata: Any) -> None:
            enter(metadata)
            registered.close()

        registered.enter_context(subject.observed(removing, exit))
        for _ in range(2):
            _launched(subject)
        same(subject, "calls in the launch that removed its hooks, and in the next", ["a in", "a out"], calls)


# ------------------------------------------------------------------------------------------------------------ HOOK-6


def _prepared(subject: Subject, path: str, seen: Array) -> Callable[[], object]:
    """Give a launch of one program of `coordinates` on a path, made once before anybody watches."""
    kernel = subject.kernel("coordinates", fresh=True)
    grid = (1, 1, 1)
    compiled = launch(subject, "coordinates", grid, seen, 1, 1, kernel=kernel)
    if path == "thread":

        def on_a_thread() -> None:
            subject.show("coordinates", kernel, grid, (seen, 1, 1), {})
            thread = threading.Thread(target=lambda: kernel[grid](subject.tensor(seen), 1, 1))
            thread.start()
            thread.join()

        return on_a_thread
    launchable = compiled if "compiled" in path else kernel
    bound = launchable[grid]

    def run() -> None:
        subject.show("coordinates", launchable, grid, (seen, 1, 1), {})
        (bound if path.startswith("bound") else launchable[grid])(subject.tensor(seen), 1, 1)

    return run


@case("HOOK-6", path=["kernel", "bound", "compiled", "bound_compiled", "thread"])
def late_hook_sees_the_next_launch(subject: Subject, path: str) -> None:
    """A handle that launched unwatched calls hooks from their registration on, and not after their removal."""
    require(subject, "hooks")
    if "compiled" in path:
        require(subject, "compiled")
    seen = _unwritten()
    calls: list[str] = []
    run = _prepared(subject, path, seen)
    for observed in (False, True, True, False):
        with subject.observed(*_recorders(calls, "a")) if observed else ExitStack():
            run()
            subject.synchronize()
    same(subject, "hooks called in the two launches that were watched", ["a in", "a out"] * 2, calls)


@case("HOOK-6", registered=["before", "late"], side=["enter", "exit", "both"])
def hooks_of_triton_see_its_kernels(subject: Subject, registered: str, side: str) -> None:
    """A kernel that comes from `triton.jit`: hooks registered with Triton see our launches of it, metadata included."""
    kernel = _from_triton(subject)
    found: list[dict[str, Any]] = []
    seen = _unwritten()
    if registered == "late":
        launch(subject, "coordinates", (1,), seen, 1, 1, kernel=kernel)
    with subject.observed_by_triton(*_sides(side, lambda metadata: found.append(_content(metadata)))):  # type: ignore[attr-defined]
        launch(subject, "coordinates", (1,), seen, 1, 1, kernel=kernel)
    launch(subject, "coordinates", (1,), seen, 1, 1, kernel=kernel)
    told = [(content.get("name"), content.get("flops"), "function" in content) for content in found]
    due = [("coordinates", 12, True)] * (2 if side == "both" else 1)
    same(subject, "what hooks of Triton were told of the one launch that they watched", str(due), str(told))


@case("HOOK-6", kind="control")
def hooks_of_triton_see_no_other_kernels(subject: Subject) -> None:
    """A kernel that does not come from Triton is not shown to hooks that were registered with Triton."""
    _from_triton(subject)
    calls: list[str] = []
    with subject.observed_by_triton(*_recorders(calls, "a")):  # type: ignore[attr-defined]
        _launched(subject)
    same(subject, "hooks of Triton called by a kernel of ours", [], calls)


@case("HOOK-6", added=["to_triton", "to_ours"])
def pre_run_hooks_are_called_before_binding(subject: Subject, added: str) -> None:
    """A pre-run hook of a kernel from Triton is called once a launch, with its arguments, and may change memory."""
    kernel = _from_triton(subject)
    calls: list[Any] = []

    def before(seen: Array, *args: Any, **options: Any) -> None:
        calls.append((args, options.get("num_warps")))
        seen[0] = 40  # as autotune resets what a kernel adds to

    (kernel.kernel.origin if added == "to_triton" else kernel.kernel).add_pre_run_hook(before)
    seen = _unwritten()
    for _ in range(2):
        launch(subject, "coordinates", (1,), seen, 1, 1, kernel=kernel, num_warps=2)
    same(subject, "calls of the hook", str([((1, 1), 2)] * 2), str(calls))
    if subject.runs:
        same(subject, "the count in memory that it set to 40", 41, int(seen[0]))


def _from_triton(subject: Subject) -> Any:
    """Give a new kernel of `coordinates` that `triton.jit` made and ours took over."""
    require(subject, "hooks")
    if "from_triton" not in subject.abilities:
        raise Unsupported(subject.lacks.get("from_triton", "its kernels are Triton's own"))
    return subject.from_triton("coordinates", _described([]))  # type: ignore[attr-defined]


@case("HOOK-6")
def later_observer_joins(subject: Subject) -> None:
    """An observer that comes while another watches sees the next launch, and the first goes on watching."""
    require(subject, "hooks")
    first: list[str] = []
    second: list[str] = []
    kernel = subject.kernel("coordinates", fresh=True)
    with own_rule(subject), subject.observed(*_recorders(first, "a")):
        for later in (ExitStack(), subject.observed(*_recorders(second, "b")), ExitStack()):
            with later:
                launch(subject, "coordinates", (1,), _unwritten(), 1, 1, kernel=kernel)
        same(subject, "calls of the first observer in three launches", ["a in", "a out"] * 3, first)
        same(subject, "calls of the second in the one that it watched", ["b in", "b out"], second)
