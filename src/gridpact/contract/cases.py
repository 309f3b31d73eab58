"""First cases of the contract: GRID-1 to 6, 9 and 10, and ARG-1 to 3, on any device.

A case launches probe kernels and looks at what they wrote into poisoned memory. It raises `CaseFailedError` with what
was due and what was seen; anything else that it raises is a failure too.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, TypeAlias

import numpy as np

from gridpact import hooks
from gridpact.errors import ContractError

__all__ = ["CASES", "CLAUSES", "Case", "CaseFailedError", "Subject"]

CLAUSES: Final = {
    "GRID-1": "only ints, tuples and lists of them, and callables are grids",
    "GRID-2": "missing axes are exactly 1",
    "GRID-3": "any other number of axes is refused, a fourth is never dropped",
    "GRID-4": "every coordinate triple runs exactly once, no axes exchanged",
    "GRID-5": "tuple, list, int and callable mean the same",
    "GRID-6": "negative counts are refused",
    "GRID-9": "an empty grid is a launch of nothing, the first one too",
    "GRID-10": "a callable is evaluated once, with a mapping of its own",
    "ARG-1": "arguments bind by Python's rules, with Python's errors",
    "ARG-2": "numbers arrive exactly, or rounded once, or are refused",
    "ARG-3": "tensors, None and tuples are arguments, anything else is refused by name",
}
"""Clause -> its sentence, short."""

_POISON: Final = -77
Memory: TypeAlias = np.ndarray[Any, Any]


class CaseFailedError(Exception):
    """What a case saw is not what was due."""

    def __init__(self, what: str, due: object, seen: object) -> None:
        super().__init__(f"{what}: due {due}, seen {seen}")


@dataclass(frozen=True)
class Subject:
    """A device under proof, the probes in its language, and its ways to run a program."""

    device: str
    probes: ModuleType
    num_warps: tuple[int, ...]

    def launch(self, probe: str, grid: object, *args: object, **kwargs: object) -> Any:
        """Launch a probe on the device."""
        return getattr(self.probes, probe)[grid](*args, device=self.device, **kwargs)


@dataclass(frozen=True)
class Case:
    """One question to a device."""

    clause: str
    name: str
    run: Callable[[Subject], None]


CASES: Final[list[Case]] = []


def _case(clause: str) -> Callable[[Callable[[Subject], None]], Callable[[Subject], None]]:
    def add(run: Callable[[Subject], None]) -> Callable[[Subject], None]:
        CASES.append(Case(clause, run.__name__.removeprefix("_"), run))
        return run

    return add


def _same(what: str, due: object, seen: object) -> None:
    if not np.array_equal(np.asarray(due), np.asarray(seen)):
        raise CaseFailedError(what, due, seen)


def _seen(grid: tuple[int, int, int]) -> Memory:
    """Make poisoned memory for `coordinates`, with room for a launcher that exchanges axes: it hits nothing else."""
    x, y, _ = grid
    longest = max(grid)
    return np.full((longest * x * y + longest * x + longest + 1) * 7, _POISON, np.int32)


def _check_coordinates(subject: Subject, given: object, grid: tuple[int, int, int], **options: object) -> None:
    """Launch with `given` and demand that exactly the programs of `grid` ran, each once."""
    x, y, z = grid
    seen = _seen(grid)
    seen[::7] = 0  # the counters
    due = seen.copy()
    rows = due[: x * y * z * 7].reshape(z, y, x, 7)
    rows[..., 0] = 1
    rows[..., 3], rows[..., 2], rows[..., 1] = np.indices((z, y, x))
    rows[..., 4:] = grid
    subject.launch("coordinates", given, seen, x, y, **options)
    if not np.array_equal(due, seen):
        wrong = int(np.flatnonzero(due != seen)[0]) // 7
        row = slice(7 * wrong, 7 * wrong + 7)
        raise CaseFailedError(f"grid {given!r} {options or ''}, program {wrong}", due[row], seen[row])


def _as_is(seen: Memory) -> object:
    return seen


def _check_refused(
    subject: Subject,
    kind: type[Exception],
    clause: str,
    probe: str,
    grid: object,
    *args: object,
    first: Callable[[Memory], object] = _as_is,
    **kwargs: Any,
) -> ContractError:
    """Launch a probe with `first(memory), *args`; demand an error of that clause, and memory that nobody wrote to."""
    seen = np.full(512, _POISON, np.int32)
    due = f"{kind.__name__} [{clause}]"
    what = f"{probe}[{grid!r}] with {args} {kwargs or ''}"
    try:
        subject.launch(probe, grid, first(seen), *args, **kwargs)
    except ContractError as error:
        if not isinstance(error, kind) or error.clause != clause:
            raise CaseFailedError(what, due, repr(error)) from error
        refusal = error
    else:
        raise CaseFailedError(what, due, "a launch")
    _same(f"memory after the refusal of {what}", np.full_like(seen, _POISON), seen)
    return refusal


def _check_grid_refused(subject: Subject, kind: type[Exception], clause: str, grid: object) -> None:
    _check_refused(subject, kind, clause, "coordinates", grid, 4, 4)


@_case("GRID-1")
def _each_accepted_type_launches(subject: Subject) -> None:
    for grid in (3, np.int64(3), (3,), [3], (np.int32(3),), lambda meta: 3, lambda meta: (3,), lambda meta: [3]):
        _check_coordinates(subject, grid, (3, 1, 1))


@_case("GRID-1")
def _each_other_type_is_refused(subject: Subject) -> None:
    array = np.array([2, 2])
    for grid in (2.0, "2", None, True, array, np.float64(2), np.True_, {2: 2}, {2}, (2.0,), (True,), ("2",), (2, None)):
        _check_grid_refused(subject, TypeError, "GRID-1", grid)
        _check_grid_refused(subject, TypeError, "GRID-1", lambda meta, grid=grid: grid)
    _check_grid_refused(subject, TypeError, "GRID-1", lambda meta: lambda meta: (2,))


@_case("GRID-2")
def _missing_axes_are_one(subject: Subject) -> None:
    _check_coordinates(subject, (7,), (7, 1, 1))
    _check_coordinates(subject, (7, 5), (7, 5, 1))


@_case("GRID-3")
def _other_lengths_are_refused(subject: Subject) -> None:
    for grid in ((), [], (2, 2, 2, 2), (2, 2, 2, 1), [1] * 7):
        _check_grid_refused(subject, ValueError, "GRID-3", grid)


@_case("GRID-4")
def _every_triple_runs_once(subject: Subject) -> None:
    for grid in ((7, 5, 3), (3, 5, 7), (1, 1, 1), (64, 1, 1), (1, 64, 1), (1, 1, 64), (13, 1, 11), (2, 31, 4)):
        _check_coordinates(subject, grid, grid)


@_case("GRID-4")
def _every_triple_runs_once_whatever_the_warps(subject: Subject) -> None:
    for num_warps in subject.num_warps:
        _check_coordinates(subject, (7, 5, 3), (7, 5, 3), num_warps=num_warps)


@_case("GRID-5")
def _spellings_mean_the_same(subject: Subject) -> None:
    for grid in ((4, 1, 1), (4, 1), (4,), [4], 4, lambda meta: (4, 1, 1), lambda meta: 4):
        _check_coordinates(subject, grid, (4, 1, 1))


@_case("GRID-6")
def _negative_counts_are_refused(subject: Subject) -> None:
    for grid in (-1, (-1,), (2, -1), (2, 2, -1), (-2, -1), (0, -1), (-(2**31),), (-(2**63),), lambda meta: (-1,)):
        _check_grid_refused(subject, ValueError, "GRID-6", grid)


@_case("GRID-9")
def _an_empty_grid_runs_nothing(subject: Subject) -> None:
    for grid in (0, (0,), (0, 4), (4, 0), (4, 4, 0), (0, 0, 0), lambda meta: 0):
        seen = _seen((4, 4, 4))
        fired: list[object] = []
        with hooks.observe(enter=fired.append, exit=fired.append):
            subject.launch("coordinates", grid, seen, 4, 4)
        _same(f"memory after grid {grid!r}", np.full_like(seen, _POISON), seen)
        _same(f"hooks that fired at grid {grid!r}", 0, len(fired))


@_case("GRID-9")
def _an_empty_launch_still_judges_its_arguments(subject: Subject) -> None:
    _check_refused(subject, TypeError, "ARG-1", "coordinates", (0,))
    _check_refused(subject, TypeError, "ARG-3", "coordinates", (0,), "4", 4)
    _check_refused(subject, TypeError, "META-3", "coordinates", (0,), 4, 4, warps=4)


@_case("GRID-10")
def _a_callable_is_evaluated_once(subject: Subject) -> None:
    metas: list[dict[str, Any]] = []

    def grid(meta: dict[str, Any]) -> tuple[int, ...]:
        metas.append(dict(meta))
        meta["width"] = meta["seen"] = None  # its own mapping: no launch may see this
        return (3, 2)

    _check_coordinates(subject, grid, (3, 2, 1), num_warps=1)
    _same("evaluations", 1, len(metas))
    given = {name: metas[0].get(name, "missing") for name in ("width", "height", "num_warps")}
    if given != {"width": 3, "height": 2, "num_warps": 1}:
        raise CaseFailedError("mapping", {"width": 3, "height": 2, "num_warps": 1}, given)


@_case("ARG-1")
def _arguments_bind_as_in_python(subject: Subject) -> None:
    seen = _seen((1, 1, 1))
    seen[0] = 0
    subject.launch("coordinates", 1, height=1, seen=seen, width=1)
    _same("keywords in another order", [1, 0, 0, 0, 1, 1, 1], seen[:7])


def coordinates(seen: object, width: object, height: object) -> None:
    """Have the signature of the probe, for Python's own errors."""


