"""STREAM: where launches run in order. Order is shown without a clock, by kernels that wait for a flag of the host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import numpy as np

from gridpact.conformance.check import (
    POISON,
    Array,
    check_refused,
    launch,
    on_new_thread,
    own_rule,
    poisoned,
    require,
    require_runs,
    same,
    submit,
)
from gridpact.conformance.model import Unsupported, Violated, case, clause
from gridpact.conformance.script import Language, Script
from gridpact.conformance.subjects import Subject
from gridpact.stream import Stream as OwnStream

if TYPE_CHECKING:
    from gridpact.conformance.subjects.streams import Stream

clause(
    "STREAM-1",
    "triton",
    "A launch goes to the stream that is current on the launch device when the launch is made. Current = that of the "
    "library that owns the first device pointer; two libraries with different current streams are refused unless a "
    "stream is given. It is given by stream= (a kernel parameter of that name wins; then with gridpact.stream(s)). "
    "Nothing remembers an older stream. Handle 0 is a real stream.",
    "A kernel on another stream than its neighbours reads what they have not written yet, now and then.",
)
clause(
    "STREAM-2",
    "triton",
    "Two launches on one stream: the second sees all that the first wrote.",
    "Queues of SYCL keep no order unless they are asked to.",
)
clause(
    "STREAM-3",
    "triton",
    "Two launches on two streams, ordered by an event: the same. The control without the event is seen to go wrong: "
    "while the writer is held on a flag, a reader on the other stream reads the old value.",
    "An event that orders nothing is seen by nobody while the machine is fast enough.",
)
clause(
    "STREAM-4",
    "triton",
    "A launch returns while its kernel is still held on a flag, and adds no synchronisation. Exception: no stream was "
    "given and a pointer is host memory of a library without streams: then it returns when the results can be read. "
    "gridpact.synchronize(stream_or_device) waits.",
    "A launch that waits takes away what streams are for, and nobody sees it but in the time.",
)
clause(
    "STREAM-5",
    "gridpact",
    "A bare int is refused as a stream; raw handles enter only through Stream.from_handle(value, device, owner). A "
    "stream of the wrong kind or device, or a closed one, is refused, never dereferenced. A stream passes the frontend "
    "as it is: a sentinel object arrives at the backend by identity.",
    "A number that is followed as a queue ends the process, or starts a kernel where nobody looks.",
)

_TURNS: Final = 60_000_000  # six seconds or more: what should happen meanwhile takes milliseconds
_WRITTEN: Final = 7

# Kinds of streams that keep their order by themselves, and those that a launcher has to give one.
_KINDS: Final = ["gridpact", "dpctl", "torch", "cupy", "cuda_core", "handle"]
_UNORDERED: Final = ["dpctl_unordered"]
_LIBRARIES: Final = ["dpctl", "torch", "cupy"]  # whose memory tells the stream
_HOW: Final = ["current", "option"]


@dataclass
class _Held:
    """A kernel that waits for its flag.

    Attributes
    ----------
    seen
        `[value, 1]` once it was let go, and before that its value is poison.
    """

    flag: Array
    seen: Array


def _submit(subject: Subject, how: str, stream: Stream | None, program: str, *args: Any, **options: Any) -> Any:
    """Launch on a stream, given by its option or by making it current, or on no stream in particular; do not wait."""
    if stream is None:
        return submit(subject, program, (1,), *args, **options)
    if how == "option":
        require(subject, "stream_option")
        return submit(subject, program, (1,), *args, stream=stream.given, **options)
    with subject.on(stream):
        return submit(subject, program, (1,), *args, **options)


@contextmanager
def _holding(subject: Subject, how: str, stream: Stream, **options: Any) -> Iterator[_Held]:
    """Hold a stream with a kernel during the block: from when it runs until the end of the block raises its flag.

    It must run first: a host thread that waits for another kernel may take up one that no worker runs yet.
    """
    for ability in ("streams", "held"):
        require(subject, ability)
    # Loaded before: what takes long must not fall into the time of a hold, and CUDA loads when a device is idle alone.
    subject.raise_flag(subject.shared(np.zeros(1, "i4")))
    subject.launch("held", (1,), np.ones(1, "i4"), poisoned(2), 0, 1)
    subject.launch("passed_on", (1,), poisoned(1), _source(subject, 0))
    held = _Held(subject.shared(np.zeros(1, "i4")), subject.shared(poisoned(2)))
    try:
        _submit(subject, how, stream, "held", held.flag, held.seen, _WRITTEN, _TURNS, **options)
        asked = subject.asked.script.line
        subject.asked.script.begun(held.seen)
        end = time.monotonic() + 30
        while held.seen[1] != 1:
            if time.monotonic() > end:
                raise Violated(asked, "a kernel that begins", "nothing in 30 s")
            time.sleep(0)
        _check_held(subject, held)
        yield held
    finally:
        subject.let_go(held.flag)
        subject.wait(stream)  # nothing of the case is in flight when its memory goes


def _check_held(subject: Subject, held: _Held) -> None:
    """Demand that the kernel is held still: what was seen was seen, and who returned did so, while it ran."""
    same(subject, "what the held kernel has written", POISON, int(held.seen[0]))


def _source(subject: Subject, value: int) -> Array:
    return subject.shared(np.full(1, value, "i4"))


def _unwritten(subject: Subject) -> Array:
    return subject.shared(poisoned(1))


def _pass_on(subject: Subject, how: str, stream: Stream | None, source: Array) -> Array:
    """Launch a reader of memory, without waiting for it, and give what it writes to."""
    seen = _unwritten(subject)
    _submit(subject, how, stream, "passed_on", seen, source)
    return seen


_UNREAD: Final = _WRITTEN + 1  # neither what a writer writes nor what was there before


def _read(subject: Subject, how: str, stream: Stream, source: Array) -> Array:
    """The same, of memory that a held kernel is to write to: what was read can be told from nothing read."""
    read = _source(subject, _UNREAD)
    _submit(subject, how, stream, "passed_on", read, source)
    return read


def _check_unread(subject: Subject, read: Array, other: Stream, how: str) -> None:
    """Demand that a reader has not run while another stream's launches came and went."""
    _pass_on(subject, how, other, _source(subject, 6))
    subject.wait(other)
    _while(subject, how, other, lambda: read[0] == _UNREAD, 0.2)
    same(subject, "what the reader wrote while the writer is held", _UNREAD, int(read[0]))


