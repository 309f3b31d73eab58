"""How a case asks: poisoned memory, launches, refusals. What a kernel wrote counts, never the launcher's word.

Each check leaves a note of what was asked, due and seen; a case that made no check is the suite's own error.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from gridpact.conformance.model import Unguarded, Unimplemented, Unsupported, Violated
from gridpact.conformance.script import Language, Script
from gridpact.errors import LaunchError

if TYPE_CHECKING:
    from gridpact.conformance.subjects import Subject

__all__ = [
    "ALIGNMENT",
    "NUMBERS",
    "POISON",
    "Array",
    "Asked",
    "aligned",
    "another_device",
    "check_coordinates",
    "check_refused",
    "check_untouched",
    "has_run",
    "launch",
    "launch_arrived",
    "limits_of",
    "on_new_thread",
    "own_rule",
    "poisoned",
    "require",
    "require_programs",
    "require_runs",
    "require_within_limits",
    "same",
    "submit",
]

Array: TypeAlias = np.ndarray[Any, Any]

POISON: Final = -77
"""Value of memory that no program has written to."""

ALIGNMENT: Final = 16
"""Bytes, of the one alignment class that Triton has."""

NUMBERS: Final = 7
"""What `coordinates` writes per program: its count, x, y, z, and the grid's x, y, z."""


@dataclass
class Asked:
    """Notes of one case: the checks it made, and its launches as a program that can be run."""

    checks: int = 0
    due: str = ""
    seen: str = ""
    script: Script = field(default_factory=lambda: Script(Language()))
    memory: list[Array] = field(default_factory=list)
    """What was passed where no kernel runs: nothing is written to it."""
    alive: list[Any] = field(default_factory=list)
    """Arguments of the case's launches: their memory must outlive kernels that run beside the host."""
    kept: Path | None = None
    """Where the program is kept, should a launch kill the process."""

    def note(self, due: object, seen: object) -> None:
        """Leave a note of a check that held."""
        self.checks += 1
        self.due, self.seen = _short(due), _short(seen)


def _short(value: object) -> str:
    text = str(value.tolist() if isinstance(value, np.ndarray) else value)
    return text if len(text) <= 200 else f"{text[:197]}..."


def poisoned(count: int, dtype: str = "i4") -> Array:
    """Make memory of a value that no probe writes."""
    return np.full(count, POISON, dtype)