@_case("ARG-1")
def _errors_are_those_of_python(subject: Subject) -> None:
    wrong: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]
    wrong = (((1,), {}), ((1, 2, 3), {}), ((1, 2), {"width": 3}), ((), {}))
    for args, kwargs in wrong:
        try:
            coordinates(None, *args, **kwargs)
        except TypeError as error:
            due = f"{error} [ARG-1]"
        refusal = _check_refused(subject, TypeError, "ARG-1", "coordinates", 1, *args, **kwargs)
        _same("text", due, str(refusal))


def _bounds(largest: bool) -> list[int]:
    signed = [2 ** (bits - 1) - 1 if largest else -(2 ** (bits - 1)) for bits in (8, 16, 32, 64)]
    return signed + [2**bits - 1 if largest else 0 for bits in (8, 16, 32)]


@_case("ARG-2")
def _integers_arrive_exactly(subject: Subject) -> None:
    for values in (_bounds(True), _bounds(False), [1] * 7, [-1] * 4 + [1] * 3, [16] * 7):
        for free in (0, 1, -1, 16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**63 - 1, -(2**63), True):
            seen = np.full(8, _POISON, np.int64)
            subject.launch("integers", 1, seen, *values, free)
            _same(f"integers {values} {free}", [*values, int(free)], seen)