def _while(subject: Subject, how: str, other: Stream, is_so: Callable[[], object], limit_s: float) -> None:
    """Launch on another stream and wait, again and again: a thread that waits helps where workers are few."""
    script, subject.asked.script = subject.asked.script, Script(Language())  # no part of the case's program
    end = time.monotonic() + limit_s
    try:
        while is_so() and time.monotonic() < end:
            _pass_on(subject, how, other, _source(subject, 6))
            other.wait()
    finally:
        subject.asked.script = script


def _usual(subject: Subject) -> str:
    """Say how launches of a subject are given a stream."""
    return "option" if "stream_option" in subject.abilities else "current"


def _numbers(*memory: Array) -> list[int]:
    return [int(array[0]) for array in memory]


# ---------------------------------------------------------------------------------------------------------- STREAM-1


@case("STREAM-1", how=_HOW, on=_KINDS)
def launch_goes_to_its_stream(subject: Subject, how: str, on: str) -> None:
    """While stream A is held, a launch on A waits and one on B ends; A's ends when A is let go."""
    a, b = subject.stream(on), subject.stream(on)
    if not a.is_for_all_memory and how == "current" and subject.is_own:
        raise Unsupported("what torch has as its current stream is for its own memory, which another case asks")
    with _holding(subject, how, a) as held:
        on_a = _pass_on(subject, how, a, _source(subject, 5))
        on_b = _pass_on(subject, how, b, _source(subject, 6))
        subject.wait(b)
        same(subject, "what launches on A and on B wrote while A is held", [POISON, 6], _numbers(on_a, on_b))
        _check_held(subject, held)
    same(subject, "what the held kernel and the launch on A wrote", [_WRITTEN, 5], _numbers(held.seen, on_a))