def aligned(memory: Array) -> Array:
    """Leave out what is before the first multiple of 16 bytes."""
    return memory[-memory.ctypes.data % ALIGNMENT // memory.itemsize :]


def launch_arrived(subject: Subject, kernel: Any, value: int, dtype: str = "i8") -> Any:
    """Launch a kernel of `arrived` with a number, and demand that this number arrives; gives what the launch gave back.

    Parameters
    ----------
    dtype
        Of the aligned memory that it writes to.
    """
    seen = aligned(poisoned(4, "i8")).view(dtype)
    due = seen.copy()
    due[0] = value
    result = launch(subject, "arrived", (1,), seen, value, kernel=kernel)
    if subject.runs:
        same(subject, f"arrived of {value}", due, seen)
    else:
        same(subject, f"{value} as the driver got it", value, subject.passed(result)["value"])
    return result


def same(subject: Subject, asked: str, due: object, seen: object) -> None:
    """Demand that what was seen is what was due, bit by bit for floats.

    Memory that a kernel was to write to is not seen where no kernel runs, and the case is left as unsupported.
    """
    is_memory = isinstance(seen, np.ndarray) and any(np.may_share_memory(seen, own) for own in subject.asked.memory)
    if is_memory:
        require_runs(subject)
    wanted, found = np.asarray(due), np.asarray(seen)
    if wanted.dtype.kind == "f" and found.dtype.kind == "f":
        wanted = wanted.astype(found.dtype)
        is_same = wanted.shape == found.shape and np.array_equal(_bits(wanted), _bits(found))
    else:
        is_same = np.array_equal(wanted, found)
    if not is_same:
        raise Violated(asked, _short(due), _short(seen))
    subject.asked.note(due, seen)


def _bits(floats: Array) -> Array:
    """Give floats by their bits, with one NaN."""
    return np.where(np.isnan(floats), np.array(np.nan, floats.dtype), floats).view(f"u{floats.itemsize}")


def has_run(subject: Subject, seen: Array) -> bool:
    """Whether one program of `coordinates` has counted; where nothing runs, whether one driver call was made since."""
    return bool(seen[0] > 0) if subject.runs else len(subject.driver_calls()) == 1


def check_untouched(subject: Subject, asked: str, due: Array, seen: Array) -> None:
    """Demand that nothing has run: memory is as it was, and where nothing runs, the driver was not called."""
    if subject.runs:
        same(subject, asked, due, seen)
    else:
        same(subject, "driver calls", "[]", str([*map(str, subject.driver_calls())]))


def require_runs(subject: Subject) -> None:
    """Leave the case as unsupported where no kernel runs."""
    if not subject.runs:
        raise Unsupported("no kernel runs: a driver call is all that is seen")


def require(subject: Subject, ability: str) -> None:
    """Leave the case as unsupported, or as unimplemented, where the subject does not declare an ability."""
    if ability in subject.unwritten:
        raise Unimplemented(subject.unwritten[ability])
    if ability not in subject.abilities:
        raise Unsupported(subject.lacks.get(ability, f"it declares no {ability}"))


def require_programs(subject: Subject, grid: Sequence[int]) -> None:
    """Leave the case as unsupported where a grid has more programs than the subject can run in a case's time."""
    if math.prod(grid) > subject.programs_in_case:
        raise Unsupported(f"it loops on the host: at most {subject.programs_in_case} programs in a case's time")


def limits_of(subject: Subject) -> tuple[int, int, int]:
    """Give a subject's limits, programs of x, y and z; leave the case as unsupported where it states none."""
    require(subject, "limits")
    if subject.limits is None:
        raise Unsupported("it states no limits")
    return subject.limits


def require_within_limits(subject: Subject, grid: Sequence[int]) -> None:
    """Leave the case as unsupported where a grid is over a limit of the subject."""
    if any(count > limit for count, limit in zip(grid, limits_of(subject), strict=False)):
        raise Unsupported(f"{tuple(grid)} is over a limit of this device")


def another_device(subject: Subject) -> str:
    """Name another device of ours than the one that a subject of ours is asked on; that one where there is no other."""
    from gridpact import backends

    own = subject.opened.name  # type: ignore[attr-defined]
    others = (status.name for status in backends.device_statuses() if status.is_usable and status.name != own)
    return next(others, own)


def launch(subject: Subject, program: str, grid: object, *args: object, **options: Any) -> Any:
    """Make a valid launch; one that fails is a violation."""
    with _is_valid(program, grid, options):
        return subject.launch(program, grid, *args, **options)


def submit(subject: Subject, program: str, grid: object, *args: object, **options: Any) -> Any:
    """Make a valid launch and do not wait for it; one that fails is a violation."""
    with _is_valid(program, grid, options):
        return subject.submit(program, grid, *args, **options)


def on_new_thread(asked: str, call: Callable[[], object]) -> None:
    """Make a call on a thread of its own and wait for it; an error there is a violation, or the case's verdict."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # told on the thread of the case
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in failed:
        if isinstance(error, (Violated, Unsupported, Unimplemented)):
            raise error
        raise Violated(asked, "a launch on a new thread", f"{type(error).__name__}: {error}") from error


@contextmanager
def _is_valid(program: str, grid: object, options: Any) -> Iterator[None]:
    try:
        yield
    except (Unimplemented, Unsupported, Violated):
        raise
    except Exception as error:
        asked = f"{program}[{_grid_text(grid)}] {options or ''}".rstrip()
        raise Violated(asked, "a launch", f"{type(error).__name__}: {error}") from error


def _grid_text(grid: object) -> str:
    return "callable" if callable(grid) else repr(grid)


@contextmanager
def own_rule(subject: Subject) -> Iterator[None]:
    """Mark what goes beyond Triton's promise: a foreign subject that differs is unguarded, not violated."""
    try:
        yield
    except Unguarded:
        raise
    except Violated as broken:
        if subject.is_own:
            raise
        raise Unguarded(broken.asked, broken.due, broken.seen) from broken


def check_coordinates(
    subject: Subject, given: object, grid: tuple[int, int, int], program: str = "coordinates", **options: Any
) -> Any:
    """Launch with `given` and demand that exactly the programs of `grid` ran, each once, with right coordinates.

    Parameters
    ----------
    given
        The grid as handed to the subject.
    grid
        What it means: (x, y, z), each 1 or more.
    program
        `coordinates`, or one that writes the same.

    Returns
    -------
    What the launch gave back.
    """
    require_programs(subject, grid)
    x, y, z = grid
    if not subject.runs:
        return _check_driver_call(subject, given, grid, program, **options)
    longest = max(grid)
    # Room for a launcher that exchanges axes: what it writes wrongly must not hit other memory.
    seen = poisoned((longest * x * y + longest * x + longest + 1) * NUMBERS)
    seen[::NUMBERS] = 0  # the counters
    due = seen.copy()
    rows = due[: x * y * z * NUMBERS].reshape(z, y, x, NUMBERS)
    rows[..., 0] = 1
    rows[..., 3], rows[..., 2], rows[..., 1] = np.indices((z, y, x))
    rows[..., 4:] = grid
    result = launch(subject, program, given, seen, x, y, **options)
    if not np.array_equal(due, seen):
        wrong = int(np.flatnonzero(due != seen)[0]) // NUMBERS
        ran = int(np.clip(seen[::NUMBERS], 0, None).sum())
        row = slice(NUMBERS * wrong, NUMBERS * (wrong + 1))
        raise Violated(
            f"{program}[{_grid_text(given)}] {options or ''}".rstrip(),
            f"{x * y * z} programs; place {wrong}: {due[row].tolist()}",
            f"{ran} programs; place {wrong}: {seen[row].tolist()}",
        )
    subject.asked.note(f"{x * y * z} programs, each once, at its own place", f"{x * y * z} programs, each once")
    return result


def _check_driver_call(
    subject: Subject, given: object, grid: tuple[int, int, int], program: str, **options: Any
) -> Any:
    """Demand one driver call: its clusters are the grid, its threads and its parameters those of the launch."""
    subject.driver_calls()
    seen_memory = poisoned(NUMBERS)
    result = launch(subject, program, given, seen_memory, *grid[:2], **options)
    calls = subject.driver_calls()
    due = f"1 driver call of {grid} programs"
    seen = ", ".join(f"{call.grid} blocks in clusters of {call.cluster}" for call in calls)
    programs = [tuple(n // c for n, c in zip(call.grid, call.cluster, strict=True)) for call in calls]
    if programs != [grid]:
        raise Violated(subject.asked.script.line, due, f"{len(calls)} driver calls{': ' if calls else ''}{seen}")
    subject.asked.note(due, f"1 driver call: {seen}")
    compiled: Any = options.get("kernel") if result is None else result
    same(subject, "threads of a block", (32 * compiled.metadata.num_warps, 1, 1), calls[0].block)
    arguments = {"seen": seen_memory.ctypes.data, "width": grid[0], "height": grid[1]}
    same(subject, f"arguments of {subject.asked.script.line}", str(arguments), str(_plain(subject.passed(compiled))))
    return result


def _plain(arguments: dict[str, Any]) -> dict[str, Any]:
    """Give NumPy's numbers as Python's."""
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in arguments.items()}


def check_refused(
    subject: Subject,
    kinds: type[Exception] | tuple[type[Exception], ...],
    clause: str,
    ask: Callable[[Array], object],
    *,
    names: str = "",
    means: int | None = None,
    memory: Array | None = None,
    count: Callable[[Array], int] = lambda seen: int((seen[::NUMBERS] != POISON).sum()),
) -> Exception:
    """Make an invalid launch over poisoned memory, and demand a refusal before anything ran.

    Our subjects must refuse with a typed error of the clause that names the subject of the fault. A foreign one
    passes with an error of the kinds before anything ran; it is unguarded where the error is of another kind or where
    it did nothing in silence, and violated where something ran.

    Parameters
    ----------
    kinds
        Types of error that say what is wrong.
    clause
        The clause that our error has to carry.
    ask
        Makes the launch with the memory.
    names
        What the error's text has to name, for our subjects.
    means
        How many programs the invalid grid plainly stands for. A foreign subject that runs just these runs what was
        asked, and is unguarded.
    memory
        What `ask` is given; poisoned if not given.
    count
        Counts the programs that ran, by the memory that they wrote to: of `coordinates` if not given.
    """
    seen = poisoned(4096) if memory is None else memory
    before = seen.copy()
    subject.driver_calls()
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    due = f"{' or '.join(kind.__name__ for kind in kinds)} [{clause}] before anything ran"
    refusal: Exception | None = None
    try:
        ask(seen)
        subject.synchronize()
    except (Unimplemented, Unsupported):
        raise
    except Exception as error:  # judged below
        refusal = error
    asked = subject.asked.script.line
    if refusal is not None:
        try:
            subject.synchronize()  # what ran before the refusal must be seen
        except Exception as late:
            raise Violated(asked, due, f"{type(refusal).__name__}, then {type(late).__name__}: {late}") from late
    calls = subject.driver_calls()
    if calls or (seen != before).any():
        programs = sum(math.prod(call.grid) for call in calls) or count(seen)
        asked_for = [f"the driver was called with {call.grid} blocks" for call in calls]
        told = "; ".join(asked_for) or f"{programs} programs ran"
        told += f", then {type(refusal).__name__}" if refusal else ", no error"
        raise (Unguarded if refusal is None and programs == means else Violated)(asked, due, told)
    if refusal is None:
        raise Unguarded(asked, due, "nothing ran and no error")
    text = f"{type(refusal).__name__}: {refusal}"
    is_typed = isinstance(refusal, kinds)
    if subject.is_own:
        is_typed = is_typed and isinstance(refusal, LaunchError) and getattr(refusal, "clause", "") == clause
        is_typed = is_typed and names in str(refusal)
    if not is_typed:
        raise Unguarded(asked, due, text)
    subject.asked.note(due, text)
    return refusal
