"""STATE: captured globals."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from gridpact.conformance.check import POISON, check_refused, launch, own_rule, poisoned, require, same
from gridpact.conformance.model import case, clause
from gridpact.conformance.subjects import Subject
from gridpact.contract.key import check_captured

clause(
    "STATE-1",
    "triton",
    "The value that was compiled in equals the value now, or the launch recompiles or is refused (as the user chose); "
    "the check is by value and type, sees a changed sign of zero, a changed element of a mutable value, a module "
    "attribute, a closure cell, a rebound helper function.",
    "A tile size that was changed in a notebook goes on being the old one, in a kernel that is launched over the new.",
)

clause(
    "STATE-2",
    "triton",
    "No false alarm: an unchanged NaN, an equal copy, an object whose == raises or returns an array.",
    "A kernel that captured a NaN cannot be launched at all.",
)

clause(
    "STATE-3",
    "gridpact",
    "The check is O(1) per captured name while identities are unchanged and the value is immutable; a captured mutable "
    "value with more than 1,024 leaves is refused at compile, so that no check visits more. Nothing is copied.",
    "A launch that walks through a table of a million numbers is no launch of microseconds any more.",
)

# What programs write for a captured value, by its text.
_CODES: Final = {"4": 1, "4.0": 2, "0.0": 3, "-0.0": 4, "1": 5, "True": 6, "nan": 7}

_CHANGES: Final = {
    "another_value": (4, 1),
    "another_type": (4, 4.0),
    "a_bool": (1, True),
    "another_sign": (0.0, -0.0),
    "from_nan": (math.nan, 4),
}


class Uncomparable:
    """An object that says nothing about whether it equals another, and cannot be copied."""

    def __init__(self, width: int) -> None:
        self.width = width

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("it cannot be compared")

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Uncomparable({self.width})"


def _held(like: Any, value: Any) -> Any:
    """Give a value as a subject's language captures it: as a constexpr, or as it is."""
    return type(like)(value) if hasattr(like, "value") else value


@contextmanager
def _kept(subject: Subject, where: str, value: Any) -> Iterator[tuple[str, Any, Callable[[Any], None]]]:
    """Give a program that captures a value there, a new kernel of it, and what puts another value there."""
    require(subject, "compiled")
    subject.forget()
    script = subject.asked.script
    if where == "cell":
        make = subject.source("kept_cell")
        like = make.__globals__["KEPT"]
        function = make(_held(like, value))
        kernel = subject.jit(function)
        cell = function.__closure__[0]
        script.constant("KEPT", _held(like, value))
        script.write(f"\n{inspect.getsource(make)}\n\nfunction = kept_cell(KEPT)")
        script.make(kernel, function, "kept_in_a_cell", f"{subject.language.jit}(function)")

        def put_there(value: Any) -> None:
            cell.cell_contents = _held(like, value)
            script.constant("function.__closure__[0].cell_contents", cell.cell_contents)

        yield "kept_cell", kernel, put_there
        return
    program = f"kept_{where}"
    names = subject.source(program).__globals__
    space = vars(names["HOLDER"]) if where == "attribute" else names
    name = {"length": "KEPT_LIST", "object": "KEPT_OBJECT"}.get(where, "KEPT")
    before = space[name]
    space[name] = _held(before, value)
    if where == "attribute":
        script.write('from types import ModuleType\n\nHOLDER = ModuleType("HOLDER")')
        script.constant("HOLDER.KEPT", space[name])

    def put(value: Any) -> None:
        space[name] = _held(before, value)
        script.constant(f"{'HOLDER.' if where == 'attribute' else ''}{name}", space[name])

    try:
        yield program, subject.kernel(program, fresh=True), put
    finally:
        space[name] = before


# ------------------------------------------------------------------------------------------------------------ STATE-1


@case("STATE-1", where=["global", "attribute", "cell"], change=_CHANGES)
def changed_value_is_seen(subject: Subject, where: str, change: tuple[Any, Any]) -> None:
    """A captured value that changed by value, type or sign is compiled anew or refused, and right when changed back."""
    binaries: dict[int, str] = {}
    with _kept(subject, where, change[0]) as (program, kernel, put):
        for value, is_changed in ((change[0], False), (change[1], True), (change[0], True)):
            put(value)
            check_captured(subject, program, kernel, _CODES[str(value)], is_changed, binaries)