@case("STREAM-1", path=["kernel", "bound", "compiled", "thread"])
def nothing_remembers_an_older_stream(subject: Subject, path: str) -> None:
    """A kernel that was launched on A is launched on B, then on none, while A is held: both end. Then on A again."""
    a, b = subject.stream(), subject.stream()
    kernel = subject.kernel("passed_on", fresh=True)
    with subject.on(a):
        compiled = subject.launch("passed_on", (1,), poisoned(1), _source(subject, 1), kernel=kernel)
    if path == "compiled":
        require(subject, "compiled")
    launched: Any = compiled if path == "compiled" else kernel
    with subject.on(a):  # a handle that is made where A is current does not keep it
        bound = _Bound(launched[1, 1, 1]) if path in ("bound", "compiled") else launched

    def launch_on(stream: Stream | None) -> Array:
        seen = _unwritten(subject)

        def call() -> None:
            _submit(subject, "current", stream, "passed_on", seen, _source(subject, 6), kernel=bound)

        if path == "thread":
            on_new_thread("a launch on a new thread", call)
        else:
            call()
        return seen

    with _holding(subject, "current", a) as held:
        on_b = launch_on(b)
        subject.wait(b)
        on_none = launch_on(None)
        subject.wait_default()
        on_a = launch_on(a)
        seen = _numbers(on_b, on_none, on_a)
        same(subject, "what launches on B, on none and on A wrote while A is held", [6, 6, POISON], seen)
        _check_held(subject, held)
    same(subject, "what the launch on A wrote", 6, int(on_a[0]))


class _Bound:
    """A launch over one grid, kept and called again: `bound = kernel[grid]`."""

    def __init__(self, bound: Callable[..., Any]) -> None:
        self.bound = bound

    def __getitem__(self, grid: object) -> Callable[..., Any]:
        return self.bound


@case("STREAM-1")
def inner_stream_wins_and_ends_with_its_block(subject: Subject) -> None:
    """Of two streams that are current one in the other the inner one is taken; after its block the outer one again."""
    a, b = subject.stream(), subject.stream()
    with _holding(subject, "current", a) as held:
        with subject.on(a):
            with subject.on(b):
                inner = _pass_on(subject, "current", None, _source(subject, 6))
            outer = _pass_on(subject, "current", None, _source(subject, 5))
        after = _pass_on(subject, "current", None, _source(subject, 4))
        subject.wait(b)
        subject.wait_default()
        seen = _numbers(inner, outer, after)
        same(subject, "what the inner, the outer and a later launch wrote while the outer", [6, POISON, 4], seen)
        _check_held(subject, held)
    same(subject, "what the launch on the outer stream wrote", 5, int(outer[0]))


@case("STREAM-1", how=_HOW)
def stream_reaches_the_backend(subject: Subject, how: str) -> None:
    """What reaches the backend is the handle of the stream that was given to this launch."""
    require(subject, "records")
    streams = [subject.stream(), subject.stream()]
    records: list[dict[str, Any]] = []
    with subject.recording(records):
        for stream in (*streams, None, streams[0]):
            _pass_on(subject, how, stream, _source(subject, 5))
    subject.synchronize()
    handles = [streams[i].handle for i in (0, 1, 0)]
    found = [record["stream"] for record in records]
    same(subject, "launches that reached the backend", 4, len(found))
    same(subject, "their streams", [*handles[:2], handles[2]], [found[0], found[1], found[3]])
    same(subject, "one without a stream goes to neither", False, found[2] in handles)


@case("STREAM-1", handle=[0, 7, 2**63 + 5])
def driver_is_given_the_current_handle(subject: Subject, handle: int) -> None:
    """Whatever number the current stream is, 0 too, the driver is given it, in the launch that it is current for."""
    require(subject, "stream_handles")
    seen = []
    for current in (handle, 12345, handle):
        with subject.current_handle(current):
            subject.launch("passed_on", (1,), poisoned(1), _source(subject, 1))
        seen.append(subject.last_call().stream)
    same(subject, "streams that the driver was given", [handle, 12345, handle], seen)