@_case("ARG-2")
def _integers_that_do_not_fit_are_refused(subject: Subject) -> None:
    for at, (low, high) in enumerate(zip(_bounds(False), _bounds(True), strict=True)):
        for value, kind in (
            (low - 1, OverflowError),
            (high + 1, OverflowError),
            (2**100, OverflowError),
            (1.0, TypeError),
        ):
            values = [value if i == at else 0 for i in range(7)]
            _check_refused(subject, kind, "ARG-2", "integers", 1, *values, 0, first=_as_i8)
    for free in (2**64, -(2**63) - 1):
        _check_refused(subject, OverflowError, "ARG-2", "integers", 1, *[0] * 7, free, first=_as_i8)


def _as_i8(seen: Memory) -> object:
    return seen.view("i8")


_FLOATS: Final = (
    # value, as fp16, bf16, fp32, fp64, and undeclared (fp32)
    (1.5, 1.5, 1.5, 1.5, 1.5, 1.5),
    (-0.0, -0.0, -0.0, -0.0, -0.0, -0.0),
    (math.inf, *[math.inf] * 5),
    (-math.inf, *[-math.inf] * 5),
    (math.nan, *[math.nan] * 5),
    # 1 + 2^-11 + 2^-40 rounds up in one step to fp16, and to even through fp32: 1.0009765625 is due.
    (1 + 2**-11 + 2**-40, 1.0009765625, 1.0, 1.00048828125, 1 + 2**-11 + 2**-40, 1.00048828125),
    # 1 + 2^-8 is half-way in bf16 and goes to even; a little more goes up, also where fp32 drops the little.
    (1 + 2**-8, 1.00390625, 1.0, 1.00390625, 1 + 2**-8, 1.00390625),
    (1 + 2**-8 + 2**-40, 1.00390625, 1.0078125, 1.00390625, 1 + 2**-8 + 2**-40, 1.00390625),
    (65504.0, 65504.0, 65536.0, 65504.0, 65504.0, 65504.0),
    (2**-24, 2**-24, 2**-24, 2**-24, 2**-24, 2**-24),
)