@case("STATE-1", how=["in_place", "another"])
def changed_element_is_seen(subject: Subject, how: str) -> None:
    """A captured list that has another element, in place or as another list, is compiled anew or refused."""
    binaries: dict[int, str] = {}
    elements = [1, 2, 3]
    with _kept(subject, "length", elements) as (program, kernel, put):
        check_captured(subject, program, kernel, 3, False, binaries)
        if how == "in_place":
            elements.append(4)
            held = subject.source(program).__globals__["KEPT_LIST"]
            subject.asked.script.write(f"KEPT_LIST{'.value' if hasattr(held, 'value') else ''}.append(4)")
        else:
            put([1, 2, 3, 4])
        check_captured(subject, program, kernel, 4, True, binaries)


@case("STATE-1")
def rebound_helper_is_seen(subject: Subject) -> None:
    """A kernel whose name of a helper means another helper now is compiled anew or refused."""
    require(subject, "compiled")
    subject.forget()
    names, script = subject.source("asks_helper").__globals__, subject.asked.script
    helpers = {number: subject.source(f"answers_{number}") for number in (3, 5)}
    made = {number: subject.helper(function) for number, function in helpers.items()}
    for number, function in helpers.items():
        script.write(f"\n@{subject.language.jit}\n{inspect.getsource(function)}")
        script.expect(made[number], function, {})
    kernel = subject.kernel("asks_helper", fresh=True)
    binaries: dict[int, str] = {}
    try:
        for number, is_changed in ((3, False), (5, True), (3, True)):
            names["HELPER"] = made[number]
            script.write(f"HELPER = answers_{number}")
            check_captured(subject, "asks_helper", kernel, number, is_changed, binaries)
    finally:
        names.pop("HELPER", None)


@case("STATE-1", kind="negative", where=["global", "attribute", "cell"], change=_CHANGES)
def change_is_refused_where_that_was_chosen(subject: Subject, where: str, change: tuple[Any, Any]) -> None:
    """A kernel that refuses changes of its state says which, runs nothing, and runs again when it is changed back."""
    require(subject, "state")
    with _kept(subject, where, change[0]) as (program, kernel, put):
        kernel.kernel.on_state_change = "refuse"
        check_captured(subject, program, kernel, _CODES[str(change[0])], False, {})
        put(change[1])

        def ask(seen: Any) -> None:
            subject.launch(program, (1,), seen, kernel=kernel)

        check_refused(subject, ValueError, "STATE-1", ask, names="KEPT", count=lambda seen: 1)
        put(change[0])
        check_captured(subject, program, kernel, _CODES[str(change[0])], False, {})


# ------------------------------------------------------------------------------------------------------------ STATE-2


def _check_unchanged(subject: Subject, program: str, kernel: Any, due: int, again: Callable[[], None]) -> None:
    """Launch, change nothing that matters, launch again: right both times, and by our own rule one binary."""
    binaries = []
    for step in range(3):
        seen = poisoned(2)
        result = launch(subject, program, (1,), seen, kernel=kernel)
        if subject.runs:
            same(subject, f"{program}, launch {step + 1}", [due, POISON], seen)
        if "binaries" in subject.abilities:
            binaries.append(subject.identity(result))
        again()
    with own_rule(subject):
        same(subject, "binaries", binaries[:1], sorted(set(binaries)))


@case("STATE-2", where=["global", "attribute", "cell"])
def unchanged_nan_is_no_change(subject: Subject, where: str) -> None:
    """A captured NaN that nobody touched launches each time."""
    with _kept(subject, where, math.nan) as (program, kernel, _):
        _check_unchanged(subject, program, kernel, _CODES["nan"], lambda: None)


_COPIES: Final = {"4": 4, "4.0": 4.0, "0.0": 0.0, "-0.0": -0.0, "1": 1, "True": True, "nan": math.nan}


@case("STATE-2", value=_COPIES)
def equal_copy_is_no_change(subject: Subject, value: Any) -> None:
    """An equal value of the same type in another object launches each time."""
    with _kept(subject, "global", value) as (program, kernel, put):
        code = _CODES[str(value)]
        _check_unchanged(subject, program, kernel, code, lambda: put(float("nan") if value != value else value))