@case("STREAM-1")
def option_wins_over_the_current_stream(subject: Subject) -> None:
    """A launch that names B ends while A, the current stream, is held."""
    a, b = subject.stream(), subject.stream()
    with _holding(subject, "option", a) as held:
        with subject.on(a):
            on_b = _pass_on(subject, "option", b, _source(subject, 6))
        subject.wait(b)
        same(subject, "what the launch that names B wrote while A is held", 6, int(on_b[0]))
        _check_held(subject, held)


@case("STREAM-1")
def parameter_named_stream_is_a_parameter(subject: Subject) -> None:
    """A kernel's own parameter `stream` is given its number, and the launch goes to the current stream."""
    seen = _unwritten(subject)
    if not subject.runs:
        with subject.current_handle(7):
            result = launch(subject, "parameter_named_stream", (1,), seen, stream=41)
        told = int(subject.passed(result)["stream"]), subject.last_call().stream
        same(subject, "the parameter `stream` of a kernel, and the launch's stream", str((41, 7)), str(told))
        return
    require(subject, "streams")
    a, b = subject.stream(), subject.stream()
    if "held" not in subject.abilities:
        with subject.on(a):
            launch(subject, "parameter_named_stream", (1,), seen, stream=41)
        same(subject, "the parameter `stream` of a kernel", 41, int(seen[0]))
        return
    launch(subject, "parameter_named_stream", (1,), poisoned(1), stream=41)
    with _holding(subject, "current", a) as held:
        with subject.on(a):
            submit(subject, "parameter_named_stream", (1,), seen, stream=41)
        _pass_on(subject, "current", b, _source(subject, 6))
        subject.wait(b)
        same(subject, "what the launch on A wrote while A is held", POISON, int(seen[0]))
        _check_held(subject, held)
    same(subject, "the parameter `stream` of a kernel", 41, int(seen[0]))


@case("STREAM-1")
def current_stream_is_of_its_thread(subject: Subject) -> None:
    """A stream that is current on one thread is not on another: a launch there ends while the stream is held."""
    if "torch" in type(subject.stream()).__name__.lower():
        raise Unsupported("where it looks the current stream up is a stand-in of one thread")
    a = subject.stream()
    found: list[Array] = []
    with _holding(subject, "current", a) as held:
        with subject.on(a):
            on_new_thread(
                "a launch on a new thread",
                lambda: found.append(_pass_on(subject, "current", None, _source(subject, 4))),
            )
        subject.wait_default()
        same(subject, "what another thread's launch wrote while A is held", [4], _numbers(*found))
        _check_held(subject, held)


@case("STREAM-1", on=_LIBRARIES)
def memory_goes_to_the_stream_of_its_library(subject: Subject, on: str) -> None:
    """With no stream given a launch goes to the stream that the library of its memory uses: A's waits, B's ends."""
    require(subject, "owners")
    a, b = subject.stream(on), subject.stream(on)
    seen = {}
    with _holding(subject, _usual(subject), a) as held:
        for name, stream in (("A", a), ("B", b)):
            (target, written), (source, _) = subject.memory(stream), subject.memory(stream)
            written[0], seen[name] = POISON, written
            with subject.in_library(stream):
                submit(subject, "passed_on", (1,), target, source)
        subject.wait(b)
        found = _numbers(seen["A"], seen["B"])
        same(subject, "what launches over memory of A and of B wrote while A is held", [POISON, 0], found)
        _check_held(subject, held)
    same(subject, "what the launch over memory of A wrote", 0, int(seen["A"][0]))