@_case("ARG-2")
def _floats_are_rounded_once(subject: Subject) -> None:
    for value, *due in _FLOATS:
        seen = np.full(5, _POISON, np.float64)
        subject.launch("floats", 1, seen, value, value, value, value, value)
        if due[0] != due[0]:
            _same(f"float {value}", [True] * 5, np.isnan(seen))
        else:
            _same(f"float {value!r} bit by bit", np.array(due).view("u8"), seen.view("u8"))


@_case("ARG-2")
def _floats_that_would_become_infinite_are_refused(subject: Subject) -> None:
    for at, value in ((0, 65520.0), (0, -1e6), (1, 3.4e38), (2, 3.5e38), (2, 1e300), (4, -1e39)):
        values = [value if i == at else 0.0 for i in range(5)]
        _check_refused(subject, OverflowError, "ARG-2", "floats", 1, *values, first=lambda seen: seen.view("f8"))


@_case("ARG-3")
def _none_and_tuples_are_arguments(subject: Subject) -> None:
    for extra, due in ((None, 1), ((40, (2, None)), 42), ((1, (1, None)), 2), ((2**40, (16, None)), 2**40 + 16)):
        seen = np.full(1, _POISON, np.int64)
        subject.launch("optional", 1, seen, extra)
        _same(f"extra={extra!r}", [due], seen)


@_case("ARG-3")
def _views_are_passed_without_a_copy(subject: Subject) -> None:
    whole = np.full(64, _POISON, np.int64)
    subject.launch("optional", 1, whole[5:], None)
    due = np.full(64, _POISON, np.int64)
    due[5] = 1
    _same("memory around a view", due, whole)


@_case("ARG-3")
def _other_values_are_refused_by_name(subject: Subject) -> None:
    foreign = ">i4" if sys.byteorder == "little" else "<i4"
    wrong: list[tuple[type[Exception], Callable[[Memory], object]]] = [
        (TypeError, lambda seen: "text"),
        (TypeError, lambda seen: object()),
        (TypeError, lambda seen: [1, 2]),
        (TypeError, lambda seen: 1j),
        (TypeError, lambda seen: seen.view(foreign)),
        (TypeError, lambda seen: seen.astype("O")),
        (TypeError, lambda seen: seen.astype("M8[s]")),
        (TypeError, lambda seen: seen.astype("c8")),
        (ValueError, lambda seen: np.broadcast_to(seen, seen.shape)),  # read-only
    ]
    for kind, first in wrong:
        _check_refused(subject, kind, "ARG-3", "coordinates", 1, 4, 4, first=first)