@case("STATE-2")
def equal_list_is_no_change(subject: Subject) -> None:
    """An equal list in another object launches each time."""
    with _kept(subject, "length", [1, 2, 3]) as (program, kernel, put):
        _check_unchanged(subject, program, kernel, 3, lambda: put([1, 2, 3]))


_OBJECTS: Final[dict[str, Callable[[], Any]]] = {
    "that_cannot_be_compared": lambda: Uncomparable(3),
    "that_is_an_array": lambda: np.arange(4),
    "with_an_array_in_it": lambda: {"widths": np.arange(4)},
}


@case("STATE-2", what=_OBJECTS)
def object_is_not_compared(subject: Subject, what: Callable[[], Any]) -> None:
    """A captured object whose == raises, or gives an array, launches each time."""
    subject.asked.script.write(f"from numpy import array\n\n\n{inspect.getsource(Uncomparable)}\n")
    with _kept(subject, "object", what()) as (program, kernel, _):
        _check_unchanged(subject, program, kernel, 1, lambda: None)


# ------------------------------------------------------------------------------------------------------------ STATE-3

_LARGE: Final[dict[str, Callable[[int], Any]]] = {
    "a_list": lambda leaves: [0] * (leaves - 1),
    "a_mapping": lambda leaves: {"widths": [0] * (leaves - 4)},
    "an_array": lambda leaves: np.zeros(leaves - 1),
    "lists_in_a_tuple": lambda leaves: ([0] * (leaves // 2 - 3), [0] * (leaves // 2 - 2)),
}


@case("STATE-3", kind="control", what=_LARGE)
def mutable_value_of_1024_leaves_is_accepted(subject: Subject, what: Callable[[int], Any]) -> None:
    """A captured value that may change, and has 1,024 values in it, launches."""
    require(subject, "state")
    with _kept(subject, "object", what(1024)) as (program, kernel, _):
        _check_unchanged(subject, program, kernel, 1, lambda: None)


@case("STATE-3", kind="negative", what=_LARGE)
def larger_mutable_value_is_refused(subject: Subject, what: Callable[[int], Any]) -> None:
    """A captured value that may change, and has more than 1,024 values in it, is refused before it is compiled."""
    require(subject, "state")
    _check_refused_for_size(subject, what(1026))


@case("STATE-3", kind="negative")
def value_that_holds_itself_is_refused(subject: Subject) -> None:
    """A captured list that holds itself is refused, and not walked for ever."""
    require(subject, "state")
    endless: list[Any] = []
    endless.append(endless)
    _check_refused_for_size(subject, endless)


def _check_refused_for_size(subject: Subject, value: Any) -> None:
    with _kept(subject, "object", value) as (program, kernel, _):
        check_refused(
            subject,
            (ValueError, TypeError),
            "STATE-3",
            lambda seen: subject.launch(program, (1,), seen, kernel=kernel),
            names="'KEPT_OBJECT'",
            count=lambda seen: 1,
        )


class Watched(tuple):  # type: ignore[type-arg]
    """A tuple that counts how often somebody looks into it."""

    __slots__ = ()  # it cannot change
    looks = 0

    def __iter__(self) -> Any:
        Watched.looks += 1
        return super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        Watched.looks += 1
        return super().__getitem__(index)

    def __eq__(self, other: object) -> bool:
        Watched.looks += 1
        return super().__eq__(other)

    def __hash__(self) -> int:
        Watched.looks += 1
        return super().__hash__()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("it cannot be copied")


@case("STATE-3", leaves=[1, 100, 100_000])
def immutable_value_is_proven_by_its_identity(subject: Subject, leaves: int) -> None:
    """A captured tuple of any size is no dearer to check than a number: nobody looks into it again, or copies it."""
    require(subject, "state")
    subject.asked.script.write(f"\n{inspect.getsource(Watched)}\n")
    with _kept(subject, "object", Watched(range(leaves))) as (program, kernel, _):
        _check_unchanged(subject, program, kernel, 1, lambda: None)
        Watched.looks = 0
        _check_unchanged(subject, program, kernel, 1, lambda: None)
        same(subject, "looks into the value in three launches", 0, Watched.looks)