@case("STREAM-1", of=_LIBRARIES, first=["yes", "no"])
def memory_of_the_host_tells_no_stream(subject: Subject, of: str, first: str) -> None:
    """Memory of the host beside that of a library: the launch goes to the library's stream, whichever comes first."""
    for ability in ("owners", "records"):
        require(subject, ability)
    stream = subject.stream(of)
    memory, array = subject.memory(stream)
    array[0] = 5
    seen, source = subject.host(poisoned(1)), subject.host(np.full(1, 6, "i4"))
    args = (memory, source) if first == "yes" else (seen, memory)
    records: list[dict[str, Any]] = []
    with subject.recording(records), subject.in_library(stream):
        submit(subject, "passed_on", (1,), *args)
    stream.wait()
    told = [record["stream"] == stream.handle for record in records], int(array[0] if first == "yes" else seen[0])
    same(
        subject,
        "launches on the library's stream, and the result",
        str(([True], 6 if first == "yes" else 5)),
        str(told),
    )


@case("STREAM-1", kind="negative", of=_LIBRARIES, given=["no", "yes"])
def memory_of_two_streams_needs_one_to_be_named(subject: Subject, of: str, given: str) -> None:
    """Memory of two queues, of one library or of two, is refused in one launch unless it names a stream."""
    require(subject, "owners")
    first = next(kind for kind in _LIBRARIES if kind in subject.streams)
    a, b = subject.stream(first), subject.stream(of)
    if of == first and a.follows_current:
        raise Unsupported("its memory has one stream at a time, the current one")
    (target, written), (source, _) = subject.memory(a), subject.memory(b)
    written[0] = POISON
    if given == "yes":
        with subject.in_library(a), subject.in_library(b):
            _submit(subject, _usual(subject), a, "passed_on", target, source)
        subject.wait(a)
        same(subject, "what a launch on A wrote", 0, int(written[0]))
        return

    def ask(seen: Array) -> None:
        with subject.in_library(a), subject.in_library(b):
            subject.submit("passed_on", (1,), target, source)

    check_refused(subject, ValueError, "STREAM-1", ask, names="stream", memory=written, count=lambda seen: 1)


# ---------------------------------------------------------------------------------------------------------- STREAM-2


@case("STREAM-2", on=[*_KINDS, *_UNORDERED])
def second_launch_sees_the_first(subject: Subject, on: str) -> None:
    """A reader behind a held writer on one stream does not run before it, and reads what it wrote."""
    how = _usual(subject)
    a, b = subject.stream(on), subject.stream(on)
    with _holding(subject, how, a) as held:
        read = _read(subject, how, a, held.seen)
        _check_unread(subject, read, b, how)
        _check_held(subject, held)
    same(subject, "what the reader read", _WRITTEN, int(read[0]))


@case("STREAM-2", on=["none", *_KINDS, *_UNORDERED], launches=[2, 100])
def each_launch_of_a_chain_sees_the_one_before(subject: Subject, on: str, launches: int) -> None:
    """Each of many launches on a stream passes on what the one before wrote; the host waits once, at the end."""
    require(subject, "streams")
    stream = None if on == "none" else subject.stream(on)
    how = _usual(subject)
    chain = [_source(subject, 5)]
    for _ in range(launches):
        chain.append(_pass_on(subject, how, stream, chain[-1]))
    if stream is None:
        subject.wait_default()
    else:
        subject.wait(stream)
    same(subject, f"what {launches} launches passed on", [5] * (launches + 1), _numbers(*chain))


@case("STREAM-2", kind="control")
def stream_that_asks_for_no_order_has_none(subject: Subject) -> None:
    """Our own stream with in_order=False: a reader behind a held writer reads the old value. So order is seen here."""
    how = _usual(subject)
    a, b = subject.stream("unordered"), subject.stream()
    with _holding(subject, how, a) as held:
        read = _read(subject, how, a, held.seen)
        _while(subject, how, b, lambda: read[0] == _UNREAD, 2)
        same(subject, "what the reader read while the writer is held", POISON, int(read[0]))
        _check_held(subject, held)


# ---------------------------------------------------------------------------------------------------------- STREAM-3

_WITH_EVENTS: Final = [*_KINDS, *_UNORDERED, "unordered"]


