"""CAPTURE: launches into graphs, which are replayed without the launcher."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gridpact.conformance.check import (
    NUMBERS,
    Array,
    own_rule,
    poisoned,
    require,
    require_runs,
    same,
    submit,
)
from gridpact.conformance.model import Unguarded, Unsupported, Violated, case, clause
from gridpact.conformance.subjects import Subject
from gridpact.errors import ContractValueError

if TYPE_CHECKING:
    from gridpact.conformance.subjects.streams import Stream

clause(
    "CAPTURE-1",
    "triton",
    "A launch whose binary is already loaded on the device can be captured: it makes no call that capture forbids "
    "(load, unload, allocate, synchronise), and replay runs the captured grid. A launch that would have to compile, "
    "load or synchronise under capture is refused, and the capture stays usable.",
    "One forbidden call ends a capture that took minutes to set up, and the error comes at its end.",
)

_HOW: Final = ["torch", "cuda_core", "driver"]
_GRIDS: Final = [(1,), (7, 5, 3), (997,)]


def _stream(subject: Subject, how: str) -> Stream:
    """Make a stream that this library captures."""
    require(subject, "capture")
    if how not in subject.graphs:
        raise Unsupported(f"it captures no stream through {how}")
    stream = subject.graphs[how]()
    subject.asked.script.stream(stream.given, stream.imported, stream.made)
    return stream


def _memory(subject: Subject, grid: tuple[int, ...]) -> Array:
    """Make memory for `coordinates` that host and device see."""
    seen = poisoned((math.prod(grid) + 1) * NUMBERS)
    seen[::NUMBERS] = 0
    return subject.shared(seen)


def _rows(grid: tuple[int, ...], times: int) -> Array:
    """Give what `coordinates` leaves in its memory after so many replays."""
    x, y, z = (*grid, 1, 1)[:3]
    due = poisoned((x * y * z + 1) * NUMBERS)
    due[::NUMBERS] = 0
    if times:
        rows = due[:-NUMBERS].reshape(z, y, x, NUMBERS)
        rows[..., 0] = times
        rows[..., 3], rows[..., 2], rows[..., 1] = np.indices((z, y, x))
        rows[..., 4:] = x, y, z
    return due


def _submit(subject: Subject, grid: tuple[int, ...], seen: Array, **options: Any) -> Any:
    x, y, _ = (*grid, 1, 1)[:3]
    return submit(subject, "coordinates", grid, seen, x, y, **options)


def _check_captured(subject: Subject, grid: tuple[int, ...]) -> None:
    """Where nothing runs, demand one driver call of the grid."""
    x, y, z = (*grid, 1, 1)[:3]
    same(
        subject,
        "grids that the driver was called with",
        str([(x, y, z)]),
        str([c.grid for c in subject.driver_calls()]),
    )


@case("CAPTURE-1", how=_HOW, grid=_GRIDS)
def captured_launch_runs_when_it_is_replayed(subject: Subject, how: str, grid: tuple[int, ...]) -> None:
    """A captured launch writes nothing until its graph is replayed; each replay runs each program of its grid once."""
    stream = _stream(subject, how)
    _submit(subject, grid, _memory(subject, grid))  # loads the binary
    subject.synchronize()
    seen = _memory(subject, grid)
    subject.driver_calls()
    with subject.capturing(stream) as graph:
        _submit(subject, grid, seen)
    if not subject.runs:
        _check_captured(subject, grid)
        return
    for times in range(3):
        same(subject, f"what {times} replays wrote", _rows(grid, times), np.asarray(seen))
        subject.replay(stream, graph)
    same(subject, "what 3 replays wrote", _rows(grid, 3), np.asarray(seen))


@case("CAPTURE-1", how=_HOW)
def two_launches_of_a_graph_keep_their_order(subject: Subject, how: str) -> None:
    """Two launches that are captured one after another run in that order in each replay."""
    stream = _stream(subject, how)
    require_runs(subject)
    source, between, seen = (subject.shared(np.full(1, value, "i4")) for value in (5, 6, 7))
    submit(subject, "passed_on", (1,), subject.shared(poisoned(1)), source)
    subject.synchronize()
    with subject.capturing(stream) as graph:
        submit(subject, "passed_on", (1,), between, source)
        submit(subject, "passed_on", (1,), seen, between)
    for value in (11, 12):
        source[0] = value
        subject.replay(stream, graph)
        same(subject, "what the second launch passed on", value, int(seen[0]))


@case("CAPTURE-1", how=_HOW)
def hooks_see_the_capture_and_no_replay(subject: Subject, how: str) -> None:
    """Hooks are called when a launch is captured, and change nothing about it; a replay is no launch."""
    for ability in ("hooks", "capture"):
        require(subject, ability)
    stream, grid = _stream(subject, how), (3, 2)
    _submit(subject, grid, _memory(subject, grid))
    subject.synchronize()
    seen, calls = _memory(subject, grid), list[str]()
    subject.driver_calls()
    with subject.observed(lambda metadata: calls.append("enter"), lambda metadata: calls.append("exit")):
        with subject.capturing(stream) as graph:
            _submit(subject, grid, seen)
        if not subject.runs:
            _check_captured(subject, grid)
        else:
            subject.replay(stream, graph)
    same(subject, "hooks that were called", ["enter", "exit"], calls)
    if subject.runs:
        same(subject, "what a replay wrote", _rows(grid, 1), np.asarray(seen))


@case("CAPTURE-1", how=_HOW)
def graph_outlives_its_kernel(subject: Subject, how: str) -> None:
    """A graph whose kernel is gone, and after which others were loaded and dropped, replays as before."""
    stream, grid = _stream(subject, how), (3, 2)
    require_runs(subject)
    kernel = subject.kernel("coordinates", fresh=True)
    _submit(subject, grid, _memory(subject, grid), kernel=kernel)
    subject.synchronize()
    seen = _memory(subject, grid)
    with subject.capturing(stream) as graph:
        _submit(subject, grid, seen, kernel=kernel)
    del kernel
    subject.asked.script.forget()
    gc.collect()
    for _ in range(3):
        _submit(subject, grid, _memory(subject, grid), kernel=subject.kernel("coordinates", fresh=True))
        subject.asked.script.forget()
        gc.collect()
    subject.synchronize()
    subject.replay(stream, graph)
    same(subject, "what a replay wrote", _rows(grid, 1), np.asarray(seen))


@case("CAPTURE-1", kind="negative", how=_HOW, needs=["a_compile", "a_load", "a_wait"])
def launch_that_capture_forbids_is_refused(subject: Subject, how: str, needs: str) -> None:
    """A launch that would compile, load or wait under capture is refused; the capture goes on, and replays."""
    stream, grid = _stream(subject, how), (3, 2)
    if needs == "a_wait" and (not subject.is_own or how != "torch"):
        raise Unsupported(
            "host memory that is ready when a launch returns, no stream being named, is our own exception"
        )
    _submit(subject, grid, _memory(subject, grid))
    program = "passed_on" if needs == "a_wait" else "coordinates"
    kernel = subject.kernel(program, fresh=True)
    # An identity that no other case has: a binary that another kernel has loaded needs nothing.
    options = {} if needs == "a_wait" else {"num_warps": 2, "num_stages": 1 + 2 * _HOW.index(how) + (needs == "a_load")}
    more: tuple[Any, ...] = (subject.host(np.full(1, 5, "i4")),) if needs == "a_wait" else grid
    if needs == "a_wait":
        kernel[(1,)](subject.tensor(poisoned(1)), subject.tensor(more[0]))
    if needs == "a_load":
        kernel.warmup(subject.tensor(_memory(subject, grid)), *grid, grid=grid, **options)
    subject.synchronize()
    seen, refused_seen = _memory(subject, grid), _memory(subject, grid)
    subject.driver_calls()

    def ask() -> None:
        subject.show(program, kernel, grid, (refused_seen, *more), options)
        passed = (subject.tensor(m) if needs == "a_wait" else m for m in more)
        kernel[grid](subject.tensor(refused_seen), *passed, **options)

    with own_rule(subject):
        try:
            with subject.capturing(stream) as graph:
                refusal = _refusal(ask)
                _submit(subject, grid, seen)
        except Violated:
            raise
        except Exception as error:
            asked = subject.asked.script.line
            raise Violated(asked, "a capture that stays usable", f"{type(error).__name__}: {error}") from error
        due = "a refusal that says what to do first [CAPTURE-1]"
        told = f"{type(refusal).__name__}: {refusal}" if refusal else "no error"
        if refusal is None or (subject.is_own and getattr(refusal, "clause", "") != "CAPTURE-1"):
            raise Violated(subject.asked.script.line, due, told)
        if not subject.is_own and not isinstance(refusal, ContractValueError | RuntimeError):
            raise Unguarded(subject.asked.script.line, due, told)
        subject.asked.note(due, told)
        if not subject.runs:
            _check_captured(subject, grid)
            return
        subject.replay(stream, graph)
        same(subject, "what the refused launch wrote", _rows(grid, 0), np.asarray(refused_seen))
        same(subject, "what a replay of the launch after it wrote", _rows(grid, 1), np.asarray(seen))


def _refusal(ask: Callable[[], None]) -> Exception | None:
    try:
        ask()
    except Exception as error:  # judged by the case
        return error
    return None
