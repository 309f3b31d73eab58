"""How a case asks: poisoned memory, launches, refusals. What a kernel wrote counts, never the launcher's word.

Each check leaves a note of what was asked, due and seen; a case that made no check is the suite's own error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from gridpact.conformance.model import Unguarded, Unimplemented, Unsupported, Violated
from gridpact.errors import LaunchError

if TYPE_CHECKING:
    from gridpact.conformance.subjects import Subject

__all__ = [
    "POISON",
    "Array",
    "Asked",
    "check_coordinates",
    "check_refused",
    "launch",
    "own_rule",
    "poisoned",
    "require",
    "require_programs",
    "same",
]

Array: TypeAlias = np.ndarray[Any, Any]

POISON: Final = -77
"""Value of memory that no program has written to."""

NUMBERS: Final = 7
"""What `coordinates` writes per program: its count, x, y, z, and the grid's x, y, z."""


@dataclass
class Asked:
    """Notes of one case: the checks it made, and the last launch as a program that can be run."""

    checks: int = 0
    due: str = ""
    seen: str = ""
    line: str = ""
    program: str = ""

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


def same(subject: Subject, asked: str, due: object, seen: object) -> None:
    """Demand that what was seen is what was due, bit by bit for floats."""
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


def launch(subject: Subject, program: str, grid: object, *args: object, **options: Any) -> Any:
    """Make a valid launch; one that fails is a violation."""
    try:
        return subject.launch(program, grid, *args, **options)
    except (Unimplemented, Unsupported):
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


def check_refused(
    subject: Subject,
    kinds: type[Exception] | tuple[type[Exception], ...],
    clause: str,
    ask: Callable[[Array], object],
    *,
    names: str = "",
    means: int | None = None,
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
        How many programs of `coordinates` the invalid grid plainly stands for. A foreign subject that runs just these
        runs what was asked, and is unguarded.
    """
    seen = poisoned(4096)
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
    asked = subject.asked.line
    if refusal is not None:
        try:
            subject.synchronize()  # what ran before the refusal must be seen
        except Exception as late:
            raise Violated(asked, due, f"{type(refusal).__name__}, then {type(late).__name__}: {late}") from late
    if (seen != POISON).any():
        programs = int((seen[::NUMBERS] != POISON).sum())
        told = f"{programs} programs ran, " + (f"then {type(refusal).__name__}" if refusal else "no error")
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