@case("STREAM-3", on=_WITH_EVENTS)
def event_orders_two_streams(subject: Subject, on: str) -> None:
    """A reader on B that waits for an event of A does not run while A's writer is held, and reads what it wrote."""
    how = _usual(subject)
    a, b, c = (subject.stream(on) for _ in range(3))
    with _holding(subject, how, a) as held:
        subject.wait_for(b, subject.record(a))
        read = _read(subject, how, b, held.seen)
        _check_unread(subject, read, c, how)
        _check_held(subject, held)
    subject.wait(b)
    same(subject, "what the reader read", _WRITTEN, int(read[0]))


@case("STREAM-3", kind="control", on=_WITH_EVENTS)
def without_the_event_the_old_value_is_read(subject: Subject, on: str) -> None:
    """A reader on B that waits for no event ends while A's writer is held, and reads the old value."""
    how = _usual(subject)
    a, b = subject.stream(on), subject.stream(on)
    with _holding(subject, how, a) as held:
        read = _read(subject, how, b, held.seen)
        subject.wait(b)
        same(subject, "what the reader read while the writer is held", POISON, int(read[0]))
        _check_held(subject, held)


@case("STREAM-3", on=["gridpact", "dpctl", "torch"])
def event_is_of_what_came_before_it(subject: Subject, on: str) -> None:
    """An event that A was marked with before it was held lets B go on: the event orders what is due and no more."""
    how = _usual(subject)
    a, b = subject.stream(on), subject.stream(on)
    first = _pass_on(subject, how, a, _source(subject, 5))
    event = subject.record(a)
    with _holding(subject, how, a) as held:
        subject.wait_for(b, event)
        read = _pass_on(subject, how, b, first)
        subject.wait(b)
        same(subject, "what the reader read while A is held after its event", 5, int(read[0]))
        _check_held(subject, held)


@case("STREAM-3", on=_WITH_EVENTS, streams=[2, 3])
def chain_goes_from_stream_to_stream(subject: Subject, on: str, streams: int) -> None:
    """Each of 30 launches, on streams in turn, passes on what the one before wrote on another stream."""
    require(subject, "streams")
    how = _usual(subject)
    lanes = [subject.stream(on) for _ in range(streams)]
    chain = [_source(subject, 5)]
    for i in range(30):
        here, there = lanes[i % streams], lanes[(i + 1) % streams]
        chain.append(_pass_on(subject, how, here, chain[-1]))
        subject.wait_for(there, subject.record(here))
    for lane in lanes:
        subject.wait(lane)
    same(subject, "what 30 launches passed on", [5] * 31, _numbers(*chain))


# ---------------------------------------------------------------------------------------------------------- STREAM-4


@case("STREAM-4", how=_HOW, first=["yes", "no"], watched=["no", "yes"])
def launch_returns_while_its_kernel_is_held(subject: Subject, how: str, first: str, watched: str) -> None:
    """A launch has returned while its kernel waits for a flag: the first of a kernel and later ones, with hooks too."""
    for ability in ("hooks", "held"):
        require(subject, ability)
    a = subject.stream()
    kernel = subject.kernel("held", fresh=first == "yes")
    hooks = subject.observed(lambda metadata: None, lambda metadata: None)
    with hooks if watched == "yes" else nullcontext(), _holding(subject, how, a, kernel=kernel) as held:
        same(subject, "what the kernel has written when its launch returned", POISON, int(held.seen[0]))
    same(subject, "what the kernel wrote once it was let go", _WRITTEN, int(held.seen[0]))


@case("STREAM-4", launches=[1, 200])
def launches_behind_a_held_kernel_return(subject: Subject, launches: int) -> None:
    """However many launches are behind a held kernel, each returns; they run when it is let go."""
    a = subject.stream()
    with _holding(subject, "current", a) as held:
        seen = [_pass_on(subject, "current", a, _source(subject, i)) for i in range(launches)]
        same(subject, "what they wrote while the first is held", [POISON] * launches, _numbers(*seen))
        _check_held(subject, held)
    same(subject, "what they wrote", list(range(launches)), _numbers(*seen))


@case("STREAM-4", launches=[100])
def results_in_host_memory_are_ready(subject: Subject, launches: int) -> None:
    """Without a stream, a launch over host memory returns when its results can be read."""
    if not subject.is_own:
        raise Unsupported("that host memory is ready is our own exception")
    require_runs(subject)
    for i in range(launches):
        seen, source = subject.host(poisoned(1)), subject.host(np.full(1, i, "i4"))
        submit(subject, "passed_on", (1,), seen, source)
        if seen[0] != i:
            break
    same(subject, f"what launch {i} wrote when it returned", i, int(seen[0]))


@case("STREAM-4", target=["stream", "device", "current_device", "event"])
def synchronize_waits(subject: Subject, target: str) -> None:
    """Whoever waits for a stream, its device or an event comes back when the held kernel has written, not before."""
    if not subject.is_own:
        raise Unsupported("gridpact.synchronize is our own")
    import gridpact

    a = subject.stream()
    found: list[int] = []
    with _holding(subject, "option", a) as held:
        event = a.record()
        waits: dict[str, Callable[[], None]] = {
            "stream": lambda: gridpact.synchronize(a.given),
            "device": lambda: gridpact.synchronize(a.given.device),
            "current_device": gridpact.synchronize,
            "event": event.synchronize,
        }

        def wait() -> None:
            with gridpact.device(a.given.device):
                waits[target]()
            found.append(int(held.seen[0]))

        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.2)
        same(subject, "waits that are over while the kernel is held", [], found)
        _check_held(subject, held)
    waiting.join()
    same(subject, "what the kernel had written when the wait was over", [_WRITTEN], found)


# ---------------------------------------------------------------------------------------------------------- STREAM-5

_SENSIBLE: Final = (TypeError, ValueError, KeyError, AssertionError)


def _check_stream_refused(subject: Subject, how: str, given: Any) -> None:
    """Demand that a launch with this as its stream is refused, by option or as the current stream."""
    require(subject, "stream_option")
    if how == "current" and not subject.is_own:
        raise Unsupported("what is current is kept by another library")
    with own_rule(subject):
        if how == "option":

            def ask(seen: Array) -> None:
                subject.launch("passed_on", (1,), seen, _source(subject, 1), stream=given)
        else:

            def ask(seen: Array) -> None:
                import gridpact

                with gridpact.stream(given):
                    subject.launch("passed_on", (1,), seen, _source(subject, 1))

        check_refused(subject, _SENSIBLE, "STREAM-5", ask, names="stream", count=lambda seen: 1)


class _Decoy:
    """Looks like a stream of every library, and tells who follows its address."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def addressof_ref(self) -> int:
        self.asked.append("addressof_ref")
        return 64

    @property
    def sycl_queue(self) -> int:
        self.asked.append("sycl_queue")
        return 64

    @property
    def cuda_stream(self) -> int:
        self.asked.append("cuda_stream")
        return 64

    def __int__(self) -> int:
        self.asked.append("__int__")
        return 64

    __index__ = __int__


@case("STREAM-5", kind="negative", how=_HOW, value=[0, 5, True, -1, 2**64])
def bare_integer_is_refused(subject: Subject, how: str, value: int) -> None:
    """A number is no stream, whatever it might be the handle of."""
    _check_stream_refused(subject, how, value)


@case("STREAM-5", kind="negative", how=_HOW, given={"a_string": "0", "a_float": 0.0, "bytes": b"", "a_tuple": (0,)})
def other_object_is_refused(subject: Subject, how: str, given: Any) -> None:
    """What is no stream at all is refused."""
    _check_stream_refused(subject, how, given)


@case("STREAM-5", kind="negative", how=_HOW)
def look_alike_is_never_followed(subject: Subject, how: str) -> None:
    """An object that only looks like a stream is refused, and nobody asks it for an address."""
    decoy = _Decoy()
    _check_stream_refused(subject, how, decoy)
    with own_rule(subject):
        same(subject, "what it was asked for", [], decoy.asked)


@case("STREAM-5", kind="negative", how=_HOW)
def closed_stream_is_refused(subject: Subject, how: str) -> None:
    """A stream that was closed takes no launch."""
    stream = _own_stream(subject)
    stream.close()
    _check_stream_refused(subject, how, stream)


@case("STREAM-5", kind="negative", how=_HOW, device=["cuda:0", "sycl:gpu:7", "another"])
def stream_of_another_device_is_refused(subject: Subject, how: str, device: str) -> None:
    """A stream of another device is refused, and its handle, which is of nothing here, is not followed."""
    _own_stream(subject)
    if device == "another":
        device = "reference" if subject.name != "gridpact:reference" else "sycl:cpu"  # it need not be here
    elif device == subject.opened.name:  # type: ignore[attr-defined]
        device = "cuda:1"
    _check_stream_refused(subject, how, OwnStream.from_handle(64, device, None))


@case(
    "STREAM-5", kind="negative", value={"a_bool": True, "a_string": "64", "a_float": 64.0, "negative": -1, "none": None}
)
def handle_is_an_address(subject: Subject, value: Any) -> None:
    """`Stream.from_handle` takes an address and nothing else."""
    device = _own_stream(subject).device

    def ask(seen: Array) -> None:
        subject.launch("passed_on", (1,), seen, _source(subject, 1), stream=OwnStream.from_handle(value, device, None))

    check_refused(subject, TypeError, "STREAM-5", ask, names="handle", count=lambda seen: 1)


@case("STREAM-5", kind="negative")
def handle_of_nothing_is_refused(subject: Subject) -> None:
    """0 is no queue of SYCL: following it would end the process. On CUDA it is a stream, and a launch goes to it."""
    require(subject, "held")  # where a launch runs to its end there is no driver, and 0 is the only stream
    usual = _own_stream(subject)
    stream = OwnStream.from_handle(0, usual.device, None)
    if not usual.device.startswith("cuda"):
        _check_stream_refused(subject, "option", stream)
        return
    seen, records = _unwritten(subject), list[dict[str, Any]]()
    with subject.recording(records):
        subject.launch("passed_on", (1,), seen, _source(subject, 5), stream=stream)
    told = [record["stream"] for record in records], int(seen[0])
    same(subject, "streams that launches reached, and what was written", str(([0], 5)), str(told))


def _own_stream(subject: Subject) -> Any:
    """Give a stream of one of our subjects; leave the case as unsupported on others."""
    if not subject.is_own:
        raise Unsupported("gridpact.Stream is our own")
    return subject.stream().given


@case("STREAM-5", how=_HOW)
def stream_passes_the_frontend_as_it_is(subject: Subject, how: str) -> None:
    """An object that the frontend cannot know arrives at the backend by identity, once."""
    usual = _own_stream(subject)
    device = subject.opened  # type: ignore[attr-defined]
    sentinel, taken = object(), []
    accept = device.accept_stream

    def accepted(stream: object) -> Any:
        taken.append(stream)
        return accept(usual if stream is sentinel else stream)

    import gridpact

    with mock.patch.object(device, "accept_stream", accepted):
        if how == "option":
            subject.submit("passed_on", (1,), poisoned(1), _source(subject, 1), stream=sentinel)
        else:
            with gridpact.stream(sentinel):
                subject.submit("passed_on", (1,), poisoned(1), _source(subject, 1))
    gridpact.synchronize(usual)
    same(subject, "what the backend was given is the object itself", [True], [stream is sentinel for stream in taken])


@case("STREAM-5", kind="control")
def handle_with_its_device_and_owner_launches(subject: Subject) -> None:
    """A stream that was taken by its handle is one."""
    stream = subject.stream("handle")
    seen = _pass_on(subject, "option", stream, _source(subject, 5))
    subject.wait(stream)
    same(subject, "what a launch on it wrote", 5, int(seen[0]))
